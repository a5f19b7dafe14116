"""Checks of reminders."""

from onbeat.doctor.findings import Check, Finding, InstallationFacts, ok, warn
from onbeat_toys.reminders.settings import RemindersSettings


def reminders(facts: InstallationFacts) -> Finding | None:
    """Check whether reminders have a bell to ring."""
    settings = facts.usable_settings
    if not settings.of(RemindersSettings).file:
        return None
    if not settings.value("bell_tower"):
        return warn("reminders", "this node has no bell", "set `bell_tower`")
    return ok("reminders", "this node has a bell")


CHECKS: tuple[Check, ...] = (reminders,)

"""Checks of the files of scheduled prompts."""

from pathlib import Path

from onbeat.doctor.findings import Check, Finding, InstallationFacts, fail, ok, warn
from onbeat.systems.sessions.broken_files import broken_in
from onbeat.systems.sessions.definitions import PromptDefaults
from onbeat.systems.sessions.settings import SessionsSettings


def session_files(facts: InstallationFacts) -> Finding | None:
    """Check whether every definition.json and last-run.json is valid.

    A broken file is only a warning: one prompt does not make a container unhealthy.
    """
    settings = facts.usable_settings.of(SessionsSettings)
    if facts.settings_are_invalid or not settings.url:
        return None
    folder = Path(settings.folder).expanduser()
    defaults = PromptDefaults(settings.check, settings.minimum)
    try:
        broken = broken_in(folder, defaults, now=facts.now)
    except OSError as error:  # a node does not start for the same reason
        problem = f"{folder} cannot be used: {error.strerror}"
        return fail("session files", problem, "set `sessions_folder` to a writable folder")
    if not broken:
        return ok("session files", f"all files in {folder} are valid")
    slug, problem = next(iter(broken.items()))
    more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
    hint = f"repair {folder / slug}, or replace it with PUT /api/schedule/{slug}"
    return warn("session files", f"{slug}: {problem}{more}", hint)


CHECKS: tuple[Check, ...] = (session_files,)

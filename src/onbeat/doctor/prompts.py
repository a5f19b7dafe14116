"""Checks of the files of scheduled prompts."""

from pathlib import Path

from onbeat.doctor.findings import Check, Finding, InstallationFacts, fail, ok, warn
from onbeat.systems.sessions.broken_files import broken_in
from onbeat.systems.sessions.definitions import PromptDefaults


def session_files(seen: InstallationFacts) -> Finding | None:
    """Judge whether every definition.json and last-run.json can be used.

    It is a warning, as of other files: a container is not unhealthy for one prompt.
    """
    settings = seen.known
    if seen.is_refused or not settings.sessions_url:
        return None
    folder = Path(settings.sessions_folder).expanduser()
    defaults = PromptDefaults(settings.sessions_check, settings.sessions_minimum)
    try:
        broken = broken_in(folder, defaults, now=seen.now)
    except OSError as refused:  # a start is refused for the same reason
        problem = f"{folder} cannot be used: {refused.strerror}"
        return fail("session files", problem, "sessions_folder: a folder that can be written to")
    if not broken:
        return ok("session files", f"all in {folder} can be used")
    slug, why = next(iter(broken.items()))
    more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
    hint = f"repair {folder / slug}, or replace it by PUT /api/schedule/{slug}"
    return warn("session files", f"{slug}: {why}{more}", hint)


CHECKS: tuple[Check, ...] = (session_files,)

"""`onbeat doctor`: looks at everything, changes nothing, and says what would be right.

Looking and judging are apart: `look` returns what there is, whatever state it is in, and each check
is a function of that. A check that breaks is a finding as well, and the others go on.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from onbeat.core.zones import VERSION
from onbeat.doctor import database, machine, sessions, standing
from onbeat.doctor.seen import Check, Finding, Level, Seen
from onbeat.errors import InvalidSettings
from onbeat.ports import Clock
from onbeat.settings import Settings
from onbeat.stores.sql.examining import Looked
from onbeat.stores.sqlite import who_holds
from onbeat.stores.sqlite.examining import LIBRARY
from onbeat.stores.sqlite.examining import look as look_at_file

__all__ = ["CHECKS", "Finding", "Level", "Seen", "judge", "look"]

CHECKS: tuple[Check, ...] = (
    *machine.CHECKS, *database.CHECKS, *standing.CHECKS, *sessions.CHECKS,
)  # fmt: skip


async def look(
    settings: Settings | InvalidSettings,
    *,
    settings_file: Path | None,
    clock: Clock,
    quick: bool = False,
) -> Seen:
    """Look at the machine and at the database, without changing anything.

    A database in a file is read as a whole, to see whether it is damaged, unless it is to be quick.
    """
    path = settings.database_path if isinstance(settings, Settings) else None
    return Seen(
        clock.now(),
        tuple(sys.version_info[:3]),
        LIBRARY,
        VERSION,
        settings,
        settings_file,
        await _look_at_database(settings, clock, quick=quick),
        None if path is None else who_holds(path),
    )


def judge(seen: Seen) -> Sequence[Finding]:
    """Return what each check finds, in their order."""
    found = [_find(check, seen) for check in CHECKS]
    return [each for each in found if each is not None]


def _find(check: Check, seen: Seen) -> Finding | None:
    try:
        return check(seen)
    except Exception as broken:  # noqa: BLE001 - the others go on
        name = check.__name__.replace("_", " ")
        return Finding(name, "fail", f"it could not be checked: {type(broken).__name__}: {broken}")


async def _look_at_database(
    settings: Settings | InvalidSettings, clock: Clock, *, quick: bool
) -> Looked:
    if isinstance(settings, InvalidSettings):
        problem = "which it is, nobody knows: the settings are refused"
        return Looked(problem=problem, is_there=False)
    if settings.database_path is not None:
        return look_at_file(settings.database_path, clock, quick=quick)
    if not settings.is_postgres:
        hint = "it is gone when the program ends: name a file"
        return Looked(problem="the database is in memory", hint=hint, is_there=False)
    try:
        from onbeat.stores.postgres.examining import look  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        hint = "pip install 'onbeat[postgres]'"
        return Looked(problem="PostgreSQL needs a driver that is not installed", hint=hint)
    return await look(settings.database, clock)

"""`onbeat doctor`: looks at everything, changes nothing, and says what would be right.

It asks the peers that settings name as well: see `peers`. A start does some of this, too.

Looking and judging are apart: `look` returns what there is, whatever state it is in, and each check
is a function of that. A check that breaks is a finding as well, and the others go on.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from onbeat.app.peers import PeerCheck, peers_of
from onbeat.app.settings import Settings
from onbeat.core.time.zones import VERSION
from onbeat.doctor import database, files, machine, prompts, workload
from onbeat.doctor.findings import Check, Finding, InstallationFacts, Level
from onbeat.errors import InvalidSettings
from onbeat.ports.store import Clock
from onbeat.stores.sql.diagnostics import DatabaseFacts
from onbeat.stores.sqlite.diagnostics import LIBRARY
from onbeat.stores.sqlite.diagnostics import look as look_at_file
from onbeat.stores.sqlite.store import who_holds

__all__ = ["CHECKS", "Finding", "InstallationFacts", "Level", "judge", "look", "look_at_start"]

CHECKS: tuple[Check, ...] = (
    *machine.CHECKS, *database.CHECKS, *workload.CHECKS, *files.CHECKS, *prompts.CHECKS,
)  # fmt: skip
AT_START: tuple[Check, ...] = (workload.definitions, *files.CHECKS, *prompts.CHECKS)


async def look(
    settings: Settings | InvalidSettings,
    *,
    settings_file: Path | None,
    clock: Clock,
    quick: bool = False,
) -> InstallationFacts:
    """Look at the machine, the database and the peers, without changing anything.

    A database in a file is read as a whole, to see whether it is damaged, and peers are asked,
    unless it is to be quick.
    """
    path = settings.database_path if isinstance(settings, Settings) else None
    asking = None if quick else asyncio.ensure_future(_ask_peers(settings, is_start=False))
    return InstallationFacts(
        clock.now(),
        tuple(sys.version_info[:3]),
        LIBRARY,
        VERSION,
        settings,
        settings_file,
        await _look_at_database(settings, clock, quick=quick),
        None if path is None else who_holds(path),
        () if asking is None else await asking,
    )


async def look_at_start(settings: Settings, clock: Clock) -> Sequence[Finding]:
    """Return what is wrong with definitions, files and peers, for the log of a node that starts.

    Nothing waits for it: what takes long is done in threads, and peers have a few seconds.
    """
    asking = asyncio.ensure_future(_ask_peers(settings, is_start=True))
    looked = DatabaseFacts(is_there=False)
    if settings.is_postgres:
        looked = await _look_at_database(settings, clock, quick=True)
    elif (path := settings.database_path) is not None:
        looked = await asyncio.to_thread(look_at_file, path, clock, quick=True)
    version = tuple(sys.version_info[:3])
    seen = InstallationFacts(
        clock.now(), version, LIBRARY, VERSION, settings, None, looked, None, await asking
    )
    return await asyncio.to_thread(lambda: [e for e in judge(seen, AT_START) if e.level != "ok"])


def judge(seen: InstallationFacts, checks: Sequence[Check] | None = None) -> Sequence[Finding]:
    """Return what each check finds, in their order, and then what the peers answered."""
    found = [_find(check, seen) for check in (CHECKS if checks is None else checks)]
    asked = [Finding(each.name, each.level, each.found, each.hint) for each in seen.peers]
    return [*(each for each in found if each is not None), *asked]


async def _ask_peers(
    settings: Settings | InvalidSettings, *, is_start: bool
) -> Sequence[PeerCheck]:
    if isinstance(settings, InvalidSettings):
        return ()
    return await peers_of(settings, is_start=is_start)


def _find(check: Check, seen: InstallationFacts) -> Finding | None:
    try:
        return check(seen)
    except Exception as broken:  # noqa: BLE001 - the others go on
        name = check.__name__.replace("_", " ")
        return Finding(name, "fail", f"it could not be checked: {type(broken).__name__}: {broken}")


async def _look_at_database(
    settings: Settings | InvalidSettings, clock: Clock, *, quick: bool
) -> DatabaseFacts:
    if isinstance(settings, InvalidSettings):
        problem = "which it is, nobody knows: the settings are refused"
        return DatabaseFacts(problem=problem, is_there=False)
    if settings.database_path is not None:
        return look_at_file(settings.database_path, clock, quick=quick)
    if not settings.is_postgres:
        hint = "it is gone when the program ends: name a file"
        return DatabaseFacts(problem="the database is in memory", hint=hint, is_there=False)
    try:
        from onbeat.stores.postgres.diagnostics import look  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        hint = "pip install 'onbeat[postgres]'"
        return DatabaseFacts(problem="PostgreSQL needs a driver that is not installed", hint=hint)
    return await look(settings.database, clock)

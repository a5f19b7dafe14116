"""Diagnose an installation for `onbeat doctor`, without changing anything.

Gathering and judging are separate: `look` collects the facts, whatever state they are in, and each
check is a function of these facts. A check that raises becomes a finding; the others still run.
The peers that the settings name are contacted as well: see `app/peers.py`. The start of a node
runs some of these checks.
"""

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from onbeat.app.peers import peers_of
from onbeat.app.settings import Settings
from onbeat.core.time.zones import VERSION
from onbeat.doctor import database, files, machine, workload
from onbeat.doctor.findings import Check, Finding, InstallationFacts, Level, ok, warn
from onbeat.errors import InvalidSettings
from onbeat.host.extras import install_command
from onbeat.host.plugs import (
    broken_plugs,
    guard,
    is_from_package,
    load_functions,
    plugs,
    problem_of,
    resolve_all,
)
from onbeat.ports.clock import Clock
from onbeat.ports.plug import Plug
from onbeat.ports.system import PeerCheck
from onbeat.stores.sql.diagnostics import DatabaseFacts
from onbeat.stores.sqlite.diagnostics import LIBRARY
from onbeat.stores.sqlite.diagnostics import look as look_at_file
from onbeat.stores.sqlite.store import find_lock_holder

__all__ = [
    "CHECKS",
    "Finding",
    "InstallationFacts",
    "Level",
    "findings_at_start",
    "gather_facts",
    "judge",
]

CHECKS: tuple[Check, ...] = (
    *machine.CHECKS, *database.CHECKS, *workload.CHECKS, *files.CHECKS,
)  # fmt: skip
AT_START: tuple[Check, ...] = (workload.definitions, *files.CHECKS)


async def gather_facts(
    settings: Settings | InvalidSettings,
    *,
    settings_file: Path | None,
    clock: Clock,
    quick: bool = False,
) -> InstallationFacts:
    """Gather facts about the machine, the database and the peers.

    `quick` skips the check of the whole database file, and the peers.
    """
    path = settings.database_path if isinstance(settings, Settings) else None
    peer_checks = None if quick else asyncio.ensure_future(_check_peers(settings, is_start=False))
    return InstallationFacts(
        clock.now(),
        tuple(sys.version_info[:3]),
        LIBRARY,
        VERSION,
        settings,
        settings_file,
        await _look_at_database(settings, clock, quick=quick),
        None if path is None else find_lock_holder(path),
        () if peer_checks is None else await peer_checks,
    )


async def findings_at_start(settings: Settings, clock: Clock) -> Sequence[Finding]:
    """Return the problems of definitions, files and peers, for the log of a starting node.

    It runs in the background: slow steps run in threads, and each peer has a few seconds.
    """
    peer_checks = asyncio.ensure_future(_check_peers(settings, is_start=True))
    database_facts = DatabaseFacts(is_there=False)
    if settings.is_postgres:
        database_facts = await _look_at_database(settings, clock, quick=True)
    elif (path := settings.database_path) is not None:
        database_facts = await asyncio.to_thread(look_at_file, path, clock, quick=True)
    version = tuple(sys.version_info[:3])
    facts = InstallationFacts(
        clock.now(),
        version,
        LIBRARY,
        VERSION,
        settings,
        None,
        database_facts,
        None,
        await peer_checks,
    )
    return await asyncio.to_thread(
        lambda: [e for e in judge(facts, (*AT_START, *checks_of_plugs())) if e.level != "ok"]
    )


def judge(facts: InstallationFacts, checks: Sequence[Check] | None = None) -> Sequence[Finding]:
    """Return the findings of the checks, in their order, and then those of the peers."""
    all_checks = (*CHECKS, *checks_of_plugs()) if checks is None else checks
    found = [_run_check(check, facts) for check in all_checks]
    of_peers = [Finding(each.name, each.level, each.found, each.hint) for each in facts.peers]
    return [*(each for each in found if each is not None), *of_peers]


def checks_of_plugs() -> tuple[Check, ...]:
    """Return the checks of all plugs, and whether every plug works."""
    found: list[Check] = [installed_plugs]
    for plug in plugs():
        if plug.checks:
            with guard(plug, "checks"):
                found += (
                    partial(_run_check_of, plug, each) for each in load_functions(plug.checks)
                )
    return tuple(found)


def installed_plugs(_: InstallationFacts) -> Finding | None:
    """Check whether every plug of an installed package can be loaded, with all it refers to."""
    resolve_all()
    if broken := broken_plugs():
        packages = dict.fromkeys(each.origin.package for each in broken)
        hint = f"upgrade or uninstall {', '.join(packages)}"
        return warn("plugs", "; ".join(map(str, broken)), hint)
    own = [each.name for each in plugs() if is_from_package(each)]
    return ok("plugs", f"from packages: {', '.join(own)}") if own else None


async def _check_peers(
    settings: Settings | InvalidSettings, *, is_start: bool
) -> Sequence[PeerCheck]:
    if isinstance(settings, InvalidSettings):
        return ()
    return await peers_of(settings, is_start=is_start)


def _run_check_of(plug: Plug, check: Check, facts: InstallationFacts) -> Finding | None:
    """Run a check of a plug. An error in one of a package is a bug of this package."""
    if not is_from_package(plug):
        return _run_check(check, facts)
    name = getattr(check, "__name__", plug.name).replace("_", " ")
    hint = f"upgrade or uninstall the package of the plug {plug.name}"
    try:
        found: object = check(facts)
    except Exception as error:  # noqa: BLE001 - the other checks still run
        return warn(name, f"the check failed: {problem_of(error)}", hint)
    if found is not None and not isinstance(found, Finding):
        return warn(name, f"the check returned a {type(found).__name__}, not a Finding", hint)
    return found


def _run_check(check: Check, facts: InstallationFacts) -> Finding | None:
    try:
        return check(facts)
    except Exception as error:  # noqa: BLE001 - the other checks still run
        name = check.__name__.replace("_", " ")
        problem = f"the check failed: {type(error).__name__}: {error}"
        hint = "a permission, or a bug of Onbeat: please report it with this line"
        return Finding(name, "fail", problem, hint)


async def _look_at_database(
    settings: Settings | InvalidSettings, clock: Clock, *, quick: bool
) -> DatabaseFacts:
    if isinstance(settings, InvalidSettings):
        problem = "not checked: the settings are invalid, so the database address is unknown"
        return DatabaseFacts(problem=problem, is_there=False)
    if settings.database_path is not None:
        return look_at_file(settings.database_path, clock, quick=quick)
    if not settings.is_postgres:
        hint = "set a file: --database sqlite:///onbeat.db"
        problem = "the database is in memory: it is lost when the program ends"
        return DatabaseFacts(problem=problem, hint=hint, is_there=False)
    try:
        from onbeat.stores.postgres.diagnostics import look  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        problem, hint = "the PostgreSQL driver is not installed", install_command("postgres")
        return DatabaseFacts(problem=problem, hint=hint)
    return await look(settings.database, clock)

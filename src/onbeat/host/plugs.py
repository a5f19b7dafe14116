"""The plugs of this process: the one table of those of Onbeat, and those of installed packages.

A package adds plugs by entry points in the group `onbeat.plugins`, each a `Plug`. One that cannot
be loaded is left out and reported: the others still work.
"""

import logging
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, NamedTuple, cast

from onbeat.ports.plug import Plug, Reference

if TYPE_CHECKING:
    from onbeat.core.target_kinds import TargetKind

log = logging.getLogger("onbeat.plugs")

GROUP = "onbeat.plugins"
BUILT_IN: tuple[Reference, ...] = (
    "onbeat.launchers.command.plug:PLUG",
    "onbeat.launchers.python.plug:PLUG",
    "onbeat.launchers.http.plug:PLUG",
    "onbeat.systems.ray.plug:PLUG",
    "onbeat.systems.sessions.plug:PLUG",
    "onbeat.systems.agents.plug:PLUG",
    "onbeat.systems.workflows.plug:PLUG",
    "onbeat.systems.flows.plug:PLUG",
    "onbeat.systems.services.plug:PLUG",
)


class BrokenPlug(NamedTuple):
    """An entry point that could not be loaded, and why."""

    name: str
    problem: str


class FoundPlugs(NamedTuple):
    """The plugs in the order of the table, and those that could not be loaded."""

    plugs: tuple[Plug, ...]
    broken: tuple[BrokenPlug, ...]


def plugs() -> tuple[Plug, ...]:
    """Return every plug. Their kinds of target are installed."""
    return find_plugs().plugs


@cache
def find_plugs() -> FoundPlugs:
    """Find every plug, once in a process, and install the kinds of target."""
    declared = declarations()
    found = list(declared.plugs[: len(BUILT_IN)])
    for plug in found:
        _install(plug)
    broken = list(declared.broken)
    for plug in declared.plugs[len(found) :]:
        try:
            _install(plug)
            for reference in (plug.settings, plug.variables):
                if reference:
                    load(reference)
        except Exception as error:  # noqa: BLE001 - a package may fail in any way
            broken.append(_broken(plug.name, error))
        else:
            found.append(plug)
    return FoundPlugs(tuple(found), tuple(broken))


@cache
def declarations() -> FoundPlugs:
    """Return what plugs declare, which imports none of it."""
    found = [cast("Plug", load(reference)) for reference in BUILT_IN]
    broken: list[BrokenPlug] = []
    for point in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        try:
            found.append(_checked(point, found))
        except Exception as error:  # noqa: BLE001 - a package may fail in any way
            broken.append(_broken(f"{point.name} ({point.value})", error))
    return FoundPlugs(tuple(found), tuple(broken))


def load(reference: Reference) -> object:
    """Import what a plug refers to."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def _install(plug: Plug) -> None:
    from onbeat.core.target_kinds import KINDS  # noqa: PLC0415 - `--help` needs no kinds

    if plug.kinds:
        KINDS.install(cast("tuple[TargetKind, ...]", load(plug.kinds)))


def _checked(point: EntryPoint, others: list[Plug]) -> Plug:
    """Return the plug of an entry point, unless it has the name or a verb of another."""
    plug = point.load()
    if not isinstance(plug, Plug):
        raise TypeError(f"it is a {type(plug).__name__}, not a Plug")
    for other in others:
        if plug.name == other.name:
            raise ValueError(f"another plug is called {plug.name!r}")
        if taken := plug.verbs.keys() & other.verbs.keys():
            raise ValueError(f"the plug {other.name} has the verb {min(taken)!r}")
    return plug


def _broken(name: str, error: Exception) -> BrokenPlug:
    problem = f"{type(error).__name__}: {error}"
    log.warning("plug %s cannot be loaded and is left out: %s", name, problem)
    return BrokenPlug(name, problem)

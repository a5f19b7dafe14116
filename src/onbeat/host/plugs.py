"""The plugs of this process: the one table of those of Onbeat, and those of installed packages.

A package adds plugs by entry points in the group `onbeat.plugins`, each a `Plug`. One that cannot
be loaded is left out and reported: the others still work.
"""

import logging
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import NamedTuple

from onbeat.core.target_kinds import KINDS
from onbeat.ports.system import Plug, Reference

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
    found = [_built_in(reference) for reference in BUILT_IN]
    for plug in found:
        KINDS.install(plug.kinds)
    broken: list[BrokenPlug] = []
    for point in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        try:
            plug = point.load()
            _check(plug, found)
            KINDS.install(plug.kinds)
        except Exception as error:  # noqa: BLE001 - a package may fail in any way
            problem = f"{type(error).__name__}: {error}"
            broken.append(BrokenPlug(f"{point.name} ({point.value})", problem))
            log.warning("plug %s cannot be loaded and is left out: %s", point.name, problem)
        else:
            found.append(plug)
    return FoundPlugs(tuple(found), tuple(broken))


def load(reference: Reference) -> object:
    """Import what a plug refers to."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def _built_in(reference: Reference) -> Plug:
    plug = load(reference)
    assert isinstance(plug, Plug), f"{reference} is not a plug"
    return plug


def _check(plug: object, others: list[Plug]) -> None:
    """Refuse what is not a plug, or has the name, a verb or a group of settings of another."""
    if not isinstance(plug, Plug):
        raise TypeError(f"it is a {type(plug).__name__}, not a Plug")
    for other in others:
        if plug.name == other.name:
            raise ValueError(f"another plug is called {plug.name!r}")
        if taken := plug.verbs.keys() & other.verbs.keys():
            raise ValueError(f"the plug {other.name} has the verb {min(taken)!r}")

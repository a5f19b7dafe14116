"""The plugs of this process: the one table of those of Onbeat, and those of installed packages.

A package adds plugs by entry points in the group `onbeat.plugins`, each a `Plug`. One that is wrong
is left out as a whole and reported: the others still work. What a plug refers to is loaded when it
is needed, inside `guard`: an error of a package is logged once and reported by `onbeat doctor`. An
error of a plug of Onbeat is raised: it is a bug.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from os import path, scandir
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from onbeat.errors import OnbeatError
from onbeat.ports.plug import Plug, Reference

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger("onbeat.plugs")

T = TypeVar("T")

GROUP = "onbeat.plugins"
FUNCTIONS = {"make", "checkers", "sections", "source_files", "peers"}  # what these refer to
TUPLES = {"kinds", "routes", "root_routes", "checks"}
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


class PlugError(Exception):
    """A plug, or what it refers to, is not as it has to be: what is wrong, and what is right."""


class Origin(NamedTuple):
    """Where a plug of a package is from."""

    package: str
    reference: Reference  # of the entry point


class BrokenPlug(NamedTuple):
    """A plug of a package that does not work, or a part of it, and why."""

    name: str  # of the plug, or of its entry point if the plug cannot be read
    origin: Origin
    problem: str
    what: str = ""  # which part of it; empty: the plug is left out as a whole

    def __str__(self) -> str:
        if self.what:
            return f"{self.name} of {self.origin.package}: {self.what}: {self.problem}"
        return f"{self.name} ({self.origin.reference}) is left out: {self.problem}"


class FoundPlugs(NamedTuple):
    """The plugs in the order of the table, those that are left out, and where they are from."""

    plugs: tuple[Plug, ...]
    left_out: tuple[BrokenPlug, ...]
    origins: Mapping[str, Origin]  # of the plugs of packages, by name


_failures: dict[tuple[str, str], BrokenPlug] = {}  # of parts of plugs, in this process


def plugs() -> tuple[Plug, ...]:
    """Return every plug. Their kinds of target are installed."""
    return find_plugs().plugs


def broken_plugs() -> tuple[BrokenPlug, ...]:
    """Return the plugs that are left out, and the parts of plugs that failed in this process."""
    return (*find_plugs().left_out, *_failures.values())


@cache
def find_plugs() -> FoundPlugs:
    """Find every plug, once in a process, and install the kinds of target.

    A plug of a package is checked first, so that it is installed completely or not at all.
    """
    from onbeat.core.target_kinds import KINDS, TargetKind  # noqa: PLC0415 - not for `--help`
    from onbeat.host.plug_checks import check_plug  # noqa: PLC0415 - only packages need it

    KINDS.loader = None
    declared = declarations()
    found: list[Plug] = []
    left_out = list(declared.left_out)
    for plug in declared.plugs:
        try:
            if plug.name in declared.origins:
                check_plug(plug, found)
            if plug.kinds:
                KINDS.install(load_all(plug.kinds, TargetKind))
        except Exception as error:
            if plug.name not in declared.origins:
                raise
            left_out.append(_left_out(plug.name, declared.origins[plug.name], error))
        else:
            found.append(plug)
    return FoundPlugs(tuple(found), tuple(left_out), declared.origins)


@cache
def declarations() -> FoundPlugs:
    """Return what plugs declare, which imports none of it."""
    found = [load(reference, Plug) for reference in BUILT_IN]
    left_out: list[BrokenPlug] = []
    origins: dict[str, Origin] = {}
    for point in _entry_points():
        package = point.dist.name if point.dist is not None else point.module
        try:
            plug = _declared(point, found)
        except Exception as error:  # noqa: BLE001 - a package may fail in any way
            left_out.append(_left_out(point.name, Origin(package, point.value), error))
        else:
            found.append(plug)
            origins[plug.name] = Origin(package, point.value)
    return FoundPlugs(tuple(found), tuple(left_out), origins)


@contextmanager
def guard(plug: Plug, what: str, *, refusals: bool = False) -> Iterator[None]:
    """Report an error in `what` of a plug of a package, and continue after the block.

    Errors that Onbeat raises on purpose are raised to the caller, as they are for the user: unless
    the caller cannot be refused anything, which `refusals` says.
    """
    try:
        yield
    except Exception as error:
        if not is_from_package(plug) or (isinstance(error, OnbeatError) and not refusals):
            raise
        report(plug, what, error)


def report(plug: Plug, what: str, error: Exception) -> None:
    """Log that a part of a plug of a package failed, once, and keep it for `onbeat doctor`."""
    failure = BrokenPlug(plug.name, declarations().origins[plug.name], problem_of(error), what)
    if _failures.setdefault((plug.name, what), failure) is failure:
        trace = None if isinstance(error, PlugError) else error
        log.warning("plug %s", failure, exc_info=trace)


def is_from_package(plug: Plug) -> bool:
    """Return whether a plug is from an installed package."""
    return plug.name in declarations().origins


def resolve_all() -> None:
    """Load everything that plugs of packages refer to, and report what cannot be loaded."""
    for plug in plugs():
        if is_from_package(plug):
            for what, reference in plug.references().items():
                with guard(plug, what):
                    if what in FUNCTIONS:
                        load_function(reference)
                    elif what in TUPLES:
                        load_all(reference, object)
                    else:
                        load(reference, object)


def load(reference: Reference, expected: type[T]) -> T:
    """Import what a plug refers to, which has to be of a type."""
    module, _, name = reference.partition(":")
    try:
        found: object = getattr(import_module(module), name)
    except AttributeError as missing:
        if missing.name != name or not name:
            raise
        raise PlugError(f"the module {module} has no {name}") from None
    if not isinstance(found, expected):
        problem = f"{reference} is a {type(found).__name__}, not a {expected.__name__}"
        raise PlugError(problem)
    return found


def load_function(reference: Reference) -> Callable[..., Any]:
    """Import a function that a plug refers to."""
    found = load(reference, object)
    if not callable(found):
        raise PlugError(f"{reference} is a {type(found).__name__}, not a function")
    return found


def load_all(reference: Reference, expected: type[T]) -> tuple[T, ...]:
    """Import a tuple or list that a plug refers to, whose items have to be of a type."""
    found = load(reference, object)
    if not isinstance(found, (tuple, list)):
        raise PlugError(f"{reference} is a {type(found).__name__}, not a tuple")
    for each in found:
        if not isinstance(each, expected):
            problem = f"{reference} contains a {type(each).__name__}, not only {expected.__name__}"
            raise PlugError(problem)
    return tuple(found)


def load_functions(reference: Reference) -> tuple[Callable[..., Any], ...]:
    """Import a tuple of functions that a plug refers to."""
    found = load_all(reference, object)
    for each in found:
        if not callable(each):
            raise PlugError(f"{reference} contains a {type(each).__name__}, not only functions")
    return tuple(each for each in found if callable(each))


def problem_of(error: Exception) -> str:
    """Return an error as text."""
    if isinstance(error, (PlugError, OnbeatError)):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _declared(point: "EntryPoint", others: list[Plug]) -> Plug:
    """Return the plug of an entry point, or refuse it."""
    from onbeat.host.plug_checks import check_declaration  # noqa: PLC0415 - only packages need it

    plug = point.load()
    if not isinstance(plug, Plug):
        raise PlugError(f"{point.value} is a {type(plug).__name__}, not a Plug")
    check_declaration(plug, others)
    return plug


def _left_out(name: str, origin: Origin, error: Exception) -> BrokenPlug:
    broken = BrokenPlug(name, origin, problem_of(error))
    log.warning("plug %s (package %s)", broken, origin.package)
    return broken


def _entry_points() -> "list[EntryPoint]":
    """Return the entry points of packages, by name.

    `importlib.metadata` takes as long to import as the rest of `onbeat --help`, and is left out if
    no folder of the path has a package with plugs.
    """
    if not any(map(_may_have_plugs, dict.fromkeys(sys.path))):
        return []
    from importlib.metadata import entry_points  # noqa: PLC0415 - see above

    return sorted(entry_points(group=GROUP), key=lambda each: each.name)


def _may_have_plugs(place: str) -> bool:
    """Return whether a place of the path may have a package with plugs."""
    try:
        with scandir(place or ".") as entries:
            abouts = [
                each.path for each in entries if each.name.endswith((".dist-info", ".egg-info"))
            ]
    except FileNotFoundError:
        return False
    except OSError:  # such as an archive
        return True
    return any(map(_declares_plugs, abouts))


def _declares_plugs(about: str) -> bool:
    try:
        # `pathlib` takes long to import.
        with open(path.join(about, "entry_points.txt"), "rb") as file:  # noqa: PTH118, PTH123
            return GROUP.encode() in file.read()
    except OSError:  # most packages have no entry points
        return False

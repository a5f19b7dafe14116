"""What plugs of installed packages make: an error in it affects its own targets only."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from onbeat.core.runs.run import Outcome
from onbeat.core.target import Target
from onbeat.core.target_kinds import KINDS
from onbeat.errors import InvalidSchedule, OnbeatError
from onbeat.events import Event
from onbeat.host.plugs import PlugError, guard, is_from_package, problem_of, report
from onbeat.ports.launcher import Launcher, ReattachingLauncher
from onbeat.ports.plug import Plug
from onbeat.ports.store import Attempt, Listener
from onbeat.ports.system import Part

OF_LAUNCHERS = ("check", "can_cancel", "launch", "kill", "recover", "offers", "close")
OF_BACKGROUND = ("start", "on_events", "stop")


def checked_part(plug: Plug, made: object) -> Part:
    """Return what a plug made, or refuse it with PlugError. That of a package is guarded."""
    if not isinstance(made, Part):
        raise PlugError(f"it returned a {type(made).__name__}, not a Part")
    if not is_from_package(plug):
        return made
    for name in ("background", "listeners"):
        if not isinstance(getattr(made, name), (tuple, list)):
            kind = type(getattr(made, name)).__name__
            raise PlugError(f"{name} of the Part is a {kind}, not a tuple")
    for each in made.background:
        _require(each, OF_BACKGROUND)
    listeners = [_guarded_listener(plug, each) for each in made.listeners]
    return replace(made, launchers=guarded_launchers(plug, made.launchers), listeners=listeners)


def guarded_launchers(plug: Plug, made: object) -> Mapping[str, Launcher]:
    """Return the launchers of a plug by kind; those of a package are guarded.

    What is not a mapping of kinds to launchers is refused with PlugError.
    """
    if not isinstance(made, Mapping):
        raise PlugError(f"the launchers are a {type(made).__name__}, not a mapping by kind")
    if not is_from_package(plug):
        return made
    guarded: dict[int, Launcher] = {}  # one launcher may be that of several kinds
    for kind, launcher in made.items():
        declared = KINDS.find(kind)
        if declared is None:
            raise PlugError(f"there is no kind of target {kind!r} (declare it in `kinds`)")
        _require(launcher, OF_LAUNCHERS)
        reattaches = isinstance(launcher, ReattachingLauncher)
        if declared.reattaches != reattaches:
            has, says = ("has", "lacks") if reattaches else ("has no", "declares")
            problem = f"the launcher of {kind!r} {has} `leave`, and the kind {says} reattaches=True"
            raise PlugError(problem)
        wrap = _ReattachingPackageLauncher if reattaches else _PackageLauncher
        guarded.setdefault(id(launcher), wrap(plug, launcher))
    return {kind: guarded[id(launcher)] for kind, launcher in made.items()}


def _require(value: object, methods: Sequence[str]) -> None:
    for method in methods:
        if not callable(getattr(value, method, None)):
            raise PlugError(f"{type(value).__name__} has no method {method}")


def _guarded_listener(plug: Plug, listener: Listener) -> Listener:
    def guarded(at: int, events: Sequence[Event]) -> None:
        with guard(plug, "a listener", refusals=True):
            listener(at, events)

    return guarded


class _PackageLauncher:
    """A launcher of a package. An error other than a refusal becomes one, or is reported.

    The engine itself makes an outcome of an error in `launch`.
    """

    def __init__(self, plug: Plug, launcher: Launcher) -> None:
        self._plug, self._launcher = plug, launcher

    def check(self, target: Target) -> None:
        try:
            self._launcher.check(target)
        except OnbeatError:
            raise
        except Exception as error:  # noqa: BLE001 - a package may fail in any way
            raise self._refusal("check", target, error) from None

    def can_cancel(self, target: Target) -> bool:
        try:
            return bool(self._launcher.can_cancel(target))
        except Exception as error:  # noqa: BLE001 - a package may fail in any way
            raise self._refusal("can_cancel", target, error) from None

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        return await self._launcher.launch(attempt)

    def kill(self, run_ids: Collection[int]) -> None:
        with self._guard("kill"):
            self._launcher.kill(run_ids)

    async def recover(self) -> int:
        ended = 0
        with self._guard("recover"):
            ended += await self._launcher.recover()
        return ended

    def offers(self) -> Iterable[str]:
        found: tuple[str, ...] = ()
        with self._guard("offers"):
            found += tuple(self._launcher.offers())
        return found

    async def close(self) -> None:
        with self._guard("close"):
            await self._launcher.close()

    def _guard(self, method: str) -> AbstractContextManager[None]:
        return guard(self._plug, self._name(method), refusals=True)

    def _name(self, method: str) -> str:
        return f"{method} of {type(self._launcher).__name__}"

    def _refusal(self, method: str, target: Target, error: Exception) -> InvalidSchedule:
        report(self._plug, self._name(method), error)
        problem = f"a target of the kind {target.kind!r} cannot be checked: {problem_of(error)}"
        hint = f"the plug {self._plug.name} is broken: onbeat doctor names its package"
        return InvalidSchedule("", problem, hint=hint)


class _ReattachingPackageLauncher(_PackageLauncher):
    """A launcher of a package whose targets continue without their node."""

    def leave(self, run_ids: Collection[int]) -> Collection[int]:
        left: list[int] = []
        with self._guard("leave"):
            assert isinstance(self._launcher, ReattachingLauncher), "only these are wrapped"
            left += self._launcher.leave(run_ids)
        return left

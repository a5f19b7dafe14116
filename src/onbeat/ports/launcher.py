"""`Launcher`: the adapter that starts targets of one kind, and `check_launch`."""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, runtime_checkable

from onbeat.core.runs.run import Outcome
from onbeat.core.schedule import Schedule
from onbeat.core.target import Target
from onbeat.errors import InvalidSchedule, in_field
from onbeat.ports.store import Attempt


class Launcher(Protocol):
    """The adapter that starts one kind of target."""

    def check(self, target: Target) -> None:
        """Raise InvalidSchedule if a target could never be launched."""

    def can_cancel(self, target: Target) -> bool:
        """Return whether a started target can be cancelled, which `overlap: replace` requires."""

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        """Run one attempt until it ends; return its outcome and the tail of its output.

        Cancelling the call ends the target. Failures are outcomes, not exceptions.
        """

    def kill(self, run_ids: Collection[int]) -> None:
        """Kill targets that are being cancelled, if possible: others may start them again."""

    async def recover(self) -> int:
        """End targets that dead nodes left on this machine; return how many processes ended."""

    def offers(self) -> Iterable[str]:
        """Return what a node with this launcher offers, as `Node.offers`."""

    async def close(self) -> None:
        """Release resources, with all launches ended or detached before; leave no task behind."""


@runtime_checkable
class ReattachingLauncher(Launcher, Protocol):
    """A launcher whose targets continue without their node; a node reattaches by the run's key.

    After an attempt that may still run (`may_run`), a launch reattaches to it. It starts another
    only if that one is known not to have begun, or if it is not found and the attempt is to be made
    `at_least_once`.
    """

    def leave(self, run_ids: Collection[int]) -> Collection[int]:
        """Detach runs, so that cancelling their launches does not end them; return which."""


Launchers = Mapping[str, Launcher]  # by the kind of target


def check_launch(schedule: Schedule, launchers: Launchers) -> None:
    """Raise InvalidSchedule if a schedule's target or condition could never be launched."""
    with in_field("run"):
        launcher = _launcher_of(schedule.target, launchers)
        launcher.check(schedule.target)
    if schedule.policy.overlap == "replace" and not launcher.can_cancel(schedule.target):
        problem = "the target cannot be canceled, so a new run cannot replace the old one"
        raise InvalidSchedule("overlap", problem, hint="skip, queue or allow")
    if schedule.when is not None:
        with in_field("when"):
            _launcher_of(schedule.when, launchers).check(schedule.when)


def _launcher_of(target: Target, launchers: Launchers) -> Launcher:
    launcher = launchers.get(target.kind)
    if launcher is None:
        raise InvalidSchedule(
            target.kind,
            "no launcher for this kind of target",
            hint=f"known: {', '.join(launchers)}",
        )
    return launcher

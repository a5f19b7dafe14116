"""Whether a waiting run may start now: what a claim checks, and a simulation too."""

from typing import Literal

from onbeat.core.decide.plan import switched_off
from onbeat.core.runs.decisions import Supersede
from onbeat.core.runs.run import Run
from onbeat.core.schedule import Schedule

Start = Literal["start", "wait", "recheck"]


def check_start(
    schedule: Schedule, current: Schedule | None, run: Run, *, now: int
) -> Start | Supersede:
    """Decide whether a run that may be claimed starts.

    `schedule` is the definition of the run's revision, `current` the definition now, None if it
    cannot be read. A run whose overlap must be decided again is to be rechecked. A run whose
    deadline has passed waits until it is ended. A detached run has started: it is only reattached.
    """
    if run.deadline_at is not None and run.deadline_at <= now:
        return "wait"
    if run.detached:
        return "start"
    off = None if current is None else switched_off(current)
    if off is not None and current is not None and run.is_requested:
        # A requested run ignores `enabled`.
        off = None if current.target.is_enabled else "disabled_target"
    if off is not None:
        return Supersede(run, off)
    if run.request_id or not run.was_deferred:
        return "start"
    is_free = schedule.policy.overlap == "allow" and schedule.policy.max_active is None
    return "start" if is_free else "recheck"  # other runs never block it, or may

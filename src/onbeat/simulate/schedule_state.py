"""A schedule while it is simulated: where it is, what of it runs, and what was counted."""

from collections.abc import Mapping

from onbeat.core.decide.plan import next_due, switched_off
from onbeat.core.runs.run import Run, Status
from onbeat.core.schedule import Schedule
from onbeat.core.snapshot import ScheduleSnapshot
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.bounds import Bounded, OpenHours
from onbeat.simulate.counters import Counters


class ScheduleState:
    """One schedule. While it `is_counted`, its ticks are counted and none of it is played."""

    __slots__ = (
        "count",
        "decided_until",
        "due",
        "ends",
        "followers",
        "is_countable",
        "is_counted",
        "is_length_known",
        "is_paused",
        "is_told",
        "last_run",
        "length",
        "off",
        "past",
        "paused_until",
        "runs",
        "schedule",
        "schedule_id",
        "started_at",
    )  # fmt: skip

    def __init__(self, standing: ScheduleSnapshot, *, run_length: int, is_told: bool) -> None:
        schedule, policy = standing.schedule, standing.schedule.policy
        self.schedule, self.schedule_id = schedule, schedule.schedule_id
        self.past, self.decided_until = standing.past, standing.decided_until
        self.due = standing.due
        self.is_paused, self.paused_until = standing.is_paused, standing.paused_until
        self.is_length_known = standing.length is not None
        length = run_length if standing.length is None else standing.length
        self.length = max(length if policy.timeout is None else min(length, policy.timeout), 1)
        self.runs: dict[int, Run] = {}  # unfinished ones, by id
        self.started_at: dict[int, int] = {}  # of those that run
        self.ends: dict[int, int] = {}  # when they end
        self.followers: list[ScheduleState] = []  # those that have ticks when a run of it ends
        self.last_run = 0  # when the last one that was counted begins
        self.off = switched_off(schedule)
        self.is_countable = is_countable(schedule)
        self.is_counted, self.is_told = False, is_told
        self.count = Counters()

    @property
    def last_end(self) -> int:
        """When the last run that was counted ends."""
        return self.last_run + self.length if self.last_run else 0

    def waiting(self) -> int:
        """Return how many runs wait."""
        return sum(run.status is Status.ENQUEUED for run in self.runs.values())

    def find_due(self) -> None:
        """Make its due row be that of the first tick that is not decided."""
        self.due = next_due(self.schedule, self.decided_until, self.past)


def is_countable(schedule: Schedule) -> bool:
    """Return whether a tick depends on time alone, if no run of the schedule is in flight.

    Then, and as long as each run has ended before the next tick, all there is to do is to count.
    """
    trigger, policy = schedule.trigger, schedule.policy
    by_time = not (trigger.needs_past or trigger.counts_runs) and is_due_as_planned(trigger)
    return by_time and not (policy.jitter or policy.rate is not None or policy.group is not None)


def is_due_as_planned(trigger: Trigger) -> bool:
    """Return whether no tick is moved: only what is around a whole trigger can do that."""
    match trigger:
        case Bounded():
            return is_due_as_planned(trigger.trigger)
        case OpenHours(within=within):
            moves = within is not None and within.outside == "move"
            return not moves and is_due_as_planned(trigger.trigger)
        case _:
            return True


def link(lanes: Mapping[str, ScheduleState], follows: Mapping[str, set[str]]) -> None:
    """Let each lane know which ones follow it; those that are followed are not just counted."""
    for schedule_id, followed in follows.items():
        for name in followed & lanes.keys():
            lanes[name].followers.append(lanes[schedule_id])
            lanes[name].is_countable = False

"""The state of a schedule during a simulation: position, runs and counters."""

from collections.abc import Mapping

from onbeat.core.decide.plan import next_due, switched_off
from onbeat.core.runs.phase import Status
from onbeat.core.runs.run import Run
from onbeat.core.schedule import Schedule
from onbeat.core.snapshot import ScheduleSnapshot
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.bounds import Bounded, OpenHours
from onbeat.simulate.counters import Counters


class ScheduleState:
    """One schedule. While `is_counted`, its ticks are counted in spans and not simulated."""

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
        "is_reported",
        "last_run",
        "length",
        "past",
        "paused_until",
        "runs",
        "schedule",
        "schedule_id",
        "skip_reason",
        "started_at",
    )  # fmt: skip

    def __init__(self, entry: ScheduleSnapshot, *, run_length: int, is_reported: bool) -> None:
        schedule, policy = entry.schedule, entry.schedule.policy
        self.schedule, self.schedule_id = schedule, schedule.schedule_id
        self.past, self.decided_until = entry.past, entry.decided_until
        self.due = entry.due
        self.is_paused, self.paused_until = entry.is_paused, entry.paused_until
        self.is_length_known = entry.length is not None
        length = run_length if entry.length is None else entry.length
        self.length = max(length if policy.timeout is None else min(length, policy.timeout), 1)
        self.runs: dict[int, Run] = {}  # unfinished runs, by id
        self.started_at: dict[int, int] = {}  # of started runs
        self.ends: dict[int, int] = {}  # of started runs
        self.followers: list[ScheduleState] = []  # schedules with ticks when its runs end
        self.last_run = 0  # the start of the last counted run
        self.skip_reason = switched_off(schedule)
        self.is_countable = is_countable(schedule)
        self.is_counted, self.is_reported = False, is_reported
        self.count = Counters()

    @property
    def last_end(self) -> int:
        """The end of the last counted run."""
        return self.last_run + self.length if self.last_run else 0

    def waiting(self) -> int:
        """Return the number of waiting runs."""
        return sum(run.status is Status.ENQUEUED for run in self.runs.values())

    def update_due(self) -> None:
        """Set `due` to the first undecided tick."""
        self.due = next_due(self.schedule, self.decided_until, self.past)


def is_countable(schedule: Schedule) -> bool:
    """Return whether ticks depend on time alone while no run of the schedule is in flight.

    If so, and if each run ends before the next tick, ticks only have to be counted.
    """
    trigger, policy = schedule.trigger, schedule.policy
    by_time = not (trigger.needs_past or trigger.counts_runs) and is_due_as_planned(trigger)
    return by_time and not (policy.jitter or policy.rate is not None or policy.group is not None)


def is_due_as_planned(trigger: Trigger) -> bool:
    """Return whether no tick is moved, which only a wrapper of a whole trigger can do."""
    match trigger:
        case Bounded():
            return is_due_as_planned(trigger.trigger)
        case OpenHours(within=within):
            moves = within is not None and within.outside == "move"
            return not moves and is_due_as_planned(trigger.trigger)
        case _:
            return True


def link(states: Mapping[str, ScheduleState], follows: Mapping[str, set[str]]) -> None:
    """Set the followers of each state. Schedules with followers are not countable."""
    for schedule_id, followed in follows.items():
        for name in followed & states.keys():
            states[name].followers.append(states[schedule_id])
            states[name].is_countable = False

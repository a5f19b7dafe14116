"""The state of schedules and runs in the reference, and its expectation for each tick."""

from collections import defaultdict
from dataclasses import dataclass, field

from tests.week.script import seconds

TIMING = ("cron", "every", "daily", "at", "within", "exclude")
GOING = ("waiting", "running", "silent")


@dataclass(frozen=True)
class Answer:
    """The expected answer of `why` for a tick."""

    kind: str
    reason: str | None = None
    row: int | None = None  # the tick whose row has it; None: no row yet
    blockers: frozenset[int] = frozenset()  # one of these ticks is named as the blocker
    instead: int | None = None  # when it would have started with overlap=queue, if known
    is_next: bool = False  # it would have been the next to start
    latest: int | None = None  # the latest possible start


@dataclass(eq=False)
class Run:
    """A decided tick, with those coalesced into it."""

    schedule: "Schedule"
    tick: int
    decided_at: int
    stands_for: tuple[int, ...] = ()
    state: str = "waiting"  # or running, silent since its node was killed; or its outcome
    reason: str | None = None
    waits_for: str = "start"  # or its turn in the queue, a retry, or a target that is busy
    due_at: int = 0
    attempts: int = 0
    deferrals: int = 0  # attempts at which its target was busy
    ended_at: int | None = None
    row: int | None = None  # the last tick of the range that it is in
    blockers: tuple["Run", ...] = ()
    is_next: bool = False  # the first of those behind its blocker
    has_blocked: bool = False
    is_backfill: bool = False
    start_by: int | None = None  # decided by an edit while no node was up: the end of its grace
    fields: dict = field(init=False)  # the definition at its decision

    def __post_init__(self):
        self.fields = self.schedule.fields

    def length(self, name):
        return seconds(self.fields[name]) if name in self.fields else None

    @property
    def is_over(self):
        return self.state not in GOING

    @property
    def is_in_flight(self):
        """ENQUEUED to start, or STARTED; not waiting for a retry or in the queue."""
        return self.state == "running" or (self.state == "waiting" and self.waits_for == "start")

    @property
    def unstarted_status(self):
        """Its outcome if it ends while waiting: a failure if an attempt was made."""
        return "failed" if self.attempts > self.deferrals else "skipped"

    def answer(self):
        blockers = frozenset(run.tick for run in self.blockers)
        instead = self.blockers[0].ended_at if len(self.blockers) == 1 else None
        length = self.length("start_deadline")
        latest = None if length is None else self.decided_at + length
        row = self.row or self.tick
        return Answer(self.state, self.reason, row, blockers, instead, self.is_next, latest)

    def answers(self):
        """Yield the expected answers for its tick and those coalesced into it."""
        yield self.tick, self.answer()
        for tick in self.stands_for:
            # Without a run, coalesced ticks have the outcome of this one.
            is_skipped = self.state == "skipped"
            stood_for = Answer("coalesced", "coalesced", self.tick)
            yield tick, self.answer() if is_skipped else stood_for


@dataclass(eq=False)
class Schedule:
    """A schedule with its position and its runs."""

    name: str
    fields: dict
    is_paused: bool = False
    paused_until: int | None = None
    undecided: list[int] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    failures: int = 0  # in a row

    def in_flight(self):
        return [run for run in self.runs if run.is_in_flight]

    def waiting(self, *kinds):
        """Return the runs that wait: for anything, or for one of these."""
        return [r for r in self.runs if r.state == "waiting" and r.waits_for in (kinds or r.waits_for)]  # fmt: skip

    def length(self, name):
        return seconds(self.fields[name]) if name in self.fields else None


@dataclass(frozen=True)
class Life:
    """A period in which a schedule existed with these ticks: later than `start`."""

    start: int
    end: int | None
    fields: dict


def timing(fields):
    return {name: fields[name] for name in TIMING if name in fields}


def lives_of(script):
    """Return the periods in which each schedule existed, with its ticks."""
    found = defaultdict(list)
    for act in script.all_acts():
        lives = found[act.name]
        is_there = bool(lives) and lives[-1].end is None
        if act.verb == "define" and is_there and timing(lives[-1].fields) == timing(act.given):
            continue
        if act.verb in ("define", "delete") and is_there:
            lives[-1] = Life(lives[-1].start, act.at, lives[-1].fields)
        if act.verb == "define":
            lives.append(Life(act.at, None, act.given))
    return {name: lives for name, lives in found.items() if lives}

"""What the checker believes: schedules, runs and groups, as the events so far tell of them.

It shares the calendar with the product, that is triggers and their `next_after`, and nothing else.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from hashlib import sha256

from onbeat.core.schedule import from_definition
from onbeat.core.triggers.past import Past, TriggerCause

ENDINGS = {"SUCCESS": ("success", "completion"), "FAILED": ("failure", "completion")}
MOST_LOST = 5  # attempts beyond the policy's own, as the docs say
OVER = ("SUCCESS", "FAILED", "CANCELED", "SKIPPED")


@dataclass
class Model:
    """A schedule, as its events so far tell of it."""

    schedule_id: str
    definition: str
    created_at: int
    position: int  # every tick up to here is decided, or is none of this definition
    decided: int = 0  # the latest tick that has its row
    revision: int = 1
    paused: bool = False
    paused_until: int | None = None
    deleted: bool = False
    used: int = 0
    caught_up_at: int = 0  # when a missed tick was last
    spread_until: int = 0  # missed ticks are being spread
    turn_at: int = 0  # of the next of them
    failures: int = 0  # in a row
    happened: dict[str, TriggerCause] = field(default_factory=dict)  # what ticks follow, by cause
    taken_at: int = 0  # when the last of those came
    began: list[int] = field(default_factory=list)  # when it was decided to start a tick
    rated_from: int = 0  # those of them that the present rate has seen

    @property
    def schedule(self):
        return from_definition(self.schedule_id, self.definition)

    @property
    def policy(self):
        return self.schedule.policy

    @property
    def past(self):
        return Past(created_at=self.created_at // 1000, runs_used=self.used, happened=self.happened)

    def next_tick(self):
        return self.schedule.trigger.next_after(self.position, self.past)

    def due_at(self, run_at):
        """Return when a tick is due, by the formula of the design, written again."""
        policy, at = self.policy, run_at * 1000
        if not policy.jitter:
            return at
        first, last = at, at + policy.jitter
        if policy.jitter_around:
            first -= policy.jitter
        following = self.schedule.trigger.next_after(run_at, self.past)
        room = last - first if following is None else min(last - first, following * 1000 - at)
        digest = sha256(f"jitter:{self.schedule_id}:{run_at}".encode()).digest()
        return first + int.from_bytes(digest[:8], "big") % room

    @property
    def lateness(self):
        """How long after it is due a tick is on time: its grace counts from when it is planned."""
        return self.policy.grace + (self.policy.jitter if self.policy.jitter_around else 0)

    def is_overdue(self, now):
        """Whether its next tick should have been decided by now."""
        tick = self.next_tick()
        return tick is not None and self.due_at(tick) <= now

    @property
    def switched_off(self):
        """Why its definition says that nothing is to start, if it does."""
        if not self.policy.enabled:
            return "disabled"
        return None if self.schedule.target.is_enabled else "disabled_target"

    def take(self, source, endings, now):
        """Take an event: a tick follows it after a delay, or it joins one that is still to come."""
        causes = list(self.schedule.trigger.causes())
        if not any(self._source(cause) == source for cause in causes):
            return 0
        kept = {cause: self.happened[cause] for cause in causes if cause in self.happened}
        joined = 0
        for cause in set(causes):
            *what, delay = cause.split(":")
            if self._source(cause) != source or not {*what[1:], ""} & {*endings}:
                continue
            self.taken_at = now
            before = self.happened.get(cause)
            if before is not None and self._is_to_come(before.at + int(delay)):
                kept[cause] = TriggerCause(before.at, before.count + 1)
                joined += 1
            else:  # its tick is later than what is decided
                kept[cause] = TriggerCause(max(now // 1000, self.position + 1 - int(delay)))
        self.happened = kept
        return joined

    def _is_to_come(self, tick):
        return tick > self.position and self.schedule.trigger.has(tick, self.past)

    def _source(self, cause):
        return cause.partition(":")[0] or self.schedule_id

    def events_at(self, run_at):
        """Return how many events a tick follows."""
        return sum(
            event.count
            for cause, event in self.happened.items()
            if cause in self.schedule.trigger.causes()
            and event.at + int(cause.rpartition(":")[2]) == run_at
        )


@dataclass
class RunModel:
    """A run, as its events so far tell of it."""

    run_id: int
    schedule_id: str
    run_at: int
    due_at: int
    manual: bool
    enqueued_at: int
    alone: bool  # decided when overlap was not allowed
    backfill: bool = False
    state: str = "ENQUEUED"  # or CLAIMED, STARTED, or how it ended
    attempt: int = 0
    deferrals: int = 0  # attempts that found the target busy, or were handed back
    fence: int = 0
    blocked_by: int | None = None
    reason: str | None = None
    group: str | None = None
    priority: int = 0
    deadline: int | None = None  # by when it has to be claimed
    own_deadline: int | None = None  # the same by its policy alone
    start_by: int | None = None  # the limit of an edit that found no node up
    started_at: int | None = None  # for the last time
    heard_by: int | None = None  # it was accepted, and is awaited until then
    asked: str | None = None  # to end, for this reason
    asks: bool = False  # it was claimed, and its condition is to be asked first
    lost: set[int] = field(default_factory=set)  # attempts that were
    ended: dict[int, str] = field(default_factory=dict)  # how attempts that were not lost ended
    unasked: set[int] = field(default_factory=set)  # attempts whose condition gave no answer
    handed_back: int = 0
    accepted_attempt: int = 0  # the last that was accepted
    is_reported_late: bool = False
    is_of_deleted: bool = False  # its schedule was deleted since, and maybe defined again
    returned: bool = False  # what was announced last was handed back, and none counted before
    detached: bool = False  # its node is lost, and it may continue: it is only reattached
    reattached: bool = False  # the announced attempt is to reattach it
    reattaches_at: set[int] = field(default_factory=set)  # attempts that were to reattach it
    recalls_at: set[int] = field(default_factory=set)  # attempts that were to reattach and end it
    started_by: str = ""
    free_since: int = 0  # when it could first have been claimed
    # Accepted runs whose deadline was over when this one was enqueued, released, claimed or started:
    # they are not in its way, also if the clock is set back later.
    passed_by: set[int] = field(default_factory=set)
    waiting_since: int = 0  # since when it is enqueued, for the last time
    definition: str = ""  # what it starts by
    revision: int = 0
    by: dict[int, tuple[int, str]] = field(default_factory=dict)  # revision and text, by attempt

    @property
    def schedule(self):
        return from_definition(self.schedule_id, self.definition)

    @property
    def policy(self):
        return self.schedule.policy

    @property
    def is_limited(self):
        """Whether it has to start by when an edit said that found no node up."""
        return self.start_by is not None and self.deadline == self.start_by

    def take_revision(self, model):
        """Start, from now on, as its schedule says now."""
        self.definition, self.revision = model.definition, model.revision

    @property
    def is_over(self):
        return self.state in OVER

    @property
    def waits(self):
        return self.state in ("ENQUEUED", "CLAIMED") and not self.detached

    @property
    def has_started(self):
        """Whether an attempt may run: under a node, where it was accepted, or detached."""
        return self.state == "STARTED" or self.detached

    @property
    def holds_a_place(self):
        return self.state in ("CLAIMED", "STARTED") or self.detached

    @property
    def continues(self):
        """Whether its target continues without its node."""
        return self.schedule.target.kind == "outside"

    @property
    def is_recallable(self):
        """Whether a request to end it outlasts its node: an earlier attempt may continue."""
        return self.continues and self.tries > 1

    @property
    def is_requested(self):
        return self.manual or self.backfill

    @property
    def tries(self):
        """The attempts that count."""
        return self.attempt - self.deferrals

    @property
    def was_tried(self):
        """Whether an attempt was launched, or was to be and found its target busy."""
        return self.attempt > 0 and not self.returned

    @property
    def awaits_retry(self):
        """Whether a fresh tick takes its place."""
        waits = self.state == "ENQUEUED" and not self.detached
        return waits and self.was_tried and not self.is_requested

    @property
    def was_deferred(self):
        """Whether it is judged again when it is claimed."""
        late = self.due_at > self.enqueued_at
        return not (self.manual or self.detached) and (self.was_tried or late or self.backfill)

    def in_flight(self, now):
        if self.manual or self.is_over or self.blocked_by is not None:
            return False
        if self.detached:
            return True
        if self.state == "ENQUEUED":
            fresh = not self.was_tried and not self.backfill
            return fresh and self.due_at <= max(now, self.enqueued_at)
        return self.asked is not None or not self.is_unreported(now)

    def is_unreported(self, now):
        """Whether it was accepted, and should have been heard of by now."""
        return self.heard_by is not None and self.heard_by <= now


class Transaction:
    """What one transaction tells in all, and what has been seen of it so far."""

    def __init__(self, events, call, *, is_tagged=False):
        self.events, self.call = events, call  # of a user, if it was one
        self.is_tagged = is_tagged  # else nobody knows
        self.edited = self.ids("schedule.changed", "schedule.created")
        self.resumed, self.deleted = self.ids("schedule.resumed"), self.ids("schedule.deleted")
        self.opened = any(event.name == "gate.changed" and event.open for event in events)
        self.stopping = bool(self.ids("node.stopped", by="node_id"))
        self.decided = Counter()  # how much was, by schedule
        self.ticked = set()  # schedules of which ticks were
        self.began = defaultdict(list)  # the ticks that are to start
        self.left_out = set()  # schedules of which ticks were skipped, as they are switched off
        self.weighed = set()  # schedules of which a tick was held against what is in flight
        self.judged = set()  # those of which a run was, when it was to be claimed
        self.spread = {}
        self.claimed, self.released = [], set()
        self.freed = set()  # groups in which a run ended
        self.to_pause = set()  # schedules of which too many runs have failed
        self.in_the_end = []  # what has to hold when all of it is done

    def ids(self, *names, by="schedule_id"):
        return {getattr(event, by) for event in self.events if event.name in names}

    def catches_up(self, schedule_id):
        """Whether somebody who resumes a schedule asks for what it missed; or may have."""
        asked = self.call is not None and self.call.named.get("catchup")
        return schedule_id in self.resumed and (asked or not self.is_tagged)

    def is_call(self, name, subject):
        """Whether this is what a user asked for, of this schedule or run."""
        return self.call is not None and (self.call.call, self.call.subject) == (name, subject)


class Life:
    """All that is known at one moment of the replay, and what was wrong so far."""

    def __init__(self, world):
        self.world = world
        self.wrong, self.seen = [], Counter()
        self.models: dict[str, Model] = {}
        self.runs: dict[int, RunModel] = {}
        self.open = defaultdict(dict)  # unfinished runs, by schedule and id
        self.places = defaultdict(lambda: 1)  # of the groups
        self.free_since = defaultdict(int)  # when a group last had a run end, or more places
        self.gate_open, self.now, self.ticks = True, 0, 0
        self.tx: Transaction | None = None
        self.is_tagged = False  # whether it is known which transactions were of which user
        self.poisoned = bool(world.seen["poisoned"]) if hasattr(world, "seen") else False

    def breach(self, invariant, told):
        self.wrong.append((invariant, f"{told} (at {self.now})"))

    def require(self, holds, invariant, told):
        if not holds:
            self.breach(invariant, told)

    def is_sick(self, schedule_id):
        """Whether a definition was damaged behind the store's back: its own ticks are not judged."""
        return self.poisoned and schedule_id == "e"

    # -- runs

    def add(self, run):
        run.waiting_since = self.now
        self.runs[run.run_id] = run
        self.open[run.schedule_id][run.run_id] = run

    def unfinished(self, schedule_id):
        return list(self.open[schedule_id].values())

    def flying(self, schedule_id, *, but=None):
        runs = self.unfinished(schedule_id)
        return [run for run in runs if run is not but and run.in_flight(self.now)]

    def may_replace(self, schedule_id):
        """Whether a tick of now, or a run that waits, takes the place of others."""
        runs = (run.policy.overlap for run in self.unfinished(schedule_id))
        return "replace" in (self.models[schedule_id].policy.overlap, *runs)

    def queued(self, schedule_id):
        """Return the ticks that wait behind others, but for those of the past."""
        return [r for r in self.all_queued(schedule_id) if not r.backfill]

    def all_queued(self, schedule_id):
        return [run for run in self.unfinished(schedule_id) if run.blocked_by is not None]

    def retries(self, schedule_id):
        return [run for run in self.unfinished(schedule_id) if run.awaits_retry]

    def leave_place(self, run):
        if run.group is not None and run.holds_a_place:
            self.free_since[run.group] = self.now
            self.tx.freed.add(run.group)

    def end(self, run, state, reason=None):
        """Have a run be over."""
        self.leave_place(run)
        run.state, run.reason, run.heard_by = state, reason, None
        run.detached = run.reattached = False
        self.open[run.schedule_id].pop(run.run_id, None)

    def pass_by(self, run):
        """Note which runs are not in the way of this one any more, by the clock of now."""
        unfinished = self.unfinished(run.schedule_id)
        run.passed_by |= {other.run_id for other in unfinished if other.is_unreported(self.now)}

    def wait(self, run, *, due_at):
        """Have a run wait again that was started, or claimed. A detached one keeps its place."""
        if not run.detached:
            self.leave_place(run)
        run.reattached = False
        run.state, run.heard_by, run.asks = "ENQUEUED", None, False
        run.due_at, run.free_since, run.waiting_since = due_at, max(self.now, due_at), self.now

    def end_of_pause(self, schedule_id):
        """Return when a pause ended: now, or before if it was to end by itself."""
        until = self.models[schedule_id].paused_until
        return self.now if until is None else min(self.now, until - 1)

    # -- groups

    def used(self, group):
        runs = (run for runs in self.open.values() for run in runs.values())
        return sum(run.group == group and run.holds_a_place for run in runs)

    def is_full(self, group):
        return group is not None and self.used(group) >= self.places[group]

"""The invariants of DESIGN 11, checked from rows, events and the witness of the targets.

The events are replayed in the order of commits on a model of its own: it shares the calendar with
the product, and nothing else. Each breach is told with the name of its invariant.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from hashlib import sha256

import apsw

from onbeat.core.model import Past
from onbeat.core.schedules import from_definition
from onbeat.events import RunEnqueued, decode_events

QUEUE_LIMIT, MOST_DECISIONS = 100, 100
LOOKAHEAD, HOUR = 60_000, 3_600_000
CALLS = {
    "schedule.created": "created", "schedule.changed": "changed", "schedule.paused": "pause",
    "schedule.resumed": "resume", "schedule.deleted": "delete", "gate.changed": "set_gate",
}  # fmt: skip


@dataclass
class Model:
    """A schedule, as its events so far tell of it."""

    schedule_id: str
    definition: str
    created_at: int
    position: int  # every tick up to here is decided, or is none of this definition
    decided: int = 0  # the latest tick that has its row
    paused: bool = False
    deleted: bool = False
    used: int = 0
    caught_up_at: int = 0  # when a missed tick was last
    spread_until: int = 0  # missed ticks are being spread
    turn_at: int = 0  # of the next of them

    @property
    def schedule(self):
        return from_definition(self.schedule_id, self.definition)

    @property
    def policy(self):
        return self.schedule.policy

    @property
    def past(self):
        return Past(created_at=self.created_at // 1000, runs_used=self.used)

    def next_tick(self):
        return self.schedule.trigger.next_after(self.position, self.past)

    def due_at(self, run_at):
        """Return when a tick is due, by the formula of the design, written again."""
        jitter = self.policy.jitter
        if not jitter:
            return run_at * 1000
        following = self.schedule.trigger.next_after(run_at, self.past)
        room = jitter if following is None else min(jitter, following * 1000 - run_at * 1000)
        digest = sha256(f"jitter:{self.schedule_id}:{run_at}".encode()).digest()
        return run_at * 1000 + int.from_bytes(digest[:8], "big") % room


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
    state: str = "ENQUEUED"  # or CLAIMED, STARTED, or how it ended
    attempt: int = 0
    fence: int = 0
    blocked_by: int | None = None
    reason: str | None = None
    lost: set[int] = field(default_factory=set)  # attempts that were
    ended: dict[int, str] = field(default_factory=dict)  # how attempts that were not lost ended
    handed_back: int = 0
    started_by: str = ""
    free_since: int = 0  # when it could first have been claimed

    @property
    def is_over(self):
        return self.state in ("SUCCESS", "FAILED", "CANCELED", "SKIPPED")

    def in_flight(self, now):
        if self.manual or self.is_over or self.blocked_by is not None:
            return False
        if self.state == "ENQUEUED":
            return self.attempt == 0 and self.due_at <= max(now, self.enqueued_at)
        return True


class Checker:
    """Replays what happened, and notes every breach."""

    def __init__(self, world):
        self.world = world
        self.wrong, self.seen = [], Counter()
        self.models: dict[str, Model] = {}
        self.runs: dict[int, RunModel] = {}
        self.of_schedule = defaultdict(list)
        self.gate_open, self.ticks, self.now = True, 0, 0
        self.told = Counter()  # what events say that users have changed
        self.skips = {}  # skipped ticks, by the run that their row is
        self.catchups = []  # when the node caught up: as often as it did
        self.poisoned = bool(world.seen["poisoned"])

    def breach(self, invariant, told):
        self.wrong.append((invariant, f"{told} (at {self.now})"))

    def require(self, holds, invariant, told):
        if not holds:
            self.breach(invariant, told)

    def _is_sick(self, model):
        """Whether a definition was damaged behind the store's back: its own ticks are not judged."""
        return self.poisoned and model.schedule_id == "e"

    # -- replaying

    def replay(self, transactions):
        for at, events in transactions:
            self.now, self.decided_now, self.spread = at, Counter(), {}
            self.edited = {
                e.schedule_id for e in events if e.name in ("schedule.changed", "schedule.created")
            }
            self.resumed = {e.schedule_id for e in events if e.name == "schedule.resumed"}
            self.deleted = {e.schedule_id for e in events if e.name == "schedule.deleted"}
            self.opened = any(e.name == "gate.changed" and e.open for e in events)
            self.stopping = any(e.name == "node.stopped" for e in events)
            for event in events:
                if event.name in CALLS:
                    self.told[CALLS[event.name], getattr(event, "schedule_id", "")] += 1
                handler = getattr(self, f"on_{event.name.replace('.', '_')}", None)
                if handler is not None:
                    handler(event)
            for schedule_id, (before, run_ats) in self.spread.items():
                model = self.models[schedule_id]
                held = self.opened or schedule_id in self.edited | self.resumed | self.deleted
                if held or (not run_ats and not self._is_spreading(model)):
                    model.spread_until = 0
                elif run_ats and not self._is_sick(before):
                    self._keeps_its_pace(before, run_ats)
                    model.spread_until, model.turn_at = before.spread_until, before.turn_at

    def on_schedule_created(self, event):
        old = self.models.get(event.schedule_id)
        self.require(old is None or old.deleted, "one schedule an id", event.schedule_id)
        second = self.now // 1000
        decided = old.decided if old else 0
        model = Model(event.schedule_id, event.definition, self.now, max(decided, second), decided)
        decided_now = self._pending.pop(event.schedule_id, [])
        if old is None and model.schedule.ticks_once:
            model.position = -1
        self.models[event.schedule_id] = model
        for early in decided_now:
            self._tick(*early)
        if old is None and model.schedule.ticks_once:
            grace = model.policy.grace
            first = model.next_tick()
            late = first is not None and self.now - model.due_at(first) > grace
            self.require(not late, "every miss is recorded", f"{event.schedule_id} {first}")

    _pending: dict = None

    def on_schedule_changed(self, event):
        model = self.models[event.schedule_id]
        if model.definition == event.definition:
            return
        before = None if model.definition == "poison" else model.schedule
        after = from_definition(event.schedule_id, event.definition)
        jitter = before is not None and before.policy.jitter != after.policy.jitter
        if before is None or before.trigger != after.trigger or jitter:
            if before is not None and not self._is_sick(model):
                self._all_decided(model, "an edit decides what was planned")
            model.position = max(model.decided, self.now // 1000)
        model.definition = event.definition

    def on_schedule_paused(self, event):
        self.models[event.schedule_id].paused = True

    def on_schedule_resumed(self, event):
        model = self.models[event.schedule_id]
        if not self._is_sick(model):
            self._all_decided(model, "a pause ends with its range")
        model.paused = False
        model.position = max(model.position, self.now // 1000)

    def on_schedule_deleted(self, event):
        model = self.models[event.schedule_id]
        if not self._is_sick(model):
            self._all_decided(model, "a deletion decides what was planned")
        model.deleted = True
        for run in self.of_schedule[event.schedule_id]:
            waits = run.state in ("ENQUEUED", "CLAIMED")
            self.require(not waits, "a deletion cancels what waits", f"run {run.run_id}")

    def on_gate_changed(self, event):
        self.gate_open = event.open
        if event.open:
            for model in self.models.values():
                if not model.paused and not model.deleted and not self._is_sick(model):
                    tick = model.next_tick()
                    open_one = tick is not None and model.due_at(tick) <= self.now
                    self.require(not open_one, "a gate ends with its ranges", model.schedule_id)

    def on_run_enqueued(self, event):
        known = self.runs.get(event.run_id)
        if known is not None:  # judged again, and queued
            self.require(known.state == "ENQUEUED", "legal state changes", f"queued {known}")
            known.blocked_by = event.blocked_by
            self.seen["queued when judged again"] += 1
            return
        model = self.models[event.schedule_id]
        manual = event.triggered_by == "manual"
        alone = not manual and model.policy.overlap != "allow"
        run = RunModel(
            event.run_id, event.schedule_id, event.run_at, event.due_at, manual, self.now, alone,
            blocked_by=event.blocked_by, free_since=max(self.now, event.due_at),
        )  # fmt: skip
        if not manual:
            self._may_launch(model, event)
            self._tick(event, starts=True)
        self.runs[event.run_id] = run
        self.of_schedule[event.schedule_id].append(run)

    def on_run_skipped(self, event):
        known = self.runs.get(event.run_id)
        if known is None:
            self.skips[event.run_id] = event
        else:
            waits = known.state in ("ENQUEUED", "CLAIMED")
            self.require(waits, "legal state changes", f"skipped {known}")
            known.state, known.reason = "SKIPPED", event.reason
            self.seen[f"a waiting run skipped: {event.reason}"] += 1
            if event.reason == "overlap":
                self._has_blocker(event)
                blocker = self.runs[event.blocked_by]
                first = (blocker.due_at, blocker.run_at) < (known.due_at, known.run_at)
                waits = blocker.state == "ENQUEUED" and blocker.due_at > blocker.enqueued_at
                self.require(first or not waits, "in the order they are due", f"{event}")
            return
        if event.schedule_id not in self.models:  # single times that were past when defined
            self._pending.setdefault(event.schedule_id, []).append((event,))
            self.seen["single times past when defined"] += 1
            return
        model = self.models[event.schedule_id]
        if model.deleted:
            self._pending.setdefault(event.schedule_id, []).append((event,))
            return
        self.seen[f"skipped: {event.reason}"] += 1
        if event.tick_count > 1:
            self.seen[f"range of {event.reason}"] += 1
        self._right_reason(model, event)
        self._tick(event)

    def on_run_released(self, event):
        run = self.runs[event.run_id]
        queued = [r for r in self.of_schedule[event.schedule_id] if r.blocked_by is not None]
        first = min((r.run_at for r in queued if not r.is_over), default=None)
        self.require(run.blocked_by is not None, "legal state changes", f"released {run}")
        self.require(run.run_at == first, "queue order", f"{run.run_at} before {first}")
        self.decided_now[event.schedule_id] += 1
        run.blocked_by, run.free_since = None, self.now
        self.seen["released from the queue"] += 1

    def on_run_claimed(self, event):
        run = self.runs[event.run_id]
        self.require(run.state == "ENQUEUED", "legal state changes", f"claimed {run}")
        self.require(run.blocked_by is None, "queue order", f"claimed {run}")
        self.require(run.due_at <= self.now, "never early", f"claimed {run}")
        self._not_held(run, "claimed")
        earlier = [r for r in self._queued(run.schedule_id) if r.run_at < run.run_at]
        queues = self.models[run.schedule_id].policy.overlap == "queue" and run.alone
        self.require(not (queues and earlier), "queue order", f"{run} before {earlier}")
        self._fence(run, event.fence, rises=True)
        run.state = "CLAIMED"

    def on_run_started(self, event):
        direct = event.was_just_decided
        if direct:
            known = self.runs.get(event.run_id)
            self.require(known is None, "legal state changes", f"decided again: {known}")
            self.on_run_enqueued(
                RunEnqueued(
                    event.schedule_id, event.run_id, event.run_at, event.due_at,
                    event.triggered_by, event.first_run_at, event.tick_count,
                )
            )  # fmt: skip
        run = self.runs[event.run_id]
        self.require(run.state == "CLAIMED" or direct, "legal state changes", f"started {run}")
        # A claimed one was due when it was claimed, whatever the clock says now.
        self.require(not direct or run.due_at <= self.now, "never early", f"started {run}")
        self.require(event.attempt == run.attempt + 1, "legal state changes", f"attempt of {run}")
        self._not_held(run, "started")
        self._fence(run, event.fence, rises=run.state == "ENQUEUED")
        others = [
            r
            for r in self.of_schedule[run.schedule_id]
            if r.state == "STARTED" and r.alone and run.alone
        ]
        model = self.models[run.schedule_id]
        apart = model.policy.overlap == "allow" or not others
        self.require(apart, "one at a time", f"{run} beside {others}")
        run.state, run.attempt, run.started_by = "STARTED", event.attempt, event.node_id
        if event.attempt > 1:
            self.seen["a further attempt"] += 1

    def on_run_handed_back(self, event):
        run = self.runs[event.run_id]
        legal = run.state in ("CLAIMED", "STARTED")
        late = self.stopping and run.state == "CLAIMED"
        self.require(not late, "a node that stops leaves nothing behind", f"{run}")
        self.require(legal, "legal state changes", f"handed back {run}")
        if run.state == "STARTED":
            run.attempt -= 1
            run.handed_back += 1
            self.seen["handed back after the announcement"] += 1
        else:
            self.seen["handed back"] += 1
        self._fence(run, event.fence, rises=True)
        run.state, run.free_since = "ENQUEUED", max(self.now, run.due_at)

    def on_run_succeeded(self, event):
        run = self.runs[event.run_id]
        self.require(run.state == "STARTED", "legal state changes", f"succeeded {run}")
        self.require(event.attempt == run.attempt, "legal state changes", f"succeeded {run}")
        run.state, run.reason = "SUCCESS", None
        run.ended[run.attempt] = "succeeded"

    def on_run_retrying(self, event):
        run = self.runs[event.run_id]
        self.require(run.state == "STARTED", "legal state changes", f"retrying {run}")
        model = self.models[run.schedule_id]
        if event.reason == "lost":
            run.lost.add(run.attempt)
            right = event.due_at == self.now and model.policy.on_lost == "retry"
            right = right and run.attempt <= len(model.policy.retry) + 5  # as the docs say
            self.seen["lost, tried again"] += 1
        else:
            run.ended[run.attempt] = event.reason
            delays = model.policy.retry
            right = (
                run.attempt <= len(delays) and event.due_at == self.now + delays[run.attempt - 1]
            )
            right = right and event.reason != "signal"
            self.seen["retrying"] += 1
        self.require(right or model.definition == "poison", "a retry is due", f"{event}")
        run.state, run.due_at, run.free_since = "ENQUEUED", event.due_at, event.due_at

    def on_run_failed(self, event):
        run = self.runs[event.run_id]
        self.require(not run.is_over, "legal state changes", f"failed {run}")
        self.seen[f"failed: {event.reason}"] += 1
        if run.state == "STARTED":
            if event.reason == "lost":
                run.lost.add(run.attempt)
            else:
                run.ended[run.attempt] = event.reason
        else:
            waited = event.reason in ("superseded", "paused", "gate_off", "invalid_target")
            self.require(waited, "legal state changes", f"failed {run}")
            if event.reason == "superseded":
                self.decided_now[event.schedule_id] += 1
                self.require(run.attempt > 0, "only a retry is superseded", f"{run}")
        run.state, run.reason = "FAILED", event.reason

    def on_run_canceled(self, event):
        run = self.runs[event.run_id]
        self.require(not run.is_over, "legal state changes", f"canceled {run}")
        if run.state == "STARTED":
            run.ended[run.attempt] = "canceled"
        else:
            self.seen["a waiting run canceled"] += 1
        run.state, run.reason = "CANCELED", "canceled"

    def on_node_stopped(self, event):
        for run in self.runs.values():
            left = run.state == "STARTED" and run.started_by == event.node_id
            self.require(not left, "a node that stops leaves nothing behind", f"{run}")

    def on_schedule_parked(self, event):
        self.seen["parked"] += 1
        self.require(event.schedule_id == "e", "a poison schedule hurts nobody else", f"{event}")

    # -- what decisions have to keep to

    def _tick(self, event, *, starts=False):
        """A row covers the next undecided ticks: all of them, each once, and counted."""
        model = self.models[event.schedule_id]
        first = event.first_run_at if event.first_run_at is not None else event.run_at
        if model.definition != "poison" and not (self.poisoned and event.schedule_id == "e"):
            due = model.next_tick()
            told = f"{event.schedule_id}: {first} decided, {due} was next"
            self.require(first == due, "one row per tick", told)
            n = model.schedule.trigger.count(first, event.run_at + 1, model.past)
            self.require(n == event.tick_count, "ranges are counted", f"{n}: {event}")
        if event.tick_count > 1 and starts:
            self.seen["a run that stands for several"] += 1
        if event.schedule_id not in self.spread:
            self.spread[event.schedule_id] = replace(model), []
        if starts or getattr(event, "reason", "") in ("overlap", "queue_full"):
            self.spread[event.schedule_id][1].append(event.run_at)
        self.ticks += event.tick_count
        self.decided_now[event.schedule_id] += 1
        model.position = max(model.position, event.run_at)
        model.decided = max(model.decided, event.run_at)
        model.used += starts

    def _may_launch(self, model, event):
        """A fresh tick starts on time, or to catch up, and only when nothing is in its way."""
        if model.definition == "poison":
            return
        due, asked = model.due_at(event.run_at), event.schedule_id in self.resumed
        late = self.now - due > model.policy.grace
        self.require(event.due_at == due, "jitter is the tick's own", f"{event}")
        if event.triggered_by == "timer":
            self.require(not late, "every miss matches its policy", f"{event}")
            early = event.due_at > self.now
            edited = event.schedule_id in self.edited
            self.require(not early or edited, "never early", f"{event}")
            if early:
                self.seen["enqueued for later by an edit"] += 1
        else:
            self._catches_up(model, event, late=late, asked=asked)
        held = not self.gate_open or model.paused
        held = held and not asked  # unless it is asked for right now
        self.require(not held, "acknowledged calls hold", f"decided while held: {event}")
        flying = [r for r in self.of_schedule[model.schedule_id] if r.in_flight(self.now)]
        queued = self._queued(model.schedule_id)
        retries = [
            r
            for r in self.of_schedule[model.schedule_id]
            if r.attempt and not r.manual and r.state == "ENQUEUED"
        ]
        fresh = event.due_at <= self.now or event.triggered_by == "catchup"
        self.require(
            not fresh or not retries, "a fresh tick supersedes a retry", f"{event}: {retries}"
        )
        if event.due_at > self.now or model.policy.overlap == "allow":
            return
        if event.blocked_by is None:
            self.require(not flying and not queued, "overlap", f"{event} beside {flying}")
        else:
            ids = {r.run_id for r in (*flying, *queued)}
            self.require(event.blocked_by in ids, "a blocker in flight", f"{event}")
            self.require(model.policy.overlap == "queue", "overlap", f"{event}")
            self.require(len(queued) < QUEUE_LIMIT, "queue limit", f"{event}")
            self.seen["queued"] += 1
            self.seen["queued behind others"] += bool(queued)

    def _catches_up(self, model, event, *, late, asked):
        """A missed tick runs as its policy says, and no more of them in a second than allowed."""
        each = late and event.tick_count == 1
        ways = {"once": True, "none": False, "all": each, "spread": each}
        right = asked or ways[model.policy.catchup]
        self.require(right, "every miss matches its policy", f"{event}")
        way = "asked for" if asked else model.policy.catchup
        self.seen[f"caught up: {way}"] += 1
        if not asked and 0 < self.now - model.caught_up_at < 5_000:
            self.seen["went on catching up"] += 1
        model.caught_up_at = self.now
        if asked or event.schedule_id in self.edited:
            return
        if self.catchups and self.now < self.catchups[-1]:  # the clock was set back
            self.catchups.clear()
        self.catchups = [at for at in self.catchups if at > self.now - 1000] + [self.now]
        # The allowance is renewed once a second: what is left of one may be followed by the next.
        most = 2 * self.world.catchup_per_second
        self.require(len(self.catchups) <= most, "no flood", f"{len(self.catchups)}: {event}")

    def _is_spreading(self, model):
        return self.now < model.spread_until <= self.now + LOOKAHEAD

    def _keeps_its_pace(self, model, run_ats):
        """Missed ticks start evenly, until the look-ahead or the next tick, and none before its turn."""
        spreading, now = self._is_spreading(model), self.now
        late = now - model.due_at(run_ats[0]) > model.policy.grace
        if model.policy.catchup != "spread" or not (late or model.spread_until):
            model.spread_until = model.turn_at = 0
            return
        if spreading and now > model.caught_up_at:  # unless the clock was set back
            self.require(now >= model.turn_at, "spread evenly", f"{run_ats} before {model.turn_at}")
        count, tick = 0, run_ats[0]
        while tick is not None and model.due_at(tick) <= now:
            count, tick = count + 1, model.schedule.trigger.next_after(tick, model.past)
        until = model.spread_until
        if not spreading:
            until = now + LOOKAHEAD if tick is None else min(now + LOOKAHEAD, model.due_at(tick))
        most_runs = getattr(model.schedule.trigger, "max_runs", None)
        due, count = count, count if most_runs is None else min(count, most_runs - model.used)
        most = min(max(1, count * 100 // (until - now)), MOST_DECISIONS)
        self.require(len(run_ats) <= most, "spread evenly", f"{run_ats}, and not {most}")
        self.seen["spread"] += 1
        gap = most * (until - now) // count
        model.turn_at = now + (gap if len(run_ats) == most else min(gap, 1000))
        model.spread_until = until if len(run_ats) < due else 0

    def on_node_started(self, event):
        self.catchups.clear()

    def _right_reason(self, model, event):
        if model.definition == "poison":
            return
        if event.reason == "overlap":
            self.require(model.policy.overlap == "skip", "overlap", f"{event}")
            self._has_blocker(event)
        elif event.reason == "missed":
            late = self.now - model.due_at(event.run_at)
            limit = model.policy.grace
            if model.policy.catchup != "none" and not self.decided_now[event.schedule_id]:
                limit = max(model.policy.catchup_window, limit)
            # What one plan does not reach is missed, if an edit ends the definition.
            full = self.decided_now[event.schedule_id] >= MOST_DECISIONS
            full = full or len(self._queued(event.schedule_id)) >= QUEUE_LIMIT
            remainder = event.schedule_id in self.edited and full
            self.require(late > limit or remainder, "every miss matches its policy", f"{event}")
        elif event.reason == "paused":
            held = model.paused
            self.require(held, "every skip has its reason", f"{event}")
        elif event.reason == "gate_off":
            held = self.opened or not self.gate_open
            self.require(held, "every skip has its reason", f"{event}")
        elif event.reason == "queue_full":
            waiting = self._queued(event.schedule_id)
            self.require(len(waiting) >= QUEUE_LIMIT, "queue limit", f"{len(waiting)}: {event}")
            late = self.now - model.due_at(event.run_at) > model.policy.grace
            waits = late and model.policy.catchup in ("all", "spread")
            self.require(not waits, "every miss matches its policy", f"{event}")
        elif event.reason == "canceled":
            self.require(event.schedule_id in self.deleted, "every skip has its reason", f"{event}")

    def _queued(self, schedule_id):
        runs = self.of_schedule[schedule_id]
        return [run for run in runs if run.blocked_by is not None and not run.is_over]

    def _has_blocker(self, event):
        blocker = self.runs.get(event.blocked_by)
        flying = blocker is not None and blocker.in_flight(self.now)
        same = blocker is not None and blocker.schedule_id == event.schedule_id
        self.require(flying and same, "a blocker in flight", f"{event} by {blocker}")

    def _all_decided(self, model, invariant):
        if model.definition == "poison":
            return
        tick = model.next_tick()
        told = f"{model.schedule_id}: {tick} is undecided"
        self.require(tick is None or tick > self.now // 1000, invariant, told)

    def _not_held(self, run, what):
        model = self.models[run.schedule_id]
        self.require(self.gate_open, "acknowledged calls hold", f"{what} behind a closed gate")
        free = run.manual or not model.paused
        self.require(free, "acknowledged calls hold", f"{what} while paused: {run}")
        if run.manual and model.paused:
            self.seen["a manual run while paused"] += 1

    def _fence(self, run, fence, *, rises):
        right = fence > run.fence if rises else fence >= run.fence
        self.require(right, "fences never fall", f"{run} to {fence}")
        run.fence = fence

    # -- in the end

    def finish(self, database):
        self._rows(database)
        self._due_rows(database)
        self._witness()
        self._acknowledged(database)
        for run in self.runs.values():
            model = self.models[run.schedule_id]
            held = model.paused and not run.manual
            sick = run.schedule_id == "e" and self.poisoned
            if not (run.is_over or held or sick):
                self.require(self._has_a_turn_to_come(run), "nothing is stuck", f"{run}")
            if model.schedule_id != "e" and model.used >= 2 and model.next_tick() is None:
                self.seen["ended by its limits"] += 1

    def _has_a_turn_to_come(self, run):
        """Whether an unfinished run is one that the end came too early for."""
        recent = self.world.stopped_at - 2_000
        if run.state != "ENQUEUED":
            return False
        if run.blocked_by is None:
            return run.free_since > recent or run.due_at > recent  # the clock was set back
        others = [r for r in self.of_schedule[run.schedule_id] if not r.manual and r is not run]
        return any(r.blocked_by is None and not r.is_over for r in others)

    def _rows(self, database):
        """Every row is what its events say."""
        rows = database.execute(
            "SELECT run_id, status, reason, attempt, fence, finished_at, run_at, tick_count, "
            "first_run_at, blocked_by FROM schedule_runs"
        )
        skips = dict(self.skips)
        told = {r.run_id: r for r in self.runs.values()}
        for run_id, status, reason, attempt, fence, finished_at, *tick in rows:
            run = told.pop(run_id, None)
            self.require((finished_at is not None) == (status not in ("ENQUEUED", "STARTED")), "legal state changes", f"row {run_id}")  # fmt: skip
            if run is None:
                skip = skips.pop(run_id, None)
                self.require(
                    skip is not None
                    and (status, reason) == ("SKIPPED", skip.reason)
                    and tick == [skip.run_at, skip.tick_count, skip.first_run_at, skip.blocked_by],
                    "every change has its event",
                    f"run {run_id}: {skip}",
                )
                continue
            state = "ENQUEUED" if run.state == "CLAIMED" else run.state
            same = (status, attempt) == (state, run.attempt) and fence >= run.fence
            same = same and (reason == run.reason or status == "ENQUEUED")
            self.require(same, "every change has its event", f"{run}: {status} {reason} {attempt}")
        self.require(not told, "every event has its row", f"{list(told.values())[:2]}")
        self.require(not skips, "every event has its row", f"{list(skips.values())[:2]}")
        double = database.execute(
            "SELECT schedule_id, run_at FROM schedule_runs WHERE request_id = '' "
            "GROUP BY 1, 2 HAVING count(*) > 1"
        ).fetchall()
        self.require(not double, "one row per tick", f"{double}")

    def _due_rows(self, database):
        """Every live schedule has its due row, at its next tick, and nothing is overdue."""
        rows = {name: (at, tick) for name, at, tick in database.execute(
            "SELECT schedule_id, due_at, run_at FROM due"
        )}  # fmt: skip
        for model in self.models.values():
            if model.schedule_id == "e" and self.poisoned:
                continue
            due = rows.pop(model.schedule_id, None)
            live = not model.paused and not model.deleted
            tick = model.next_tick() if live else None
            want = None if tick is None else (model.due_at(tick), tick)
            if want and due and self._is_postponed(model, due, tick):
                continue
            self.require(due == want, "one due row a live schedule", f"{due}, not {want}")
            late = want is not None and want[0] < self.world.stopped_at - 2_000
            self.require(not late, "liveness", f"{model.schedule_id} is due since {want}")
        rows.pop("e", None)
        self.require(not rows, "one due row a live schedule", f"{rows} are of nothing live")

    def _is_postponed(self, model, due, tick):
        """Whether a due row is of a missed tick that there was no room for yet."""
        stopped_at, (due_at, run_at) = self.world.stopped_at, due
        latest = stopped_at + HOUR * self.world.seen["clock set back"]  # it was, before that
        missed = model.due_at(tick) <= latest and model.policy.catchup != "none"
        soon = stopped_at - 2_000 < due_at <= latest + LOOKAHEAD + 1000
        return missed and soon and run_at == tick and due_at > model.due_at(tick)

    def _witness(self):
        """Targets were started once an attempt, announced before, in time, under one key."""
        starts = Counter()
        for each in self.world.launched:
            run = self.runs[each.run_id]
            starts[each.run_id, each.attempt] += 1
            text = (
                f"{each.schedule_id}:manual:{each.request_id}"
                if each.request_id
                else f"{each.schedule_id}:{run.run_at}"
            )
            same = each.key == sha256(text.encode()).hexdigest()
            self.require(same, "one key for every attempt", f"{each}")
            announced = each.row == ("STARTED", each.attempt, each.fence)
            self.require(announced, "announced before it is launched", f"{each}")
            in_time = each.after_claim <= 5.0 * 2 / 3 + 0.001
            self.require(in_time, "nothing starts past the lease", f"{each}")
        for run in self.runs.values():
            for attempt in run.ended:
                n = starts.pop((run.run_id, attempt), 0)
                self.require(n == 1, "one launch per attempt", f"{run} #{attempt}: {n}")
            for attempt in run.lost:
                n = starts.pop((run.run_id, attempt), 0)
                self.require(n <= 1, "one launch per attempt", f"{run} #{attempt}: {n}")
                self.seen[f"lost, launched {n} times"] += 1
        open_ones = {(r.run_id, r.attempt) for r in self.runs.values() if r.state == "STARTED"}
        for key, n in starts.items():
            self.require(key in open_ones and n == 1, "one launch per attempt", f"{key}: {n}")

    def _acknowledged(self, database):
        """What a user was answered is there."""
        ids = {
            request: run_id
            for run_id, request in database.execute(
                "SELECT run_id, schedule_id || ':' || request_id FROM schedule_runs "
                "WHERE request_id <> ''"
            )
        }
        for each in self.world.acknowledged:
            if each.call == "enqueue":
                key = f"{each.schedule_id}:{each.answer.request_id}"
                same = ids.get(key) == each.answer.run_id
                self.require(same, "acknowledged calls hold", f"{each}")
        answered = Counter()
        for each in self.world.acknowledged:
            change = each.answer[0].change if each.call == "upsert" else each.answer
            if change is True or change in ("created", "changed"):
                answered[each.call if change is True else change, each.schedule_id] += 1
        self.require(answered == self.told, "acknowledged calls hold", f"{answered - self.told}")


def check(world):
    """Return the breaches, what was reached, and how many ticks there were."""
    database = apsw.Connection(str(world.path))
    try:
        rows = database.execute("SELECT at, body FROM events ORDER BY event_id").fetchall()
        checker = Checker(world)
        checker._pending = {}
        checker.replay([(at, decode_events(body)) for at, body in rows])
        checker.finish(database)
    finally:
        database.close()
    return checker.wrong, checker.seen, checker.ticks

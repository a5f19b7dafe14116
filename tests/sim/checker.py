"""The invariants of DESIGN 11, checked from rows, events and the witness of the targets.

The events are replayed in the order of commits on a model of its own (`model`). What each has to
keep to is told apart: ticks in `decisions`, rows in `covering`, runs that wait in `waiting`, runs
that were started here, and what is left in the end in `afterwards`. Each breach is told with the
name of its invariant.
"""

import apsw

from onbeat.core.runs.run import Canceled
from onbeat.core.schedule import from_definition
from onbeat.errors import OnbeatError
from onbeat.events import RunEnqueued, decode_events
from tests.sim.afterwards import Afterwards
from tests.sim.covering import Covering
from tests.sim.decisions import Decisions
from tests.sim.detached import Detached
from tests.sim.model import ENDINGS, MOST_LOST, Life, Model, RunModel, Transaction
from tests.sim.waiting import Waiting

CALLS = {
    "schedule.created": "upsert", "schedule.changed": "upsert", "schedule.paused": "pause",
    "schedule.resumed": "resume", "schedule.deleted": "delete", "gate.changed": "set_gate",
    "group.changed": "set_group",
}  # fmt: skip
REPORT_TIMEOUT = 3_600_000
RETRYABLE = ("exit", "launch_failed")  # of what the targets of the simulator can say


class Checker(Life):
    """Replays what happened, and notes every breach."""

    def __init__(self, world):
        super().__init__(world)
        self.decisions, self.covering = Decisions(self), Covering(self)
        self.waiting, self.afterwards = Waiting(self), Afterwards(self)
        self.detached = Detached(self)
        self.probed = getattr(world, "probed", {})  # what conditions answered, by run and fence
        self.skips = {}  # skipped ticks, by the run that their row is
        self.node_ids = {}  # nodes that have not stopped in good order: when each started
        self._pending = {}  # told of a schedule that is only then told to be created

    # -- replaying

    def replay(self, transactions, calls=None):
        """Replay transactions. `calls` has what users asked for, by the transaction it came to.

        Each is the call that made the transaction, if one did, and those that changed nothing then.
        """
        self.is_tagged = calls is not None
        for n, (at, events) in enumerate(transactions):
            call, idle = calls.get(n, (None, [])) if calls is not None else (None, [])
            self.now, self.tx = at, Transaction(events, call, is_tagged=self.is_tagged)
            wanted = self.covering.expect(call) if self._is_backfill(call) else None
            for event in events:
                self._is_wanted(event)
                getattr(self, f"on_{event.name.replace('.', '_')}", lambda _: None)(event)
            self._see_to_the_whole()
            if wanted is not None:
                self._did_as_asked(call, *wanted)
            for each in idle:
                self._changed_nothing(each)

    def finish(self, database):
        self.afterwards.check(database)
        self.detached.check()

    def _see_to_the_whole(self):
        """Check what has to hold when a transaction is done."""
        for check in self.tx.in_the_end:
            check()
        told = f"{self.tx.to_pause}"
        self.require(not self.tx.to_pause, "pause_after pauses", told)
        self._all_moved()
        self.decisions.see_to_pace()
        self.waiting.in_order()

    def _all_moved(self):
        """What waits is moved if that was asked for, whether the definition changed or not."""
        call = self.tx.call
        if call is None or not call.named.get("update_waiting") or call.call != "upsert":
            return
        if isinstance(call.answer, OnbeatError) or self.is_sick(call.schedule_id):
            return
        model = self.models[call.schedule_id]
        runs = self.unfinished(call.schedule_id)
        waiting = [run for run in runs if run.state == "ENQUEUED" and not run.detached]
        left = [run for run in waiting if run.revision != model.revision]
        self.require(not left, "what waits is moved if that is asked for", f"{left[:2]}")

    # -- what users ask for

    def _is_wanted(self, event):
        """What only users do was asked for; or it is a pause that begins or ends by itself."""
        call = CALLS.get(event.name)
        if call is None:
            return
        subject = getattr(event, "schedule_id", getattr(event, "group", ""))
        by_hand = self.tx.is_call(call, subject) or not self.is_tagged
        if event.name == "schedule.paused" and subject in self.tx.to_pause:
            by_hand = False
        elif event.name == "schedule.resumed" and not by_hand:
            model = self.models[subject]
            over = model.paused_until is not None and model.paused_until <= self.now
            told = f"{event}: {model.paused_until}"
            self.require(over, "a pause with until ends then", told)
            self.seen["a pause ended by itself"] += 1
        elif not self.is_sick(subject):
            self.require(by_hand, "nothing changes unasked", f"{event}")
        if by_hand:
            self.afterwards.told[call, subject] += 1

    def _is_backfill(self, call):
        return (
            call is not None
            and call.call == "backfill"
            and not self.is_sick(call.schedule_id)
            and call.schedule_id in self.models
        )

    def _did_as_asked(self, call, wanted, refused):
        """A backfill enqueues each tick that can run, and refuses the others."""
        done = {
            event.run_at
            for event in self.tx.events
            if event.name == "run.backfilled"
            or (event.name == "run.enqueued" and event.triggered_by == "backfill")
        }
        told = (
            f"{call.named} {call.answer}: {sorted(wanted - done)[:5]} {sorted(done - wanted)[:5]}"
        )
        self.require(done == wanted, "backfill runs what was skipped", told)
        right = (call.answer.enqueued, call.answer.refused) == (len(wanted), refused)
        self.require(right, "backfill runs what was skipped", f"{call.answer}, {refused} refused")
        self.seen["a backfill refused a tick"] += refused > 0

    def _changed_nothing(self, call):
        """A call was refused, or had nothing to do: so it was."""
        if self._is_backfill(call) and not isinstance(call.answer, OnbeatError):
            wanted, refused = self.covering.expect(call)
            self._did_nothing(call, wanted, refused)
        elif call.call in ("cancel", "report"):
            run = self.runs[call.subject]
            over = isinstance(call.answer, OnbeatError)
            right = run.is_over if over else run.is_over or run.asked is not None
            held = run.state == "STARTED" and run.heard_by is None  # its node will tell
            unheard = run.waits or run.detached or (held and over)
            waits = call.call == "report" and unheard
            self.require(right or waits, "acknowledged calls hold", f"{call}: {run}")
            self.seen[f"too late to {call.call}"] += over and run.is_over
            self.seen["told of a run that a node has"] += over and held

    def _did_nothing(self, call, wanted, refused):
        told = f"{call.named} {call.answer}: {sorted(wanted)[:5]}"
        self.require(not wanted, "backfill runs what was skipped", told)
        self.require(call.answer.refused == refused, "backfill runs what was skipped", told)

    def _by_hand(self, call, run):
        """Whether a user asked for this of a run, or nobody knows."""
        return not self.is_tagged or self.tx.is_call(call, run.run_id)

    # -- schedules

    def on_schedule_created(self, event):
        old = self.models.get(event.schedule_id)
        self.require(old is None or old.deleted, "one schedule an id", event.schedule_id)
        second = self.now // 1000
        decided = old.decided if old else 0
        model = Model(event.schedule_id, event.definition, self.now, max(decided, second), decided)
        model.revision = event.revision
        decided_now = self._pending.pop(event.schedule_id, [])
        is_late = old is None and event.since is None and model.schedule.ticks_once
        if event.since is not None:
            right = decided <= event.since <= max(decided, second)
            self.require(right, "a beginning is neither decided nor to come", f"{event}")
            model.position, model.created_at = event.since, min(event.since * 1000, self.now)
            self.seen["began in the past"] += model.is_overdue(self.now)
        if is_late:
            model.position = -1
        self.models[event.schedule_id] = model
        for early in decided_now:
            self.decisions.tick(early)
        if is_late:
            first = model.next_tick()
            late = first is not None and self.now - model.due_at(first) > model.lateness
            self.require(not late, "every miss is recorded", f"{event.schedule_id} {first}")
            model.position = second if first is None or first > second else first - 1

    def on_schedule_changed(self, event):
        model = self.models[event.schedule_id]
        told = f"{event.revision} after {model.revision}"
        self.require(event.revision == model.revision + 1, "revisions are counted", told)
        model.revision = event.revision
        if model.definition == event.definition:
            return
        before = None if model.definition == "poison" else model.schedule
        after = from_definition(event.schedule_id, event.definition)
        if before is None or _timing(before) != _timing(after):
            if before is not None and not self.is_sick(event.schedule_id):
                self._all_decided(model, "an edit decides what was planned")
            model.position = max(model.decided, self.now // 1000)
        if before is None or before.policy.rate != after.policy.rate:
            model.rated_from = len(model.began)
        model.definition = event.definition
        waits = any(run.waits for run in self.unfinished(event.schedule_id))
        self.seen["edited while a run waits"] += waits

    def on_run_moved(self, event):
        """A waiting run starts by the new revision, as a user asked."""
        run, model = self.runs[event.run_id], self.models[event.schedule_id]
        asked = self.tx.call is not None and self.tx.call.named.get("update_waiting")
        self.require(asked or not self.is_tagged, "nothing changes unasked", f"{event}")
        waits = run.state == "ENQUEUED" and not run.detached
        self.require(waits, "legal state changes", f"{event}: {run}")
        right = (event.before, event.revision) == (run.revision, model.revision)
        self.require(right, "a run is moved to the revision of now", f"{event}: {run}")
        run.take_revision(model)
        run.alone = run.alone and model.policy.overlap != "allow"  # which judges it from now on
        run.group, run.priority = model.policy.group, model.policy.priority
        wait = None if run.backfill else model.policy.start_deadline
        self.waiting.set_deadline(run, None if wait is None else max(self.now, run.due_at) + wait)
        self.seen["a limited run moved"] += run.is_limited
        self.seen["a waiting run moved"] += 1
        self.seen["a retry moved"] += run.attempt > 0
        self.seen["a queued run moved"] += run.blocked_by is not None

    def on_schedule_paused(self, event):
        model = self.models[event.schedule_id]
        if event.schedule_id in self.tx.to_pause:
            self.tx.to_pause.discard(event.schedule_id)
            self.require(event.until is None, "pause_after pauses", f"{event}")
            self.seen["paused after failures"] += 1
        elif self.tx.call is not None:
            asked = self.tx.call.named.get("until")
            self.require(event.until == asked, "acknowledged calls hold", f"{event}: {asked}")
            self.seen["paused until a time"] += asked is not None
        model.paused, model.paused_until = True, event.until

    def on_schedule_resumed(self, event):
        model, end = self.models[event.schedule_id], self.end_of_pause(event.schedule_id)
        if not self.is_sick(event.schedule_id):
            self._all_decided(model, "a pause ends with its range", end)
        model.paused, model.paused_until, model.failures = False, None, 0
        self._went_by(model, end)
        model.turn_at = 0  # what was put off is looked at anew, as when the gate opens

    def on_schedule_deleted(self, event):
        model = self.models[event.schedule_id]
        if not self.is_sick(event.schedule_id):
            self._all_decided(model, "a deletion decides what was planned")
        model.deleted, model.paused_until = True, None
        for run in self.unfinished(event.schedule_id):
            self.require(not run.waits, "a deletion cancels what waits", f"run {run.run_id}")
            run.is_of_deleted = True

    def on_schedule_parked(self, event):
        self.seen["parked"] += 1
        self.require(event.schedule_id == "e", "a poison schedule hurts nobody else", f"{event}")

    def on_gate_changed(self, event):
        self.gate_open = event.open
        if not event.open:
            return
        for model in self.models.values():
            if model.paused or model.deleted or self.is_sick(model.schedule_id):
                continue
            tick = self.covering.next_tick(model)
            past = tick is not None and tick <= self.now // 1000
            left = past and model.due_at(tick) <= self.now
            self.require(not left, "a gate ends with its ranges", model.schedule_id)
            self._went_by(model, self.now)
            model.turn_at = 0  # what was put off is looked at anew

    def on_group_changed(self, event):
        if event.places > self.places[event.group]:
            self.free_since[event.group] = self.now
        self.places[event.group] = event.places
        self.seen["a group given other places"] += 1

    def _went_by(self, model, end):
        """A schedule that had ticks while it was held goes on from then.

        A tick that was backfilled before it was planned keeps its row, and is decided without an event.
        """
        model.decided = max(model.decided, self.covering.last_own(model, end // 1000))
        if model.schedule_id in self.tx.ticked:
            model.position = max(model.position, end // 1000)

    def _all_decided(self, model, invariant, end=None):
        if model.definition == "poison":
            return
        tick, end = self.covering.next_tick(model), self.now if end is None else end
        told = f"{model.schedule_id}: {tick} is undecided"
        self.require(tick is None or tick > end // 1000, invariant, told)

    # -- nodes

    def nodes_up(self):
        """Whether a node is up; None if a lease may or may not have run out."""
        if not self.node_ids:
            return False
        fresh = any(0 <= self.now - since < 1000 for since in self.node_ids.values())
        was_set_back = self.world.seen["clock set back"]  # one that looks new may be long gone
        return True if fresh and not was_set_back else None

    def on_node_started(self, event):
        if not getattr(self.world, "is_shared", False):
            self.node_ids.clear()  # a file has one node
        self.node_ids[event.node_id] = self.now
        self.decisions.new_node()
        self._cause("@startup", [""])

    def on_node_stopped(self, event):
        self.node_ids.pop(event.node_id, None)
        for runs in self.open.values():
            for run in runs.values():
                left = run.state == "STARTED" and run.started_by == event.node_id
                self.require(not left, "a node that stops leaves nothing behind", f"{run}")

    # -- runs that are decided

    def on_run_enqueued(self, event):
        known = self.runs.get(event.run_id)
        if known is not None:
            self._queue_again(known, event)
            return
        if event.triggered_by == "backfill":
            self.covering.add(event)
            return
        model = self.models[event.schedule_id]
        manual = event.triggered_by == "manual"
        run = RunModel(
            event.run_id, event.schedule_id, event.run_at, event.due_at, manual, self.now,
            alone=not manual and model.policy.overlap != "allow",
            blocked_by=event.blocked_by, free_since=max(self.now, event.due_at),
            group=model.policy.group, priority=model.policy.priority,
        )  # fmt: skip
        run.take_revision(model)
        wait = model.policy.start_deadline
        run.start_by = event.start_by
        own = None if wait is None else max(self.now, event.due_at) + wait
        self.waiting.set_deadline(run, own, is_new=True)
        if not manual:
            self.decisions.begin(event)
        self.waiting.is_rightly_limited(run, self.nodes_up())
        self.add(run)
        if run.blocked_by is None:
            self.pass_by(run)

    def _queue_again(self, run, event):
        """A run that was to be claimed is judged again, and queued."""
        self.require(run.state == "ENQUEUED", "legal state changes", f"queued {run}")
        right = run.policy.overlap in ("queue", "replace") or run.backfill
        self.require(right and run.was_deferred, "overlap", f"{event}")
        self.decisions.has_blocker(event)
        self.tx.judged.add(run.schedule_id)
        run.blocked_by = event.blocked_by
        self.seen["queued when judged again"] += not run.backfill
        self.seen["a backfilled run queued"] += run.backfill

    def on_run_backfilled(self, event):
        self.skips.pop(event.run_id, None)
        self.covering.revive(event)

    def on_range_shortened(self, event):
        if event.reason:
            self.skips[event.run_id] = event
        self.covering.shorten(event)

    def on_run_skipped(self, event):
        run = self.runs.get(event.run_id)
        if run is not None and run.state == "STARTED":
            self._found_busy(run, event)
            return
        if run is not None:
            self.waiting.end(run, event)
            self.seen[f"a waiting run skipped: {event.reason}"] += 1
            self.end(run, "SKIPPED", event.reason)
            return
        self.skips[event.run_id] = event
        if event.schedule_id not in self.models or self.models[event.schedule_id].deleted:
            self._pending.setdefault(event.schedule_id, []).append(event)
            self.seen["single times past when defined"] += event.schedule_id not in self.models
            return
        self.seen[f"skipped: {event.reason}"] += 1
        if event.tick_count > 1:
            self.seen[f"range of {event.reason}"] += 1
        self.decisions.skip(event)

    def on_run_released(self, event):
        run = self.runs[event.run_id]
        queued = self.all_queued(event.schedule_id)
        first = min(((r.backfill, r.run_at) for r in queued), default=None)
        self.require(run.blocked_by is not None, "legal state changes", f"released {run}")
        right = (run.backfill, run.run_at) == first
        self.require(right, "queue order", f"{run} before {first}")
        self.tx.decided[event.schedule_id] += 1
        self.waiting.lift(run)
        run.blocked_by, run.free_since = None, self.now
        self.pass_by(run)
        self.tx.released.add(run.run_id)
        self.seen["released from the queue"] += 1
        self.seen["a backfilled run released"] += run.backfill

    # -- runs that are started

    def on_run_claimed(self, event):
        run = self.runs[event.run_id]
        self.waiting.claim(run)
        self._fence(run, event.fence, rises=True)
        self.pass_by(run)
        run.state, run.asks = "CLAIMED", run.schedule.when is not None
        run.asks = run.asks and not run.detached
        current = self.models[event.schedule_id].revision
        self.seen["claimed by an earlier revision"] += run.revision != current
        self.seen["tried again by an earlier revision"] += run.revision != current and run.tries > 0

    def on_run_started(self, event):
        direct = event.is_first_event
        if direct:
            self._decided_to_start(event)
        run = self.runs[event.run_id]
        self.require(run.state == "CLAIMED" or direct, "legal state changes", f"started {run}")
        # A claimed one was due when it was claimed, whatever the clock says now.
        self.require(not direct or run.due_at <= self.now, "never early", f"started {run}")
        self.require(event.attempt == run.attempt + 1, "an attempt is announced once", f"{run}")
        fresh = run.asked is None or run.detached
        self.require(fresh, "an asked run ends", f"started again: {run}")
        self.waiting.is_free(run, "started")
        self._fence(run, event.fence, rises=run.state == "ENQUEUED")
        self.pass_by(run)
        others = [
            r
            for r in self.unfinished(run.schedule_id)
            if r.has_started
            and r is not run
            and r.alone
            and run.alone
            and r.policy.overlap != "allow"  # it may have been moved to a revision that allows it
            and r.run_id not in run.passed_by
        ]
        apart = run.policy.overlap == "allow" or not others
        self.require(apart, "one at a time", f"{run} beside {others}")
        if run.asks:
            self._was_asked_first(run, event)
        run.state, run.attempt, run.started_by = "STARTED", event.attempt, event.node_id
        run.started_at = self.now
        run.by[event.attempt] = run.revision, run.definition
        run.returned = False
        self.detached.announce(run)
        if event.attempt > 1:
            self.seen["a further attempt"] += 1

    def _decided_to_start(self, event):
        known, schedule = self.runs.get(event.run_id), self.models[event.schedule_id].schedule
        self.require(known is None, "legal state changes", f"decided again: {known}")
        self.on_run_enqueued(
            RunEnqueued(
                event.schedule_id, event.run_id, event.run_at, event.due_at,
                event.triggered_by, event.first_run_at, event.tick_count,
            )
        )  # fmt: skip
        policy = schedule.policy
        first = [policy.group, policy.start_deadline, schedule.when]
        plain = first == [None] * 3 and not policy.priority and not schedule.target.has_templates
        self.require(plain, "what has to be looked at first is claimed", f"{event}")

    def _was_asked_first(self, run, event):
        answer = self.probed.get((run.run_id, run.fence))
        told = f"{answer}: {run}"
        self.require(answer in ("yes", "nothing"), "a condition is asked first", told)
        if answer == "nothing":
            run.unasked.add(event.attempt)
            self.seen["a condition gave no answer"] += 1
        self.seen["a condition held"] += answer == "yes"

    def on_run_handed_back(self, event):
        run = self.runs[event.run_id]
        late = self.tx.stopping and run.state == "CLAIMED"
        self.require(not late, "a node that stops leaves nothing behind", f"{run}")
        self.require(run.holds_a_place, "legal state changes", f"handed back {run}")
        stays = self.detached.stays_when_handed_back(run)
        self.require(run.asked is None or stays, "an asked run ends", f"handed back: {run}")
        void = run.attempt if run.state == "STARTED" else 0
        self.require(event.attempt == void, "an attempt is announced once", f"{event}: {run}")
        if run.state == "STARTED":
            run.deferrals += 1
            run.returned = run.tries == 0
            run.handed_back += 1
            run.started_at = None
            self.seen["handed back after the announcement"] += 1
        else:
            self.seen["handed back"] += 1
        self._fence(run, event.fence, rises=True)
        run.detached = stays
        self.wait(run, due_at=run.due_at)

    def on_run_accepted(self, event):
        run = self.runs[event.run_id]
        self.require(run.state == "STARTED", "legal state changes", f"accepted {run}")
        self.require(run.asked is None, "an asked run ends", f"accepted: {run}")
        lengths = {REPORT_TIMEOUT if run.policy.timeout is None else run.policy.timeout}
        if self.is_sick(run.schedule_id):  # the run's own revision may still be readable
            lengths |= {REPORT_TIMEOUT}
        right = event.deadline_at - self.now in lengths
        told = f"{event}: {lengths}"
        self.require(right, "what was accepted is awaited for its time", told)
        run.ended[run.attempt] = "accepted"
        run.heard_by, run.started_by = event.deadline_at, ""
        run.accepted_attempt = run.attempt
        self.seen["accepted"] += 1

    def on_run_reported_late(self, event):
        """A report after the deadline changes nothing, and is noted once."""
        run = self.runs[event.run_id]
        ended = (run.state, run.reason, run.accepted_attempt)
        right = ended == ("FAILED", "timeout", run.attempt) and not run.is_reported_late
        self.require(right, "late reports are noted once", f"{event}: {run}")
        run.is_reported_late = True
        self.seen["reported after the deadline"] += 1

    def on_run_end_asked(self, event):
        run, tx = self.runs[event.run_id], self.tx
        self.require(run.has_started, "legal state changes", f"asked to end {run}")
        self.require(run.asked is None, "a run is asked to end once", f"{event}: {run}")
        tx.decided[run.schedule_id] += 1
        if event.reason == "canceled":
            wanted = self._by_hand("cancel", run)
            self.require(wanted, "every reason has its cause", f"{event}")
        else:
            replaces = self.may_replace(run.schedule_id)

            def by_a_newer_one():
                newer = run.schedule_id in tx.began or run.schedule_id in tx.judged
                right = replaces and newer and event.reason == "superseded"
                self.require(right, "every reason has its cause", f"{event}")

            tx.in_the_end.append(by_a_newer_one)
        run.asked = run.reason = event.reason
        if run.detached:
            self.detached.recall(run)
        if run.heard_by is not None:
            run.heard_by = self.now
            self.seen["asked to end, though accepted"] += 1
        self.seen[f"asked to end: {event.reason}"] += 1

    # -- runs that end

    def on_run_succeeded(self, event):
        run = self.runs[event.run_id]
        self.require(run.state == "STARTED", "legal state changes", f"succeeded {run}")
        self.require(event.attempt == run.attempt, "legal state changes", f"succeeded {run}")
        self._is_heard_of(run, event)
        self.seen["asked to end, and succeeded first"] += run.asked is not None
        run.ended[run.attempt] = "succeeded"
        self.end(run, "SUCCESS")
        self.models[run.schedule_id].failures = 0
        self._cause(run.schedule_id, ENDINGS["SUCCESS"])

    def on_run_retrying(self, event):
        run = self.runs[event.run_id]
        self.require(run.state == "STARTED", "legal state changes", f"retrying {run}")
        if self.detached.is_lost(run, event):
            self.detached.detach(run, event)
            self._may_have_to_pause(run)
            return
        policy = run.policy
        self.require(run.asked is None, "an asked run is not retried", f"{event}")
        self.require(not run.is_of_deleted, "a deleted schedule tries nothing again", f"{event}")
        newer = [] if run.manual else self.queued(run.schedule_id)
        self.require(not newer, "a retry leaves its turn to newer ticks", f"{event}: {newer}")
        self._is_heard_of(run, event)
        self.require(
            self._is_due_again(run, policy, event) or self.is_sick(run.schedule_id),
            "a retry is due",
            f"{event}: {run}",
        )
        if event.reason == "lost":
            run.lost.add(run.attempt)
            self.seen["lost, tried again"] += 1
        else:
            run.ended[run.attempt] = event.reason
            self.seen["retrying"] += event.reason != "busy"
        if event.reason == "busy":
            run.deferrals += 1
            self.waiting.lift(run)
            self.seen["found busy"] += 1
        else:
            wait = policy.start_deadline
            run.start_by = None
            self.waiting.set_deadline(run, None if wait is None else event.due_at + wait)
        self.wait(run, due_at=event.due_at)
        self._may_have_to_pause(run)

    def _is_due_again(self, run, policy, event):
        """Whether there is to be another attempt, and then."""
        delays, wait = policy.retry.delays, event.due_at - self.now
        if event.reason == "lost":
            may = policy.on_lost == "retry" and run.tries <= len(delays) + MOST_LOST
            return wait == 0 and may
        if event.reason == "busy":
            return wait == self.afterwards.said_of(run).retry_in
        if event.reason in ("signal", "invalid_target", "timeout") or run.tries > len(delays):
            return False
        delay = delays[run.tries - 1]
        self.seen["a retry with jitter"] += policy.retry.jitter > 0
        return delay <= wait <= delay + policy.retry.jitter

    def on_run_failed(self, event):
        run = self.runs[event.run_id]
        self.require("not be recorded" not in event.error, "outcomes are recorded", f"{event}")
        self.require(not run.is_over, "legal state changes", f"failed {run}")
        self.seen[f"failed: {event.reason}"] += 1
        if run.state != "STARTED":
            self.waiting.end(run, event)
            self.end(run, "FAILED", event.reason)
            self.models[run.schedule_id].failures += 1
            return
        self._is_heard_of(run, event)
        if event.reason == "lost":
            self.require(run.heard_by is None, "accepted runs are nobody's to lose", f"{run}")
            self.detached.lose(run)
        else:
            run.ended[run.attempt] = event.reason
        self._was_the_last(run, event)
        self.end(run, "FAILED", event.reason)
        self.models[run.schedule_id].failures += 1
        self._may_have_to_pause(run)
        self._cause(run.schedule_id, ENDINGS["FAILED"])

    def _was_the_last(self, run, event):
        """There is another attempt while the policy has delays left, but for a reason not to."""
        if self.is_sick(run.schedule_id):
            return
        if run.is_of_deleted or run.asked is not None:
            self.detached.was_the_last(run)
            return
        delays, newer = run.policy.retry.delays, not run.manual and self.queued(run.schedule_id)
        may = event.reason in RETRYABLE and run.tries <= len(delays)
        if event.reason == "lost":
            may = run.policy.on_lost == "retry" and run.tries <= len(delays) + MOST_LOST
            if run.continues:
                may = run.attempt in run.lost and run.tries <= len(delays) + MOST_LOST
        self.require(not may or newer, "no retry is left out", f"{event}: {run}")

    def on_run_canceled(self, event):
        run = self.runs[event.run_id]
        self.require(not run.is_over, "legal state changes", f"canceled {run}")
        if run.waits:
            gone = run.schedule_id in self.tx.deleted
            wanted = gone or self._by_hand("cancel", run)
            self.require(wanted, "every reason has its cause", f"{event}")
            self.seen["a waiting run canceled"] += 1
            self.seen["a waiting run canceled by hand"] += not gone
        else:
            self._is_heard_of(run, event)
            run.ended.setdefault(run.attempt, "canceled")
            self._has_a_cause(run, event)
            self.seen["canceled as it was asked to"] += run.asked is not None
        want = run.asked or "canceled"
        self.require(event.reason == want, "every reason has its cause", f"{event}: {run}")
        self.end(run, "CANCELED", event.reason)

    def _has_a_cause(self, run, event):
        """A run under a node is canceled as requested, by its target, or as its node stops."""
        if run.asked is not None or run.heard_by is not None or not self.is_tagged:
            return
        by_target = isinstance(self.afterwards.said_of(run), Canceled)
        right = by_target or run.started_by in self.world.stops
        self.require(right, "every reason has its cause", f"{event}: {run}")

    def _found_busy(self, run, event):
        """A run ends as it found its target busy: it was never run, and others wait for its turn."""
        last = run.is_of_deleted or self.queued(run.schedule_id) or self.is_sick(run.schedule_id)
        right = event.reason == "busy" and run.tries <= 1 and last and run.asked is None
        self.require(right, "every reason has its cause", f"{event}: {run}")
        run.ended[run.attempt] = "busy"
        self.seen["skipped: busy"] += 1
        self.end(run, "SKIPPED", event.reason)

    def _is_heard_of(self, run, event):
        """What was accepted ends as its target tells, as it was asked to, or at its deadline."""
        if run.heard_by is None:
            told = self.tx.is_call("report", run.run_id)
            self.require(not told, "a node tells of what it runs", f"{event}: {run}")
            return
        over = run.heard_by <= self.now
        by = {
            "run.failed": over and event.name == "run.failed" and event.reason == "timeout",
            "run.canceled": self._by_hand("cancel", run) or (over and run.asked is not None),
        }
        told = event.name != "run.canceled" and self._by_hand("report", run)
        right = told or by.get(event.name, False)
        self.require(right, "accepted runs end by report, cancel or deadline", f"{event}: {run}")
        kind = "told of" if told and not by.get(event.name) else event.name[4:]
        self.seen[f"accepted, and {kind}"] += 1

    def _may_have_to_pause(self, run):
        model = self.models[run.schedule_id]
        most = None if model.deleted else model.policy.pause_after
        sick = self.is_sick(run.schedule_id)
        if most is not None and model.failures >= most and not model.paused and not sick:
            self.tx.to_pause.add(run.schedule_id)

    def _cause(self, source, endings):
        """Have what follows an event take note of it."""
        for model in self.models.values():
            if not model.deleted and not self.is_sick(model.schedule_id):
                self.seen["an event joined another"] += model.take(source, endings, self.now)

    def _fence(self, run, fence, *, rises):
        right = fence > run.fence if rises else fence >= run.fence
        self.require(right, "fences never fall", f"{run} to {fence}")
        run.fence = fence


def _timing(schedule):
    return schedule.trigger, schedule.policy.jitter, schedule.policy.jitter_around


def check(world):
    """Return the breaches, what was reached, and how many ticks there were."""
    database = apsw.Connection(str(world.path))
    try:
        rows = database.execute(
            "SELECT event_id, at, body FROM events ORDER BY event_id"
        ).fetchall()
        checker = Checker(world)
        places = {event_id: n for n, (event_id, _, _) in enumerate(rows)}
        calls = {}
        for each in world.acknowledged:
            call, idle = calls.get(places.get(each.event_id), (None, []))
            calls[places.get(each.event_id)] = (each, idle) if each.wrote else (call, [*idle, each])
        checker.replay([(at, decode_events(body)) for _, at, body in rows], calls)
        checker.finish(database)
    finally:
        database.close()
    return checker.wrong, checker.seen, checker.ticks

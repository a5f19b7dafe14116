"""What is left in the end: rows, due rows, what targets have seen, and what users were told."""

from collections import Counter
from hashlib import sha256

from onbeat.core.runs.phase import Phase
from onbeat.core.schedule import from_definition
from onbeat.errors import OnbeatError, RunIsOver

LEASE = 5.0
ANNOUNCED = ("RUNNING", "REATTACHED", "CANCELING")
LOOKAHEAD, HOUR = 60_000, 3_600_000
SOON = 2_000  # milliseconds in which a node that has nothing else to do does what is due
LONGEST_ASKED = 7.0  # seconds until a run that was asked to end has, if its node is well


class Afterwards:
    """Compares what is left with what the events have told."""

    def __init__(self, life):
        self._life, self._world = life, life.world
        self.told = Counter()  # what events say that users have changed
        self._launched = {(each.run_id, each.attempt): each for each in self._world.launched}

    def said_of(self, run):
        """Return what the target of a run's present attempt said; None if it was not launched."""
        launched = self._launched.get((run.run_id, run.attempt))
        return None if launched is None else launched.outcome

    def check(self, database):
        self._rows(database)
        self._life.covering.compare(database)
        self._due_rows(database)
        self._witness()
        self._conditions()
        self._asked()
        self._acknowledged(database)
        self._nothing_is_stuck()

    # -- rows

    def _rows(self, database):
        """Every row is what its events say."""
        life = self._life
        rows = database.execute(
            "SELECT run_id, phase, reason, attempt, fence, finished_at, blocked_by, deferrals, "
            "revision FROM schedule_runs"
        )
        skips, told = dict(life.skips), dict(life.runs)
        for run_id, phase, reason, attempt, fence, finished_at, blocked_by, *more in rows:
            deferrals, revision = more
            status = Phase(phase).facts.status
            over = status not in ("ENQUEUED", "STARTED")
            right = (finished_at is not None) == over
            life.require(right, "legal state changes", f"row {run_id}")
            run, skip = told.pop(run_id, None), skips.pop(run_id, None)
            if run is None:
                behind = getattr(skip, "blocked_by", blocked_by)
                same = skip is not None and (status, reason) == ("SKIPPED", skip.reason)
                same = same and blocked_by == behind
                life.require(same, "every change has its event", f"run {run_id}: {skip}")
                continue
            state = "ENQUEUED" if run.state == "CLAIMED" else run.state
            same = (status, attempt) == (state, run.attempt) and fence >= run.fence
            same = same and (reason == run.reason or status == "ENQUEUED")
            same = same and (deferrals, revision) == (run.deferrals, run.revision)
            found = f"{run}: {status} {reason} {attempt} {deferrals} {revision}"
            life.require(same, "every change has its event", found)
        life.require(not told, "every event has its row", f"{list(told.values())[:2]}")
        life.require(not skips, "every event has its row", f"{list(skips.values())[:2]}")
        double = database.execute(
            "SELECT schedule_id, run_at FROM schedule_runs WHERE request_id = '' "
            "GROUP BY 1, 2 HAVING count(*) > 1"
        ).fetchall()
        life.require(not double, "one row per tick", f"{double}")

    def _due_rows(self, database):
        """Every live schedule has its due row, at its next tick, and nothing is overdue."""
        life, recent = self._life, self._world.stopped_at - SOON
        found = database.execute("SELECT schedule_id, due_at, run_at FROM due")
        rows = {name: (at, tick) for name, at, tick in found}
        for model in life.models.values():
            due = rows.pop(model.schedule_id, None)
            if life.is_sick(model.schedule_id):
                continue
            want = self._wanted(model)
            if model.paused_until is not None:
                told = f"{model.schedule_id} was paused until {model.paused_until}"
                life.require(want[0] >= recent, "a pause with until ends then", told)
            elif want and due and self._may_differ(model, due, want):
                continue
            told = f"{model.schedule_id}: {due}, not {want}"
            life.require(due == want, "one due row a live schedule", told)
            late = want is not None and max(want[0], model.taken_at) < recent
            life.require(not late, "liveness", f"{model.schedule_id} is due since {want}")
        life.require(not rows, "one due row a live schedule", f"{rows} are of nothing live")

    def _wanted(self, model):
        """Return the due row that a schedule should have: its next tick, or the end of its pause."""
        if model.deleted or (model.paused and model.paused_until is None):
            return None
        if model.paused:
            return model.paused_until, model.paused_until // 1000
        tick = model.next_tick()
        return None if tick is None else (model.due_at(tick), tick)

    def _may_differ(self, model, due, want):
        return self._is_postponed(model, due, want[1]) or self._was_moved(model, due, want)

    def _is_postponed(self, model, due, tick):
        """Whether a due row is of a missed tick that there was no room for yet."""
        stopped_at, (due_at, run_at) = self._world.stopped_at, due
        latest = stopped_at + HOUR * self._world.seen["clock set back"]  # it was, before that
        missed = model.due_at(tick) <= latest and model.policy.catchup != "none"
        soon = stopped_at - SOON < due_at <= latest + LOOKAHEAD + 1000
        return missed and soon and run_at == tick and due_at > model.due_at(tick)

    def _was_moved(self, model, due, want):
        """Whether an event has changed the gap that jitter is a part of: that is seen when due."""
        around = 2 * model.policy.jitter
        moved = model.happened and around and due[1] == want[1]
        return moved and abs(due[0] - want[0]) <= around and due[0] >= self._world.stopped_at - SOON

    # -- targets

    def _witness(self):
        """Targets were started once an attempt, announced before, in time, under one key."""
        life, starts = self._life, Counter()
        for each in self._world.launched:
            run = life.runs[each.run_id]
            starts[each.run_id, each.attempt] += 1
            text = (
                f"{each.schedule_id}:manual:{each.request_id}"
                if each.request_id
                else f"{each.schedule_id}:{run.run_at}"
            )
            same = each.key == sha256(text.encode()).hexdigest()
            life.require(same, "one key for every attempt", f"{each}")
            phase, *held = each.row
            announced = phase in ANNOUNCED and held == [each.attempt, each.fence]
            life.require(announced, "announced before it is launched", f"{each}")
            in_time = each.after_claim <= LEASE * 2 / 3 + 0.001
            life.require(in_time, "nothing starts past the lease", f"{each}")
            self._by_one_revision(run, each)
        for run in life.runs.values():
            for attempt in run.ended:
                n = starts.pop((run.run_id, attempt), 0)
                wanted = (0,) if attempt in run.unasked else (1,)
                if run.asked is not None and run.ended[attempt] == "canceled":
                    wanted = (0, 1)  # it may have been asked to end before it was launched
                life.require(n in wanted, "one launch per attempt", f"{run} #{attempt}: {n}")
            for attempt in run.lost:
                n = starts.pop((run.run_id, attempt), 0)
                life.require(n <= 1, "one launch per attempt", f"{run} #{attempt}: {n}")
                life.seen[f"lost, launched {n} times"] += 1
        open_ones = {(r.run_id, r.attempt) for r in life.runs.values() if r.state == "STARTED"}
        for key, n in starts.items():
            life.require(key in open_ones and n == 1, "one launch per attempt", f"{key}: {n}")

    def _by_one_revision(self, run, launched):
        """A target is started as the revision says that its run has."""
        life = self._life
        if life.is_sick(run.schedule_id) or launched.attempt not in run.by:
            return
        revision, text = run.by[launched.attempt]
        told = f"{launched} by revision {revision}: {text}"
        target = from_definition(run.schedule_id, text).target
        said = target.fields[target.kind]
        same = launched.revision == revision and len(launched.argv) == len(said)
        same = same and all(a == b or "{{" in b for a, b in zip(launched.argv, said, strict=False))
        life.require(same, "a run starts as its revision says", told)

    def _conditions(self):
        """A condition is asked of a run that was claimed, once a claim."""
        for each in getattr(self._world, "probes", []):
            phase, attempt, fence = each.row
            claimed = (phase, attempt) == ("CLAIMED", each.attempt - 1)
            claimed = fence > each.fence or (
                claimed and fence == each.fence
            )  # or it was ended since
            self._life.require(claimed, "claimed before its condition is asked", f"{each}")
        probes = Counter((each.run_id, each.fence) for each in getattr(self._world, "probes", []))
        twice = [key for key, n in probes.items() if n > 1]
        self._life.require(not twice, "a condition is asked once", f"{twice[:3]}")

    def _asked(self):
        """What was asked to end is told so by a node that is well, before long."""
        for at, run_id in getattr(self._world, "asks", []):
            for each in self._world.launched:
                if each.run_id != run_id or not each.was_well or each.over < at:
                    continue
                took = each.over - max(at, each.began)
                told = f"{each} lasted {took:.1f} s"
                self._life.require(took < LONGEST_ASKED, "an asked run ends", told)

    # -- users

    def _acknowledged(self, database):
        """What a user was answered is there."""
        life = self._life
        ids = {
            request: run_id
            for run_id, request in database.execute(
                "SELECT run_id, schedule_id || ':' || request_id FROM schedule_runs "
                "WHERE request_id <> ''"
            )
        }
        answered = Counter()
        for each in self._world.acknowledged:
            if isinstance(each.answer, OnbeatError):
                noted = isinstance(each.answer, RunIsOver) and each.answer.is_late
                right = noted or not each.wrote
                life.require(right, "acknowledged calls hold", f"refused, and done: {each}")
                continue
            if each.call == "enqueue":
                key = f"{each.schedule_id}:{each.answer.request_id}"
                same = ids.get(key) == each.answer.run_id
                life.require(same, "acknowledged calls hold", f"{each}")
            change = each.answer[0].change if each.call == "upsert" else each.answer
            if change is True or change in ("created", "changed"):
                answered[each.call, each.schedule_id] += 1
        life.require(answered == self.told, "acknowledged calls hold", f"{answered - self.told}")

    # -- liveness

    def _nothing_is_stuck(self):
        life = self._life
        for run in life.runs.values():
            model = life.models[run.schedule_id]
            held = model.paused and not run.is_requested
            if not (run.is_over or held or life.is_sick(run.schedule_id)):
                life.require(self._has_a_turn_to_come(run), "nothing is stuck", f"{run}")
            if model.schedule_id != "e" and model.used >= 2 and model.next_tick() is None:
                life.seen["ended by its limits"] += 1

    def _has_a_turn_to_come(self, run):
        """Whether an unfinished run is one that the end came too early for."""
        life, recent = self._life, self._world.stopped_at - SOON
        if run.heard_by is not None:
            return run.heard_by > recent
        if run.state != "ENQUEUED":
            return False
        life.waiting.lift(run)
        if run.deadline is not None and max(run.deadline, run.waiting_since) <= recent:
            return False
        if run.blocked_by is None:
            waits = run.free_since > recent or run.due_at > recent  # the clock was set back
            full = life.is_full(run.group) or life.free_since[run.group] > recent
            return waits or (run.group is not None and full and not run.detached)
        others = [r for r in life.unfinished(run.schedule_id) if not r.manual and r is not run]
        return any(r.blocked_by is None for r in others)

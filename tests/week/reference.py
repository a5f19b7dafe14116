"""The expected outcome of every tick of a script, computed from the script and the rules alone.

The rules are those of the design, section 4, each where it is applied. Nothing of the product is
imported. Time is whole UTC seconds and goes from one thing that happens to the next; of what happens
in the same second, ends come first, then deadlines, then what people do, then ticks, then starts.
"""

import heapq
from collections import defaultdict
from itertools import count

from tests.week.books import Answer, Run, Schedule, lives_of, timing
from tests.week.script import DAY, HOUR, seconds
from tests.week.ticks import ticks_between

ENDS, DEADLINES, ACTS, TICKS, STARTS = range(5)
GRACE = 60
NO_LIMIT = 1_000_000
NOT_RETRYABLE = {"signal", "launch_failed"}


class Reference:
    """A script, played by the rules: `answers` has the expected answers by schedule."""

    def __init__(self, script):
        self.script, self.now = script, script.first
        self.lives = lives_of(script)
        self.answers = defaultdict(dict)
        self.to_come = defaultdict(list)
        self._schedules, self._gone, self._groups = {}, [], {}
        self._is_open, self._is_up = True, True
        self._agenda, self._order = [], count()
        self._set_agenda()
        while self._agenda and self._agenda[0][0] <= script.last:
            self.now, _, _, _, do, given = heapq.heappop(self._agenda)
            do(*given)
        for schedule in (*self._gone, *self._schedules.values()):
            told = self.answers[schedule.name]
            told.update(answer for run in schedule.runs for answer in run.answers())
            told.update((tick, Answer("undecided")) for tick in schedule.undecided)

    def ticks(self, name):
        """Return all ticks of a schedule, and some future ones."""
        return sorted(self.answers[name]) + self.to_come[name]

    def life_at(self, name, instant):
        """Return the life of the schedule at an instant, or None."""
        found = [each for each in self.lives[name] if each.start < instant]
        found = [each for each in found if each.end is None or instant <= each.end]
        return found[0] if found else None

    def _set_agenda(self):
        last = self.script.last
        for act in self.script.all_acts():
            self._at(act.at, ACTS, getattr(self, f"_{act.verb}"), act)
        for name, lives in self.lives.items():
            for life in lives:
                for tick in ticks_between(life.fields, life.start, life.end or last):
                    self._at(tick, TICKS, self._tick, name, tick)
                if life.end is None:
                    self.to_come[name] = ticks_between(life.fields, last, last + 3 * DAY)

    def _at(self, when, rank, do, *given):
        """Schedule an action; simultaneous ticks and starts are ordered by name."""
        name = given[0].schedule.name if rank == STARTS else given[0] if rank == TICKS else ""
        heapq.heappush(self._agenda, (when, rank, name, next(self._order), do, given))

    # -- a tick is due

    def _tick(self, name, tick):
        schedule = self._schedules[name]
        just_ended = [run for run in schedule.runs if run.ended_at == self.now]
        assert all(run.reason == "timeout" for run in just_ended), "the script has a race"
        schedule.undecided.append(tick)
        self._plan(schedule)

    def _plan(self, schedule):
        """Decide due ticks, unless no node is up or the gate is closed."""
        if not (self._is_up and self._is_open) or schedule.is_paused or not schedule.undecided:
            return
        due, schedule.undecided = schedule.undecided, []
        if due[0] >= self.now - GRACE:
            for tick in due:  # on time
                self._decide(schedule, tick)
            return
        window = schedule.length("catchup_window") or DAY
        too_old = [tick for tick in due if tick < self.now - window]
        self._skip_all(schedule, too_old, "missed")
        due = due[len(too_old) :]
        match schedule.fields.get("catchup", "once"):
            case "once":  # the latest undecided tick runs, the others are coalesced
                self._decide(schedule, due[-1], stands_for=tuple(due[:-1]))
            case "none":
                late = [tick for tick in due if tick < self.now - GRACE]
                self._skip_all(schedule, late, "missed")
                for tick in due[len(late) :]:
                    self._decide(schedule, tick)
            case "all" | "spread":  # no script depends on how they are spread
                for tick in due:
                    self._decide(schedule, tick)

    def _decide(self, schedule, tick, stands_for=()):
        """Decide one tick, by the policy that holds now."""
        run = Run(schedule, tick, self.now, stands_for, due_at=self.now)
        fields, others = schedule.fields, schedule.in_flight()
        waiting, behind = schedule.waiting("retry", "busy"), schedule.waiting("queue")
        schedule.runs.append(run)
        if not fields.get("enabled", True):
            self._end(run, "skipped", "disabled")
            return
        if not fields["run"].get("enabled", True):
            self._end(run, "skipped", "disabled_target")
            return
        # A run awaiting a retry is not in flight: a new tick ends it first.
        for other in waiting:
            self._end(other, other.unstarted_status, "superseded")
        if "rate" in fields and self._is_over_rate(schedule):
            self._end(run, "skipped", "rate")
            return
        match fields.get("overlap", "skip"):
            case "skip" if others:
                self._block(run, others)
            case "allow" if len(others) >= fields.get("max_active", NO_LIMIT):
                self._block(run, others)
            case "queue" if len(behind) >= fields.get("queue_limit", 100):
                self._end(run, "skipped", "queue_full")
            case "queue" if others or behind:
                self._wait(run, "queue")
            case "replace" if others:  # these targets end immediately when cancelled
                self._wait(run, "start")
                for other in others:
                    self._end(other, "canceled", "superseded")
            case _:
                self._wait(run, "start")

    def _is_over_rate(self, schedule):
        """Return whether the maximum number of starts in 24 hours is reached."""
        most = int(schedule.fields["rate"].removesuffix("/day"))
        starts = [run for run in schedule.runs if run.attempts and run.decided_at > self.now - DAY]
        return len(starts) >= most

    def _block(self, run, others):
        run.blockers = tuple(others)
        run.is_next = not any(other.has_blocked for other in others)
        for other in others:
            other.has_blocked = True
        self._end(run, "skipped", "overlap")

    def _skip_all(self, schedule, ticks, reason):
        """Skip ticks, recorded in one row."""
        for tick in ticks:
            run = Run(schedule, tick, self.now, state="skipped", reason=reason, row=ticks[-1])
            schedule.runs.append(run)

    # -- a run waits, starts and ends

    def _wait(self, run, waits_for, due_at=None):
        run.state, run.waits_for, run.due_at = "waiting", waits_for, due_at or run.due_at
        length = run.length("start_deadline")
        if length is not None and not run.attempts:
            self._at(self.now + length, DEADLINES, self._give_up, run)
        if waits_for != "queue":
            self._at(run.due_at, STARTS, self._start_run, run)

    def _give_up(self, run):
        """End a run that waited too long in its queue, or for a place in its group."""
        if run.state == "waiting" and not run.attempts:
            self._end(run, "skipped", "deadline" if run.waits_for == "queue" else "group_full")

    def _start_run(self, run):
        """Start a due run, if it may start."""
        schedule = run.schedule
        is_held = schedule.is_paused and not run.is_backfill
        if run.state != "waiting" or is_held or not (self._is_up and self._is_open):
            return
        if run.start_by is not None and self.now >= run.start_by and not run.attempts:
            self._end(run, "skipped", "edited")
            return
        if not self._has_place(run.fields.get("group")):
            return
        if "when" in run.fields and not self.script.holds(schedule.name, run.tick):
            self._end(run, "skipped", "condition")
            return
        run.state, run.attempts = "running", run.attempts + 1
        does = self.script.does(schedule.name, run.tick, run.attempts)
        timeout = run.length("timeout") or NO_LIMIT
        ends = does.ends if does.takes <= timeout else "timeout"
        end = self.now + min(does.takes, timeout)
        self._at(end, ENDS, self._finish, run, run.attempts, ends, does)

    def _has_place(self, group):
        started = [run for run in self._all("running") if run.fields.get("group") == group]
        return group is None or len(started) < self._groups[group]

    def _finish(self, run, attempt, ends, does):
        """Record the outcome of an attempt, and its consequences."""
        if run.state != "running" or run.attempts != attempt:
            return  # it has already ended
        delays, tried = run.fields.get("retry", []), run.attempts - run.deferrals
        if ends == "accepts":
            self._go_on_elsewhere(run, attempt, does)
        elif ends == "busy":
            run.deferrals += 1
            self._wait(run, "busy", self.now + does.again)
        elif ends == "ok":
            self._end(run, "ran")
        elif ends not in NOT_RETRYABLE and tried <= len(delays):
            self._wait(run, "retry", self.now + seconds(delays[tried - 1]))
        else:
            self._end(run, "failed", ends)

    def _go_on_elsewhere(self, run, attempt, does):
        """Schedule the report of a target: within the timeout of the schedule, or within an hour."""
        latest = self.now + (run.schedule.length("timeout") or HOUR)
        if does.tells is not None and self.now + does.tells < latest:
            self._at(self.now + does.tells, ENDS, self._finish, run, attempt, "ok", does)
        else:
            self._at(latest, ENDS, self._finish, run, attempt, "timeout", does)

    def _end(self, run, state, reason=None):
        """Finish a run; runs waiting for its end may start."""
        assert not run.is_over, "it ends once"
        run.state, run.reason, run.ended_at = state, reason, self.now
        schedule = run.schedule
        if state in ("ran", "failed"):
            schedule.failures = 0 if state == "ran" else schedule.failures + 1
            limit = schedule.fields.get("pause_after", NO_LIMIT)
            schedule.is_paused = schedule.is_paused or schedule.failures >= limit
        queued = schedule.waiting("queue")
        if queued and not schedule.in_flight():
            queued[0].waits_for = "start"
            self._at(self.now, STARTS, self._start_run, queued[0])
        for other in self._schedules.values():
            if "group" in other.fields:
                for waiting in other.waiting("start"):
                    self._at(self.now, STARTS, self._start_run, waiting)

    # -- acts of users

    def _group(self, act):
        self._groups[act.name] = act.given["places"]

    def _define(self, act):
        known = self._schedules.get(act.name)
        if known is None:
            self._schedules[act.name] = Schedule(act.name, act.given)
            return
        if timing(known.fields) != timing(act.given):
            self._decide_owed(known)
        known.fields = act.given

    def _decide_owed(self, schedule):
        """Decide overdue ticks by the old definition at an edit of the timing, which starts no past tick."""
        due, schedule.undecided = schedule.undecided, []
        if schedule.is_paused or not self._is_open:
            self._skip_all(schedule, due, "paused" if schedule.is_paused else "gate_off")
            return
        late = [tick for tick in due if tick < self.now - GRACE]
        self._skip_all(schedule, late, "edited")
        for tick in due[len(late) :]:
            self._decide(schedule, tick)
            if not self._is_up:  # it starts within its grace, or not at all
                schedule.runs[-1].start_by = tick + GRACE

    def _delete(self, act):
        schedule = self._schedules.pop(act.name)
        self._gone.append(schedule)
        for run in schedule.waiting():
            self._end(run, "canceled", "canceled")

    def _pause(self, act):
        schedule = self._schedules[act.name]
        schedule.is_paused = True
        if "until" in act.given:
            schedule.paused_until = self.script.instant(act.given["until"])
            self._at(schedule.paused_until, ACTS, self._is_over, schedule)

    def _is_over(self, schedule):
        if self._is_up:
            self._go_on(schedule, schedule.paused_until)

    def _resume(self, act):
        schedule = self._schedules[act.name]
        asked_for = []
        if act.given.get("catchup"):  # one row runs for all
            asked_for, schedule.undecided = schedule.undecided, []
        self._go_on(schedule, self.now)
        if asked_for:
            self._decide(schedule, asked_for[-1], stands_for=tuple(asked_for[:-1]))

    def _go_on(self, schedule, since):
        """Resume a schedule: ticks planned during the pause are skipped."""
        schedule.is_paused, schedule.paused_until, schedule.failures = False, None, 0
        later = [tick for tick in schedule.undecided if tick > since]
        schedule.undecided = [tick for tick in schedule.undecided if tick <= since]
        self._leave_out(schedule, "paused")
        schedule.undecided = later
        self._plan(schedule)

    def _gate(self, act):
        self._is_open = act.given["is_open"]
        for schedule in self._schedules.values():
            if self._is_open and not schedule.is_paused:
                self._leave_out(schedule, "gate_off")

    def _leave_out(self, schedule, reason):
        """Skip ticks planned in the meantime, and waiting runs that are long overdue."""
        due, schedule.undecided = schedule.undecided, []
        self._skip_all(schedule, due, reason)
        for run in schedule.waiting():
            if run.due_at < self.now - GRACE:
                self._end(run, run.unstarted_status, reason)
            elif run.waits_for != "queue":
                self._at(max(self.now, run.due_at), STARTS, self._start_run, run)

    def _cancel(self, act):
        tick = self.script.instant(act.given["tick"])
        (run,) = [run for run in self._schedules[act.name].runs if run.tick == tick]
        self._end(run, "canceled", "canceled")

    def _start(self, act):
        """A manual run is independent of the ticks."""

    def _backfill(self, act):
        schedule = self._schedules[act.name]
        first, last = (self.script.instant(act.given[name]) for name in ("first", "last"))
        for run in [run for run in schedule.runs if first <= run.tick <= last]:
            if run.state == "skipped":
                again = Run(schedule, run.tick, self.now, due_at=self.now, is_backfill=True)
                schedule.runs[schedule.runs.index(run)] = again
                self._wait(again, "start")

    def _stop(self, act):
        """Stop gracefully: started runs are ended."""
        self._is_up = False
        for run in self._all("running"):
            self._end(run, "canceled", "canceled")

    def _crash(self, act):
        self._is_up = False
        for run in self._all("running"):
            run.state = "silent"

    def _open(self, act):
        """Start again: first decide what a dead node left, then what is due."""
        self._is_up = True
        for run in self._all("silent"):
            if run.fields.get("on_lost") == "retry":
                self._wait(run, "start", self.now)
            else:
                self._end(run, "failed", "lost")
        for schedule in self._schedules.values():
            if schedule.paused_until is not None and schedule.paused_until <= self.now:
                self._go_on(schedule, schedule.paused_until)
            for run in schedule.waiting("start", "retry", "busy"):
                self._at(max(self.now, run.due_at), STARTS, self._start_run, run)
            self._plan(schedule)

    def _all(self, state):
        return [run for s in self._schedules.values() for run in s.runs if run.state == state]

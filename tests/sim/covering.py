"""Ticks and the rows that cover them: each tick once, by its own row or by a range."""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice

from onbeat.core.triggers.past import NO_PAST
from tests.sim.model import RunModel

MOST_WAITING = 100


@dataclass
class Row:
    """What a row stands for."""

    run_id: int
    run_at: int
    first: int | None
    count: int
    ticks: set[int]
    is_blurred: bool = False  # by ticks of another definition: nobody can count them any more

    @property
    def is_range(self):
        return self.first is not None


@dataclass
class Backfill:
    """What one transaction does to the rows of a schedule."""

    revived: set[int] = field(default_factory=set)  # runs
    added: set[int] = field(default_factory=set)  # ticks
    shortened: dict[int, object] = field(default_factory=dict)  # events, by run
    made: dict[int, object] = field(default_factory=dict)


class Covering:
    """Keeps which row covers which tick, and what backfills do about it."""

    def __init__(self, life):
        self._life = life
        self.rows = defaultdict(dict)  # by schedule and run
        self._under_way: dict[str, Backfill] = {}

    def decide(self, event, ticks):
        """A row was made for ticks that were just decided."""
        rows = self.rows[event.schedule_id]
        own = {row.run_at for row in rows.values()} if len(ticks) > 1 else set()
        row = Row(
            event.run_id, event.run_at, event.first_run_at, event.tick_count, set(ticks) - own
        )
        # It may count events as well, and ticks that have rows of their own.
        row.is_blurred = row.is_range and row.count != len(row.ticks)
        rows[event.run_id] = row

    def next_tick(self, model):
        """Return the next undecided tick that has no row yet: one that has it keeps it."""
        tick = model.next_tick()
        while tick is not None and self._own(model.schedule_id, tick) is not None:
            tick = model.schedule.trigger.next_after(tick, model.past)
        return tick

    def last_own(self, model, until):
        """Return the last undecided tick, not after `until`, that has a row of its own already; or 0."""
        own = [row.run_at for row in self.rows[model.schedule_id].values() if not row.is_range]
        undecided = [at for at in own if model.position < at <= until]
        trigger = model.schedule.trigger
        return max((at for at in undecided if trigger.has(at, model.past)), default=0)

    def has_later(self, event):
        """Whether a later tick has a row that is not of this transaction."""
        rows = self.rows[event.schedule_id].values()
        new = {each.run_id for each in self._life.tx.events if hasattr(each, "run_id")}
        return any(row.run_at > event.run_at and row.run_id not in new for row in rows)

    # -- backfills

    def revive(self, event):
        """The row that a skipped tick has is enqueued again."""
        life, row = self._life, self.rows[event.schedule_id].get(event.run_id)
        right = row is not None and row.run_at == event.run_at and self._is_skipped(row)
        sick = life.is_sick(event.schedule_id)
        life.require(right or sick, "backfill refuses what ran", f"{event}: {row}")
        self._now(event).revived.add(event.run_id)
        run = life.runs.get(event.run_id) or _backfilled(event, life.now)
        run.state, run.reason, run.blocked_by = "ENQUEUED", None, None
        run.deferrals = run.attempt  # it was never run
        self._wait(run, event)
        life.seen["backfilled: a row enqueued again"] += 1

    def add(self, event):
        """A tick that had no row of its own gets one."""
        life, model = self._life, self._life.models[event.schedule_id]
        own = self._own(event.schedule_id, event.run_at)
        shared = self._range(event.schedule_id, event.run_at)
        if not life.is_sick(event.schedule_id):
            life.require(own is None, "backfill doubles no row", f"{event}: {own}")
            free = shared is None or self._is_skipped(shared)
            life.require(free, "backfill refuses what ran", f"{event}: {shared}")
            decided = event.run_at <= model.position
            told = f"{event} after {model.position}"
            life.require(decided, "backfill refuses what is undecided", told)
        self._now(event).added.add(event.run_at)
        row = Row(event.run_id, event.run_at, None, 1, {event.run_at})
        self.rows[event.schedule_id][event.run_id] = row
        self._wait(_backfilled(event, life.now), event)
        life.seen["backfilled: a row added"] += 1
        life.seen["backfilled: from a range"] += shared is not None

    def shorten(self, event):
        """A range is told anew, or has a new row for what is left of it."""
        under_way = self._now(event)
        (under_way.made if event.reason else under_way.shortened)[event.run_id] = event
        self._life.seen["a range shortened"] += not event.reason
        self._life.seen["a row made for the rest of a range"] += bool(event.reason)

    def _now(self, event):
        """Return what this transaction does to the rows of a schedule; in the end it has to fit."""
        if event.schedule_id not in self._under_way:
            self._under_way[event.schedule_id] = Backfill()
            self._life.tx.in_the_end.append(lambda: self._settle(event.schedule_id))
        return self._under_way[event.schedule_id]

    def _settle(self, schedule_id):
        """Every tick of a range that was touched is covered again, by what was told of it."""
        life, done = self._life, self._under_way.pop(schedule_id)
        if life.is_sick(schedule_id):
            return
        rows = self.rows[schedule_id]
        for row in list(rows.values()):
            taken = set()
            if row.is_range:
                taken = {tick for tick in done.added if row.first <= tick < row.run_at}
            if row.run_id in done.revived:
                taken.add(row.run_at)
            if taken:
                self._cut(row, taken, done, rows)
        told = f"{done.shortened} {done.made}"
        life.require(not (done.shortened or done.made), "a tick is covered exactly once", told)

    def _cut(self, row, taken, done, rows):
        life = self._life
        row.is_blurred |= not taken <= row.ticks
        left = row.ticks - taken
        if row.run_id not in done.revived:
            event = done.shortened.pop(row.run_id, None)
            told = f"{row} without {sorted(taken)}: {event}"
            life.require(event is not None, "a tick is covered exactly once", told)
            if event is not None:
                row.first, row.count, row.ticks = event.first_run_at, event.tick_count, left
                self._fits(row)
            return
        made = [
            e for e in done.made.values() if row.is_range and row.first <= e.run_at < row.run_at
        ]
        told = f"{sorted(left)[:5]} of {row}: {made}"
        right = row.is_blurred or len(made) == bool(left)
        life.require(right, "a tick is covered exactly once", told)
        if made:
            event = made[0]
            del done.made[event.run_id]
            rest = Row(event.run_id, event.run_at, event.first_run_at, event.tick_count, left)
            rest.is_blurred = row.is_blurred
            rows[event.run_id] = rest
            self._fits(rest)
        row.first, row.count, row.ticks = None, 1, {row.run_at}
        row.is_blurred = False

    def _fits(self, row):
        first = row.first if row.is_range else row.run_at
        within = all(first <= tick <= row.run_at for tick in row.ticks)
        # One that was made for what nobody can list ends at no tick, and may lose all it stands for.
        right = within and row.count == max(len(row.ticks), 1)
        told = f"{row}"
        self._life.require(right or row.is_blurred, "a tick is covered exactly once", told)

    def _wait(self, run, event):
        life, policy = self._life, self._life.models[event.schedule_id].policy
        run.due_at, run.enqueued_at, run.free_since = event.due_at, life.now, life.now
        run.backfill, run.alone, run.deadline = True, policy.overlap != "allow", None
        run.take_revision(life.models[event.schedule_id])
        run.group, run.priority, run.asked = policy.group, policy.priority, None
        life.add(run)

    def _own(self, schedule_id, tick):
        rows = self.rows[schedule_id].values()
        return next((row for row in rows if row.run_at == tick), None)

    def _range(self, schedule_id, tick):
        rows = self.rows[schedule_id].values()
        found = [row for row in rows if row.is_range and row.first <= tick < row.run_at]
        return min(found, key=lambda row: row.run_at, default=None)

    def _is_skipped(self, row):
        run = self._life.runs.get(row.run_id)
        return run is None or run.state == "SKIPPED"

    # -- what a backfill should do

    def expect(self, call):
        """Remember what a backfill is to do, as far as can be known from the rows so far."""
        model = self._life.models[call.schedule_id]
        waiting = sum(run.backfill for run in self._life.unfinished(call.schedule_id))
        room = min(call.named["limit"], MOST_WAITING - waiting)
        first, last = call.named["first"], call.named["last"]
        ticks = model.schedule.trigger.iterate(first, last + 1, NO_PAST)
        wanted, refused = set(), 0
        for tick in islice(ticks, max(room, 0)):
            covered_by = self._own(call.schedule_id, tick) or self._range(call.schedule_id, tick)
            free = covered_by is None or self._is_skipped(covered_by)
            if tick <= model.position and free:
                wanted.add(tick)
            else:
                refused += 1
        return wanted, refused

    def compare(self, database):
        """Every tick's row is there, and stands for what it should."""
        life = self._life
        told = {run_id: row for rows in self.rows.values() for run_id, row in rows.items()}
        for run_id, schedule_id, run_at, first, count in database.execute(
            "SELECT run_id, schedule_id, run_at, first_run_at, tick_count FROM schedule_runs "
            "WHERE request_id = ''"
        ):
            row = told.pop(run_id, None)
            if not life.is_sick(schedule_id):
                same = row is not None and (row.run_at, row.first, row.count) == (
                    run_at,
                    first,
                    count,
                )
                found = f"run {run_id} of {schedule_id}: {run_at} {first} {count}, not {row}"
                life.require(same, "a tick is covered exactly once", found)
        left = list(told.values())
        life.require(not left, "every event has its row", f"{left[:2]}")
        for schedule_id, rows in self.rows.items():
            clear = [row for row in rows.values() if not row.is_blurred]
            ticks = [tick for row in clear for tick in row.ticks]
            twice = len(ticks) - len(set(ticks))
            fine = not twice or life.is_sick(schedule_id)
            life.require(fine, "a tick is covered exactly once", f"{schedule_id}: {twice} twice")


def _backfilled(event, now):
    return RunModel(
        event.run_id, event.schedule_id, event.run_at, event.due_at,
        manual=False, enqueued_at=now, alone=True,
    )  # fmt: skip

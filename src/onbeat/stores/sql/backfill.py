"""Backfills: past ticks run after all; their skipped rows are enqueued, missing rows are added."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice

from onbeat.core.decide.backfill import Add, Choice, CoveringRow, Refuse, Revive, decide_backfill
from onbeat.core.runs.phase import Phase
from onbeat.core.runs.run import ReasonDetail, run_key
from onbeat.core.schedule import from_definition
from onbeat.core.triggers.base import TickRange
from onbeat.core.triggers.past import NO_PAST
from onbeat.errors import InvalidSchedule
from onbeat.events import RangeShortened, RunBackfilled, RunEnqueued
from onbeat.ports.rows import BackfillStep
from onbeat.stores.sql.rows import detail_text
from onbeat.stores.sql.schedule_rows import StoredSchedule, existing, hold_schedule
from onbeat.stores.sql.transaction import Transaction

MOST_WAITING = 100  # unfinished backfill runs of one schedule

COVERING = """
SELECT run_id, run_at, first_run_at, tick_count, phase, reason, revision
  FROM schedule_runs
 WHERE schedule_id = ?1 AND request_id = '' AND run_at >= ?2
   AND coalesce(first_run_at, run_at) <= ?3
 ORDER BY run_at
"""

WAITING = """
SELECT count(*) FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND schedule_id = ?1 AND triggered_by = 'backfill'
"""

REVIVE = """
UPDATE schedule_runs
   SET phase = 'BACKFILL', reason = NULL, blocked_by = NULL, finished_at = NULL, error = NULL,
       triggered_by = 'backfill', due_at = ?2, updated_at = ?2, tick_count = 1,
       first_run_at = NULL, iteration = ?3, revision = ?4, needs = ?5, inputs = ?6, priority = ?7,
       grp = ?8, deadline_at = NULL, rendered = NULL, idempotency_key = ?9, fence = fence + 1,
       deferrals = attempt, detail = ?10, reattachable = ?11
 WHERE run_id = ?1 AND phase = 'SKIPPED'
"""

ADD = """
INSERT INTO schedule_runs (run_id, schedule_id, run_at, request_id, due_at, phase, triggered_by,
       iteration, revision, needs, inputs, priority, grp, idempotency_key, detail, reattachable,
       created_at, updated_at)
VALUES (?1, ?2, ?3, '', ?4, 'BACKFILL', 'backfill', ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?4,
       ?4)
"""

SHORTEN = """
UPDATE schedule_runs SET first_run_at = ?2, tick_count = ?3, updated_at = ?4 WHERE run_id = ?1
"""

OWN_ROW = "SELECT 1 FROM schedule_runs WHERE run_at = ?1 AND schedule_id = ?2 AND request_id = ''"

KEEP_REST = """
INSERT INTO schedule_runs (run_id, schedule_id, run_at, request_id, due_at, phase, reason,
       triggered_by, needs, iteration, revision, tick_count, first_run_at, created_at, updated_at,
       finished_at, detail)
SELECT ?2, schedule_id, ?3, '', ?3 * 1000, phase, reason, triggered_by, needs, iteration, revision,
       ?4, ?5, created_at, ?6, finished_at, detail
  FROM schedule_runs WHERE run_id = ?1
    ON CONFLICT (run_at, schedule_id, request_id) DO NOTHING
"""


def preview(
    tx: Transaction, schedule_id: str, *, first: int, last: int, limit: int
) -> list[Choice]:
    """Return what a backfill would do. The contract is `Store.preview_backfill`."""
    return _Backfill(tx, existing(tx, schedule_id)).choices(first, last, limit)


def backfill(
    tx: Transaction, schedule_id: str, *, first: int, last: int, limit: int
) -> BackfillStep:
    """Enqueue past ticks. The contract is `Store.backfill`."""
    work = _Backfill(tx, hold_schedule(tx, schedule_id))
    waiting: int = tx.value(WAITING, (schedule_id,))
    room = min(limit, MOST_WAITING - waiting)
    if room <= 0:
        return BackfillStep(0, 0, first, waiting)
    choices = work.choices(first, last, room)
    wanted = [choice for choice in choices if not isinstance(choice, Refuse)]
    work.shrink_ranges(wanted)
    work.enqueue(wanted)
    following = choices[-1].run_at + 1 if len(choices) == room else None
    return BackfillStep(len(wanted), len(choices) - len(wanted), following, waiting + len(wanted))


class _Backfill:
    """A backfill of one schedule."""

    def __init__(self, tx: Transaction, stored: StoredSchedule) -> None:
        self._tx, self._stored, self._id = tx, stored, stored.schedule_id
        self._schedule = from_definition(stored.schedule_id, stored.text)
        if not self._schedule.target.is_enabled:
            raise InvalidSchedule("run.enabled", "the target is disabled", hint="enabled: true")

    def choices(self, first: int, last: int, limit: int) -> list[Choice]:
        """Decide about up to `limit` ticks from `first` to `last`, both included."""
        ticks = list(islice(self._between(first, last + 1), limit))
        if not ticks:
            return []
        found = self._tx.all(COVERING, (self._id, ticks[0], ticks[-1]))
        rows = [
            CoveringRow(run_id, run_at, first_run_at, count, Phase(phase).facts.status, *rest)
            for run_id, run_at, first_run_at, count, phase, *rest in found
        ]
        history_from = self._tx.value("SELECT value FROM meta WHERE name = 'history_from'")
        state = self._stored.state
        unknown = state.created_at // 1000, int(history_from or 0) // 1000
        return decide_backfill(ticks, rows, until=state.decided_until, unknown=unknown)

    def enqueue(self, wanted: Sequence[Add | Revive]) -> None:
        """Enqueue ticks, in their rows or in new ones."""
        tx, state, target = self._tx, self._stored.state, self._schedule.target
        policy, new = self._schedule.policy, sum(isinstance(choice, Add) for choice in wanted)
        ids = iter(tx.take_run_ids(new) if new else ())
        for iteration, choice in enumerate(wanted, state.iteration + 1):
            key = run_key(self._id, choice.run_at) if target.may_report else None
            columns = (iteration, state.revision, self._schedule.needs, target.inputs_text)
            by = detail_text(ReasonDetail(by=tx.by))
            waits = (policy.priority, policy.group, key, by, int(target.reattachable))
            if isinstance(choice, Revive):
                tx.run(REVIVE, (choice.row.run_id, tx.now, *columns, *waits))
                tx.emit(RunBackfilled(self._id, choice.row.run_id, choice.run_at, tx.now))
            else:
                run_id = next(ids)
                tx.run(ADD, (run_id, self._id, choice.run_at, tx.now, *columns, *waits))
                tx.emit(RunEnqueued(self._id, run_id, choice.run_at, tx.now, "backfill"))
        tx.run(
            "UPDATE schedule_state SET iteration = iteration + ?1 WHERE schedule_id = ?2",
            (len(wanted), self._id),
        )

    def shrink_ranges(self, wanted: Sequence[Add | Revive]) -> None:
        """Remove the wanted ticks from the ranges of skipped ticks that cover them."""
        taken: defaultdict[int, list[int]] = defaultdict(list)
        ranges: dict[int, CoveringRow] = {}
        for choice in wanted:
            row = choice.row if isinstance(choice, Revive) else choice.shared
            if row is not None and row.first_run_at is not None:
                ranges[row.run_id] = row
                taken[row.run_id].append(choice.run_at)
        for run_id, row in ranges.items():
            own = taken[run_id]
            left = max(row.tick_count - len(own), 0)
            if row.run_at not in own:  # the range still ends with its own tick
                self._shorten(row, own, max(left, 1))
            elif left:
                self._keep_rest(row, own, left)

    def _shorten(self, row: CoveringRow, own: Sequence[int], count: int) -> None:
        begins: int | None = row.first
        if self._can_list(row):
            if begins in own:
                begins = self._between(own[-1] + 1, row.run_at + 1).first
            begins = begins if count > 1 else None
        self._tx.run(SHORTEN, (row.run_id, begins, count, self._tx.now))
        self._tx.emit(RangeShortened(self._id, row.run_id, row.run_at, begins, count))

    def _keep_rest(self, row: CoveringRow, own: Sequence[int], count: int) -> None:
        """Add a row for the rest of a range whose last tick is to run."""
        listed = list(self._between(row.first, own[0])) if self._can_list(row) else []
        ends = self._last_without_row(listed or range(row.first, row.run_at), own)
        if ends is None:
            return
        begins = row.first if count > 1 or not listed else None
        (run_id,) = self._tx.take_run_ids(1)
        self._tx.run(KEEP_REST, (row.run_id, run_id, ends, count, begins, self._tx.now))
        reason = row.reason or ""
        self._tx.emit(RangeShortened(self._id, run_id, ends, begins, count, reason))

    def _can_list(self, row: CoveringRow) -> bool:
        """Return whether the ticks of a range are those of the current definition.

        If not, which ticks they were is unknown: they stay within the bounds of the range.
        """
        same = row.revision == self._stored.state.revision
        return same and not self._schedule.trigger.needs_past

    def _last_without_row(self, instants: Sequence[int], own: Sequence[int]) -> int | None:
        for instant in reversed(instants):
            if instant not in own and self._tx.one(OWN_ROW, (instant, self._id)) is None:
                return instant
        return None

    def _between(self, first: int, last: int) -> TickRange:
        return self._schedule.trigger.between(first, last, NO_PAST)

"""Carry out decisions: write their run rows, and move the position of each schedule.

The invariant everything rests on: a live schedule's due row is the first tick later than its
`decided_until`, and every tick up to that has a run row. Both move in the same transaction.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec
from msgspec.structs import replace

from onbeat.core.runs.apply import first_phase
from onbeat.core.runs.decisions import Decision, Launch, Queue, Skip, Tick
from onbeat.core.runs.run import Run, TriggeredBy, run_key
from onbeat.core.schedule import Schedule
from onbeat.events import MOST_OVERLAPS, RunEnqueued, RunSkipped, RunStarted
from onbeat.ports.store import Attempt, Node
from onbeat.stores.sql.cancel import carry_out_on_run
from onbeat.stores.sql.rows import detail_text, earlier, late_by
from onbeat.stores.sql.taken_rows import State
from onbeat.stores.sql.transaction import Row, Transaction, Value, as_json


class Decided(msgspec.Struct, gc=False):
    """The decisions about one schedule that are to be carried out."""

    schedule: Schedule
    state: State
    decisions: Sequence[Decision]
    unfinished: Sequence[Run] = ()
    spread_until: int = 0


class CarriedOut(msgspec.Struct):
    """The result of carrying out decisions."""

    attempts: list[Attempt] = []  # announced for the node
    enqueued: int = 0


START_RUNS = """
INSERT INTO schedule_runs (created_at, updated_at, started_at, leased_by, request_id, phase,
       attempt, fence, run_id, schedule_id, run_at, due_at, triggered_by, needs, iteration,
       revision, tick_count, first_run_at, inputs)
VALUES {(?1,?1,?1,?2,'','RUNNING',1,1,?int,?text,?int,?int,?text,?text,?int,?int,?int,?int,?text)}
    ON CONFLICT (run_at, schedule_id, request_id) DO NOTHING
"""

INSERT_RUNS = """
INSERT INTO schedule_runs (created_at, updated_at, request_id, phase, reason, blocked_by,
       finished_at, detail, priority, grp, deadline_at, idempotency_key, reattachable, run_id,
       schedule_id, run_at, due_at, triggered_by, needs, iteration, revision, tick_count,
       first_run_at, inputs)
VALUES {(?1,?1,'',?text,?text,?int,?int,?text,?int,?text,?int,?text,?int,
         ?int,?text,?int,?int,?text,?text,?int,?int,?int,?int,?text)}
    ON CONFLICT (run_at, schedule_id, request_id) DO NOTHING
"""

MOVE_STATES = """
UPDATE schedule_state
   SET decided_until = CASE WHEN decided_until < ?1 THEN ?1 ELSE decided_until END,
       decided_run_at = CASE WHEN decided_run_at < ?1 THEN ?1 ELSE decided_run_at END,
       iteration = iteration + ?2, runs_used = runs_used + ?2
 WHERE schedule_id IN ({?text})
"""

SPREAD = """
  WITH given (until, schedule_id) AS (VALUES {(?int,?text)})
UPDATE schedule_state AS t SET spread_until = given.until
  FROM given
 WHERE t.schedule_id = given.schedule_id
"""

RATED = """
  WITH given (rated, schedule_id) AS (VALUES {(?text,?text)})
UPDATE schedule_state AS t SET rated = given.rated
  FROM given
 WHERE t.schedule_id = given.schedule_id
"""

# How many earlier ticks were skipped for the same run, up to MOST_OVERLAPS.
OVERLAPS = f"""
  WITH given (run_id, blocked_by, schedule_id) AS (VALUES {{(?int,?int,?text)}})
SELECT g.run_id, (
       SELECT count(*) FROM (
              SELECT 1 FROM schedule_runs r
               WHERE r.schedule_id = g.schedule_id AND r.run_id > g.blocked_by
                 AND r.run_id < g.run_id AND r.phase = 'SKIPPED' AND r.reason = 'overlap'
               LIMIT {MOST_OVERLAPS}) AS q)
  FROM given g
"""

NOTE_MISSES = """
  WITH given (at, reason, schedule_id) AS (VALUES {(?int,?text,?text)})
UPDATE schedule_state AS t
   SET last_missed_at = given.at, last_miss_reason = given.reason
  FROM given
 WHERE t.schedule_id = given.schedule_id
"""


def carry_out(
    tx: Transaction, decided: Sequence[Decided], node: Node | None = None, slots: int = 0
) -> CarriedOut:
    """Write the decided runs, and move the position of each schedule.

    A tick that already has a row keeps it. Up to `slots` runs are announced for `node`.
    """
    writing = DecisionWriter(tx, node, slots)
    ticks = sum(
        isinstance(decision, (Launch, Queue, Skip))
        for each in decided
        for decision in each.decisions
    )
    writing.ids = tx.take_run_ids(ticks) if ticks else ()
    taken = iter(writing.ids)
    for each in decided:
        writing.add(each, taken)
    return writing.finish()


class DecisionWriter:
    """The rows of a batch of decisions, written together by `finish`."""

    def __init__(self, tx: Transaction, node: Node | None, slots: int) -> None:
        self._tx, self._node, self._slots = tx, node, slots
        self.ids: Sequence[int] = ()  # of the runs to write
        self._started: list[Value] = []  # values of START_RUNS, row after row
        self._others: list[Value] = []  # values of INSERT_RUNS, row after row
        # Schedules by the position that they move to and the runs they add: many move alike.
        self._moves: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        self._misses: dict[str, Row] = {}  # by schedule
        self._spread: list[Value] = []  # values of SPREAD, where that changed
        self._rated: list[Value] = []  # values of RATED
        self._events: list[RunEnqueued | RunSkipped | RunStarted] = []  # one a row
        self._attempts: list[Attempt] = []
        self._enqueued = 0

    def add(self, each: Decided, taken: Iterator[int]) -> None:
        """Turn the decisions about one schedule into rows; `taken` yields their run ids."""
        schedule_id, state = each.schedule.schedule_id, each.state
        iteration, last = state.iteration, 0
        ids: dict[int, int] = {}  # run ids that a decision may refer to, by tick
        for run in each.unfinished:
            if not run.request_id:
                ids[run.run_at] = run.run_id
        for decision in each.decisions:
            if isinstance(decision, (Launch, Queue)):
                iteration += 1
                run_id = next(taken)
                self._enqueue(each, decision, run_id, iteration, ids)
            elif isinstance(decision, Skip):
                run_id = next(taken)
                self._skip(each, decision, run_id, iteration, ids)
            else:
                carry_out_on_run(self._tx, schedule_id, decision)
                continue
            last = decision.tick.run_at  # decisions are in time order
            ids[last] = run_id
        self._moves[last, iteration - state.iteration].append(schedule_id)
        if each.spread_until != state.spread_until:
            self._spread += (each.spread_until, schedule_id)
        rate, added = each.schedule.policy.rate, iteration - state.iteration
        if rate is not None and added:
            counted = (*state.past.rated, *[self._tx.now] * added)[-rate.most :]
            self._rated += (as_json(counted), schedule_id)

    def finish(self) -> CarriedOut:
        """Write all rows."""
        tx = self._tx
        if not self.ids:
            return CarriedOut()
        leased_by = self._node.node_id if self._node is not None else None
        written = tx.many(START_RUNS, self._started, (tx.now, leased_by))
        written += tx.many(INSERT_RUNS, self._others, (tx.now,))
        if written < len(self.ids):
            self._drop_existing()
        for move, schedule_ids in self._moves.items():
            tx.many(MOVE_STATES, schedule_ids, move)
        tx.many(SPREAD, self._spread)
        tx.many(RATED, self._rated)
        tx.many(NOTE_MISSES, list(chain.from_iterable(self._misses.values())))
        self._count_overlaps()
        tx.events += self._events
        return CarriedOut(self._attempts, self._enqueued)

    def _count_overlaps(self) -> None:
        """Set in events how many ticks in a row were skipped for the same run."""
        found = {
            event.run_id: n
            for n, event in enumerate(self._events)
            if isinstance(event, RunSkipped)
            and event.reason == "overlap"
            and event.blocked_by is not None
        }
        given: list[Value] = []
        for run_id, n in found.items():
            event = self._events[n]
            assert isinstance(event, RunSkipped)
            given += (run_id, event.blocked_by, event.schedule_id)
        for run_id, before in self._tx.each(OVERLAPS, given) if given else ():
            n = found[run_id]
            self._events[n] = replace(self._events[n], overlaps=before + 1)

    def _enqueue(
        self,
        each: Decided,
        decision: Launch | Queue,
        run_id: int,
        iteration: int,
        ids: Mapping[int, int],
    ) -> None:
        """Enqueue a run, or announce it directly for the planning node, which saves a write."""
        schedule, state, tick, by = each.schedule, each.state, decision.tick, decision.triggered_by
        schedule_id, target, node = schedule.schedule_id, schedule.target, self._node
        blocker = None if isinstance(decision, Launch) else ids[decision.behind]
        tick_columns = _tick_columns(each, tick, run_id, iteration, by)
        if (
            node is not None
            and blocker is None
            and len(self._attempts) < self._slots
            and tick.due_at <= self._tx.now
            and schedule.starts_directly
            and target.needs in node.offers
        ):
            self._started += tick_columns
            self._events.append(
                RunStarted(
                    schedule_id, run_id, tick.run_at, 1, node.node_id, 1, tick.due_at, by,
                    tick.first_run_at, tick.count, late_by(self._tx, tick.due_at),
                )
            )  # fmt: skip
            self._attempts.append(
                Attempt(
                    run_id, schedule_id, tick.run_at, tick.due_at, 1, 1, target, "", by, iteration,
                    tick.count, tick.first_run_at, state.revision, target.inputs_text,
                    schedule.policy.timeout, state.user_id, schedule.policy.cancel_grace, cause=by,
                )
            )  # fmt: skip
        else:
            start_by = None if decision.detail is None else decision.detail.start_by
            waits = waiting_columns(schedule, tick, self._tx.now, start_by)
            detail = None if decision.detail is None else detail_text(decision.detail)
            phase = first_phase(tick.due_at, blocker, now=self._tx.now)
            self._others += (phase, None, blocker, None, detail, *waits, *tick_columns)
            self._events.append(
                RunEnqueued(
                    schedule_id, run_id, tick.run_at, tick.due_at, by, tick.first_run_at,
                    tick.count, blocker, start_by,
                )
            )  # fmt: skip
            self._enqueued += 1

    def _skip(
        self, each: Decided, decision: Skip, run_id: int, iteration: int, ids: Mapping[int, int]
    ) -> None:
        now, tick, schedule_id = self._tx.now, decision.tick, each.schedule.schedule_id
        blocker = ids.get(decision.blocked_by) if decision.blocked_by is not None else None
        self._misses[schedule_id] = (now, decision.reason, schedule_id)
        tick_columns = _tick_columns(each, tick, run_id, iteration, "timer")
        detail = None if decision.detail is None else detail_text(decision.detail)
        waits = (0, None, None, None, 0)
        self._others += ("SKIPPED", decision.reason, blocker, now, detail, *waits, *tick_columns)
        self._events.append(
            RunSkipped(
                schedule_id, run_id, tick.run_at, decision.reason, tick.first_run_at, tick.count,
                blocker,
            )
        )  # fmt: skip

    def _drop_existing(self) -> None:
        """Drop the runs of ticks that already had a row, which stays as it is."""
        found = self._tx.all(
            "SELECT run_id FROM schedule_runs WHERE run_id IN (?1[])", (list(self.ids),)
        )
        written = {run_id for (run_id,) in found}
        counted = Counter(
            event.schedule_id
            for event in self._events
            if event.run_id not in written and not isinstance(event, RunSkipped)
        )
        moves, self._moves = self._moves, defaultdict(list)
        for (last, added), schedule_ids in moves.items():
            for schedule_id in schedule_ids:
                self._moves[last, added - counted[schedule_id]].append(schedule_id)
        self._events = [event for event in self._events if event.run_id in written]
        self._attempts = [each for each in self._attempts if each.run_id in written]


def waiting_columns(
    schedule: Schedule, tick: Tick, now: int, start_by: int | None = None
) -> tuple[Value, ...]:
    """Return the columns of a waiting run: from its priority to whether it can be reattached."""
    policy, wait = schedule.policy, schedule.policy.start_deadline
    deadline_at = earlier(None if wait is None else max(tick.due_at, now) + wait, start_by)
    key = None
    if schedule.target.may_report:  # its target reports the outcome by this key
        key = run_key(schedule.schedule_id, tick.run_at)
    return policy.priority, policy.group, deadline_at, key, int(schedule.target.reattachable)


def _tick_columns(
    each: Decided, tick: Tick, run_id: int, iteration: int, by: TriggeredBy
) -> tuple[Value, ...]:
    """Return the last columns of START_RUNS and of INSERT_RUNS."""
    schedule, target = each.schedule, each.schedule.target
    return (
        run_id, schedule.schedule_id, tick.run_at, tick.due_at, by, schedule.needs, iteration,
        each.state.revision, tick.count, tick.first_run_at, target.inputs_text,
    )  # fmt: skip

"""Deciding ticks: due rows in, run rows and the next due rows out, in one transaction.

The invariant everything rests on: a live schedule's due row is the first tick later than its
`decided_until`, and every tick up to that has its row. Both move in the same transaction.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from onbeat.core.model import Past
from onbeat.core.plan import (
    Decision,
    Due,
    Launch,
    Plan,
    Queue,
    Skip,
    Supersede,
    Tick,
)
from onbeat.core.runs import Reason, Run, Status, TriggeredBy
from onbeat.core.schedules import Schedule, from_definition
from onbeat.events import (
    RunEnqueued,
    RunFailed,
    RunReleased,
    RunSkipped,
    RunStarted,
    ScheduleParked,
)
from onbeat.ports import Attempt, Node, PlanFunction, Planned
from onbeat.stores.sqlite.database import Row, Transaction, Value

PARKED = 5 * 60_000  # how long a definition rests that cannot be read or planned


class State(msgspec.Struct, frozen=True, gc=False):
    """A schedule's position, and what of its past decisions depend on."""

    decided_until: int
    decided_run_at: int
    iteration: int
    runs_used: int
    created_at: int  # milliseconds
    revision: int
    user_id: str = ""
    spread_until: int = 0  # milliseconds

    @property
    def past(self) -> Past:
        return Past(
            self.created_at // 1000, runs_used=self.runs_used, spread_until=self.spread_until
        )


class Decided(msgspec.Struct, gc=False):
    """The decisions about one schedule, to be carried out."""

    schedule: Schedule
    state: State
    decisions: Sequence[Decision]
    unfinished: Sequence[Run] = ()
    spread_until: int = 0


class CarriedOut(msgspec.Struct):
    """What came of carrying out decisions."""

    attempts: list[Attempt] = []  # announced for the node
    enqueued: int = 0


DUE = """
SELECT d.schedule_id, d.run_at, s.definition, t.decided_until, t.decided_run_at, t.iteration,
       t.runs_used, s.created_at, s.revision, s.user_id, t.spread_until
  FROM due d JOIN schedules s USING (schedule_id) JOIN schedule_state t USING (schedule_id)
 WHERE d.due_at <= ?
 ORDER BY d.due_at, d.schedule_id
 LIMIT ?
"""

UNFINISHED = """
SELECT schedule_id, run_id, run_at, status, due_at, created_at, request_id, attempt, blocked_by,
       leased_by IS NOT NULL
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND schedule_id IN (SELECT value FROM json_each(?))
 ORDER BY run_at, run_id
"""

START_RUNS = """
INSERT INTO schedule_runs (created_at, updated_at, started_at, leased_by, request_id, status,
       attempt, fence, run_id, schedule_id, run_at, due_at, triggered_by, needs, iteration,
       revision, tick_count, first_run_at, inputs)
VALUES {(?1,?1,?1,?2,'','STARTED',1,1,?,?,?,?,?,?,?,?,?,?,?)}
    ON CONFLICT (run_at, schedule_id, request_id) DO NOTHING
"""

INSERT_RUNS = """
INSERT INTO schedule_runs (created_at, updated_at, request_id, status, reason, blocked_by,
       finished_at, run_id, schedule_id, run_at, due_at, triggered_by, needs, iteration,
       revision, tick_count, first_run_at, inputs)
VALUES {(?1,?1,'',?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)}
    ON CONFLICT (run_at, schedule_id, request_id) DO NOTHING
"""

MOVE_STATES = """
UPDATE schedule_state
   SET decided_until = max(decided_until, ?1), decided_run_at = max(decided_run_at, ?1),
       iteration = iteration + ?2, runs_used = runs_used + ?2
 WHERE schedule_id IN ({?})
"""

SPREAD = """
  WITH given (until, schedule_id) AS (VALUES {(?,?)})
UPDATE schedule_state AS t SET spread_until = given.until
  FROM given
 WHERE t.schedule_id = given.schedule_id
"""

NOTE_MISSES = """
  WITH given (at, reason, schedule_id) AS (VALUES {(?,?,?)})
UPDATE schedule_state AS t
   SET last_missed_at = given.at, last_miss_reason = given.reason
  FROM given
 WHERE t.schedule_id = given.schedule_id
"""

END_WAITING = """
UPDATE schedule_runs
   SET status = ?2, reason = ?3, finished_at = ?4, updated_at = ?4, blocked_by = ?5,
       error = coalesce(?6, error), leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND status = 'ENQUEUED'
"""


def plan_due(
    tx: Transaction, plan: PlanFunction, *, limit: int, node: Node | None, slots: int
) -> Planned:
    """Decide up to `limit` due rows, in time order. The contract is `Store.plan_due`."""
    if not gate_is_open(tx):
        return Planned(0)
    rows = tx.all(DUE, (tx.now, limit))
    if not rows:
        return Planned(0)
    unfinished = unfinished_of(tx, (str(row[0]) for row in rows))
    writing = _Writing(tx, node if node is not None and may_start(tx, node) else None, slots)
    due: list[tuple[str, Due | None]] = []
    needed: set[str] = set()
    for row in rows:
        schedule_id = str(row[0])
        try:
            found, schedule, state = _plan_one(row, plan, unfinished.get(schedule_id, ()), tx.now)
        except Exception as broken:  # noqa: BLE001 - one poisoned definition must not hurt the others
            tx.tell(ScheduleParked(schedule_id, f"{type(broken).__name__}: {broken}"[:500]))
            due.append((schedule_id, Due(row[1], tx.now + PARKED)))
            continue
        due.append((schedule_id, found.due))
        needed.add(schedule.target.needs)
        if found.decisions:
            left = unfinished.get(schedule_id, ())
            writing.add(Decided(schedule, state, found.decisions, left, found.spread_until))
    done = writing.finish()
    replace_due(tx, due)
    unoffered = frozenset(needed - node.offers) if node is not None else frozenset()
    return Planned(len(rows), len(rows) == limit, done.attempts, done.enqueued, unoffered)


def _plan_one(
    row: Row, plan: PlanFunction, unfinished: Sequence[Run], now: int
) -> tuple[Plan, Schedule, State]:
    schedule = from_definition(row[0], row[2])
    run_at, state = row[1], State(*row[3:])
    return plan(schedule, run_at, unfinished, state.past, now), schedule, state


def carry_out(tx: Transaction, decided: Iterable[Decided]) -> None:
    """Write the runs that were decided, and move each schedule's position.

    A tick that has its row already keeps it.
    """
    writing = _Writing(tx)
    for each in decided:
        writing.add(each)
    writing.finish()


class _Writing:
    """The rows that a batch of decisions comes to, written together at the end.

    Up to `slots` runs are announced for `node`.
    """

    def __init__(self, tx: Transaction, node: Node | None = None, slots: int = 0) -> None:
        self._tx, self._node, self._slots = tx, node, slots
        self._first_id = self._next_id = next_run_id(tx)
        self._started: list[Value] = []  # what START_RUNS binds for each run, one after another
        self._others: list[Value] = []  # what INSERT_RUNS does
        # Where positions move to and by how many runs, and whose: a herd moves as one.
        self._moves: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        self._misses: dict[str, Row] = {}  # by schedule
        self._spread: list[Value] = []  # what SPREAD binds, where that has changed
        self._told: list[RunEnqueued | RunSkipped | RunStarted] = []  # one a row
        self._attempts: list[Attempt] = []
        self._enqueued = 0

    def add(self, each: Decided) -> None:
        """Turn the decisions about one schedule into rows."""
        schedule_id, state = each.schedule.schedule_id, each.state
        iteration, last = state.iteration, 0
        ids: dict[int, int] = {}  # of the runs that one may wait for, by tick
        for run in each.unfinished:
            if not run.request_id:
                ids[run.run_at] = run.run_id
        for decision in each.decisions:
            if isinstance(decision, (Launch, Queue)):
                iteration += 1
                self._begin(each, decision, self._next_id, iteration, ids)
            elif isinstance(decision, Skip):
                self._skip(each, decision, self._next_id, iteration, ids)
            elif isinstance(decision, Supersede):
                end_waiting(self._tx, schedule_id, decision.run, "superseded")
                continue
            else:
                release(self._tx, schedule_id, decision.run)
                continue
            last = decision.tick.run_at  # they are in order
            ids[last] = self._next_id
            self._next_id += 1
        self._moves[last, iteration - state.iteration].append(schedule_id)
        if each.spread_until != state.spread_until:
            self._spread += (each.spread_until, schedule_id)

    def finish(self) -> CarriedOut:
        """Write it all."""
        tx, rows = self._tx, self._next_id - self._first_id
        if not rows:
            return CarriedOut()
        take_run_ids(tx, rows)
        leased_by = self._node.node_id if self._node is not None else None
        written = tx.many(START_RUNS, self._started, (tx.now, leased_by))
        written += tx.many(INSERT_RUNS, self._others, (tx.now,))
        if written < rows:
            self._keep_those_already_there()
        for move, schedule_ids in self._moves.items():
            tx.many(MOVE_STATES, schedule_ids, move)
        tx.many(SPREAD, self._spread)
        tx.many(NOTE_MISSES, list(chain.from_iterable(self._misses.values())))
        tx.events += self._told
        return CarriedOut(self._attempts, self._enqueued)

    def _begin(
        self,
        each: Decided,
        decision: Launch | Queue,
        run_id: int,
        iteration: int,
        ids: Mapping[int, int],
    ) -> None:
        """Enqueue a run, and announce it at once for the node that plans: one write less."""
        schedule, state, tick, by = each.schedule, each.state, decision.tick, decision.triggered_by
        schedule_id, target, node = schedule.schedule_id, schedule.target, self._node
        blocker = None if isinstance(decision, Launch) else ids[decision.behind]
        as_planned = _as_planned(each, tick, run_id, iteration, by)
        if (
            node is not None
            and blocker is None
            and len(self._attempts) < self._slots
            and tick.due_at <= self._tx.now
            and target.needs in node.offers
        ):
            self._started += as_planned
            self._told.append(
                RunStarted(
                    schedule_id, run_id, tick.run_at, 1, node.node_id, 1, tick.due_at, by,
                    tick.first_run_at, tick.count,
                )
            )  # fmt: skip
            self._attempts.append(
                Attempt(
                    run_id, schedule_id, tick.run_at, tick.due_at, 1, 1, target, "", by, iteration,
                    tick.count, tick.first_run_at, state.revision, target.inputs_text,
                    schedule.policy.timeout, state.user_id,
                )
            )  # fmt: skip
        else:
            self._others += ("ENQUEUED", None, blocker, None, *as_planned)
            self._told.append(
                RunEnqueued(
                    schedule_id, run_id, tick.run_at, tick.due_at, by, tick.first_run_at,
                    tick.count, blocker,
                )
            )  # fmt: skip
            self._enqueued += 1

    def _skip(
        self, each: Decided, decision: Skip, run_id: int, iteration: int, ids: Mapping[int, int]
    ) -> None:
        now, tick, schedule_id = self._tx.now, decision.tick, each.schedule.schedule_id
        blocker = ids.get(decision.blocked_by) if decision.blocked_by is not None else None
        self._misses[schedule_id] = (now, decision.reason, schedule_id)
        as_planned = _as_planned(each, tick, run_id, iteration, "timer")
        self._others += ("SKIPPED", decision.reason, blocker, now, *as_planned)
        self._told.append(
            RunSkipped(
                schedule_id, run_id, tick.run_at, decision.reason, tick.first_run_at, tick.count,
                blocker,
            )
        )  # fmt: skip

    def _keep_those_already_there(self) -> None:
        """Forget the runs of ticks that had their row before: it stays as it is."""
        found = self._tx.all(
            "SELECT run_id FROM schedule_runs WHERE run_id >= ?", (self._first_id,)
        )
        there = {run_id for (run_id,) in found}
        counted = Counter(
            event.schedule_id
            for event in self._told
            if event.run_id not in there and not isinstance(event, RunSkipped)
        )
        moves, self._moves = self._moves, defaultdict(list)
        for (last, begun), schedule_ids in moves.items():
            for schedule_id in schedule_ids:
                self._moves[last, begun - counted[schedule_id]].append(schedule_id)
        self._told = [event for event in self._told if event.run_id in there]
        self._attempts = [each for each in self._attempts if each.run_id in there]


def _as_planned(
    each: Decided, tick: Tick, run_id: int, iteration: int, by: TriggeredBy
) -> tuple[Value, ...]:
    """Return the last columns of START_RUNS and of INSERT_RUNS."""
    schedule, target = each.schedule, each.schedule.target
    return (
        run_id, schedule.schedule_id, tick.run_at, tick.due_at, by, target.needs, iteration,
        each.state.revision, tick.count, tick.first_run_at, target.inputs_text,
    )  # fmt: skip


def end_waiting(
    tx: Transaction, schedule_id: str, run: Run, reason: Reason, *, blocked_by: int | None = None
) -> None:
    """End a run that will not start: after an attempt that is a failure, else it is skipped."""
    status, ids = run.unstarted_end, (schedule_id, run.run_id, run.run_at)
    blocker = blocked_by if status is Status.SKIPPED else None
    tx.run(END_WAITING, (run.run_id, status, reason, tx.now, blocker, None))
    if status is Status.SKIPPED:
        tx.tell(RunSkipped(*ids, reason, blocked_by=blocker))
    else:
        tx.tell(RunFailed(*ids, run.attempt, reason))


def release(tx: Transaction, schedule_id: str, run: Run | None) -> None:
    """Let the first in the queue start."""
    if run is None:
        return
    tx.run(
        "UPDATE schedule_runs SET blocked_by = NULL, updated_at = ? WHERE run_id = ?",
        (tx.now, run.run_id),
    )
    tx.tell(RunReleased(schedule_id, run.run_id, run.run_at))


def replace_due(tx: Transaction, due: Iterable[tuple[str, Due | None]]) -> None:
    """Give each of these schedules its new due row, or none."""
    over: list[Value] = []
    rows: list[Value] = []
    for schedule_id, each in due:
        if each is None:
            over.append(schedule_id)
        else:
            rows += (each.due_at, schedule_id, each.run_at)
    tx.many("DELETE FROM due WHERE schedule_id IN ({?})", over)
    tx.many("REPLACE INTO due (due_at, schedule_id, run_at) VALUES {(?,?,?)}", rows)


def unfinished_of(tx: Transaction, schedule_ids: Iterable[str]) -> dict[str, list[Run]]:
    """Return the unfinished runs of these schedules, by schedule, in time order."""
    found: dict[str, list[Run]] = {}
    for row in tx.all(UNFINISHED, (as_json(list(schedule_ids)),)):
        found.setdefault(str(row[0]), []).append(_run(row))
    return found


def _run(row: Row) -> Run:
    _, run_id, run_at, status, due_at, created_at, request_id, attempt, blocked_by, leased = row
    return Run(
        run_id, run_at, Status(status), due_at, created_at, request_id, attempt, blocked_by,
        leased=bool(leased),
    )  # fmt: skip


def next_run_id(tx: Transaction) -> int:
    """Return the run id that would be taken next: they grow along commits."""
    row = tx.one("SELECT value FROM meta WHERE name = 'next_run_id'")
    return 1 if row is None else int(row[0])


def take_run_ids(tx: Transaction, n: int) -> int:
    """Return the first of `n` run ids that nothing else will have."""
    first = next_run_id(tx)
    tx.run("INSERT OR REPLACE INTO meta (name, value) VALUES ('next_run_id', ?)", (first + n,))
    return first


def gate_is_open(tx: Transaction) -> bool:
    """Return whether anything may be decided and started at all."""
    return tx.one("SELECT 1 FROM meta WHERE name = 'gate_closed_at'") is None


def may_start(tx: Transaction, node: Node) -> bool:
    """Return whether a node may start runs: the gate is open, and no other has taken its place."""
    there = tx.one("SELECT 1 FROM nodes WHERE node_id = ?", (node.node_id,))
    return there is not None and gate_is_open(tx)


def as_json(value: object) -> str:
    """Return a value as a statement takes it: a list for `json_each`, or what is kept."""
    return _JSON.encode(value).decode()


_JSON = msgspec.json.Encoder()

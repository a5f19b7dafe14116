"""The rows that several calls read and write: positions, due rows, unfinished runs, the gate."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from onbeat.core.decide.follow import decode_happened
from onbeat.core.explain.attempts import MOST_TRIED
from onbeat.core.runs.decisions import Due
from onbeat.core.runs.run import (
    PastAttempt,
    Reason,
    ReasonDetail,
    Run,
    Status,
    TriggeredBy,
    WaitedFor,
)
from onbeat.core.schedule import Schedule, from_definition
from onbeat.core.target import FOUND_AGAIN
from onbeat.core.time.zones import VERSION
from onbeat.core.triggers.past import Past
from onbeat.errors import InvalidSchedule
from onbeat.events import LATE, RunCanceled, RunFailed, RunReleased, RunSkipped
from onbeat.ports.store import Node
from onbeat.stores.sql.transaction import Row, Transaction, Value

NO_DETAIL = ReasonDetail()
LONGEST_LINE = 500  # characters of the error of each


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
    rated: str | None = None  # JSON: when runs were decided that a rate counts
    happened: str | None = None  # JSON: what caused ticks follow

    @property
    def past(self) -> Past:
        found = Past(
            self.created_at // 1000, runs_used=self.runs_used, spread_until=self.spread_until
        )
        if self.rated is not None:
            found = replace(found, rated=tuple(msgspec.json.decode(self.rated, type=list[int])))
        if self.happened is not None:
            found = replace(found, happened=decode_happened(self.happened))
        return found


class DueRow(NamedTuple):
    """A due row that was taken, with what its schedule says.

    From `decided_until` on it is a `State`, but for the last.
    """

    schedule_id: str
    run_at: int
    definition: str
    decided_until: int
    decided_run_at: int
    iteration: int
    runs_used: int
    created_at: int
    revision: int
    user_id: str
    spread_until: int
    rated: str | None
    happened: str | None
    paused: int


class WaitingRow(NamedTuple):
    """A run that may be claimed, with what its schedule said when it was decided."""

    run_id: int
    schedule_id: str
    run_at: int
    due_at: int
    attempt: int
    fence: int
    request_id: str
    triggered_by: TriggeredBy
    iteration: int
    tick_count: int
    first_run_at: int | None
    inputs: str | None
    created_at: int
    deferrals: int
    deadline_at: int | None
    grp: str | None
    rendered: str | None
    was_lost: int | None  # the attempt before: its node fell silent; None: there is no reason
    detached: int  # it may run without that node
    is_to_end: int  # somebody has asked for its end since
    definition: str | None  # of the run's revision; None: it is not kept
    revision: int  # of the run
    current: str | None  # the definition of now, if that is another one
    user_id: str

    @property
    def was_handed_back(self) -> bool:
        """The same as WAS_HANDED_BACK."""
        return self.attempt > 0 and self.attempt == self.deferrals and self.was_lost is None


IS_FOUND_AGAIN = f"needs IN ({', '.join(repr(kind) for kind in sorted(FOUND_AGAIN))})"
# A run that waits since its node fell silent, and that may go on without it: it is to be found
# again, and ended then if somebody has asked for that meanwhile.
GOES_ON = f"({IS_FOUND_AGAIN} AND (coalesce(reason, '') = 'lost' OR end_asked_at IS NOT NULL))"

# A run whose attempts were all handed back, or found their target busy, the last one the former:
# what is announced has no reason, and one that failed or found it busy is given one.
WAS_HANDED_BACK = "status = 'ENQUEUED' AND attempt > 0 AND attempt = deferrals AND reason IS NULL"

RUN_OF_SCHEDULE = f"""schedule_id, run_id, run_at, status, due_at, created_at, request_id, attempt,
       blocked_by, leased_by IS NOT NULL, deferrals, deadline_at,
       CASE WHEN end_asked_at IS NOT NULL THEN reason END, triggered_by = 'backfill',
       {IS_FOUND_AGAIN}, status = 'ENQUEUED' AND {GOES_ON}, revision, {WAS_HANDED_BACK}"""

UNFINISHED = f"""
SELECT {RUN_OF_SCHEDULE}
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND schedule_id IN (?1[])
 ORDER BY run_at, run_id
"""

END_WAITING = """
UPDATE schedule_runs
   SET status = ?2, reason = ?3, finished_at = ?4, updated_at = ?4, blocked_by = ?5,
       error = coalesce(?6, error), detail = coalesce(?7, detail), leased_by = NULL,
       fence = fence + 1
 WHERE run_id = ?1 AND status = 'ENQUEUED'
"""

WAITS = """
SELECT r.detail, r.needs, r.grp, coalesce(s.paused, 0)
  FROM schedule_runs r LEFT JOIN schedules s USING (schedule_id) WHERE r.run_id = ?1
"""

LIMIT = """
SELECT r.detail, b.started_at, r.due_at
  FROM schedule_runs r LEFT JOIN schedule_runs b ON b.run_id = r.blocked_by WHERE r.run_id = ?1
"""

# Its last attempt is what ran last: its exit code is the schedule's, like that of any failure.
NOTE_ENDED_RETRY = """
UPDATE schedule_state
   SET last_run_at = ?1, last_failure_at = ?1, consecutive_failures = consecutive_failures + 1,
       last_exit = (SELECT exit_code FROM schedule_runs WHERE run_id = ?3)
 WHERE schedule_id = ?2
"""

REPLACE_DUE = """
INSERT INTO due (due_at, schedule_id, run_at) VALUES {(?int,?text,?int)}
    ON CONFLICT (schedule_id) DO UPDATE SET due_at = excluded.due_at, run_at = excluded.run_at
"""

# A run has a place in its group from its claim on, and keeps it while it goes on elsewhere.
HAS_PLACE = f"(leased_by IS NOT NULL OR status = 'STARTED' OR {GOES_ON})"

GROUPS = f"""
SELECT g.name, g.places, coalesce(r.used, 0)
  FROM groups g LEFT JOIN (
       SELECT grp, count(*) AS used FROM schedule_runs INDEXED BY runs_in_group
        WHERE grp IS NOT NULL AND finished_at IS NULL AND {HAS_PLACE}
        GROUP BY grp) r ON r.grp = g.name
"""

# What a schedule says now, what it said at a revision, and whether it was deleted since then: if
# it was defined again, that left a definition without a text.
DEFINITIONS = """
SELECT s.definition, CASE WHEN s.revision = ?2 THEN s.definition ELSE (
           SELECT p.definition FROM past_definitions p
            WHERE p.schedule_id = s.schedule_id AND p.revision = ?2 AND p.definition <> ''
            LIMIT 1) END,
       s.deleted_at IS NOT NULL, s.revision <> ?2 AND EXISTS (
           SELECT 1 FROM past_definitions p
            WHERE p.schedule_id = s.schedule_id AND p.revision >= ?2 AND p.definition = '')
  FROM schedules s
 WHERE s.schedule_id = ?1
"""

KEEP = """
INSERT INTO meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2
"""


def unfinished_of(tx: Transaction, schedule_ids: Collection[str]) -> dict[str, list[Run]]:
    """Return the unfinished runs of these schedules, by schedule, in time order."""
    found: dict[str, list[Run]] = {}
    for row in tx.all(UNFINISHED, (list(schedule_ids),)):
        found.setdefault(row[0], []).append(as_run(row))
    return found


def as_run(row: Row) -> Run:
    """Return a run from the columns of `RUN_OF_SCHEDULE`."""
    _, run_id, run_at, status, due_at, created_at, request_id, attempt, blocked_by, *rest = row
    leased, deferrals, deadline_at, ending, backfill, found_again, detached, *rest = rest
    revision, handed_back = rest
    return Run(
        run_id, run_at, Status(status), due_at, created_at, request_id, attempt, blocked_by,
        leased=bool(leased), deferrals=deferrals, deadline_at=deadline_at, ending=ending,
        is_backfill=bool(backfill), reattachable=bool(found_again), detached=bool(detached),
        revision=revision, was_handed_back=bool(handed_back),
    )  # fmt: skip


def end_waiting(
    tx: Transaction,
    schedule_id: str,
    run: Run,
    reason: Reason,
    *,
    blocked_by: int | None = None,
    newer: int | None = None,
    known: ReasonDetail | None = None,
) -> None:
    """End a run that will not start: after an attempt that is a failure, else it is skipped.

    What it waited for is kept with it, the tick that took its place, and what else is `known`.
    """
    status, ids = run.unstarted_end, (schedule_id, run.run_id, run.run_at)
    blocker = blocked_by if status is Status.SKIPPED else None
    detail = _waited(tx, run, known or ReasonDetail(), newer)
    tx.run(END_WAITING, (run.run_id, status, reason, tx.now, blocker, None, detail))
    if status is Status.SKIPPED:
        tx.tell(RunSkipped(*ids, reason, blocked_by=blocker))
    else:
        tx.run(NOTE_ENDED_RETRY, (tx.now, schedule_id, run.run_id))
        tx.tell(RunFailed(*ids, run.attempt, reason, failures=failures_of(tx, schedule_id)))


def cancel_waiting(tx: Transaction, schedule_id: str, run: Run, told: str) -> None:
    """End a run that has not started because somebody wished so."""
    detail = _waited(tx, run, ReasonDetail())
    tx.run(END_WAITING, (run.run_id, "CANCELED", "canceled", tx.now, None, plain(told), detail))
    tx.tell(RunCanceled(schedule_id, run.run_id, run.run_at, plain(told)))


def _waited(tx: Transaction, run: Run, known: ReasonDetail, newer: int | None = None) -> str | None:
    """Return what is kept of a run that is ended while it waits."""
    row = tx.one(WAITS, (run.run_id,))
    if row is None:
        return None
    before, needs, group, paused = row
    found = read_detail(before)
    waited: WaitedFor | None = "place"
    if run.blocked_by is not None:
        waited = "queue"
    elif run.leased or run.detached or known.start_by is not None:
        waited = None  # it was about to start, or to be found again; or its limit says enough
    elif run.awaits_retry:
        waited = "retry"
    elif run.due_at > tx.now:
        waited = "due"
    elif paused and not run.is_asked_for:
        waited = "pause"
    elif not any(needs in offers for offers in _offers(tx)):
        waited = "node"
    elif group is not None and group in full_groups(tx):
        waited = "group"
    return detail_text(
        replace(
            known, waited_for=waited, behind=run.blocked_by, newer=newer,
            by=known.by or found.by, note=known.note or found.note, rule=known.rule or found.rule,
            start_by=found.start_by,
        )
    )  # fmt: skip


def is_up(tx: Transaction) -> bool:
    """Return whether a node is up that plans or runs."""
    found = tx.all("SELECT roles FROM nodes WHERE alive_until > ?1", (tx.now,))
    return any('"plan"' in roles or '"run"' in roles for (roles,) in found)


def earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two deadlines, where None is none."""
    return min((each for each in (one, other) if each is not None), default=None)


def lift_limit(tx: Transaction, schedule_id: str, run: Run) -> bool:
    """Give a run its own start deadline if a node was up within the limit that an edit gave it.

    That is so if it was announced, or if the run that it is queued behind had started by then.
    """
    row = None if run.deadline_at is None else tx.one(LIMIT, (run.run_id,))
    if row is None or (start_by := read_detail(row[0]).start_by) != run.deadline_at:
        return False
    if not run.was_tried and (start_by is None or row[1] is None or row[1] > start_by):
        return False
    own, _ = definitions_of(tx, schedule_id, run.revision)
    wait = None if own is None else own.policy.start_deadline
    deadline_at = None if wait is None else max(run.created_at, row[2]) + wait
    lift = "UPDATE schedule_runs SET deadline_at = ?1 WHERE run_id = ?2"
    return deadline_at != start_by and bool(tx.run(lift, (deadline_at, run.run_id)))


def _offers(tx: Transaction) -> list[list[str]]:
    """Return what each node offers that is up."""
    rows = tx.all("SELECT offers FROM nodes WHERE alive_until > ?1", (tx.now,))
    return [msgspec.json.decode(text, type=list[str]) for (text,) in rows]


def detail_text(detail: ReasonDetail) -> str | None:
    """Return a detail as it is kept: nothing if it says nothing."""
    return None if detail == NO_DETAIL else msgspec.json.encode(detail).decode()


def read_detail(text: str | None) -> ReasonDetail:
    """Return a detail that was kept."""
    return NO_DETAIL if text is None else msgspec.json.decode(text, type=ReasonDetail)


def read_tried(text: str | None) -> list[PastAttempt]:
    """Return the attempts at a run that were followed by another."""
    return [] if text is None else msgspec.json.decode(text, type=list[PastAttempt])


def tried_with(
    tx: Transaction, run: Run, reason: Reason, error: str | None, exit_code: int | None
) -> str:
    """Return the attempts at a run, as they are kept, with the one that has just ended."""
    row = tx.one("SELECT tried, started_at FROM schedule_runs WHERE run_id = ?1", (run.run_id,))
    before, started_at = (None, None) if row is None else row
    line = (error or "").partition("\n")[0][:LONGEST_LINE]
    ended = PastAttempt(run.attempt, started_at, tx.now, reason, exit_code, line)
    return msgspec.json.encode([*read_tried(before), ended][-MOST_TRIED:]).decode()


def full_groups(tx: Transaction) -> set[str]:
    """Return the groups that have no place left."""
    return {name for name, places, used in tx.all(GROUPS) if used >= places}


def release(tx: Transaction, schedule_id: str, run: Run | None) -> None:
    """Let the first in the queue start."""
    if run is None:
        return
    lift_limit(tx, schedule_id, run)
    tx.run(
        "UPDATE schedule_runs SET blocked_by = NULL, updated_at = ?1 WHERE run_id = ?2",
        (tx.now, run.run_id),
    )
    tx.tell(RunReleased(schedule_id, run.run_id, run.run_at))


def replace_due(tx: Transaction, due: Iterable[tuple[str, Due | None]]) -> None:
    """Give each of these schedules its new due row, or none.

    If others have newer zone data, all due rows are followed again: see `stores/sql/zone_data.py`.
    """
    write_due(tx, due)
    if zone_data(tx) > VERSION:
        tx.run("INSERT INTO meta (name, value) VALUES ('tz_stale', '1') ON CONFLICT DO NOTHING")


def write_due(tx: Transaction, due: Iterable[tuple[str, Due | None]]) -> None:
    """Do the same where the zone data is known not to be older."""
    over: list[Value] = []
    rows: list[Value] = []
    for schedule_id, each in due:
        if each is None:
            over.append(schedule_id)
        else:
            rows += (each.due_at, schedule_id, each.run_at)
    tx.many("DELETE FROM due WHERE schedule_id IN ({?text})", over)
    tx.many(REPLACE_DUE, rows)


def definition_of(tx: Transaction, schedule_id: str) -> Schedule | None:
    """Return what a schedule says now, or None if it was deleted or cannot be read."""
    sql = "SELECT definition FROM schedules WHERE schedule_id = ?1 AND deleted_at IS NULL"
    row = tx.one(sql, (schedule_id,))
    return None if row is None else read_definition(schedule_id, row[0])


def definitions_of(
    tx: Transaction, schedule_id: str, revision: int
) -> tuple[Schedule | None, Schedule | None]:
    """Return what a schedule said at this revision, and what it says now.

    The first is None if the schedule was deleted since, also if it was defined again; the other if
    it is deleted now. Either is None if it cannot be read.
    """
    row = tx.one(DEFINITIONS, (schedule_id, revision))
    if row is None:
        return None, None
    current, own, is_deleted, was_deleted = row
    return (
        None if is_deleted or was_deleted else read_definition(schedule_id, own),
        None if is_deleted else read_definition(schedule_id, current),
    )


def definition_at(tx: Transaction, schedule_id: str, revision: int) -> Schedule | None:
    """Return what a schedule said at this revision, also if it was deleted since."""
    row = tx.one(DEFINITIONS, (schedule_id, revision))
    return None if row is None else read_definition(schedule_id, row[1])


def read_definition(schedule_id: str, text: str | None) -> Schedule | None:
    """Return what a text defines, or None if it is not there or cannot be read."""
    try:
        return None if text is None else from_definition(schedule_id, text)
    except InvalidSchedule:
        return None


def gate_is_open(tx: Transaction) -> bool:
    """Return whether anything may be decided and started at all."""
    return tx.one("SELECT 1 FROM meta WHERE name = 'gate_closed_at'") is None


def gate_closed_at(tx: Transaction) -> int | None:
    """Return when the gate was closed, if it is."""
    row = tx.one("SELECT value FROM meta WHERE name = 'gate_closed_at'")
    return None if row is None else int(row[0])


def zone_data(tx: Transaction) -> str:
    """Return the version of the zone data that due rows were computed with."""
    row = tx.one("SELECT value FROM meta WHERE name = 'tz'")
    return "" if row is None else str(row[0])


def may_start(tx: Transaction, node: Node) -> bool:
    """Return whether a node may start runs: the gate is open, and it is on the list of nodes.

    Both stay so until the end: nobody turns the gate, and nobody decides that the node is silent.
    """
    tx.keep_gate()
    there = tx.one("SELECT 1 FROM nodes WHERE node_id = ?1 FOR KEY SHARE", (node.node_id,))
    return there is not None and gate_is_open(tx)


def late_by(tx: Transaction, due_at: int) -> int:
    """Return by how much what starts now is late, if that is worth telling."""
    behind = tx.now - due_at
    return behind if behind >= LATE else 0


def failures_of(tx: Transaction, schedule_id: str) -> int:
    """Return how many runs of a schedule have failed in a row."""
    row = tx.one(
        "SELECT consecutive_failures FROM schedule_state WHERE schedule_id = ?1", (schedule_id,)
    )
    return 0 if row is None else int(row[0])


def plain(text: str) -> str:
    """Return a text that every database takes: without half characters, and without NUL."""
    return text.encode(errors="replace").decode().replace("\0", "\N{SYMBOL FOR NULL}")

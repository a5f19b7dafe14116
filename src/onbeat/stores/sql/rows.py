"""Rows that several calls read and write: positions, due rows, unfinished runs, the gate."""

from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from onbeat.core.explain.attempts import MOST_TRIED
from onbeat.core.runs.apply import RunChange, apply
from onbeat.core.runs.decisions import Cancel, Due, Release, Supersede
from onbeat.core.runs.phase import CLAIMABLE, DETACHED, ENQUEUED, STARTED, Phase, phases_where
from onbeat.core.runs.run import PastAttempt, Reason, ReasonDetail, Run, WaitedFor
from onbeat.core.schedule import Schedule, from_definition
from onbeat.core.target_kinds import is_offered
from onbeat.core.time.zones import VERSION
from onbeat.errors import InvalidSchedule
from onbeat.events import LATE, RunCanceled, RunFailed, RunReleased, RunSkipped
from onbeat.ports.store import Node
from onbeat.stores.sql.taken_rows import RUN_COLUMNS, StoredRun
from onbeat.stores.sql.transaction import Bindings, Transaction, Value

NO_DETAIL = ReasonDetail()
LONGEST_LINE = 500  # characters of an attempt's error


def listed(values: Iterable[str]) -> str:
    """Return names as the list of an SQL `IN (...)`, always in the same order."""
    return ", ".join(f"'{value}'" for value in sorted(values))


def is_claimable(table: str = "") -> str:
    """Return the condition of the index waiting_runs, for the columns of a table such as `r.`."""
    of_phases = f"{table}phase IN ({listed(CLAIMABLE)})"
    return f"{table}finished_at IS NULL AND {table}leased_by IS NULL AND {of_phases}"


IS_STARTED = f"phase IN ({listed(STARTED)})"
IS_ENQUEUED = f"phase IN ({listed(ENQUEUED)})"
IS_DETACHED = f"phase IN ({listed(DETACHED)})"
HOLDS_PLACE = f"phase IN ({listed(phases_where(lambda facts: facts.holds_place))})"

# Runs that were requested start while their schedule is paused, and detached ones are reattached.
IGNORES_PAUSE = f"(r.request_id <> '' OR r.triggered_by = 'backfill' OR r.{IS_DETACHED})"


UNFINISHED = f"""
SELECT {RUN_COLUMNS}
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND schedule_id IN (?1[])
 ORDER BY run_at, run_id
"""

END_WAITING = """
UPDATE schedule_runs
   SET phase = ?3, reason = ?4, finished_at = ?5, updated_at = ?5, blocked_by = ?6,
       error = coalesce(?7, error), detail = coalesce(?8, detail), leased_by = NULL,
       fence = fence + 1
 WHERE run_id = ?1 AND phase = ?2
"""

RELEASE = """
UPDATE schedule_runs SET phase = ?3, blocked_by = NULL, updated_at = ?4
 WHERE run_id = ?1 AND phase = ?2
"""

SET_DEADLINE = "UPDATE schedule_runs SET deadline_at = ?3 WHERE run_id = ?1 AND phase = ?2"

WAITS = """
SELECT r.detail, r.needs, r.grp, coalesce(s.paused, 0)
  FROM schedule_runs r LEFT JOIN schedules s USING (schedule_id) WHERE r.run_id = ?1
"""

LIMIT = """
SELECT r.detail, b.started_at, r.due_at
  FROM schedule_runs r LEFT JOIN schedule_runs b ON b.run_id = r.blocked_by WHERE r.run_id = ?1
"""

# The last attempt is what ran last: its exit code becomes the schedule's, as with any failure.
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

GROUPS = f"""
SELECT g.name, g.places, coalesce(r.used, 0)
  FROM groups g LEFT JOIN (
       SELECT grp, count(*) AS used FROM schedule_runs INDEXED BY runs_in_group
        WHERE grp IS NOT NULL AND finished_at IS NULL AND {HOLDS_PLACE}
        GROUP BY grp) r ON r.grp = g.name
"""

# The current definition, the definition of a revision, whether the schedule is deleted, and whether
# it was deleted and defined again since that revision: that leaves a past definition without text.
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
        stored = StoredRun(*row)
        found.setdefault(stored.schedule_id, []).append(stored.run)
    return found


def stored_runs(tx: Transaction, sql: str, bindings: Bindings = ()) -> list[StoredRun]:
    """Return the runs of a statement that selects RUN_COLUMNS."""
    return [StoredRun(*row) for row in tx.all(sql, bindings)]


def write(tx: Transaction, sql: str, change: RunChange, *values: Value) -> None:
    """Write a change of a run, whose schedule is held.

    The statement gets the run's id, the phase before and the phase after, then the values. A run
    that is not in the phase before is not changed: that is a defect, and the transaction fails.
    """
    before, after = change.before, change.after
    changed = tx.run(sql, (before.run_id, before.phase, after.phase, *values))
    assert changed == 1, f"run {before.run_id} was not {before.phase}"


def end_waiting(
    tx: Transaction,
    schedule_id: str,
    run: Run,
    reason: Reason,
    *,
    blocked_by: int | None = None,
    newer: int | None = None,
    detail: ReasonDetail | None = None,
) -> None:
    """End a run that will not start: FAILED if an attempt was made, else SKIPPED.

    Its row stores what it waited for, the tick that replaced it (`newer`) and the `detail`.
    """
    change, ids = apply(run, Supersede(run), now=tx.now), (schedule_id, run.run_id, run.run_at)
    is_skipped = change.after.phase is Phase.SKIPPED
    blocker = blocked_by if is_skipped else None
    text = _waiting_detail(tx, run, detail or ReasonDetail(), newer)
    write(tx, END_WAITING, change, reason, tx.now, blocker, None, text)
    if is_skipped:
        tx.emit(RunSkipped(*ids, reason, blocked_by=blocker))
    else:
        tx.run(NOTE_ENDED_RETRY, (tx.now, schedule_id, run.run_id))
        tx.emit(RunFailed(*ids, run.attempt, reason, failures=failures_of(tx, schedule_id)))


def cancel_waiting(tx: Transaction, schedule_id: str, run: Run, error: str) -> None:
    """Cancel a run that has not started."""
    detail, error = _waiting_detail(tx, run, ReasonDetail()), storable_text(error)
    change = apply(run, Cancel(), now=tx.now)
    write(tx, END_WAITING, change, "canceled", tx.now, None, error, detail)
    tx.emit(RunCanceled(schedule_id, run.run_id, run.run_at, error))


def _waiting_detail(
    tx: Transaction, run: Run, detail: ReasonDetail, newer: int | None = None
) -> str | None:
    """Return the detail to store for a run that ends while it waits."""
    row = tx.one(WAITS, (run.run_id,))
    if row is None:
        return None
    before, needs, group, paused = row
    found = read_detail(before)
    waited: WaitedFor | None = "place"
    if run.blocked_by is not None:
        waited = "queue"
    elif run.leased or detail.start_by is not None:
        waited = None  # it was about to start, or its limit explains it
    elif run.awaits_retry:
        waited = "retry"
    elif run.due_at > tx.now:
        waited = "due"
    elif paused and not run.is_requested:
        waited = "pause"
    elif not any(is_offered(needs, offers) for offers in _offers(tx)):
        waited = "node"
    elif group is not None and group in full_groups(tx):
        waited = "group"
    return detail_text(
        replace(
            detail, waited_for=waited, behind=run.blocked_by, newer=newer,
            by=detail.by or found.by, note=detail.note or found.note,
            rule=detail.rule or found.rule,
            start_by=found.start_by,
        )
    )  # fmt: skip


def is_up(tx: Transaction) -> bool:
    """Return whether any node that plans or runs is up."""
    found = tx.all("SELECT roles FROM nodes WHERE alive_until > ?1", (tx.now,))
    return any('"plan"' in roles or '"run"' in roles for (roles,) in found)


def earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two deadlines; None means no deadline."""
    return min((each for each in (one, other) if each is not None), default=None)


def lift_limit(tx: Transaction, schedule_id: str, run: Run) -> Run | None:
    """Restore a run's start deadline, which an edit had limited, if a node was up within the limit.

    A node was up if the run was announced, or if the run that it is queued behind had started.
    Returns the run with its new deadline, or None if it stays.
    """
    row = None if run.deadline_at is None else tx.one(LIMIT, (run.run_id,))
    if row is None:
        return None
    detail, blocker_started_at, due_at = row
    start_by = read_detail(detail).start_by
    if start_by != run.deadline_at:
        return None
    if not run.was_tried and (blocker_started_at is None or blocker_started_at > start_by):
        return None
    own, _ = definitions_of(tx, schedule_id, run.revision)
    wait = None if own is None else own.policy.start_deadline
    deadline_at = None if wait is None else max(run.created_at, due_at) + wait
    if deadline_at == start_by or not tx.run(SET_DEADLINE, (run.run_id, run.phase, deadline_at)):
        return None
    return replace(run, deadline_at=deadline_at)


def _offers(tx: Transaction) -> list[list[str]]:
    """Return what each node that is up offers."""
    rows = tx.all("SELECT offers FROM nodes WHERE alive_until > ?1", (tx.now,))
    return [msgspec.json.decode(text, type=list[str]) for (text,) in rows]


def detail_text(detail: ReasonDetail) -> str | None:
    """Return a detail as it is stored: None if it is empty."""
    return None if detail == NO_DETAIL else msgspec.json.encode(detail).decode()


def read_detail(text: str | None) -> ReasonDetail:
    """Return a stored detail."""
    return NO_DETAIL if text is None else msgspec.json.decode(text, type=ReasonDetail)


def read_tried(text: str | None) -> list[PastAttempt]:
    """Return the attempts at a run that were followed by another, from their stored text."""
    return [] if text is None else msgspec.json.decode(text, type=list[PastAttempt])


def tried_with(
    tx: Transaction, run: Run, reason: Reason, error: str | None, exit_code: int | None
) -> str:
    """Return the text of the attempts at a run, including the one that has just ended."""
    row = tx.one("SELECT tried, started_at FROM schedule_runs WHERE run_id = ?1", (run.run_id,))
    before, started_at = (None, None) if row is None else row
    line, _, _ = (error or "").partition("\n")
    ended = PastAttempt(run.attempt, started_at, tx.now, reason, exit_code, line[:LONGEST_LINE])
    return msgspec.json.encode([*read_tried(before), ended][-MOST_TRIED:]).decode()


def full_groups(tx: Transaction) -> set[str]:
    """Return the groups that have no free place."""
    return {name for name, places, used in tx.all(GROUPS) if used >= places}


def release(tx: Transaction, schedule_id: str, run: Run | None) -> None:
    """Let a queued run start; None does nothing."""
    if run is None:
        return
    lift_limit(tx, schedule_id, run)
    write(tx, RELEASE, apply(run, Release(run), now=tx.now), tx.now)
    tx.emit(RunReleased(schedule_id, run.run_id, run.run_at))


def replace_due(tx: Transaction, due: Iterable[tuple[str, Due | None]]) -> None:
    """Write the new due row of each of these schedules, or delete it.

    If another node has newer zone data, all due rows are marked to be recomputed: see
    `stores/sql/zone_data.py`.
    """
    write_due(tx, due)
    if zone_data(tx) > VERSION:
        tx.run("INSERT INTO meta (name, value) VALUES ('tz_stale', '1') ON CONFLICT DO NOTHING")


def write_due(tx: Transaction, due: Iterable[tuple[str, Due | None]]) -> None:
    """Do the same where this program's zone data is known not to be outdated."""
    removed: list[Value] = []
    rows: list[Value] = []
    for schedule_id, each in due:
        if each is None:
            removed.append(schedule_id)
        else:
            rows += (each.due_at, schedule_id, each.run_at)
    tx.many("DELETE FROM due WHERE schedule_id IN ({?text})", removed)
    tx.many(REPLACE_DUE, rows)


def definition_of(tx: Transaction, schedule_id: str) -> Schedule | None:
    """Return a schedule as currently defined, or None if it was deleted or cannot be read."""
    sql = "SELECT definition FROM schedules WHERE schedule_id = ?1 AND deleted_at IS NULL"
    return read_definition(schedule_id, tx.value(sql, (schedule_id,)))


def definitions_of(
    tx: Transaction, schedule_id: str, revision: int
) -> tuple[Schedule | None, Schedule | None]:
    """Return a schedule as defined at this revision, and as defined now.

    The first is None if the schedule was deleted since, even if it was defined again; the second
    if it is deleted now. Either is None if it cannot be read.
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
    """Return a schedule as defined at this revision, even if it was deleted since."""
    for _, own, *_ in tx.all(DEFINITIONS, (schedule_id, revision)):
        return read_definition(schedule_id, own)
    return None


def read_definition(schedule_id: str, text: str | None) -> Schedule | None:
    """Return the schedule that a text defines, or None without a text or if it cannot be read."""
    try:
        return None if text is None else from_definition(schedule_id, text)
    except InvalidSchedule:
        return None


def gate_is_open(tx: Transaction) -> bool:
    """Return whether the gate is open: whether anything may be decided and started."""
    return tx.one("SELECT 1 FROM meta WHERE name = 'gate_closed_at'") is None


def gate_closed_at(tx: Transaction) -> int | None:
    """Return when the gate was closed, or None if it is open."""
    closed_at = tx.value("SELECT value FROM meta WHERE name = 'gate_closed_at'")
    return None if closed_at is None else int(closed_at)


def zone_data(tx: Transaction) -> str:
    """Return the version of the zone data that due rows were computed with."""
    return tx.value("SELECT value FROM meta WHERE name = 'tz'") or ""


def may_start(tx: Transaction, node: Node) -> bool:
    """Return whether a node may start runs: the gate is open and the node is registered.

    Both hold until the end of the transaction: the gate and the node's row are locked.
    """
    tx.keep_gate()
    row = tx.one("SELECT 1 FROM nodes WHERE node_id = ?1 FOR KEY SHARE", (node.node_id,))
    return row is not None and gate_is_open(tx)


def late_by(tx: Transaction, due_at: int) -> int:
    """Return how late a run starts now, in milliseconds, or 0 below the threshold `LATE`."""
    late = tx.now - due_at
    return late if late >= LATE else 0


def failures_of(tx: Transaction, schedule_id: str) -> int:
    """Return how many runs of a schedule have failed in a row."""
    sql = "SELECT consecutive_failures FROM schedule_state WHERE schedule_id = ?1"
    return tx.value(sql, (schedule_id,)) or 0


def storable_text(text: str) -> str:
    """Return a text that every database accepts: without lone surrogates and without NUL."""
    return text.encode(errors="replace").decode().replace("\0", "\N{SYMBOL FOR NULL}")

"""Claiming, announcing and finishing runs, and what a node finds at its start.

A claim gives a run a new fence; whoever comes later with an older one changes nothing.
"""

from collections.abc import Container, Iterable, Sequence

from msgspec.structs import replace

from onbeat.core.model import Past
from onbeat.core.plan import Launch, Queue, Retry, Skip, after, judge, next_due, to_release
from onbeat.core.runs import Canceled, Failed, Lost, Outcome, Run, Status, Succeeded
from onbeat.core.schedules import Schedule, from_definition
from onbeat.core.zones import VERSION
from onbeat.errors import InvalidSchedule, StoreUnusable
from onbeat.events import (
    NodeStarted,
    NodeStopped,
    RunCanceled,
    RunClaimed,
    RunEnqueued,
    RunFailed,
    RunHandedBack,
    RunRetrying,
    RunStarted,
    RunSucceeded,
)
from onbeat.ports import Attempt, Finished, Node, Registered
from onbeat.stores.sqlite.database import LARGEST_SET, Row, Transaction, Value
from onbeat.stores.sqlite.planning import (
    END_WAITING,
    as_json,
    end_waiting,
    may_start,
    release,
    replace_due,
    unfinished_of,
)

LONGEST_TEXT = 64 * 1024  # of a result, an error and the last of what was printed

CLAIMABLE = """
SELECT r.run_id, r.schedule_id, r.run_at, r.due_at, r.attempt, r.fence, r.request_id,
       r.triggered_by, r.iteration, r.tick_count, r.first_run_at, r.inputs, r.created_at,
       s.definition, s.revision, s.user_id
  FROM schedule_runs r INDEXED BY waiting_runs JOIN schedules s USING (schedule_id)
 WHERE r.status = 'ENQUEUED' AND r.leased_by IS NULL AND r.blocked_by IS NULL AND r.due_at <= ?1
   AND r.needs IN (SELECT value FROM json_each(?2)) AND (NOT s.paused OR r.request_id <> '')
 ORDER BY r.priority DESC, r.due_at, r.run_at, r.schedule_id
 LIMIT ?3
"""

CLAIM = """
  WITH given (node_id, fence, revision, at, run_id) AS (VALUES {(?,?,?,?,?)})
UPDATE schedule_runs AS r
   SET leased_by = given.node_id, fence = given.fence, revision = given.revision,
       updated_at = given.at
  FROM given
 WHERE r.run_id = given.run_id
"""

ANNOUNCE = """
UPDATE schedule_runs AS r
   SET status = 'STARTED', attempt = r.attempt + 1, reason = NULL, started_at = ?1, updated_at = ?1
  FROM json_each(?2) AS given
 WHERE r.run_id = given.value ->> 0 AND r.fence = given.value ->> 1
   AND r.status = 'ENQUEUED' AND +r.leased_by = ?3
   AND (r.request_id <> '' OR NOT EXISTS (
        SELECT 1 FROM schedules s WHERE s.schedule_id = r.schedule_id AND s.paused))
RETURNING run_id
"""

HAND_BACK = """
UPDATE schedule_runs AS r
   SET attempt = attempt - (status = 'STARTED'), status = 'ENQUEUED', leased_by = NULL,
       started_at = NULL, fence = fence + 1, updated_at = ?1
  FROM json_each(?2) AS given
 WHERE r.run_id = given.value ->> 0 AND r.fence = given.value ->> 1
   AND r.status IN ('ENQUEUED', 'STARTED') AND r.leased_by IS NOT NULL
RETURNING schedule_id, run_id, run_at, fence
"""

SUCCEED_ALONE = """
  WITH given (run_id, fence, result, log_tail) AS (VALUES {(?,?,?,?)})
UPDATE schedule_runs AS r
   SET status = 'SUCCESS', reason = NULL, error = NULL, exit_code = 0, result = given.result,
       log_tail = given.log_tail, finished_at = ?1, updated_at = ?1, leased_by = NULL,
       fence = r.fence + 1
  FROM given
 WHERE r.run_id = given.run_id AND r.fence = given.fence AND r.status = 'STARTED'
   AND NOT EXISTS (
        SELECT 1 FROM schedule_runs AS q INDEXED BY blocked_runs
         WHERE q.schedule_id = r.schedule_id AND q.blocked_by IS NOT NULL AND q.finished_at IS NULL)
"""

NOTE_SUCCESS = """
UPDATE schedule_state
   SET last_run_at = ?1, last_success_at = ?1, last_exit = 0, consecutive_failures = 0
 WHERE schedule_id IN ({?})
"""

NOTE_FAILURE = """
UPDATE schedule_state
   SET last_run_at = ?1, last_failure_at = ?1, last_exit = ?2,
       consecutive_failures = consecutive_failures + 1
 WHERE schedule_id = ?3
"""

END = """
UPDATE schedule_runs
   SET status = ?3, reason = ?4, error = ?5, exit_code = ?6, log_tail = ?7, finished_at = ?8,
       updated_at = ?8, result = ?9, leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND fence = ?2 AND status = 'STARTED'
"""

TRY_AGAIN = """
UPDATE schedule_runs
   SET status = 'ENQUEUED', reason = ?3, error = ?4, exit_code = ?5, log_tail = ?6, due_at = ?7,
       updated_at = ?8, leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND fence = ?2 AND status = 'STARTED'
"""

STARTED = """
SELECT run_id, run_at, status, due_at, created_at, request_id, attempt, blocked_by
  FROM schedule_runs
 WHERE run_id = ? AND fence = ? AND status = 'STARTED'
"""


def claim(tx: Transaction, node: Node, *, limit: int) -> list[Attempt]:
    """Claim runs for a node. The contract is `Store.claim`."""
    if limit < 1 or not may_start(tx, node):
        return []
    attempts: list[Attempt] = []
    while (left := limit - len(attempts)) and _claim_some(tx, node, left, attempts) == left:
        pass  # some of them were not to start after all: there may be more
    return attempts


def _claim_some(tx: Transaction, node: Node, limit: int, attempts: list[Attempt]) -> int:
    """Look at up to `limit` runs, and claim those that may start; return how many there were."""
    rows = tx.all(CLAIMABLE, (tx.now, as_json(sorted(node.offers)), limit))
    claims: list[Value] = []
    claimed: set[int] = set()
    for row in rows:
        attempt = _attempt(row)
        if attempt is None:
            _refuse(tx, row)
        elif _may_start(tx, row, claimed):
            claimed.add(attempt.run_id)
            attempts.append(attempt)
            claims += (node.node_id, attempt.fence, attempt.revision, tx.now, attempt.run_id)
            tx.tell(
                RunClaimed(
                    attempt.schedule_id, attempt.run_id, attempt.run_at, node.node_id, attempt.fence
                )
            )
    tx.many(CLAIM, claims)
    return len(rows)


def announce(tx: Transaction, node: Node, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Announce claimed runs. The contract is `Store.announce`."""
    if not may_start(tx, node):
        return []
    held = {run_id for (run_id,) in tx.all(ANNOUNCE, (tx.now, _fences(attempts), node.node_id))}
    announced = [attempt for attempt in attempts if attempt.run_id in held]
    tx.events += [
        RunStarted(a.schedule_id, a.run_id, a.run_at, a.attempt, node.node_id, a.fence)
        for a in announced
    ]
    return announced


def hand_back(tx: Transaction, attempts: Iterable[Attempt]) -> None:
    """Free runs that were not launched. The contract is `Store.hand_back`."""
    for row in tx.all(HAND_BACK, (tx.now, _fences(attempts))):
        tx.tell(RunHandedBack(*row))


def finish(tx: Transaction, finished: Sequence[Finished]) -> list[int]:
    """Record outcomes. The contract is `Store.finish`."""
    in_order = {  # schedules with more than successes: the last outcome told is what counts
        each.attempt.schedule_id for each in finished if not isinstance(each.outcome, Succeeded)
    }
    plain, others = finished, list[Finished]()
    if in_order:
        plain = [each for each in finished if each.attempt.schedule_id not in in_order]
        others = [each for each in finished if each.attempt.schedule_id in in_order]
    done: list[int] = []
    for begin in range(0, len(plain), LARGEST_SET):
        done += _succeed(tx, plain[begin : begin + LARGEST_SET], others)
    for each in others:
        attempt = each.attempt
        row = tx.one(STARTED, (attempt.run_id, attempt.fence))
        if row is not None:
            run = Run(row[0], row[1], Status(row[2]), *row[3:])
            _end(
                tx,
                attempt.schedule_id,
                run,
                each.outcome,
                fence=attempt.fence,
                log_tail=each.log_tail,
            )
            done.append(attempt.run_id)
    return done


def _succeed(tx: Transaction, finished: Sequence[Finished], others: list[Finished]) -> list[int]:
    """Record successes together where each is still held and nothing waits for it.

    Returns which; those for which it is not so are added to `others`, found by halving.
    """
    given: list[Value] = []
    for each in finished:
        held = each.attempt
        given += (held.run_id, held.fence, _result(each.outcome), _tail(each.log_tail))
    tx.run("SAVEPOINT successes")
    all_alone = tx.many(SUCCEED_ALONE, given, (tx.now,)) == len(finished)
    if not all_alone:
        tx.run("ROLLBACK TO successes")
    tx.run("RELEASE successes")
    if all_alone:
        attempts = [each.attempt for each in finished]
        tx.many(NOTE_SUCCESS, [attempt.schedule_id for attempt in attempts], (tx.now,))
        tx.events += [RunSucceeded(a.schedule_id, a.run_id, a.run_at, a.attempt) for a in attempts]
        return [attempt.run_id for attempt in attempts]
    if len(finished) == 1:
        others += finished
        return []
    half = len(finished) // 2
    return [*_succeed(tx, finished[:half], others), *_succeed(tx, finished[half:], others)]


def _end(
    tx: Transaction,
    schedule_id: str,
    run: Run,
    outcome: Outcome,
    *,
    fence: int,
    log_tail: str = "",
) -> None:
    """Record one outcome, decide what follows, and release who waited."""
    unfinished = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
    found = after(_definition(tx, schedule_id), run, outcome, unfinished, now=tx.now)
    error, exit_code = _told(outcome)
    ids, held, tail = (schedule_id, run.run_id, run.run_at), (run.run_id, fence), _tail(log_tail)
    if isinstance(found, Retry):
        tx.run(TRY_AGAIN, (*held, found.reason, error, exit_code, tail, found.due_at, tx.now))
        tx.tell(RunRetrying(*ids, run.attempt, found.due_at, found.reason, error or ""))
        return
    result = _result(outcome)
    tx.run(END, (*held, found.status, found.reason, error, exit_code, tail, tx.now, result))
    if found.status is Status.SUCCESS:
        tx.many(NOTE_SUCCESS, [schedule_id], (tx.now,))
        tx.tell(RunSucceeded(*ids, run.attempt))
    elif found.status is Status.CANCELED:
        tx.tell(RunCanceled(*ids, error or ""))
    else:
        tx.run(NOTE_FAILURE, (tx.now, exit_code, schedule_id))
        tx.tell(RunFailed(*ids, run.attempt, str(found.reason), error or ""))
    release(tx, schedule_id, found.release)


def register(tx: Transaction, node: Node) -> Registered:
    """Enter a node and decide what a dead one left. The contract is `Store.register`."""
    _follow_zone_data(tx)
    lost = tx.all(
        "SELECT schedule_id, run_id, run_at, status, due_at, created_at, request_id, attempt, "
        "blocked_by, fence FROM schedule_runs INDEXED BY unfinished_runs "
        "WHERE finished_at IS NULL AND leased_by IS NOT NULL ORDER BY run_id"
    )
    counts = {Status.ENQUEUED: 0, Status.STARTED: 0}
    for schedule_id, run_id, run_at, status, *rest, fence in lost:
        run = Run(run_id, run_at, Status(str(status)), *rest)
        counts[run.status] += 1
        if run.status is Status.STARTED:
            _end(tx, str(schedule_id), run, Lost(), fence=fence)
        else:
            free = tx.all(HAND_BACK, (tx.now, as_json([(run_id, fence)])))
            tx.events += [RunHandedBack(*row) for row in free]
    tx.run("DELETE FROM nodes")
    tx.run(
        "INSERT INTO nodes (node_id, name, offers, started_at, alive_until, version, tz) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (node.node_id, node.name, as_json(sorted(node.offers)), tx.now, tx.now + node.lease,
         node.version, VERSION),
    )  # fmt: skip
    found = Registered(counts[Status.STARTED], counts[Status.ENQUEUED])
    tx.tell(NodeStarted(node.node_id, node.name, found.lost, found.handed_back))
    return found


def heartbeat(tx: Transaction, node: Node) -> None:
    """Say that a node is alive."""
    tx.run(
        "UPDATE nodes SET alive_until = ?, offers = ? WHERE node_id = ?",
        (tx.now + node.lease, as_json(sorted(node.offers)), node.node_id),
    )


def unregister(tx: Transaction, node: Node) -> None:
    """Take a node off the list, and free what it had claimed."""
    held = tx.all(
        "SELECT run_id, fence FROM schedule_runs INDEXED BY unfinished_runs "
        "WHERE finished_at IS NULL AND status = 'ENQUEUED' AND leased_by = ?",
        (node.node_id,),
    )
    for row in tx.all(HAND_BACK, (tx.now, as_json(held))):
        tx.tell(RunHandedBack(*row))
    if tx.run("DELETE FROM nodes WHERE node_id = ?", (node.node_id,)):
        tx.tell(NodeStopped(node.node_id))


def _follow_zone_data(tx: Transaction) -> None:
    """Compute due rows that are to come anew if the zone data is newer than what made them."""
    row = tx.one("SELECT value FROM meta WHERE name = 'tz'")
    if row is not None and str(row[0]) > VERSION:
        problem = f"due ticks were computed with time zone data {row[0]}, this node has {VERSION}"
        raise StoreUnusable(f"{problem}: upgrade the package tzdata")
    if row is not None and row[0] == VERSION:
        return
    tx.run("INSERT OR REPLACE INTO meta (name, value) VALUES ('tz', ?)", (VERSION,))
    zoned = tx.all(
        "SELECT d.schedule_id, s.definition, t.decided_until, t.runs_used, s.created_at FROM due d "
        "JOIN schedules s USING (schedule_id) JOIN schedule_state t USING (schedule_id) "
        "WHERE d.due_at > ? AND s.definition LIKE '%\"timezone\":%'",
        (tx.now,),
    )
    due = []
    for schedule_id, text, until, used, created_at in zoned:
        try:
            schedule = from_definition(str(schedule_id), str(text))
        except InvalidSchedule:
            continue  # the planner will say so
        past = Past(created_at=created_at // 1000, runs_used=used)
        due.append((str(schedule_id), next_due(schedule, until, past)))
    replace_due(tx, due)


def _may_start(tx: Transaction, row: Row, claimed: Container[int]) -> bool:
    """Judge a run again that was decided before it was due; carry out what that says.

    Those `claimed` just now are in flight, though their rows do not say so yet.
    """
    run_id, schedule_id, run_at, due_at, attempt, _, request_id = row[:7]
    run = Run(run_id, run_at, Status.ENQUEUED, due_at, row[12], request_id, attempt)
    if run.request_id or not run.was_deferred:
        return True
    schedule = from_definition(str(schedule_id), str(row[13]))
    if schedule.policy.overlap == "allow":  # nothing is in its way, however much there is
        return True
    unfinished = [
        replace(other, leased=True) if other.run_id in claimed else other
        for other in unfinished_of(tx, [str(schedule_id)]).get(str(schedule_id), [])
    ]
    ids = {other.run_at: other.run_id for other in unfinished if not other.request_id}
    match judge(schedule, run, unfinished, now=tx.now):
        case Launch():
            return True
        case Queue(behind=behind):
            tx.run(
                "UPDATE schedule_runs SET blocked_by = ?, updated_at = ? WHERE run_id = ?",
                (ids[behind], tx.now, run.run_id),
            )
            tx.tell(
                RunEnqueued(
                    str(schedule_id), run.run_id, run.run_at, run.due_at, blocked_by=ids[behind]
                )
            )
        case Skip(reason=reason, blocked_by=blocked_by):
            blocker = ids.get(blocked_by) if blocked_by is not None else None
            end_waiting(tx, str(schedule_id), run, reason, blocked_by=blocker)
    return False


def _attempt(row: Row) -> Attempt | None:
    """Return what a node gets of a run, or None if its schedule cannot be read any more."""
    (run_id, schedule_id, run_at, due_at, attempt, fence, request_id, triggered_by, iteration,
     tick_count, first_run_at, inputs, _, text, revision, user_id) = row  # fmt: skip
    try:
        schedule = from_definition(str(schedule_id), str(text))
    except InvalidSchedule:
        return None
    return Attempt(
        run_id,
        str(schedule_id),
        run_at,
        due_at,
        attempt=attempt + 1,
        fence=fence + 1,
        target=schedule.target,
        request_id=str(request_id),
        triggered_by=triggered_by,
        iteration=iteration,
        tick_count=tick_count,
        first_run_at=first_run_at,
        revision=revision,
        inputs_text=inputs,
        timeout=schedule.policy.timeout,
        user_id=str(user_id),
    )


def _refuse(tx: Transaction, row: Row) -> None:
    """End a waiting run whose schedule cannot be read any more."""
    run_id, schedule_id, run_at, _, attempt = row[:5]
    told = "the schedule's definition cannot be read"
    tx.run(END_WAITING, (run_id, "FAILED", "invalid_target", tx.now, None, told))
    tx.tell(RunFailed(str(schedule_id), run_id, run_at, attempt, "invalid_target", told))
    others = unfinished_of(tx, [str(schedule_id)]).get(str(schedule_id), [])
    release(tx, str(schedule_id), to_release(others, now=tx.now))


def _definition(tx: Transaction, schedule_id: str) -> Schedule | None:
    """Return what a schedule says, or None if it was deleted or cannot be read."""
    row = tx.one(
        "SELECT definition FROM schedules WHERE schedule_id = ? AND deleted_at IS NULL",
        (schedule_id,),
    )
    try:
        return None if row is None else from_definition(schedule_id, str(row[0]))
    except InvalidSchedule:
        return None


def _told(outcome: Outcome) -> tuple[str | None, int | None]:
    """Return the error and the exit code that are kept of an outcome."""
    match outcome:
        case Succeeded():
            return None, 0
        case Failed():
            return _plain(outcome.error[:LONGEST_TEXT]), outcome.exit_code
        case Canceled():
            return _plain(outcome.error[:LONGEST_TEXT]), None
        case Lost():
            return "its node fell silent after announcing it: launched zero or one times", None


def _result(outcome: Outcome) -> str | None:
    """Return a result as it is kept, or a note instead of one that is too long or no JSON."""
    if not isinstance(outcome, Succeeded) or outcome.result is None:
        return None
    try:
        text = as_json(outcome.result)
    except (TypeError, ValueError, RecursionError):
        return as_json(f"<a {type(outcome.result).__name__}, which JSON cannot say>")
    return (
        text
        if len(text) <= LONGEST_TEXT
        else as_json(f"<{len(text)} characters of JSON, not kept>")
    )


def _tail(text: str) -> str | None:
    return _plain(text[-LONGEST_TEXT:]) if text else None


def _plain(text: str) -> str:
    """Return a text without half characters, which a name that is not UTF-8 can bring in."""
    return text.encode(errors="replace").decode()


def _fences(attempts: Iterable[Attempt]) -> str:
    return as_json([(attempt.run_id, attempt.fence) for attempt in attempts])

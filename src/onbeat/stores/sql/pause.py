"""Pause and resume schedules."""

from collections.abc import Iterable, Sequence

from onbeat.core.decide.outcomes import to_release
from onbeat.core.decide.plan import catch_up, due_at, set_aside, split_stale
from onbeat.core.runs.decisions import Due
from onbeat.core.runs.run import Reason, ReasonDetail
from onbeat.core.schedule import Schedule
from onbeat.events import ScheduleResumed
from onbeat.stores.sql.rows import State, end_waiting, release, replace_due, unfinished_of
from onbeat.stores.sql.schedule_rows import (
    StoredSchedule,
    find_all,
    held,
    rest_schedule,
    set_positions,
)
from onbeat.stores.sql.transaction import Transaction
from onbeat.stores.sql.write_decisions import Decided, carry_out


def pause(tx: Transaction, schedule_id: str, *, note: str, until: int | None) -> bool:
    """Pause a schedule. The contract is `Store.pause`."""
    known = held(tx, schedule_id)
    if known.paused and until == known.paused_until and note in ("", known.pause_note):
        return False
    rest_schedule(tx, schedule_id, note=note or known.pause_note, until=until)
    return True


def resume(tx: Transaction, schedule_id: str, *, catchup: bool) -> bool:
    """Resume a schedule. The contract is `Store.resume`."""
    known = held(tx, schedule_id)
    if not known.paused:
        return False
    _resume(tx, known, catchup=catchup)
    return True


def go_on_after_rest(tx: Transaction, schedule_ids: Sequence[str]) -> None:
    """Resume schedules, which are held, whose pause is over."""
    for known in find_all(tx, schedule_ids) if schedule_ids else []:
        _resume(tx, known, catchup=False)


def _resume(tx: Transaction, known: StoredSchedule, *, catchup: bool) -> None:
    schedule_id = known.schedule_id
    tx.run(
        "UPDATE schedules SET paused = 0, pause_note = '', paused_until = NULL, updated_at = ?1 "
        "WHERE schedule_id = ?2",
        (tx.now, schedule_id),
    )
    # One that was to end by itself has, whenever somebody gets round to it; a tick at its very end
    # is not of it.
    end = None if known.paused_until is None else known.paused_until - 1
    over = end is not None and end < tx.now
    next_ticks = reopen(tx, [known], "paused", end if over else None, catchup=catchup)
    tx.run(
        "UPDATE schedule_state SET consecutive_failures = 0 WHERE schedule_id = ?1", (schedule_id,)
    )
    if not next_ticks:  # it cannot be read: the planner will say so
        replace_due(tx, [(schedule_id, Due(tx.now // 1000, tx.now))])
    tx.tell(ScheduleResumed(schedule_id, *next_ticks))


def reopen(
    tx: Transaction,
    stopped: Iterable[StoredSchedule],
    reason: Reason,
    end: int | None = None,
    *,
    catchup: bool = False,
    known_of_it: ReasonDetail | None = None,
) -> list[int | None]:
    """Go on after a pause or a gap: nothing of the past starts, unless it is asked for.

    It was over at `end`, or is right now. Returns the next tick of each. What cannot be read is
    left as it is: the planner will say so.
    """
    end = tx.now if end is None else end
    readable = [(known, found) for known in stopped if (found := known.schedule()) is not None]
    ids = [known.schedule_id for known, _ in readable]
    unfinished = unfinished_of(tx, ids)
    for known, schedule in readable:
        stale, others = split_stale(schedule, unfinished.get(known.schedule_id, ()), now=end)
        detail = known.pause_detail(end) if reason == "paused" else known_of_it
        for run in stale:
            end_waiting(tx, known.schedule_id, run, reason, known=detail)
        release(tx, known.schedule_id, to_release(others, now=tx.now))
    unfinished = unfinished_of(tx, ids)
    decided: list[Decided] = []
    went_by: set[str] = set()  # those that had a tick in the meantime
    for known, schedule in readable:
        run_at, past = known.first_undecided(schedule), known.state.past
        if run_at is None or run_at > end // 1000:
            continue
        if reason != "paused" and due_at(schedule, run_at, past) > tx.now:
            continue  # nothing has kept it from starting in time
        went_by.add(known.schedule_id)
        detail = known.pause_detail(end) if reason == "paused" else known_of_it
        aside = set_aside(schedule, run_at, past, now=end, reason=reason, detail=detail)
        left = unfinished.get(known.schedule_id, ())
        if aside is not None:
            decisions = catch_up(schedule, aside, left, past, now=tx.now) if catchup else (aside,)
            decided.append(Decided(schedule, known.state, decisions, left))
    carry_out(tx, decided)
    states = {known.schedule_id: known.state for known in find_all(tx, ids)}
    positions: list[tuple[Schedule, State, int]] = []
    for _, schedule in readable:
        state = states[schedule.schedule_id]
        until = end // 1000 if schedule.schedule_id in went_by else 0
        positions.append((schedule, state, max(state.decided_until, until)))
    return set_positions(tx, positions)

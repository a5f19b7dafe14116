"""Pause and resume schedules."""

from collections.abc import Iterable, Sequence

from onbeat.core.decide.outcomes import to_release
from onbeat.core.decide.plan import catch_up, due_at, set_aside, split_stale
from onbeat.core.runs.decisions import Decision, Due
from onbeat.core.runs.run import Reason, ReasonDetail
from onbeat.core.schedule import Schedule
from onbeat.events import ScheduleResumed
from onbeat.stores.sql.rows import end_waiting, release, replace_due, unfinished_of
from onbeat.stores.sql.schedule_rows import (
    StoredSchedule,
    find_all,
    hold_schedule,
    pause_schedule,
    set_positions,
)
from onbeat.stores.sql.taken_rows import State
from onbeat.stores.sql.transaction import Transaction
from onbeat.stores.sql.write_decisions import Decided, carry_out


def pause(tx: Transaction, schedule_id: str, *, note: str = "", until: int | None = None) -> bool:
    """Pause a schedule. The contract is `Store.pause`."""
    stored = hold_schedule(tx, schedule_id)
    if stored.paused and until == stored.paused_until and note in ("", stored.pause_note):
        return False
    pause_schedule(tx, schedule_id, note=note or stored.pause_note, until=until)
    return True


def resume(tx: Transaction, schedule_id: str, *, catchup: bool = False) -> bool:
    """Resume a schedule. The contract is `Store.resume`."""
    stored = hold_schedule(tx, schedule_id)
    if not stored.paused:
        return False
    _resume(tx, stored, catchup=catchup)
    return True


def resume_after_pause(tx: Transaction, schedule_ids: Sequence[str]) -> None:
    """Resume schedules, which are held, whose pause has ended."""
    for stored in find_all(tx, schedule_ids) if schedule_ids else []:
        _resume(tx, stored, catchup=False)


def reopen(
    tx: Transaction,
    schedules: Iterable[StoredSchedule],
    reason: Reason,
    end: int | None = None,
    *,
    catchup: bool = False,
    waiting_detail: ReasonDetail | None = None,
) -> list[int | None]:
    """Resume schedules after a pause, a closed gate or a gap that ended at `end`, by default now.

    Past ticks are recorded with `reason` and do not start, except with `catchup`. Returns the next
    tick of each. A schedule whose definition cannot be read is left as it is: the planner reports
    it.
    """
    end = tx.now if end is None else end
    readable = [(stored, found) for stored in schedules if (found := stored.schedule()) is not None]
    ids = [stored.schedule_id for stored, _ in readable]
    unfinished = unfinished_of(tx, ids)
    for stored, schedule in readable:
        stale, others = split_stale(schedule, unfinished.get(stored.schedule_id, ()), now=end)
        detail = stored.pause_detail(end) if reason == "paused" else waiting_detail
        for run in stale:
            end_waiting(tx, stored.schedule_id, run, reason, detail=detail)
        release(tx, stored.schedule_id, to_release(others, now=tx.now))
    unfinished = unfinished_of(tx, ids)
    decided: list[Decided] = []
    ticked: set[str] = set()  # schedules that had a tick in the meantime
    for stored, schedule in readable:
        run_at, past = stored.first_undecided(schedule), stored.state.past
        if run_at is None or run_at > end // 1000:
            continue
        if reason != "paused" and due_at(schedule, run_at, past) > tx.now:
            continue  # it can still start in time
        ticked.add(stored.schedule_id)
        detail = stored.pause_detail(end) if reason == "paused" else waiting_detail
        skipped = set_aside(schedule, run_at, past, now=end, reason=reason, detail=detail)
        left = unfinished.get(stored.schedule_id, ())
        if skipped is not None:
            decisions: Sequence[Decision] = (skipped,)
            if catchup:
                decisions = catch_up(schedule, skipped, left, past, now=tx.now)
            decided.append(Decided(schedule, stored.state, decisions, left))
    carry_out(tx, decided)
    states = {stored.schedule_id: stored.state for stored in find_all(tx, ids)}
    positions: list[tuple[Schedule, State, int]] = []
    for _, schedule in readable:
        state = states[schedule.schedule_id]
        until = end // 1000 if schedule.schedule_id in ticked else 0
        positions.append((schedule, state, max(state.decided_until, until)))
    return set_positions(tx, positions)


def _resume(tx: Transaction, stored: StoredSchedule, *, catchup: bool) -> None:
    schedule_id = stored.schedule_id
    tx.run(
        "UPDATE schedules SET paused = 0, pause_note = '', paused_until = NULL, updated_at = ?1 "
        "WHERE schedule_id = ?2",
        (tx.now, schedule_id),
    )
    # A pause with an end has ended then, however late that is noticed; a tick at that very instant
    # is after the pause.
    end = None if stored.paused_until is None else stored.paused_until - 1
    has_ended = end is not None and end < tx.now
    next_ticks = reopen(tx, [stored], "paused", end if has_ended else None, catchup=catchup)
    tx.run(
        "UPDATE schedule_state SET consecutive_failures = 0 WHERE schedule_id = ?1", (schedule_id,)
    )
    if not next_ticks:  # the definition cannot be read: the planner reports it
        replace_due(tx, [(schedule_id, Due(tx.now // 1000, tx.now))])
    tx.emit(ScheduleResumed(schedule_id, *next_ticks))

"""Open and close the gate."""

from onbeat.core.runs.run import ReasonDetail
from onbeat.events import GateChanged
from onbeat.stores.sql.pause import reopen
from onbeat.stores.sql.rows import IS_ENQUEUED, KEEP, gate_closed_at, gate_is_open
from onbeat.stores.sql.schedule_rows import find_all
from onbeat.stores.sql.transaction import Transaction
from onbeat.stores.sql.zone_data import follow_held

REOPEN_BATCH = 1000  # schedules that are read into memory together when the gate opens


def set_gate(tx: Transaction, *, is_open: bool) -> bool:
    """Open or close the gate. The contract is `Store.set_gate`."""
    tx.hold_gate()
    if gate_is_open(tx) == is_open:
        return False
    if is_open:
        closed = ReasonDetail(since=gate_closed_at(tx), until=tx.now)
        tx.run("DELETE FROM meta WHERE name = 'gate_closed_at'")
        delayed = tx.column(
            "SELECT schedule_id FROM due WHERE run_at <= ?1 UNION SELECT r.schedule_id "
            "FROM schedule_runs r JOIN schedules s USING (schedule_id) WHERE r.finished_at IS NULL "
            f"AND r.{IS_ENQUEUED} AND s.paused = 0 AND s.deleted_at IS NULL ORDER BY 1",
            (tx.now // 1000,),  # by `run_at`: a tick that is due may have been put off
        )
        for begin in range(0, len(delayed), REOPEN_BATCH):
            ids = delayed[begin : begin + REOPEN_BATCH]
            tx.hold(ids)
            follow_held(tx, ids)
            live = [stored for stored in find_all(tx, ids) if not (stored.paused or stored.deleted)]
            reopen(tx, live, "gate_off", waiting_detail=closed)
    else:
        tx.run(KEEP, ("gate_closed_at", str(tx.now)))
    tx.emit(GateChanged(is_open))
    return True

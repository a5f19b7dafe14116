"""The nodes of a store: registration, heartbeats, and the runs of silent nodes."""

from collections.abc import Collection, Sequence

from onbeat.core.runs.phase import STARTED
from onbeat.core.time.zones import VERSION
from onbeat.events import NodeLost, NodeStarted, NodeStopped
from onbeat.ports.store import HeartbeatResult, Node, RescueResult
from onbeat.stores.sql import zone_data
from onbeat.stores.sql.followers import cause_startup, hold_with_followers
from onbeat.stores.sql.lost import end_runs_of, free
from onbeat.stores.sql.restored import refuse_half_restored
from onbeat.stores.sql.rows import IS_STARTED, stored_runs
from onbeat.stores.sql.taken_rows import RUN_COLUMNS, StoredRun
from onbeat.stores.sql.transaction import Transaction, as_json

BATCH = 500  # schedules of a silent node that are decided in one transaction
NO_LIMIT = 2**62

SILENT = """
SELECT node_id, name FROM nodes WHERE alive_until < ?1 AND node_id <> ?2
 ORDER BY node_id LIMIT 1 FOR UPDATE SKIP LOCKED
"""

LEASED_BY = """
SELECT DISTINCT leased_by FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND leased_by IS NOT NULL
"""

HELD_SCHEDULES = """
SELECT DISTINCT schedule_id FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND leased_by = ?1
 ORDER BY schedule_id LIMIT ?2
"""

ENTER = """
INSERT INTO nodes (node_id, name, roles, offers, started_at, alive_until, version, tz, address)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
"""

UP_SINCE = """
INSERT INTO node_times (node_id, name, plans, started_at) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (node_id, started_at) DO UPDATE SET ended_at = NULL, is_lost = 0
"""

# A silent node counts as up until its lease ended; nothing later is known.
UP_UNTIL_SILENT = """
UPDATE node_times AS t SET is_lost = 1, ended_at = coalesce(
        (SELECT CASE WHEN alive_until < ?2 THEN alive_until ELSE ?2 END FROM nodes n
          WHERE n.node_id = t.node_id AND alive_until >= t.started_at), ?2)
 WHERE node_id = ?1 AND ended_at IS NULL
"""

UP_UNTIL = "UPDATE node_times SET ended_at = ?2 WHERE node_id = ?1 AND ended_at IS NULL"

LOCK_NODE = "SELECT 1 FROM nodes WHERE node_id = ?1 FOR UPDATE"

# A request to cancel an announced run updates it, which does not count here.
HELD_BEFORE = f"""
SELECT {RUN_COLUMNS} FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND leased_by = ?1
   AND CASE WHEN {IS_STARTED} THEN started_at ELSE updated_at END < ?2
 ORDER BY schedule_id
"""

HELD = f"""
SELECT {RUN_COLUMNS} FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND leased_by = ?1
"""


def register(tx: Transaction, node: Node, found: RescueResult) -> RescueResult:
    """Register a node. The contract is `Store.register`.

    `found` counts what was decided of silent nodes before. On a store that is not shared the node
    is alone: every other node is dead, whatever its lease says.
    """
    refuse_half_restored(tx)
    if not tx.is_shared:
        zone_data.begin(tx)
        found = _end_all(tx)
    is_start = "plan" in node.roles and _is_start(tx)
    tx.run(
        ENTER,
        (node.node_id, node.name, as_json(sorted(node.roles)), as_json(sorted(node.offers)),
         tx.now, tx.now + node.lease, node.version, VERSION, node.address),
    )  # fmt: skip
    plans = int("plan" in node.roles)
    tx.run(UP_SINCE, (node.node_id, node.name, plans, tx.now))
    tx.emit(NodeStarted(node.node_id, node.name, found.lost, found.handed_back))
    if is_start:
        cause_startup(tx)
    return found


def _is_start(tx: Transaction) -> bool:
    """Return whether no other node plans: the scheduler starts. Only one node can find so."""
    tx.hold_definitions()
    others = tx.all("SELECT roles FROM nodes WHERE alive_until >= ?1", (tx.now,))
    return not any('"plan"' in roles for (roles,) in others)


def _end_all(tx: Transaction) -> RescueResult:
    """Decide the runs that other nodes hold, registered or not."""
    names: dict[str, str] = dict(tx.all("SELECT node_id, name FROM nodes"))
    node_ids = sorted(names.keys() | set(tx.column(LEASED_BY)))
    found = RescueResult()
    for node_id in node_ids:
        found += _give_up(tx, node_id, names.get(node_id, ""))
    tx.run("DELETE FROM nodes")
    return found


def end_orphans(tx: Transaction) -> RescueResult:
    """Decide runs of nodes that are not registered: there should be none."""
    found = RescueResult()
    for (node_id,) in tx.all(f"{LEASED_BY} AND leased_by NOT IN (SELECT node_id FROM nodes)"):
        found += _give_up(tx, node_id, "")
    return found


def _give_up(tx: Transaction, node_id: str, name: str) -> RescueResult:
    """Decide all runs that a node holds."""
    ids = tx.column(HELD_SCHEDULES, (node_id, NO_LIMIT))
    hold_with_followers(tx, ids)
    found = RescueResult(*end_runs_of(tx, [node_id], ids))
    tx.run(UP_UNTIL_SILENT, (node_id, tx.now))
    tx.emit(NodeLost(node_id, name, found.lost, found.handed_back))
    return found


def rescue(tx: Transaction, node: Node) -> RescueResult | None:
    """Decide the runs of a silent node. The contract is `Store.rescue`."""
    row = tx.one(SILENT, (tx.now, node.node_id)) if tx.is_shared else None
    if row is None:
        return None
    node_id, name = row
    ids = tx.column(HELD_SCHEDULES, (node_id, BATCH))
    hold_with_followers(tx, ids)
    found = RescueResult(*end_runs_of(tx, [node_id], ids))
    if len(ids) < BATCH:
        tx.run(UP_UNTIL_SILENT, (node_id, tx.now))
        tx.run("DELETE FROM nodes WHERE node_id = ?1", (node_id,))
        tx.emit(NodeLost(node_id, name, found.lost, found.handed_back))
    return found


def heartbeat(tx: Transaction, node: Node) -> HeartbeatResult:
    """Renew the lease of a node. The contract is `Store.heartbeat`."""
    stop_asked = tx.value(
        "UPDATE nodes SET alive_until = ?1, offers = ?2 WHERE node_id = ?3 RETURNING stop_asked",
        (tx.now + node.lease, as_json(sorted(node.offers)), node.node_id),
    )
    if stop_asked is None:
        return HeartbeatResult(is_known=False)
    silent = None
    if tx.is_shared:
        silent = tx.one("SELECT 1 FROM nodes WHERE alive_until < ?1 LIMIT 1", (tx.now,))
    return HeartbeatResult(
        is_known=True, is_stop_requested=bool(stop_asked), others_are_silent=silent is not None
    )


def request_stop(tx: Transaction, node_ids: Collection[str]) -> int:
    """Ask nodes to stop. The contract is `Store.request_stop`."""
    return tx.run("UPDATE nodes SET stop_asked = 1 WHERE node_id IN (?1[])", (list(node_ids),))


def release_unknown(
    tx: Transaction, node: Node, known: Collection[tuple[int, int]], *, before: int
) -> int:
    """Free runs that a node holds and does not know. The contract is `Store.release_unknown`."""
    # A call of this node that is still under way locks its row: wait for its end.
    if tx.one(LOCK_NODE, (node.node_id,)) is None:
        return 0
    held = stored_runs(tx, HELD_BEFORE, (node.node_id, before))
    unknown = [stored for stored in held if (stored.run_id, stored.fence) not in known]
    _free(tx, unknown)
    return len(unknown)


def unregister(tx: Transaction, node: Node) -> None:
    """Remove a node. The contract is `Store.unregister`."""
    # As above: a call of this node that is still under way may have given it runs.
    if tx.one(LOCK_NODE, (node.node_id,)) is None:
        return
    tx.run("UPDATE nodes SET alive_until = 0 WHERE node_id = ?1", (node.node_id,))
    held = stored_runs(tx, HELD, (node.node_id,))
    claimed = [stored for stored in held if stored.phase not in STARTED]
    _free(tx, claimed)
    if len(claimed) == len(held):  # else `rescue` decides the others
        tx.run("DELETE FROM nodes WHERE node_id = ?1", (node.node_id,))
    tx.run(UP_UNTIL, (node.node_id, tx.now))
    tx.emit(NodeStopped(node.node_id))


def _free(tx: Transaction, runs: Sequence[StoredRun]) -> None:
    tx.hold({stored.schedule_id for stored in runs})
    free(tx, [value for stored in runs for value in (stored.run_id, stored.fence)])

"""Groups and their concurrency limits."""

from collections.abc import Sequence

from onbeat.core.schedule import Schedule
from onbeat.events import GroupChanged
from onbeat.stores.sql.transaction import Transaction


def set_group(tx: Transaction, name: str, *, places: int) -> bool:
    """Set how many places a group has. The contract is `Store.set_group`."""
    if tx.one("SELECT places FROM groups WHERE name = ?1 FOR UPDATE", (name,)) == (places,):
        return False
    tx.run(
        "INSERT INTO groups (name, places) VALUES (?1, ?2) "
        "ON CONFLICT (name) DO UPDATE SET places = ?2",
        (name, places),
    )
    tx.emit(GroupChanged(name, places))
    return True


def keep_groups(tx: Transaction, schedules: Sequence[Schedule]) -> None:
    """Create the groups that schedules name and that do not exist yet, with one place."""
    names = {schedule.policy.group for schedule in schedules} - {None}
    tx.many(
        "INSERT INTO groups (name, places) VALUES {(?text,1)} ON CONFLICT (name) DO NOTHING",
        sorted(names),  # type: ignore[type-var]  # without None
    )

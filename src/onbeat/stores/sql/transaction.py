"""The transaction that a call works on, and the SQL notation that every database understands.

Statements are written in the SQL that SQLite and PostgreSQL share, with this notation:

    ?1, ?2           a value, by its number
    IN (?1[])        one of a list of values, which is one binding
    VALUES {(...)}   one row for each of many, whose own values are ?int and ?text
    IN ({?text})     one of many values, each a binding of its own
    INDEXED BY ...   for SQLite only; FOR UPDATE and FOR KEY SHARE for PostgreSQL only

One schedule has one writer: a transaction that decides, ends, edits, pauses or deletes holds the
schedule's state row. Locks are taken in one order, so that there are no deadlocks: the gate, the
definitions, a node's row, then state rows by id. Only SKIP LOCKED reads take rows in another order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec.structs import replace

from onbeat.events import Event, RunSucceeded, encode_events
from onbeat.ports.store import CheckChange
from onbeat.stores.sql.taken_rows import DueRow, WaitingRow

Row = tuple[Any, ...]  # with the columns of its statement
Value = int | float | str | None
Values = Sequence[Value]
Bindings = Sequence[Value | Sequence[Value]]
T = TypeVar("T")

MOST_EVENTS = 1000  # in one row: readers read whole rows


class Transaction(ABC):
    """One transaction: it reads, writes and emits events.

    `now` is read once, and again after waiting for locks. `by` names the caller, and `only_owner`
    the owner that it is restricted to: other owners' schedules do not exist for it. `check_change`
    refuses changes of definitions that the caller may not make. `marks_successes`: whether a
    channel wants to be notified of every successful run.
    """

    __slots__ = ("by", "check_change", "events", "marks_successes", "now", "only_owner")

    is_shared: ClassVar[bool]  # whether other nodes plan and run on the same database
    SIZE: ClassVar[str]  # the statement that returns the size of all tables on disk, in bytes

    def __init__(self, now: int) -> None:
        self.now = now
        self.events: list[Event] = []
        self.by = ""
        self.only_owner: str | None = None
        self.check_change: CheckChange | None = None
        self.marks_successes = False

    @property
    def written_at(self) -> str:
        """The SQL expression of the time when a statement is executed; ?1 is `now`."""
        return "?1"

    @property
    def due_from(self) -> int:
        """The instant from which on to look for due rows."""
        return 0

    def oldest_writer(self, before: int) -> int | None:  # noqa: ARG002 - for shared stores
        """Return when the oldest open transaction began that may have events of `before`."""
        return None

    @abstractmethod
    def all(self, sql: str, bindings: Bindings = ()) -> list[Row]:
        """Return the rows of a statement."""

    @abstractmethod
    def one(self, sql: str, bindings: Bindings = ()) -> Row | None:
        """Return the first row of a statement."""

    def value(self, sql: str, bindings: Bindings = ()) -> Any:  # noqa: ANN401 - its column's type
        """Return the value of a statement with one column and at most one row; None: no row."""
        row = self.one(sql, bindings)
        if row is None:
            return None
        (value,) = row
        return value

    def column(self, sql: str, bindings: Bindings = ()) -> list[Any]:
        """Return the values of a statement with one column."""
        return [value for (value,) in self.all(sql, bindings)]

    @abstractmethod
    def run(self, sql: str, bindings: Bindings = ()) -> int:
        """Execute a statement and return how many rows it changed."""

    @abstractmethod
    def many(self, sql: str, values: Values, first: Bindings = ()) -> int:
        """Execute a statement for many rows, if there are any; return how many rows it changed.

        `values` has the values of each row, row after row; `first` binds ?1, ?2, … for all rows.
        """

    @abstractmethod
    def each(self, sql: str, values: Values, first: Bindings = ()) -> list[Row]:
        """Execute a statement for many rows, as `many`; return the rows that it returns."""

    @abstractmethod
    def hold(self, schedule_ids: Collection[str]) -> None:
        """Lock the state rows of schedules, in the order of ids, until the transaction ends."""

    @abstractmethod
    def hold_definitions(self) -> None:
        """Lock the set of schedules: only this transaction adds or removes any until its end."""

    @abstractmethod
    def keep_gate(self) -> None:
        """Lock the gate in share mode: it does not change until the end of the transaction."""

    @abstractmethod
    def hold_gate(self) -> None:
        """Lock the gate exclusively until the end: wait for all who hold it in share mode."""

    @abstractmethod
    def take_due(self, limit: int) -> list[DueRow]:
        """Lock due rows; return them in time order. Rows locked by others are left out."""

    @abstractmethod
    def take_waiting(
        self, needs: Sequence[str], limit: int, but_groups: Sequence[str], but: Sequence[str]
    ) -> list[WaitingRow]:
        """Lock runs that may be claimed, and their schedules; return them in the order to start.

        Rows locked by others are left out, and so are those of `but_groups` and of the schedules
        `but`.
        """

    @abstractmethod
    def take_groups(self, names: Sequence[str]) -> dict[str, int]:
        """Lock groups, except those locked by others; return how many places each has."""

    @abstractmethod
    def take_run_ids(self, n: int) -> Sequence[int]:
        """Return `n` new run ids in ascending order."""

    @abstractmethod
    def leave_out_ids(self, n: int) -> None:
        """Skip `n` run ids and `n` event row ids."""

    def emit(self, event: Event) -> None:
        """Write an event with this transaction."""
        self.events.append(event)

    def write_events(self) -> None:
        """Write the emitted events, MOST_EVENTS to a row."""
        if not self.events:
            return
        if self.by:
            self.events = [replace(event, by=self.by) for event in self.events]
        for begin in range(0, len(self.events), MOST_EVENTS):
            self._write_row(self.events[begin : begin + MOST_EVENTS])

    def _write_row(self, events: list[Event]) -> None:
        is_notable = any(event.is_notable for event in events) or (
            self.marks_successes and any(isinstance(each, RunSucceeded) for each in events)
        )
        # The time of writing, not of the beginning of the transaction: readers take old events for
        # complete, and no row may appear among them afterwards.
        self.run(
            "INSERT INTO events (at, body, asked_by, to_notify) "
            f"VALUES ({self.written_at}, ?2, ?3, ?4)",
            (self.now, encode_events(events), self.by or None, 1 if is_notable else None),
        )


Call = Callable[[Transaction], T]


def as_json(value: object) -> str:
    """Return a value as JSON text."""
    return _JSON.encode(value).decode()


_JSON = msgspec.json.Encoder()

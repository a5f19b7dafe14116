"""What a call works on: one transaction, and one notation that every database reads.

Statements are written in what SQLite and PostgreSQL share, with these signs:

    ?1, ?2           a value, by its number
    IN (?1[])        one of a list of values
    VALUES {(...)}   a row for each of many, whose own values are ?int and ?text
    IN ({?text})     one of many values, which are not a binding but many
    INDEXED BY ...   is for SQLite alone, FOR UPDATE and FOR KEY SHARE for PostgreSQL alone

One schedule has one writer: whoever decides, ends, edits, pauses or deletes holds the schedule's
state row. All but those who take only what is free hold them in the order of their ids, after the
gate, the definitions and a node's row; so nobody waits in a circle.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec.structs import replace

from onbeat.events import Event, RunSucceeded, encode_events
from onbeat.ports.store import CheckChange

Row = tuple[Any, ...]  # what a column holds, its statement says
Value = int | float | str | None
Values = Sequence[Value]
Bindings = Sequence[Value | Sequence[Value]]
T = TypeVar("T")

MOST_EVENTS = 1000  # in one row: who reads events reads whole rows


class Transaction(ABC):
    """What a call may do: read, write, and tell what happened.

    `now` is read once, or again when what was to be held was waited for. `by` is who asked for it,
    and `only_of` whose schedules that is about: to them there are no others. `check_change` refuses
    changes of definitions that the caller may not make. `marks_successes` is whether somebody wants
    to hear of every run that succeeds.
    """

    __slots__ = ("by", "check_change", "events", "marks_successes", "now", "only_of")

    is_shared: ClassVar[bool]  # whether other nodes plan and run on the same database
    SIZE: ClassVar[str]  # the statement that tells what all tables take on disk, in bytes

    def __init__(self, now: int) -> None:
        self.now = now
        self.events: list[Event] = []
        self.by = ""
        self.only_of: str | None = None
        self.check_change: CheckChange | None = None
        self.marks_successes = False

    @property
    def written_at(self) -> str:
        """What time it is when a statement is executed, as the statement says it; ?1 is `now`."""
        return "?1"

    @property
    def due_from(self) -> int:
        """From when on there can be due rows that are worth a look."""
        return 0

    def oldest_writer(self, before: int) -> int | None:  # noqa: ARG002 - of those that are shared
        """Return since when a transaction is open that may have written an event by `before`."""
        return None

    @abstractmethod
    def all(self, sql: str, bindings: Bindings = ()) -> list[Row]:
        """Return the rows of a statement."""

    @abstractmethod
    def one(self, sql: str, bindings: Bindings = ()) -> Row | None:
        """Return the first row of a statement."""

    @abstractmethod
    def run(self, sql: str, bindings: Bindings = ()) -> int:
        """Execute a statement and return how many rows it changed."""

    @abstractmethod
    def many(self, sql: str, values: Values, first: Bindings = ()) -> int:
        """Execute a statement for many rows, if there are any; return how many it changed.

        `values` are the rows' own, row after row; `first` are ?1, ?2 and so on, the same for all.
        """

    @abstractmethod
    def each(self, sql: str, values: Values, first: Bindings = ()) -> list[Row]:
        """Do the same, and return the rows that the statement returns."""

    @abstractmethod
    def hold(self, schedule_ids: Collection[str]) -> None:
        """Be the only one who decides about these schedules until the end; wait for who is."""

    @abstractmethod
    def hold_definitions(self) -> None:
        """Be the only one who adds or forgets schedules until the end."""

    @abstractmethod
    def keep_gate(self) -> None:
        """Let nobody turn the gate until the end."""

    @abstractmethod
    def hold_gate(self) -> None:
        """Wait for all who keep the gate as it is, and let nobody do so until the end."""

    @abstractmethod
    def take_due(self, limit: int) -> list[Row]:
        """Return due rows in time order, with what their schedules say, and hold them.

        Those that somebody else holds are left to them. Each row has the columns of `rows.DueRow`.
        """

    @abstractmethod
    def take_waiting(
        self, needs: Sequence[str], limit: int, but_groups: Sequence[str], but: Sequence[str]
    ) -> list[Row]:
        """Return runs that may be claimed, the first to start first, and hold their schedules.

        Those that somebody else holds are left to them, and so are those of some groups and of some
        schedules. Each row has the columns of `rows.WaitingRow`.
        """

    @abstractmethod
    def take_groups(self, names: Sequence[str]) -> dict[str, int]:
        """Hold groups, but for those that somebody else holds; return how many places each has."""

    @abstractmethod
    def take_run_ids(self, n: int) -> Sequence[int]:
        """Return `n` run ids that nothing else will have, later ones greater."""

    @abstractmethod
    def leave_out_ids(self, n: int) -> None:
        """Give `n` run ids, and as many numbers of event rows, to nobody."""

    def tell(self, event: Event) -> None:
        """Have an event written with this transaction."""
        self.events.append(event)

    def write_events(self) -> None:
        """Write what was told: as one row, or as several if that is a lot."""
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
        # Of when it is written, not of when the transaction began: who follows events takes those
        # of long ago for complete, and no row is to appear among them afterwards.
        self.run(
            "INSERT INTO events (at, body, asked_by, to_notify) "
            f"VALUES ({self.written_at}, ?2, ?3, ?4)",
            (self.now, encode_events(events), self.by or None, 1 if is_notable else None),
        )


Call = Callable[[Transaction], T]


def as_json(value: object) -> str:
    """Return a value as it is kept."""
    return _JSON.encode(value).decode()


_JSON = msgspec.json.Encoder()

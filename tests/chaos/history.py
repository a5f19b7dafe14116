"""All that is left in the end: the rows, the events, and the witness of the targets themselves."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from onbeat.core.runs.phase import Phase
from onbeat.events import AnyEvent, encode_events

UNFINISHED = ("ENQUEUED", "STARTED")
COLUMNS = (
    "run_id", "schedule_id", "run_at", "request_id", "phase", "reason", "attempt", "iteration",
    "tick_count", "first_run_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A run as the store has it in the end."""

    run_id: int
    schedule_id: str
    run_at: int
    request_id: str
    phase: str
    reason: str | None
    attempt: int
    iteration: int
    tick_count: int
    first_run_at: int | None

    @property
    def status(self) -> str:
        """The status that belongs to the phase."""
        return Phase(self.phase).facts.status


@dataclass(frozen=True, slots=True)
class Seen:
    """A line of the witness: an attempt that was really launched, and when (in milliseconds)."""

    run_id: int
    attempt: int
    key: str
    schedule_id: str
    at: int


@dataclass(slots=True)
class History:
    """What a checker judges."""

    rows: dict[int, Row]
    # With their time, in the order of commits: on PostgreSQL only for what concerns one schedule,
    # one node, or the gate.
    events: list[tuple[int, AnyEvent]]
    witness: list[Seen]
    live: set[str]  # the schedules that are there
    due: Counter[str]  # their due rows
    nodes: list[str]  # those on the list
    # Instants at which each schedule began or ceased to say something, as the store keeps them. An
    # event is written later: by seconds, if the server is paused in between.
    changed_at: dict[str, list[int]] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)  # what is wrong with the database itself
    halted: set[tuple[int, int]] = field(default_factory=set)  # attempts, just before the launch
    orphans: list[str] = field(default_factory=list)  # processes that no node holds any more
    broken_off: list[str] = field(default_factory=list)  # what ended, or was refused, by itself
    manual: set[tuple[str, str]] = field(default_factory=set)  # acknowledged: schedule, request
    tokens: set[str] = field(default_factory=set)  # acknowledged: notes of pauses, marks of edits

    def keep(self, folder: Path) -> None:
        """Write the rows and events to a folder, for whoever looks into what is wrong."""
        rows = [json.dumps(asdict(row)) for row in self.rows.values()]
        (folder / "rows.jsonl").write_text("\n".join(rows))
        told = [f"{at} {encode_events([event])[1:-1]}" for at, event in self.events]
        (folder / "events.txt").write_text("\n".join(told))


def read_witness(path: Path) -> list[Seen]:
    """Read what the targets left, whose clock counts from the start of the machine."""
    began = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    return [
        Seen(int(run_id), int(attempt), key, schedule_id, round((began + float(up)) * 1000))
        for run_id, attempt, key, schedule_id, up in _words(path)
    ]


def read_halted(path: Path) -> set[tuple[int, int]]:
    """Read which attempts were judged to be in time by a node that was halted just then."""
    return {(int(run_id), int(attempt)) for run_id, attempt in _words(path)}


def _words(path: Path) -> Iterable[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

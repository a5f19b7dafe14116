"""The facts about a store that `onbeat doctor` judges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onbeat.events import ScheduleParked, decode_events
from onbeat.ports.rows import Overview, StoreFigures
from onbeat.stores.sql import queries
from onbeat.stores.sql.rows import IS_STARTED, zone_data
from onbeat.stores.sql.transaction import Transaction

MOST_NAMES = 10  # of a kind
MOST_DEFINITIONS = 10_000
FAILING = 5  # runs in a row
PARKED_LATELY = 600_000  # milliseconds

WITHOUT_TICKS = """
SELECT s.schedule_id FROM schedules s LEFT JOIN due d USING (schedule_id)
 WHERE s.deleted_at IS NULL AND s.paused = 0 AND d.schedule_id IS NULL
   AND NOT EXISTS (SELECT 1 FROM follows f
                    WHERE f.schedule_id = s.schedule_id AND f.followed <> s.schedule_id)
   AND NOT EXISTS (SELECT 1 FROM schedule_runs r
                    WHERE r.schedule_id = s.schedule_id AND r.finished_at IS NULL)
   AND s.definition NOT LIKE '%"manual":true%'
 ORDER BY s.schedule_id LIMIT ?1
"""

FAILED_OFTEN = """
SELECT schedule_id
  FROM schedule_state INDEXED BY failing_schedules JOIN schedules USING (schedule_id)
 WHERE consecutive_failures >= ?1 AND consecutive_failures > 0 AND deleted_at IS NULL
 ORDER BY consecutive_failures DESC, schedule_id LIMIT ?2
"""

PARKED = """
SELECT body FROM (SELECT at, body FROM events ORDER BY event_id DESC LIMIT 100000) AS e
 WHERE at > ?1 AND body LIKE '%"schedule.parked"%' LIMIT 100
"""

DEFINED = """
SELECT schedule_id, definition FROM schedules WHERE deleted_at IS NULL
 ORDER BY schedule_id LIMIT ?1
"""

STUCK = f"""
SELECT DISTINCT schedule_id FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND {IS_STARTED} AND stuck_at IS NOT NULL
 ORDER BY schedule_id LIMIT ?1
"""

FIRST_ENDED = """
SELECT min(finished_at) FROM (SELECT finished_at FROM schedule_runs ORDER BY run_id LIMIT 100) AS r
"""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The state of a store as doctor checks it, with up to MOST_NAMES names of each kind."""

    overview: Overview
    figures: StoreFigures
    tz: str  # the zone data that due rows were computed with; empty: none yet
    over: Sequence[str] = ()  # schedules that have no more ticks
    failing: Sequence[str] = ()
    stuck: Sequence[str] = ()  # schedules with runs that take too long
    parked: Sequence[str] = ()  # schedules that could not be planned lately
    definitions: Sequence[tuple[str, str]] = ()
    runs: int = 0
    first_ended: int | None = None  # when the oldest stored run ended


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """The result of looking at a database."""

    standing: StoreFacts | None = None  # None: the tables could not be read
    problem: str = ""  # why it cannot be used as it is
    hint: str = ""
    is_there: bool = True
    schema: int = 0
    known_schema: int = 0  # the schema of this program
    damage: str = ""  # what SQLite's own check found; empty: nothing
    is_checked: bool | None = True  # whether that check was completed; None: not attempted
    wal: int = 0  # bytes
    postgres: "PostgresFacts | None" = None


@dataclass(frozen=True, slots=True)
class PostgresFacts:
    """A PostgreSQL server, as doctor checks it."""

    version: int
    clock: int  # milliseconds
    asked_at: int  # by the local clock, when `clock` was read
    is_pooled: bool
    connections_left: int
    lacks: Sequence[str] = field(default_factory=tuple)  # privileges that the user lacks
    settings: Mapping[str, str] = field(default_factory=dict)  # of the server, by name


def examine(tx: Transaction) -> StoreFacts:
    """Read the facts."""
    parked = [
        event.schedule_id
        for (body,) in tx.all(PARKED, (tx.now - PARKED_LATELY,))
        for event in decode_events(body)
        if isinstance(event, ScheduleParked)
    ]
    return StoreFacts(
        queries.overview(tx),
        queries.figures(tx),
        zone_data(tx),
        over=tx.column(WITHOUT_TICKS, (MOST_NAMES,)),
        failing=tx.column(FAILED_OFTEN, (FAILING, MOST_NAMES)),
        stuck=tx.column(STUCK, (MOST_NAMES,)),
        parked=sorted(set(parked)),
        definitions=[(name, text) for name, text in tx.all(DEFINED, (MOST_DEFINITIONS,))],
        runs=tx.value("SELECT count(*) FROM schedule_runs"),
        first_ended=tx.value(FIRST_ENDED),
    )

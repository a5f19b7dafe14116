"""`SqlStore`: the calls of `Store`, each passed to a worker that makes it a transaction.

A call is a function of a transaction, which declares its parameters. `write`, `read` and
`read_for_engine` make it a method; the type checker compares the methods with those of `Store`.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from copy import copy
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from onbeat.core.runs.run import Accepted, Failed, Succeeded
from onbeat.errors import RunIsOver
from onbeat.ports.clock import Clock
from onbeat.ports.rows import RunRow
from onbeat.ports.store import CheckChange, Node, RescueResult
from onbeat.stores.sql.backfill import backfill
from onbeat.stores.sql.backfill import preview as preview_backfill
from onbeat.stores.sql.cancel import cancel
from onbeat.stores.sql.claim import announce, claim, hand_back, skip_condition, to_end
from onbeat.stores.sql.define import delete, upsert
from onbeat.stores.sql.documents import forget, keep, kept, list_documents
from onbeat.stores.sql.edits import before_edits
from onbeat.stores.sql.expire import expire
from onbeat.stores.sql.finish import finish
from onbeat.stores.sql.gate import set_gate
from onbeat.stores.sql.groups import set_group
from onbeat.stores.sql.manual import enqueue
from onbeat.stores.sql.nodes import heartbeat, release_unknown, request_stop, rescue, unregister
from onbeat.stores.sql.outbox import channels, to_send
from onbeat.stores.sql.outbox import collect as collect_notices
from onbeat.stores.sql.outbox import doubt_silent as mark_in_doubt
from onbeat.stores.sql.outbox import settle as record_delivery
from onbeat.stores.sql.outbox import take as take_message
from onbeat.stores.sql.pause import pause, resume
from onbeat.stores.sql.plan_due import plan_due
from onbeat.stores.sql.queries import (
    audit,
    events,
    figures,
    groups,
    newest_event,
    next_due,
    nodes,
    overview,
    prune,
    run,
    runs,
    schedule,
    schedules,
    written_run,
)
from onbeat.stores.sql.report import report, run_of_key
from onbeat.stores.sql.restored import record_gap
from onbeat.stores.sql.snapshot import read_snapshot
from onbeat.stores.sql.stuck import find as find_stuck
from onbeat.stores.sql.stuck import mark as mark_stuck
from onbeat.stores.sql.tokens import add as add_token
from onbeat.stores.sql.tokens import listed as tokens
from onbeat.stores.sql.tokens import of_digest as token_of
from onbeat.stores.sql.tokens import open_session, signing_key
from onbeat.stores.sql.tokens import revoke as revoke_token
from onbeat.stores.sql.transaction import Call, Row, Transaction
from onbeat.stores.sql.why_facts import facts
from onbeat.stores.sql.zone_data import follow as follow_zones

P = ParamSpec("P")
T = TypeVar("T")

# All tables of a store. A table that is moved to another database: its name, columns and rows.
TABLES = (
    "meta", "nodes", "groups", "schedules", "past_definitions", "schedule_state", "follows", "due",
    "schedule_runs", "events", "tokens", "outbox", "documents", "node_times",
)  # fmt: skip
Table = tuple[str, Sequence[str], Iterator[Row]]


class Worker(Protocol):
    """Executes calls."""

    async def write(self, call: Call[T]) -> T:
        """Execute a call as a transaction, which is durable when this returns."""

    async def read(self, call: Call[T]) -> T:
        """Execute a call that changes nothing."""

    async def read_for_engine(self, call: Call[T]) -> T:
        """Execute a call that changes nothing for the engine, without waiting for other reads."""


Method = Callable[Concatenate["SqlStore", P], Coroutine[Any, Any, T]]


def write(call: Callable[Concatenate[Transaction, P], T]) -> Method[P, T]:
    """Return the method that executes a call as a transaction."""
    return _method(call, lambda store, bound: store._write(bound))  # noqa: SLF001 - its method


def read(call: Callable[Concatenate[Transaction, P], T]) -> Method[P, T]:
    """Return the method that executes a call that changes nothing."""
    return _method(call, lambda store, bound: store._read(bound))  # noqa: SLF001 - its method


def read_for_engine(call: Callable[Concatenate[Transaction, P], T]) -> Method[P, T]:
    """Return the method that executes a call that changes nothing without waiting for others."""
    return _method(call, lambda store, bound: store._read_for_engine(bound))  # noqa: SLF001 - its method


def _method(
    call: Callable[Concatenate[Transaction, P], T],
    execute: Callable[["SqlStore", Call[T]], Awaitable[T]],
) -> Method[P, T]:
    @wraps(call)
    async def method(store: "SqlStore", /, *given: P.args, **named: P.kwargs) -> T:
        return await execute(store, lambda tx: call(tx, *given, **named))

    return method


class SqlStore(ABC):
    """What all SQL stores share. A database adds how nodes join and how other writers are seen."""

    is_shared: bool

    def __init__(self, worker: Worker, clock: Clock, store_id: str) -> None:
        self._work, self.clock = worker, clock
        self.store_id = store_id  # created with the database, and passed to started processes
        self._by = ""
        self._only_of: str | None = None
        self._check_change: CheckChange | None = None
        self.marks_successes = False

    def as_caller(
        self, who: str, *, only_owner: str | None = None, check_change: CheckChange | None = None
    ) -> Self:
        same = copy(self)
        same._by, same._only_of = who, only_owner  # noqa: SLF001 - the same class
        same._check_change = check_change  # noqa: SLF001 - the same class
        return same

    async def _write(self, call: Call[T]) -> T:
        return await self._work.write(self._for_caller(call))

    async def _read(self, call: Call[T]) -> T:
        return await self._work.read(self._for_caller(call))

    async def _read_for_engine(self, call: Call[T]) -> T:
        return await self._work.read_for_engine(call)

    def _for_caller(self, call: Call[T]) -> Call[T]:
        """Return a call that sets the caller on its transaction, if there is one to set."""
        by, only_owner, marks_successes = self._by, self._only_of, self.marks_successes
        check_change = self._check_change
        if not by and only_owner is None and check_change is None and not marks_successes:
            return call

        def call_for_caller(tx: Transaction) -> T:
            tx.by, tx.only_owner, tx.marks_successes = by, only_owner, marks_successes
            tx.check_change = check_change
            return call(tx)

        return call_for_caller

    # -- definitions

    upsert = write(upsert)
    before_edits = read(before_edits)
    pause = write(pause)
    resume = write(resume)
    delete = write(delete)
    set_gate = write(set_gate)
    enqueue = write(enqueue)
    cancel = write(cancel)
    preview_backfill = read(preview_backfill)
    backfill = write(backfill)
    set_group = write(set_group)

    async def report(
        self, run: int | str, outcome: Succeeded | Failed | Accepted, *, external_id: str = ""
    ) -> RunRow:
        def call(tx: Transaction) -> RunRow | RunIsOver:
            run_id = run if isinstance(run, int) else run_of_key(tx, run)
            refused = report(tx, run_id, outcome, external_id=external_id)
            return refused or written_run(tx, run_id)

        found = await self._write(call)
        if isinstance(found, RunIsOver):
            raise found
        return found

    # -- the engine

    @abstractmethod
    async def acquire(self, node: Node) -> None: ...

    @abstractmethod
    async def register(self, node: Node) -> RescueResult: ...

    @abstractmethod
    async def changed_elsewhere(self) -> bool: ...

    @abstractmethod
    async def close(self) -> None: ...

    record_gap = write(record_gap)
    heartbeat = write(heartbeat)
    rescue = write(rescue)
    release_unknown = write(release_unknown)
    unregister = write(unregister)
    request_stop = write(request_stop)
    plan_due = write(plan_due)
    follow_zones = write(follow_zones)
    claim = write(claim)
    announce = write(announce)
    skip_condition = write(skip_condition)
    to_end = read_for_engine(to_end)
    expire = write(expire)
    hand_back = write(hand_back)
    finish = write(finish)
    next_due = read_for_engine(next_due)

    async def mark_stuck(self, *, after: int = 0, limit: int = 500) -> int | None:
        found, following = await self._read_for_engine(
            lambda tx: find_stuck(tx, after=after, limit=limit)
        )
        if found:
            await self._write(lambda tx: mark_stuck(tx, found))
        return following

    # -- queries

    schedules = read(schedules)
    schedule = read(schedule)
    runs = read(runs)
    run = read(run)
    facts = read(facts)
    events = read(events)
    newest_event = read(newest_event)
    audit = read(audit)
    overview = read(overview)
    figures = read(figures)
    nodes = read(nodes)
    groups = read(groups)
    read_snapshot = read(read_snapshot)
    prune = write(prune)

    # -- documents of systems

    keep = write(keep)
    kept = read(kept)
    list_documents = read(list_documents)
    forget = write(forget)

    # -- notifications

    to_send = read_for_engine(to_send)
    collect_notices = write(collect_notices)
    take_message = write(take_message)
    record_delivery = write(record_delivery)
    mark_in_doubt = write(mark_in_doubt)
    channels = read(channels)

    # -- API tokens

    add_token = write(add_token)
    tokens = read(tokens)
    token_of = read(token_of)
    open_session = write(open_session)
    revoke_token = write(revoke_token)
    signing_key = write(signing_key)

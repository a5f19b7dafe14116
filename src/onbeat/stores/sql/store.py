"""`SqlStore`: the calls of `Store`, each passed to a worker that makes it a transaction."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from typing import Protocol, Self, TypeVar

from onbeat.core.decide.backfill import Choice
from onbeat.core.decide.edits import EditContext
from onbeat.core.explain.facts import Facts
from onbeat.core.notify.notifications import DeliveryResult, OutgoingMessage
from onbeat.core.runs.run import Accepted, Failed, StartedBy, Succeeded
from onbeat.core.schedule import Schedule
from onbeat.core.snapshot import Snapshot
from onbeat.errors import RunIsOver
from onbeat.ports.clock import Clock
from onbeat.ports.rows import (
    BackfillStep,
    ChannelRow,
    DocumentRow,
    EventRow,
    GroupRow,
    NodeRow,
    OutboxStep,
    OutboxWork,
    Overview,
    RunFilter,
    RunRow,
    ScheduleFilter,
    ScheduleRow,
    StoreFigures,
    TokenRow,
    ZoneDataProgress,
)
from onbeat.ports.store import (
    ALL,
    ALL_RUNS,
    NO_POSITIONS,
    NOTHING_EXPECTED,
    Attempt,
    CheckChange,
    Compose,
    Finished,
    HeartbeatResult,
    InitialPosition,
    Node,
    PlanFunction,
    PlanResult,
    RescueResult,
    Upserted,
)
from onbeat.stores.sql import (
    backfill,
    cancel,
    claim,
    define,
    documents,
    edits,
    expire,
    finish,
    gate,
    groups,
    manual,
    nodes,
    outbox,
    pause,
    plan_due,
    queries,
    report,
    restored,
    snapshot,
    stuck,
    tokens,
    why_facts,
    zone_data,
)
from onbeat.stores.sql.transaction import Call, Row, Transaction

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

    async def upsert(
        self,
        schedules: Sequence[Schedule],
        *,
        source: str | None = None,
        user_id: str = "",
        remove: Collection[str] = (),
        expected: Mapping[str, int | None] = NOTHING_EXPECTED,
        initial_positions: Mapping[str, InitialPosition] = NO_POSITIONS,
        update_waiting: bool = False,
    ) -> list[Upserted]:
        return await self._write(
            lambda tx: define.upsert(
                tx,
                schedules,
                source=source,
                user_id=user_id,
                remove=remove,
                expected=expected,
                initial_positions=initial_positions,
                update_waiting=update_waiting,
            )
        )

    async def before_edits(self, schedule_ids: Sequence[str]) -> dict[str, EditContext]:
        return await self._read(lambda tx: edits.before_edits(tx, schedule_ids))

    async def pause(self, schedule_id: str, *, note: str = "", until: int | None = None) -> bool:
        return await self._write(lambda tx: pause.pause(tx, schedule_id, note=note, until=until))

    async def resume(self, schedule_id: str, *, catchup: bool = False) -> bool:
        return await self._write(lambda tx: pause.resume(tx, schedule_id, catchup=catchup))

    async def delete(self, schedule_id: str, *, expected: int | None = None) -> bool:
        return await self._write(lambda tx: define.delete(tx, schedule_id, expected=expected))

    async def set_gate(self, *, is_open: bool) -> bool:
        return await self._write(lambda tx: gate.set_gate(tx, is_open=is_open))

    async def enqueue(
        self,
        schedule_id: str,
        *,
        request_id: str,
        inputs: Mapping[str, object] | None = None,
        triggered_by: StartedBy = "manual",
        note: str = "",
    ) -> RunRow:
        def call(tx: Transaction) -> RunRow:
            cause = (triggered_by, note)
            run_id = manual.enqueue(tx, schedule_id, cause, request_id=request_id, inputs=inputs)
            return _run_row(tx, run_id)

        return await self._write(call)

    async def cancel(self, run_id: int, *, note: str = "") -> RunRow:
        def call(tx: Transaction) -> RunRow:
            cancel.cancel(tx, run_id, note=note)
            return _run_row(tx, run_id)

        return await self._write(call)

    async def report(
        self, run: int | str, outcome: Succeeded | Failed | Accepted, *, external_id: str = ""
    ) -> RunRow:
        def call(tx: Transaction) -> RunRow | RunIsOver:
            run_id = run if isinstance(run, int) else report.run_of_key(tx, run)
            refused = report.report(tx, run_id, outcome, external_id=external_id)
            return refused or _run_row(tx, run_id)

        found = await self._write(call)
        if isinstance(found, RunIsOver):
            raise found
        return found

    async def preview_backfill(
        self, schedule_id: str, *, first: int, last: int, limit: int
    ) -> list[Choice]:
        return await self._read(
            lambda tx: backfill.preview(tx, schedule_id, first=first, last=last, limit=limit)
        )

    async def backfill(
        self, schedule_id: str, *, first: int, last: int, limit: int
    ) -> BackfillStep:
        return await self._write(
            lambda tx: backfill.backfill(tx, schedule_id, first=first, last=last, limit=limit)
        )

    async def set_group(self, name: str, *, places: int) -> bool:
        return await self._write(lambda tx: groups.set_group(tx, name, places=places))

    # -- the engine

    @abstractmethod
    async def acquire(self, node: Node) -> None: ...

    @abstractmethod
    async def register(self, node: Node) -> RescueResult: ...

    async def record_gap(self, *, after: str = "") -> str | None:
        return await self._write(lambda tx: restored.record_gap(tx, after=after))

    @abstractmethod
    async def changed_elsewhere(self) -> bool: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def heartbeat(self, node: Node) -> HeartbeatResult:
        return await self._write(lambda tx: nodes.heartbeat(tx, node))

    async def rescue(self, node: Node) -> RescueResult | None:
        return await self._write(lambda tx: nodes.rescue(tx, node))

    async def release_unknown(
        self, node: Node, known: Collection[tuple[int, int]], *, before: int
    ) -> int:
        return await self._write(lambda tx: nodes.release_unknown(tx, node, known, before=before))

    async def unregister(self, node: Node) -> None:
        await self._write(lambda tx: nodes.unregister(tx, node))

    async def request_stop(self, node_ids: Collection[str]) -> int:
        return await self._write(lambda tx: nodes.request_stop(tx, node_ids))

    async def plan_due(
        self, plan: PlanFunction, *, limit: int, node: Node | None = None, slots: int = 0
    ) -> PlanResult:
        return await self._write(
            lambda tx: plan_due.plan_due(tx, plan, limit=limit, node=node, slots=slots)
        )

    async def follow_zones(self, *, limit: int = zone_data.BATCH) -> ZoneDataProgress | None:
        return await self._write(lambda tx: zone_data.follow(tx, limit=limit))

    async def claim(self, node: Node, *, limit: int) -> list[Attempt]:
        return await self._write(lambda tx: claim.claim(tx, node, limit=limit))

    async def announce(self, node: Node, attempts: Sequence[Attempt]) -> list[Attempt]:
        return await self._write(lambda tx: claim.announce(tx, node, attempts))

    async def skip_condition(self, attempts: Sequence[Attempt]) -> None:
        await self._write(lambda tx: claim.skip_condition(tx, attempts))

    async def to_end(self, node: Node) -> list[tuple[int, int]]:
        return await self._work.read_for_engine(lambda tx: claim.to_end(tx, node))

    async def expire(self, *, limit: int) -> int:
        return await self._write(lambda tx: expire.expire(tx, limit=limit))

    async def hand_back(self, attempts: Sequence[Attempt]) -> None:
        await self._write(lambda tx: claim.hand_back(tx, attempts))

    async def finish(self, finished: Sequence[Finished]) -> list[int]:
        return await self._write(lambda tx: finish.finish(tx, finished))

    async def next_due(self, *, after: int) -> int | None:
        return await self._work.read_for_engine(lambda tx: queries.next_due(tx, after=after))

    # -- reading

    async def schedules(
        self, which: ScheduleFilter = ALL, *, after: str = "", limit: int | None = None
    ) -> list[ScheduleRow]:
        return await self._read(lambda tx: queries.schedules(tx, which, after=after, limit=limit))

    async def schedule(self, schedule_id: str) -> ScheduleRow | None:
        return await self._read(lambda tx: queries.schedule(tx, schedule_id))

    async def runs(self, which: RunFilter = ALL_RUNS, *, limit: int = 50) -> list[RunRow]:
        return await self._read(lambda tx: queries.runs(tx, which, limit=limit))

    async def run(self, run_id: int) -> RunRow | None:
        return await self._read(lambda tx: queries.run(tx, run_id))

    async def facts(self, schedule_id: str, at: int | None) -> Facts:
        return await self._read(lambda tx: why_facts.facts(tx, schedule_id, at))

    async def events(
        self, *, after: int = 0, but: Collection[int] = (), limit: int = 1000
    ) -> list[EventRow]:
        return await self._read(lambda tx: queries.events(tx, after=after, but=but, limit=limit))

    async def newest_event(self, *, before: int | None = None) -> int:
        return await self._read(lambda tx: queries.newest_event(tx, before=before))

    async def audit(
        self,
        *,
        schedule_id: str | None = None,
        before: tuple[int, int] | None = None,
        limit: int = 50,
    ) -> list[EventRow]:
        return await self._read(
            lambda tx: queries.audit(tx, schedule_id=schedule_id, before=before, limit=limit)
        )

    async def overview(self) -> Overview:
        return await self._read(queries.overview)

    async def figures(self) -> StoreFigures:
        return await self._read(queries.figures)

    async def nodes(self) -> list[NodeRow]:
        return await self._read(queries.nodes)

    async def groups(self) -> list[GroupRow]:
        return await self._read(queries.groups)

    async def read_snapshot(self) -> Snapshot:
        return await self._read(snapshot.read_snapshot)

    async def mark_stuck(self, *, after: int = 0, limit: int = 500) -> int | None:
        found, following = await self._work.read_for_engine(
            lambda tx: stuck.find(tx, after=after, limit=limit)
        )
        if found:
            await self._write(lambda tx: stuck.mark(tx, found))
        return following

    async def prune(self, *, before: int, limit: int = 10_000) -> int:
        return await self._write(lambda tx: queries.prune(tx, before=before, limit=limit))

    # -- documents of systems

    async def keep(self, kind: str, name: str, body: object, *, user_id: str = "") -> None:
        await self._write(lambda tx: documents.keep(tx, kind, name, body, user_id=user_id))

    async def kept(self, kind: str, name: str) -> DocumentRow | None:
        return await self._read(lambda tx: documents.kept(tx, kind, name))

    async def list_documents(
        self,
        kind: str,
        *,
        after: str = "",
        limit: int | None = None,
        since: int | None = None,
        but: Collection[str] = (),
    ) -> list[DocumentRow]:
        return await self._read(
            lambda tx: documents.list_documents(
                tx, kind, after=after, limit=limit, since=since, but=but
            )
        )

    async def forget(self, kind: str, name: str) -> bool:
        return await self._write(lambda tx: documents.forget(tx, kind, name))

    # -- notifications

    async def to_send(self, channels: Collection[str]) -> OutboxWork:
        return await self._work.read_for_engine(lambda tx: outbox.to_send(tx, channels))

    async def collect_notices(self, compose: Compose, *, limit: int) -> OutboxStep:
        return await self._write(lambda tx: outbox.collect(tx, compose, limit=limit))

    async def take_message(self, channel: str) -> OutgoingMessage | None:
        return await self._write(lambda tx: outbox.take(tx, channel))

    async def record_delivery(self, letter: OutgoingMessage, settled: DeliveryResult) -> bool:
        return await self._write(lambda tx: outbox.settle(tx, letter, settled))

    async def mark_in_doubt(self) -> int:
        return await self._write(outbox.doubt_silent)

    async def channels(self) -> list[ChannelRow]:
        return await self._read(outbox.channels)

    # -- API tokens

    async def add_token(self, token: TokenRow, digest: str) -> bool:
        return await self._write(lambda tx: tokens.add(tx, token, digest))

    async def tokens(self) -> list[TokenRow]:
        return await self._read(tokens.listed)

    async def token_of(self, digest: str) -> TokenRow | None:
        return await self._read(lambda tx: tokens.of_digest(tx, digest))

    async def open_session(
        self, link: str, session: str, session_id: str, *, expires_in: int
    ) -> TokenRow | None:
        return await self._write(
            lambda tx: tokens.open_session(tx, link, session, session_id, expires_in=expires_in)
        )

    async def revoke_token(self, token_id: str) -> TokenRow | None:
        return await self._write(lambda tx: tokens.revoke(tx, token_id))

    async def signing_key(self, fresh: str) -> str:
        return await self._write(lambda tx: tokens.signing_key(tx, fresh))


def _run_row(tx: Transaction, run_id: int) -> RunRow:
    row = queries.run(tx, run_id)
    assert row is not None, "the row was just written"
    return row

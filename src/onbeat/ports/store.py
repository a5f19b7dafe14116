"""`Store`: the contract of everything durable, and the values that its calls take and return."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from onbeat.core.decide.backfill import Choice
from onbeat.core.decide.edits import EditContext
from onbeat.core.explain.facts import Facts
from onbeat.core.notify.notifications import DeliveryResult, MessageContent, OutgoingMessage
from onbeat.core.runs.decisions import Plan
from onbeat.core.runs.run import (
    Accepted,
    Failed,
    Outcome,
    Run,
    StartedBy,
    Succeeded,
    TriggeredBy,
    run_key,
)
from onbeat.core.schedule import Schedule
from onbeat.core.snapshot import Snapshot
from onbeat.core.target import Target, read_inputs
from onbeat.core.triggers.past import Past
from onbeat.events import Event
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
    StoredEvent,
    StoreFigures,
    TokenRow,
    ZoneDataProgress,
)

ALL, ALL_RUNS = ScheduleFilter(), RunFilter()
NOTHING_EXPECTED: Mapping[str, int | None] = {}

# Called with the id and the stored definition of a schedule, or None if that cannot be read.
CheckChange = Callable[[str, Schedule | None], None]
PlanFunction = Callable[[Schedule, int, Sequence[Run], Past, int], Plan]
"""`(schedule, run_at, unfinished, past, now) -> Plan`: pure, called inside a transaction."""
Compose = Callable[[Sequence[StoredEvent]], Sequence[tuple[str, MessageContent, int]]]
"""Returns messages for events: channel, content, and the least interval in milliseconds."""
Listener = Callable[[int, Sequence[Event]], None]
"""`(at, events)`: called with the events of a transaction and its `now`, once it is durable."""


Role = Literal["plan", "run", "api"]
ROLES: frozenset[Role] = frozenset({"plan", "run"})


@dataclass(frozen=True, slots=True)
class Node:
    """A process that plans (decides ticks), runs (launches what it offers) or serves the API.

    `node_id` is new each time it joins, and never a host's name.
    """

    node_id: str
    name: str
    offers: frozenset[str]  # what it can launch: kinds of targets, and functions as `python:name`
    lease: int = 5_000  # milliseconds that it counts as up after a heartbeat
    version: str = ""
    roles: frozenset[Role] = ROLES
    address: str = ""  # of its API, if it serves one


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt at a run, claimed by a node under a fence, with all that a launcher needs."""

    run_id: int
    schedule_id: str
    run_at: int
    due_at: int
    attempt: int  # counted from 1
    fence: int
    target: Target
    request_id: str = ""
    triggered_by: TriggeredBy = "timer"
    iteration: int = 1  # the sequence number of the run in its schedule
    tick_count: int = 1  # how many ticks the run covers
    first_run_at: int | None = None
    revision: int = 1
    inputs_text: str | None = None  # JSON
    timeout: int | None = None
    user_id: str = ""
    cancel_grace: int = 10_000  # milliseconds that it may take to end when it is cancelled
    when: Target | None = None  # the condition to check first
    is_rendered: bool = False  # whether its target had templates
    group: str | None = None  # the group that it holds a place of
    may_run: bool = False  # the previous attempt was lost or detached, and may still run
    is_cancel_requested: bool = False  # cancellation was requested: reattach only to cancel it
    at_least_once: bool = False  # start again if the lost attempt is not found
    cause: TriggeredBy = "timer"  # of the run: the same for every attempt

    @property
    def inputs(self) -> dict[str, object]:
        """The inputs of the target: a new copy each time, which the caller may change."""
        return read_inputs(self.inputs_text)

    @property
    def key(self) -> str:
        """The idempotency key: the same for every attempt at this run."""
        return run_key(self.schedule_id, self.run_at, self.request_id)


class Finished(msgspec.Struct, frozen=True, gc=False):
    """An attempt that has ended, its outcome, and the tail of its output."""

    attempt: Attempt
    outcome: Outcome
    log_tail: str = ""


class PlanResult(msgspec.Struct, frozen=True, gc=False):
    """The result of one call of `plan_due`."""

    ticks: int  # how many due rows were taken
    is_full: bool = False  # the limit was reached: there may be more
    attempts: Sequence[Attempt] = ()  # announced for this node, to be launched immediately
    enqueued: int = 0  # runs that wait to be claimed
    unoffered: frozenset[str] = frozenset()  # needed by runs, and not offered by the node
    is_outdated: bool = False  # other nodes plan with newer zone data: nothing was decided
    has_cancel_requests: bool = False  # of started runs, some of which may be this node's


@dataclass(frozen=True, slots=True)
class InitialPosition:
    """The position of a schedule that another scheduler ran before. Instants are milliseconds.

    The schedule counts as created at `ticked_at`, up to which the other scheduler ran its ticks.
    Later ticks that are past by now are missed, and caught up according to its policy.
    """

    ticked_at: int | None = None
    last_run_at: int | None = None
    last_success_at: int | None = None
    last_failure_at: int | None = None
    last_exit: int | None = None
    last_missed_at: int | None = None
    last_miss_reason: str | None = None
    paused: bool = False


NO_POSITIONS: Mapping[str, InitialPosition] = {}


@dataclass(frozen=True, slots=True)
class Upserted:
    """The result of an upsert for one schedule."""

    schedule_id: str
    change: Literal["created", "changed", "unchanged"]
    revision: int
    moved: int = 0  # waiting runs that were moved to this revision


@dataclass(frozen=True, slots=True)
class RescueResult:
    """How many runs of silent nodes were lost, and how many handed back."""

    lost: int = 0
    handed_back: int = 0

    def __add__(self, other: "RescueResult") -> "RescueResult":
        return RescueResult(self.lost + other.lost, self.handed_back + other.handed_back)


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The answer to a heartbeat."""

    is_known: bool  # False: other nodes took the node for dead and decided its runs
    is_stop_requested: bool = False
    others_are_silent: bool = False  # another node is silent: `rescue` decides its runs


class Store(Protocol):
    """Everything durable. Each call is one transaction: all of it happens, or nothing.

    Every change is recorded by events, which are written in the same transaction. The store
    determines `now`. A call that raises StoreFailed has changed nothing, unless it raises
    StoreInDoubt, a subclass.
    """

    clock: Clock  # the source of `now`
    is_shared: bool  # whether several nodes may use the store
    marks_successes: bool  # whether a channel wants to be notified of every successful run

    def as_caller(
        self, who: str, *, only_owner: str | None = None, check_change: CheckChange | None = None
    ) -> "Store":
        """Return the same store for a caller, who is named in the events it causes.

        With `only_owner`, the schedules of other owners do not exist for the caller. `check_change`
        is called with each schedule that is about to be changed, replaced or deleted, in the same
        transaction, and refuses it by raising NotAllowed.
        """

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
        """Define schedules and delete those of `remove`, all or none; what is unchanged stays.

        - The first tick of a new schedule is later than now. A schedule that has only single times
          may be late by up to its grace; beyond that it is recorded as missed.
        - When the timing changes, ticks planned up to now are decided by the old definition: those
          within their grace as usual, older ones as one row with the reason `edited`. The next tick
          is later than now and than every decided tick. Pauses stay as they are.
        - Waiting runs start by the revision that they were decided by. With `update_waiting`, those
          that no node has claimed are moved to the new one.
        - `source` is stored with the definition that it gave, and stays when callers without a
          source edit the schedule.
        - `expected` maps ids to revisions, None meaning that the schedule must not exist; if one
          differs, RevisionConflict is raised.
        - `initial_positions` is for new schedules. An existing schedule that has no next
          tick is given one from its `last_success_at`.

        Raises NotAllowed for the id of another owner than `only_owner`.
        """

    async def before_edits(self, schedule_ids: Sequence[str]) -> Mapping[str, EditContext]:
        """Return the state that edits of these schedules depend on, for those that exist."""

    async def pause(self, schedule_id: str, *, note: str = "", until: int | None = None) -> bool:
        """Pause a schedule, until it is resumed or `until`; return whether that is a change.

        No run of it starts by itself. Started runs finish, and manual runs still start.
        """

    async def resume(self, schedule_id: str, *, catchup: bool = False) -> bool:
        """Resume a schedule from now on; return whether it was paused.

        Ticks of the pause are recorded as one row, which runs only with `catchup`.
        """

    async def delete(self, schedule_id: str, *, expected: int | None = None) -> bool:
        """Delete a schedule: waiting runs are canceled, started ones finish.

        Raises RevisionConflict if its revision is not the `expected` one.
        """

    async def set_gate(self, *, is_open: bool) -> bool:
        """Open or close the gate; return whether that is a change.

        While it is closed, nothing is decided and no run starts.
        """

    async def enqueue(
        self,
        schedule_id: str,
        *,
        request_id: str,
        inputs: Mapping[str, object] | None = None,
        triggered_by: StartedBy = "manual",
        note: str = "",
    ) -> RunRow:
        """Enqueue a run beside the ticks. The same `request_id` returns the same run.

        `note` describes the cause more exactly; it is stored for `why`.
        """

    async def cancel(self, run_id: int, *, note: str = "") -> RunRow:
        """Cancel a run: a waiting one immediately, a started one as soon as its node can.

        Raises RunIsOver if it has ended. A canceled run causes no ticks of followers.
        """

    async def report(
        self, run: int | str, outcome: Succeeded | Failed | Accepted, *, external_id: str = ""
    ) -> RunRow:
        """Record what a target reports about the run with this id or key.

        `Accepted` means that it has started. `external_id` is the target's own id of the run. A
        repeated report changes nothing; a different one about a run that has ended raises
        RunIsOver. So does a report after the deadline, which is added to the run's error once.
        """

    async def preview_backfill(
        self, schedule_id: str, *, first: int, last: int, limit: int
    ) -> list[Choice]:
        """Return what a backfill would do with up to `limit` ticks from `first` to `last`."""

    async def backfill(
        self, schedule_id: str, *, first: int, last: int, limit: int
    ) -> BackfillStep:
        """Enqueue up to `limit` past ticks from `first` to `last` that did not run, each once.

        A skipped tick keeps its row and key; a tick without a row gets one. Ticks that ran, wait or
        are not decided yet are left as they are, so an interrupted backfill can be repeated.
        """

    async def set_group(self, name: str, *, places: int) -> bool:
        """Set the concurrency limit of a group; return whether that is a change."""

    # -- the engine

    async def acquire(self, node: Node) -> None:
        """Acquire the store for a node; raise StoreHeld if another node holds it.

        Does nothing on a shared store.
        """

    async def record_gap(self, *, after: str = "") -> str | None:
        """Record ticks planned up to now as missed, after a backup was restored.

        Each call processes some schedules with an id later than `after`; the first call has none.
        Returns the `after` of the next call, or None when all are done. No past tick runs: waiting
        runs are skipped, and started ones are lost and not retried, as they may have run since. Run
        ids skip those that may have been given since. Raises StoreHeld while another node is up; no
        node may join until all are done.
        """

    async def register(self, node: Node) -> RescueResult:
        """Acquire the store, register a node, and decide the runs of dead nodes.

        A claimed run is free again; an announced one is lost.
        """

    async def heartbeat(self, node: Node) -> HeartbeatResult:
        """Renew the lease of a node, which keeps its runs until the lease expires."""

    async def rescue(self, node: Node) -> RescueResult | None:
        """Decide runs of one silent node, or return None if no node is silent.

        The silent node is removed, unless it has more runs than one transaction decides.
        """

    async def release_unknown(
        self, node: Node, known: Collection[tuple[int, int]], *, before: int
    ) -> int:
        """Free runs that a node holds in the store but does not know; return how many.

        That happens when the answer of a call was lost. `known` has the ids and fences of the runs
        that the node knows. Runs claimed after `before` stay: they may still be launched, or have
        been since `known` was collected.
        """

    async def unregister(self, node: Node) -> None:
        """Remove a node. Runs that it has claimed are free again, announced ones are not."""

    async def request_stop(self, node_ids: Collection[str]) -> int:
        """Ask nodes to stop in order; each is notified by its next heartbeat. Return how many."""

    async def plan_due(
        self, plan: PlanFunction, *, limit: int, node: Node | None = None, slots: int = 0
    ) -> PlanResult:
        """Decide up to `limit` due ticks in time order.

        1. Each tick gets its run row and each schedule its next due row, or nothing changes.
        2. A tick decided before is left as it is, and the due row moves on.
        3. A definition that cannot be planned is parked, and affects no other schedule.
        4. Up to `slots` runs that `node` offers are announced for it in the same transaction.
        5. Nothing is decided if another node has computed due rows with newer zone data. A due row
           that older zone data has computed is recomputed before it is decided.
        """

    async def follow_zones(self, *, limit: int = 1000) -> ZoneDataProgress | None:
        """Recompute the due rows of up to `limit` schedules with newer zone data.

        Returns the progress, or None: nothing is left to do. Until then, every call that decides
        about a schedule first recomputes its due row. Progress survives crashes. No due row becomes
        earlier than the last decided tick.
        """

    async def claim(self, node: Node, *, limit: int) -> list[Attempt]:
        """Claim up to `limit` due runs that the node offers, each under a new fence.

        Fewer than `limit` mean that no more are due. A node that is no longer registered gets none.
        """

    async def announce(self, node: Node, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Mark claimed runs as started; return those that the node still holds and may launch."""

    async def skip_condition(self, attempts: Sequence[Attempt]) -> None:
        """Skip claimed runs that were not announced because their condition does not hold."""

    async def to_end(self, node: Node) -> list[tuple[int, int]]:
        """Return the ids and fences of this node's runs whose cancellation was requested."""

    async def expire(self, *, limit: int) -> int:
        """End runs whose deadline to start or to be reported has passed; return how many.

        Takes up to `limit` runs with the oldest deadlines, and all expired runs of their schedules.
        """

    async def hand_back(self, attempts: Sequence[Attempt]) -> None:
        """Free runs that were claimed or announced, and certainly not launched.

        An announced attempt keeps its number and costs no retry.
        """

    async def finish(self, finished: Sequence[Finished]) -> list[int]:
        """Record outcomes and what follows from them; return the runs whose fence still held.

        Outcomes of one schedule are recorded in the order given.
        """

    async def next_due(self, *, after: int) -> int | None:
        """Return when the next tick is due, or the next waiting run that is due after `after`."""

    async def changed_elsewhere(self) -> bool:
        """Return whether another process is known to have written since the last call.

        A shared store may miss changes: the engine also polls.
        """

    # -- queries

    async def schedules(
        self, which: ScheduleFilter = ALL, *, after: str = "", limit: int | None = None
    ) -> list[ScheduleRow]:
        """Return schedules by id: those with an id later than `after`, up to `limit`."""

    async def schedule(self, schedule_id: str) -> ScheduleRow | None:
        """Return one schedule."""

    async def runs(self, which: RunFilter = ALL_RUNS, *, limit: int = 50) -> list[RunRow]:
        """Return runs, latest first."""

    async def run(self, run_id: int) -> RunRow | None:
        """Return one run."""

    async def facts(self, schedule_id: str, at: int | None) -> Facts:
        """Return the facts about a schedule and an instant, by default its latest tick."""

    async def events(
        self, *, after: int = 0, but: Collection[int] = (), limit: int = 1000
    ) -> list[EventRow]:
        """Return the events of up to `limit` event rows with an id greater than `after`.

        Ids are given before transactions commit: on a shared store a smaller id may appear later.
        A reader that follows events therefore reads back, and excludes with `but` the rows that it
        has already read.
        """

    async def newest_event(self, *, before: int | None = None) -> int:
        """Return the id of the newest event row, or of the newest one written before `before`.

        The latter is also older than every open transaction that may have written events: no row
        with a smaller id appears any more.
        """

    async def audit(
        self,
        *,
        schedule_id: str | None = None,
        before: tuple[int, int] | None = None,
        limit: int = 50,
    ) -> list[EventRow]:
        """Return events that callers caused, latest first: those before `(event_id, n)`."""

    async def overview(self) -> Overview:
        """Return the overview that `onbeat status` shows."""

    async def figures(self) -> StoreFigures:
        """Return further figures for metrics."""

    async def nodes(self) -> list[NodeRow]:
        """Return all nodes, the oldest first."""

    async def groups(self) -> list[GroupRow]:
        """Return all groups, by name."""

    async def read_snapshot(self) -> Snapshot:
        """Return a consistent snapshot of all schedules, from which a simulation starts."""

    async def mark_stuck(self, *, after: int = 0, limit: int = 500) -> int | None:
        """Mark runs in flight that take too long, each once, with the event that reports it.

        Looks at up to `limit` runs with an id greater than `after`. Returns the `after` of the next
        call, or None when all were looked at. If several nodes look, only one marks a run.
        """

    async def prune(self, *, before: int, limit: int = 10_000) -> int:
        """Delete finished runs and events older than `before`; return how many runs."""

    # -- documents of systems

    async def keep(self, kind: str, name: str, body: object, *, user_id: str = "") -> None:
        """Store a JSON document of up to 1 MiB, which replaces one of the same kind and name.

        A new one belongs to `user_id`. Raises NotAllowed for a document of another owner.
        """

    async def kept(self, kind: str, name: str) -> DocumentRow | None:
        """Return a document."""

    async def list_documents(
        self,
        kind: str,
        *,
        after: str = "",
        limit: int | None = None,
        since: int | None = None,
        but: Collection[str] = (),
    ) -> list[DocumentRow]:
        """Return documents of a kind by name: those with a name later than `after`, up to `limit`.

        With `since`, only those changed then or later; storing the same body is not a change. Names
        of `but` are left out.
        """

    async def forget(self, kind: str, name: str) -> bool:
        """Delete a document; return whether it existed."""

    # -- notifications

    async def to_send(self, channels: Collection[str]) -> OutboxWork:
        """Return the pending work of the outbox for these channels. It changes nothing."""

    async def collect_notices(self, compose: Compose, *, limit: int) -> OutboxStep:
        """Write messages for up to `limit` marked event rows, the oldest first.

        Each row is processed once, by any node. Events older than an hour are dropped.
        """

    async def take_message(self, channel: str) -> OutgoingMessage | None:
        """Take a due message of a channel, which only the caller may send, immediately."""

    async def record_delivery(self, letter: OutgoingMessage, settled: DeliveryResult) -> bool:
        """Record the result of sending a message; return False if it was decided meanwhile."""

    async def mark_in_doubt(self) -> int:
        """Mark messages whose sender fell silent as in doubt; return how many."""

    async def channels(self) -> list[ChannelRow]:
        """Return the channels and the states of their messages, by name."""

    # -- API tokens

    async def add_token(self, token: TokenRow, digest: str) -> bool:
        """Add a token, link or session; return False if its id is taken."""

    async def tokens(self) -> list[TokenRow]:
        """Return tokens and open sessions by id, without links."""

    async def token_of(self, digest: str) -> TokenRow | None:
        """Return what the secret with this digest opens, if it has not expired or been used up."""

    async def open_session(
        self, link: str, session: str, session_id: str, *, expires_in: int
    ) -> TokenRow | None:
        """Use a link up and open a session with its rights; `link` and `session` are digests.

        Of several callers with one link, one gets a session and the others None.
        """

    async def revoke_token(self, token_id: str) -> TokenRow | None:
        """Revoke a token or session, and the links and sessions made with it; return it."""

    async def signing_key(self, fresh: str) -> str:
        """Return the signing key of this store, which is `fresh` if it had none."""

    async def close(self) -> None:
        """Close the store, after all pending calls; later ones raise StoreUnusable."""

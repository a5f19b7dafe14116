"""The contracts of what is durable, and of the time: `Store` and `Clock`."""

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

# Called with an id and the definition that is there, or None if that cannot be read.
CheckChange = Callable[[str, Schedule | None], None]
PlanFunction = Callable[[Schedule, int, Sequence[Run], Past, int], Plan]
"""`(schedule, run_at, unfinished, past, now) -> Plan`: pure, called inside a transaction."""
Compose = Callable[[Sequence[StoredEvent]], Sequence[tuple[str, MessageContent, int]]]
"""What each channel hears of what happened, and the milliseconds that lie between two messages."""


class Clock(Protocol):
    """Where the time comes from. Nothing else in the package asks for it."""

    def now(self) -> int:
        """Return the wall clock's time; it may be set back or forth at any moment."""

    def monotonic(self) -> float:
        """Return seconds that only ever grow, for measuring what has passed."""


Role = Literal["plan", "run", "api"]
ROLES: frozenset[Role] = frozenset({"plan", "run"})


@dataclass(frozen=True, slots=True)
class Node:
    """A process that plans (decides ticks), runs (launches what it offers) or has the API.

    `node_id` is made anew each time it joins; it is never a host's name.
    """

    node_id: str
    name: str
    offers: frozenset[str]  # what it can launch: kinds, and registered names as `python:name`
    lease: int = 5_000  # how long it counts as alive after a heartbeat
    version: str = ""
    roles: frozenset[Role] = ROLES
    address: str = ""  # where its API is, if it has one


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt at a run, claimed by a node under a fence: all that a launcher needs."""

    run_id: int
    schedule_id: str
    run_at: int
    due_at: int
    attempt: int  # counted from 1
    fence: int
    target: Target
    request_id: str = ""
    triggered_by: TriggeredBy = "timer"
    iteration: int = 1  # the how-manyeth run of the schedule this is
    tick_count: int = 1  # how many ticks it stands for
    first_run_at: int | None = None
    revision: int = 1
    inputs_text: str | None = None  # JSON
    timeout: int | None = None
    user_id: str = ""
    cancel_grace: int = 10_000  # milliseconds that it may take to end when it is asked to
    when: Target | None = None  # what is to be asked first
    is_rendered: bool = False  # its target had templates
    group: str | None = None  # it has a place of this group
    may_run: bool = False  # an attempt before it was lost: that may go on, or have ended, elsewhere
    is_to_end: bool = False  # somebody has asked for its end: it is to be found for that only
    at_least_once: bool = False  # what was lost is to be started again, if it is not found
    cause: TriggeredBy = "timer"  # of the run: the same for every attempt

    @property
    def inputs(self) -> dict[str, object]:
        """What is passed to the target: another copy each time, which may be changed."""
        return read_inputs(self.inputs_text)

    @property
    def key(self) -> str:
        """The idempotency key: the same for every attempt at this run."""
        return run_key(self.schedule_id, self.run_at, self.request_id)


class Finished(msgspec.Struct, frozen=True, gc=False):
    """An attempt, what came of it, and the last of what it printed."""

    attempt: Attempt
    outcome: Outcome
    log_tail: str = ""


class PlanResult(msgspec.Struct, frozen=True, gc=False):
    """What one call of `plan_due` did."""

    ticks: int  # how many due rows were taken
    is_full: bool = False  # as many as were asked for: there may be more
    attempts: Sequence[Attempt] = ()  # announced for this node: launch them at once
    enqueued: int = 0  # runs that wait to be claimed
    unoffered: frozenset[str] = frozenset()  # what was needed and the node does not offer
    is_outdated: bool = False  # others plan with newer zone data: nothing was decided
    asks: bool = False  # started runs were asked to end: look for this node's


@dataclass(frozen=True, slots=True)
class InitialPosition:
    """Where a schedule begins that was kept elsewhere before. Instants are milliseconds.

    It is taken for created at `ticked_at`, up to which its ticks were somebody else's: later ones
    that are past by now are missed, and caught up as its policy says.
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
    """What an upsert did to one schedule."""

    schedule_id: str
    change: Literal["created", "changed", "unchanged"]
    revision: int
    moved: int = 0  # waiting runs that now start by this revision


@dataclass(frozen=True, slots=True)
class RescueResult:
    """What became of the runs of nodes that are no more."""

    lost: int = 0
    handed_back: int = 0

    def __add__(self, other: "RescueResult") -> "RescueResult":
        return RescueResult(self.lost + other.lost, self.handed_back + other.handed_back)


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """What a node hears when it says that it is alive."""

    is_known: bool  # else others have taken it for dead, and decided its runs
    is_asked_to_stop: bool = False
    others_are_silent: bool = False  # some other node is: `rescue` decides its runs


class Store(Protocol):
    """Everything durable. Each call is one transaction: it happened whole, or not at all.

    Whatever a call changes is told by events written with it. `now` is the store's to say. A call
    that raises StoreFailed changed nothing, unless it is StoreInDoubt.
    """

    clock: Clock  # by which `now` is told
    is_shared: bool  # whether several nodes may plan and run on it
    marks_successes: bool  # whether somebody here wants to hear of every run that succeeds

    def as_caller(
        self, who: str, *, only_of: str | None = None, check_change: CheckChange | None = None
    ) -> "Store":
        """Return the same store, whose events tell who asked for what they tell of.

        With `only_of`, to whoever uses it there are no schedules but those of that owner.
        `check_change` is called with each schedule that is about to be changed, replaced or
        deleted, in the transaction that does so, and refuses it by raising NotAllowed.
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
        beginnings: Mapping[str, InitialPosition] = NO_POSITIONS,
        update_waiting: bool = False,
    ) -> list[Upserted]:
        """Define schedules and delete others, all or none. What changes nothing writes nothing.

        A new schedule's first tick is later than now; one that has only single times may be as late
        as its grace, and is else recorded as missed. When the timing changes, ticks planned up to
        now are decided by the old definition: those within their grace as ever, those beyond it as
        one row, `edited`. The next is later than now and than any decided. Pausing is not touched.

        Runs that wait start by the revision they were decided under. With `update_waiting` those of
        the given schedules that no node has claimed are moved to the new one.

        `source` is kept with what it said, as long as others only edit that, who have none. An id
        of another owner than `only_of` is refused with NotAllowed. Where a revision is `expected`,
        and there is another, or none where there should be, it is refused with ChangedSince; an
        expected None is that it is not there. `beginnings` are of those that are new; one
        that has come to rest, and has no tick, is armed anew by its last success.
        """

    async def before_edits(self, schedule_ids: Sequence[str]) -> Mapping[str, EditContext]:
        """Return what edits of these schedules would find now, of those that are there."""

    async def pause(self, schedule_id: str, *, note: str = "", until: int | None = None) -> bool:
        """Start nothing more of it; return whether that is a change. Started runs finish.

        It goes on by itself when `until` is reached.
        """

    async def resume(self, schedule_id: str, *, catchup: bool = False) -> bool:
        """Go on from now. Ticks of the pause become one row, which runs only if `catchup` asks."""

    async def delete(self, schedule_id: str, *, expected: int | None = None) -> bool:
        """Take a schedule away: waiting runs are canceled, started ones finish.

        If another revision than is `expected` is there, it is refused with ChangedSince.
        """

    async def set_gate(self, *, is_open: bool) -> bool:
        """Turn the switch: behind a closed gate nothing is decided and nothing starts."""

    async def enqueue(
        self,
        schedule_id: str,
        *,
        request_id: str,
        inputs: Mapping[str, object] | None = None,
        triggered_by: StartedBy = "manual",
        note: str = "",
    ) -> RunRow:
        """Start a run beside the ticks. The same `request_id` is the same run.

        `note` is kept with it, for `why`: what the cause was, more exactly.
        """

    async def cancel(self, run_id: int, *, note: str = "") -> RunRow:
        """Have a run end: one that waits at once, a started one as soon as its node can.

        One that is over is refused with RunIsOver. Nothing follows from the end of a canceled run.
        """

    async def report(
        self, run: int | str, outcome: Succeeded | Failed | Accepted, *, external_id: str = ""
    ) -> RunRow:
        """Record what a target tells of the run that has this id, or this key.

        The same again changes nothing; anything else about one that is over is refused. After its
        deadline a report is refused as well, and is noted once with the run's error. `Accepted`
        says only that it has begun. `external_id` is what the target calls it from now on.
        """

    async def preview_backfill(
        self, schedule_id: str, *, first: int, last: int, limit: int
    ) -> list[Choice]:
        """Return what a backfill would do with up to `limit` ticks from `first` to `last`."""

    async def backfill(
        self, schedule_id: str, *, first: int, last: int, limit: int
    ) -> BackfillStep:
        """Run ticks of the past after all, each once: those from `first` to `last`, up to `limit`.

        What was skipped keeps its row and key; what had no row gets one. What ran, waits or is not
        decided is left as it is, so that a backfill that was broken off may be made again.
        """

    async def set_group(self, name: str, *, places: int) -> bool:
        """Say how many runs of a group may be started at the same time; return if that is new."""

    # -- the engine

    async def hold(self, node: Node) -> None:
        """Make sure that no other node that could start runs is left on this store, or refuse."""

    async def record_gap(self, *, after: str = "") -> str | None:
        """Record what was planned up to now as missed, since a backup was put back.

        Of the schedules with an id later than `after`, some at a time; it is begun with none, and
        returns from where to go on, or None: that was all. Nothing of the past starts. What waited
        when the backup was made is skipped, what had started is lost and not tried again: it may
        have run since. Run ids go on later than any that may have been given since. It is refused
        with StoreHeld while another node is up; and until all of it is done no node may join.
        """

    async def register(self, node: Node) -> RescueResult:
        """Hold the store, enter a node, and decide the runs that dead ones left behind.

        A claimed run is free again; an announced one is lost.
        """

    async def heartbeat(self, node: Node) -> HeartbeatResult:
        """Say that a node is alive: it keeps its runs for as long as its lease is."""

    async def rescue(self, node: Node) -> RescueResult | None:
        """Decide runs of one node that has fallen silent, or return None if there is none.

        That node then is off the list, unless it had more runs than are decided at once.
        """

    async def release_unknown(
        self, node: Node, known: Collection[tuple[int, int]], *, before: int
    ) -> int:
        """Free what a node holds, by the books, and does not know of; return how many runs.

        That can be after a call whose answer did not come. `known` has the ids and fences of the
        runs that it does know of; what was claimed later than `before` may still be launched, or
        has been since that was asked, and stays.
        """

    async def unregister(self, node: Node) -> None:
        """Take a node off the list; what it had claimed is free again, what it announced is not."""

    async def ask_to_stop(self, node_ids: Collection[str]) -> int:
        """Have nodes stop in good order: each hears of it with its next heartbeat."""

    async def plan_due(
        self, plan: PlanFunction, *, limit: int, node: Node | None = None, slots: int = 0
    ) -> PlanResult:
        """Decide up to `limit` due ticks in time order.

        1. Each tick gets its run row and each schedule its next due row, or nothing changed.
        2. A tick decided before is left as it is, and the due row moves on.
        3. A definition that cannot be planned is parked and hurts no other.
        4. Up to `slots` runs that `node` offers are announced for it at once.
        5. Nothing is decided where another node has computed due rows with newer zone data; and by
           no due row that older data has computed: it is computed anew first.
        """

    async def follow_zones(self, *, limit: int = 1000) -> ZoneDataProgress | None:
        """Compute the due rows of up to `limit` schedules anew, after newer zone data began.

        Returns how far that is by now, or None: nothing is left to do. Until it is done, whoever
        decides about a schedule first computes its due row anew. What is followed stays so, through
        crashes; no due row becomes earlier than the last tick that was decided.
        """

    async def claim(self, node: Node, *, limit: int) -> list[Attempt]:
        """Take up to `limit` runs that are due and that the node offers, each under a new fence.

        Fewer mean that there are no more. A node that is not registered, because another has taken
        its place, gets none.
        """

    async def announce(self, node: Node, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Mark claimed runs as started; return those that still are the node's to launch."""

    async def skip_condition(self, attempts: Sequence[Attempt]) -> None:
        """Skip runs that were claimed and not announced: their condition does not hold."""

    async def to_end(self, node: Node) -> list[tuple[int, int]]:
        """Return the ids and fences of the runs that this node was asked to end."""

    async def expire(self, *, limit: int) -> int:
        """End what has waited beyond its deadline: to start, or to be heard of; return how many.

        Of those whose deadline is the oldest, and of whatever else of their schedules is over.
        """

    async def hand_back(self, attempts: Sequence[Attempt]) -> None:
        """Free runs that were claimed, or announced, and surely not launched.

        An attempt that was announced keeps its number and costs no retry.
        """

    async def finish(self, finished: Sequence[Finished]) -> list[int]:
        """Record outcomes and what follows from them; return the runs whose fence still held.

        Those of one schedule count in the order given.
        """

    async def next_due(self, *, after: int) -> int | None:
        """Return when a tick is next due, or a waiting run is that is due later than `after`."""

    async def changed_elsewhere(self) -> bool:
        """Return whether another process is known to have written since this was last asked.

        A store that is shared may miss some: whoever has to know looks for itself now and then.
        """

    # -- reading: changes nothing

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
        """Return what is known of a schedule and an instant: by default of its latest tick."""

    async def events(
        self, *, after: int = 0, but: Collection[int] = (), limit: int = 1000
    ) -> list[EventRow]:
        """Return what happened since event row `after`, of up to `limit` transactions.

        Numbers are given before transactions are committed: on a store that is shared, a smaller
        one may appear later. Whoever follows it looks back, `but` for the rows that they know.
        """

    async def newest_event(self, *, before: int | None = None) -> int:
        """Return the number of the newest event row, or the newest that was written before then.

        With `before`, that is also before any transaction began that is still open and may have
        written events: up to this number no row appears any more.
        """

    async def audit(
        self,
        *,
        schedule_id: str | None = None,
        before: tuple[int, int] | None = None,
        limit: int = 50,
    ) -> list[EventRow]:
        """Return what somebody had done, the latest first: what was told before a row's `n`th."""

    async def overview(self) -> Overview:
        """Return what `status` tells."""

    async def figures(self) -> StoreFigures:
        """Return what metrics tell besides."""

    async def nodes(self) -> list[NodeRow]:
        """Return the nodes there are, the oldest first."""

    async def groups(self) -> list[GroupRow]:
        """Return the groups there are, by name."""

    async def standings(self) -> Snapshot:
        """Return how things stand: all that a forecast begins with, of one moment."""

    async def mark_stuck(self, *, after: int = 0, limit: int = 500) -> int | None:
        """Mark runs in flight that take too long, each once, with the event that reports it.

        Of the runs later than `after`, up to `limit` are looked at. Returns from where to go on,
        or None: that was all. However many nodes look, one of them marks a run.
        """

    async def prune(self, *, before: int, limit: int = 10_000) -> int:
        """Remove finished runs and events older than `before`; return how many runs went."""

    # -- what systems keep

    async def keep(self, kind: str, name: str, body: object, *, user_id: str = "") -> None:
        """Keep what JSON can say, up to 1 MiB of it, in place of what has this name by now.

        What is new is of owner `user_id`; what another than `only_of` owns is refused.
        """

    async def kept(self, kind: str, name: str) -> DocumentRow | None:
        """Return what is kept under a name."""

    async def kept_all(
        self,
        kind: str,
        *,
        after: str = "",
        limit: int | None = None,
        since: int | None = None,
        but: Collection[str] = (),
    ) -> list[DocumentRow]:
        """Return what is kept of a kind by name: those later than `after`, up to `limit`.

        With `since`, only what was kept then or later: what is the same again was kept before. What
        has a name of `but` is left out.
        """

    async def forget(self, kind: str, name: str) -> bool:
        """Keep it no longer; return whether it was there."""

    # -- who is told

    async def to_send(self, channels: Collection[str]) -> OutboxWork:
        """Return what there is to be done for these channels: it changes nothing."""

    async def collect_notices(self, compose: Compose, *, limit: int) -> OutboxStep:
        """Look at up to `limit` marked event rows, the oldest first, and write messages of them.

        Each is looked at once, among all nodes. What is older than an hour is not told.
        """

    async def take_letter(self, channel: str) -> OutgoingMessage | None:
        """Take a message that is due for a channel, to be sent at once by the caller alone."""

    async def settle_letter(self, letter: OutgoingMessage, settled: DeliveryResult) -> bool:
        """Keep what came of sending it; return False if others have decided about it since."""

    async def doubt_letters(self) -> int:
        """Give up messages whose sender fell silent: they may have arrived; return how many."""

    async def channels(self) -> list[ChannelRow]:
        """Return what became of the messages of each channel, by name."""

    # -- who may come in

    async def add_token(self, token: TokenRow, digest: str) -> bool:
        """Keep something that lets its bearer in; return False if its id is taken."""

    async def tokens(self) -> list[TokenRow]:
        """Return tokens and open sessions, by id. Links are not told of."""

    async def token_of(self, digest: str) -> TokenRow | None:
        """Return what the secret with this digest is: neither expired nor used up."""

    async def open_session(
        self, link: str, session: str, session_id: str, *, expires_in: int
    ) -> TokenRow | None:
        """Use a link up and open a session with its rights; the texts are the secrets' digests.

        Of several who come with one link, one gets a session and the others None.
        """

    async def revoke_token(self, token_id: str) -> TokenRow | None:
        """Let nobody in by it any more, nor by links and sessions made with it; return it."""

    async def signing_key(self, fresh: str) -> str:
        """Return the key that everybody who has this database signs with: `fresh` if none is."""

    async def close(self) -> None:
        """Let go of the store."""

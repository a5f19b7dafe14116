"""The blackboard: typed artifacts that agents publish and read, kept in the store.

An artifact is a document. What this process has read or written stays decoded in memory, in the
order of publishing, so that a thousand agents may look at ten thousand artifacts. Before an agent
runs, whatever others have kept since is read: one read serves everybody who waits for it. Reads
look a while back, as what is committed later may have been begun earlier.
"""

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from onbeat.core.time.instants import rfc3339_ms, whole_second
from onbeat.ports.rows import DocumentRow
from onbeat.service.service import Service
from onbeat.systems.agents.payloads import decoded, encoded, told

log = logging.getLogger("onbeat.systems")

KIND = "agents.artifact"
LOOK_BACK = 15_000  # milliseconds: by then every transaction has been committed, or never will
PAGE = 2_000  # documents read at once
AT_ONCE = 64  # documents forgotten at once
DISCARDED = "discarded:"  # begins the name of what says up to when a type is discarded
EXTERNAL = "external"  # who published what no agent did
Model = TypeVar("Model", bound=BaseModel)
M_co = TypeVar("M_co", bound=BaseModel, covariant=True)


@dataclass(frozen=True, slots=True)
class Artifact(Generic[M_co]):
    """What was published, and how: `payload` is the model, which readers share and do not change.

    `correlation_id` is that of whatever set it off; `created_at` is when it was published, in UTC.
    """

    id: str
    type: str
    payload: M_co
    produced_by: str
    correlation_id: str
    tags: frozenset[str]
    created_at: datetime


@dataclass(slots=True)
class _Kept:
    """An artifact as it is kept, decoded when somebody asks for it."""

    artifact_id: str
    at: int  # milliseconds
    order: int  # of what was published in the same millisecond
    type: str
    pending: Sequence[str]  # agents that may still have to be started for it
    body: Mapping[str, object] | None  # None: all of it is in the artifact
    artifact: Artifact[BaseModel] | None = None


@dataclass(slots=True)
class _Shelf:
    """The artifacts of a type in the order of publishing, and the first of them decoded."""

    kept: list[_Kept] = field(default_factory=list)
    shown: list[Artifact[BaseModel]] = field(default_factory=list)
    models: list[BaseModel] = field(default_factory=list)  # of those shown: what most ask for
    unreadable: list[_Kept] = field(default_factory=list)  # shown to nobody, until discarded

    def add(self, new: _Kept) -> None:
        place = bisect_right(self.kept, _place(new), key=_place)
        self.kept.insert(place, new)
        # One of another process may be older than what was shown.
        del self.shown[place:], self.models[place:]

    def show(self, artifact: Artifact[BaseModel]) -> None:
        """Show the first that was not shown yet."""
        self.shown.append(artifact)
        self.models.append(artifact.payload)

    def put_aside(self) -> None:
        """Never show the first that was not shown yet."""
        self.unreadable.append(self.kept.pop(len(self.shown)))

    def count(self, *, before: int) -> int:
        """Return how many were published before then."""
        aside = sum(each.at < before for each in self.unreadable)
        return aside + bisect_left(self.kept, (before, -1, ""), key=_place)

    def take(self, *, before: int) -> list[_Kept]:
        """Take away what was published before then."""
        place = bisect_left(self.kept, (before, -1, ""), key=_place)
        old = self.kept[:place] + [each for each in self.unreadable if each.at < before]
        del self.kept[:place], self.shown[:place], self.models[:place]
        self.unreadable = [each for each in self.unreadable if each.at >= before]
        return old


def _place(kept: _Kept) -> tuple[int, int, str]:
    return kept.at, kept.order, kept.artifact_id


def type_name(model: type[BaseModel]) -> str:
    """Return the name that artifacts of a model are kept under: its title, or that of the class.

    Modules do not count, so that a program finds its artifacts again when it was moved.
    """
    return str(model.model_config.get("title") or model.__name__)


class Blackboard:
    """All artifacts of a store, by type, in the order of publishing."""

    def __init__(self) -> None:
        self._service: Service | None = None
        self._models: dict[str, type[BaseModel]] = {}
        self._by_id: dict[str, _Kept] = {}
        self._pending: dict[str, _Kept] = {}
        self._order = 0  # of what is published next
        self._shelves: dict[str, _Shelf] = defaultdict(_Shelf)
        self._horizons: dict[str, int] = {}  # of types: what is older was discarded
        self._read_until: int | None = None
        self._reading = self._forgetting = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None

    def know(self, model: object) -> str:
        """Have artifacts of a model be read as such; refuse a second model of its name."""
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise TypeError(f"{model!r} is no type of artifacts: give a pydantic model")
        name = type_name(model)
        if self._models.setdefault(name, model) is not model:
            hint = "give one another: model_config = ConfigDict(title=...)"
            raise ValueError(f"two types of artifacts are called {name!r} ({hint})")
        return name

    async def open(self, service: Service) -> None:
        """Read all that is there."""
        self._service = service
        self._by_id, self._shelves, self._horizons = {}, defaultdict(_Shelf), {}
        self._pending, self._order = {}, 0
        self._reading, self._forgetting = asyncio.Lock(), asyncio.Lock()
        self._read_until, self._next = None, None
        await self.refresh()

    async def refresh(self) -> None:
        """Read what was kept since the last time. What is committed by now will have been read."""
        if self._next is None:  # whoever comes while one is under way waits for the one after it
            self._next = asyncio.create_task(self._refresh())
        await asyncio.shield(self._next)

    async def _refresh(self) -> None:
        async with self._reading:
            self._next = None
            now = self._asked.clock.now()
            since = None if self._read_until is None else min(self._read_until, now) - LOOK_BACK
            lately = [] if since is None else self._known_since(since)
            after = ""
            while True:
                page = await self._asked.kept_all(
                    KIND, since=since, after=after, limit=PAGE, but=lately
                )
                for row in page:
                    self._take(row)
                if len(page) < PAGE:
                    break
                after = page[-1].name
            self._read_until = now
        for name, horizon in list(self._horizons.items()):  # a discard may add one meanwhile
            await self._forget(name, before=horizon)

    def _known_since(self, since: int) -> list[str]:
        """Return what need not be read again: all that is known to have been written since."""
        known: list[str] = []
        for shelf in self._shelves.values():
            place = bisect_left(shelf.kept, (since, -1, ""), key=_place)
            known += [each.artifact_id for each in shelf.kept[place:]]
        return known

    def _take(self, row: DocumentRow) -> None:
        if row.name in self._by_id or not isinstance(row.body, Mapping):
            return
        if row.name.startswith(DISCARDED):
            name = row.name.removeprefix(DISCARDED)
            self._horizons[name] = max(self._horizons.get(name, 0), int(str(row.body["before"])))
        else:
            self._add(row.name, row.body)

    def _add(self, artifact_id: str, body: Mapping[str, object]) -> None:
        at, name, pending = int(str(body["created_at"])), str(body["type"]), body["pending"]
        assert isinstance(pending, Sequence), "nobody else writes there"
        order = int(str(body.get("order", 0)))
        kept = _Kept(artifact_id, at, order, name, tuple(map(str, pending)), body)
        self._order = max(self._order, order + 1)
        self._by_id[artifact_id] = kept
        if kept.pending:
            self._pending[artifact_id] = kept
        self._shelves[name].add(kept)

    async def keep(
        self,
        payload: BaseModel,
        *,
        artifact_id: str,
        produced_by: str,
        correlation_id: str,
        tags: Iterable[str],
        pending: Sequence[str] = (),
    ) -> Artifact[BaseModel]:
        """Keep an artifact, with the agents that are still to be started for it.

        If one of this id was read, that one stays as it is. One that could not be read again is
        refused.
        """
        name, service = self.know(type(payload)), self._asked
        if artifact_id not in self._by_id:
            as_json = encoded(payload, name=name)
            order, self._order = self._order, self._order + 1
            body: dict[str, object] = {
                "type": name,
                "payload": as_json,
                "produced_by": produced_by,
                "correlation_id": correlation_id,
                "tags": sorted(tags),
                # A clock may go back: what is new is not older than what was discarded.
                "created_at": max(service.clock.now(), self._horizons.get(name, 0)),
                "order": order,
                "pending": list(pending),
            }
            await service.keep(KIND, artifact_id, body)
            if artifact_id not in self._by_id:  # somebody may have read it meanwhile
                self._add(artifact_id, body)
        return self.artifact(artifact_id)

    async def delivered(self, artifact_id: str, names: Collection[str]) -> None:
        """Say that these agents were started, for this artifact."""
        kept = self._by_id.get(artifact_id)
        if kept is None or not kept.pending:  # discarded meanwhile; or there is nothing to say
            return
        assert kept.body is not None, "it stays as long as it may have to be written"
        left = [each for each in kept.pending if each not in names]
        body = {**kept.body, "pending": left}
        await self._asked.keep(KIND, artifact_id, body)
        kept.pending, kept.body = left, body
        if not left:
            self._pending.pop(artifact_id, None)

    def pending(self) -> dict[str, Sequence[str]]:
        """Return artifacts for which agents may still have to be started, and these."""
        return {artifact_id: kept.pending for artifact_id, kept in self._pending.items()}

    def artifact(self, artifact_id: str) -> Artifact[BaseModel]:
        """Return one artifact, or raise LookupError: it was discarded, or its type is not known."""
        kept = self._by_id.get(artifact_id)
        if kept is None:
            raise LookupError(f"there is no artifact {artifact_id}: it was discarded")
        return self._decoded(kept)

    def model_of(self, name: str) -> type[BaseModel] | None:
        """Return the model of a type, if this process knows it."""
        return self._models.get(name)

    def type_of(self, artifact_id: str) -> str:
        """Return the type of an artifact, or nothing if it was discarded."""
        kept = self._by_id.get(artifact_id)
        return "" if kept is None else kept.type

    def of_type(self, name: str) -> Sequence[Artifact[BaseModel]]:
        """Return the artifacts of a type, the oldest first: read them, and keep no hold of them."""
        return self._shelf(name).shown

    def models_of(self, name: str) -> Sequence[BaseModel]:
        """Return the models alone, in the same order."""
        return self._shelf(name).models

    def _shelf(self, name: str) -> _Shelf:
        shelf = self._shelves[name]
        while len(shelf.shown) < len(shelf.kept):
            try:
                shelf.show(self._decoded(shelf.kept[len(shelf.shown)]))
            except ValueError as unreadable:
                log.warning("it is left out: %s", unreadable)
                shelf.put_aside()
        return shelf

    def counts(self) -> dict[str, int]:
        """Return how many artifacts there are of each type."""
        return {name: len(shelf.kept) for name, shelf in self._shelves.items() if shelf.kept}

    async def discard(
        self, model: type[BaseModel], *, before: datetime, but: Collection[str] = ()
    ) -> int:
        """Forget artifacts of a type that were published before an instant; return how many.

        From the first of `but` on, and of those that agents are still to be started for, all stay.
        Other processes leave out what is gone as soon as they read again.
        """
        name = self.know(model)
        at = _milliseconds(before)
        if at > self._asked.clock.now():
            raise ValueError(f"before must not be later than now, and is {rfc3339_ms(at)}")
        needed = [self._by_id[each] for each in {*but, *self._pending} if each in self._by_id]
        at = min([at, *(each.at for each in needed if each.type == name)])
        found = self._shelves[name].count(before=at)
        if not found:
            return 0
        # Said first: whatever happens then, those who read leave them out.
        horizon = max(at, self._horizons.get(name, 0))
        await self._asked.keep(KIND, f"{DISCARDED}{name}", {"before": horizon})
        self._horizons[name] = horizon
        await self._forget(name, before=at)
        return found

    async def _forget(self, name: str, *, before: int) -> None:
        async with self._forgetting:  # whoever asks for it returns when it is done
            old = [each.artifact_id for each in self._shelves[name].take(before=before)]
            for each in old:
                del self._by_id[each]
                self._pending.pop(each, None)
            for begin in range(0, len(old), AT_ONCE):  # they share a commit where the store can
                some = old[begin : begin + AT_ONCE]
                await asyncio.gather(*(self._asked.forget(KIND, each) for each in some))

    def _decoded(self, kept: _Kept) -> Artifact[BaseModel]:
        if kept.artifact is None:
            model, body = self._models.get(kept.type), kept.body
            if model is None:
                problem = f"artifact {kept.artifact_id} is a {kept.type}"
                raise LookupError(f"{problem}, which no agent here consumes or publishes")
            assert body is not None, "it is there until it is decoded"
            try:
                payload = decoded(model, body["payload"])
            except ValidationError as wrong:
                fit = f"artifact {kept.artifact_id} does not fit {kept.type} any more"
                problem = f"{fit}: {told(wrong)}"
                hint = "give what is new a default, or discard what is older"
                raise ValueError(f"{problem} ({hint})") from None
            tags = body["tags"]
            assert isinstance(tags, Sequence), "nobody else writes there"
            kept.artifact = Artifact(
                kept.artifact_id,
                kept.type,
                payload,
                str(body["produced_by"]),
                str(body["correlation_id"]),
                frozenset(map(str, tags)),
                datetime.fromtimestamp(kept.at / 1000, UTC),
            )
        if not kept.pending:
            kept.body = None
        return kept.artifact

    @property
    def _asked(self) -> Service:
        assert self._service is not None, "it is open"
        return self._service


def _milliseconds(instant: datetime) -> int:
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return whole_second(aware) * 1000 + aware.microsecond // 1000

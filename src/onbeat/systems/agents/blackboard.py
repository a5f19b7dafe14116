"""The blackboard: typed artifacts that agents publish and read, kept in the store.

An artifact is a document. What this process has read or written stays decoded in memory, in the
order of publishing, so that a thousand agents may look at ten thousand artifacts. Before an agent
runs, whatever others have kept since is read: one read serves everybody who waits for it. Reads
look a while back, as what is committed later may have been begun earlier.
"""

import asyncio
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from onbeat.core.instants import rfc3339_ms, whole_second
from onbeat.records import DocumentRow
from onbeat.service import Service

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

    def add(self, new: _Kept) -> None:
        place = bisect_right(self.kept, _place(new), key=_place)
        self.kept.insert(place, new)
        del (
            self.shown[place:],
            self.models[place:],
        )  # of another process, and older than what was there

    def take(self, *, before: int) -> list[_Kept]:
        """Take away what was published before then."""
        place = bisect_left(self.kept, (before, ""), key=_place)
        old = self.kept[:place]
        del self.kept[:place], self.shown[:place], self.models[:place]
        return old


def _place(kept: _Kept) -> tuple[int, str]:
    return kept.at, kept.artifact_id


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
        self._shelves: dict[str, _Shelf] = defaultdict(_Shelf)
        self._horizons: dict[str, int] = {}  # of types: what is older was discarded
        self._read_until: int | None = None
        self._reading: asyncio.Lock = asyncio.Lock()
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
        self._read_until, self._reading, self._next = None, asyncio.Lock(), None
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
        for name, horizon in self._horizons.items():
            await self._forget(name, before=horizon)

    def _known_since(self, since: int) -> list[str]:
        """Return what need not be read again: all that is known to have been written since."""
        known: list[str] = []
        for shelf in self._shelves.values():
            place = bisect_left(shelf.kept, (since, ""), key=_place)
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
        kept = _Kept(artifact_id, at, name, tuple(map(str, pending)), body)
        self._by_id[artifact_id] = kept
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

        If one of this id was read, that one stays as it is.
        """
        name, service = self.know(type(payload)), self._asked
        if artifact_id not in self._by_id:
            body: dict[str, object] = {
                "type": name,
                "payload": payload.model_dump(mode="json"),
                "produced_by": produced_by,
                "correlation_id": correlation_id,
                "tags": sorted(tags),
                "created_at": service.clock.now(),
                "pending": list(pending),
            }
            await service.keep(KIND, artifact_id, body)
            if artifact_id not in self._by_id:  # somebody may have read it meanwhile
                self._add(artifact_id, body)
        return self.artifact(artifact_id)

    async def delivered(self, artifact_id: str) -> None:
        """Say that every agent was started that was to be, for this artifact."""
        kept = self._by_id.get(artifact_id)
        if kept is None or not kept.pending:  # discarded meanwhile; or there is nothing to say
            return
        assert kept.body is not None, "it stays as long as it may have to be written"
        kept.pending, kept.body = (), {**kept.body, "pending": []}
        await self._asked.keep(KIND, artifact_id, kept.body)

    def pending_for(self, artifact_id: str) -> Sequence[str]:
        """Return the agents that may still have to be started for an artifact."""
        kept = self._by_id.get(artifact_id)
        return () if kept is None else kept.pending

    def pending(self) -> list[tuple[Artifact[BaseModel], Sequence[str]]]:
        """Return artifacts for which agents may still have to be started, and these."""
        found = [each for each in self._by_id.values() if each.pending]
        known = [each for each in found if each.type in self._models]
        return [(self._decoded(each), each.pending) for each in known]

    def artifact(self, artifact_id: str) -> Artifact[BaseModel]:
        """Return one artifact, or raise LookupError: it was discarded, or its type is not known."""
        kept = self._by_id.get(artifact_id)
        if kept is None:
            raise LookupError(f"there is no artifact {artifact_id}: it was discarded")
        return self._decoded(kept)

    def of_type(self, name: str) -> Sequence[Artifact[BaseModel]]:
        """Return the artifacts of a type, the oldest first: read them, and keep no hold of them."""
        return self._shelf(name).shown

    def models_of(self, name: str) -> Sequence[BaseModel]:
        """Return the models alone, in the same order."""
        return self._shelf(name).models

    def _shelf(self, name: str) -> _Shelf:
        shelf = self._shelves[name]
        new = [self._decoded(each) for each in shelf.kept[len(shelf.shown) :]]
        shelf.shown += new
        shelf.models += [each.payload for each in new]
        return shelf

    def counts(self) -> dict[str, int]:
        """Return how many artifacts there are of each type."""
        return {name: len(shelf.kept) for name, shelf in self._shelves.items() if shelf.kept}

    async def discard(self, model: type[BaseModel], *, before: datetime) -> int:
        """Forget artifacts of a type that were published before an instant; return how many.

        Other processes leave them out as soon as they read again.
        """
        name = self.know(model)
        at = _milliseconds(before)
        if at > self._asked.clock.now():
            raise ValueError(f"before must not be later than now, and is {rfc3339_ms(at)}")
        await self.refresh()
        kept = self._shelves[name].kept
        if not kept or kept[0].at >= at:
            return 0
        # Said first: whatever happens then, those who read leave them out.
        await self._asked.keep(KIND, f"{DISCARDED}{name}", {"before": at})
        self._horizons[name] = at
        return await self._forget(name, before=at)

    async def _forget(self, name: str, *, before: int) -> int:
        old = [each.artifact_id for each in self._shelves[name].take(before=before)]
        for each in old:
            del self._by_id[each]
        for begin in range(0, len(old), AT_ONCE):  # they share a commit where the store can
            some = old[begin : begin + AT_ONCE]
            await asyncio.gather(*(self._asked.forget(KIND, each) for each in some))
        return len(old)

    def _decoded(self, kept: _Kept) -> Artifact[BaseModel]:
        if kept.artifact is None:
            model, body = self._models.get(kept.type), kept.body
            if model is None:
                problem = f"artifact {kept.artifact_id} is a {kept.type}"
                raise LookupError(f"{problem}, which no agent here consumes or publishes")
            assert body is not None, "it is there until it is decoded"
            try:
                payload = model.model_validate(body["payload"])
            except ValidationError as wrong:
                first = re.sub(r"\s+", " ", str(wrong))
                problem = f"artifact {kept.artifact_id} does not fit {kept.type} any more: {first}"
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

"""The blackboard: typed artifacts that agents publish and read, stored as documents.

This process keeps what it has read or written in memory, decoded and in publishing order, so that a
thousand agents can read ten thousand artifacts. Before an agent runs, new artifacts of other
processes are read; concurrent callers share one read. Reads overlap, since
transactions do not commit in the order in which they begin.
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
from onbeat.systems.agents.payloads import decode, encode, error_text

log = logging.getLogger("onbeat.systems")

KIND = "agents.artifact"  # document kind
LOOK_BACK = 15_000  # milliseconds, longer than any transaction takes
PAGE = 2_000  # documents in one read
AT_ONCE = 64  # documents deleted concurrently
DISCARDED = "discarded:"  # prefix of documents with the discard horizon of a type
EXTERNAL = "external"  # the publisher of artifacts from outside the agents
Model = TypeVar("Model", bound=BaseModel)
M_co = TypeVar("M_co", bound=BaseModel, covariant=True)


@dataclass(frozen=True, slots=True)
class Artifact(Generic[M_co]):
    """A published artifact; `payload` is the model, shared by readers, who must not change it.

    `correlation_id` is that of its cause; `created_at` is the time of publishing, in UTC.
    """

    id: str
    type: str
    payload: M_co
    produced_by: str
    correlation_id: str
    tags: frozenset[str]
    created_at: datetime


@dataclass(slots=True)
class _StoredArtifact:
    """An artifact as stored, decoded on first use."""

    artifact_id: str
    at: int  # milliseconds
    order: int  # among artifacts of the same millisecond
    type: str
    pending: Sequence[str]  # agents that may still have to be started for it
    body: Mapping[str, object] | None  # None: decoded, and not to be written again
    artifact: Artifact[BaseModel] | None = None


@dataclass(slots=True)
class _Shelf:
    """The artifacts of a type in publishing order; a prefix of them is decoded."""

    stored: list[_StoredArtifact] = field(default_factory=list)
    decoded: list[Artifact[BaseModel]] = field(default_factory=list)
    models: list[BaseModel] = field(default_factory=list)  # of `decoded`, for most readers
    unreadable: list[_StoredArtifact] = field(default_factory=list)  # ignored, until discarded

    def add(self, new: _StoredArtifact) -> None:
        place = bisect_right(self.stored, _position(new), key=_position)
        self.stored.insert(place, new)
        # An artifact of another process may be older than decoded ones.
        del self.decoded[place:], self.models[place:]

    def append_decoded(self, artifact: Artifact[BaseModel]) -> None:
        """Add the first artifact that was not decoded yet."""
        self.decoded.append(artifact)
        self.models.append(artifact.payload)

    def set_unreadable(self) -> None:
        """Ignore the first artifact that was not decoded yet."""
        self.unreadable.append(self.stored.pop(len(self.decoded)))

    def count(self, *, before: int) -> int:
        """Return the number of artifacts published before an instant."""
        unreadable = sum(each.at < before for each in self.unreadable)
        return unreadable + bisect_left(self.stored, (before, -1, ""), key=_position)

    def remove(self, *, before: int) -> list[_StoredArtifact]:
        """Remove and return the artifacts published before an instant."""
        place = bisect_left(self.stored, (before, -1, ""), key=_position)
        old = self.stored[:place] + [each for each in self.unreadable if each.at < before]
        del self.stored[:place], self.decoded[:place], self.models[:place]
        self.unreadable = [each for each in self.unreadable if each.at >= before]
        return old


def _position(stored: _StoredArtifact) -> tuple[int, int, str]:
    return stored.at, stored.order, stored.artifact_id


def type_name(model: type[BaseModel]) -> str:
    """Return the type name of a model: its title, or the name of the class.

    Modules do not matter, so that a program finds its artifacts after it was moved.
    """
    return str(model.model_config.get("title") or model.__name__)


class Blackboard:
    """All artifacts of a store, by type, in publishing order."""

    def __init__(self) -> None:
        self._service: Service | None = None
        self._models: dict[str, type[BaseModel]] = {}
        self._by_id: dict[str, _StoredArtifact] = {}
        self._pending: dict[str, _StoredArtifact] = {}
        self._order = 0  # of the next artifact
        self._shelves: dict[str, _Shelf] = defaultdict(_Shelf)
        self._horizons: dict[str, int] = {}  # by type: older artifacts were discarded
        self._read_until: int | None = None
        self._reading = self._forgetting = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None

    def register(self, model: object) -> str:
        """Register the model of a type; refuse a second model of the same name."""
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise TypeError(f"{model!r} is not a type of artifacts: use a pydantic model")
        name = type_name(model)
        if self._models.setdefault(name, model) is not model:
            hint = "set a title: model_config = ConfigDict(title=...)"
            raise ValueError(f"two types of artifacts are called {name!r} ({hint})")
        return name

    async def open(self, service: Service) -> None:
        """Load all artifacts."""
        self._service = service
        self._by_id, self._shelves, self._horizons = {}, defaultdict(_Shelf), {}
        self._pending, self._order = {}, 0
        self._reading, self._forgetting = asyncio.Lock(), asyncio.Lock()
        self._read_until, self._next = None, None
        await self.refresh()

    async def refresh(self) -> None:
        """Read new documents; everything committed before the call is read."""
        if self._next is None:  # a read in progress may miss them: wait for the next
            self._next = asyncio.create_task(self._refresh())
        await asyncio.shield(self._next)

    async def _refresh(self) -> None:
        async with self._reading:
            self._next = None
            now = self._opened.clock.now()
            since = None if self._read_until is None else min(self._read_until, now) - LOOK_BACK
            recent = [] if since is None else self._known_since(since)
            after = ""
            while True:
                page = await self._opened.list_documents(
                    KIND, since=since, after=after, limit=PAGE, but=recent
                )
                for row in page:
                    self._add_row(row)
                if len(page) < PAGE:
                    break
                after = page[-1].name
            self._read_until = now
        for name, horizon in list(self._horizons.items()):  # a discard may add one meanwhile
            await self._forget(name, before=horizon)

    def _known_since(self, since: int) -> list[str]:
        """Return ids written since an instant that are known and need not be read again."""
        ids: list[str] = []
        for shelf in self._shelves.values():
            place = bisect_left(shelf.stored, (since, -1, ""), key=_position)
            ids += [each.artifact_id for each in shelf.stored[place:]]
        return ids

    def _add_row(self, row: DocumentRow) -> None:
        if row.name in self._by_id or not isinstance(row.body, Mapping):
            return
        if row.name.startswith(DISCARDED):
            name = row.name.removeprefix(DISCARDED)
            self._horizons[name] = max(self._horizons.get(name, 0), int(str(row.body["before"])))
        else:
            self._add(row.name, row.body)

    def _add(self, artifact_id: str, body: Mapping[str, object]) -> None:
        at, name, pending = int(str(body["created_at"])), str(body["type"]), body["pending"]
        assert isinstance(pending, Sequence), "as `keep` writes it"
        order = int(str(body.get("order", 0)))
        stored = _StoredArtifact(artifact_id, at, order, name, tuple(map(str, pending)), body)
        self._order = max(self._order, order + 1)
        self._by_id[artifact_id] = stored
        if stored.pending:
            self._pending[artifact_id] = stored
        self._shelves[name].add(stored)

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
        """Store an artifact, with the agents that are still to be started for it.

        An artifact of this id that was read before stays unchanged. A payload that could not be
        read again is refused.
        """
        name, service = self.register(type(payload)), self._opened
        if artifact_id not in self._by_id:
            as_json = encode(payload, name=name)
            order, self._order = self._order, self._order + 1
            body: dict[str, object] = {
                "type": name,
                "payload": as_json,
                "produced_by": produced_by,
                "correlation_id": correlation_id,
                "tags": sorted(tags),
                # The clock may step back: a new artifact is never older than the horizon.
                "created_at": max(service.clock.now(), self._horizons.get(name, 0)),
                "order": order,
                "pending": list(pending),
            }
            await service.keep(KIND, artifact_id, body)
            if artifact_id not in self._by_id:  # it may have been read meanwhile
                self._add(artifact_id, body)
        return self.artifact(artifact_id)

    async def mark_delivered(self, artifact_id: str, names: Collection[str]) -> None:
        """Record that these agents were started for this artifact."""
        stored = self._by_id.get(artifact_id)
        if stored is None or not stored.pending:  # discarded meanwhile, or nothing to record
            return
        assert stored.body is not None, "it stays while it may have to be written"
        left = [each for each in stored.pending if each not in names]
        body = {**stored.body, "pending": left}
        await self._opened.keep(KIND, artifact_id, body)
        stored.pending, stored.body = left, body
        if not left:
            self._pending.pop(artifact_id, None)

    def pending(self) -> dict[str, Sequence[str]]:
        """Return the artifacts for which agents may still have to be started, and these agents."""
        return {artifact_id: stored.pending for artifact_id, stored in self._pending.items()}

    def artifact(self, artifact_id: str) -> Artifact[BaseModel]:
        """Return an artifact; raise LookupError if it was discarded or its type is unknown."""
        stored = self._by_id.get(artifact_id)
        if stored is None:
            raise LookupError(f"artifact {artifact_id} does not exist: it was discarded")
        return self._decode(stored)

    def model_of(self, name: str) -> type[BaseModel] | None:
        """Return the model of a type, if it is registered."""
        return self._models.get(name)

    def type_of(self, artifact_id: str) -> str:
        """Return the type of an artifact; empty if it was discarded."""
        stored = self._by_id.get(artifact_id)
        return "" if stored is None else stored.type

    def of_type(self, name: str) -> Sequence[Artifact[BaseModel]]:
        """Return the artifacts of a type, oldest first; do not keep the returned sequence."""
        return self._shelf(name).decoded

    def models_of(self, name: str) -> Sequence[BaseModel]:
        """Return only the models, in the same order."""
        return self._shelf(name).models

    def _shelf(self, name: str) -> _Shelf:
        shelf = self._shelves[name]
        while len(shelf.decoded) < len(shelf.stored):
            try:
                shelf.append_decoded(self._decode(shelf.stored[len(shelf.decoded)]))
            except ValueError as unreadable:
                log.warning("a stored artifact is ignored: %s", unreadable)
                shelf.set_unreadable()
        return shelf

    def counts(self) -> dict[str, int]:
        """Return the number of artifacts of each type."""
        return {name: len(shelf.stored) for name, shelf in self._shelves.items() if shelf.stored}

    async def discard(
        self, model: type[BaseModel], *, before: datetime, but: Collection[str] = ()
    ) -> int:
        """Delete artifacts of a type that were published before an instant; return how many.

        Artifacts from the first one in `but`, or the first that agents are still to be started for,
        are kept. Other processes drop the deleted ones with their next read.
        """
        name = self.register(model)
        at = _milliseconds(before)
        if at > self._opened.clock.now():
            raise ValueError(f"before must not be later than now, and is {rfc3339_ms(at)}")
        needed = [self._by_id[each] for each in {*but, *self._pending} if each in self._by_id]
        at = min([at, *(each.at for each in needed if each.type == name)])
        found = self._shelves[name].count(before=at)
        if not found:
            return 0
        # The horizon comes first: from then on readers ignore older artifacts.
        horizon = max(at, self._horizons.get(name, 0))
        await self._opened.keep(KIND, f"{DISCARDED}{name}", {"before": horizon})
        self._horizons[name] = horizon
        await self._forget(name, before=at)
        return found

    async def _forget(self, name: str, *, before: int) -> None:
        async with self._forgetting:  # concurrent callers wait until it is done
            old = [each.artifact_id for each in self._shelves[name].remove(before=before)]
            for each in old:
                del self._by_id[each]
                self._pending.pop(each, None)
            for first in range(0, len(old), AT_ONCE):  # the store may share a commit
                some = old[first : first + AT_ONCE]
                await asyncio.gather(*(self._opened.forget(KIND, each) for each in some))

    def _decode(self, stored: _StoredArtifact) -> Artifact[BaseModel]:
        if stored.artifact is None:
            model, body = self._models.get(stored.type), stored.body
            if model is None:
                problem = f"artifact {stored.artifact_id} is a {stored.type}"
                raise LookupError(f"{problem}, which no agent here consumes or publishes")
            assert body is not None, "it stays until it is decoded"
            try:
                payload = decode(model, body["payload"])
            except ValidationError as wrong:
                misfit = f"artifact {stored.artifact_id} does not fit {stored.type} any more"
                problem = f"{misfit}: {error_text(wrong)}"
                hint = "give new fields a default, or discard older artifacts"
                raise ValueError(f"{problem} ({hint})") from None
            tags = body["tags"]
            assert isinstance(tags, Sequence), "as `keep` writes it"
            stored.artifact = Artifact(
                stored.artifact_id,
                stored.type,
                payload,
                str(body["produced_by"]),
                str(body["correlation_id"]),
                frozenset(map(str, tags)),
                datetime.fromtimestamp(stored.at / 1000, UTC),
            )
        if not stored.pending:
            stored.body = None
        return stored.artifact

    @property
    def _opened(self) -> Service:
        assert self._service is not None, "it was opened"
        return self._service


def _milliseconds(instant: datetime) -> int:
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return whole_second(aware) * 1000 + aware.microsecond // 1000

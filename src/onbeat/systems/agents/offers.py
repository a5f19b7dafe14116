"""Artifacts published over HTTP: offered in the store, and taken by a program that has the type.

A program of agents registers its types when it starts. Any process on the database can offer an
artifact of such a type; the program validates it with its model, publishes or refuses it, and
records the result in the offer. So the API need not run in the program, and offers wait durably
until a program is up. The id of an artifact is derived from the caller's key.
"""

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec.structs import replace

from onbeat.errors import InvalidSchedule, NotAllowed
from onbeat.service.service import Service

OFFER = "agents.offer"  # document kind: open offers
TAKEN = "agents.offer.taken"  # document kind: results of offers, without payloads
TYPES = "agents.types"  # document kind: types registered by programs
EXTERNAL = "external"  # the publisher of artifacts from outside the agents
LOOK_EVERY = 0.1  # seconds
WAIT = 3.0  # seconds; a running program checks for offers every second
KEPT_FOR = 86_400_000  # milliseconds for which the key of an offer is remembered
LONGEST = 1024 * 1024 - 32 * 1024  # bytes of a payload


class Offer(msgspec.Struct, frozen=True):
    """An offered artifact, and its result."""

    type: str
    payload: dict[str, object]
    digest: str
    at: int  # milliseconds
    tags: list[str] = []
    correlation_id: str | None = None
    state: Literal["offered", "published", "refused"] = "offered"
    error: str = ""
    by: str = ""


class Offers:
    """The offering side. `service` is the one of the process itself."""

    def __init__(self, service: Service, *, wait: float = WAIT) -> None:
        self._service, self._wait = service, wait

    async def types(self) -> list[str]:
        """Return the types that programs have registered."""
        return [row.name for row in await self._service.list_documents(TYPES)]

    async def publish(
        self,
        caller: Service,
        type_name: str,
        payload: Mapping[str, object],
        *,
        tags: Sequence[str] = (),
        correlation_id: str | None = None,
        key: str | None = None,
    ) -> tuple[str, Offer]:
        """Offer an artifact; return its id, and its result after a few seconds at most.

        Raise InvalidSchedule if a program refuses it. If no program took it in time, its state is
        `offered`, and a program takes it later.
        """
        _check_may_publish(caller)
        if type_name not in (known := await self.types()):
            hint = f"known: {', '.join(known)}" if known else "start the program of its agents"
            raise InvalidSchedule("type", f"no program has an artifact {type_name!r}", hint=hint)
        artifact_id = f"{EXTERNAL}:{key or self._service.new_id()}"
        digest = _digest(type_name, payload)
        existing = await self._offer(artifact_id)
        if existing is not None and existing.digest != digest and existing.state != "refused":
            problem = f"artifact {artifact_id} was offered already with other contents"
            raise InvalidSchedule("Idempotency-Key", problem, hint="use another key")
        if existing is None or existing.digest != digest:
            found = Offer(
                type_name, dict(payload), digest, self._service.clock.now(), sorted(set(tags)),
                correlation_id, by=caller.caller.name,
            )  # fmt: skip
            await self._service.keep(OFFER, artifact_id, msgspec.to_builtins(found))
        return artifact_id, await self._result(artifact_id, digest)

    async def _result(self, artifact_id: str, digest: str) -> Offer:
        """Wait for a limited time until a program takes an offer."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait
        while True:
            found = await self._offer(artifact_id)
            assert found is not None, "its result is kept for a day"
            if found.digest != digest:
                problem = "another artifact was offered concurrently with this key"
                raise InvalidSchedule("Idempotency-Key", problem, hint="use another key")
            if found.state == "refused":
                raise InvalidSchedule("payload", found.error, hint=f"a {found.type}")
            if found.state == "published" or loop.time() >= until:
                return found
            await asyncio.sleep(LOOK_EVERY)

    async def _offer(self, artifact_id: str) -> Offer | None:
        """Return an offer. `take` writes the result first, so one of the documents exists."""
        row = await self._service.kept(OFFER, artifact_id)
        if row is None:
            row = await self._service.kept(TAKEN, artifact_id)
        return None if row is None else msgspec.convert(row.body, Offer)


async def take(service: Service, artifact_id: str, offer: Offer) -> None:
    """Record the result of an offer. After a crash in between it is taken again, safely."""
    await service.keep(TAKEN, artifact_id, msgspec.to_builtins(replace(offer, payload={})))
    await service.forget(OFFER, artifact_id)


async def open_offers(service: Service) -> dict[str, Offer]:
    """Return the offers that no program has taken yet, oldest first."""
    found = {
        row.name: msgspec.convert(row.body, Offer) for row in await service.list_documents(OFFER)
    }
    return dict(sorted(found.items(), key=lambda each: each[1].at))


async def forget_taken(service: Service) -> None:
    """Delete the results of offers that were taken long ago."""
    before = service.clock.now() - KEPT_FOR
    for row in await service.list_documents(TAKEN):
        if row.updated_at < before:
            await service.forget(TAKEN, row.name)


def _digest(type_name: str, payload: Mapping[str, object]) -> str:
    text = msgspec.json.encode([type_name, payload], order="sorted")
    if len(text) > LONGEST:
        problem = f"it has {len(text)} bytes; the limit is {LONGEST}"
        raise InvalidSchedule("payload", problem, hint="publish a link to large contents")
    return sha256(text).hexdigest()


def _check_may_publish(service: Service) -> None:
    """Refuse callers without the scope, and callers with an owner, as artifacts are shared."""
    if not service.caller.may("operate"):
        problem = f"this needs the scope operate, and {service.caller.name} has less"
        raise NotAllowed(problem, hint="a token with scope operate")
    if service.caller.only_owner is not None:
        problem = f"{service.caller.name} is restricted to an owner, but artifacts are shared"
        raise NotAllowed(problem, hint="a token without an owner")

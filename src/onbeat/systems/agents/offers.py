"""Artifacts that come over HTTP: offered in the store, and taken by a program that knows the type.

A program of agents registers its types when it starts. Any process on the database can offer an
artifact of such a type; the program validates it by its model, publishes or refuses it, and records
that in the offer. So the API need not run in the program, and an offer is durable while no program
is up. The id of an artifact is made of the caller's key: the same key is the same artifact.
"""

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec.structs import replace

from onbeat.errors import InvalidSchedule, NotAllowed
from onbeat.service.service import Service

OFFER = "agents.offer"  # the kind of what is offered, until a program has taken it
TAKEN = "agents.offer.taken"  # the kind of what became of it, without the payload
TYPES = "agents.types"  # the kind of what programs know
EXTERNAL = "external"  # who published what no agent did
LOOK_EVERY = 0.1  # seconds
WAIT = 3.0  # seconds: a running program looks for offers every second
KEPT_FOR = 86_400_000  # milliseconds for which the key of an offer is known
LONGEST = 1024 * 1024 - 32 * 1024  # bytes of a payload


class Offer(msgspec.Struct, frozen=True):
    """An artifact that was offered, and what became of it."""

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
    """The side of those who offer. `service` is the process's own."""

    def __init__(self, service: Service, *, wait: float = WAIT) -> None:
        self._service, self._wait = service, wait

    async def types(self) -> list[str]:
        """Return the types that programs have registered, by name."""
        return [row.name for row in await self._service.kept_all(TYPES)]

    async def publish(
        self,
        asked: Service,
        type_name: str,
        payload: Mapping[str, object],
        *,
        tags: Sequence[str] = (),
        correlation_id: str | None = None,
        key: str | None = None,
    ) -> tuple[str, Offer]:
        """Offer an artifact; return its id, and what became of it within a few seconds.

        One that a program refuses is refused here as well. If no program took it yet, it is
        `offered`, and will be taken when one is up.
        """
        _check_may_publish(asked)
        if type_name not in (known := await self.types()):
            hint = f"known: {', '.join(known)}" if known else "start the program of its agents"
            raise InvalidSchedule("type", f"no program has an artifact {type_name!r}", hint=hint)
        artifact_id = f"{EXTERNAL}:{key or self._service.new_id()}"
        digest = _digest(type_name, payload)
        there = await self._offer(artifact_id)
        if there is not None and there.digest != digest and there.state != "refused":
            problem = f"artifact {artifact_id} was offered already, and is another"
            raise InvalidSchedule("Idempotency-Key", problem, hint="another key")
        if there is None or there.digest != digest:
            found = Offer(
                type_name, dict(payload), digest, self._service.clock.now(), sorted(set(tags)),
                correlation_id, by=asked.caller.name,
            )  # fmt: skip
            await self._service.keep(OFFER, artifact_id, msgspec.to_builtins(found))
        return artifact_id, await self._answered(artifact_id, digest)

    async def _answered(self, artifact_id: str, digest: str) -> Offer:
        """Wait for a program to take an offer, for a while."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait
        while True:
            found = await self._offer(artifact_id)
            assert found is not None, "what became of it is kept for a day"
            if found.digest != digest:
                problem = "another artifact was offered under it at the same time"
                raise InvalidSchedule("Idempotency-Key", problem, hint="another key")
            if found.state == "refused":
                raise InvalidSchedule("payload", found.error, hint=f"a {found.type}")
            if found.state == "published" or loop.time() >= until:
                return found
            await asyncio.sleep(LOOK_EVERY)

    async def _offer(self, artifact_id: str) -> Offer | None:
        """Return an offer. `take` writes what became of it first: one of both is always there."""
        kept = await self._service.kept(OFFER, artifact_id)
        if kept is None:
            kept = await self._service.kept(TAKEN, artifact_id)
        return None if kept is None else msgspec.convert(kept.body, Offer)


async def take(service: Service, artifact_id: str, offer: Offer) -> None:
    """Record what became of an offer. A crash in between has it taken again, which may be."""
    await service.keep(TAKEN, artifact_id, msgspec.to_builtins(replace(offer, payload={})))
    await service.forget(OFFER, artifact_id)


async def offered(service: Service) -> dict[str, Offer]:
    """Return what no program has taken yet, the oldest first."""
    found = {row.name: msgspec.convert(row.body, Offer) for row in await service.kept_all(OFFER)}
    return dict(sorted(found.items(), key=lambda each: each[1].at))


async def forget_taken(service: Service) -> None:
    """Forget what became of offers that were taken long ago."""
    before = service.clock.now() - KEPT_FOR
    for row in await service.kept_all(TAKEN):
        if row.updated_at < before:
            await service.forget(TAKEN, row.name)


def _digest(type_name: str, payload: Mapping[str, object]) -> str:
    text = msgspec.json.encode([type_name, payload], order="sorted")
    if len(text) > LONGEST:
        problem = f"it is {len(text)} bytes long, and may be {LONGEST}"
        raise InvalidSchedule("payload", problem, hint="publish a link to what is large")
    return sha256(text).hexdigest()


def _check_may_publish(asked: Service) -> None:
    """Refuse callers without the scope, and those that see only their own: all agents share it."""
    if not asked.caller.may("operate"):
        problem = f"this needs the scope operate, and {asked.caller.name} has less"
        raise NotAllowed(problem, hint="a token with scope operate")
    if asked.caller.only_of is not None:
        problem = f"{asked.caller.name} has only what is its own, and artifacts are shared"
        raise NotAllowed(problem, hint="a token without an owner")

"""The process that is connected to a Ray cluster, and that a node talks to: JSON, line by line.

Ray lives here and not in the node, since it ends the process that is connected to a cluster which
went away. What runs on the cluster does not need this process: it is found again by its name.

Each line that comes in has an `id` and says what to `do`; lines that go out have that id again.
`begun` is said before anything is started, so that whoever hears nothing knows that nothing was.
"""

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

import ray
from ray import cloudpickle
from ray._private import state, worker
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    RayError,
    RuntimeEnvSetupError,
)
from ray.util import list_named_actors

from onbeat.systems.ray import dag, mirror, runner, tracer

PING_EVERY = 1.0
OUTPUT_EVERY = 1.0
UNAVAILABLE_FOR = 30.0  # seconds in which an actor that is out of touch may come back
PAUSE = 0.1
ANSWERS_WITHIN = 1.0  # seconds in which a runner answers that has its place
WAITS = "[onbeat: waits for a place on the cluster]\n"
Fields = dict[str, object]
Answered_co = TypeVar("Answered_co", covariant=True)
T = TypeVar("T")


class _Method(Protocol[Answered_co]):
    """A method of an actor, which answers from elsewhere."""

    def remote(self, *given: object) -> Awaitable[Answered_co]:
        """Ask for it."""


class Actor(Protocol):
    """A runner, from here."""

    run: _Method[str]
    state: _Method[str]
    output: _Method[tuple[int, str]]
    cancel: _Method[None]


class Gateway:
    """Does what it is told, on one cluster and in one namespace."""

    def __init__(self, writer: asyncio.StreamWriter, namespace: str, silence: float) -> None:
        self._writer, self._namespace, self._silence = writer, namespace, silence
        self._answered = time.monotonic()  # by the cluster
        self._doing: set[asyncio.Task[None]] = set()
        # Whoever ends a runner comes after whoever was asked before to start it.
        self._one_at_a_time: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Do what is asked, all at once, until nobody asks any more."""
        self._begin(self._ping())
        self._begin(self._watch())
        while line := await reader.readline():
            self._begin(self._do(json.loads(line)))

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    async def _do(self, asked: Fields) -> None:
        verbs: dict[object, Callable[[Fields], Awaitable[Fields]]] = {
            "run": self._run, "end": self._end, "list": self._list, "mirror": self._mirror,
        }  # fmt: skip
        try:
            found = await verbs[asked["do"]](asked)
        except RuntimeEnvSetupError as broken:  # nothing of it has begun
            found = {"broken": f"its runtime_env could not be had: {_brief(broken)}"}
        except RayError as broken:
            found = {"lost": _brief(broken)}
        except Exception as broken:  # noqa: BLE001 - told, and the next is done
            found = {"broken": f"{type(broken).__name__}: {broken}"}
        self._say(asked, found)

    def _say(self, asked: Fields, told: Fields) -> None:
        self._writer.write(json.dumps({"id": asked["id"], **told}).encode() + b"\n")

    # -- runs

    async def _run(self, asked: Fields) -> Fields:
        """Start a runner, or find it; return what came of it."""
        async with self._one_at_a_time.setdefault(str(asked["name"]), asyncio.Lock()):
            actor = await self._found_or_made(str(asked["name"]), asked)
        if actor is None:
            return {"absent": True, "never_began": await self._never_began(str(asked["name"]))}
        telling = asyncio.ensure_future(self._tell_output(actor, asked))
        try:
            return {"outcome": json.loads(await _until_over(actor, json.dumps(asked["spec"])))}
        except ActorDiedError as died:  # perhaps with its node, before it had come to life
            return {"lost": _brief(died), "unborn": await self._never_began(str(asked["name"]))}
        finally:
            telling.cancel()

    async def _found_or_made(self, name: str, asked: Fields) -> Actor | None:
        actor = await self._find(name)
        if actor is not None and await self._is_of_an_earlier_attempt(actor, asked):
            await self._kill(name, actor)
            actor = None
        if actor is None and asked["only_find"]:
            return None
        self._say(asked, {"begun": True})
        await self._writer.drain()
        return actor or await asyncio.to_thread(self._make, name, asked)

    async def _never_began(self, name: str) -> bool:
        """Return whether the cluster, for as long as it has been up, had no such runner at work."""
        try:
            known = await self._ask(state.actors)  # also those that are dead
            return not any(each["Name"] == name and each["StartTime"] for each in known.values())
        except (AttributeError, KeyError):  # this is no public part of Ray: others may have none
            return False

    async def _is_of_an_earlier_attempt(self, actor: Actor, asked: Fields) -> bool:
        """Return whether a runner was left by an attempt whose end was recorded."""
        if asked["may_run"]:
            return False  # nobody has recorded its end
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                found = await _state_of(actor)
        except TimeoutError:
            return False  # it waits for its place, so that it is of nobody who has ended
        about = asked["about"]
        assert isinstance(about, dict), "so it is asked"
        return bool(found["is_over"]) and found["attempt"] != about["attempt"]

    def _make(self, name: str, asked: Fields) -> Actor:
        options = asked["options"]
        assert isinstance(options, dict), "so it is asked"
        made: Actor = (
            ray.remote(runner.Runner)
            .options(
                name=name,
                namespace=self._namespace,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=0,
                max_task_retries=0,
                **options,
            )
            .remote(json.dumps(asked["about"]))
        )
        return made

    async def _tell_output(self, actor: Actor, asked: Fields) -> None:
        """Tell since when it runs, and what it prints while it does."""
        placed = asyncio.ensure_future(_state_of(actor))
        done, _ = await asyncio.wait([placed], timeout=OUTPUT_EVERY * 3)
        if not done:
            self._say(asked, {"output": WAITS})
        stands = await placed
        self._say(asked, {"ran": stands["ran"], "actor": stands.get("actor", "")})
        offset = 0
        while True:
            await asyncio.sleep(OUTPUT_EVERY)
            new, text = await actor.output.remote(offset)
            if new > offset:
                offset = new
                self._say(asked, {"output": text})

    async def _end(self, asked: Fields) -> Fields:
        """End a runner, or only the one of an attempt: after a grace, in which it may by itself."""
        name, grace, attempt = str(asked["name"]), float(str(asked["grace"])), asked["attempt"]
        async with self._one_at_a_time.setdefault(name, asyncio.Lock()):
            actor = await self._find(name)
            if actor is None:
                return {"ended": False}
            if attempt is not None and await self._is_of_another(actor, attempt):
                return {"ended": False}
            if grace > 0:
                with suppress(TimeoutError, RayError):  # it is not placed yet, or gone
                    async with asyncio.timeout(min(grace, ANSWERS_WITHIN)):
                        await actor.cancel.remote()
                    async with asyncio.timeout(grace):
                        while not (await _state_of(actor))["is_over"]:
                            await asyncio.sleep(PAUSE)
            await self._kill(name, actor)
        return {"ended": True}

    async def _is_of_another(self, actor: Actor, attempt: object) -> bool:
        """Return whether a runner is of another attempt by now; one without a place is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_WITHIN):
                return (await _state_of(actor))["attempt"] != attempt
        return True

    async def _kill(self, name: str, actor: Actor) -> None:
        await asyncio.to_thread(ray.kill, actor, no_restart=True)
        until = time.monotonic() + UNAVAILABLE_FOR
        while await self._find(name) is not None and time.monotonic() < until:
            await asyncio.sleep(PAUSE)

    async def _list(self, asked: Fields) -> Fields:  # noqa: ARG002 - every verb has one signature
        """Return what the runners of this namespace say of themselves; those that answer do."""
        listed = await self._ask(list_named_actors, True)  # noqa: FBT003 - Ray's own
        names = [each["name"] for each in listed if each["namespace"] == self._namespace]
        found = await asyncio.gather(*map(self._said_by, names))
        return {"runners": [each for each in found if each]}

    async def _said_by(self, name: str) -> Fields:
        actor = await self._find(name)
        with suppress(TimeoutError, RayError):  # it waits for its place, or is gone
            async with asyncio.timeout(ANSWERS_WITHIN):
                return {"name": name, **await _state_of(actor)} if actor is not None else {}
        return {}

    async def _mirror(self, asked: Fields) -> Fields:
        await mirror.update(str(asked["name"]), str(asked["namespace"]), json.dumps(asked["meta"]))
        return {"mirrored": True}

    # -- the cluster

    async def _find(self, name: str) -> Actor | None:
        try:
            found: Actor = await self._ask(ray.get_actor, name, self._namespace)
        except ValueError:
            return None
        return found

    async def _ask(self, function: Callable[..., T], *given: object) -> T:
        """Ask the cluster for something, in a thread, as Ray waits for the answer."""
        try:
            found = await asyncio.to_thread(function, *given)
        except ValueError:  # it knows nothing of that: an answer, too
            self._answered = time.monotonic()
            raise
        self._answered = time.monotonic()
        return found

    async def _ping(self) -> None:
        while True:
            with suppress(RayError):
                await self._find("nobody")
            await asyncio.sleep(PING_EVERY)

    async def _watch(self) -> None:
        """End this process when the cluster is silent for too long: its calls would never end."""
        while time.monotonic() - self._answered < self._silence:
            await asyncio.sleep(PAUSE)
        self._writer.write(b'{"id": null, "gone": "the Ray cluster does not answer"}\n')
        await self._writer.drain()
        os._exit(3)


async def _until_over(actor: Actor, spec: str) -> str:
    """Return what came of a run. A node that is out of touch may come back, or it is dead."""
    until = None
    while True:
        try:
            return await actor.run.remote(spec)
        except ActorUnavailableError:
            until = until or time.monotonic() + UNAVAILABLE_FOR
            if time.monotonic() > until:
                raise
            await asyncio.sleep(PAUSE * 5)


async def _state_of(actor: Actor) -> Fields:
    found: Fields = json.loads(await actor.state.remote())
    return found


def _brief(broken: RayError) -> str:
    """Return what is told of a runner that is no more: what Ray says, without its table."""
    if not isinstance(broken, ActorDiedError):
        return f"{type(broken).__name__}: {broken}".partition("\n")[0]
    said = [line.strip() for line in str(broken).splitlines() if line[:1] not in ("\t", "")]
    return " ".join(said[:2])[:500]


async def _main(given: list[str]) -> None:
    handle, address, namespace, working_dir, silence = given
    sock = socket.socket(fileno=int(handle))
    reader, writer = await asyncio.open_connection(sock=sock, limit=64 * 1024 * 1024)
    try:
        env: Fields | None = {"working_dir": working_dir} if working_dir else None
        async with asyncio.timeout(float(silence)):
            await _reach(address)
            await asyncio.to_thread(_connect, address, namespace, env)
    except Exception as broken:  # noqa: BLE001 - whatever keeps it from being connected
        gone = f"there is no Ray cluster at {address}: {_why_not(broken)}"
        writer.write(json.dumps({"id": None, "gone": gone}).encode() + b"\n")
        await writer.drain()
        return
    writer.write(json.dumps({"id": None, "up": _cluster_id()}).encode() + b"\n")
    await Gateway(writer, namespace, float(silence)).serve(reader)


def _why_not(broken: Exception) -> str:
    if isinstance(broken, OSError) and (broken.errno or 0) > 0:
        return os.strerror(broken.errno or 0)
    return f"{type(broken).__name__}: {str(broken).partition(chr(10))[0]}"


async def _reach(address: str) -> None:
    """Refuse an address at once where nobody is: Ray would look for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        _, writer = await asyncio.open_connection(
            host.removeprefix("ray://").strip("[]"), int(port)
        )
        writer.close()


def _cluster_id() -> str:
    """Return what tells this life of a cluster from any other, or nothing if that is not known."""
    return str(getattr(worker.global_worker.gcs_client, "cluster_id", ""))


def _connect(address: str, namespace: str, runtime_env: Fields | None) -> None:
    for module in (dag, mirror, runner, tracer):
        cloudpickle.register_pickle_by_value(module)
    ray.init(
        address=address,
        namespace=namespace,
        runtime_env=runtime_env,
        log_to_driver=False,
        configure_logging=False,
    )


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its node
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(32))  # each waits for an answer of the cluster
    loop.run_until_complete(_main(sys.argv[1:]))
    os._exit(0)  # without the goodbyes of Ray, which may take long: what runs needs none

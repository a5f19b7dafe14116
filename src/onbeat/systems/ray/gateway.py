"""The gateway: the process that is connected to a Ray cluster and serves a node, in JSON lines.

Ray runs here and not in the node, because it ends a process whose cluster went away. Runs on the
cluster do not need this process: they are reattached by their names.

Each request has an `id` and a verb in `do`; its answers have the same id. `begun` is sent before
anything is started, so that a node that has not received it knows that nothing was started.
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
UNAVAILABLE_FOR = 30.0  # seconds in which an unavailable actor may come back
PAUSE = 0.1
ANSWERS_WITHIN = 1.0  # seconds in which a placed runner answers
WAITS = "[onbeat: waits for a place on the cluster]\n"
Fields = dict[str, object]
Answered_co = TypeVar("Answered_co", covariant=True)
T = TypeVar("T")


class _Method(Protocol[Answered_co]):
    """A remote method of an actor."""

    def remote(self, *arguments: object) -> Awaitable[Answered_co]:
        """Call it."""


class Actor(Protocol):
    """A handle of a runner."""

    run: _Method[str]
    state: _Method[str]
    output: _Method[tuple[int, str]]
    cancel: _Method[None]


class Gateway:
    """Serves requests for one cluster and one namespace."""

    def __init__(self, writer: asyncio.StreamWriter, namespace: str, silence: float) -> None:
        self._writer, self._namespace, self._silence = writer, namespace, silence
        self._answered = time.monotonic()  # the last answer of the cluster
        self._tasks: set[asyncio.Task[None]] = set()
        # Requests for one runner are served in order: first its start, then its end.
        self._one_at_a_time: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Serve requests concurrently until the connection is closed."""
        self._start(self._ping())
        self._start(self._watch())
        while line := await reader.readline():
            self._start(self._serve_request(json.loads(line)))

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_request(self, request: Fields) -> None:
        verbs: dict[object, Callable[[Fields], Awaitable[Fields]]] = {
            "run": self._run, "end": self._end, "list": self._list, "mirror": self._mirror,
        }  # fmt: skip
        try:
            found = await verbs[request["do"]](request)
        except RuntimeEnvSetupError as broken:  # nothing was started
            found = {"broken": f"its runtime_env could not be set up: {_brief(broken)}"}
        except RayError as broken:
            found = {"lost": _brief(broken)}
        except Exception as broken:  # noqa: BLE001 - reported to the node
            found = {"broken": f"{type(broken).__name__}: {broken}"}
        self._send(request, found)

    def _send(self, request: Fields, answer: Fields) -> None:
        self._writer.write(json.dumps({"id": request["id"], **answer}).encode() + b"\n")

    # -- runs

    async def _run(self, request: Fields) -> Fields:
        """Start or reattach a runner; return its outcome."""
        async with self._one_at_a_time.setdefault(str(request["name"]), asyncio.Lock()):
            actor = await self._find_or_create(str(request["name"]), request)
        if actor is None:
            return {"absent": True, "never_began": await self._never_began(str(request["name"]))}
        sending = asyncio.ensure_future(self._send_output(actor, request))
        try:
            return {"outcome": json.loads(await _outcome(actor, json.dumps(request["spec"])))}
        except ActorDiedError as died:  # perhaps before its process was running
            return {"lost": _brief(died), "unborn": await self._never_began(str(request["name"]))}
        finally:
            sending.cancel()

    async def _find_or_create(self, name: str, request: Fields) -> Actor | None:
        actor = await self._find(name)
        if actor is not None and await self._is_of_an_earlier_attempt(actor, request):
            await self._kill(name, actor)
            actor = None
        if actor is None and request["only_find"]:
            return None
        self._send(request, {"begun": True})
        await self._writer.drain()
        return actor or await asyncio.to_thread(self._create, name, request)

    async def _never_began(self, name: str) -> bool:
        """Return whether no such runner has run since this cluster was started."""
        try:
            actors = await self._ask(state.actors)  # also dead ones
            return not any(each["Name"] == name and each["StartTime"] for each in actors.values())
        except (AttributeError, KeyError):  # not a public API of Ray
            return False

    async def _is_of_an_earlier_attempt(self, actor: Actor, request: Fields) -> bool:
        """Return whether a runner belongs to an attempt whose outcome was recorded."""
        if request["may_run"]:
            return False  # its outcome was not recorded
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                found = await _state_of(actor)
        except TimeoutError:
            return False  # it is not placed yet, so its attempt has not ended
        about = request["about"]
        assert isinstance(about, dict), "as the node sends it"
        return bool(found["is_over"]) and found["attempt"] != about["attempt"]

    def _create(self, name: str, request: Fields) -> Actor:
        options = request["options"]
        assert isinstance(options, dict), "as the node sends it"
        created: Actor = (
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
            .remote(json.dumps(request["about"]))
        )
        return created

    async def _send_output(self, actor: Actor, request: Fields) -> None:
        """Send how long the runner has run, and its output while it runs."""
        placed = asyncio.ensure_future(_state_of(actor))
        done, _ = await asyncio.wait([placed], timeout=OUTPUT_EVERY * 3)
        if not done:
            self._send(request, {"output": WAITS})
        state_now = await placed
        self._send(request, {"ran": state_now["ran"], "actor": state_now.get("actor", "")})
        offset = 0
        while True:
            await asyncio.sleep(OUTPUT_EVERY)
            new, text = await actor.output.remote(offset)
            if new > offset:
                offset = new
                self._send(request, {"output": text})

    async def _end(self, request: Fields) -> Fields:
        """End a runner, or only that of an attempt, after a grace in which it may end itself."""
        name, attempt = str(request["name"]), request["attempt"]
        grace = float(str(request["grace"]))
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
        """Return whether a runner belongs to another attempt; an unplaced one does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_WITHIN):
                return (await _state_of(actor))["attempt"] != attempt
        return True

    async def _kill(self, name: str, actor: Actor) -> None:
        await asyncio.to_thread(ray.kill, actor, no_restart=True)
        until = time.monotonic() + UNAVAILABLE_FOR
        while await self._find(name) is not None and time.monotonic() < until:
            await asyncio.sleep(PAUSE)

    async def _list(self, request: Fields) -> Fields:  # noqa: ARG002 - one signature for all verbs
        """Return the states of the runners of this namespace that answer."""
        listed = await self._ask(list_named_actors, True)  # noqa: FBT003 - an argument of Ray
        names = [each["name"] for each in listed if each["namespace"] == self._namespace]
        found = await asyncio.gather(*map(self._named_state, names))
        return {"runners": [each for each in found if each]}

    async def _named_state(self, name: str) -> Fields:
        actor = await self._find(name)
        with suppress(TimeoutError, RayError):  # not placed yet, or gone
            async with asyncio.timeout(ANSWERS_WITHIN):
                return {"name": name, **await _state_of(actor)} if actor is not None else {}
        return {}

    async def _mirror(self, request: Fields) -> Fields:
        name, namespace = str(request["name"]), str(request["namespace"])
        await mirror.update(name, namespace, json.dumps(request["meta"]))
        return {"mirrored": True}

    # -- the cluster

    async def _find(self, name: str) -> Actor | None:
        try:
            found: Actor = await self._ask(ray.get_actor, name, self._namespace)
        except ValueError:
            return None
        return found

    async def _ask(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a blocking function of Ray in a thread, and note that the cluster answered."""
        try:
            found = await asyncio.to_thread(function, *arguments)
        except ValueError:  # not found: an answer, too
            self._answered = time.monotonic()
            raise
        self._answered = time.monotonic()
        return found

    async def _ping(self) -> None:
        while True:
            with suppress(RayError):
                await self._find("no-such-actor")
            await asyncio.sleep(PING_EVERY)

    async def _watch(self) -> None:
        """End this process if the cluster is silent for too long, as its calls would not return."""
        while time.monotonic() - self._answered < self._silence:
            await asyncio.sleep(PAUSE)
        self._writer.write(b'{"id": null, "gone": "the Ray cluster does not answer"}\n')
        await self._writer.drain()
        os._exit(3)


async def _outcome(actor: Actor, spec: str) -> str:
    """Return the outcome of a run, waiting for an unavailable cluster node to come back."""
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
    """Return the error of a runner without Ray's table."""
    if not isinstance(broken, ActorDiedError):
        return f"{type(broken).__name__}: {broken}".partition("\n")[0]
    lines = [line.strip() for line in str(broken).splitlines() if line[:1] not in ("\t", "")]
    return " ".join(lines[:2])[:500]


async def _main(arguments: list[str]) -> None:
    handle, address, namespace, working_dir, silence = arguments
    sock = socket.socket(fileno=int(handle))
    reader, writer = await asyncio.open_connection(sock=sock, limit=64 * 1024 * 1024)
    try:
        env: Fields | None = {"working_dir": working_dir} if working_dir else None
        async with asyncio.timeout(float(silence)):
            await _reach(address)
            await asyncio.to_thread(_connect, address, namespace, env)
    except Exception as broken:  # noqa: BLE001 - any failure to connect is reported
        gone = f"no Ray cluster at {address}: {_reason(broken)}"
        writer.write(json.dumps({"id": None, "gone": gone}).encode() + b"\n")
        await writer.drain()
        return
    writer.write(json.dumps({"id": None, "up": _cluster_id()}).encode() + b"\n")
    await Gateway(writer, namespace, float(silence)).serve(reader)


def _reason(broken: Exception) -> str:
    if isinstance(broken, OSError) and (broken.errno or 0) > 0:
        return os.strerror(broken.errno or 0)
    return f"{type(broken).__name__}: {str(broken).partition(chr(10))[0]}"


async def _reach(address: str) -> None:
    """Fail quickly if nothing listens at an address, which Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        _, writer = await asyncio.open_connection(
            host.removeprefix("ray://").strip("[]"), int(port)
        )
        writer.close()


def _cluster_id() -> str:
    """Return an id of this cluster since its start; empty if it is unknown."""
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
    loop.set_default_executor(ThreadPoolExecutor(32))  # blocking calls to the cluster
    loop.run_until_complete(_main(sys.argv[1:]))
    os._exit(0)  # skips Ray's slow shutdown, which detached actors do not need

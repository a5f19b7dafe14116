"""The way of a node to a Ray cluster: a process of its own, the gateway, which has Ray in it.

It is started when it is first needed and, when it has ended, the next time that it is. Everything
is asked for in JSON, line by line; see `gateway.py`.
"""

import asyncio
import itertools
import logging
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from onbeat.files.extras import install_command

log = logging.getLogger("onbeat.ray")

LONGEST_LINE = 64 * 1024 * 1024
NO_RAY = "ray is not installed here"

Fields = Mapping[str, object]
Heard = Callable[[Fields], None]
LAST_WORDS = 2.0  # seconds in which a process that was ended may say why
SENT: Fields = {"sent": True}  # what is heard first: it is asked for from now on


class GatewayEnded(Exception):  # noqa: N818 - whoever asked is told by its text
    """The gateway has ended before it answered; unless it had `begun`, it has done nothing."""

    def __init__(self, why: str, *, begun: bool) -> None:
        super().__init__(why)
        self.begun = begun


class Link:
    """Asks a cluster, through a gateway; each who asks has an answer, or a `GatewayEnded`."""

    def __init__(
        self,
        address: str,
        namespace: str,
        *,
        environment: Mapping[str, str],
        working_dir: str = "",
        lease: float = 60,
    ) -> None:
        """`lease` is how many seconds a cluster that falls silent keeps its runs."""
        self.lease = lease
        self._given = (address, namespace, working_dir, str(lease / 3))
        self._environment = {**environment, "RAY_USAGE_STATS_ENABLED": "0"}
        self._gateway: _Gateway | None = None
        self._starting = asyncio.Lock()

    async def ask(self, do: str, fields: Fields, heard: Heard = lambda _: None) -> Fields:
        """Have something done; return the answer. What is told before it is `heard`."""
        return await (await self._connected()).ask({"do": do, **fields}, heard)

    async def cluster(self) -> str:
        """Return what tells this life of the cluster from any other; empty if that is not known."""
        return (await self._connected()).cluster

    async def _connected(self) -> "_Gateway":
        async with self._starting:
            if self._gateway is None or self._gateway.is_over:
                self._gateway = await _Gateway.start(self._given, self._environment)
            gateway = self._gateway
        await gateway.until_up()
        return gateway

    async def close(self) -> None:
        """End the gateway; what runs on the cluster goes on."""
        if self._gateway is not None:
            await self._gateway.close()


class _PendingCall:
    """A question that has not been answered yet."""

    def __init__(self, heard: Heard) -> None:
        self.heard, self.begun = heard, False
        self.answer: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()


class _Gateway:
    """One process, for as long as it lives."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self._waiting: dict[object, _PendingCall] = {}
        self._ids = itertools.count(1)
        self._why, self.cluster = "", ""  # why it has ended; where it is connected to
        self.is_over = False
        # Nothing is asked before it is connected: who dies until then has left nothing behind.
        self._is_up = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, given: tuple[str, ...], environment: Mapping[str, str]) -> "_Gateway":
        ours, theirs = socket.socketpair()
        with theirs:
            handle = theirs.fileno()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "onbeat.systems.ray.gateway", str(handle), *given,
                env=environment, pass_fds=(handle,), stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        return cls(process, reader, writer)

    async def until_up(self) -> None:
        await self._is_up.wait()
        if self.is_over:
            raise GatewayEnded(self._why, begun=False)

    async def ask(self, fields: Fields, heard: Heard) -> Fields:
        await self.until_up()
        number, asked = next(self._ids), _PendingCall(heard)
        self._waiting[number] = asked
        heard(SENT)
        self._writer.write(msgspec.json.encode({"id": number, **fields}) + b"\n")
        try:
            return await asked.answer
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        self._writer.close()  # upon which it ends
        try:
            async with asyncio.timeout(2):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await asyncio.wait([self._listening])

    async def _listen(self) -> None:
        telling = asyncio.create_task(_last_words(self._process.stderr))
        try:
            while line := await self._reader.readline():
                self._hear(msgspec.json.decode(line))
        except (ConnectionError, ValueError) as broken:  # ValueError: no JSON, or without an end
            self._why = self._why or f"the way to the Ray cluster broke: {broken}"
        self.is_over = True
        self._writer.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        words = ""
        with suppress(TimeoutError):  # what Ray has started may hold on to it
            async with asyncio.timeout(LAST_WORDS):
                words = await telling
        if "No module named 'ray'" in words:
            self._why = f"{NO_RAY} ({install_command('ray')})"
        self._why = self._why or f"the way to the Ray cluster was lost: {words or 'without a word'}"
        self._is_up.set()  # it is not, and whoever waits for that is to know
        for asked in list(self._waiting.values()):
            if not asked.answer.done():
                asked.answer.set_exception(GatewayEnded(self._why, begun=asked.begun))

    def _hear(self, told: dict[str, object]) -> None:
        if told.get("gone"):
            self._why = str(told["gone"])
        if "up" in told:
            self.cluster = str(told["up"])
            self._is_up.set()
        asked = self._waiting.get(told.pop("id"))
        if asked is None or asked.answer.done():
            return
        if told.keys() <= {"begun", "ran", "actor", "output"}:
            asked.begun = asked.begun or "begun" in told
            try:
                asked.heard(told)
            except Exception:
                log.exception("what a runner told could not be taken in")
        else:
            asked.answer.set_result(told)


async def _last_words(stderr: asyncio.StreamReader | None) -> str:
    """Return the last line that a process says before it ends."""
    assert stderr is not None, "it was asked for"
    last = b""
    while chunk := await stderr.read(65_536):
        last = (last + chunk)[-4096:]
    lines = [line.strip() for line in last.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""

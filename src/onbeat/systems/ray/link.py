"""A node's connection to a Ray cluster, through a separate process with Ray: the gateway.

The process is started on first use and, after it has ended, on the next use. Requests and answers
are JSON lines; see `gateway.py`.
"""

import asyncio
import itertools
import logging
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from onbeat.host.extras import install_command

log = logging.getLogger("onbeat.ray")

LONGEST_LINE = 64 * 1024 * 1024
NO_RAY = "ray is not installed here"

Fields = Mapping[str, object]
OnMessage = Callable[[Fields], None]
LAST_WORDS = 2.0  # seconds to read the error output of an ended process
SENT: Fields = {"sent": True}  # the first message: the request is being sent


class GatewayEnded(Exception):  # noqa: N818 - its text is the reason
    """The gateway ended before it answered; unless `begun`, nothing was started."""

    def __init__(self, why: str, *, begun: bool) -> None:
        super().__init__(why)
        self.begun = begun


class Link:
    """Sends requests to a cluster; each gets an answer, or raises `GatewayEnded`."""

    def __init__(
        self,
        address: str,
        namespace: str,
        *,
        environment: Mapping[str, str],
        working_dir: str = "",
        lease: float = 60,
    ) -> None:
        """`lease` is how many seconds runs stay with a silent cluster."""
        self.lease = lease
        self._arguments = (address, namespace, working_dir, str(lease / 3))
        self._environment = {**environment, "RAY_USAGE_STATS_ENABLED": "0"}
        self._gateway: _Gateway | None = None
        self._starting = asyncio.Lock()

    async def ask(self, do: str, fields: Fields, on_message: OnMessage = lambda _: None) -> Fields:
        """Send a request; return the answer. Earlier messages go to `on_message`."""
        return await (await self._connected()).ask({"do": do, **fields}, on_message)

    async def cluster(self) -> str:
        """Return an id of the cluster since its start; empty if it is unknown."""
        return (await self._connected()).cluster

    async def _connected(self) -> "_Gateway":
        async with self._starting:
            if self._gateway is None or self._gateway.has_ended:
                self._gateway = await _Gateway.start(self._arguments, self._environment)
            gateway = self._gateway
        await gateway.until_up()
        return gateway

    async def close(self) -> None:
        """End the gateway; runs on the cluster continue."""
        if self._gateway is not None:
            await self._gateway.close()


class _PendingCall:
    """A request that was not answered yet."""

    def __init__(self, on_message: OnMessage) -> None:
        self.on_message, self.begun = on_message, False
        self.answer: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()


class _Gateway:
    """One process of the gateway."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self._pending: dict[object, _PendingCall] = {}
        self._ids = itertools.count(1)
        self._why, self.cluster = "", ""  # why it ended; the cluster's id
        self.has_ended = False
        # Nothing is requested before it is connected: a process that ends earlier did nothing.
        self._is_up = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, arguments: tuple[str, ...], environment: Mapping[str, str]) -> "_Gateway":
        ours, theirs = socket.socketpair()
        with theirs:
            handle = theirs.fileno()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "onbeat.systems.ray.gateway", str(handle), *arguments,
                env=environment, pass_fds=(handle,), stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        return cls(process, reader, writer)

    async def until_up(self) -> None:
        await self._is_up.wait()
        if self.has_ended:
            raise GatewayEnded(self._why, begun=False)

    async def ask(self, fields: Fields, on_message: OnMessage) -> Fields:
        await self.until_up()
        number, call = next(self._ids), _PendingCall(on_message)
        self._pending[number] = call
        on_message(SENT)
        self._writer.write(msgspec.json.encode({"id": number, **fields}) + b"\n")
        try:
            return await call.answer
        finally:
            self._pending.pop(number, None)

    async def close(self) -> None:
        self._writer.close()  # which ends the process
        try:
            async with asyncio.timeout(2):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await asyncio.wait([self._listening])

    async def _listen(self) -> None:
        reading = asyncio.create_task(_last_words(self._process.stderr))
        try:
            while line := await self._reader.readline():
                self._on_line(msgspec.json.decode(line))
        except (ConnectionError, ValueError) as broken:  # ValueError: not JSON, or too long
            self._why = self._why or f"the connection to the Ray cluster broke: {broken}"
        self.has_ended = True
        self._writer.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        words = ""
        with suppress(TimeoutError):  # processes of Ray may hold the pipe open
            async with asyncio.timeout(LAST_WORDS):
                words = await reading
        if "No module named 'ray'" in words:
            self._why = f"{NO_RAY} ({install_command('ray')})"
        self._why = (
            self._why or f"the connection to the Ray cluster was lost: {words or 'no reason given'}"
        )
        self._is_up.set()  # wake up waiters, which see `has_ended`
        for call in list(self._pending.values()):
            if not call.answer.done():
                call.answer.set_exception(GatewayEnded(self._why, begun=call.begun))

    def _on_line(self, message: dict[str, object]) -> None:
        if message.get("gone"):
            self._why = str(message["gone"])
        if "up" in message:
            self.cluster = str(message["up"])
            self._is_up.set()
        call = self._pending.get(message.pop("id"))
        if call is None or call.answer.done():
            return
        if message.keys() <= {"begun", "ran", "actor", "output"}:
            call.begun = call.begun or "begun" in message
            try:
                call.on_message(message)
            except Exception:
                log.exception("a message of a Ray runner could not be handled")
        else:
            call.answer.set_result(message)


async def _last_words(stderr: asyncio.StreamReader | None) -> str:
    """Return the last line of error output of an ended process."""
    assert stderr is not None, "it is a pipe"
    last = b""
    while chunk := await stderr.read(65_536):
        last = (last + chunk)[-4096:]
    lines = [line.strip() for line in last.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""

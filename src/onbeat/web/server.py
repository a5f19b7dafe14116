"""The server of the API, in the process of a node: bound first, then served until it is stopped.

It shares its files with the runs of the node, so that nobody may take them all by connecting: so
many connections are open at most, and one on which nothing is asked is closed.
"""

import asyncio
import errno
import resource
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from onbeat.errors import ApiUnavailable, InvalidSettings
from onbeat.web.http_messages import StrictConnection
from onbeat.web.security.asgi import App

BACKLOG = 1024
STOP_WITHIN = 3.0  # seconds in which answers that are being given may end
MOST_CONNECTIONS = 1000
LONGEST_HEAD = 64 * 1024  # bytes of a line with its headers
LINGERS = (
    1.0  # seconds for which what a client still sends is discarded, so that it sees the answer
)
ASKS_WITHIN = 10.0  # seconds in which a connection has to be secured, and then a request be whole


def most_connections() -> int:
    """Return how many connections may be open: a quarter of the files that may be, at most."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(max(files // 4, 1), MOST_CONNECTIONS)


def bind(host: str, port: int, *, most: int | None = None) -> socket.socket:
    """Return a socket that listens there; refuse an address that is wrong or in use.

    Of connections beyond `most`, or as many as are good for the machine, each is closed at once.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = _Listening(family, most_connections() if most is None else most)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as broken:
        listening.close()
        there = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if broken.errno == errno.EADDRINUSE:
            hint = f"--listen {there.removesuffix(str(port))}0 takes a free port; or name another"
            raise ApiUnavailable(f"{there} is in use by another process ({hint})") from None
        problem = f"{there} cannot be listened on: {broken.strerror}"
        raise InvalidSettings("listen", problem, hint="another --listen HOST:PORT") from None
    listening.setblocking(False)  # noqa: FBT003 - it has no name
    return listening


class HttpServer:
    """Serves an application on a socket, in the running event loop.

    A connection over which nothing was asked for within `asks_within` seconds of being opened, or
    of the first byte of a request, is closed.
    """

    def __init__(
        self,
        app: App,
        listening: socket.socket,
        tls: ssl.SSLContext | None = None,
        *,
        asks_within: float = ASKS_WITHIN,
    ) -> None:
        self._listening = listening
        config = uvicorn.Config(
            app,
            http=H11Protocol,  # whatever else is installed: `_Connection` is one of these
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,  # the door sees to whom it believes
            h11_max_incomplete_event_size=LONGEST_HEAD,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=STOP_WITHIN,  # type: ignore[arg-type]  # seconds, also of parts
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        self._server = _Embedded(config, asks_within)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve from now on."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise InvalidSettings("listen", "the API did not start")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Let answers that are being given end, and serve no more."""
        if self._serving is None:
            self._listening.close()
            return
        self._server.should_exit = True
        await asyncio.wait([self._serving], timeout=STOP_WITHIN + 1)
        if not self._serving.done():
            self._serving.cancel()
            await asyncio.wait([self._serving])
        self._serving = None


class _Embedded(uvicorn.Server):
    """A server in a program that minds its signals itself, and who may connect."""

    def __init__(self, config: uvicorn.Config, asks_within: float) -> None:
        super().__init__(config)
        self._asks_within = asks_within

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; otherwise than by default, nobody takes a minute to secure a connection."""
        await super().startup(sockets=[])
        connect = partial(
            _Connection,
            self.config,
            self.server_state,
            self.lifespan.state,
            asks_within=self._asks_within,
        )
        secured_within = self._asks_within if self.config.ssl else None
        for each in sockets or []:
            server = await asyncio.get_running_loop().create_server(
                connect,
                sock=each,
                ssl=self.config.ssl,
                ssl_handshake_timeout=secured_within,
                backlog=BACKLOG,
            )
            self.servers.append(server)


class _Listening(socket.socket):
    """A socket that listens, with so many open connections at most."""

    def __init__(self, family: socket.AddressFamily, most: int) -> None:
        # Only what says that it is TCP sends small answers at once, rather than after 40 ms.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._most, self._open = most, WeakSet[_Accepted]()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and where it is from; one too many is closed instead."""
        found, there = super().accept()
        accepted = _Accepted(found.family, found.type, found.proto, fileno=found.detach())
        if len(self._open) >= self._most:
            accepted.close()
            raise ConnectionAbortedError("there are as many connections as there may be")
        self._open.add(accepted)
        accepted.counted_in = self._open
        return accepted, there


class _Accepted(socket.socket):
    """A connection that is counted until it is closed, or nobody has it any more."""

    counted_in: "WeakSet[_Accepted] | None" = None

    def close(self) -> None:
        """Close it, so that there is room for another."""
        if self.counted_in is not None:
            self.counted_in.discard(self)
        super().close()


class _Connection(H11Protocol):
    """A connection that is closed unless what comes over it becomes a request, and soon."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        asks_within: float,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = StrictConnection(LONGEST_HEAD)
        self._asks_within = asks_within
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Lingering(transport, self.conn))  # type: ignore[arg-type]  # it is used like one
        self._be_patient()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # it was answered, and nothing more is
        super().data_received(data)
        # Also what is left of a body that nobody wanted is not waited for any longer than that.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            self._be_patient()
        else:
            self._patience_ends()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP and close; what was answered before is not answered again."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # what the application still sends is discarded
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience_ends()
        super().connection_lost(exc)

    def _be_patient(self) -> None:
        """Wait for a request from now on; who sends it byte by byte has no more time for that."""
        if self._patience is None:
            self._patience = self.loop.call_later(self._asks_within, self.transport.abort)

    def _patience_ends(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _Lingering:
    """A transport that closes so that the client sees the last answer.

    A socket that is closed while something is unread resets the connection, and the client may
    lose the answer. So the end of the answer is sent first, and what still comes is discarded.
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        self._transport, self._conn, self._closes = transport, conn, False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a transport has
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Return whether nothing more is read."""
        return self._closes or self._transport.is_closing()

    def close(self) -> None:
        """Close it: at once if everything was read, else soon."""
        is_read = self._conn.their_state not in (h11.SEND_BODY, h11.ERROR)
        if self._closes or is_read or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._closes = True
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGERS, self._transport.close)

"""The HTTP server of the API, in the process of a node.

Connections and the runs of the node share the limit on open files. So the number of connections is
limited, and a connection without a request is closed.
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
STOP_WITHIN = 3.0  # seconds in which running requests may finish
MOST_CONNECTIONS = 1000
LONGEST_HEAD = 64 * 1024  # bytes of a request line with its headers
# Seconds for which data that a client still sends is discarded, so that it sees the response.
LINGER = 1.0
REQUEST_WITHIN = 10.0  # seconds for the TLS handshake, and then for a complete request


def most_connections() -> int:
    """Return how many connections may be open: at most a quarter of the limit on open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(max(files // 4, 1), MOST_CONNECTIONS)


def bind(host: str, port: int, *, most: int | None = None) -> socket.socket:
    """Return a listening socket; refuse an address that is invalid or in use.

    Connections beyond `most`, by default `most_connections()`, are closed immediately.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = _Listening(family, most_connections() if most is None else most)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as broken:
        listening.close()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if broken.errno == errno.EADDRINUSE:
            hint = f"--listen {address.removesuffix(str(port))}0 takes a free port; or name another"
            raise ApiUnavailable(f"{address} is in use by another process ({hint})") from None
        problem = f"cannot listen on {address}: {broken.strerror}"
        raise InvalidSettings("listen", problem, hint="another --listen HOST:PORT") from None
    listening.setblocking(False)  # noqa: FBT003 - a positional-only argument
    return listening


class HttpServer:
    """Serves an application on a socket, in the running event loop.

    A connection is closed if no complete request arrives within `request_within` seconds of its
    opening, or of the first byte of the request.
    """

    def __init__(
        self,
        app: App,
        listening: socket.socket,
        tls: ssl.SSLContext | None = None,
        *,
        request_within: float = REQUEST_WITHIN,
    ) -> None:
        self._listening = listening
        config = uvicorn.Config(
            app,
            http=H11Protocol,  # also if httptools is installed: `_Connection` is a subclass
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,  # the security middleware decides which proxies to trust
            h11_max_incomplete_event_size=LONGEST_HEAD,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=STOP_WITHIN,  # type: ignore[arg-type]  # a float works
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        self._server = _Embedded(config, request_within)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve until `stop`."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise InvalidSettings("listen", "the API did not start")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Let running requests finish, and stop serving."""
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
    """A uvicorn server that leaves signals to the program, and uses `_Connection`."""

    def __init__(self, config: uvicorn.Config, request_within: float) -> None:
        super().__init__(config)
        self._request_within = request_within

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, with a shorter timeout for the TLS handshake than the default of a minute."""
        await super().startup(sockets=[])
        connect = partial(
            _Connection,
            self.config,
            self.server_state,
            self.lifespan.state,
            request_within=self._request_within,
        )
        handshake_within = self._request_within if self.config.ssl else None
        for each in sockets or []:
            server = await asyncio.get_running_loop().create_server(
                connect,
                sock=each,
                ssl=self.config.ssl,
                ssl_handshake_timeout=handshake_within,
                backlog=BACKLOG,
            )
            self.servers.append(server)


class _Listening(socket.socket):
    """A listening socket with a maximum number of open connections."""

    def __init__(self, family: socket.AddressFamily, most: int) -> None:
        # asyncio sets TCP_NODELAY only for IPPROTO_TCP; without it small responses take 40 ms more.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._most, self._open = most, WeakSet[_Accepted]()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and its address; close it if there are too many."""
        found, address = super().accept()
        accepted = _Accepted(found.family, found.type, found.proto, fileno=found.detach())
        if len(self._open) >= self._most:
            accepted.close()
            raise ConnectionAbortedError("the maximum number of connections is open")
        self._open.add(accepted)
        accepted.counted_in = self._open
        return accepted, address


class _Accepted(socket.socket):
    """A connection that is counted until it is closed or garbage collected."""

    counted_in: "WeakSet[_Accepted] | None" = None

    def close(self) -> None:
        """Close the connection and stop counting it."""
        if self.counted_in is not None:
            self.counted_in.discard(self)
        super().close()


class _Connection(H11Protocol):
    """A connection that is closed unless a complete request arrives in time."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        request_within: float,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = StrictConnection(LONGEST_HEAD)
        self._request_within = request_within
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Lingering(transport, self.conn))  # type: ignore[arg-type]  # a proxy of one
        self._start_timeout()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # after the last response nothing more is read
        super().data_received(data)
        # The unread rest of a body is not waited for any longer either.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            self._start_timeout()
        else:
            self._stop_timeout()

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request and close; an answered request gets no second response."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # discards what the application still sends
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timeout()
        super().connection_lost(exc)

    def _start_timeout(self) -> None:
        """Start the timeout, unless it runs: sending byte by byte does not extend it."""
        if self._timeout is None:
            self._timeout = self.loop.call_later(self._request_within, self.transport.abort)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


class _Lingering:
    """A transport that closes such that the client sees the last response.

    Closing a socket with unread data resets the connection, and the client may lose the response.
    So the write side is closed first, and data that still arrives is discarded.
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        self._transport, self._conn, self._closes = transport, conn, False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a transport has
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Return whether nothing more is read."""
        return self._closes or self._transport.is_closing()

    def close(self) -> None:
        """Close it: immediately if everything was read, else after a moment."""
        is_read = self._conn.their_state not in (h11.SEND_BODY, h11.ERROR)
        if self._closes or is_read or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._closes = True
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER, self._transport.close)

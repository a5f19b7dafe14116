"""The server of the API, in the process of a node: bound first, then served until it is stopped."""

import asyncio
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from onbeat.errors import InvalidSettings
from onbeat.web.door.asgi import App

BACKLOG = 1024
STOP_WITHIN = 3.0  # seconds in which answers that are being given may end


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens there, or refuse the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only what says that it is TCP sends small answers at once, rather than after 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as broken:
        listening.close()
        problem = f"{host}:{port} cannot be listened on: {broken.strerror}"
        raise InvalidSettings("listen", problem, hint="another --listen HOST:PORT") from None
    listening.setblocking(False)  # noqa: FBT003 - it has no name
    return listening


class Server:
    """Serves an application on a socket, in the running event loop."""

    def __init__(
        self, app: App, listening: socket.socket, tls: ssl.SSLContext | None = None
    ) -> None:
        self._listening = listening
        config = uvicorn.Config(
            app,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,  # the door sees to whom it believes
            h11_max_incomplete_event_size=64 * 1024,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=STOP_WITHIN,  # type: ignore[arg-type]  # seconds, also of parts
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        self._server = _Embedded(config)
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
    """A server in a program that minds its signals itself."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

"""The API of a node: the HTTP server, the security middleware and the routes, composed."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import onbeat
from onbeat.app.metrics import scrape
from onbeat.app.onbeat import Onbeat
from onbeat.app.output import output_file
from onbeat.app.settings import Settings
from onbeat.engine.store_retry import until_answered
from onbeat.errors import ApiUnavailable
from onbeat.ports.rows import RunRow
from onbeat.service.service import Service
from onbeat.web.api import RouteDependencies, make_api, root_names
from onbeat.web.concurrency_limit import limit_concurrency
from onbeat.web.cors import Cors
from onbeat.web.identity import with_identity_proof
from onbeat.web.live import EventStreams
from onbeat.web.output import Output
from onbeat.web.routes.definitions import LARGE_PATHS
from onbeat.web.security.credentials import check_jwt
from onbeat.web.security.first_token import ensure_first_token
from onbeat.web.security.middleware import SecurityMiddleware
from onbeat.web.security.tls import check_exposure, ssl_context
from onbeat.web.server import HttpServer, bind

NODE_TOKEN_LASTS = 30_000  # milliseconds
NEXT_PORTS = 20  # ports after the default one that are tried before any free one is taken


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """The URL of a started API, and the file of the first token if this start created it."""

    url: str
    token_file: Path | None


class ApiServer:
    """The API of a node. It is bound on creation, as the node registers with its address.

    `settings` then has the port that was bound.
    """

    def __init__(self, settings: Settings) -> None:
        check_exposure(settings)
        check_jwt(settings)
        self._tls = ssl_context(settings)
        host, port = settings.listen_at
        self.in_use: str = ""  # why another port than the default one was bound, if so
        self._socket = self._bind(settings)
        bound: int = self._socket.getsockname()[1]
        if port != bound:
            settings = replace(settings, listen=f"{_in_url(host)}:{bound}")
        self.settings = settings
        self._live: EventStreams | None = None
        self._server: HttpServer | None = None

    def _bind(self, settings: Settings) -> socket.socket:
        """Return a listening socket: on the configured port, or else on the next free one."""
        host, port = settings.listen_at
        host = "127.0.0.1" if host == "localhost" else host
        try:
            return bind(host, port)
        except ApiUnavailable as in_use:
            if settings.listen or settings.public_url:  # clients expect this port
                raise
            self.in_use = f"{host}:{port} is in use by another process"
            for each in (*range(port + 1, port + NEXT_PORTS), 0):
                with suppress(ApiUnavailable):
                    return bind(host, each)
            raise in_use from None

    @property
    def address(self) -> str:
        """The URL at which other nodes reach this one, without a proxy in front of them."""
        host, port = self.settings.listen_at
        if host != "localhost" and ip_address(host).is_unspecified:
            host = socket.gethostname()
        return f"{'https' if self._tls else 'http'}://{_in_url(host)}:{port}"

    async def start(self, beat: Onbeat, stopped: asyncio.Event | None = None) -> ApiAddress:
        """Create the first token if there is none, and serve.

        While the store fails, this waits until it answers or the process stops.
        """
        self._live = live = EventStreams()
        tokens = beat.service.tokens
        beat.listen(live.wake)

        async def node_token() -> str:
            signer = await tokens.signer()
            return signer.node_token(beat.service.clock.now() + NODE_TOKEN_LASTS)

        async def render_metrics(service: Service) -> str:
            return await scrape(beat.metrics, service, version=onbeat.__version__)

        def path_of(run: RunRow) -> Path | None:
            return output_file(self.settings, run.run_id, run.attempt)

        output = Output(live, path_of=path_of, nodes=beat.service.nodes, node_token=node_token)
        api = make_api(RouteDependencies(beat.service, live, output, render_metrics, beat.systems))
        secured = SecurityMiddleware(
            limit_concurrency(api),
            tokens=tokens,
            settings=self.settings,
            clock=beat.service.clock,
            large_paths=LARGE_PATHS,
        )
        first_token = partial(ensure_first_token, tokens, self.settings)
        token_file = await until_answered(first_token, "the API is not up yet", unless=stopped)
        cors = Cors(secured, self.settings.cors_origins, root_names())
        app = with_identity_proof(cors, tokens.signer)
        self._server = HttpServer(app, self._socket, self._tls)
        await self._server.start()
        return ApiAddress(self.settings.api_url, token_file)

    async def stop(self) -> None:
        """Close the streams, let running requests finish, and stop the server."""
        if self._live is not None:
            self._live.close()
        if self._server is not None:
            await self._server.stop()
        else:
            self._socket.close()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host

"""The API of a node, put together: the door, the routes behind it, and the server before it."""

import asyncio
import socket
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import onbeat
from onbeat.app import Onbeat
from onbeat.engine.patience import until_answered
from onbeat.metrics import scrape
from onbeat.opened import output_file
from onbeat.records import RunRow
from onbeat.service import Service
from onbeat.settings import Settings
from onbeat.web.api import Behind, make_api
from onbeat.web.door import Door, check_exposure, check_jwt, ensure_first_token, ssl_context
from onbeat.web.live import Live
from onbeat.web.output import Output
from onbeat.web.routes.definitions import LARGE_PATHS
from onbeat.web.server import Server, bind
from onbeat.web.turns import in_turns

NODE_TOKEN_LASTS = 30_000  # milliseconds


@dataclass(frozen=True, slots=True)
class Welcome:
    """What whoever has started it is told: where it is, and its first token, if that was made."""

    url: str
    token_file: Path | None


class Front:
    """The API of a node. It is bound first, as other nodes are to know where it is.

    `settings` are then those with the port that was bound, if any was good enough.
    """

    def __init__(self, settings: Settings) -> None:
        check_exposure(settings)
        check_jwt(settings)
        self._tls = ssl_context(settings)
        host, port = settings.listen_at
        self._socket: socket.socket = bind("127.0.0.1" if host == "localhost" else host, port)
        if port == 0:
            there = f"[{host}]" if ":" in host else host
            settings = replace(settings, listen=f"{there}:{self._socket.getsockname()[1]}")
        self.settings = settings
        self._live: Live | None = None
        self._server: Server | None = None

    @property
    def address(self) -> str:
        """Where other nodes find this one, whatever it is that all of them are found behind."""
        host, port = self.settings.listen_at
        if host != "localhost" and ip_address(host).is_unspecified:
            host = socket.gethostname()
        there = f"[{host}]" if ":" in host else host
        return f"{'https' if self._tls else 'http'}://{there}:{port}"

    async def start(self, beat: Onbeat, stopped: asyncio.Event | None = None) -> Welcome:
        """Serve from now on; make the first token, if there is none.

        While the store fails, this waits: until it answers, or the process is to stop.
        """
        self._live = live = Live()
        tokens = beat.service.tokens
        beat.listen(live.heard)

        async def node_token() -> str:
            signer = await tokens.signer()
            return signer.node_token(beat.service.clock.now() + NODE_TOKEN_LASTS)

        async def render_metrics(service: Service) -> str:
            return await scrape(beat.metrics, service, version=onbeat.__version__)

        def path_of(run: RunRow) -> Path | None:
            return output_file(self.settings, run.run_id, run.attempt)

        output = Output(live, path_of=path_of, nodes=beat.service.nodes, node_token=node_token)
        api = make_api(Behind(beat.service, live, output, render_metrics, beat.systems))
        door = Door(
            in_turns(api),
            tokens=tokens,
            settings=self.settings,
            clock=beat.service.clock,
            large_paths=LARGE_PATHS,
        )
        first_token = partial(ensure_first_token, tokens, self.settings)
        token_file = await until_answered(first_token, "the API is not up yet", unless=stopped)
        self._server = Server(door, self._socket, self._tls)
        await self._server.start()
        return Welcome(self.settings.api_url, token_file)

    async def stop(self) -> None:
        """Let who listens go, and answers that are being given end."""
        if self._live is not None:
            self._live.close()
        if self._server is not None:
            await self._server.stop()
        else:
            self._socket.close()

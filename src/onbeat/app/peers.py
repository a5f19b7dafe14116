"""The peers of an installation: the programs beside Onbeat that its settings name.

`ask_peers` asks all of them at once, each for a few seconds at most, and returns what came of it.
Nothing that is sent has an effect: a mail server is logged in to and given no message, a webhook is
connected to and not posted to.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal
from urllib.parse import urlsplit

from onbeat.app import notifications
from onbeat.app.settings import Settings
from onbeat.core.notify.channels import Channel
from onbeat.core.notify.notifications import DeliveryRefused, DeliveryUnknown
from onbeat.core.runs.run import Failed
from onbeat.core.target import ON_RAY
from onbeat.errors import InvalidSettings
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.notifiers.smtp import SmtpNotifier
from onbeat.ports.outside import HttpResponse
from onbeat.systems.flows.panel import Panel, PanelAway, PanelRefuses
from onbeat.systems.ray.link import NO_RAY, GatewayEnded, Link

ANSWERS_WITHIN = 5.0  # seconds
RAY_ANSWERS_WITHIN = 20.0  # seconds: a process that has Ray in it is started to ask
REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class PeerCheck:
    """What came of asking a peer. `fail`: runs cannot work; `warn`: notifications cannot."""

    name: str
    level: Literal["ok", "warn", "fail"]
    found: str
    hint: str = ""


async def ask_peers(
    settings: Settings, environment: Mapping[str, str], *, version: str, is_start: bool = False
) -> Sequence[PeerCheck]:
    """Ask every peer that the settings name; at a start, Ray is only connected to."""
    passed = {name: environment[name] for name in settings.pass_env if name in environment}
    requests = HttpLauncher(version=version, environment=passed, secrets=settings.secrets)
    asking = PeerChecker(settings, environment, requests, is_start=is_start)
    try:
        return await asyncio.gather(*(asking.ask(*each) for each in asking.peers()))
    finally:
        await requests.close()


class PeerChecker:
    """Asks the peers of one installation."""

    def __init__(
        self,
        settings: Settings,
        environment: Mapping[str, str],
        requests: HttpLauncher,
        *,
        is_start: bool,
    ) -> None:
        self._settings, self._environment = settings, environment
        self._requests, self._is_start = requests, is_start

    def peers(self) -> list[tuple[str, Callable[[], Awaitable[PeerCheck]]]]:
        """Return the name of each peer, and how to ask it."""
        settings, found = self._settings, dict[str, Callable[[], Awaitable[PeerCheck]]]()
        if settings.flows_panel:
            found["panel"] = self._panel
        if settings.sessions_url:
            found["chat server"] = self._chat_server
        if settings.workflows_executor not in ("", ON_RAY):
            found["executor"] = self._executor
        if settings.ray_address or settings.workflows_executor == ON_RAY:
            found["ray"] = self._ray
        for channel in settings.notify:
            name = "mail" if channel.way == "smtp" else channel.way
            found[f"{name} {channel.name}"] = _Channel(channel, settings, self._environment).ask
        return list(found.items())

    async def ask(self, name: str, how: Callable[[], Awaitable[PeerCheck]]) -> PeerCheck:
        """Return what a peer answers, whatever goes wrong."""
        longest = RAY_ANSWERS_WITHIN if name == "ray" else ANSWERS_WITHIN
        level: Literal["warn", "fail"] = "warn" if " " in name and name != "chat server" else "fail"
        try:
            async with asyncio.timeout(longest):
                return await how()
        except TimeoutError:
            return PeerCheck(
                name, level, f"no answer after {longest:g} s", "is it overloaded, or cut off?"
            )
        except InvalidSettings as refused:
            return PeerCheck(name, level, f"{refused.field}: {refused.problem}", refused.hint)
        except Exception as broken:  # noqa: BLE001 - a finding, too; the others are asked as well
            return PeerCheck(
                name, level, f"it could not be asked: {type(broken).__name__}: {broken}"
            )

    async def _panel(self) -> PeerCheck:
        settings = self._settings
        panel = Panel(
            self._requests.ask,
            settings.flows_panel,
            user=settings.flows_user,
            password=settings.flows_password,
        )
        try:
            await panel.check()
        except PanelAway as away:
            hint = "start the panel, or correct flows_panel"
            return PeerCheck("panel", "fail", f"{panel.url} does not answer: {away}", hint)
        except PanelRefuses as refused:
            hint = f"the password of {panel.user!r}, as flows_password names it"
            return PeerCheck("panel", "fail", f"{refused}", hint)
        return PeerCheck("panel", "ok", f"{panel.url} lets {panel.user!r} in")

    async def _chat_server(self) -> PeerCheck:
        url = self._settings.sessions_url
        answer = await self._asked("GET", f"{url}/api/sessions")
        return _meaning("chat server", url, answer, "start it, or correct sessions_url")

    async def _executor(self) -> PeerCheck:
        settings, url = self._settings, self._settings.workflows_executor
        headers = {}
        if settings.workflows_token:
            headers["Authorization"] = f"Bearer {settings.workflows_token}"
        answer = await self._asked("OPTIONS", f"{url}/execute", headers)
        if isinstance(answer, HttpResponse) and answer.status in REFUSED and headers:
            hint = "the token that workflows_token names"
            return PeerCheck("executor", "fail", f"{url} refuses the token: {answer.error}", hint)
        return _meaning("executor", url, answer, "start it, or correct workflows_executor")

    async def _asked(
        self, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> HttpResponse | Failed:
        longest = round(ANSWERS_WITHIN * 900)  # so that the reason is the request's own
        return await self._requests.ask(method, url, headers=headers or {}, timeout=longest)

    async def _ray(self) -> PeerCheck:
        settings, address = self._settings, self._settings.ray_address
        if not address:
            problem = "workflows_executor is ray, and ray_address names no cluster"
            return PeerCheck("ray", "fail", problem, 'ray_address = "10.0.0.7:6379", or "auto"')
        if find_spec("ray") is None:
            problem, _, hint = NO_RAY.partition(" (")
            return PeerCheck("ray", "fail", problem, hint.rstrip(")"))
        hint = "ray start --head starts one; ray_address names it"
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():
            try:
                await _connect(host.strip("[]"), int(port))
            except OSError as broken:
                return PeerCheck("ray", "fail", f"no cluster at {address}: {_reason(broken)}", hint)
            if self._is_start:
                return PeerCheck("ray", "ok", f"{address} can be connected to")
        elif self._is_start:
            return PeerCheck(
                "ray", "ok", f"ray is installed; {address} is looked for by the first run"
            )
        link = Link(
            address, "onbeat-doctor", environment=self._environment, lease=RAY_ANSWERS_WITHIN * 3
        )
        try:
            await link.cluster()
        except GatewayEnded as cut:
            return PeerCheck("ray", "fail", str(cut), hint)
        finally:
            await link.close()
        folder = settings.ray_working_dir
        return PeerCheck(
            "ray", "ok", f"cluster at {address}" + (f", code from {folder}" if folder else "")
        )


class _Channel:
    """Asks whether a channel of notifications could deliver."""

    def __init__(
        self, channel: Channel, settings: Settings, environment: Mapping[str, str]
    ) -> None:
        self._channel, self._settings, self._environment = channel, settings, environment

    async def ask(self) -> PeerCheck:
        """Return what the server of the channel answers."""
        filled = notifications.filled(self._channel, self._settings, self._environment)
        match self._channel.way:
            case "smtp":
                return await self._mail(filled)
            case "webhook":
                return await self._webhook(filled)
            case "apprise":
                return self._apprise()

    async def _mail(self, filled: Channel) -> PeerCheck:
        name, where = f"mail {filled.name}", filled.shown
        hint = f"smtp, and password, in [notify.{filled.name}]"
        match await SmtpNotifier(filled, longest=ANSWERS_WITHIN * 0.9).reach():
            case DeliveryRefused(error=problem) | DeliveryUnknown(error=problem):
                return PeerCheck(name, "warn", f"{where}: {problem}", hint)
            case _:
                return PeerCheck(name, "ok", f"{where}: the server answers; nothing was sent")

    async def _webhook(self, filled: Channel) -> PeerCheck:
        name, where, parts = f"webhook {filled.name}", filled.shown, urlsplit(filled.address)
        is_tls = parts.scheme.lower() == "https"
        try:
            await _connect(parts.hostname or "", parts.port or (443 if is_tls else 80), tls=is_tls)
        except OSError as broken:
            hint = f"webhook in [notify.{filled.name}]"
            return PeerCheck(name, "warn", f"{where}: {_reason(broken)}", hint)
        return PeerCheck(name, "ok", f"{where} can be connected to; nothing was sent")

    def _apprise(self) -> PeerCheck:
        name = f"apprise {self._channel.name}"
        if find_spec("apprise") is None:
            return PeerCheck(
                name, "warn", "apprise is not installed here", "pip install 'onbeat[notify]'"
            )
        told = f"{self._channel.shown} was not asked: Apprise can only send"
        return PeerCheck(name, "ok", f"{told} (onbeat notify test {self._channel.name})")


def _meaning(name: str, url: str, answer: HttpResponse | Failed, hint: str) -> PeerCheck:
    """Return what an answer says of a server: any but 5xx shows that it is there."""
    if isinstance(answer, Failed):
        return PeerCheck(name, "fail", f"{url} does not answer: {answer.error}", hint)
    if answer.status >= 500:
        return PeerCheck(name, "fail", f"{url} answers {answer.error}", "look at its log")
    return PeerCheck(name, "ok", f"{url} answers (HTTP {answer.status})")


async def _connect(host: str, port: int, *, tls: bool = False) -> None:
    context = ssl.create_default_context() if tls else None
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.close()


def _reason(broken: OSError) -> str:
    if isinstance(broken, ssl.SSLCertVerificationError):
        return f"certificate: {broken.verify_message}"
    if isinstance(broken, ssl.SSLError):
        return f"TLS: {broken.reason or broken}"
    if broken.errno is not None and broken.errno > 0:
        return os.strerror(broken.errno)  # without the words of asyncio around it
    return broken.strerror or str(broken)

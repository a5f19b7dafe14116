"""Checks of the peers: the programs beside Onbeat that its settings name.

`ask_peers` checks all of them concurrently, each for a few seconds at most. A check has no effect:
it logs in to a mail server and sends no message, it connects to a webhook and posts nothing.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal
from urllib.parse import urlsplit

import onbeat
from onbeat.app import notifications
from onbeat.app.settings import Settings
from onbeat.core.notify.channels import Channel
from onbeat.core.notify.notifications import DeliveryRefused, DeliveryUnknown
from onbeat.core.runs.run import Failed
from onbeat.core.target import ON_RAY
from onbeat.errors import InvalidSettings
from onbeat.host.extras import install_command
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.notifiers.smtp import SmtpNotifier
from onbeat.ports.http import HttpResponse
from onbeat.systems.flows.panel import Panel, PanelAway, PanelRefuses
from onbeat.systems.ray.link import NO_RAY, GatewayEnded, Link

ANSWERS_WITHIN = 5.0  # seconds
RAY_ANSWERS_WITHIN = 20.0  # seconds: a process that has Ray in it is started to ask
REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class PeerCheck:
    """The result of checking a peer. `fail`: runs cannot work; `warn`: notifications cannot."""

    name: str
    level: Literal["ok", "warn", "fail"]
    found: str
    hint: str = ""


async def peers_of(settings: Settings, *, is_start: bool = False) -> Sequence[PeerCheck]:
    """Check the peers of the settings, with the environment of this process."""
    return await ask_peers(settings, os.environ, version=onbeat.__version__, is_start=is_start)


async def ask_peers(
    settings: Settings, environment: Mapping[str, str], *, version: str, is_start: bool = False
) -> Sequence[PeerCheck]:
    """Check every peer of the settings. At a start, Ray is only connected to."""
    passed = {name: environment[name] for name in settings.pass_env if name in environment}
    requests = HttpLauncher(version=version, environment=passed, secrets=settings.secrets)
    asking = PeerChecker(settings, environment, requests, is_start=is_start)
    try:
        return await asyncio.gather(*(asking.ask(*each) for each in asking.peers()))
    finally:
        await requests.close()


class PeerChecker:
    """Checks the peers of one installation."""

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
        """Return the name and the check of each peer."""
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
        """Run the check of a peer. Any error becomes a result."""
        longest = RAY_ANSWERS_WITHIN if name == "ray" else ANSWERS_WITHIN
        level: Literal["warn", "fail"] = "warn" if " " in name and name != "chat server" else "fail"
        try:
            async with asyncio.timeout(longest):
                return await how()
        except TimeoutError:
            return PeerCheck(
                name, level, f"no answer after {longest:g} s", "it may be overloaded or unreachable"
            )
        except InvalidSettings as refused:
            return PeerCheck(name, level, f"{refused.field}: {refused.problem}", refused.hint)
        except Exception as broken:  # noqa: BLE001 - a finding, too; the others are asked as well
            return PeerCheck(name, level, f"the check failed: {type(broken).__name__}: {broken}")

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
            hint = f"correct the password of {panel.user!r} that flows_password refers to"
            return PeerCheck("panel", "fail", f"{refused}", hint)
        return PeerCheck("panel", "ok", f"{panel.url} accepts the login of {panel.user!r}")

    async def _chat_server(self) -> PeerCheck:
        url = self._settings.sessions_url
        answer = await self._request("GET", f"{url}/api/sessions")
        return _from_response("chat server", url, answer, "start it, or correct sessions_url")

    async def _executor(self) -> PeerCheck:
        settings, url = self._settings, self._settings.workflows_executor
        headers = {}
        if settings.workflows_token:
            headers["Authorization"] = f"Bearer {settings.workflows_token}"
        answer = await self._request("OPTIONS", f"{url}/execute", headers)
        if isinstance(answer, HttpResponse) and answer.status in REFUSED and headers:
            hint = "correct the token that workflows_token refers to"
            return PeerCheck("executor", "fail", f"{url} refuses the token: {answer.error}", hint)
        return _from_response("executor", url, answer, "start it, or correct workflows_executor")

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> HttpResponse | Failed:
        longest = round(
            ANSWERS_WITHIN * 900
        )  # shorter than the check, so that its own reason is reported
        return await self._requests.ask(method, url, headers=headers or {}, timeout=longest)

    async def _ray(self) -> PeerCheck:
        settings, address = self._settings, self._settings.ray_address
        if not address:
            problem = "workflows_executor is ray, but ray_address is not set"
            return PeerCheck("ray", "fail", problem, 'ray_address = "10.0.0.7:6379", or "auto"')
        if find_spec("ray") is None:
            return PeerCheck("ray", "fail", NO_RAY, install_command("ray"))
        hint = "ray start --head starts one; ray_address names it"
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():
            try:
                await _connect(host.strip("[]"), int(port))
            except OSError as broken:
                return PeerCheck("ray", "fail", f"no cluster at {address}: {_reason(broken)}", hint)
            if self._is_start:
                return PeerCheck("ray", "ok", f"{address} accepts connections")
        elif self._is_start:
            return PeerCheck("ray", "ok", f"ray is installed; the first run connects to {address}")
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
    """Checks whether a notification channel could deliver."""

    def __init__(
        self, channel: Channel, settings: Settings, environment: Mapping[str, str]
    ) -> None:
        self._channel, self._settings, self._environment = channel, settings, environment

    async def ask(self) -> PeerCheck:
        """Connect to the server of the channel."""
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
        return PeerCheck(name, "ok", f"{where} accepts connections; nothing was sent")

    def _apprise(self) -> PeerCheck:
        name = f"apprise {self._channel.name}"
        if find_spec("apprise") is None:
            return PeerCheck(
                name, "warn", "apprise is not installed here", install_command("notify")
            )
        text = f"{self._channel.shown} was not checked: Apprise can only send"
        return PeerCheck(name, "ok", f"{text} (onbeat notify test {self._channel.name})")


def _from_response(name: str, url: str, answer: HttpResponse | Failed, hint: str) -> PeerCheck:
    """Turn a response into a result: any status but 5xx shows that the server works."""
    if isinstance(answer, Failed):
        return PeerCheck(name, "fail", f"{url} does not answer: {answer.error}", hint)
    if answer.status >= 500:
        return PeerCheck(name, "fail", f"{url} answers {answer.error}", "read its log")
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
        return os.strerror(broken.errno)  # without the text that asyncio adds
    return broken.strerror or str(broken)

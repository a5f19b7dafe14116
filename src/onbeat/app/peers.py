"""Checks of the peers: the programs that Onbeat depends on, as its settings name them.

`ask_peers` checks all of them concurrently, each for a few seconds at most. A check has no effect:
it logs in to a mail server and sends no message, it connects to a webhook and posts nothing.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from urllib.parse import urlsplit

import onbeat
from onbeat.app import notifications
from onbeat.app.settings import Settings
from onbeat.core.notify.channels import Channel
from onbeat.core.notify.notifications import DeliveryRefused, DeliveryUnknown
from onbeat.errors import InvalidSettings
from onbeat.host.connections import connect, reason_of
from onbeat.host.extras import install_command
from onbeat.host.plugs import PlugError, guard, load_function, plugs
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.notifiers.smtp import SmtpNotifier
from onbeat.ports.plug import Plug
from onbeat.ports.system import Peer, PeerCheck, PeerContext

ANSWERS_WITHIN = 5.0  # seconds

PeersOfPlug = Callable[[PeerContext], Sequence[Peer]]


async def peers_of(settings: Settings, *, is_start: bool = False) -> Sequence[PeerCheck]:
    """Check the peers of the settings, with the environment of this process."""
    return await ask_peers(settings, os.environ, version=onbeat.__version__, is_start=is_start)


async def ask_peers(
    settings: Settings, environment: Mapping[str, str], *, version: str, is_start: bool = False
) -> Sequence[PeerCheck]:
    """Check every peer of the settings. At a start, Ray is only connected to."""
    passed = {name: environment[name] for name in settings.pass_env if name in environment}
    requests = HttpLauncher(version=version, environment=passed, secrets=settings.secrets)
    context = PeerContext(settings, requests.ask, environment, is_start, ANSWERS_WITHIN)
    try:
        return await asyncio.gather(*map(_check, peers_to_check(context, settings)))
    finally:
        await requests.close()


def peers_to_check(context: PeerContext, settings: Settings) -> Iterator[Peer]:
    """Yield the peers of plugs, then the notification channels."""
    for plug in plugs():
        if plug.peers:
            yield from _peers_of(plug, context)
    for channel in settings.notify:
        kind = "mail" if channel.way == "smtp" else channel.way
        check = _Channel(channel, settings, context.environment).ask
        yield Peer(f"{kind} {channel.name}", check, level="warn")


def _peers_of(plug: Plug, context: PeerContext) -> Sequence[Peer]:
    """Return the peers of a plug; none if they cannot be determined."""
    found: list[Peer] = []
    with guard(plug, "peers", refusals=True):
        peers: PeersOfPlug = load_function(plug.peers)
        for each in peers(context):
            if not isinstance(each, Peer):
                raise PlugError(f"{plug.peers} returned a {type(each).__name__}, not only Peer")
            found.append(each)
    return found


async def _check(peer: Peer) -> PeerCheck:
    """Run the check of a peer. Any error becomes a result."""
    longest = peer.longest or ANSWERS_WITHIN
    try:
        async with asyncio.timeout(longest):
            found: object = await peer.check()
    except TimeoutError:
        problem = f"no answer after {longest:g} s"
        return PeerCheck(peer.name, peer.level, problem, "it may be overloaded or unreachable")
    except InvalidSettings as refused:
        problem = f"{refused.field}: {refused.problem}"
        return PeerCheck(peer.name, peer.level, problem, refused.hint)
    except Exception as broken:  # noqa: BLE001 - a finding, too; the others are asked as well
        problem = f"the check failed: {type(broken).__name__}: {broken}"
        return PeerCheck(peer.name, peer.level, problem)
    if isinstance(found, PeerCheck):
        return found
    problem = f"the check returned a {type(found).__name__}, not a PeerCheck"
    return PeerCheck(peer.name, peer.level, problem)


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
            await connect(parts.hostname or "", parts.port or (443 if is_tls else 80), tls=is_tls)
        except OSError as broken:
            hint = f"webhook in [notify.{filled.name}]"
            return PeerCheck(name, "warn", f"{where}: {reason_of(broken)}", hint)
        return PeerCheck(name, "ok", f"{where} accepts connections; nothing was sent")

    def _apprise(self) -> PeerCheck:
        name = f"apprise {self._channel.name}"
        if find_spec("apprise") is None:
            return PeerCheck(
                name, "warn", "apprise is not installed here", install_command("notify")
            )
        text = f"{self._channel.shown} was not checked: Apprise can only send"
        return PeerCheck(name, "ok", f"{text} (onbeat notify test {self._channel.name})")

"""The notification channels of the settings, each with its adapter and its secrets filled in."""

import asyncio
import os
import uuid
from collections.abc import Mapping

from onbeat.app.settings import Settings
from onbeat.core.notify.channels import REFERENCE, SECRET, Channel, Fill
from onbeat.core.notify.notifications import (
    Delivery,
    Notification,
    OutgoingMessage,
    compose_message,
)
from onbeat.engine.outbox import LONGEST_SEND, ChannelAdapter, Outbox
from onbeat.errors import InvalidSchedule, InvalidSettings, did_you_mean, quote_value
from onbeat.host.secrets import read_secret
from onbeat.ports.notifier import Notifier
from onbeat.ports.store import Store


def outbox(
    settings: Settings, store: Store, environment: Mapping[str, str] = os.environ
) -> Outbox | None:
    """Return the outbox of this node, or None if it has no channels or does not plan."""
    if not settings.notify or "plan" not in settings.roles:
        return None
    return Outbox(store, [wire(each, settings, environment) for each in settings.notify])


async def try_out(settings: Settings, name: str, *, now: int) -> Delivery:
    """Send a test message to a channel directly, without the outbox; return the delivery."""
    known = {channel.name: channel for channel in settings.notify}
    if name not in known:
        problem = f"there is no channel {quote_value(name)}"
        raise InvalidSettings("CHANNEL", problem, hint=did_you_mean(name, known))
    notifier = wire(known[name], settings).notifier
    about = compose_message([Notification("test", "onbeat", now)])
    sending = asyncio.ensure_future(
        notifier.send(OutgoingMessage(0, name, uuid.uuid4().hex, about, now, attempt=1))
    )
    await asyncio.wait([sending], timeout=LONGEST_SEND)
    sending.cancel()
    return await sending


def wire(
    channel: Channel, settings: Settings, environment: Mapping[str, str] = os.environ
) -> ChannelAdapter:
    """Return a channel with its adapter, or refuse one with an unresolved reference."""
    return ChannelAdapter(channel, _notifier(filled(channel, settings, environment)))


def filled(channel: Channel, settings: Settings, environment: Mapping[str, str]) -> Channel:
    """Return a channel with its references filled in, or refuse one that cannot be resolved."""
    try:
        return channel.filled(_filler(settings, environment))
    except InvalidSchedule as refused:
        raise InvalidSettings(refused.field, refused.problem, hint=refused.hint) from None


def _notifier(channel: Channel) -> Notifier:
    """Return the adapter of a channel. Only adapters in use are imported."""
    match channel.way:
        case "webhook":
            from onbeat.notifiers.webhook import WebhookNotifier  # noqa: PLC0415

            return WebhookNotifier(channel)
        case "smtp":
            from onbeat.notifiers.smtp import SmtpNotifier  # noqa: PLC0415

            return SmtpNotifier(channel)
        case "apprise":
            from onbeat.notifiers.apprise import AppriseNotifier  # noqa: PLC0415

            return AppriseNotifier(channel)


def _filler(settings: Settings, environment: Mapping[str, str]) -> Fill:
    def variable(name: str) -> str:
        if name not in environment:
            problem = f"the environment variable {name} is not set"
            raise InvalidSchedule("", problem, hint="set it in the environment of the node")
        return environment[name]

    def fill(text: str) -> str:
        if secret := SECRET.fullmatch(text):
            return read_secret(settings.secrets, secret[1])
        return REFERENCE.sub(lambda found: variable(found[1]), text)

    return fill

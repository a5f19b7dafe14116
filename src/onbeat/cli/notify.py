"""`onbeat notify list` and `onbeat notify test`: who is told of what, and whether that works."""

import asyncio
import sys

import click

from onbeat.app import notifications as notices
from onbeat.app.settings import Settings
from onbeat.app.stores import SystemClock
from onbeat.cli import FAILED
from onbeat.cli.session import JSON, ask, with_settings, write_json, write_table
from onbeat.core.notify.channels import Channel
from onbeat.core.notify.notifications import Delivered, DeliveryRefused, DeliveryUnknown
from onbeat.core.time.instants import rfc3339_ms
from onbeat.errors import StoreUnusable
from onbeat.ports.rows import ChannelRow

STATES = ("waiting", "sending", "sent", "failed", "in_doubt")


@click.group()
def notify() -> None:
    """Show who is told of failures and the like, and try it out."""


@notify.command("list")
@JSON
@with_settings()
def list_(settings: Settings, as_json: bool) -> None:
    """Show the channels of the settings, and what became of their messages."""
    try:
        rows = {row.channel: row for row in ask(settings, lambda service: service.channels())}
    except StoreUnusable:
        rows = {}  # there is no database yet, and nothing was sent
    if as_json:
        write_json([_fields(channel, rows.get(channel.name)) for channel in settings.notify])
        return
    if not settings.notify:
        click.echo("no channels (onbeat.toml: [notify.NAME], see docs/notifications.md)")
        return
    table = [_cells(channel, rows.get(channel.name)) for channel in settings.notify]
    write_table(("CHANNEL", "TO", "ON", "SCHEDULES", "MESSAGES"), table)
    for row in rows.values():
        if row.error:
            click.echo(f"{row.channel}: {row.error}")


@notify.command()
@click.argument("channel")
@JSON
@with_settings()
def test(settings: Settings, channel: str, as_json: bool) -> None:
    """Send a test by CHANNEL at once."""
    delivery = asyncio.run(notices.try_out(settings, channel, now=SystemClock().now()))
    match delivery:
        case Delivered(note):
            state, told = "sent", note
        case DeliveryRefused(error):
            state, told = "refused", error
        case DeliveryUnknown(error):
            state, told = "in_doubt", error
    if as_json:
        write_json({"channel": channel, "state": state, "error": told or None})
    elif state == "sent":
        click.echo(f"{channel}: sent" + (f", but not to {told}" if told else ""))
    else:
        doubt = " (it may have arrived)" if state == "in_doubt" else ""
        click.echo(f"onbeat: {channel}: {told}{doubt}", err=True)
    if state != "sent":
        sys.exit(FAILED)


def _on(channel: Channel) -> list[str]:
    rule = channel.rule
    return [*sorted(rule.kinds), *(f"failures:{n}" for n in sorted(rule.failures))]


def _cells(channel: Channel, row: ChannelRow | None) -> tuple[str, ...]:
    states = row.states if row is not None else {}
    told = ", ".join(f"{states[state]} {state}" for state in STATES if state in states)
    schedules = " ".join(channel.rule.schedules)
    return channel.name, channel.shown, " ".join(_on(channel)), schedules, told or "none"


def _fields(channel: Channel, row: ChannelRow | None) -> dict[str, object]:
    states = row.states if row is not None else {}
    return {
        "channel": channel.name,
        "way": channel.way,
        "to": channel.shown,
        "on": _on(channel),
        "schedules": list(channel.rule.schedules),
        "late": f"{channel.rule.late // 1000}s",
        "every": f"{channel.every // 1000}s",
        "messages": {state: states.get(state, 0) for state in STATES},
        "sent_at": rfc3339_ms(row.sent_at) if row is not None and row.sent_at else None,
        "error": row.error if row is not None else None,
    }

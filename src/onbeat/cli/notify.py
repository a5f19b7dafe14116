"""`onbeat notify list` and `onbeat notify test`: notification channels."""

import asyncio
import sys

import click

from onbeat.app import notifications
from onbeat.app.settings import Settings
from onbeat.app.stores import SystemClock
from onbeat.cli.exit_codes import FAILED
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.tables import WIDE, Column, write_table
from onbeat.cli.verbs import VerbGroup
from onbeat.core.notify.channels import Channel
from onbeat.core.notify.notifications import Delivered, DeliveryRefused, DeliveryUnknown
from onbeat.core.time.instants import rfc3339_ms
from onbeat.errors import StoreUnusable
from onbeat.ports.rows import ChannelRow

COLUMNS = (
    Column("CHANNEL", least=8),
    Column("TO", least=12),
    Column("ON", least=12, drop=1),
    Column("SCHEDULES", least=9, drop=2),
    Column("MESSAGES", least=8),
)
STATES = ("waiting", "sending", "sent", "failed", "in_doubt")


@click.group(cls=VerbGroup, examples=["onbeat notify list", "onbeat notify test ops"])
def notify() -> None:
    """List and test notification channels."""


@notify.command("list", examples=["onbeat notify list --wide"])
@WIDE
@JSON
@with_settings()
def list_(settings: Settings, wide: bool, as_json: bool) -> None:
    """List the configured channels, and how many messages are waiting, sent or failed."""
    try:
        rows = {
            row.channel: row for row in with_service(settings, lambda service: service.channels())
        }
    except StoreUnusable:
        rows = {}  # no database yet: nothing was sent
    if as_json:
        write_json([_fields(channel, rows.get(channel.name)) for channel in settings.notify])
        return
    if not settings.notify:
        click.echo("no channels (onbeat.toml: [notify.NAME], see docs/notifications.md)")
        return
    table = [_cells(channel, rows.get(channel.name)) for channel in settings.notify]
    write_table(COLUMNS, table, wide=wide)
    for row in rows.values():
        if row.error:
            click.echo(f"{row.channel}: {row.error}")


@notify.command(examples=["onbeat notify test ops"])
@click.argument("channel")
@JSON
@with_settings()
def test(settings: Settings, channel: str, as_json: bool) -> None:
    """Send a test message to CHANNEL now."""
    delivery = asyncio.run(notifications.try_out(settings, channel, now=SystemClock().now()))
    match delivery:
        case Delivered(note):
            state, error = "sent", note
        case DeliveryRefused(error):
            state = "refused"
        case DeliveryUnknown(error):
            state = "in_doubt"
    if as_json:
        write_json({"channel": channel, "state": state, "error": error or None})
    elif state == "sent":
        click.echo(f"{channel}: sent" + (f", but not to {error}" if error else ""))
    else:
        doubt = " (it may have arrived)" if state == "in_doubt" else ""
        click.echo(f"onbeat: {channel}: {error}{doubt}", err=True)
    if state != "sent":
        sys.exit(FAILED)


def _on(channel: Channel) -> list[str]:
    rule = channel.rule
    return [*sorted(rule.kinds), *(f"failures:{n}" for n in sorted(rule.failures))]


def _cells(channel: Channel, row: ChannelRow | None) -> tuple[str, ...]:
    states = row.states if row is not None else {}
    messages = ", ".join(f"{states[state]} {state}" for state in STATES if state in states)
    schedules = " ".join(channel.rule.schedules)
    return channel.name, channel.shown, " ".join(_on(channel)), schedules, messages or "none"


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

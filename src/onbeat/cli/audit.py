"""`onbeat audit`: changes made by people and programs."""

import re

import click
import msgspec

from onbeat.app.settings import Settings
from onbeat.cli.completion import complete_schedules
from onbeat.cli.format import Times
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.tables import WIDE, Column, write_table
from onbeat.cli.terminal import table_zone
from onbeat.cli.verbs import Verb
from onbeat.core.time.instants import parse_instant_ms
from onbeat.ports.rows import EventRow
from onbeat.service.serialize import event_fields
from onbeat.service.service import Service

OMITTED = {"schedule_id", "definition"}  # the first has a column, the second is too long
INSTANT = re.compile(r"[0-9-]{10}T[0-9:.]+Z")
COLUMNS = (
    "WHEN",
    Column("WHO", least=8),
    Column("WHAT"),
    Column("TO", least=10),
    Column("", least=12, drop=1),
)


@click.command(cls=Verb, examples=["onbeat audit", "onbeat audit report -n 50"])
@click.argument("name", required=False, shell_complete=complete_schedules)
@click.option("-n", "n", type=click.IntRange(1, 10_000), default=20, help="How many. [default: 20]")
@WIDE
@JSON
@with_settings()
def audit(settings: Settings, name: str | None, n: int, wide: bool, as_json: bool) -> None:
    """List changes and who made them, of one schedule or of all, the latest first."""

    async def look(service: Service) -> tuple[list[EventRow], int]:
        return await service.audit(schedule_id=name, limit=n), service.clock.now()

    found, now = with_service(settings, look)
    if as_json:
        write_json([event_fields(row) for row in found])
    elif not found:
        click.echo("no changes" + (f" of {name}" if name else ""))
    else:
        times = Times(now, table_zone())
        rows = [
            (times.cell(row.at), row.event.by, row.event.name, _subject(row), _details(row, times))
            for row in found
        ]
        write_table(COLUMNS, rows, times=times, wide=wide)


def _subject(row: EventRow) -> str:
    return str(getattr(row.event, "schedule_id", "-"))


def _details(row: EventRow, times: Times) -> str:
    fields = event_fields(row).fields
    details = {name: value for name, value in fields.items() if name not in OMITTED}
    return " ".join(f"{name}={_text(value, times)}" for name, value in details.items())


def _text(value: object, times: Times) -> str:
    if isinstance(value, str) and times.note and INSTANT.fullmatch(value):
        return times.clock(parse_instant_ms(value)).replace(" ", "T")
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()

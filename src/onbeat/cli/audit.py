"""`onbeat audit`: what people and programs had done."""

import click
import msgspec

from onbeat.app.settings import Settings
from onbeat.cli.session import JSON, ask, with_settings, write_json, write_table
from onbeat.cli.times import moment
from onbeat.ports.rows import EventRow
from onbeat.service.serialize import event_fields
from onbeat.service.service import Service

UNTOLD = {"schedule_id", "definition"}  # it has a column of its own; it is too long for a line


@click.command()
@click.argument("name", required=False)
@click.option("-n", "n", type=click.IntRange(1, 10_000), default=20, help="How many. [default: 20]")
@JSON
@with_settings()
def audit(settings: Settings, name: str | None, n: int, as_json: bool) -> None:
    """Show who had what done, the latest first: to one schedule, or at all."""

    async def look(service: Service) -> tuple[list[EventRow], int]:
        return await service.audit(schedule_id=name, limit=n), service.clock.now()

    found, now = ask(settings, look)
    if as_json:
        write_json([event_fields(row) for row in found])
    elif not found:
        click.echo("nobody had anything done" + (f" to {name}" if name else ""))
    else:
        rows = [
            (moment(row.at, now), row.event.by, row.event.name, _whom(row), _rest(row))
            for row in found
        ]
        write_table(("WHEN", "WHO", "WHAT", "TO", ""), rows)


def _whom(row: EventRow) -> str:
    return str(getattr(row.event, "schedule_id", "-"))


def _rest(row: EventRow) -> str:
    fields = event_fields(row).fields
    told = {name: value for name, value in fields.items() if name not in UNTOLD}
    return " ".join(f"{name}={_shown(value)}" for name, value in told.items())


def _shown(value: object) -> str:
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()

"""`onbeat move`: from SQLite to PostgreSQL."""

import asyncio

import click

from onbeat.app.settings import Settings
from onbeat.app.stores import move_to_postgres
from onbeat.cli.runtime import JSON, with_settings, write_json
from onbeat.cli.verbs import Verb
from onbeat.errors import StoreUnusable


@click.command(
    cls=Verb,
    examples=["onbeat move postgresql://onbeat@db.example/onbeat"],
)
@click.argument("to", metavar="postgresql://USER@HOST/NAME")
@JSON
@with_settings()
def move(settings: Settings, to: str, as_json: bool) -> None:
    """Move the schedules, runs and events of a SQLite file to PostgreSQL.

    Stop the node of the file first (onbeat down). The file is kept, and cannot be used any more.
    """
    target, path = settings.at(to), settings.database_path
    if path is not None and not path.exists():
        raise StoreUnusable(f"{path} does not exist (--database names another)")
    moved = asyncio.run(move_to_postgres(settings, target))
    if as_json:
        write_json({"from": settings.database, "to": target.database_shown, "rows": moved})
        return
    n, m = moved["schedules"], moved["schedule_runs"]
    rows = f"{n} schedule{'s' * (n != 1)}, {m} run{'s' * (m != 1)}"
    click.echo(f"moved {rows} to {target.database_shown}: start nodes there with --database")

"""`onbeat apply` and `schema`: schedules from a file, and what may stand in one."""

from pathlib import Path

import click
import msgspec

from onbeat.app import check_target
from onbeat.cli.session import JSON, ask, with_settings, write_json
from onbeat.core.schema import schema_of_file, schema_of_schedule
from onbeat.errors import shown
from onbeat.ports import Upserted
from onbeat.records import Which
from onbeat.service import Service
from onbeat.settings import Settings
from onbeat.sources.yaml import File, read_file

FILE = Path("onbeat.yaml")


@click.command("apply")
@click.argument("file", type=click.Path(path_type=Path), default=FILE)
@JSON
@with_settings()
def apply_(settings: Settings, file: Path, as_json: bool) -> None:
    """Define the schedules of a file: all of them, or none if one is wrong."""
    definitions = read_file(file, check_target)  # before anything is touched
    done = ask(settings, lambda service: apply_definitions(service, definitions), create=True)
    tell_of_names(definitions)
    if as_json:
        write_json([msgspec.to_builtins(each) for each in done])
        return
    for each in done:
        if each.change != "unchanged":
            click.echo(f"{each.change} {each.schedule_id}, revision {each.revision}")
    same = sum(each.change == "unchanged" for each in done)
    if same:
        click.echo(f"{same} unchanged")
    if not done:
        click.echo(f"{file} defines no schedules")


async def apply_definitions(service: Service, file: File) -> list[Upserted]:
    """Define the schedules of a file, all or none; tell of those that are no longer in it."""
    source = str(file.path.resolve())
    done = await service.define(file.schedules, source=source)
    there = {schedule.schedule_id for schedule in file.schedules}
    gone = [
        row.schedule_id
        for row in await service.schedules(Which(source=source))
        if row.schedule_id not in there
    ]
    if gone:
        click.echo(f"no longer in {file.path}, and going on: {', '.join(gone)}", err=True)
        click.echo(f"(onbeat delete {' '.join(gone)} takes them away)", err=True)
    return done


def tell_of_names(file: File) -> None:
    """Say on stderr which functions cannot be imported: a program has to register them."""
    for schedule in file.schedules:
        if schedule.target.needs.startswith("python:"):
            name = schedule.target.fields["python"]
            told = f"{schedule.schedule_id} waits for a program that registers {shown(name)}"
            click.echo(f"{told} (module:function is imported)", err=True)


@click.command()
@click.option("--schedule", "one", is_flag=True, help="Of one schedule, not of a file.")
@JSON
def schema(one: bool, as_json: bool) -> None:
    """Write the JSON Schema of a file of schedules, for editors and other programs.

    With --json it is on one line.
    """
    found = schema_of_schedule() if one else schema_of_file()
    text = msgspec.json.encode(found)
    click.echo(text if as_json else msgspec.json.format(text, indent=2))

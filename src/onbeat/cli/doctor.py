"""`onbeat doctor`: what is wrong with this installation, if anything is."""

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path

import click

from onbeat.app.stores import SystemClock
from onbeat.cli import FAILED
from onbeat.cli.session import JSON, settings_or_refusal, write_json
from onbeat.doctor.diagnose import judge, look
from onbeat.doctor.findings import Finding

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--database", metavar="URL", help="[default: sqlite:///onbeat.db]")
@click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="Of settings.")
@click.option(
    "--quick", is_flag=True, help="Do not read the whole file of the database, and ask no peer."
)
@JSON
def doctor(database: str | None, config: Path | None, quick: bool, as_json: bool) -> None:
    """Look for what is wrong, change nothing, and say what would be right.

    It ends with 1 if anything fails; a warning is no failure.
    """
    settings, file = settings_or_refusal(database, config)
    seen = look(settings, settings_file=file, clock=SystemClock(), quick=quick)
    found = judge(asyncio.run(seen))
    if as_json:
        write_json([asdict(each) for each in found])
    else:
        for each in found:
            _write(each)
    if any(each.level == "fail" for each in found):
        sys.exit(FAILED)


def _write(each: Finding) -> None:
    level = click.style(f"{each.level:<4}", fg=COLOURS[each.level])
    click.echo(f"{level}  {each.check:<14}  {each.found}")
    if each.hint:
        click.echo(f"{'':<22}{each.hint}")

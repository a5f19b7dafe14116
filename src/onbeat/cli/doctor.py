"""`onbeat doctor`: diagnose the installation."""

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path

import click

from onbeat.app.stores import SystemClock
from onbeat.cli.exit_codes import FAILED
from onbeat.cli.runtime import CONFIG_FILE, DATABASE, JSON, settings_or_refusal, write_json
from onbeat.cli.tables import paint
from onbeat.cli.verbs import Verb
from onbeat.doctor.diagnose import gather_facts, judge
from onbeat.doctor.findings import Finding

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(cls=Verb, examples=["onbeat doctor", "onbeat doctor --quick --json"])
@DATABASE
@CONFIG_FILE
@click.option("--quick", is_flag=True, help="Do not read the whole database, and contact no peer.")
@JSON
def doctor(database: str | None, config: Path | None, quick: bool, as_json: bool) -> None:
    """Diagnose the installation, with a hint for each problem. Nothing is changed.

    The exit code is 1 if a check fails; warnings do not count.
    """
    settings, file = settings_or_refusal(database, config)
    seen = gather_facts(settings, settings_file=file, clock=SystemClock(), quick=quick)
    found = judge(asyncio.run(seen))
    if as_json:
        write_json([asdict(each) for each in found])
    else:
        for each in found:
            _write(each)
    if any(each.level == "fail" for each in found):
        sys.exit(FAILED)


def _write(each: Finding) -> None:
    level = paint(f"{each.level:<4}", COLOURS[each.level])
    click.echo(f"{level}  {each.check:<14}  {each.found}")
    if each.hint:
        click.echo(f"{'':<22}{each.hint}")

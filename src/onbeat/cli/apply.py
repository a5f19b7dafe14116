"""`onbeat plan`, `apply`, `export` and `schema`: files of schedules."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from onbeat.app.parts import check_target
from onbeat.app.settings import Settings
from onbeat.app.stores import SystemClock
from onbeat.cli.completion import complete_schedules
from onbeat.cli.exit_codes import DIFFERENT
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.tables import paint
from onbeat.cli.verbs import Verb
from onbeat.core.decide.edits import describe_forecast
from onbeat.core.explain.tick_diff import LEFT_OUT, WEEK, TickDifference
from onbeat.core.schema import schema_of_file, schema_of_schedule
from onbeat.core.time.instants import rfc3339
from onbeat.errors import RevisionConflict, quote_value
from onbeat.ports.rows import ScheduleFilter
from onbeat.service.apply_plan import ApplyPlan, ScheduleChange, change_fields, compare
from onbeat.service.service import Service
from onbeat.sources.write_yaml import ScheduleFileWriter
from onbeat.sources.yaml import ScheduleFile, read_file

FILE = Path("onbeat.yaml")
TRIES = 5  # to apply a file while others change its schedules
LONGEST_VALUE = 60  # characters of an old or a new value
MARKS = {"create": "+", "change": "~", "remove": "-", "keep": ".", "taken": "!"}
COLOURS = {"create": "green", "change": "yellow", "remove": "red", "taken": "red"}


class ApplyOptions(NamedTuple):
    """How a file is to be applied."""

    prune: bool = False
    take_over: bool = False
    source: str | None = None
    update_waiting: bool = False

    def source_of(self, file: ScheduleFile) -> str:
        """Return the source that the schedules of a file belong to."""
        return self.source or source_of(file.path, None)

    async def plan(self, service: Service, file: ScheduleFile, *, horizon: int = WEEK) -> ApplyPlan:
        """Return what applying a file would do."""
        return await service.plan_changes(
            file.schedules,
            source=self.source_of(file),
            prune=self.prune,
            take_over=self.take_over,
            horizon=horizon,
            update_waiting=self.update_waiting,
        )


def source_of(path: Path, database: Path | None) -> str:
    """Return the default source of a file: its path.

    The path is relative to the folder of the database if the file is in it, so that both can be
    moved together.
    """
    whole = path.resolve()
    home = None if database is None else database.resolve().parent
    inside = home is not None and whole.is_relative_to(home)
    return str(whole.relative_to(home) if home is not None and inside else whole)


def apply_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a verb that applies a file."""
    prune = "Remove schedules of this source that the file no longer has."
    take_over = "Also update schedules that belong to another source."
    source = "The source the schedules belong to. [default: the path of the file]"
    verb = click.option("--source", metavar="NAME", help=source)(verb)
    verb = click.option("--take-over", is_flag=True, help=take_over)(verb)
    return click.option("--prune", is_flag=True, help=prune)(verb)


UPDATE_WAITING = click.option(
    "--update-waiting",
    is_flag=True,
    help="Waiting runs use the new definitions instead of the old ones.",
)


@click.command(cls=Verb, examples=["onbeat plan", "onbeat plan schedules.yaml --prune --exit-code"])
@click.argument("file", type=click.Path(path_type=Path), default=FILE)
@apply_options
@UPDATE_WAITING
@click.option("--exit-code", is_flag=True, help=f"Exit with {DIFFERENT} if there are changes.")
@JSON
@with_settings()
def plan(
    settings: Settings,
    file: Path,
    prune: bool,
    take_over: bool,
    source: str | None,
    update_waiting: bool,
    exit_code: bool,
    as_json: bool,
) -> None:
    """Show what applying a file would change, and the ticks that are gained and lost.

    For each schedule it shows the runs that would start, wait, be recorded as missed, or be
    canceled.
    """
    source = source or source_of(file, settings.database_path)
    options = ApplyOptions(prune, take_over, source, update_waiting)
    found = _planned(settings, read_file(file, check_target), options)
    write_changes(found, as_json=as_json)
    if exit_code and not found.changes_nothing:
        sys.exit(DIFFERENT)


@click.command(
    "apply",
    cls=Verb,
    examples=["onbeat apply", "onbeat apply schedules.yaml --source team-a --prune"],
)
@click.argument("file", type=click.Path(path_type=Path), default=FILE)
@apply_options
@UPDATE_WAITING
@click.option("--dry-run", is_flag=True, help="Only show the changes, as `onbeat plan` does.")
@JSON
@with_settings()
def apply_(
    settings: Settings,
    file: Path,
    prune: bool,
    take_over: bool,
    source: str | None,
    update_waiting: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create and update the schedules of a file: all of them, or none if one is invalid.

    Paused schedules stay paused. An edit never starts past ticks: if it changes the ticks of a
    schedule, undecided ticks beyond their grace are recorded as missed. Waiting runs keep their
    revision.
    """
    definitions = read_file(file, check_target)  # before any change
    source = source or source_of(file, settings.database_path)
    options = ApplyOptions(prune, take_over, source, update_waiting)
    if dry_run:
        write_changes(_planned(settings, definitions, options), as_json=as_json)
        return
    done = with_service(
        settings, lambda service: apply_definitions(service, definitions, options), create=True
    )
    warn_of_functions(definitions)
    if as_json:
        write_json([each._asdict() for each in done])
        return
    for each in done:
        if each.change != "unchanged":
            click.echo(f"{each.change} {each.schedule_id}, revision {each.revision}")
        if each.moved:
            to = f"{each.schedule_id} to revision {each.revision}"
            click.echo(f"moved {counted_runs(each.moved)} of {to}")
    same = sum(each.change == "unchanged" for each in done)
    if same:
        click.echo(f"{same} unchanged")
    if not done:
        click.echo(f"{file} defines no schedules")


def _planned(settings: Settings, file: ScheduleFile, options: ApplyOptions) -> ApplyPlan:
    """Return what applying a file would change, also in a database that does not exist yet."""
    path = settings.database_path
    if path is not None and not (path.exists() and path.stat().st_size):
        now = SystemClock().now()
        return compare(file.schedules, (), source=options.source_of(file), now=now)
    return with_service(settings, lambda service: options.plan(service, file))


class Applied(NamedTuple):
    """The result of applying one schedule."""

    schedule_id: str
    change: str
    revision: int
    moved: int = 0  # waiting runs that were moved to this revision


async def apply_definitions(
    service: Service, file: ScheduleFile, options: ApplyOptions
) -> list[Applied]:
    """Create and update the schedules of a file, all or none; warn of those no longer in it.

    The changes are planned again if a schedule changes in between, such as by a node that watches
    the file.
    """
    for left in reversed(range(TRIES)):
        changes = await options.plan(service, file, horizon=0)
        try:
            applied = await service.apply(changes)
            break
        except RevisionConflict:
            if not left:
                raise
    done = [Applied(each.schedule_id, each.change, each.revision, each.moved) for each in applied]
    done += [
        Applied(each.schedule_id, "removed", each.revision or 0) for each in changes.of("remove")
    ]
    if kept := [each.schedule_id for each in changes.of("keep")]:
        names = ", ".join(kept)
        click.echo(f"no longer in {file.path}, but kept: {names} (--prune removes them)", err=True)
    return done


def warn_of_functions(file: ScheduleFile) -> None:
    """Write to stderr which functions cannot be imported: a program has to register them."""
    for schedule in file.schedules:
        if schedule.target.needs.startswith("python:"):
            name = schedule.target.fields["python"]
            waits = f"{schedule.schedule_id} waits for a program that registers {quote_value(name)}"
            click.echo(f"{waits} (module:function is imported)", err=True)


def write_changes(changes: ApplyPlan, *, as_json: bool) -> None:
    """Write the changes to each schedule, and how many there are of each kind."""
    if as_json:
        fields = [change_fields(each) for each in changes.changes]
        write_json({"source": changes.source, "changes": fields})
        return
    shown_kinds = [each for each in changes.changes if each.kind in MARKS or each.foreseen.moves]
    width = max((len(each.schedule_id) for each in shown_kinds), default=0)
    for each in shown_kinds:
        mark = MARKS.get(each.kind, "=")
        line = f"{mark} {each.schedule_id:{width}}  {each.words}".rstrip()
        click.echo(paint(line, COLOURS.get(each.kind)))
        for line in _details(each):
            click.echo(f"    {line}")
    counted = Counter(each.kind for each in changes.changes)
    if counted["unchanged"]:
        click.echo(f"= {counted['unchanged']} unchanged")
    verbs = [f"{counted[kind]} to {kind}" for kind in ("create", "change", "remove")]
    totals = [text for text in verbs if not text.startswith("0 ")]
    if counted["taken"]:
        totals.append(f"{counted['taken']} refused: of another source")
    if moved := sum(sum(each.foreseen.moves.values()) for each in changes.changes):
        totals.append(f"{counted_runs(moved)} to move")
    click.echo(", ".join(totals) or "no changes")


def counted_runs(n: int) -> str:
    """Return `1 waiting run`, `2 waiting runs`."""
    return f"{n} waiting run{'s' * (n != 1)}"


def _details(change: ScheduleChange) -> Iterator[str]:
    for field, old, new in change.fields:
        edited = f" by {change.edited_by}" if change.edited_by else ""
        note = f" (overwrites an edit{edited})" if field in change.overwritten else ""
        yield f"{field}: {_value(old)} -> {_value(new)}{note}"
    if ticks := _ticks(change.effect):
        yield f"in the next week: {ticks}"
    if not change.effect.is_known:
        yield "ticks that follow other runs are not counted"
    yield from describe_forecast(change.foreseen)
    yield from change.notes
    if change.kind == "keep":
        yield "no longer in the file, but kept (--prune removes it)"
    if change.kind == "taken":
        owner = f"belongs to {change.source}" if change.source else "belongs to no source"
        yield f"{owner} (--take-over updates it from this file)"


def _ticks(effect: TickDifference) -> str:
    parts = []
    for n, ticks, what in (
        (effect.gained, effect.first_gained, "gained"),
        (effect.lost, effect.first_lost, "lost"),
    ):
        if n:
            first = rfc3339(ticks[0]).replace("T", " ")
            parts.append(f"{n} tick{'s' * (n != 1)} {what}, the first {first}")
    return "; ".join(parts)


def _value(value: object) -> str:
    if value is LEFT_OUT:
        return "default"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


@click.command(cls=Verb, examples=["onbeat export > schedules.yaml", "onbeat export report --json"])
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_schedules)
@click.option("--source", metavar="NAME", help="Only schedules of this source: a file, or a name.")
@JSON
@with_settings()
def export(settings: Settings, names: tuple[str, ...], source: str | None, as_json: bool) -> None:
    """Write schedules as a file that can be applied elsewhere.

    The default is all schedules.
    """
    if source is not None and Path(source).exists():
        source = source_of(Path(source), settings.database_path)

    which = ScheduleFilter(source=source, ids=names or None)

    async def write(service: Service) -> None:
        for name in names:
            await service.schedule(name)  # if one does not exist, none is written
        parts = ScheduleFileWriter()
        async for page in service.pages(replace(which, search='"calendars"')):
            parts.look(row.definition for row in page)
        part, end = (parts.json, parts.json_end) if as_json else (parts.yaml, parts.yaml_end)
        async for page in service.pages(which):
            click.echo(part({row.schedule_id: row.definition for row in page}), nl=False)
        click.echo(end(), nl=as_json)

    with_service(settings, write)


@click.command(
    cls=Verb, examples=["onbeat schema > onbeat.schema.json", "onbeat schema --schedule"]
)
@click.option("--schedule", "one", is_flag=True, help="The schema of one schedule, not of a file.")
@JSON
def schema(one: bool, as_json: bool) -> None:
    """Print the JSON Schema of schedule files, for editors and other programs.

    With --json it is on one line.
    """
    found = schema_of_schedule() if one else schema_of_file()
    text = msgspec.json.encode(found)
    click.echo(text if as_json else msgspec.json.format(text, indent=2))

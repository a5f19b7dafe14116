"""`onbeat plan`, `apply`, `export` and `schema`: schedules as a file, and what may be in one."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from onbeat.app.launchers import check_target
from onbeat.app.settings import Settings
from onbeat.app.stores import SystemClock
from onbeat.cli import DIFFERENT
from onbeat.cli.session import JSON, ask, with_settings, write_json
from onbeat.core.decide.edits import foreseen_words
from onbeat.core.explain.tick_diff import LEFT_OUT, WEEK, Effect
from onbeat.core.schema import schema_of_file, schema_of_schedule
from onbeat.core.time.instants import rfc3339
from onbeat.errors import ChangedSince, shown
from onbeat.ports.rows import ScheduleFilter
from onbeat.service.apply_plan import ApplyPlan, ScheduleChange, change_fields, compare
from onbeat.service.service import Service
from onbeat.sources.write_yaml import Parts
from onbeat.sources.yaml import File, read_file

FILE = Path("onbeat.yaml")
TRIES = 5  # at applying a file, while others change what is there
LONGEST_VALUE = 60  # characters of an old or a new value
MARKS = {"create": "+", "change": "~", "remove": "-", "keep": ".", "taken": "!"}


class Wish(NamedTuple):
    """How a file is to be applied."""

    prune: bool = False
    take_over: bool = False
    source: str | None = None
    update_waiting: bool = False

    def source_of(self, file: File) -> str:
        """Return what the schedules of a file are known by."""
        return self.source or source_of(file.path, None)

    async def plan(self, service: Service, file: File, *, horizon: int = WEEK) -> ApplyPlan:
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
    """Return what the schedules of a file are known by, if nobody says: the path of the file.

    That is as seen from the folder of the database, if it is in there, so that both can be moved.
    """
    whole = path.resolve()
    home = None if database is None else database.resolve().parent
    inside = home is not None and whole.is_relative_to(home)
    return str(whole.relative_to(home) if home is not None and inside else whole)


def with_wish(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options that say how a file is applied."""
    prune = "Remove what the file, or its source, no longer has."
    take_over = "Define also what is of another source."
    source = "Whose the schedules are. [default: the path of the file]"
    verb = click.option("--source", metavar="NAME", help=source)(verb)
    verb = click.option("--take-over", is_flag=True, help=take_over)(verb)
    return click.option("--prune", is_flag=True, help=prune)(verb)


UPDATE_WAITING = click.option(
    "--update-waiting", is_flag=True, help="Move runs that wait to the new definitions."
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=FILE)
@with_wish
@UPDATE_WAITING
@click.option("--exit-code", is_flag=True, help=f"Exit with {DIFFERENT} if there is work to do.")
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
    """Show what applying a file would do, and which ticks that gains and loses.

    Of each schedule it names what would start, be recorded as missed, keep waiting and be canceled.
    """
    source = source or source_of(file, settings.database_path)
    wish = Wish(prune, take_over, source, update_waiting)
    found = _planned(settings, read_file(file, check_target), wish)
    write_changes(found, as_json=as_json)
    if exit_code and not found.is_nothing:
        sys.exit(DIFFERENT)


@click.command("apply")
@click.argument("file", type=click.Path(path_type=Path), default=FILE)
@with_wish
@UPDATE_WAITING
@click.option("--dry-run", is_flag=True, help="Only show what it would do, as `onbeat plan` does.")
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
    """Define the schedules of a file: all of them, or none if one is wrong.

    Those that are paused stay so. An edit starts nothing of the past: if the ticks change, those
    owed beyond their grace are recorded as missed. Runs that wait keep their revision.
    """
    definitions = read_file(file, check_target)  # before anything is touched
    source = source or source_of(file, settings.database_path)
    wish = Wish(prune, take_over, source, update_waiting)
    if dry_run:
        write_changes(_planned(settings, definitions, wish), as_json=as_json)
        return
    done = ask(settings, lambda service: apply_definitions(service, definitions, wish), create=True)
    tell_of_names(definitions)
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


def _planned(settings: Settings, file: File, wish: Wish) -> ApplyPlan:
    """Return what applying a file would do, also to a database that is not there yet."""
    path = settings.database_path
    if path is not None and not (path.exists() and path.stat().st_size):
        now = SystemClock().now()
        return compare(file.schedules, (), source=wish.source_of(file), now=now)
    return ask(settings, lambda service: wish.plan(service, file))


class Applied(NamedTuple):
    """What was done to a schedule."""

    schedule_id: str
    change: str
    revision: int
    moved: int = 0  # waiting runs that now start by this revision


async def apply_definitions(service: Service, file: File, wish: Wish) -> list[Applied]:
    """Define the schedules of a file, all or none; name those that are no longer in it.

    If a schedule changes in between, as when a node that watches the file applies it as well, what
    is to be done is planned anew.
    """
    for left in reversed(range(TRIES)):
        changes = await wish.plan(service, file, horizon=0)
        try:
            applied = await service.apply(changes)
            break
        except ChangedSince:
            if not left:
                raise
    done = [Applied(each.schedule_id, each.change, each.revision, each.moved) for each in applied]
    done += [
        Applied(each.schedule_id, "removed", each.revision or 0) for each in changes.of("remove")
    ]
    if kept := [each.schedule_id for each in changes.of("keep")]:
        click.echo(f"no longer in {file.path}, and going on: {', '.join(kept)}", err=True)
        click.echo("(--prune takes them away)", err=True)
    return done


def tell_of_names(file: File) -> None:
    """Say on stderr which functions cannot be imported: a program has to register them."""
    for schedule in file.schedules:
        if schedule.target.needs.startswith("python:"):
            name = schedule.target.fields["python"]
            told = f"{schedule.schedule_id} waits for a program that registers {shown(name)}"
            click.echo(f"{told} (module:function is imported)", err=True)


def write_changes(changes: ApplyPlan, *, as_json: bool) -> None:
    """Write what would be done: what matters of each schedule, and how many of each kind."""
    if as_json:
        told = [change_fields(each) for each in changes.changes]
        write_json({"source": changes.source, "changes": told})
        return
    shown_kinds = [each for each in changes.changes if each.kind in MARKS or each.foreseen.moves]
    width = max((len(each.schedule_id) for each in shown_kinds), default=0)
    for each in shown_kinds:
        mark = MARKS.get(each.kind, "=")
        click.echo(f"{mark} {each.schedule_id:{width}}  {each.words}".rstrip())
        for line in _details(each):
            click.echo(f"    {line}")
    counted = Counter(each.kind for each in changes.changes)
    if counted["unchanged"]:
        click.echo(f"= {counted['unchanged']} unchanged")
    verbs = [f"{counted[kind]} to {kind}" for kind in ("create", "change", "remove")]
    told_of = [text for text in verbs if not text.startswith("0 ")]
    if counted["taken"]:
        told_of.append(f"{counted['taken']} of another source, which is refused")
    if moved := sum(sum(each.foreseen.moves.values()) for each in changes.changes):
        told_of.append(f"{counted_runs(moved)} to move")
    click.echo(", ".join(told_of) or "nothing to do")


def counted_runs(n: int) -> str:
    """Return a number of waiting runs in words."""
    return f"{n} waiting run{'s' * (n != 1)}"


def _details(change: ScheduleChange) -> Iterator[str]:
    for field, old, new in change.fields:
        edited = f", as {change.edited_by} had" if change.edited_by else ""
        note = f" (edited since{edited}: overwritten)" if field in change.overwritten else ""
        yield f"{field}: {_value(old)} -> {_value(new)}{note}"
    if told := _ticks(change.effect):
        yield f"{told} in the next week"
    if not change.effect.is_known:
        yield "ticks that follow runs are not counted"
    yield from foreseen_words(change.foreseen)
    yield from change.notes
    if change.kind == "keep":
        yield "no longer in the file, and goes on (--prune removes it)"
    if change.kind == "taken":
        owner = f"of {change.source}" if change.source else "of no source"
        yield f"it is {owner} (--take-over makes it this file's)"


def _ticks(effect: Effect) -> str:
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


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--source", metavar="NAME", help="Only what is of this source: a file, or a name.")
@JSON
@with_settings()
def export(settings: Settings, names: tuple[str, ...], source: str | None, as_json: bool) -> None:
    """Write schedules as a file, which defines the same when it is applied elsewhere.

    All of them, or those that are named.
    """
    if source is not None and Path(source).exists():
        source = source_of(Path(source), settings.database_path)

    which = ScheduleFilter(source=source, ids=names or None)

    async def write(service: Service) -> None:
        for name in names:
            await service.schedule(name)  # all are there, or none is written
        parts = Parts()
        async for page in service.pages(replace(which, search='"calendars"')):
            parts.look(row.definition for row in page)
        part, end = (parts.json, parts.json_end) if as_json else (parts.yaml, parts.yaml_end)
        async for page in service.pages(which):
            click.echo(part({row.schedule_id: row.definition for row in page}), nl=False)
        click.echo(end(), nl=as_json)

    ask(settings, write)


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

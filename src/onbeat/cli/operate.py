"""`onbeat pause`, `resume`, `cancel`, `report`, `group` and `groups`: what people do to them."""

import sys

import click
import msgspec

from onbeat.app.settings import Settings
from onbeat.cli import FAILED
from onbeat.cli.session import JSON, ask, is_number, with_settings, write_json, write_table
from onbeat.core.runs.run import Failed, Status, Succeeded
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import parse_instant
from onbeat.errors import InvalidSchedule, InvalidSettings, RunIsOver
from onbeat.ports.rows import RunFilter, RunRow
from onbeat.service.serialize import run_fields
from onbeat.service.service import Service

MOST = 10_000  # unfinished runs of one schedule that are canceled at once


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--note", default="", help="Why, for whoever looks next.")
@click.option("--until", metavar="WHEN", help="Go on then: an instant, or how long, such as 2h.")
@JSON
@with_settings()
def pause(
    settings: Settings, names: tuple[str, ...], note: str, until: str | None, as_json: bool
) -> None:
    """Start nothing more of these schedules by themselves. Started runs finish."""

    async def work(service: Service) -> list[bool]:
        then = None if until is None else _instant(until, (await service.overview()).now)
        for name in names:
            await service.schedule(name)  # all are there, or none is paused
        return [await service.pause(name, note=note, until=then) for name in names]

    _tell(names, ask(settings, work), "paused", as_json=as_json)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--catchup", is_flag=True, help="Run the latest tick that the pause left out.")
@JSON
@with_settings()
def resume(settings: Settings, names: tuple[str, ...], catchup: bool, as_json: bool) -> None:
    """Let paused schedules go on from now."""

    async def work(service: Service) -> list[bool]:
        for name in names:
            await service.schedule(name)
        return [await service.resume(name, catchup=catchup) for name in names]

    _tell(names, ask(settings, work), "resumed", as_json=as_json)


def _tell(names: tuple[str, ...], changed: list[bool], done: str, *, as_json: bool) -> None:
    if as_json:
        pairs = zip(names, changed, strict=True)
        write_json([{"schedule_id": name, "changed": did} for name, did in pairs])
        return
    for name, did in zip(names, changed, strict=True):
        was = "was paused already" if done == "paused" else "was not paused"
        click.echo(f"{done} {name}" if did else f"{name} {was}")


@click.command()
@click.argument("which", nargs=-1, required=True, metavar="RUN|NAME...")
@click.option("--note", default="", help="Why, kept with the run.")
@JSON
@with_settings()
def cancel(settings: Settings, which: tuple[str, ...], note: str, as_json: bool) -> None:
    """End runs: those of these numbers, or all of a schedule that have not ended."""

    async def work(service: Service) -> tuple[list[RunRow], list[RunIsOver]]:
        ids: list[int] = []
        for each in which:
            if is_number(each):
                ids.append((await service.run(int(each))).run_id)
            else:
                ids += [run.run_id for run in await _unfinished(service, each)]
        done: list[RunRow] = []
        over: list[RunIsOver] = []
        for run_id in dict.fromkeys(ids):
            try:
                done.append(await service.cancel(run_id, note=note))
            except RunIsOver as refused:
                over.append(refused)
        return done, over

    done, over = ask(settings, work)
    if as_json:
        write_json([run_fields(run) for run in done])
    for run in () if as_json else done:
        waits = run.status == Status.STARTED
        told = "was asked to end" if waits else "is canceled"
        click.echo(f"run {run.run_id} of {run.schedule_id} {told}")
    for refused in over:
        click.echo(f"onbeat: {refused}", err=True)
    if over:
        sys.exit(FAILED)
    if not done and not as_json:
        click.echo("nothing of it runs or waits")


async def _unfinished(service: Service, name: str) -> list[RunRow]:
    await service.schedule(name)
    found = [
        await service.runs(RunFilter(name, status), limit=MOST)
        for status in (Status.ENQUEUED, Status.STARTED)
    ]
    return [run for runs in found for run in runs]


@click.command()
@click.argument("which", metavar="RUN|KEY")
@click.argument("outcome", type=click.Choice(["success", "failure"]))
@click.option("--result", metavar="JSON", help="What it gave, kept with the run.")
@click.option("--error", default="", help="What went wrong.")
@click.option("--final", is_flag=True, help="A failure that no further attempt could help.")
@JSON
@with_settings()
def report(
    settings: Settings,
    which: str,
    outcome: str,
    result: str | None,
    error: str,
    final: bool,
    as_json: bool,
) -> None:
    """Tell of the end of a run that its target had accepted, by its number or key."""
    told: Succeeded | Failed = Failed(
        error or "it was reported to have failed", retryable=not final
    )
    if (result is not None) != (outcome == "success" and result is not None):
        raise InvalidSettings("--result", "a failure has none", hint="--error TEXT")
    if outcome == "success":
        try:
            told = Succeeded(None if result is None else msgspec.json.decode(result))
        except msgspec.MsgspecError as broken:
            raise InvalidSettings("--result", f"this is not JSON: {broken}", hint="[1]") from None
    run = int(which) if is_number(which) else which
    found = ask(settings, lambda service: service.report(run, told))
    if as_json:
        write_json(run_fields(found))
    else:
        reason = f" ({found.reason})" if found.reason else ""
        click.echo(f"run {found.run_id} of {found.schedule_id}: {found.status}{reason}")


@click.command()
@click.argument("name")
@click.argument("places", type=int)
@JSON
@with_settings()
def group(settings: Settings, name: str, places: int, as_json: bool) -> None:
    """Say how many runs of a group may be started at the same time."""
    changed = ask(settings, lambda service: service.set_group(name, places=places), create=True)
    if as_json:
        write_json({"group": name, "places": places, "changed": changed})
    else:
        click.echo(f"{name} has {places} place{'s' * (places != 1)}")


@click.command()
@JSON
@with_settings()
def groups(settings: Settings, as_json: bool) -> None:
    """Show the groups, and how full they are."""
    found = ask(settings, lambda service: service.groups())
    if as_json:
        write_json([msgspec.to_builtins(each) for each in found])
    elif found:
        rows = [(g.name, str(g.places), str(g.used), str(g.waiting)) for g in found]
        write_table(("GROUP", "PLACES", "USED", "WAITING"), rows)
    else:
        click.echo("no groups (a schedule with `group: NAME` makes one)")


def _instant(text: str, now: int) -> int:
    """Read an instant, or a length of time from now, in milliseconds."""
    try:
        return now + parse_duration(text).elapsed * 1000
    except InvalidSchedule:
        pass
    try:
        return parse_instant(text) * 1000
    except InvalidSchedule as refused:
        hint = "2h, or an instant such as 2026-12-01T09:00:00Z"
        raise InvalidSettings("--until", refused.problem, hint=hint) from None

"""`onbeat pause`, `resume`, `cancel`, `report` and `gate`: operate schedules and runs."""

import sys

import click
import msgspec

from onbeat.app.settings import Settings
from onbeat.cli.completion import complete_schedules
from onbeat.cli.exit_codes import FAILED
from onbeat.cli.runtime import JSON, is_number, with_service, with_settings, write_json
from onbeat.cli.verbs import Verb
from onbeat.core.runs.phase import Status
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import parse_instant
from onbeat.errors import InvalidSchedule, InvalidSettings, RunIsOver
from onbeat.ports.rows import RunFilter, RunRow
from onbeat.service.serialize import run_fields
from onbeat.service.service import Service

MOST_RUNS = 10_000  # unfinished runs of one schedule that one command cancels
CLOSED = "CLOSED: nothing is decided and nothing starts"


@click.command(
    cls=Verb, examples=["onbeat pause report", 'onbeat pause report --until 2h --note "migration"']
)
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_schedules
)
@click.option("--note", default="", help="The reason, shown with the schedule.")
@click.option(
    "--until",
    metavar="WHEN",
    help="Resume automatically at this time, or after this duration (such as 2h).",
)
@JSON
@with_settings()
def pause(
    settings: Settings, names: tuple[str, ...], note: str, until: str | None, as_json: bool
) -> None:
    """Pause schedules: their ticks are skipped. Runs that have started finish."""

    async def work(service: Service) -> list[bool]:
        then = None if until is None else _instant(until, (await service.overview()).now)
        for name in names:
            await service.schedule(name)  # if one does not exist, none is paused
        return [await service.pause(name, note=note, until=then) for name in names]

    _write_changed(names, with_service(settings, work), "paused", as_json=as_json)


@click.command(cls=Verb, examples=["onbeat resume report", "onbeat resume report --catchup"])
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_schedules
)
@click.option("--catchup", is_flag=True, help="Run the latest tick that the pause skipped.")
@JSON
@with_settings()
def resume(settings: Settings, names: tuple[str, ...], catchup: bool, as_json: bool) -> None:
    """Resume paused schedules from now on."""

    async def work(service: Service) -> list[bool]:
        for name in names:
            await service.schedule(name)
        return [await service.resume(name, catchup=catchup) for name in names]

    _write_changed(names, with_service(settings, work), "resumed", as_json=as_json)


def _write_changed(
    names: tuple[str, ...], changed: list[bool], done: str, *, as_json: bool
) -> None:
    if as_json:
        pairs = zip(names, changed, strict=True)
        write_json([{"schedule_id": name, "changed": did} for name, did in pairs])
        return
    for name, did in zip(names, changed, strict=True):
        unchanged = "was already paused" if done == "paused" else "was not paused"
        click.echo(f"{done} {name}" if did else f"{name} {unchanged}")


@click.command(cls=Verb, examples=["onbeat cancel 17", 'onbeat cancel report --note "wrong input"'])
@click.argument(
    "which", nargs=-1, required=True, metavar="RUN|NAME...", shell_complete=complete_schedules
)
@click.option("--note", default="", help="The reason, stored with the run.")
@JSON
@with_settings()
def cancel(settings: Settings, which: tuple[str, ...], note: str, as_json: bool) -> None:
    """Cancel runs, by their numbers, or all unfinished runs of a schedule."""

    async def work(service: Service) -> tuple[list[RunRow], list[RunIsOver]]:
        ids: list[int] = []
        for each in which:
            if is_number(each):
                ids.append((await service.run(int(each))).run_id)
            else:
                ids += [run.run_id for run in await _unfinished(service, each)]
        canceled: list[RunRow] = []
        finished: list[RunIsOver] = []
        for run_id in dict.fromkeys(ids):
            try:
                canceled.append(await service.cancel(run_id, note=note))
            except RunIsOver as refused:
                finished.append(refused)
        return canceled, finished

    canceled, finished = with_service(settings, work)
    if as_json:
        write_json([run_fields(run) for run in canceled])
    for run in () if as_json else canceled:
        is_running = run.status == Status.STARTED
        outcome = "cancellation requested" if is_running else "canceled"
        click.echo(f"run {run.run_id} of {run.schedule_id}: {outcome}")
    for refused in finished:
        click.echo(f"onbeat: {refused}", err=True)
    if finished:
        sys.exit(FAILED)
    if not canceled and not as_json:
        click.echo("no unfinished runs")


async def _unfinished(service: Service, name: str) -> list[RunRow]:
    await service.schedule(name)
    found = [
        await service.runs(RunFilter(name, status), limit=MOST_RUNS)
        for status in (Status.ENQUEUED, Status.STARTED)
    ]
    return [run for runs in found for run in runs]


@click.command(
    cls=Verb,
    examples=[
        """onbeat report 17 success --result '{"rows": 7}'""",
        'onbeat report 17 failure --error "no space left"',
    ],
)
@click.argument("which", metavar="RUN|KEY")
@click.argument("outcome", type=click.Choice(["success", "failure"]))
@click.option("--result", metavar="JSON", help="The result, stored with the run.")
@click.option("--error", default="", help="The error message of a failure.")
@click.option("--final", is_flag=True, help="Do not retry a failure.")
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
    """Report the outcome of an accepted run, by its number or its key.

    A target has accepted a run if it answered that it will report the outcome later.
    """
    reported: Succeeded | Failed = Failed(error or "reported as failed", retryable=not final)
    if result is not None and outcome != "success":
        raise InvalidSettings(
            "--result", "it is only allowed with the outcome success", hint="--error TEXT"
        )
    if outcome == "success":
        try:
            reported = Succeeded(None if result is None else msgspec.json.decode(result))
        except msgspec.MsgspecError as broken:
            raise InvalidSettings("--result", f"this is not JSON: {broken}", hint="[1]") from None
    run = int(which) if is_number(which) else which
    found = with_service(settings, lambda service: service.report(run, reported))
    if as_json:
        write_json(run_fields(found))
    else:
        reason = f" ({found.reason})" if found.reason else ""
        click.echo(f"run {found.run_id} of {found.schedule_id}: {found.status}{reason}")


class Position(click.Choice[str]):
    """`open` or `close`; `on` and `off` are former spellings of these, which help does not show."""

    FORMER = {"on": "open", "off": "close"}  # noqa: RUF012 - a constant

    def __init__(self) -> None:
        super().__init__(["open", "close"])

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(self.FORMER.get(value, value), param, ctx)


@click.command(cls=Verb, examples=["onbeat gate", "onbeat gate close", "onbeat gate open"])
@click.argument("position", type=Position(), required=False)
@JSON
@with_settings()
def gate(settings: Settings, position: str | None, as_json: bool) -> None:
    """Show, close or open the gate, the switch that stops all schedules.

    While the gate is closed, nothing is decided and nothing starts; started runs finish. Ticks that
    were due meanwhile are skipped.
    """
    if position is None:
        _show_gate(settings, as_json=as_json)
        return
    is_open = position == "open"
    changed = with_service(settings, lambda service: service.set_gate(is_open=is_open))
    if as_json:
        write_json({"gate": "open" if is_open else "closed", "changed": changed})
    else:
        state = "open" if is_open else CLOSED
        click.echo(f"the gate {'is now' if changed else 'was already'} {state}")


def _show_gate(settings: Settings, *, as_json: bool) -> None:
    is_open = with_service(settings, lambda service: service.overview()).gate_open
    if as_json:
        write_json({"gate": "open" if is_open else "closed"})
    else:
        click.echo("the gate is open" if is_open else f"the gate is {CLOSED} (onbeat gate open)")


def _instant(text: str, now: int) -> int:
    """Read an instant, or a duration from now, as milliseconds."""
    try:
        return now + parse_duration(text).elapsed * 1000
    except InvalidSchedule:
        pass
    try:
        return parse_instant(text) * 1000
    except InvalidSchedule as refused:
        hint = "2h, or an instant such as 2026-12-01T09:00:00Z"
        raise InvalidSettings("--until", refused.problem, hint=hint) from None

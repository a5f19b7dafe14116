"""The dashboard: one HTML page with the current state, readable without a script."""

from collections.abc import Awaitable, Callable, Mapping
from html import escape
from importlib.resources import files

from litestar import MediaType, Response, get
from litestar.datastructures import State
from litestar.di import NamedDependency

import onbeat
from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.host.plugs import PlugError, guard, load_function, plugs
from onbeat.ports.plug import Plug
from onbeat.ports.rows import Overview, RunFilter, RunRow, ScheduleRow
from onbeat.service.serialize import schedule_words, target_kind
from onbeat.service.service import Service
from onbeat.web.html import table

Section = Callable[[Service, object], Awaitable[str]]

MOST_SCHEDULES, MOST_RUNS = 100, 10
RUN_COLUMNS = ("Run", "Schedule", "Planned", "User", "Triggered by")
SCHEDULE_COLUMNS = (
    "Schedule",
    "When",
    "System",
    "Runs",
    "Next",
    "Last success",
    "Last result",
    "State",
)


@get("/", media_type=MediaType.HTML, include_in_schema=False)
async def overview(service: NamedDependency[Service], state: State) -> str:
    """Return the dashboard."""
    found = await service.overview()
    rows = await service.schedules(limit=MOST_SCHEDULES)
    latest = await service.runs(limit=MOST_RUNS)
    failed = await service.runs(RunFilter(status="FAILED"), limit=MOST_RUNS)
    systems = await _sections(service, state.systems)
    return _page(found, rows, systems, latest, failed)


@get("/static/onbeat.css", include_in_schema=False)
async def style() -> Response[bytes]:
    """Return the style sheet of the dashboard."""
    text = files("onbeat.web").joinpath("static/onbeat.css").read_bytes()
    return Response(text, media_type="text/css")


async def _sections(service: Service, systems: Mapping[str, object]) -> str:
    """Return the sections of systems; none for a caller with an owner, who sees only schedules."""
    if service.caller.only_owner is not None:
        return ""
    found = []
    for plug in plugs():
        if plug.sections and plug.name in systems:
            text = f"<h2>{escape(plug.name)}</h2><p class=bad>This section failed: see the log.</p>"
            with guard(plug, "the section of the dashboard"):
                text = await _section_of(plug, service, systems[plug.name])
            found.append(text)
    return "\n".join(filter(None, found))


async def _section_of(plug: Plug, service: Service, surface: object) -> str:
    section: Section = load_function(plug.sections)
    text: object = await section(service, surface)
    if not isinstance(text, str):
        raise PlugError(f"{plug.sections} returned a {type(text).__name__}, not a str")
    return text


def _page(
    found: Overview,
    rows: list[ScheduleRow],
    systems: str,
    latest: list[RunRow],
    failed: list[RunRow],
) -> str:
    up = sum(node.alive_until > found.now for node in found.nodes)
    gate = "" if found.gate_open else "<p class=bad>The gate is closed: no run starts.</p>"
    running = found.runs.get("STARTED", 0)
    more = found.schedules - len(rows)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="10">
<title>Onbeat</title>
<link rel="stylesheet" href="/static/onbeat.css">
</head>
<body>
<header><h1>Onbeat</h1><p>{rfc3339_ms(found.now)} · version {onbeat.__version__}</p></header>
<main>
{gate}
<dl>
<div><dt>Schedules</dt><dd>{found.schedules}</dd></div>
<div><dt>Paused</dt><dd>{found.paused}</dd></div>
<div><dt>Due now</dt><dd>{found.due}</dd></div>
<div><dt>Running</dt><dd>{running}</dd></div>
<div><dt>Nodes up</dt><dd>{up}</dd></div>
</dl>
<h2>Schedules</h2>
{table(SCHEDULE_COLUMNS, [_row(row) for row in rows])}
{f"<p>and {more} more</p>" if more > 0 else ""}
{systems}
<h2>Latest runs</h2>
{table((*RUN_COLUMNS, "Status"), [(*_run(run), run.status) for run in latest])}
<h2>Latest failures</h2>
{table((*RUN_COLUMNS, "Reason"), [(*_run(run), run.reason or "") for run in failed])}
</main>
<footer><a href="/api/v1/openapi.json">API</a> · <a href="/metrics">Metrics</a></footer>
</body>
</html>
"""


def _row(row: ScheduleRow) -> tuple[str, ...]:
    state = "paused" if row.paused else "failing" if row.consecutive_failures else "ok"
    last = "-" if row.last_success_at is None else rfc3339_ms(row.last_success_at)
    following = "-" if row.next_run_at is None else rfc3339(row.next_run_at)
    runs, result = target_kind(row), _result(row)
    return (
        row.schedule_id,
        schedule_words(row),
        row.source or "-",
        runs,
        following,
        last,
        result,
        state,
    )


def _result(row: ScheduleRow) -> str:
    """Return the outcome of the last run, or why the last tick had no run."""
    if row.last_run_at is None:
        return row.last_miss_reason or "-"
    if not row.consecutive_failures:
        return "SUCCESS"
    return "FAILED" if row.last_exit is None else f"FAILED (exit {row.last_exit})"


def _run(run: RunRow) -> tuple[str, ...]:
    planned, user = rfc3339(run.run_at), run.user or "-"
    return str(run.run_id), run.schedule_id, planned, user, run.triggered_by


ROUTES = [overview, style]

"""The page that a link opens: how things stand, readable without a script."""

from html import escape
from importlib.resources import files

from litestar import MediaType, Response, get
from litestar.datastructures import State
from litestar.di import NamedDependency

import onbeat
from onbeat.app.systems import RunningSystems
from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.errors import InvalidFile, InvalidSchedule
from onbeat.ports.rows import Overview, RunFilter, RunRow, ScheduleRow
from onbeat.service.serialize import target_of, words_of
from onbeat.service.service import Service
from onbeat.systems.services.timer_list import DISABLED, HEADING

SHOWN = 100  # schedules, and latest failures a tenth of that
OF_A_RUN = ("Run", "Schedule", "Planned", "User", "Triggered by")
COLUMNS = ("Schedule", "When", "System", "Runs", "Next", "Last success", "Last result", "State")


@get("/", media_type=MediaType.HTML, include_in_schema=False)
async def overview(service: NamedDependency[Service], state: State) -> str:
    """Return the page of how things stand."""
    found = await service.overview()
    rows = await service.schedules(limit=SHOWN)
    latest = await service.runs(limit=SHOWN // 10)
    failed = await service.runs(RunFilter(status="FAILED"), limit=SHOWN // 10)
    beside = await _timers(service, state.systems) + await _flows(service, state.systems)
    return _page(found, rows, beside, latest, failed)


@get("/static/onbeat.css", include_in_schema=False)
async def style() -> Response[bytes]:
    """Return how pages look."""
    text = files("onbeat.web").joinpath("static/onbeat.css").read_bytes()
    return Response(text, media_type="text/css")


async def _timers(service: Service, systems: RunningSystems) -> str:
    """Return the section of timers, for those who may see everybody's; none without such a file."""
    timers = systems.timers
    if timers is None or service.caller.only_of is not None:
        return ""
    try:
        found = await timers.listed(service)
    except (InvalidSchedule, InvalidFile):
        return "<h2>Timers</h2>\n<p class=bad>Their file cannot be read: see the log.</p>"
    if found is None:
        return f"<h2>Timers</h2>\n<p>{escape(DISABLED)}.</p>"
    told = _table(HEADING, [each.cells(found.now) for each in found.timers])
    if found.invalid:
        told += (
            f"\n<h3>Invalid timers</h3>\n{_table(('ID', 'Reason'), list(found.invalid.items()))}"
        )
    return f"<h2>Timers</h2>\n{told}"


async def _flows(service: Service, systems: RunningSystems) -> str:
    """Return the flows that are left out, for those who may see everybody's; none if none is."""
    if systems.flows is None or service.caller.only_of is not None:
        return ""
    invalid = (await systems.flows.status(service)).invalid
    if not invalid:
        return ""
    return f"<h2>Flows that are left out</h2>\n{_table(('Flow', 'Reason'), list(invalid.items()))}"


def _page(
    found: Overview,
    rows: list[ScheduleRow],
    beside: str,
    latest: list[RunRow],
    failed: list[RunRow],
) -> str:
    up = sum(node.alive_until > found.now for node in found.nodes)
    gate = "" if found.gate_open else "<p class=bad>The gate is closed: nothing starts.</p>"
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
{_table(COLUMNS, [_row(row) for row in rows])}
{f"<p>and {more} more</p>" if more > 0 else ""}
{beside}
<h2>Latest runs</h2>
{_table((*OF_A_RUN, "Status"), [(*_run(run), run.status) for run in latest])}
<h2>Failed last</h2>
{_table((*OF_A_RUN, "Reason"), [(*_run(run), run.reason or "") for run in failed])}
</main>
<footer><a href="/api/v1/openapi.json">API</a> · <a href="/metrics">Metrics</a></footer>
</body>
</html>
"""


def _row(row: ScheduleRow) -> tuple[str, ...]:
    state = "paused" if row.paused else "failing" if row.consecutive_failures else "ok"
    last = "-" if row.last_success_at is None else rfc3339_ms(row.last_success_at)
    following = "-" if row.next_run_at is None else rfc3339(row.next_run_at)
    runs, result = target_of(row), _result(row)
    return row.schedule_id, words_of(row), row.source or "-", runs, following, last, result, state


def _result(row: ScheduleRow) -> str:
    """Return how the last run ended, or why there was none."""
    if row.last_run_at is None:
        return row.last_miss_reason or "-"
    if not row.consecutive_failures:
        return "SUCCESS"
    return "FAILED" if row.last_exit is None else f"FAILED (exit {row.last_exit})"


def _run(run: RunRow) -> tuple[str, ...]:
    by = run.triggered_by
    return str(run.run_id), run.schedule_id, rfc3339(run.run_at), run.user or "-", by


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heading)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


ROUTES = [overview, style]

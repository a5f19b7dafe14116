"""Metrics for Prometheus.

Counters come from the events of this process; gauges are read from the store at each scrape. No
metric has a label per schedule, so a million schedules cost as much as one.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import get_args

from onbeat.core.runs.run import REASONS, TriggeredBy
from onbeat.events import (
    AnyEvent,
    Event,
    RunCanceled,
    RunEnqueued,
    RunFailed,
    RunRetrying,
    RunSkipped,
    RunStarted,
    RunSucceeded,
)
from onbeat.ports.rows import GroupRow, NodeRow, Overview, StoreFigures
from onbeat.service.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# The buckets of `drift_seconds`, in milliseconds: from the planned instant to the start.
DRIFTS = (
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000,
    900_000, 3_600_000,
)  # fmt: skip
PLANNED = {"timer", "catchup"}  # manual starts and backfills have no planned start
NOT_LAUNCHED = ("launch_failed", "invalid_target")
OUTBOX = ("waiting", "sending", "sent", "failed", "in_doubt")
OUTCOMES: Mapping[str, type[Event]] = {
    "success": RunSucceeded,
    "failed": RunFailed,
    "canceled": RunCanceled,
    "skipped": RunSkipped,
}


class Metrics:
    """The counters of this process. `on_events` is a `Listener`.

    It is called for every transaction of a busy engine, so events are counted by the batch, and
    examined one by one only for the kinds that need it.
    """

    def __init__(self) -> None:
        self.events: Counter[type[Event]] = Counter()
        self.decided_and_started = 0  # these have no `run.enqueued`
        self.started: Counter[str] = Counter()  # by trigger
        self.skipped: Counter[str] = Counter()  # by reason, like the following
        self.ticks_skipped: Counter[str] = Counter()  # a row may cover many ticks
        self.failed: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.drifts = [0] * (len(DRIFTS) + 1)  # starts by bucket; the last one is above all bounds
        self.drift = 0  # their sum, in milliseconds

    def on_events(self, at: int, events: Sequence[Event]) -> None:
        """Count committed events."""
        for kind, n in Counter(map(type, events)).items():
            self.events[kind] += n
            if kind in _EXAMINED:
                some = events if n == len(events) else [e for e in events if type(e) is kind]
                _EXAMINED[kind](self, at, some)

    def _see_starts(self, at: int, events: Sequence[RunStarted]) -> None:
        # Many schedules have one planned instant: equal events are counted first.
        alike = Counter([(e.run_at, e.triggered_by, e.attempt, e.due_at is None) for e in events])
        for (run_at, by, attempt, was_enqueued), n in alike.items():
            self.started[by] += n
            if not was_enqueued:
                self.decided_and_started += n
            if attempt == 1 and by in PLANNED:
                drift = abs(at - run_at * 1000)
                self.drifts[bisect_left(DRIFTS, drift)] += n
                self.drift += drift * n

    def _see_skips(self, _: int, events: Sequence[RunSkipped]) -> None:
        for event in events:
            self.skipped[event.reason] += 1
            self.ticks_skipped[event.reason] += event.tick_count

    def _see_failures(self, _: int, events: Sequence[RunFailed]) -> None:
        self.failed.update([event.reason for event in events])

    def _see_retries(self, _: int, events: Sequence[RunRetrying]) -> None:
        self.retried.update([event.reason for event in events])


async def scrape(metrics: Metrics, service: Service, *, version: str) -> str:
    """Read the gauges from the store, and return all metrics. They include every owner's."""
    figures, groups = await service.figures(), await service.groups()
    return render(metrics, await service.overview(), groups, figures, version=version)


def render(
    metrics: Metrics,
    overview: Overview,
    groups: Sequence[GroupRow],
    figures: StoreFigures,
    *,
    version: str,
) -> str:
    """Return all metrics in the text format of Prometheus."""
    page = _Page()
    page.gauge("build_info", "The version of Onbeat.", {(("version", version),): 1})
    _write_counts(page, metrics)
    _write_drifts(page, metrics)
    _write_store(page, overview, figures)
    _write_nodes(page, overview)
    _write_groups(page, groups)
    return page.text


def _write_counts(page: "_Page", seen: Metrics) -> None:
    emitted = seen.events[RunEnqueued] + seen.decided_and_started
    page.counter("runs_emitted_total", "Runs created by ticks and by manual starts.", emitted)
    overlap = seen.skipped["overlap"]
    page.counter(
        "runs_skipped_overlap_total", "Ticks skipped because a run was in flight.", overlap
    )
    unlaunched = sum(seen.failed[reason] + seen.retried[reason] for reason in NOT_LAUNCHED)
    page.counter("runs_failed_launch_total", "Attempts that could not be launched.", unlaunched)
    started = _by("triggered_by", {by: seen.started[by] for by in get_args(TriggeredBy)})
    page.counter("runs_started_total", "Attempts started, by trigger.", started)
    ended = _by("outcome", {name: seen.events[kind] for name, kind in OUTCOMES.items()})
    page.counter("runs_finished_total", "Runs that ended, by outcome.", ended)
    page.counter("runs_skipped_total", "Runs skipped, by reason.", _reasons(seen.skipped))
    ticks = _reasons(seen.ticks_skipped)
    page.counter("ticks_skipped_total", "Ticks that did not run, by reason.", ticks)
    page.counter("runs_failed_total", "Runs that failed, by reason.", _reasons(seen.failed))
    page.counter(
        "runs_retried_total", "Attempts that are retried, by reason.", _reasons(seen.retried)
    )
    events = _by("event", {tag(kind): seen.events[kind] for kind in get_args(AnyEvent)})
    page.counter("events_total", "Events, by name.", events)


def tag(kind: type[Event]) -> str:
    """Return the name of a kind of event, such as `run.started`."""
    return str(kind.__struct_config__.tag)


def _reasons(counted: Mapping[str, int]) -> "Samples":
    """Return a sample for every possible reason: a counter has to start at zero."""
    return _by("reason", {reason: counted.get(reason, 0) for reason in REASONS})


def _by(label: str, values: Mapping[str, float]) -> "Samples":
    return {((label, value),): figure for value, figure in values.items()}


def _write_drifts(page: "_Page", seen: Metrics) -> None:
    name, text = "drift_seconds", "From the planned instant of a tick to its first start."
    page.head(name, text, "histogram")
    total = 0
    for bound, n in zip((*DRIFTS, None), seen.drifts, strict=True):
        total += n
        upto = "+Inf" if bound is None else _number(bound / 1000)
        page.sample(f"{name}_bucket", (("le", upto),), total)
    page.sample(f"{name}_sum", (), seen.drift / 1000)
    page.sample(f"{name}_count", (), total)


def _write_store(page: "_Page", overview: Overview, figures: StoreFigures) -> None:
    now = overview.now
    page.gauge("schedules", "Schedules.", overview.schedules)
    page.gauge("schedules_paused", "Schedules that are paused.", overview.paused)
    page.gauge("schedules_failing", "Schedules whose last run failed.", figures.failing)
    page.gauge("schedules_due", "Ticks that are due and undecided.", overview.due)
    lag = _since(overview.next_due_at, now)
    page.gauge("watermark_age_seconds", "How far the planner is behind.", lag)
    page.gauge(
        "gate_open", "Whether the gate is open, so that runs may start.", int(overview.gate_open)
    )
    waiting, running = (overview.runs.get(status, 0) for status in ("ENQUEUED", "STARTED"))
    page.gauge("runs_waiting", "Runs that have not started yet.", waiting)
    page.gauge("runs_running", "Runs that have started and not finished.", running)
    page.gauge("runs_stuck", "Runs in flight that take too long.", overview.stuck)
    oldest = _since(figures.waiting_since, now)
    page.gauge(
        "oldest_waiting_run_seconds", "The age of the oldest due run that has not started.", oldest
    )
    page.gauge(
        "events_to_notify", "Event rows that the outbox has not read yet.", figures.to_notify
    )
    states = _by("state", {state: figures.outbox.get(state, 0) for state in OUTBOX})
    page.gauge("outbox_messages", "Messages of the outbox, by state.", states)
    following = overview.following
    left = 0 if following is None else following.total - following.done
    text = "Schedules whose due tick is not yet recomputed with newer time zone data."
    page.gauge("zone_data_schedules_left", text, left)
    page.gauge("database_bytes", "The size of the database on disk.", figures.size)


def _since(then: int | None, now: int) -> float:
    """Return the seconds from `then` to `now`, at least 0."""
    return 0 if then is None else max(0, now - then) / 1000


def _write_nodes(page: "_Page", overview: Overview) -> None:
    def each(figure: Callable[[NodeRow], float]) -> "Samples":
        return {
            (("node", row.name), ("node_id", row.node_id)): figure(row) for row in overview.nodes
        }

    now = overview.now
    page.gauge("node_up", "Whether a node is alive.", each(lambda row: int(row.alive_until > now)))
    page.gauge("node_running", "Runs that a node has started.", each(lambda row: row.running))
    left = each(lambda row: (row.alive_until - now) / 1000)
    page.gauge("node_lease_left_seconds", "Time until the lease of a node expires.", left)


def _write_groups(page: "_Page", groups: Sequence[GroupRow]) -> None:
    def each(figure: Callable[[GroupRow], float]) -> "Samples":
        return _by("group", {row.name: figure(row) for row in groups})

    page.gauge("group_places", "The concurrency limit of a group.", each(lambda g: g.places))
    page.gauge("group_used", "Places of a group that are in use.", each(lambda g: g.used))
    page.gauge("group_waiting", "Runs that wait for a place in a group.", each(lambda g: g.waiting))


Labels = tuple[tuple[str, str], ...]
Samples = Mapping[Labels, float]


class _Page:
    """The lines of a scrape."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join((*self._lines, ""))

    def counter(self, name: str, text: str, value: float | Samples) -> None:
        self._write(name, text, "counter", value)

    def gauge(self, name: str, text: str, value: float | Samples) -> None:
        self._write(name, text, "gauge", value)

    def head(self, name: str, text: str, kind: str) -> None:
        self._lines += (f"# HELP onbeat_{name} {text}", f"# TYPE onbeat_{name} {kind}")

    def sample(self, name: str, labels: Labels, value: float) -> None:
        self._lines.append(f"onbeat_{name}{_braced(labels)} {_number(value)}")

    def _write(self, name: str, text: str, kind: str, value: float | Samples) -> None:
        self.head(name, text, kind)
        for labels, each in (value if isinstance(value, Mapping) else {(): value}).items():
            self.sample(name, labels, each)


def _braced(labels: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


_EXAMINED: Mapping[type[Event], Callable[..., None]] = {
    RunStarted: Metrics._see_starts,  # noqa: SLF001 - its own table
    RunSkipped: Metrics._see_skips,  # noqa: SLF001
    RunFailed: Metrics._see_failures,  # noqa: SLF001
    RunRetrying: Metrics._see_retries,  # noqa: SLF001
}

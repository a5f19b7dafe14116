"""What happens, counted, and how things stand: as Prometheus reads it.

What this process did is counted from its events as they are told; how things stand is read from the
store when somebody asks. No figure is kept by schedule: a million of them are as many as one.
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

# Milliseconds, up to which a start is counted by how far it is from its planned instant.
DRIFTS = (
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000,
    900_000, 3_600_000,
)  # fmt: skip
PLANNED = {"timer", "catchup"}  # what starts by a plan: people and backfills choose their moment
NOT_LAUNCHED = ("launch_failed", "invalid_target")
OUTBOX = ("waiting", "sending", "sent", "failed", "in_doubt")
OUTCOMES: Mapping[str, type[Event]] = {
    "success": RunSucceeded,
    "failed": RunFailed,
    "canceled": RunCanceled,
    "skipped": RunSkipped,
}


class Metrics:
    """What this process has done since it began. `tell` is a `Listener`.

    It is called for every transaction of a busy engine: events are counted by the batch, and looked
    at one by one only where they say more than that they happened.
    """

    def __init__(self) -> None:
        self.told: Counter[type[Event]] = Counter()
        self.decided_and_started = 0  # these have no `run.enqueued`
        self.started: Counter[str] = Counter()  # by what triggered them
        self.skipped: Counter[str] = Counter()  # by reason, like the following
        self.ticks_skipped: Counter[str] = Counter()  # a range has many
        self.failed: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.drifts = [0] * (len(DRIFTS) + 1)  # starts in each of the buckets, and beyond
        self.drift = 0  # milliseconds of all of them

    def tell(self, at: int, events: Sequence[Event]) -> None:
        """Count what happened."""
        for kind, n in Counter(map(type, events)).items():
            self.told[kind] += n
            if kind in _LOOKED_AT:
                some = events if n == len(events) else [e for e in events if type(e) is kind]
                _LOOKED_AT[kind](self, at, some)

    def _see_starts(self, at: int, events: Sequence[RunStarted]) -> None:
        # A herd is planned for one instant: what is alike is counted first.
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
    """Read how things stand, and return all figures. Whoever asks may read everybody's."""
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
    """Return all figures in the text format of Prometheus."""
    page = _Page()
    page.gauge("build_info", "Which Onbeat this is.", {(("version", version),): 1})
    _write_counts(page, metrics)
    _write_drifts(page, metrics)
    _write_standing(page, overview, figures)
    _write_nodes(page, overview)
    _write_groups(page, groups)
    return page.text


def _write_counts(page: "_Page", seen: Metrics) -> None:
    emitted = seen.told[RunEnqueued] + seen.decided_and_started
    page.counter("runs_emitted_total", "Runs given to ticks, and to people who asked.", emitted)
    overlap = seen.skipped["overlap"]
    page.counter("runs_skipped_overlap_total", "Ticks skipped: one was running.", overlap)
    unlaunched = sum(seen.failed[reason] + seen.retried[reason] for reason in NOT_LAUNCHED)
    page.counter("runs_failed_launch_total", "Attempts that could not be launched.", unlaunched)
    started = _by("triggered_by", {by: seen.started[by] for by in get_args(TriggeredBy)})
    page.counter("runs_started_total", "Attempts started, by what triggered them.", started)
    ended = _by("outcome", {name: seen.told[kind] for name, kind in OUTCOMES.items()})
    page.counter("runs_finished_total", "Runs that ended, by outcome.", ended)
    page.counter("runs_skipped_total", "Runs decided against, by reason.", _reasons(seen.skipped))
    ticks = _reasons(seen.ticks_skipped)
    page.counter("ticks_skipped_total", "Ticks that did not run, by reason.", ticks)
    page.counter("runs_failed_total", "Runs that failed, by reason.", _reasons(seen.failed))
    page.counter("runs_retried_total", "Attempts tried again, by reason.", _reasons(seen.retried))
    events = _by("event", {tag(kind): seen.told[kind] for kind in get_args(AnyEvent)})
    page.counter("events_total", "Everything that happened, by its name.", events)


def tag(kind: type[Event]) -> str:
    """Return the name of a kind of event, such as `run.started`."""
    return str(kind.__struct_config__.tag)


def _reasons(counted: Mapping[str, int]) -> "Samples":
    """Return a sample for each reason there can be: one that appears later has no beginning."""
    return _by("reason", {reason: counted.get(reason, 0) for reason in REASONS})


def _by(label: str, values: Mapping[str, float]) -> "Samples":
    return {((label, value),): figure for value, figure in values.items()}


def _write_drifts(page: "_Page", seen: Metrics) -> None:
    name, told = "drift_seconds", "Between the planned instant of a tick and its first start."
    page.head(name, told, "histogram")
    total = 0
    for bound, n in zip((*DRIFTS, None), seen.drifts, strict=True):
        total += n
        upto = "+Inf" if bound is None else _number(bound / 1000)
        page.sample(f"{name}_bucket", (("le", upto),), total)
    page.sample(f"{name}_sum", (), seen.drift / 1000)
    page.sample(f"{name}_count", (), total)


def _write_standing(page: "_Page", standing: Overview, figures: StoreFigures) -> None:
    now = standing.now
    page.gauge("schedules", "Schedules there are.", standing.schedules)
    page.gauge("schedules_paused", "Schedules that are paused.", standing.paused)
    page.gauge("schedules_failing", "Schedules whose last run failed.", figures.failing)
    page.gauge("schedules_due", "Ticks that are due and undecided.", standing.due)
    lag = _since(standing.next_due_at, now)
    page.gauge("watermark_age_seconds", "By how much the planner is behind.", lag)
    page.gauge("gate_open", "Whether anything may start at all.", int(standing.gate_open))
    waiting, running = (standing.runs.get(status, 0) for status in ("ENQUEUED", "STARTED"))
    page.gauge("runs_waiting", "Runs that have not started yet.", waiting)
    page.gauge("runs_running", "Runs that have started and not ended.", running)
    page.gauge("runs_stuck", "Runs in flight that take too long.", standing.stuck)
    oldest = _since(figures.waiting_since, now)
    page.gauge("oldest_waiting_run_seconds", "For how long a run that is due has waited.", oldest)
    page.gauge("events_to_notify", "Rows of events to be looked at for notices.", figures.to_notify)
    states = _by("state", {state: figures.outbox.get(state, 0) for state in OUTBOX})
    page.gauge("outbox_messages", "Notices on their way out, by state.", states)
    following = standing.following
    left = 0 if following is None else following.total - following.done
    told = "Schedules whose due tick is still to be computed with newer time zone data."
    page.gauge("zone_data_schedules_left", told, left)
    page.gauge("database_bytes", "What the database takes on disk.", figures.size)


def _since(then: int | None, now: int) -> float:
    """Return how many seconds ago something should have been, or 0."""
    return 0 if then is None else max(0, now - then) / 1000


def _write_nodes(page: "_Page", standing: Overview) -> None:
    def each(figure: Callable[[NodeRow], float]) -> "Samples":
        return {
            (("node", row.name), ("node_id", row.node_id)): figure(row) for row in standing.nodes
        }

    now = standing.now
    page.gauge("node_up", "Whether a node is alive.", each(lambda row: int(row.alive_until > now)))
    page.gauge("node_running", "Runs that a node has started.", each(lambda row: row.running))
    left = each(lambda row: (row.alive_until - now) / 1000)
    page.gauge("node_lease_left_seconds", "Until when a node counts as alive.", left)


def _write_groups(page: "_Page", groups: Sequence[GroupRow]) -> None:
    def each(figure: Callable[[GroupRow], float]) -> "Samples":
        return _by("group", {row.name: figure(row) for row in groups})

    page.gauge("group_places", "Runs of a group that may go on at once.", each(lambda g: g.places))
    page.gauge("group_used", "Places of a group that are taken.", each(lambda g: g.used))
    page.gauge("group_waiting", "Runs that wait for a place.", each(lambda g: g.waiting))


Labels = tuple[tuple[str, str], ...]
Samples = Mapping[Labels, float]


class _Page:
    """What is told, line by line."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join((*self._lines, ""))

    def counter(self, name: str, told: str, value: float | Samples) -> None:
        self._write(name, told, "counter", value)

    def gauge(self, name: str, told: str, value: float | Samples) -> None:
        self._write(name, told, "gauge", value)

    def head(self, name: str, told: str, kind: str) -> None:
        self._lines += (f"# HELP onbeat_{name} {told}", f"# TYPE onbeat_{name} {kind}")

    def sample(self, name: str, labels: Labels, value: float) -> None:
        self._lines.append(f"onbeat_{name}{_braced(labels)} {_number(value)}")

    def _write(self, name: str, told: str, kind: str, value: float | Samples) -> None:
        self.head(name, told, kind)
        for labels, each in (value if isinstance(value, Mapping) else {(): value}).items():
            self.sample(name, labels, each)


def _braced(labels: Iterable[tuple[str, str]]) -> str:
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{told}}}" if told else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


_LOOKED_AT: Mapping[type[Event], Callable[..., None]] = {
    RunStarted: Metrics._see_starts,  # noqa: SLF001 - its own table
    RunSkipped: Metrics._see_skips,  # noqa: SLF001
    RunFailed: Metrics._see_failures,  # noqa: SLF001
    RunRetrying: Metrics._see_retries,  # noqa: SLF001
}

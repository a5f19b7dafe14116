"""The metrics for Prometheus: counters of events, gauges of the current state, valid text."""

import asyncio
import math
import time
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from onbeat import Onbeat
from onbeat.app.metrics import DRIFTS, Metrics, render, scrape
from onbeat.core.runs.run import REASONS, Failed, TriggeredBy
from onbeat.events import (
    AnyEvent,
    RunEnqueued,
    RunFailed,
    RunRetrying,
    RunSkipped,
    RunStarted,
    RunSucceeded,
)
from onbeat.ports.rows import GroupRow, NodeRow, Overview, StoreFigures, ZoneDataProgress
from onbeat.testing import ManualClock, RecordingLauncher, a_schedule

NOON = 1_767_268_800  # 2026-01-01T12:00:00Z
NOTHING = Overview(NOON * 1000, True, 0, 0, 0, None, {}, [])
NO_FIGURES = StoreFigures(0, None, 0, {}, 0)


def page(metrics=None, overview=NOTHING, groups=(), figures=NO_FIGURES, version="1.2.3"):
    return render(metrics or Metrics(), overview, groups, figures, version=version)


def samples(text):
    """Return every sample by its name and labels, as Prometheus' own parser reads them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(*events, at=NOON * 1000, **given):
    metrics = Metrics()
    metrics.on_events(at, events)
    return samples(page(metrics, **given))


def of(found, name, **labels):
    return found[f"onbeat_{name}", tuple(sorted(labels.items()))]


def started(run_at=NOON, by="timer", attempt=1, **fields):
    return RunStarted("report", 1, run_at, attempt, "node-1", 1, triggered_by=by, **fields)


# -- the text


def test_every_metric_has_a_description_and_a_type():
    families = list(text_string_to_metric_families(page()))
    assert len(families) > 25
    for family in families:
        assert family.name.startswith("onbeat_")
        assert family.documentation.endswith(".")
        assert family.type in {"counter", "gauge", "histogram"}
    names = [family.name for family in families]
    assert len(names) == len(set(names))


def test_only_counter_names_end_in_total():
    kinds = {}
    for line in page().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
    assert {name for name, kind in kinds.items() if kind == "counter"} == {
        name for name in kinds if name.endswith("_total")
    }


def test_metrics_text_ends_with_one_newline():
    assert page().endswith("\n")
    assert "\n\n" not in page()


@pytest.mark.parametrize("name", ['a "quoted" one', "back\\slash", "two\nlines", "größe,{=}"])
def test_label_values_are_escaped(name):
    found = samples(page(groups=[GroupRow(name, 3, 2, 1)]))
    assert of(found, "group_places", group=name) == 3


def test_version_is_a_label_of_build_info():
    assert of(samples(page(version="1.2.3")), "build_info", version="1.2.3") == 1


# -- what happened


def test_emitted_runs_are_enqueued_or_started_directly():
    found = told(
        RunEnqueued("a", 1, NOON, NOON * 1000),
        started(due_at=NOON * 1000),
        started(),  # this one was enqueued before
    )
    assert of(found, "runs_emitted_total") == 2


def test_runs_skipped_for_overlap_have_a_separate_counter():
    found = told(RunSkipped("a", 1, NOON, "overlap"), RunSkipped("a", 2, NOON, "missed"))
    assert of(found, "runs_skipped_overlap_total") == 1


def test_failed_launches_are_counted_with_and_without_retry():
    found = told(
        RunRetrying("a", 1, NOON, 1, NOON * 1000, "launch_failed"),
        RunFailed("a", 1, NOON, 2, "launch_failed"),
        RunFailed("b", 2, NOON, 1, "invalid_target"),
        RunFailed("c", 3, NOON, 1, "exit"),
    )
    assert of(found, "runs_failed_launch_total") == 3
    assert of(found, "runs_failed_total", reason="exit") == 1
    assert of(found, "runs_retried_total", reason="launch_failed") == 1


def test_number_of_due_schedules_is_exported():
    found = samples(page(overview=Overview(NOON * 1000, True, 9, 1, 4, NOON * 1000, {}, [])))
    assert of(found, "schedules_due") == 4


def test_started_runs_are_counted_by_their_trigger():
    found = told(started(by="manual"), started(), started())
    assert of(found, "runs_started_total", triggered_by="manual") == 1
    assert of(found, "runs_started_total", triggered_by="timer") == 2


def test_skipped_range_counts_as_one_run_and_many_ticks():
    found = told(RunSkipped("a", 1, NOON, "missed", NOON - 3600, 60))
    assert of(found, "runs_skipped_total", reason="missed") == 1
    assert of(found, "ticks_skipped_total", reason="missed") == 60


def test_finished_runs_are_counted_by_outcome():
    found = told(RunSucceeded("a", 1, NOON, 1), RunFailed("b", 2, NOON, 1, "exit"))
    outcomes = {
        name: of(found, "runs_finished_total", outcome=name)
        for name in ("success", "failed", "canceled", "skipped")
    }
    assert outcomes == {"success": 1, "failed": 1, "canceled": 0, "skipped": 0}


def test_counters_exist_for_every_label_before_the_first_event():
    found = samples(page())
    assert {
        dict(labels)["reason"] for name, labels in found if name == "onbeat_runs_failed_total"
    } == set(REASONS)
    by = {
        dict(labels)["triggered_by"]
        for name, labels in found
        if name == "onbeat_runs_started_total"
    }
    assert by == set(get_args(TriggeredBy))
    events = {dict(labels)["event"] for name, labels in found if name == "onbeat_events_total"}
    assert len(events) == len(get_args(AnyEvent))


# -- drift


@pytest.mark.parametrize(
    ("late", "bucket"),
    [(0, 0.001), (1, 0.001), (2, 0.002), (3, 0.005), (3_600_000, 3600.0), (-40, 0.05)],
)
def test_start_is_in_the_bucket_of_its_drift(late, bucket):
    found = told(started(), at=NOON * 1000 + late)
    bounds = [math.inf, *(bound / 1000 for bound in DRIFTS)]
    for bound in bounds:
        le = "+Inf" if bound == math.inf else f"{bound:g}"
        assert of(found, "drift_seconds_bucket", le=le) == (1 if bound >= bucket else 0), le
    assert of(found, "drift_seconds_sum") == abs(late) / 1000
    assert of(found, "drift_seconds_count") == 1


def test_drift_over_an_hour_is_in_the_infinite_bucket():
    found = told(started(), at=(NOON + 7200) * 1000)
    assert of(found, "drift_seconds_bucket", le="3600") == 0
    assert of(found, "drift_seconds_bucket", le="+Inf") == of(found, "drift_seconds_count") == 1


def test_drift_leaves_out_retries_backfills_and_manual_runs():
    found = told(started(by="retry", attempt=2), started(by="backfill"), started(by="manual"))
    assert of(found, "drift_seconds_count") == 0


def test_many_events_in_one_call_are_all_counted():
    metrics = Metrics()
    for at in (1, 3):
        metrics.on_events(NOON * 1000 + at, [started(due_at=0) for _ in range(500)])
    found = samples(page(metrics))
    assert of(found, "runs_emitted_total") == of(found, "drift_seconds_count") == 1000
    assert of(found, "drift_seconds_sum") == 2.0
    assert of(found, "drift_seconds_bucket", le="0.001") == 500


def test_counting_an_event_takes_under_two_microseconds():
    starts = [started(due_at=NOON * 1000) for _ in range(1000)]
    ends = [RunSucceeded("a", 1, NOON, 1)] * 1000
    metrics, best = Metrics(), math.inf
    for _ in range(20):
        began = time.perf_counter()
        metrics.on_events(NOON * 1000, starts)
        metrics.on_events(NOON * 1000, ends)
        best = min(best, time.perf_counter() - began)
    assert best / 1000 < 2e-6  # seconds a tick, which takes some thirty microseconds: 0.2 when idle


# -- how things stand


def test_watermark_age_is_how_long_the_first_tick_is_overdue():
    now = NOON * 1000
    found = samples(page(overview=Overview(now, True, 1, 0, 1, now - 2_500, {}, [])))
    assert of(found, "watermark_age_seconds") == 2.5
    found = samples(page(overview=Overview(now, True, 1, 0, 0, now + 2_500, {}, [])))
    assert of(found, "watermark_age_seconds") == 0
    assert of(samples(page()), "watermark_age_seconds") == 0


def test_each_node_has_its_own_samples():
    now = NOON * 1000
    nodes = [
        NodeRow("1", "here:1", frozenset(), frozenset(), now, now + 5_000, "1", "2026a", 7),
        NodeRow("2", "there:2", frozenset(), frozenset(), now, now - 1_500, "1", "2026a", 0),
    ]
    found = samples(page(overview=Overview(now, True, 0, 0, 0, None, {}, nodes)))
    assert of(found, "node_up", node="here:1", node_id="1") == 1
    assert of(found, "node_running", node="here:1", node_id="1") == 7
    assert of(found, "node_up", node="there:2", node_id="2") == 0
    assert of(found, "node_lease_left_seconds", node="there:2", node_id="2") == -1.5


def test_schedules_without_newer_zone_data_are_counted():
    following = ZoneDataProgress("2026a", 1000, 5000, 3, NOON * 1000)
    overview = Overview(NOON * 1000, True, 5, 0, 0, None, {}, [], following=following)
    assert of(samples(page(overview=overview)), "zone_data_schedules_left") == 4000


def test_gate_groups_and_waiting_runs_are_exported():
    now = NOON * 1000
    overview = Overview(now, False, 5, 2, 0, None, {"ENQUEUED": 3, "STARTED": 1}, [])
    figures = StoreFigures(1, now - 60_000, 4, {"waiting": 2, "failed": 1}, 4096)
    found = samples(page(overview=overview, groups=[GroupRow("db", 3, 2, 1)], figures=figures))
    assert of(found, "gate_open") == 0
    assert of(found, "schedules_paused") == 2
    assert of(found, "schedules_failing") == 1
    assert of(found, "runs_waiting") == 3
    assert of(found, "runs_running") == 1
    assert of(found, "oldest_waiting_run_seconds") == 60
    assert of(found, "group_used", group="db") == 2
    assert of(found, "events_to_notify") == 4
    assert of(found, "outbox_messages", state="waiting") == 2
    assert of(found, "outbox_messages", state="in_doubt") == 0
    assert of(found, "database_bytes") == 4096


# -- the whole


def test_node_counts_its_events():
    clock = ManualClock()
    launcher = RecordingLauncher(
        lambda attempt: (
            Failed("no", "launch_failed")
            if attempt.schedule_id == "b"
            else Failed("exit 1", "exit")
        )
    )

    async def story():
        beat = Onbeat("sqlite://", clock=clock, launchers={"command": launcher})
        async with beat:
            await beat.define(a_schedule("a"), a_schedule("b"))
            await beat.settle()
            clock.advance(3_600_030)
            await beat.settle()
            await beat.start("a")
            await beat.settle()
            return samples(await scrape(beat.metrics, beat.service, version="1"))

    found = asyncio.run(story())
    assert of(found, "runs_emitted_total") == 3
    assert of(found, "runs_failed_launch_total") == 1
    assert of(found, "runs_started_total", triggered_by="timer") == 2
    assert of(found, "runs_started_total", triggered_by="manual") == 1
    assert of(found, "drift_seconds_count") == 2
    assert of(found, "drift_seconds_bucket", le="0.025") == 0
    assert of(found, "drift_seconds_bucket", le="0.05") == 2
    assert of(found, "runs_finished_total", outcome="failed") == 3
    assert of(found, "schedules") == of(found, "schedules_failing") == 2
    assert of(found, "database_bytes") > 0
    assert sum(name == "onbeat_node_up" for name, _ in found) == 1

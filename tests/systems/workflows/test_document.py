"""The workflows document, sentence by sentence, on the surface of this system."""

import sqlite3
from datetime import datetime

import pytest

from onbeat import InvalidSchedule
from onbeat.core.runs.run import Accepted
from onbeat.core.time.instants import parse_instant
from tests.systems.workflows.conftest import WorkflowsHarness

MINUTELY = {"cron_expr": "* * * * *"}


def clock_times(world):
    return [text[11:19] for text in world.started]


@pytest.mark.req("W4")
def test_worker_applies_overlap_and_catchup_policy_of_each_schedule(workflows):
    async def story(its):
        its.answer = lambda meta: Accepted("slow")
        await its.with_dag(schedule_id="skips", overlap_policy="skip", **MINUTELY)
        await its.upsert(schedule_id="allows", overlap_policy="allow", **MINUTELY)
        await its.upsert(
            schedule_id="misses", overlap_policy="allow", catchup_policy="none", **MINUTELY
        )
        await its.let_pass("1m", "1m")
        its.clock.advance("10m")  # nothing looked at the clock meanwhile
        await its.let_pass("30s")
        return {name: await its.statuses(name) for name in ("skips", "allows", "misses")}

    found = workflows.play(story)
    assert found["skips"][:2] == [("STARTED", None), ("SKIPPED", "overlap")]
    assert found["allows"][:2] == [("STARTED", None), ("STARTED", None)]
    assert ("SKIPPED", "missed") in found["misses"]


@pytest.mark.req("W12", "W25")
def test_schedules_and_their_runs_are_rows_of_the_two_tables(tmp_path):
    async def story(its):
        await its.with_dag(**MINUTELY)
        await its.let_pass("1m")

    WorkflowsHarness(f"sqlite:///{tmp_path}/onbeat.db").play(story)
    with sqlite3.connect(tmp_path / "onbeat.db") as database:
        runs = database.execute("SELECT schedule_id FROM schedule_runs").fetchall()
        schedules = database.execute("SELECT schedule_id FROM schedules").fetchall()
        keys = database.execute("PRAGMA foreign_key_list(schedule_runs)").fetchall()
    assert runs == schedules == [("hourly-report",)]
    assert [(row[2], row[3]) for row in keys] == [("schedules", "schedule_id")]


def test_timezone_is_an_iana_name_in_which_the_cron_is_read(workflows):
    async def story(its):
        await its.upsert(cron_expr="0 9 * * *", timezone="Asia/Kolkata")
        first = await its.get()
        with pytest.raises(InvalidSchedule) as refused:
            await its.upsert(timezone="Mars/Olympus")
        return first["timezone"], first["next_run_at"], str(refused.value)

    timezone, next_run_at, problem = workflows.play(story)
    assert (timezone, next_run_at) == ("Asia/Kolkata", "2026-01-02T03:30:00Z")
    assert "Mars/Olympus" in problem


def test_start_at_and_end_at_are_optional_and_bound_the_ticks(workflows):
    async def story(its):
        await its.with_dag(schedule_id="open", **MINUTELY)
        bounds = {"start_at": "2026-01-01T12:02:00Z", "end_at": "2026-01-01T12:03:30Z"}
        await its.upsert(schedule_id="bounded", **MINUTELY, **bounds)
        await its.let_pass(*["1m"] * 5)
        unbounded = await its.get("open")
        return unbounded, [run["run_at"] for run in await its.runs("bounded")]

    unbounded, ran = workflows.play(story)
    assert (unbounded["start_at"], unbounded["end_at"]) == (None, None)
    assert ran == ["2026-01-01T12:02:00Z", "2026-01-01T12:03:00Z"]


def test_next_run_at_is_computed_in_utc(workflows):
    async def story(its):
        await its.upsert(cron_expr="30 14 * * *", timezone="Europe/Berlin")
        return await its.get()

    assert workflows.play(story)["next_run_at"] == "2026-01-01T13:30:00Z"


@pytest.mark.req("W19")
def test_new_schedule_is_not_paused(workflows):
    async def story(its):
        await its.upsert()
        return await its.get()

    assert workflows.play(story)["paused"] is False


def test_jitter_ms_is_zero_by_default(workflows):
    async def story(its):
        await its.with_dag()
        plain = await its.get()
        await its.let_pass("1h")
        ((_, meta),) = its.handed_over
        await its.upsert(jitter_ms=1500)
        return plain["jitter_ms"], meta["scheduled_for"], (await its.get())["jitter_ms"]

    assert workflows.play(story) == (0, "2026-01-01T13:00:00Z", 1500)


@pytest.mark.parametrize("policy", ["allow", "skip", "queue"])
def test_overlap_policy_is_one_of_three_and_skip_by_default(workflows, policy):
    async def story(its):
        await its.upsert()
        default = (await its.get())["overlap_policy"]
        await its.upsert(overlap_policy=policy)
        chosen = (await its.get())["overlap_policy"]
        with pytest.raises(InvalidSchedule, match="overlap_policy"):
            await its.upsert(overlap_policy="replace")
        return default, chosen

    assert workflows.play(story) == ("skip", policy)


@pytest.mark.req("W23")
def test_updated_at_is_the_time_of_the_last_change(workflows):
    async def story(its):
        await its.upsert()
        created = (await its.get())["updated_at"]
        await its.let_pass("10m")
        await its.upsert(cron_expr="30 * * * *")
        return created, (await its.get())["updated_at"]

    created, changed = workflows.play(story)
    assert parse_instant(changed) - parse_instant(created) == 600


@pytest.mark.req("W26")
def test_run_at_of_a_run_is_its_planned_time_with_offset(workflows):
    async def story(its):
        await its.with_dag(**MINUTELY)
        its.clock.advance("3s")
        await its.let_pass("1m")
        (run,) = await its.runs()
        return run["run_at"]

    planned = datetime.fromisoformat(workflows.play(story))
    assert planned.utcoffset() is not None
    assert planned == datetime.fromisoformat("2026-01-01T12:01:00+00:00")


@pytest.mark.req("W45")
def test_due_times_are_expanded_in_the_zone_over_a_clock_change():
    world = WorkflowsHarness(
        start="2026-03-29T00:30:00Z"
    )  # 01:30 in Berlin, half an hour before the gap

    async def story(its):
        await its.with_dag(
            cron_expr="15 * * * *", overlap_policy="allow", catchup_policy="fire_immediately"
        )
        await its.let_pass("3h")
        return sorted(its.started)

    assert world.play(story) == [
        "2026-03-29T01:15:00Z",  # 03:15 in Berlin: there is no 02:15 that day
        "2026-03-29T02:15:00Z",
        "2026-03-29T03:15:00Z",
    ]


@pytest.mark.req("W52")
def test_jitter_moves_a_start_by_at_most_jitter_ms_either_way(workflows):
    spans = []

    def note(meta):
        spans.append(workflows.clock.now() - parse_instant(meta["scheduled_for"]) * 1000)

    async def story(its):
        its.answer = note
        await its.with_dag(jitter_ms=5000, **MINUTELY)
        for _ in range(60 * 60):
            await its.let_pass(500)

    workflows.play(story)
    assert len(spans) >= 29
    assert all(-5000 <= span <= 5500 for span in spans)  # the clock moves by 500 ms
    assert min(spans) < -1000 < 1000 < max(spans)


@pytest.mark.req("W54")
def test_next_run_at_moves_to_the_tick_after_the_one_decided(workflows):
    async def story(its):
        await its.with_dag(**MINUTELY)
        seen = []
        for _ in range(3):
            seen.append((await its.get())["next_run_at"])
            await its.let_pass("1m")
        return seen, [run["run_at"] for run in await its.runs()]

    announced, ran = workflows.play(story)
    assert announced == ran


@pytest.mark.req("W59", "W88")
def test_one_process_plans_and_launches_without_a_lock_service(workflows):
    async def story(its):
        await its.with_dag(**MINUTELY)
        await its.let_pass("1m", "1m")
        return await its.statuses()

    assert workflows.play(story) == [("SUCCESS", None)] * 2
    assert clock_times(workflows) == ["12:01:00", "12:02:00"]


@pytest.mark.req("W88")
def test_worker_and_run_launcher_can_be_two_processes(tmp_path):
    database = f"sqlite:///{tmp_path}/onbeat.db"

    async def decide(its):
        await its.with_dag(**MINUTELY)
        await its.let_pass("1m")
        return await its.statuses()

    worker = WorkflowsHarness(database, roles=("plan",))
    assert worker.play(decide) == [("ENQUEUED", None)]
    assert worker.handed_over == []

    async def launch(its):
        await its.let_pass("5s")
        return await its.statuses()

    launcher = WorkflowsHarness(database, start="2026-01-01T12:01:01Z", roles=("run",))
    assert launcher.play(launch) == [("SUCCESS", None)]
    assert clock_times(launcher) == ["12:01:00"]


@pytest.mark.req("W72")
def test_catchup_launches_are_bounded_per_second():
    world = WorkflowsHarness(catchup_per_second=5)

    async def story(its):
        await its.with_dag(overlap_policy="allow", catchup_policy="fire_immediately", **MINUTELY)
        await its.let_pass("60m")
        at_once = len(its.handed_over)
        await its.let_pass("1s")
        a_second_later = len(its.handed_over)
        await its.let_pass(*["1s"] * 40)
        return at_once, a_second_later, len(its.handed_over)

    at_once, a_second_later, in_the_end = world.play(story)
    assert at_once <= 6
    assert a_second_later <= at_once + 6
    assert in_the_end == 60


@pytest.mark.req("W84")
def test_tick_waits_for_its_later_jittered_time(workflows):
    async def story(its):
        await its.with_dag(schedule_id="waits", jitter_ms=20_000, **MINUTELY)
        early = []
        while len(its.handed_over) < 20:
            (row,) = [each for each in await its.beat.schedules() if each.schedule_id == "waits"]
            before = len(its.handed_over)
            its.clock.advance(max(row.next_due_at - its.clock.now() - 1, 0))
            await its.beat.settle()
            early.append(len(its.handed_over) - before)
            await its.let_pass(1)
        return early

    assert set(workflows.play(story)) == {0}

"""Onbeat inside a program: decorated and defined schedules run, through failures and restarts."""

import asyncio
import functools
import gc
import json
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter
from contextlib import asynccontextmanager, closing
from functools import partial

import apsw
import pytest

from onbeat import InvalidSchedule, Onbeat, after, cron, every, startup
from onbeat.app.settings import Settings
from onbeat.app.stores import lock_holder
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.errors import NoSuchSchedule, StoreFailed, StoreUnusable
from onbeat.testing import ManualClock, RecordingLauncher, a_schedule
from tests.given_settings import given_settings
from tests.inside import engine_of, store_of
from tests.waiting import SOON, engine_has_looked, forever, until

NOON = 1_767_268_800  # 2026-01-01T12:00:00Z
HOUR = 3600


def awaited(test):
    """Run a test that is a coroutine."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 2 * SOON))

    return run


@pytest.fixture
def clock():
    return ManualClock("2026-01-01T12:00:00Z")


@pytest.fixture
def launcher():
    return RecordingLauncher()


@pytest.fixture
def file(tmp_path):
    return f"sqlite:///{tmp_path}/onbeat.db"


@pytest.fixture
def beat(clock, launcher):
    return a_beat(clock, launcher=launcher)


def a_beat(clock=None, database="sqlite://", *, launcher=None, **settings):
    launchers = {"command": launcher} if launcher is not None else {}
    return Onbeat(
        settings=given_settings(database=database, **settings), clock=clock, launchers=launchers
    )


# -- time passes


async def calm(beat):
    """Wait until planner, dispatcher and recorder of a node wait to be woken."""
    await until(lambda: beat.activity.is_waiting)


async def passes(beat, clock, length="1h"):
    """Let time pass, and everything happen that is due by then.

    Not in the middle of a look: what that finds would be an hour late, and handed back.
    """
    if beat.is_node:
        await calm(beat)
    clock.advance(length)
    await beat.settle()


async def runs(beat, names, schedule_id=None):
    """Return these columns of runs, the first first: `runs(beat, "status reason")`."""
    columns = names.split()
    found = [
        tuple(getattr(row, name) for name in columns)
        for row in (await beat.runs(schedule_id, limit=10_000))[::-1]
    ]
    return [value for (value,) in found] if len(columns) == 1 else found


async def events(beat):
    return [row.event for row in await beat.service.events(after=0, limit=10_000)]


async def the_schedule(beat, schedule_id):
    return {row.schedule_id: row for row in await beat.schedules()}[schedule_id]


# -- the testing kit


@awaited
async def test_defined_schedule_is_launched_when_its_tick_is_due(clock, launcher):
    async with Onbeat("sqlite://", clock=clock, launchers={"command": launcher}) as beat:
        await beat.define(a_schedule("report", every="1h"))
        await passes(beat, clock, "59m")
        assert launcher.attempts == []
        await passes(beat, clock, "1m")
        assert [attempt.schedule_id for attempt in launcher.attempts] == ["report"]


@awaited
async def test_attempt_has_target_inputs_tick_and_timeout(beat, clock, launcher):
    async with beat:
        run = {"command": ["./report", "--all"], "inputs": {"limit": 100}}
        await beat.define(a_schedule("report", run=run, timeout="5m"))
        await passes(beat, clock, "1h")
    (attempt,) = launcher.attempts
    assert attempt.target.fields["command"] == ["./report", "--all"]
    assert attempt.inputs == {"limit": 100}
    assert (attempt.run_at, attempt.due_at) == (NOON + HOUR, (NOON + HOUR) * 1000)
    assert (attempt.attempt, attempt.iteration, attempt.timeout) == (1, 1, 300_000)


def test_settle_waits_for_all_runs_that_are_due():
    async def as_the_docs_have_it():
        clock, launcher = ManualClock("2026-01-01T12:00:00Z"), RecordingLauncher()
        async with Onbeat("sqlite://", clock=clock, launchers={"command": launcher}) as beat:
            await beat.define(a_schedule("report", every="1h"))
            clock.advance("1h")
            await beat.settle()
            await beat.start("report")
            await beat.settle()
            return [attempt.triggered_by for attempt in launcher.attempts]

    found = Counter(tuple(asyncio.run(as_the_docs_have_it())) for _ in range(40))
    assert found == {("timer", "manual"): 40}


@awaited
async def test_settle_waits_for_runs_beyond_the_concurrency_limit(clock):
    beat = a_beat(clock, concurrency=3)
    for i in range(20):
        beat.schedule(every("1h"), name=f"report-{i}")(lambda: asyncio.sleep(0.002))
    async with beat:
        await calm(beat)
        clock.advance("1h")
        await beat.settle()
        assert Counter(await runs(beat, "status")) == {"SUCCESS": 20}


@awaited
async def test_recording_launcher_returns_the_configured_outcome(clock):
    def outcome(attempt):
        if attempt.schedule_id == "breaks":
            raise ValueError("no data")
        return Failed("exit code 2", "exit", exit_code=2)

    async with a_beat(clock, launcher=RecordingLauncher(outcome)) as beat:
        await beat.define(a_schedule("breaks"), a_schedule("fails"))
        await passes(beat, clock)
        found = await runs(beat, "schedule_id status reason exit_code error")
        assert found == [
            ("breaks", "FAILED", "error", None, "ValueError: no data"),
            ("fails", "FAILED", "exit", 2, "exit code 2"),
        ]


@awaited
async def test_recording_launcher_can_replace_the_function_launcher(clock, launcher):
    beat = Onbeat("sqlite://", clock=clock, launchers={"python": launcher})
    beat.schedule(every("1h"), name="report")(lambda: None)
    async with beat:
        await passes(beat, clock)
        assert [attempt.schedule_id for attempt in launcher.attempts] == ["report"]


# -- the decorator


@awaited
async def test_async_function_runs_with_its_inputs_and_its_result_is_stored(beat, clock):
    @beat.schedule(every("1h"), inputs={"limit": 3})
    async def report(run, limit, kind="all"):
        return {"of": run.schedule_id, "limit": limit, "kind": kind}

    async with beat:
        await passes(beat, clock)
        (row,) = await beat.runs("report")
        assert (row.status, row.inputs) == ("SUCCESS", {"limit": 3})
        assert row.result == {"of": "report", "limit": 3, "kind": "all"}


@awaited
async def test_plain_function_runs_with_its_inputs_and_its_result_is_stored(beat, clock):
    @beat.schedule(every("1h"), inputs={"limit": 3})
    def report(limit):
        return limit * 2

    async with beat:
        await passes(beat, clock)
        assert await runs(beat, "schedule_id status result") == [("report", "SUCCESS", 6)]
    assert report(4) == 8  # it is still itself


@awaited
async def test_function_can_have_several_schedules_under_other_names(beat, clock):
    def report(kind):
        return kind

    beat.schedule(every("1h"), name="hourly", inputs={"kind": "short"})(report)
    beat.schedule(every("2h"), name="two-hourly", inputs={"kind": "long"})(report)
    async with beat:
        await passes(beat, clock, "2h")
        assert await runs(beat, "schedule_id result") == [("hourly", "short"), ("two-hourly", "long")]  # fmt: skip


@awaited
async def test_policies_of_a_decorator_are_part_of_the_definition(beat):
    @beat.schedule(
        cron("0 9 * * MON-FRI", tz="Europe/Berlin"),
        overlap="queue",
        retry=["30s", "2m"],
        timeout="5m",
        grace="10m",
        catchup="none",
    )
    async def standup(): ...

    async with beat:
        row = await the_schedule(beat, "standup")
        assert (row.source, row.revision, row.next_run_at) == ("python", 1, NOON + 20 * HOUR)
        definition = json.loads(row.definition)
        assert definition["run"] == {"python": "standup"}
        policy = {name: definition[name] for name in ("overlap", "retry", "timeout", "catchup")}
        assert policy == {"overlap": "queue", "retry": ["30s", "2m"], "timeout": "5m", "catchup": "none"}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"inputs": {"limut": 3}},
            r"inputs\.limut: the function has no such parameter \(known: limit, kind\)",
        ),
        ({}, r"inputs\.limit: the function requires it"),
        ({"inputs": {"limit": 3}, "overlap": "quue"}, "overlap: .*did you mean 'queue'"),
        ({"inputs": {"limit": 3}, "retries": 3}, "retries: .*did you mean 'retry'"),
        ({"inputs": {"limit": 3}, "timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"inputs": {"limit": 3}, "name": "a b"}, "'a b'"),
        ({"inputs": {"limit": 3}, "name": ""}, None),
        ({"inputs": {"limit": object()}}, "values that JSON cannot represent"),
    ],
)
def test_invalid_schedule_is_refused_by_the_decorator(beat, given, problem):
    def report(run, limit, kind="all"): ...

    if problem is None:
        assert beat.schedule(every("1h"), **given)(report) is report
        return
    with pytest.raises(InvalidSchedule, match=problem):
        beat.schedule(every("1h"), **given)(report)


@awaited
async def test_decorated_function_can_follow_the_start_and_its_own_success(beat, clock):
    beat.schedule(startup("30s") | after("success", "30m"), name="report")(lambda: None)
    async with beat:
        for length in ("1m", "31m", "31m"):
            await passes(beat, clock, length)
        assert await runs(beat, "status") == ["SUCCESS"] * 3


def test_two_functions_of_one_name_are_refused(beat):
    beat.schedule(every("1h"), name="report")(lambda: 1)
    with pytest.raises(
        InvalidSchedule, match=r"two schedules are called 'report' \(rename one with name=\.\.\."
    ):
        beat.schedule(every("1h"), name="report")(lambda: 2)


@pytest.mark.parametrize("name", ["nightly.report", "nightly-report",
    "nightly/report",
    "2nd-report",
])  # fmt: skip
def test_name_of_a_decorated_function_may_be_any_schedule_id(beat, name):
    beat.schedule(every("1h"), name=name)(lambda: None)


@awaited
async def test_function_decorated_after_the_start_runs_or_is_refused(beat):
    async with beat:
        try:
            beat.schedule(every("1h"), name="report")(lambda: None)
        except Exception:  # noqa: BLE001 - any word is better than none
            return
        assert [row.schedule_id for row in await beat.schedules()] == ["report"]


@awaited
async def test_registered_function_runs_for_schedules_defined_elsewhere(beat, clock):
    beat.register("build", lambda limit: {"rows": limit})
    async with beat:
        await beat.define(a_schedule("report", run={"python": "build", "inputs": {"limit": 7}}))
        await passes(beat, clock)
        (run,) = await beat.runs()
    assert (run.status, run.result) == ("SUCCESS", {"rows": 7})


@awaited
async def test_invalid_registration_is_refused(beat):
    beat.register("build", print)
    with pytest.raises(InvalidSchedule, match="another function is registered as 'build'"):
        beat.register("build", len)
    with pytest.raises(InvalidSchedule, match="'print' is not callable"):
        beat.register("report", "print")
    with pytest.raises(InvalidSchedule, match="'re:build' is not a name"):
        beat.register("re:build", print)
    async with beat:
        with pytest.raises(InvalidSchedule, match="registered while the scheduler is running"):
            beat.register("late", print)


@awaited
async def test_service_wakes_the_engine_only_where_there_is_work(beat, launcher):
    async with beat:
        await beat.service.define([a_schedule("report", at="2026-01-01T12:00:00Z")])
        await until(lambda: len(launcher.attempts) == 1)
        await calm(beat)
        await beat.service.start("report")
        await until(lambda: len(launcher.attempts) == 2)
        service, woken = beat.service, engine_of(beat).planner._wake
        for stop, go_on in (
            (partial(service.pause, "report"), partial(service.resume, "report")),
            (partial(service.set_gate, is_open=False), partial(service.set_gate, is_open=True)),
        ):
            await stop()
            await calm(beat)
            assert not woken.is_set()
            await go_on()
            assert woken.is_set()


@awaited
async def test_explicit_database_overrides_the_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Settings(concurrency=3)
    async with Onbeat(f"sqlite:///{tmp_path}/mine.db", settings=settings):
        assert (tmp_path / "mine.db").exists()
        assert not (tmp_path / "onbeat.db").exists()


@awaited
async def test_onbeat_can_be_entered_again(file, clock):
    beat = a_beat(clock, file)
    beat.schedule(every("1h"), name="report")(lambda: "done")
    for _ in range(2):
        async with beat:
            await passes(beat, clock)
    async with a_beat(clock, file) as reader:
        assert await runs(reader, "status result") == [("SUCCESS", "done")] * 2


def test_call_before_entering_is_refused(beat):
    with pytest.raises(AssertionError, match="enter it first"):
        asyncio.run(beat.schedules())


# -- what becomes of a run


def a_loop():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        (None, None),
        (0, 0),
        ("naïve ☃", "naïve ☃"),
        ([1, {"a": None}], [1, {"a": None}]),
        (2**70, 2**70),
        ((1, 2), [1, 2]),
        (object(), "<a object, not serializable as JSON>"),
        (a_loop(), "<a list, not serializable as JSON>"),
        ("x" * 70_000, "<70002 characters of JSON, not stored>"),
        ("\ud800", "<a str, not serializable as JSON>"),
    ],
    ids=lambda value: type(value).__name__,
)
@awaited
async def test_result_is_stored_as_far_as_json_can_represent_it(beat, clock, result, kept):
    beat.schedule(every("1h"), name="report")(lambda: result)
    async with beat:
        await passes(beat, clock)
        assert await runs(beat, "status result") == [("SUCCESS", kept)]


@awaited
async def test_nan_in_a_result_is_stored_as_null(beat, clock):
    beat.schedule(every("1h"), name="report")(lambda: [math.nan, 1])
    async with beat:
        await passes(beat, clock)
        assert await runs(beat, "status result") == [("SUCCESS", [None, 1])]


@awaited
async def test_exception_is_stored_and_logged_with_its_traceback(beat, clock, caplog):
    @beat.schedule(every("1h"))
    def report():
        raise ValueError("no data")

    async with beat:
        await passes(beat, clock)
        (row,) = await beat.runs()
        assert (row.status, row.reason, row.error) == ("FAILED", "error", "ValueError: no data")
        assert row.log_tail.startswith("Traceback")
        assert 'raise ValueError("no data")' in row.log_tail
        assert [r.event for r in caplog.records if r.levelname == "ERROR"] == ["run.failed"]
        schedule = await the_schedule(beat, "report")
        assert schedule.last_failure_at == clock.now()


@awaited
async def test_failure_is_retried_after_each_delay_and_then_final(beat, clock):
    tried = []

    @beat.schedule(every("1h"), retry=["30s", "2m"])
    def report(run):
        tried.append((clock.now() // 1000 - NOON - HOUR, run.attempt, run.key))
        raise ValueError("no data")

    async with beat:
        await passes(beat, clock)
        (first,) = await runs(beat, "status reason attempt")
        assert first == ("ENQUEUED", "error", 1)
        for length in ("29s", "1s", "119s", "1s", "10m"):
            await passes(beat, clock, length)
        assert await runs(beat, "status reason attempt") == [("FAILED", "error", 3)]
    assert [(second, attempt) for second, attempt, _ in tried] == [(0, 1), (30, 2), (150, 3)]
    assert len({key for _, _, key in tried}) == 1


@awaited
async def test_successful_retry_ends_the_run_as_success(beat, clock):
    @beat.schedule(every("1h"), retry=["30s"])
    async def report(run):
        if run.attempt == 1:
            raise ValueError("no data")
        return "done"

    async with beat:
        await passes(beat, clock)
        await passes(beat, clock, "30s")
        found = await runs(beat, "status reason error attempt result")
        assert found == [("SUCCESS", None, None, 2, "done")]
        assert (await the_schedule(beat, "report")).consecutive_failures == 0


@awaited
async def test_function_that_cannot_be_imported_is_not_retried(beat, clock):
    async with beat:
        target = {"python": "no_such_module:build"}
        await beat.define(a_schedule("report", run=target, retry=["1s"]))
        await passes(beat, clock)
        found = await runs(beat, "status reason attempt error")
        error = "no_such_module:build: No module named 'no_such_module'"
        assert found == [("FAILED", "launch_failed", 1, error)]


@awaited
async def test_tick_is_skipped_while_the_last_run_is_in_flight(beat, clock):
    go_on = asyncio.Event()
    beat.schedule(every("1h"), name="report")(go_on.wait)
    async with beat:
        await calm(beat)
        clock.advance("1h")
        await until(lambda: beat.activity.running)
        await calm(beat)
        clock.advance("1h")
        await until(lambda: beat.activity.is_waiting and beat.activity.next_due > clock.now())
        (first, second) = await runs(beat, "run_id status reason blocked_by")
        assert first[1] == "STARTED"
        assert second[1:] == ("SKIPPED", "overlap", first[0])
        go_on.set()
        await beat.settle()
        assert await runs(beat, "status") == ["SUCCESS", "SKIPPED"]


@awaited
async def test_run_in_flight_completes_by_its_revision_after_an_edit(beat, clock):
    go_on = asyncio.Event()

    async def report(kind):
        await go_on.wait()
        return kind

    beat.schedule(every("1h"), name="report", inputs={"kind": "old"})(report)
    async with beat:
        await calm(beat)
        clock.advance("1h")
        await until(lambda: beat.activity.running)
        target = {"python": "report", "inputs": {"kind": "new"}}
        (changed,) = await beat.define(a_schedule("report", run=target, every="1h"))
        assert (changed.change, changed.revision) == ("changed", 2)
        go_on.set()
        await beat.settle()
        await passes(beat, clock)
        found = await runs(beat, "status result revision")
        assert found == [("SUCCESS", "old", 1), ("SUCCESS", "new", 2)]


@awaited
async def test_run_is_recorded_as_started_before_it_is_launched(beat, clock):
    seen = []

    @beat.schedule(every("1h"))
    async def report(run):
        seen.append(await runs(beat, "run_id status attempt"))
        assert run.run_id == seen[0][0][0]

    async with beat:
        await passes(beat, clock)
        assert seen == [[(1, "STARTED", 1)]]
        assert await runs(beat, "status") == ["SUCCESS"]


# -- what a program can ask for


@awaited
async def test_defining_the_same_again_changes_nothing(beat):
    async with beat:
        assert [u.change for u in await beat.define(a_schedule("a"), a_schedule("b"))] == ["created"] * 2  # fmt: skip
        before = await beat.schedules()
        assert [u.change for u in await beat.define(a_schedule("a"), a_schedule("b"))] == ["unchanged"] * 2  # fmt: skip
        assert await beat.schedules() == before


@awaited
async def test_invalid_target_is_refused_and_nothing_is_defined(beat):
    wrong = a_schedule("wrong", run={"python": "a b"})
    async with beat:
        with pytest.raises(
            InvalidSchedule, match=r"wrong\.run\.python: 'a b' is not a function name"
        ):
            await beat.define(a_schedule("right"), wrong)
        assert await beat.schedules() == []


@awaited
async def test_paused_schedule_starts_nothing_and_resumes_from_now(beat, clock, launcher):
    async with beat:
        await beat.define(a_schedule("report", every="1h"))
        assert await beat.pause("report", note="until the data is there")
        assert not await beat.pause("report")
        row = await the_schedule(beat, "report")
        assert (row.paused, row.pause_note, row.next_run_at) == (True, "until the data is there", None)  # fmt: skip
        await passes(beat, clock, "150m")
        assert launcher.attempts == []
        assert await beat.resume("report")
        assert not await beat.resume("report")
        await passes(beat, clock, "29m")
        assert launcher.attempts == []
        await passes(beat, clock, "1m")
        assert [attempt.run_at for attempt in launcher.attempts] == [NOON + 3 * HOUR]
        found = await runs(beat, "status reason tick_count")
        assert found == [("SKIPPED", "paused", 2), ("SUCCESS", None, 1)]


@awaited
async def test_resume_with_catchup_runs_the_latest_missed_tick(beat, clock, launcher):
    async with beat:
        await beat.define(a_schedule("report", every="1h"))
        await beat.pause("report")
        await passes(beat, clock, "150m")
        await beat.resume("report", catchup=True)
        await beat.settle()
        (attempt,) = launcher.attempts
        assert (attempt.run_at, attempt.tick_count) == (NOON + 2 * HOUR, 2)
        assert attempt.triggered_by == "catchup"


@awaited
async def test_manual_run_starts_beside_a_run_in_flight_of_a_paused_schedule(beat, clock):
    go_on = asyncio.Event()

    @beat.schedule(every("1h"), inputs={"kind": "all"})
    async def report(kind):
        await go_on.wait()
        return kind

    async with beat:
        await calm(beat)
        clock.advance("1h")
        await until(lambda: beat.activity.running == 1)
        await beat.pause("report")
        row = await beat.start("report", kind="one")
        assert (row.status, row.triggered_by, row.inputs) == ("ENQUEUED", "manual", {"kind": "one"})
        await until(lambda: beat.activity.running == 2)
        go_on.set()
        await beat.settle()
        found = await runs(beat, "triggered_by status result")
        assert found == [("timer", "SUCCESS", "all"), ("manual", "SUCCESS", "one")]


@awaited
async def test_same_request_id_returns_the_same_run(beat, launcher):
    async with beat:
        await beat.define(a_schedule("report"))
        first = await beat.start("report", request_id="order-7")
        await beat.settle()
        again = await beat.start("report", request_id="order-7")
        other = await beat.start("report", request_id="order-8")
        await beat.settle()
    assert again.run_id == first.run_id != other.run_id
    assert (first.status, again.status) == ("ENQUEUED", "SUCCESS")
    assert [attempt.request_id for attempt in launcher.attempts] == ["order-7", "order-8"]


@awaited
async def test_manual_run_does_not_wait_for_another_schedule(beat, clock):
    go_on = asyncio.Event()
    beat.schedule(every("1h"), name="long")(go_on.wait)
    beat.schedule(every("5h"), name="quick")(lambda: "done")
    async with beat:
        await calm(beat)
        clock.advance("1h")  # the planner finds this tick and the start in one look
        await beat.start("quick")

        async def is_done():
            return await runs(beat, "status", "quick") == ["SUCCESS"]

        await until(is_done)
        go_on.set()


@awaited
async def test_run_in_flight_of_a_deleted_schedule_finishes(beat, clock):
    go_on = asyncio.Event()
    beat.schedule(every("1h"), name="report")(go_on.wait)
    async with beat:
        await calm(beat)
        clock.advance("1h")
        await until(lambda: beat.activity.running)
        await beat.delete("report")
        assert await beat.schedules() == []
        go_on.set()
        await beat.settle()
        await passes(beat, clock, "5h")
        assert await runs(beat, "status") == ["SUCCESS"]


@pytest.mark.parametrize("verb", ["pause", "resume", "delete", "start", "runs"])
@awaited
async def test_unknown_schedule_is_refused_with_a_suggestion(beat, verb):
    async with beat:
        await beat.define(a_schedule("report"))
        with pytest.raises(NoSuchSchedule, match=r"'rport' \(did you mean 'report'\?\)"):
            await getattr(beat, verb)("rport")


# -- a second one on the same file


@awaited
async def test_second_process_joins_as_a_client_and_logs_it_once(file, clock, caplog):
    async with a_beat(clock, file) as node:
        caplog.clear()
        async with a_beat(clock, file) as client:
            assert (node.is_node, client.is_node) == (True, False)
        (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
        assert record.getMessage().startswith(
            "another process is the node of this database; this one is a client until that process ends: "
        )
        assert "is in use by" in record.getMessage()


@awaited
async def test_a_client_takes_over_when_the_node_ends(file, clock, launcher, monkeypatch):
    monkeypatch.setattr("onbeat.app.runtime.TAKE_OVER_EVERY", 0.01)
    node = a_beat(clock, file)
    await node.__aenter__()
    async with a_beat(clock, file, launcher=launcher) as client:
        stopped = asyncio.Event()
        waiting = asyncio.create_task(client.until(stopped))
        await client.define(a_schedule("report"))
        await asyncio.sleep(0.05)
        assert not client.is_node
        await node.close()
        await until(lambda: client.is_node)
        clock.advance("1h")
        await client.settle()
        assert [attempt.schedule_id for attempt in launcher.attempts] == ["report"]
        assert not waiting.done()
        engine_of(client).failed.set_exception(StoreUnusable("damaged"))
        with pytest.raises(StoreUnusable):
            await waiting


@pytest.mark.parametrize("given", ["5s", print, None])
def test_schedule_refuses_what_is_not_a_trigger(beat, given):
    with pytest.raises(InvalidSchedule, match=r"^trigger: .* is not a trigger \(@beat.schedule"):
        beat.schedule(given)


@awaited
async def test_target_that_the_node_does_not_offer_is_logged_once(clock, caplog):
    async with a_beat(clock) as beat:
        await beat.define(a_schedule("report", run={"python": "nowhere"}))
        for _ in range(3):
            clock.advance("1h")
            await beat.settle()
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert told == ["this node cannot launch python:nowhere: its runs wait for a node that can"]


def test_program_without_logging_writes_events_to_stderr(tmp_path):
    program = (
        "from onbeat import Onbeat, at\n"
        "import os, signal\n"
        "beat = Onbeat('sqlite://')\n"
        "@beat.schedule(at('2099-01-01T00:00:00Z'))\n"
        "async def report(): ...\n"
        "import threading\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "beat.run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert '"event": "schedule.created"' in done.stderr


@awaited
async def test_client_can_define_start_pause_and_read(file, clock, launcher):
    async with (
        a_beat(clock, file, launcher=launcher) as node,
        a_beat(clock, file, launcher=RecordingLauncher()) as client,
    ):
        await engine_has_looked(node)
        await client.define(a_schedule("report"), a_schedule("clean"))
        await client.pause("clean")
        began = time.monotonic()
        run = await client.start("report")
        await until(lambda: launcher.attempts)
        assert time.monotonic() - began < 1  # the node notices what others write
        await node.settle()
        assert [row.status for row in await client.runs("report")] == ["SUCCESS"]
        assert launcher.attempts[0].run_id == run.run_id
        assert [row.paused for row in await client.schedules()] == [True, False]


@awaited
async def test_node_notices_every_start_by_a_client(file, clock, launcher):
    async with a_beat(clock, file, launcher=launcher) as node:
        await node.define(a_schedule("report"))
        await calm(node)
        async with a_beat(clock, file, launcher=launcher) as client:
            await client.start("report")
            await until(lambda: launcher.attempts)
            await engine_has_looked(node)
            assert len(launcher.attempts) == 1


@awaited
async def test_workers_with_the_same_decorated_function_run_each_tick_once(file, clock):
    ran = []

    def a_worker(name):
        beat = a_beat(clock, file)
        beat.schedule(every("1h"), name="report")(lambda: ran.append(name))
        return beat

    async with a_worker("first") as first, a_worker("second") as second, a_worker("third"):
        assert [row.revision for row in await second.schedules()] == [1]
        await passes(first, clock)
        assert ran == ["first"]


@awaited
async def test_lock_queries_do_not_prevent_a_node_from_starting(file, clock):
    settings, enough = Settings(database=file), threading.Event()

    def ask():  # as `onbeat status` does
        while not enough.is_set():
            lock_holder(settings)

    async with a_beat(clock, file):
        asking = threading.Thread(target=ask)
        asking.start()
    found = []
    for _ in range(25):
        async with a_beat(clock, file) as beat:
            found.append(beat.is_node)
    enough.set()
    asking.join()
    assert found == [True] * 25


@awaited
async def test_next_process_becomes_the_node_once_the_last_has_closed(file, clock, launcher):
    async with a_beat(clock, file, launcher=launcher) as first:
        await first.define(a_schedule("report"))
    async with a_beat(clock, file, launcher=launcher) as second:
        assert second.is_node
        await passes(second, clock)
        assert len(launcher.attempts) == 1


# -- a restart


@awaited
async def test_restart_continues_with_revision_iteration_and_next_tick(file, clock):
    def a_program():
        beat = a_beat(clock, file)
        beat.schedule(every("1h"), name="report")(lambda run: run.iteration)
        return beat

    async with a_program() as beat:
        await passes(beat, clock)
        await passes(beat, clock)
    clock.advance("30m")
    async with a_program() as beat:
        row = await the_schedule(beat, "report")
        assert (row.revision, row.iteration, row.next_run_at) == (1, 2, NOON + 3 * HOUR)
        await passes(beat, clock, "29m")
        assert len(await beat.runs()) == 2
        await passes(beat, clock, "1m")
        assert await runs(beat, "result tick_count") == [(1, 1), (2, 1), (3, 1)]


@awaited
async def test_missed_ticks_run_once_at_the_next_start(file, clock, launcher):
    async with a_beat(clock, file, launcher=launcher) as beat:
        await beat.define(a_schedule("report", every="1h"))
    clock.advance("10h30m")
    async with a_beat(clock, file, launcher=launcher) as beat:
        await beat.settle()
        (attempt,) = launcher.attempts
        assert (attempt.triggered_by, attempt.tick_count) == ("catchup", 10)
        assert (attempt.first_run_at, attempt.run_at) == (NOON + HOUR, NOON + 10 * HOUR)
        assert (await the_schedule(beat, "report")).next_run_at == NOON + 11 * HOUR


@awaited
async def test_tick_that_ran_does_not_run_again_after_a_restart(file, clock, launcher):
    for _ in range(3):
        async with a_beat(clock, file, launcher=launcher) as beat:
            await beat.define(a_schedule("report", every="1h"))
            await beat.settle()
            if not launcher.attempts:
                await passes(beat, clock)
    assert len(launcher.attempts) == 1


@awaited
async def test_edited_decorator_updates_its_schedule_at_the_start(file, clock):
    for length, change in (("1h", 1), ("2h", 2), ("2h", 2)):
        beat = a_beat(clock, file)
        beat.schedule(every(length), name="report")(lambda: None)
        async with beat:
            assert (await the_schedule(beat, "report")).revision == change


@awaited
async def test_retry_waits_for_its_delay_across_a_restart(file, clock):
    async with a_beat(clock, file, launcher=RecordingLauncher(Failed("no"))) as beat:
        await beat.define(a_schedule("report", retry=["10m"]))
        await passes(beat, clock)
    clock.advance("5m")
    launcher = RecordingLauncher()
    async with a_beat(clock, file, launcher=launcher) as beat:
        await beat.settle()
        assert launcher.attempts == []
        await passes(beat, clock, "5m")
        assert [a.run_at for a in launcher.attempts] == [NOON + HOUR]
        (row,) = await beat.runs()
        assert row.attempt - row.deferrals == 2  # what was handed back does not count


# -- how many at once


@pytest.mark.parametrize("concurrency", [1, 3], ids=str)
@pytest.mark.parametrize("kind", ["async", "plain"])
@awaited
async def test_concurrency_is_limited_and_every_run_starts(clock, concurrency, kind):
    beat, going, most, lock = a_beat(clock, concurrency=concurrency), 0, 0, threading.Lock()

    def count(change):
        nonlocal going, most
        with lock:
            going += change
            most = max(most, going)

    async def waiting():
        count(+1)
        await asyncio.sleep(0.002)
        count(-1)

    def working():
        count(+1)
        time.sleep(0.002)
        count(-1)

    for i in range(20):
        function = waiting if kind == "async" else working
        beat.schedule(every("1h"), name=f"report-{i}")(function)
    async with beat:
        await passes(beat, clock)
        await beat.start("report-3")
        await beat.settle()
        found = Counter(await runs(beat, "schedule_id"))
        assert set(await runs(beat, "status")) == {"SUCCESS"}
    assert found == {f"report-{i}": 1 for i in range(20)} | {"report-3": 2}
    assert most == concurrency


# -- the end


async def begun(beat, clock):
    """Let a tick begin to run."""
    await calm(beat)
    clock.advance("1h")
    await until(lambda: beat.activity.running)


@awaited
async def test_close_waits_for_running_functions(file, clock):
    beat = a_beat(clock, file)

    @beat.schedule(every("1h"))
    async def report():
        await asyncio.sleep(0.05)
        return "done"

    async with beat:
        await begun(beat, clock)
    async with a_beat(clock, file) as later:
        assert await runs(later, "status result") == [("SUCCESS", "done")]


@awaited
async def test_run_is_canceled_after_the_stop_grace(file, clock):
    beat, ended = a_beat(clock, file, stop_grace=50), []

    @beat.schedule(every("1h"), retry=["1s"])
    async def report():
        try:
            await forever()
        finally:
            ended.append(True)

    async with beat:
        await begun(beat, clock)
    assert ended == [True]
    async with a_beat(clock, file) as later:
        await passes(later, clock, "1m")
        found = await runs(later, "status reason error")
        assert found == [("CANCELED", "canceled", "ended because the scheduler was stopped")]


@awaited
async def test_run_claimed_but_not_launched_is_handed_back_at_a_stop(file, clock, launcher):
    async with a_beat(clock, file, launcher=launcher) as beat:
        await beat.define(a_schedule("report"))
        store, claim = store_of(beat), store_of(beat).claim
        lost = []

        async def claim_and_lose(node, *, limit):
            lost.extend(await claim(node, limit=limit))
            return []

        store.claim = claim_and_lose
        await beat.start("report")
        await until(lambda: lost)
    async with a_beat(clock, file, launcher=launcher) as later:
        await later.settle()
        found = await runs(later, "status attempt")
        assert found == [("SUCCESS", 1)]
        assert "run.handed_back" in [event.name for event in await events(later)]
    assert len(launcher.attempts) == 1


@pytest.mark.parametrize("call", ["plan_due", "claim", "announce"])
@awaited
async def test_stop_during_a_store_call_loses_no_run(file, clock, launcher, call):
    async with a_beat(clock, file, launcher=launcher) as beat:
        await beat.define(a_schedule("report"))
        await calm(beat)
        store, reached = store_of(beat), asyncio.Event()
        real = getattr(store, call)

        async def slow(*args, **kwargs):
            found = await real(*args, **kwargs)
            if found and getattr(found, "ticks", True):
                reached.set()
                await asyncio.sleep(0.05)
            return found

        setattr(store, call, slow)
        if call == "plan_due":
            clock.advance("1h")
        else:
            await beat.start("report")
        await until(reached.is_set)
    async with a_beat(clock, file, launcher=launcher) as later:
        await later.settle()
        assert await runs(later, "status reason attempt") == [("SUCCESS", None, 1)]
    assert len(launcher.attempts) == 1


@awaited
async def test_stopping_node_starts_no_further_run(file, clock, launcher):
    beat, go_on = a_beat(clock, file, launcher=launcher), asyncio.Event()
    beat.schedule(every("1h"), name="long")(go_on.wait)
    async with beat:
        await begun(beat, clock)
        await beat.define(a_schedule("report", every="1m"))
        stopping = asyncio.create_task(beat.close())
        await until(lambda: not beat.activity.begins_runs)
        clock.advance("1m")
        beat.wake()
        assert not stopping.done()
        assert launcher.attempts == []
        go_on.set()
        await stopping
    assert launcher.attempts == []
    async with a_beat(clock, file, launcher=launcher) as later:
        await later.settle()
    assert len(launcher.attempts) == 1


@awaited
async def test_database_in_memory_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with a_beat() as beat:
        await beat.define(a_schedule("report", run={"command": ["echo", "hello"]}))
        await beat.start("report")
        await until(lambda: any(each.is_file() for each in tmp_path.rglob("*")))
    assert not list(tmp_path.iterdir())


@awaited
async def test_failed_entry_releases_the_database(file, clock):
    beat = a_beat(clock, file)
    beat.schedule(every("1h"), name="report")(lambda: None)
    beat._functions.check = lambda target: (_ for _ in ()).throw(InvalidSchedule("x", "no"))
    with pytest.raises(InvalidSchedule):
        async with beat:
            pass
    async with a_beat(clock, file) as other:
        assert other.is_node


# -- a store that fails for a while


def failing(store, call, times, *, late=False):
    """Have a call fail so often: before it does anything or, if `late`, after it has."""
    real, left = getattr(store, call), [times]

    async def flaky(*args, **kwargs):
        if left[0]:
            left[0] -= 1
            if late:
                await real(*args, **kwargs)
            raise StoreFailed("the disk is full: nothing was changed")
        return await real(*args, **kwargs)

    setattr(store, call, flaky)
    return lambda: not left[0]


@pytest.mark.parametrize(
    "call",
    ["plan_due", "claim", "announce", "finish", "next_due", "heartbeat", "changed_elsewhere"],
)
@awaited
async def test_temporary_store_failure_loses_and_doubles_no_run(clock, launcher, monkeypatch, call):
    monkeypatch.setattr("onbeat.engine.store_retry.FIRST_BACKOFF", 0.01)
    monkeypatch.setattr("onbeat.engine.lease.HEARTBEATS", 100)
    names = [f"report-{i}" for i in range(10)]
    async with a_beat(clock, launcher=launcher, concurrency=4) as beat:
        await beat.define(*(a_schedule(name) for name in names))
        await calm(beat)
        failed = failing(store_of(beat), call, 3)
        clock.advance("1h")
        await until(lambda: len(launcher.attempts) >= 10)
        await beat.start("report-3")
        await until(lambda: len(launcher.attempts) >= 11 and failed())
        await until(lambda: beat.activity.is_waiting and not beat.activity.running)
        found = await runs(beat, "schedule_id status attempt")
    ran = Counter(attempt.schedule_id for attempt in launcher.attempts)
    assert ran == Counter(names) + Counter({"report-3": 1})
    assert Counter(found) == {(name, "SUCCESS", 1): ran[name] for name in names}


@awaited
async def test_unconfirmed_outcome_is_recorded_once(clock, launcher, monkeypatch, caplog):
    monkeypatch.setattr("onbeat.engine.store_retry.FIRST_BACKOFF", 0.01)
    async with a_beat(clock, launcher=launcher) as beat:
        await beat.define(a_schedule("report"))
        await calm(beat)
        failed = failing(store_of(beat), "finish", 1, late=True)
        await passes(beat, clock)
        assert failed()
        assert await runs(beat, "status") == ["SUCCESS"]
        told = [event.name for event in await events(beat)]
    assert told.count("run.succeeded") == len(launcher.attempts) == 1


@awaited
async def test_failing_store_is_logged(clock, launcher, monkeypatch, caplog):
    monkeypatch.setattr("onbeat.engine.store_retry.FIRST_BACKOFF", 0.01)
    async with a_beat(clock, launcher=launcher) as beat:
        await beat.define(a_schedule("report"))
        await calm(beat)
        failing(store_of(beat), "plan_due", 2)
        clock.advance("1h")
        await until(lambda: launcher.attempts)
    told = [r.getMessage() for r in caplog.records if "planning failed" in r.getMessage()]
    assert len(told) == 2
    assert "the disk is full" in told[0]


# -- nothing is launched too late


@pytest.mark.parametrize("call", ["announce", "plan_due"])
@pytest.mark.parametrize(("late", "launched"), [(3_333, 1), (3_334, 2)])
@awaited
async def test_run_is_handed_back_two_thirds_of_the_lease_after_its_claim(
    clock, launcher, call, late, launched
):
    """The lease is 5 s. A late run is handed back, and launched when claimed again."""
    async with a_beat(clock, launcher=launcher, lease=5_000) as beat:
        await beat.define(a_schedule("report"))
        await calm(beat)
        store, announced = store_of(beat), []
        real = getattr(store, call)

        async def slow(*args, **kwargs):
            found = await real(*args, **kwargs)
            if call == "announce" or found.attempts:
                announced.append(found)
                assert len(launcher.attempts) == 0
                if len(announced) == 1:
                    clock.advance(late)
            return found

        setattr(store, call, slow)
        if call == "announce":
            await beat.start("report")
        else:
            clock.advance("1h")
        await until(lambda: launcher.attempts)
        await beat.settle()
        assert await runs(beat, "status attempt fence") == [("SUCCESS", launched, 2 * launched)]
        told = [event.name for event in await events(beat)]
        assert told.count("run.started") == launched
        assert told.count("run.handed_back") == launched - 1
    assert len(launcher.attempts) == 1


@awaited
async def test_run_delayed_by_a_blocked_event_loop_is_handed_back(clock):
    class Holding(RecordingLauncher):
        async def launch(self, attempt):
            if not self.attempts:
                clock.advance(3_334)  # nothing else runs meanwhile
            return await super().launch(attempt)

    launcher = Holding()
    async with a_beat(clock, launcher=launcher, lease=5_000) as beat:
        await beat.define(a_schedule("a"), a_schedule("b"))
        await calm(beat)
        clock.advance("1h")
        await until(lambda: len(launcher.attempts) == 2)
        await beat.settle()
        assert await runs(beat, "status attempt fence") == [("SUCCESS", 1, 2), ("SUCCESS", 2, 4)]
        told = [event.name for event in await events(beat)]
    assert told.count("run.handed_back") == 1


# -- one that is wrong hurts no other


@asynccontextmanager
async def at_once(beat):
    """Enter it, and leave it even if it is stuck."""
    await beat.__aenter__()
    failed = engine_of(beat).failed
    try:
        yield
    finally:
        if failed.done():
            failed.exception()  # it has been seen
        async with asyncio.timeout(0.5):
            await beat.close()


def raises(error):
    def report():
        raise error

    return report


@pytest.mark.parametrize(
    "function",
    [
        raises(ValueError("no data")),
        raises(RecursionError("too deep")),
        raises(MemoryError()),
        object,
        lambda: {1: {2, 3}},
        raises(ValueError("ol\udce9")),  # as a file name that is not in UTF-8 has it
    ],
    ids=["error", "recursion", "memory", "object", "set", "surrogate"],
)
@awaited
async def test_failing_function_affects_no_other_schedule(clock, function):
    beat = a_beat(clock, stop_grace=50)
    beat.schedule(every("1h"), name="poison")(function)
    beat.schedule(every("1h"), name="report")(lambda: "done")
    async with at_once(beat):
        for _ in range(2):
            async with asyncio.timeout(0.5):
                await passes(beat, clock)
        assert await runs(beat, "status result", "report") == [("SUCCESS", "done")] * 2
        assert all(row.finished_at for row in await beat.runs("poison"))


@awaited
async def test_exception_of_a_launcher_fails_only_its_run(clock):
    class Broken(RecordingLauncher):
        async def launch(self, attempt):
            await super().launch(attempt)
            raise RuntimeError("boom")

    beat = a_beat(clock, launcher=Broken())
    beat.schedule(every("1h"), name="report")(lambda: "done")
    async with beat:
        await beat.define(a_schedule("broken"))
        await passes(beat, clock)
        found = await runs(beat, "schedule_id status reason error")
        assert found == [
            ("broken", "FAILED", "launch_failed", "RuntimeError: boom"),
            ("report", "SUCCESS", None, None),
        ]


@awaited
async def test_unreadable_definition_parks_only_its_schedule(file, tmp_path, clock, launcher):
    async with a_beat(clock, file, launcher=launcher) as beat:
        await beat.define(a_schedule("poison"), a_schedule("report"))
    with closing(apsw.Connection(str(tmp_path / "onbeat.db"))) as database:
        database.execute("UPDATE schedules SET definition = 'garbage' WHERE schedule_id = 'poison'")
    async with a_beat(clock, file, launcher=launcher) as beat:
        await passes(beat, clock)
        assert [attempt.schedule_id for attempt in launcher.attempts] == ["report"]
        parked = [event for event in await events(beat) if event.name == "schedule.parked"]
        assert [event.schedule_id for event in parked] == ["poison"]
        await beat.define(a_schedule("poison"))  # it can be repaired
        await passes(beat, clock)
        assert Counter(a.schedule_id for a in launcher.attempts)["poison"] == 1


@awaited
async def test_crash_of_the_planner_is_reported_and_logged(beat, caplog):
    async with beat:
        await beat.define(a_schedule("report"))
        await calm(beat)

        async def broken(*_, **__):
            raise RuntimeError("a defect of ours")

        store_of(beat).plan_due = broken
        beat.wake()
        await asyncio.wait([engine_of(beat).failed])
        assert engine_of(beat).failed.exception() is not None
        assert "a defect of ours" in caplog.text


# -- the loop


@awaited
async def test_activity_states_what_the_engine_is_doing(file, clock):
    go_on = asyncio.Event()
    node = a_beat(clock, file)
    node.schedule(every("1h"), name="report")(go_on.wait)
    async with node as beat, a_beat(clock, file) as client:
        await calm(beat)
        before = beat.activity
        assert (before.running, before.next_due, before.begins_runs) == (
            0,
            (NOON + HOUR) * 1000,
            True,
        )
        clock.advance("1h")
        beat.wake()
        assert not beat.activity.is_waiting
        await until(lambda: beat.activity.running)
        await engine_has_looked(beat)
        assert beat.activity.looks >= before.looks + 2
        go_on.set()
        await beat.settle()
        assert beat.activity.running == 0
        with pytest.raises(AssertionError, match="another process is the node"):
            client.activity  # noqa: B018 - reading it is refused


@awaited
async def test_planner_sleeps_until_a_tick_is_due(beat, clock, launcher):
    async with beat:
        await beat.define(a_schedule("report", every="1h"))
        await beat.settle()
        looked = []
        store, real = store_of(beat), store_of(beat).plan_due

        def plan_due(*args, **kwargs):
            looked.append(clock.now())
            return real(*args, **kwargs)

        store.plan_due = plan_due
        await engine_has_looked(beat)
        assert looked == []
        clock.advance("1h")
        await until(lambda: launcher.attempts)


@awaited
async def test_runs_on_the_real_clock_are_never_early_and_hardly_late(file):
    beat, ran = a_beat(None, file), []
    beat.schedule(every("1s"), name="beat")(lambda run: ran.append((run.due_at, time.time())))
    async with beat:
        await until(lambda: ran)
    for due_at, at in ran:
        assert 0 <= at - due_at / 1000 < 2


PROGRAM = """
import sys
from onbeat import Onbeat, every

beat = Onbeat("sqlite://")

@beat.schedule(every("1s"))
def tick(run):
    print("tick", run.iteration, flush=True)

beat.run()
print("stopped", flush=True)
"""


def test_program_runs_until_a_signal_and_stops_cleanly(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout.readline() == "tick 1\n"
            program.send_signal(signal.SIGINT)
            assert program.stdout.read().splitlines()[-1] == "stopped"
            assert program.wait(SOON) == 0
        finally:
            program.kill()


@awaited
async def test_until_raises_the_error_that_stopped_the_engine(beat):
    async with beat:
        await beat.define(a_schedule("report"))
        await calm(beat)

        async def broken(*_, **__):
            raise RuntimeError("a defect of ours")

        store_of(beat).plan_due = broken
        beat.wake()
        with pytest.raises(RuntimeError, match="a defect of ours"):
            await beat.until(asyncio.Event())


@awaited
async def test_outcome_of_a_launcher_is_stored_with_its_result(clock):
    async with a_beat(clock, launcher=RecordingLauncher(Succeeded({"rows": 3}))) as beat:
        await beat.define(a_schedule("report"))
        await passes(beat, clock)
        assert await runs(beat, "status result") == [("SUCCESS", {"rows": 3})]


@awaited
async def test_inputs_changed_by_a_function_do_not_affect_other_runs(clock):
    beat, given = a_beat(clock), []

    @beat.schedule(every("1h"), inputs={"items": [], "cache": {}})
    async def collect(run, items, cache):
        given.append((list(items), dict(cache), dict(run.inputs["cache"])))
        items.append(object())
        cache["session"] = object()
        run.inputs["cache"]["session"] = object()

    async with beat:
        for _ in range(3):
            clock.advance("1h")
            await beat.settle()
        assert await runs(beat, "status inputs") == [("SUCCESS", {"items": [], "cache": {}})] * 3
    assert given == [([], {}, {})] * 3


@awaited
async def test_attempt_stored_in_its_own_inputs_is_garbage_collected(clock):
    beat, seen = a_beat(clock), []

    class Mark:
        """Something that can be asked whether it is still there."""

    @beat.schedule(every("1h"))
    async def report(run):
        mark = Mark()
        seen.append(weakref.ref(mark))
        run.inputs.update(itself=run, mark=mark)

    async with beat:
        clock.advance("1h")
        await beat.settle()
    gc.collect()
    assert [mark() for mark in seen] == [None]

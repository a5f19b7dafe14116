"""Answers and failures of a panel, and the outcomes of launches."""

import asyncio
import time
from functools import partial

import pytest

from onbeat.app.parts import check_target
from onbeat.core.schedule import read_schedule
from onbeat.engine.recorder import OutcomeRecorder
from onbeat.errors import InvalidSchedule, InvalidSettings
from onbeat.systems.flows import follow
from onbeat.systems.flows.panel import Panel
from onbeat.systems.flows.system import LAUNCHES
from onbeat.systems.flows.target import check_url
from onbeat.testing import a_schedule
from tests.systems.flows.conftest import URL
from tests.systems.flows.panel import Flow

FLOW = {"flow": {"url": URL}}


def played(world):
    """Return the run of the first tick, with its log."""

    async def story(its):
        await its.let_pass("1h")
        (run,) = await its.beat.runs()
        return run

    return world.play(story)


def test_a_launch_answered_200_with_errors_is_a_failed_launch(world):
    world.hourly(inputs={"limit": 5}, retry_count=3)
    world.panel.flows[URL] = Flow("a report", ["query", "limit"], needs=["query"])
    run = played(world)
    assert (run.status, run.reason, run.attempt) == ("FAILED", "launch_failed", 1)
    assert run.error == "the flow refused its inputs: query: Please give me a query."
    assert world.panel.launched == []


def test_a_launch_answered_200_without_a_result_is_a_failed_launch(world):
    world.hourly()
    world.panel.flows[URL] = Flow("a report", [])
    world.panel.fails = {f"POST {URL}": 200}
    run = played(world)
    assert (run.status, run.reason) == ("FAILED", "launch_failed")
    assert "the panel returned no id" in run.error


def test_flow_unknown_to_the_panel_is_a_failed_launch(world):
    world.expose("reports", ("/-/nowhere/-/", 'schedule: {cron: "0 * * * *", retry_count: 2}'))
    run = played(world)
    assert (run.status, run.reason, run.attempt) == ("FAILED", "launch_failed", 1)
    assert "the panel has no flow /-/nowhere/-/" in run.error


def test_inputs_missing_from_the_form_are_logged_and_the_flow_is_launched(world, logged):
    world.hourly(inputs={"query": "x", "sleep": 5})
    run = played(world)
    assert run.status == "SUCCESS"
    assert f"warning: the form of {URL} has no field 'sleep'" in run.log_tail
    assert world.panel.launched[0]["inputs"] == {"query": "x"}
    assert any(level == "WARNING" and "'sleep'" in line for level, line in logged())


def test_launcher_logs_in_again_when_its_key_has_expired(world):
    world.hourly()

    async def story(its):
        await its.let_pass("1h")
        its.panel.forget_keys()
        await its.let_pass("1h")
        return await its.statuses()

    assert world.play(story) == [("SUCCESS", None)] * 2
    assert world.panel.count("POST", "/api/login") == 2 + 1  # one is the check


def test_wrong_password_fails_the_launch_and_is_never_shown(world, logged):
    world.hourly()
    world.panel.users["timer"] = "another"
    run = played(world)
    assert (run.status, run.reason) == ("FAILED", "launch_failed")
    assert (
        "refuses the login of 'timer': HTTP 401: Unauthorized: Invalid name or password"
        in run.error
    )
    assert "sesame" not in f"{run}{logged()}"


def test_missing_secret_fails_the_launch(world):
    world.hourly()
    (world.folder / "secrets" / "panel").unlink()
    run = played(world)
    assert (run.status, run.reason) == ("FAILED", "launch_failed")
    assert "this node has no secret panel" in run.error


@pytest.mark.req("K54")
@pytest.mark.parametrize("broken", ["login", "form", "launch", "nobody"])
def test_unavailable_panel_is_retried_at_the_next_interval(world, logged, broken):
    world.hourly()
    paths = {"login": "/api/login", "form": f"GET {URL}", "launch": f"POST {URL}"}

    async def story(its):
        if broken == "nobody":
            await its.panel.stop()
        else:
            its.panel.fails = {paths[broken]: 503 if broken == "launch" else 502}
        await its.let_pass("1h")
        (waiting,) = await its.beat.runs()
        await its.let_pass("30s")
        (still,) = await its.beat.runs()
        if broken == "nobody":
            await its.panel.start(int(its.url.rpartition(":")[2]))
        its.panel.fails = {}
        await its.let_pass("30s")
        return waiting, still, await its.beat.runs()

    waiting, still, (run,) = world.play(story)
    assert (waiting.status, waiting.reason) == ("ENQUEUED", "busy")
    assert still.attempt == 1
    assert (run.status, run.deferrals) == ("SUCCESS", 1)
    assert len(world.panel.launched) == 1
    assert any(level == "ERROR" and "the panel is unavailable" in line for level, line in logged())


def test_launch_without_an_answer_is_in_doubt_and_not_repeated(world):
    world.hourly(retry_count=3, retry_delay=0)
    world.panel.hangs.set()
    run = played(world)
    assert len(world.panel.launched) == 1
    assert (run.status, run.reason, run.attempt) == ("FAILED", "lost", 1)
    assert "it may be running, and is not launched again" in run.error


@pytest.mark.parametrize("status", [500, 502, 504])
def test_launch_answered_with_a_server_error_is_in_doubt_and_not_repeated(world, status):
    """It answered a moment before, so it may have received the launch."""
    world.hourly(retry_count=3, retry_delay=0)
    world.panel.fails = {f"POST {URL}": status}

    async def story(its):
        await its.let_pass("1h", "10m")
        (run,) = await its.beat.runs()
        return run

    run = world.play(story)
    assert (run.status, run.reason, run.attempt) == ("FAILED", "lost", 1)
    assert "it may be running, and is not launched again" in run.error
    assert world.panel.count("POST", URL) == 1


def test_new_launch_unknown_to_the_panel_is_polled_again(world):
    world.hourly()
    world.panel.unknown = 3
    assert played(world).status == "SUCCESS"


def test_failing_panel_is_polled_until_it_answers(world, logged):
    world.hourly()
    world.panel.status = "running"

    async def story(its):
        await its.tick("1h")
        await its.until(lambda: its.panel.launched)
        its.panel.fails = {"/outputs": 502}
        looks = len(its.panel.asked)
        await its.until(lambda: len(its.panel.asked) > looks + 2)
        its.panel.fails, its.panel.status = {}, None
        its.panel.forget_keys()
        await its.beat.settle()
        (run,) = await its.beat.runs()
        return run

    run = world.play(story)
    assert run.status == "SUCCESS"
    away = [line for level, line in logged() if level == "ERROR" and "does not answer" in line]
    assert len(away) == 1


def test_unreadable_answer_of_the_panel_is_logged_once_and_polled_again(world, logged):
    world.hourly()
    world.panel.text = "<html>maintenance"

    async def story(its):
        await its.tick("1h")
        await its.until(lambda: len(its.panel.looks) > 2)
        its.panel.text = None
        await its.beat.settle()
        (run,) = await its.beat.runs()
        return run

    run = world.play(story)
    assert run.status == "SUCCESS"
    lines = [line for level, line in logged() if level == "ERROR" and "cannot be read" in line]
    assert len(lines) == 1
    assert "'<html>maintenance'" in lines[0]


def test_run_whose_status_stays_unreadable_is_lost(world, monkeypatch):
    monkeypatch.setattr(follow, "UNREADABLE_FOR", 0.2)
    world.hourly(retry_count=3, retry_delay=0)
    world.panel.flows[URL] = Flow("x" * 1_100_000, [])
    run = played(world)
    assert (run.status, run.reason, run.attempt) == ("FAILED", "lost", 1)
    assert (
        "could not be read for 0.2 s: HTTP 200 OK, and no JSON object of up to 1 MiB" in run.error
    )
    assert run.error.endswith("it may be running, and is not launched again")
    assert len(world.panel.launched) == 1
    assert len(world.panel.looks) > 1


def test_panel_that_does_not_answer_in_between_is_polled_on(world, monkeypatch):
    """Its proxy is restarted: the time of unreadable answers begins again."""
    monkeypatch.setattr(follow, "UNREADABLE_FOR", 0.2)
    world.hourly()

    async def story(its):
        its.panel.text = "<html>"
        await its.tick("1h")
        for _ in range(3):
            await its.until(partial(len, its.panel.looks))
            its.panel.looks.clear()
            its.panel.fails = {"/outputs": 502}
            await its.until(partial(len, its.panel.looks))
            its.panel.looks.clear()
            its.panel.fails = {}
        its.panel.text = None
        await its.beat.settle()
        return await its.statuses()

    assert world.play(story) == [("SUCCESS", None)]


@pytest.mark.parametrize("status", [403, 408, 429])
def test_panel_that_refuses_the_status_does_not_end_the_run(world, status):
    world.hourly()
    world.panel.status = "running"

    async def story(its):
        await its.tick("1h")
        await its.until(lambda: its.panel.looks)
        its.panel.fails = {"/outputs": status}
        looks = len(its.panel.asked)
        await its.until(lambda: len(its.panel.asked) > looks + 2)
        its.panel.fails, its.panel.status = {}, None
        await its.beat.settle()
        return await its.statuses()

    assert world.play(story) == [("SUCCESS", None)]


def test_execution_deleted_on_the_panel_fails_the_run(world):
    world.hourly()
    world.panel.status = "running"

    async def story(its):
        await its.tick("1h")
        await its.until(lambda: its.panel.launched)
        await its.until(lambda: len(its.panel.looks) > 1)
        its.panel.executions.clear()
        await its.beat.settle()
        (run,) = await its.beat.runs()
        return run

    run = world.play(story)
    assert (run.status, run.reason) == ("FAILED", "error")
    assert "the panel does not know" in run.error


def test_canceled_run_cancels_the_flow_on_the_panel(world):
    world.hourly()
    world.panel.status = "running"

    async def story(its):
        await its.tick("1h")
        row = await its.until_named()
        await its.beat.cancel(row.run_id)
        await its.beat.settle()
        return await its.service.run(row.run_id)

    run = world.play(story)
    assert run.status == "CANCELED"
    assert world.panel.executions == {}


def test_flow_beyond_its_timeout_is_canceled_on_the_panel(world):
    world.panel.status = "running"

    async def story(its):
        target = {"flow": {"url": URL}}
        await its.beat.define(a_schedule("slow", every="1h", run=target, timeout="1s"))
        await its.let_pass("1h")
        (run,) = await its.beat.runs("slow")
        return run

    run = world.play(story)
    assert (run.status, run.reason) == ("FAILED", "timeout")
    assert world.panel.executions == {}


def test_killed_scheduler_reattaches_running_flows(world):
    world.hourly()
    world.panel.status = "running"

    async def story(its):
        await its.tick("1h")
        row = await its.until_named()
        await its.crash(down="1m")
        its.panel.status = None
        await its.beat.settle()
        return await its.service.run(row.run_id), await its.service.list_documents(LAUNCHES)

    run, left = world.play(story)
    assert (run.status, run.attempt) == ("SUCCESS", 2)
    assert run.external_id == world.panel.launched[0]["fid"]
    assert len(world.panel.launched) == 1
    assert left == []
    assert "reattached" in run.log_tail


def test_stopped_scheduler_leaves_the_flow_running_and_reattaches_it(world):
    world.hourly()
    world.panel.status = "running"

    async def first(its):
        await its.tick("1h")
        await its.until_named()

    async def second(its):
        its.panel.status = None
        await its.beat.settle()
        (run,) = await its.beat.runs()
        return run

    run = world.play(first, second)
    assert run.status == "SUCCESS"
    assert len(world.panel.launched) == 1
    assert len(world.panel.executions) == 1


def test_launch_begun_by_a_dead_node_is_lost_and_not_repeated(world):
    world.hourly()
    world.panel.status = "running"

    async def story(its):
        await its.tick("1h")
        row = await its.until_named()
        begun = {"url": its.url, "begun_at": its.clock.now(), "fid": ""}  # the answer was not read
        await its.service.keep(LAUNCHES, str(row.run_id), begun)
        await its.crash(down="1m")
        await its.beat.settle()
        return await its.service.run(row.run_id)

    run = world.play(story)
    assert (run.status, run.reason) == ("FAILED", "lost")
    assert "a node stopped responding while launching it" in run.error
    assert len(world.panel.launched) == 1


def test_scheduler_that_dies_before_an_outcome_is_recorded_does_not_launch_again(
    world, monkeypatch
):
    world.hourly()
    read, held = [], asyncio.Event()

    async def not_recorded(self, batch):
        read.append(batch)
        await held.wait()

    async def story(its):
        with monkeypatch.context() as patched:
            patched.setattr(OutcomeRecorder, "_finish", not_recorded)
            await its.tick("1h")
            await its.until(lambda: read)
            await its.crash()
        await its.beat.settle()
        (run,) = await its.beat.runs()
        return run

    run = world.play(story)
    assert (run.status, run.attempt) == ("SUCCESS", 2)
    assert len(world.panel.launched) == 1


def test_tick_is_skipped_while_a_detached_flow_is_not_reattached_yet(world):
    world.hourly()
    world.panel.status = "running"

    async def story(its):
        await its.tick("1h")
        await its.until_named()
        await its.crash(down="70m")
        its.panel.status = None
        await its.beat.settle()
        return await its.statuses()

    assert world.play(story) == [("SUCCESS", None), ("SKIPPED", "overlap")]
    assert len(world.panel.launched) == 1


def test_without_a_panel_flows_wait_and_a_warning_is_logged(world, logged):
    world.hourly()
    world.settings = {"flows_panel": ""}

    async def story(its):
        await its.let_pass("1h")
        return await its.statuses()

    assert world.play(story) == [("ENQUEUED", None)]
    assert ("WARNING", "flows_panel is not set: flows wait for a node that has a panel") in logged()


def test_password_that_is_not_a_reference_is_refused():
    with pytest.raises(InvalidSettings, match=r"flows_password: it is not a reference to a secret"):
        Panel(None, "http://127.0.0.1:3370", user="timer", password="sesame")


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({"flow": {}}, "run.flow.url: it is missing"),
        ({"flow": "/-/x/-/"}, "run.flow: '/-/x/-/' is not a mapping"),
        ({"flow": {"url": "https://elsewhere.example/x"}}, "run.flow.url: 'https://elsewhere"),
        ({"flow": {"url": "//elsewhere.example/x"}}, "run.flow.url: '//elsewhere.example/x' is no"),
        ({"flow": {"url": "/a/../b"}}, "run.flow.url: '/a/../b' is not the path of a flow"),
        ({"flow": {"url": "/-/a?b=c"}}, "run.flow.url: '/-/a?b=c' is not the path of a flow"),
        (
            {"flow": {"url": "/role"}},
            "run.flow.url: '/role' is not the path of a flow (such as /-/",
        ),
        ({"flow": {"url": "/-/"}}, "run.flow.url: '/-/' is not the path"),
        ({"flow": {"url": "/-/../role"}}, "run.flow.url: '/-/../role' is not the path"),
        ({"flow": {"url": "/-/./a"}}, "run.flow.url: '/-/./a' is not the path"),
        ({"flow": {"url": "/-/%2e%2e/role"}}, "run.flow.url: '/-/%2e%2e/role' is not the path"),
        ({"flow": {"url": "/-/a%2frole"}}, "run.flow.url: '/-/a%2frole' is not the path"),
        ({"flow": {"url": "/-//a"}}, "run.flow.url: '/-//a' is not the path"),
        ({"flow": {"url": "/-/a//"}}, "run.flow.url: '/-/a//' is not the path"),
        ({"flow": {"url": "/-/a\n"}}, "run.flow.url: '/-/a\\n' is not the path"),
        ({"flow": {"url": "/-/a", "key": ""}}, "run.flow.key: '' is not a key"),
        ({"flow": {"url": "/-/a", "panel": "x"}}, "run.flow.panel: no field has this name"),
        ({"flow": {"url": "/{{ date }}"}}, "run.flow: a flow cannot contain templates"),
        (FLOW | {"inputs": {"a": "secret://b"}}, "run.inputs.a: a secret would be visible here"),
    ],
)
def test_invalid_flow_target_is_refused_when_defined(run, told):
    def define():
        check_target(read_schedule("a", {"every": "1h", "run": run}))

    with pytest.raises(InvalidSchedule) as refused:
        define()
    assert str(refused.value).startswith(told)


def test_long_path_is_refused_quickly():
    for wrong in ("/-/" + "a" * 990 + " ", "/-" + "/a" * 498 + " ", "/-/" + "a/" * 490 + "/"):
        begun = time.perf_counter()
        with pytest.raises(InvalidSchedule):
            check_url(wrong)
        assert time.perf_counter() - begun < 0.05
    assert check_url("/-/" + "a" * 990)


def test_inputs_of_a_flow_may_have_templates(world):
    async def story(its):
        run = FLOW | {"inputs": {"query": "report of {{ date }}"}}
        await its.beat.define(a_schedule("daily", every="1h", run=run))
        await its.let_pass("1h")
        return await its.statuses()

    assert world.play(story) == [("SUCCESS", None)]
    assert world.panel.launched[0]["inputs"] == {"query": "report of 2026-01-01"}


def test_extended_status_is_requested_only_at_the_beginning(world):
    """With `extended`, the panel would wait for a deleted output at every poll."""
    world.hourly()
    world.panel.flows[URL] = Flow("a report", [], takes=0.5)

    async def story(its):
        await its.let_pass("1h")
        return await its.statuses()

    assert world.play(story) == [("SUCCESS", None)]
    assert world.panel.looks[0] == "extended=true"
    assert set(world.panel.looks[1:]) == {""}

"""Stores and panels that fail at the wrong moment: a flow is launched once, and canceled."""

import asyncio
import time
from dataclasses import replace

import pytest

from onbeat.core.runs.run import Busy, Canceled, Failed, Lost, Succeeded
from onbeat.core.schedule import read_schedule
from onbeat.errors import StoreFailed
from onbeat.events import RunRetrying
from onbeat.ports.store import Attempt
from onbeat.systems.flows import cancellations, tracked_launch
from onbeat.systems.flows.cancellations import TO_END
from onbeat.systems.flows.launch_log import MADE
from onbeat.systems.flows.launcher import FlowLauncher
from onbeat.testing import a_schedule
from tests.inside import launcher_of, store_of
from tests.systems.flows.conftest import KEY, URL
from tests.systems.flows.panel import Flow
from tests.waiting import until

TARGET = read_schedule("a", {"every": "1h", "run": {"flow": {"url": URL}}}).target


def an_attempt(run_id, n=1, **fields):
    return Attempt(run_id, KEY, 0, 0, attempt=n, fence=n, target=TARGET, **fields)


class Failing:
    """A store whose given methods fail a given number of times."""

    def __init__(self, store, **fails):
        self._store, self.fails = store, fails

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name not in self.fails:
            return found

        async def failing(*given, **named):
            if self.fails[name]:
                self.fails[name] -= 1
                raise StoreFailed("the disk is full")
            return await found(*given, **named)

        return failing


class Answering:
    """A store whose given methods return given answers."""

    def __init__(self, store, **answers):
        self._store, self._answers = store, answers

    def __getattr__(self, name):
        if not self._answers.get(name):
            return getattr(self._store, name)

        async def answering(*_):
            return self._answers[name].pop(0)

        return answering


def launched(world, *attempts, book=None, before=None, **fails):
    """Return the outcomes of consecutive attempts with a failing store."""

    async def story(its):
        flows = launcher_of(its.beat, "flow")
        store = Failing(store_of(its.beat), **fails)
        launcher = FlowLauncher(flows._panel, store, interval=60_000)
        if book is not None:
            await its.service.keep(MADE, "7", book(its))
        if before is not None:
            await before(its, flows._panel)
        try:
            return [(await launcher.launch(each))[0] for each in attempts]
        finally:
            await launcher.close()

    return world.play(story)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(tracked_launch, "STORE_PATIENCE", 0.3)


def test_store_failure_before_a_launch_makes_the_run_wait(world):
    found = launched(world, an_attempt(7), an_attempt(7, 2), keep=1)
    assert isinstance(found[0], Busy)
    assert isinstance(found[1], Succeeded)
    assert len(world.panel.launched) == 1


def test_unreadable_store_makes_the_run_wait_or_be_reattached(world, impatient):
    assert isinstance(launched(world, an_attempt(7), kept=99)[0], Busy)
    assert launched(world, an_attempt(7, 2, may_run=True), kept=99) == [Lost()]
    assert launched(world, an_attempt(7, 2, is_cancel_requested=True), kept=99) == [Lost()]
    assert world.panel.launched == []


def test_brief_store_failure_is_retried(world):
    (found,) = launched(world, an_attempt(7), kept=2)
    assert isinstance(found, Succeeded)


def test_store_failure_after_a_launch_does_not_repeat_it(world):
    """The id is stored as soon as the store works."""
    world.panel.flows[URL] = Flow("a report", [], takes=0.5)
    (found,) = launched(world, an_attempt(7), report=2)
    assert isinstance(found, Succeeded)
    assert len(world.panel.launched) == 1


def test_scheduler_with_a_failing_store_launches_nothing_twice(world):
    world.hourly(retry_count=3, retry_delay=0)
    world.panel.flows[URL] = Flow("a report", [], takes=1.0)

    async def story(its):
        flows = launcher_of(its.beat, "flow")
        flows._store = Failing(flows._store, report=3, forget=3)
        await its.let_pass("1h", "10s")
        (run,) = await its.beat.runs()
        return run

    run = world.play(story)
    assert (run.status, run.attempt) == ("SUCCESS", 1)
    assert run.external_id == world.panel.launched[0]["fid"]
    assert len(world.panel.launched) == 1


# -- nodes that were frozen


@pytest.mark.parametrize("may_run", [False, True])
def test_frozen_node_does_not_launch_a_flow_that_another_node_has_finished(world, logged, may_run):
    """Its attempt finds no launch: the other node has deleted it with the outcome."""
    world.hourly()

    async def story(its):
        await its.let_pass("1h")
        (run,) = await its.beat.runs()
        await until_none_is_kept(its, MADE)
        stale = an_attempt(run.run_id, may_run=may_run)
        outcome, _ = await launcher_of(its.beat, "flow").launch(stale)
        return run, outcome, await its.service.list_documents(MADE)

    run, outcome, documents = world.play(story)
    assert (run.status, outcome, documents) == ("SUCCESS", Lost(), [])
    assert len(world.panel.launched) == 1
    line = f"run {run.run_id} was taken over by another node: nothing was launched"
    assert ("WARNING", f"flow {KEY}: {line}") in logged()


def test_node_that_is_frozen_while_it_logs_its_launch_launches_nothing(world):
    """The run is taken over between the first check and the entry in the launch log."""
    world.hourly()
    world.panel.status = "running"

    async def story(its):
        await its.tick("1h")
        row = await its.until_named()
        flows = launcher_of(its.beat, "flow")
        claims = [replace(row, fence=1), replace(row, fence=2)]
        store = Answering(store_of(its.beat), kept=[None], run=claims)
        frozen = FlowLauncher(flows._panel, store)
        outcome, _ = await frozen.launch(an_attempt(row.run_id, may_run=True))
        await frozen.close()
        its.panel.status = None
        await its.beat.settle()
        return outcome, await its.statuses()

    assert world.play(story) == (Lost(), [("SUCCESS", None)])
    assert len(world.panel.launched) == 1


# -- the launch log


def begun(attempt, fid="", url=None):
    return lambda its: {
        "url": url or its.url, "begun_at": its.clock.now(), "fid": fid, "attempt": attempt,
    }  # fmt: skip


@pytest.mark.parametrize("entered", [2, 3])
def test_launch_begun_by_this_or_a_later_attempt_is_not_repeated(world, entered):
    (found,) = launched(world, an_attempt(7, 2), book=begun(entered))
    assert (found.reason, found.retryable) == ("lost", False)
    assert world.panel.launched == []


def test_ended_launch_of_an_earlier_attempt_is_ignored(world):
    (found,) = launched(world, an_attempt(7, 2), book=begun(1))
    assert isinstance(found, Succeeded)
    assert len(world.panel.launched) == 1


def test_launch_on_another_panel_is_not_requested_from_this_one(world):
    there = "http://10.0.0.1:3370"
    (found,) = launched(world, an_attempt(7, 2, may_run=True), book=begun(1, fid="abc", url=there))
    assert (found.reason, found.retryable) == ("lost", False)
    assert found.error.startswith(
        f"the run was launched as abc on {there}, but flows_panel is http"
    )
    assert world.panel.asked_of_runs == []


# -- cancellations


def test_canceled_detached_run_is_reattached_and_canceled(world):
    async def launch(its, panel):
        its.panel.status = "running"
        answer = await panel.ask("POST", URL, body={})
        body = {"url": its.url, "begun_at": 0, "fid": answer.body["result"], "attempt": 1}
        await its.service.keep(MADE, "7", body)

    asked_to = Canceled("canceled as requested")
    to_end = an_attempt(7, 2, may_run=True, is_cancel_requested=True)
    assert launched(world, to_end, before=launch) == [asked_to]
    assert world.panel.executions == {}


def test_canceled_detached_run_without_a_launch_is_canceled(world):
    found = launched(world, an_attempt(7, 2, may_run=True, is_cancel_requested=True))
    assert found == [Canceled("canceled as requested")]
    assert world.panel.asked_of_runs == []


def test_canceled_launch_in_doubt_is_lost(world):
    (found,) = launched(
        world, an_attempt(7, 2, may_run=True, is_cancel_requested=True), book=begun(1)
    )
    assert isinstance(found, Failed)
    assert found.reason == "lost"


async def until_none_is_kept(its, kind=TO_END):
    while True:
        if not await its.service.list_documents(kind):
            return
        await asyncio.sleep(0.01)


def end_slowly(its, begun, may_end):
    """Have the panel end nothing before `may_end` is true."""
    delete = its.panel.end

    async def slow(request):
        begun.append(request)
        await until(may_end)
        return await delete(request)

    its.panel.end = slow


def test_node_that_stops_during_a_cancellation_finishes_it_first(world):
    world.hourly()
    world.panel.status = "running"
    begun = []

    async def first(its):
        end_slowly(its, begun, lambda: not its.beat.activity.begins_runs)
        await its.tick("1h")
        row = await its.until_named()
        await its.beat.cancel(row.run_id)
        await its.until(lambda: begun)

    async def second(its):
        return await its.statuses()

    assert world.play(first, second) == [("CANCELED", "canceled")]
    assert world.panel.executions == {}


@pytest.mark.parametrize("how", ["broken", "away"])
def test_failed_cancellation_is_retried_until_the_panel_confirms(world, logged, how):
    world.hourly()
    world.panel.status = "running"

    async def first(its):
        await its.tick("1h")
        row = await its.until_named()
        if how == "away":
            await its.panel.stop()
        else:
            its.panel.fails = {"DELETE /outputs": 500}
        await its.beat.cancel(row.run_id)
        await its.beat.settle()
        run = await its.service.run(row.run_id)
        assert (run.status, len(its.panel.executions)) == ("CANCELED", 1)
        assert len(await its.service.list_documents(TO_END)) == 1
        if how == "away":
            await its.panel.start(int(its.url.rpartition(":")[2]))
        its.panel.fails = {}
        await its.until(lambda: not its.panel.executions)
        await until_none_is_kept(its)

    world.play(first)
    fid = world.panel.launched[0]["fid"]
    lines = [line for _, line in logged()]
    assert any(
        f"flow {KEY}: launch {fid} could not be canceled on the panel, will be retried" in each
        for each in lines
    )
    assert f"flow {KEY}: launch {fid} was canceled on the panel" in lines
    assert any(f": launched as {fid}" in each for each in lines)


def test_next_scheduler_continues_failed_cancellations(world):
    world.hourly()
    world.panel.status = "running"

    async def first(its):
        its.panel.fails = {"DELETE /outputs": 500}
        await its.tick("1h")
        row = await its.until_named()
        await its.beat.cancel(row.run_id)
        await its.beat.settle()

    async def second(its):
        its.panel.fails = {}
        await its.until(lambda: not its.panel.executions)

    world.play(first, second)


def test_cancellation_is_given_up_after_a_day_and_logged(world, logged):
    async def story(its):
        its.panel.fails = {"DELETE /outputs": 500}
        since = its.clock.now()
        body = {"url": its.url, "fid": "abc", "key": KEY, "since": since}
        await its.service.keep(TO_END, "7.1", body)
        its.clock.advance("25h")
        await launcher_of(its.beat, "flow").recover()
        await until_none_is_kept(its)

    world.play(story)
    (line,) = [line for level, line in logged() if level == "ERROR"]
    assert line.startswith(
        f"flow {KEY}: launch abc on {world.url} could not be canceled for a day, and may be running"
    )


def test_failed_cancellation_after_a_timeout_is_retried(world):
    world.panel.status = "running"

    async def story(its):
        its.panel.fails = {"DELETE /outputs": 502}
        target = {"flow": {"url": URL}}
        await its.beat.define(a_schedule("slow", every="1h", run=target, timeout="1s"))
        await its.let_pass("1h")
        (run,) = await its.beat.runs("slow")
        its.panel.fails = {}
        await its.until(lambda: not its.panel.executions)
        return run

    run = world.play(story)
    assert (run.status, run.reason) == ("FAILED", "timeout")
    assert "the panel has not canceled it; the request is retried" in run.log_tail


def test_ended_attempt_is_not_left_to_another_node(world):
    world.panel.flows[URL] = Flow("a report", [], fails="no more quota")

    async def story(its):
        flows = launcher_of(its.beat, "flow")
        failed, _ = await flows.launch(an_attempt(7))
        after_failure = flows.leave([7])
        flows.on_events(0, [RunRetrying(KEY, 7, 0, 1, 0, "error", "no more quota")])
        its.panel.fails = {f"GET {URL}": 503}
        busy, _ = await flows.launch(an_attempt(7, 2))
        return failed, busy, after_failure, flows.leave([7])

    failed, busy, *left = world.play(story)
    assert isinstance(failed, Failed)
    assert isinstance(busy, Busy)
    assert left == [frozenset(), frozenset()]


def test_cancellation_does_not_wait_for_a_silent_panel(world, monkeypatch):
    monkeypatch.setattr(cancellations, "LAST_WORDS", 0.2)
    world.hourly()
    world.panel.status = "running"
    begun = []

    async def story(its):
        await its.tick("1h")
        row = await its.until_named()
        answers = asyncio.Event()
        end_slowly(its, begun, answers.is_set)
        since = time.monotonic()
        await its.beat.cancel(row.run_id)
        await its.beat.settle()
        took = time.monotonic() - since
        answers.set()
        await its.until(lambda: not its.panel.executions)
        return took, (await its.service.run(row.run_id)).status

    took, status = world.play(story)
    assert (took < 0.5, status) == (True, "CANCELED")

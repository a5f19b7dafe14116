"""Prompts whose runs are cancelled while they are being sent: their sessions are stopped."""

import asyncio

import pytest

from onbeat.core.runs.run import Canceled
from onbeat.systems.sessions import launcher as sessions
from onbeat.systems.sessions.launcher import REFUSED, STOPPED
from tests.launchers.bench import until_working
from tests.launchers.benches.sessions import SessionBench
from tests.waiting import until


@pytest.fixture
def bench(tmp_path):
    return SessionBench(tmp_path)


def canceled(bench, *, meanwhile=lambda bench: None, times=1, **fields):
    """Cancel a launch while the server has its prompt; return the outcome and the output."""

    async def story():
        async with bench:
            launcher, fields_of_work = await bench.new(), bench.works()
            bench.server.answers = False
            attempt = bench.attempt({"session": fields_of_work["session"] | fields})
            task = asyncio.create_task(launcher.launch(attempt))
            await until_working(bench, 1, task)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            meanwhile(bench)
            try:
                return await task
            finally:
                await until_working(bench, 0)
                bench.server.answers = True

    return asyncio.run(story())


def answer(bench):
    bench.server.answers = True


@pytest.mark.parametrize("persist", [True, False])
def test_session_is_stopped_when_its_server_answers_after_the_cancellation(bench, persist):
    outcome, tail = canceled(bench, meanwhile=answer, persist=persist)
    assert outcome == Canceled(f"canceled: {STOPPED}")
    assert "HTTP 200 OK" in tail
    assert "/cancel: ok" in tail


def test_session_that_would_report_its_outcome_is_stopped(bench):
    outcome, _ = canceled(bench, meanwhile=answer, feedback=True)
    assert outcome == Canceled(f"canceled: {STOPPED}")


def test_session_is_stopped_if_the_launch_is_cancelled_twice(bench):
    with pytest.raises(asyncio.CancelledError):
        canceled(bench, meanwhile=answer, times=2)


def test_session_is_stopped_if_its_server_does_not_answer_in_time(bench, monkeypatch):
    monkeypatch.setattr(sessions, "ANSWERS_WITHIN", 0.02)
    outcome, tail = canceled(bench)
    assert outcome == Canceled(f"canceled: {STOPPED}")
    assert "no answer before the cancellation: the prompt may have arrived" in tail


def test_session_that_refuses_the_prompt_is_not_stopped(bench):
    """The session is working on the prompt of another run."""

    async def story():
        async with bench:
            launcher, fields = await bench.new(), bench.works()
            fields = {"session": fields["session"] | {"persist": True}}
            first = asyncio.create_task(launcher.launch(bench.attempt(fields)))
            await until_working(bench, 1, first)
            is_asked, may_answer = False, False

            async def hold():
                nonlocal is_asked
                is_asked = True
                await until(lambda: may_answer)

            bench.server.before_message = hold
            again = bench.attempt(fields, run_id=2, schedule_id="contract/1")
            second = asyncio.create_task(launcher.launch(again))
            await until(lambda: is_asked)
            second.cancel()
            await asyncio.sleep(0)
            may_answer = True
            outcome, _ = await second
            assert outcome == Canceled(f"canceled: {REFUSED}")
            await until_working(bench, 1, first)
            bench.release()
            await first

    asyncio.run(story())

"""The life cycle of an orchestrator: idleness, timeouts, and describing agents."""

import asyncio
import re
import subprocess
import sys
import textwrap
import time
from datetime import datetime, timedelta
from datetime import time as clock_time

import pytest

from onbeat import InvalidSchedule
from onbeat.agents import Orchestrator
from onbeat.core.explain.why import Why
from tests.systems.agents.conftest import SOON, Alert, LogEntry, Report, instant
from tests.waiting import until

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


def played(story):
    return asyncio.run(asyncio.wait_for(story, SOON))


async def report(ctx):
    return Report(iteration=ctx.timer_iteration or 0)


# -- idle


def test_orchestrator_is_idle_when_the_last_run_of_the_last_timer_has_ended():
    async def story():
        its = Orchestrator("sqlite://")
        its.agent("daily").schedule(every=SECOND, max_repeats=2).publishes(Report).with_engines(report)  # fmt: skip

        async def warn(ctx):
            await asyncio.sleep(0.05)
            return Alert(text=str(ctx.artifacts[0].payload.iteration))

        its.agent("warner").consumes(Report).publishes(Alert).with_engines(warn)
        begun = time.monotonic()
        assert await its.run_until_idle()  # not entered: it starts by itself
        assert time.monotonic() - begun >= 1
        told = [alert.text for alert in await its.get_artifacts(Alert)]
        await its.close()
        return told

    assert played(story()) == ["0", "1"]


def test_orchestrator_without_timers_is_idle_when_all_runs_of_an_artifact_ended(world):
    async def chain(ctx):
        await asyncio.sleep(0.01)
        return Report()

    async def end(ctx):
        await asyncio.sleep(0.01)
        return Alert()

    world.agent("first", engine=chain).consumes(LogEntry)
    world.agent("second", engine=end, publishes=(Alert,)).consumes(Report)

    async def story(its):
        assert await its.its.run_until_idle()
        for n in range(5):
            await its.its.publish(LogEntry())
            assert await its.its.run_until_idle(timeout=10)
            assert len(await its.its.get_artifacts(Alert)) == n + 1

    world.play(story)


def test_timeout_pauses_the_timers_until_close_and_missed_ticks_are_caught_up(lasting):
    def describe():
        lasting.agent().schedule(every=HOUR)
        lasting.agent("other").schedule(every=HOUR)

    async def first(its):
        await its.its.pause("other", note="by hand")
        await its.passes("1s")
        assert not await its.its.run_until_idle(timeout=0.05)
        row = await its.its.beat.service.schedule("agents/daily")
        assert (row.paused, row.pause_note) == (
            True,
            "paused by run_until_idle until the next start",
        )
        assert (
            await its.its.run_until_idle(timeout=0.05) is False
        )  # it continues, and is stopped again
        await its.passes("2h")

    describe()
    lasting.play(first)
    assert lasting.fired() == ["12:00:01"]  # and no further fire after close
    lasting.reborn()
    describe()

    async def second(its):
        await its.passes("1h")
        row = await its.its.beat.service.schedule("agents/other")
        assert (row.paused, row.pause_note) == (True, "by hand")

    lasting.play(second)
    assert lasting.fired() == ["14:00:01", "15:00:01"]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_date_that_passes_while_down_fires_even_after_a_timeout(lasting, is_stopped):  # fmt: skip
    def describe():
        lasting.agent().schedule(at=instant("12:30:00"))

    async def first(its):
        if is_stopped:
            assert not await its.its.run_until_idle(timeout=0.05)

    async def second(its):
        await its.passes("1s")

    describe()
    lasting.play(first)
    lasting.clock.advance("31m")
    lasting.reborn()
    describe()
    lasting.play(second)
    assert lasting.fired() == ["12:30:00"]


def test_crash_with_paused_timers_loses_no_date(lasting):
    def describe(catchup):
        lasting.agent().schedule(at=instant("12:30:00")).policy(catchup=catchup)

    async def dies(its):
        assert not await its.its.run_until_idle(timeout=0.05)
        its.its._has_paused_timers = False  # as if it were killed: nothing resumes the timers

    async def detached(its):
        await its.passes("1s")

    describe("once")
    lasting.play(dies)
    lasting.clock.advance("31m")
    lasting.reborn()
    describe("once")
    lasting.play(detached)
    assert lasting.fired() == ["12:30:00"]


def test_timeout_of_one_process_pauses_another_only_until_close(lasting):
    lasting.agent().schedule(every=HOUR)

    async def story(its):
        script = Orchestrator(its.database, clock=its.clock)
        script.agent("daily").schedule(every=HOUR).publishes(Report).with_engines(report)
        await its.passes("1s")
        async with script:
            assert not await script.run_until_idle(timeout=0.05)
        await its.passes("1h")
        return await its.its.beat.service.schedule("agents/daily")

    assert not lasting.play(story).paused
    assert lasting.fired() == ["12:00:01", "13:00:01"]


def test_idle_orchestrator_returns_after_one_check(world):
    async def story(its):
        return await its.its.run_until_idle(timeout=0)

    assert world.play(story) is True


def test_agents_of_other_programs_do_not_affect_idleness(lasting, caplog):
    async def story(its):
        await its.passes("5m")

    lasting.agent("old").schedule(every=timedelta(minutes=1))
    lasting.play(story)
    lasting.reborn()
    lasting.agent("new").consumes(LogEntry)

    async def waits(its):
        its.clock.advance("5m")
        its.its.beat.wake()

        async def is_waiting():
            return "ENQUEUED" in [run.status for run in await its.its.beat.runs("agents/old")]

        await until(is_waiting)
        return await its.its.run_until_idle(timeout=5)

    assert lasting.play(waits) is True
    assert "schedule agents/old: this program does not have the agent" in caplog.text


def test_orchestrator_can_use_one_event_loop_after_another(tmp_path):
    its = Orchestrator(f"sqlite:///{tmp_path}/agents.db")

    async def story():
        await asyncio.gather(*(its.publish(LogEntry()) for _ in range(3)))
        found = len(await its.get_artifacts(LogEntry))
        await its.close()
        return found

    assert [played(story()), played(story())] == [3, 6]


def test_instant_without_a_zone_is_utc_on_any_machine(world, new_york):
    world.agent().schedule(at=clock_time(13))

    async def story(its):
        await its.passes("1h")
        return (await its.its.why("daily", datetime(2026, 1, 1, 13))).headline  # noqa: DTZ001

    assert world.play(story) == "SUCCESS"


def test_run_in_progress_at_a_timeout_continues(world):
    may_end = asyncio.Event()

    async def slow(ctx):
        await may_end.wait()
        return Report()

    world.agent("slow", engine=slow).consumes(LogEntry)

    async def story(its):
        await its.its.publish(LogEntry())
        assert not await its.its.run_until_idle(timeout=0.1)
        may_end.set()
        assert await its.its.run_until_idle()
        return len(await its.its.get_artifacts(Report))

    assert world.play(story) == 1


def test_waiting_retry_is_not_idle(world):
    async def broken(ctx):
        raise ConnectionError

    world.agent("broken", engine=broken).consumes(LogEntry).policy(retry=["1h"])

    async def story(its):
        await its.its.publish(LogEntry())
        await its.its.beat.settle()
        assert not await its.its.run_until_idle(timeout=0.05)
        await its.passes("1h")
        assert await its.its.run_until_idle(timeout=5)

    world.play(story)


# -- life cycle


def test_orchestrator_can_be_started_again(lasting):
    lasting.agent().schedule(every=timedelta(minutes=1))

    async def story(its):
        await its.passes("1s")

    lasting.play(story)
    lasting.clock.advance("59s")
    lasting.play(story)
    assert [ctx.timer_iteration for ctx in lasting.seen] == [0, 1]


def test_program_that_does_not_close_the_orchestrator_still_exits(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import asyncio
        from pydantic import BaseModel
        from onbeat.agents import Orchestrator

        class Note(BaseModel):
            text: str

        async def main():
            its = Orchestrator("sqlite:///agents.db")
            await its.publish(Note(text="hello"))
            await its.run_until_idle()
            print(await its.get_artifacts(Note))

        asyncio.run(main())
        """)
    )
    for times in (1, 2):
        done = subprocess.run(
            [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        assert done.stdout.count("Note(text='hello')") == times


def test_invalid_agent_is_refused_before_anything_starts():
    def refused(describe, said):
        its = Orchestrator("sqlite://")
        describe(its.agent("daily"))
        with pytest.raises(ValueError, match=said):
            played(its.start())

    refused(lambda agent: agent.consumes(LogEntry), "agent 'daily' has no engine")
    refused(
        lambda agent: agent.with_engines(report).publishes(Report),
        "agent 'daily' has no trigger",
    )


def test_invalid_description_is_refused_immediately():
    its = Orchestrator("sqlite://")
    agent = its.agent("daily")
    with pytest.raises(ValueError, match="two agents are called 'daily'"):
        its.agent("daily")
    with pytest.raises(InvalidSchedule, match="is not a valid id"):
        its.agent("two words")
    with pytest.raises(InvalidSchedule, match="is too long"):
        its.agent("x" * 94)
    with pytest.raises(ValueError, match="the name 'external' is reserved"):
        its.agent("external")
    with pytest.raises(TypeError, match=r"is not an async function \(async def engine"):
        agent.with_engines(lambda ctx: None)
    for places in (0, 10_001, True, "2"):
        with pytest.raises(ValueError, match="max_concurrency must be 1 to 10000"):
            agent.max_concurrency(places)
    with pytest.raises(
        InvalidSchedule, match=r"overlap: it cannot be set for agents \(max_concurrency"
    ):
        agent.policy(overlap="skip")
    with pytest.raises(InvalidSchedule, match="retrry"):
        agent.policy(retrry=["5s"])
    with pytest.raises(ValueError, match="where must be a function"):
        agent.consumes(LogEntry, where="ERROR")
    with pytest.raises(ValueError, match="where must be a plain function"):
        agent.consumes(LogEntry, where=report)
    with pytest.raises(ValueError, match="tags must be names"):
        agent.tags("a", "")


def test_agents_cannot_be_described_after_the_start(world):
    agent = world.agent("reader").consumes(LogEntry)

    async def story(its):
        with pytest.raises(RuntimeError, match="must be added before the orchestrator starts"):
            its.its.agent("late")
        with pytest.raises(RuntimeError, match="has started already"):
            agent.schedule(every=SECOND)

    world.play(story)


def test_history_and_why_report_runs_of_agents(world):
    world.agent().schedule(every=HOUR).description("what the page shows")

    async def story(its):
        await its.passes("1s")
        (run,) = await its.its.history("daily")
        told = await its.its.why("daily")
        assert (run.status, told.headline) == ("SUCCESS", "SUCCESS")
        assert isinstance(await its.its.why("daily", its.seen[0].fire_time), Why)
        assert (
            '"description":"what the page shows"'
            in (await its.its.beat.service.schedule("agents/daily")).definition
        )
        with pytest.raises(LookupError, match=r"no agent is called 'dayly' \(known: daily\)"):
            await its.its.history("dayly")

    world.play(story)


def test_why_reports_that_only_artifacts_run_an_agent(world):
    world.agent("reader").consumes(LogEntry)

    async def story(its):
        await its.passes("1s")
        return (await its.its.why("reader")).sentences

    assert world.play(story) == ["it has no ticks: its trigger is manual"]


def test_changed_concurrency_applies_from_the_next_start(lasting):
    for places in (2, 5):
        lasting.reborn()
        lasting.agent().schedule(every=HOUR).max_concurrency(places)

        async def story(its):
            return {row.name: row.places for row in await its.its.beat.service.groups()}

        assert lasting.play(story) == {"agents/daily": places}


def test_import_without_pydantic_names_the_package_to_install(tmp_path):
    (tmp_path / "pydantic.py").write_text("raise ModuleNotFoundError('no', name='pydantic')")
    done = subprocess.run(
        [sys.executable, "-c", "import onbeat.agents"], env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(r" install .*\[agents\]", done.stderr.splitlines()[-1])


def test_on_postgres_two_nodes_share_the_agents_and_the_blackboard(postgres_url):
    async def story():
        ran = []

        def program():
            its = Orchestrator(postgres_url)

            async def count(ctx):
                ran.append(ctx.artifacts[0].payload.text)
                return Report(count=len(ctx.get_artifacts(LogEntry)))

            its.agent("reader").consumes(LogEntry).publishes(Report).with_engines(count)
            return its

        async with program() as one, program() as two:
            for n in range(10):
                await (one, two)[n % 2].publish(LogEntry(text=str(n)))
            assert await one.run_until_idle(timeout=15)
            assert sorted(ran, key=int) == [str(n) for n in range(10)]
            for each in (one, two):
                assert len(await each.get_artifacts(LogEntry)) == 10
                assert len(await each.get_artifacts(Report)) == 10

    played(story())

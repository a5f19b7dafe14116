"""Artifacts: they trigger runs once each, through any failure; and outputs of agents."""

import asyncio
from datetime import timedelta

import pytest

from onbeat.agents import Orchestrator, TimerTick
from onbeat.systems.agents.blackboard import KIND
from tests.systems.agents.conftest import Alert, LogEntry, Report, instant

HOUR = timedelta(hours=1)


async def statuses(its, agent):
    return [run.status for run in await its.runs(agent)]


def test_each_consumed_artifact_runs_an_agent_once(world):
    world.agent("reader").consumes(LogEntry, where=lambda log: log.level == "ERROR")

    async def story(its):
        for level in ("ERROR", "INFO", "ERROR"):
            await its.its.publish(LogEntry(level=level, text=level))
            await its.passes("1s")
        assert await statuses(its, "reader") == ["SUCCESS", "SUCCESS"]

    world.play(story)
    assert [ctx.trigger_type for ctx in world.seen] == ["artifact", "artifact"]
    assert [[each.payload.level for each in ctx.artifacts] for ctx in world.seen] == [["ERROR"]] * 2
    assert {(ctx.timer_iteration, ctx.fire_time) for ctx in world.seen} == {(None, None)}


def test_consumes_of_a_scheduled_agent_filters_its_context_and_never_triggers_it(world):
    agent = world.agent().schedule(every=HOUR)
    agent.consumes(LogEntry, where=lambda log: log.level == "ERROR")

    async def story(its):
        await its.passes("1s")
        for level in ("ERROR", "ERROR", "INFO"):
            await its.its.publish(LogEntry(level=level))
        await its.passes("1s")
        assert len(world.seen) == 1  # the timer, immediately
        await its.passes("1h")
        return len(world.seen[1].get_artifacts(LogEntry))

    assert world.play(story) == 2


def test_returned_artifacts_are_published_and_trigger_agents(world):
    async def summarize(ctx):
        return Report(count=len(ctx.get_artifacts(LogEntry)))

    async def warn(ctx):
        return [Alert(text=f"{each.payload.count} logs") for each in ctx.artifacts]

    world.agent("summary", engine=summarize).schedule(every=HOUR).consumes(LogEntry)
    warner = world.agent("warner", engine=warn, publishes=(Alert,)).consumes(Report)
    warner.tags("urgent")

    async def story(its):
        log = await its.its.publish(LogEntry(), correlation_id="of-log")
        assert log.correlation_id == "of-log"
        await its.passes("1s")
        (report,) = await its.its.get_envelopes(Report)
        (alert,) = await its.its.get_envelopes(Alert, tags=["urgent"], from_agents=["warner"])
        assert (report.produced_by, alert.payload.text) == ("summary", "1 logs")
        assert alert.correlation_id == report.correlation_id
        assert report.correlation_id not in ("", "of-log")  # a timer starts a new correlation
        assert await its.its.get_artifacts(Alert, correlation_id="of-log") == []
        await its.passes("1h")
        reports = await its.its.get_envelopes(Report)
        assert len({each.correlation_id for each in reports}) == 2

    world.play(story)


def test_agent_is_not_triggered_by_its_artifacts(world):
    async def echo(ctx):
        world.seen.append(ctx)
        return LogEntry(text="echo")

    world.agent("echo", engine=echo, publishes=(LogEntry,)).consumes(LogEntry)

    async def story(its):
        await its.its.publish(LogEntry())
        await its.passes("1s")
        assert await its.its.run_until_idle(timeout=10)
        assert len(await its.its.get_artifacts(LogEntry)) == 2

    world.play(story)
    assert len(world.seen) == 1


def test_outputs_of_several_engines_are_published_in_order(world):
    async def first(ctx):
        ctx.state["told"] = "by the first"
        return [Report(count=1), Report(count=2)]

    async def none(ctx):
        return None

    class Third:
        async def __call__(self, ctx):
            return Alert(text=ctx.state["told"])

    agent = world.its.agent("daily").publishes(Report, Alert).with_engines(first, none, Third())
    agent.schedule(every=HOUR)

    async def story(its):
        await its.passes("1s")
        assert [report.count for report in await its.its.get_artifacts(Report)] == [1, 2]
        assert [alert.text for alert in await its.its.get_artifacts(Alert)] == ["by the first"]
        (run,) = await its.runs()
        assert len(run.result["artifacts"]) == 3

    world.play(story)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Alert(), "TypeError: agent 'daily' returned Alert, but publishes Report (.publishes(Alert) adds it)"),
        ([Report(), "text"], "TypeError: agent 'daily' returned 'text', but publishes Report (a model)"),
        ("text", "TypeError: agent 'daily' returned 'text' (a model, a list or None)"),
        ({"count": 1}, "TypeError: agent 'daily' returned {'count': 1} (a model, a list or None)"),
    ],
)  # fmt: skip
def test_undeclared_output_fails_the_run_and_nothing_is_published(world, given, said):
    async def wrong(ctx):
        return given

    world.agent(engine=wrong).schedule(every=HOUR)

    async def story(its):
        await its.passes("1s")
        (run,) = await its.runs()
        assert (run.status, run.error) == ("FAILED", said)
        assert await its.its.get_artifacts(Report) == []

    world.play(story)


def test_retry_publishes_nothing_twice(world):
    tried = []

    async def stumbling(ctx):
        tried.append(ctx.attempt)
        return [Report(count=ctx.attempt), Report(count=10 * ctx.attempt)]

    real = world.its._system._deliver

    async def breaking(artifact, names):
        await real(artifact, names)
        if len(tried) == 1:
            raise ConnectionError("after the first was published")

    world.its._system._deliver = breaking
    agent = world.agent(engine=stumbling).schedule(every=HOUR).policy(retry=["5s"])
    world.agent("reader").consumes(Report)
    assert agent.policy_of().overlap == "allow"

    async def story(its):
        await its.passes("1s", "5s")
        assert tried == [1, 2]
        assert [report.count for report in await its.its.get_artifacts(Report)] == [1, 20]
        assert await statuses(its, "reader") == ["SUCCESS", "SUCCESS"]

    world.play(story)


def test_crash_between_storing_an_artifact_and_its_runs_loses_and_doubles_none(lasting):  # fmt: skip
    def describe():
        for name in ("one", "two"):
            lasting.agent(name).consumes(LogEntry)

    describe()
    start = []

    async def dies(its):
        service = its.its._system._service
        start.append(service.start)

        async def start_one(schedule_id, **given):
            if schedule_id == "agents/two":
                raise ConnectionError("the process is gone")
            return await start[0](schedule_id, **given)

        service.start = start_one
        with pytest.raises(ConnectionError):
            await its.its.publish(LogEntry(text="kept"))
        await its.its.beat.settle()

    lasting.play(dies)
    assert [ctx.agent_name for ctx in lasting.seen] == ["one"]
    for life in (2, 3):  # and delivered artifacts are not delivered again
        lasting.reborn()
        describe()

        async def detached(its):
            await its.passes("1s")
            assert await statuses(its, "one") == ["SUCCESS"]
            assert await statuses(its, "two") == ["SUCCESS"]
            assert its.its._system.blackboard.pending() == {}
            return [ctx.agent_name for ctx in its.seen]

        told = lasting.play(detached)
        assert told == (["two"] if life == 2 else [])


def test_run_waiting_at_the_gate_keeps_its_artifact_after_a_restart(lasting):
    lasting.agent("reader").consumes(LogEntry)

    async def publishes(its):
        await its.its.beat.service.set_gate(is_open=False)
        await its.its.publish(LogEntry(text="later"))

    lasting.play(publishes)
    lasting.reborn()
    lasting.agent("reader").consumes(LogEntry)

    async def runs(its):
        await its.its.beat.service.set_gate(is_open=True)
        await its.passes("1s")

    lasting.play(runs)
    assert [ctx.artifacts[0].payload.text for ctx in lasting.seen] == ["later"]


def test_artifacts_survive_a_restart_as_they_were(lasting):
    async def publishes(its):
        lasting.clock.advance(250)
        return await its.its.publish(LogEntry(text="kept"), tags={"a", "b"}, correlation_id="c")

    before = lasting.play(publishes)
    lasting.reborn()

    async def reads(its):
        return await its.its.get_envelopes(LogEntry)

    assert lasting.play(reads) == [before]
    assert before.created_at == instant("12:00:00.250")
    assert (before.type, before.produced_by, before.tags) == ("LogEntry", "external", {"a", "b"})


def test_two_processes_see_what_the_other_published(lasting):
    async def story(its):
        other = Orchestrator(its.database, clock=its.clock)
        async with other:
            assert not other.beat.is_node
            await other.publish(LogEntry(text="of the other"))
            its.clock.advance(1)
            await its.its.publish(LogEntry(text="of this one"))
            seen = [await each.get_artifacts(LogEntry) for each in (its.its, other)]
        return [[log.text for log in logs] for logs in seen]

    assert lasting.play(story) == [["of the other", "of this one"]] * 2


def test_discarded_artifacts_are_deleted_for_all_processes(lasting):
    async def story(its):
        for text in ("old", "older", "new"):
            await its.its.publish(LogEntry(text=text))
            await its.its.publish(Report())
            its.clock.advance("1m")
        async with Orchestrator(its.database, clock=its.clock) as other:
            assert len(await other.get_artifacts(LogEntry)) == 3
            assert await its.its.discard(LogEntry, before=instant("12:02:00")) == 2
            assert await its.its.discard(LogEntry, before=instant("12:02:00")) == 0
            for each in (its.its, other):
                assert [log.text for log in await each.get_artifacts(LogEntry)] == ["new"]
                assert each.artifact_counts() == {"LogEntry": 1, "Report": 3}
        with pytest.raises(ValueError, match="before must not be later than now"):
            await its.its.discard(LogEntry, before=instant("13:00:00"))

    lasting.play(story)
    lasting.reborn()

    async def again(its):
        rows = await its.its.beat.service.list_documents(KIND)
        return [log.text for log in await its.its.get_artifacts(LogEntry)], len(rows)

    assert lasting.play(again) == (["new"], 5)  # with the discard horizon


def test_artifact_that_no_agent_can_consume_is_refused(world):
    async def story(its):
        for given in ("text", {"level": "INFO"}, TimerTick(timer_name="x", fire_time=instant("12:00:00"))):  # fmt: skip
            with pytest.raises(TypeError, match="is not an artifact"):
                await its.its.publish(given)

    world.play(story)
    with pytest.raises(ValueError, match="a TimerTick is not an artifact"):
        Orchestrator("sqlite://").agent("x").consumes(TimerTick)


def test_failing_filter_is_reported_with_its_agent_before_anything_is_stored(world):
    world.agent("reader").consumes(LogEntry, where=lambda log: log.nothing)

    async def story(its):
        with pytest.raises(
            ValueError, match="`where` of agent 'reader' failed for a LogEntry: Attr"
        ):
            await its.its.publish(LogEntry())
        assert await its.its.get_artifacts(LogEntry) == []

    world.play(story)


def test_burst_of_artifacts_runs_each_once_within_the_concurrency_limit(world):
    going, most = 0, 0

    async def count(ctx):
        nonlocal going, most
        going += 1
        most = max(most, going)
        await asyncio.sleep(0)
        going -= 1
        return Report()

    world.agent("reader", engine=count).consumes(LogEntry).max_concurrency(3)

    async def story(its):
        await asyncio.gather(*(its.its.publish(LogEntry(text=str(n))) for n in range(50)))
        await its.its.beat.settle()
        return len(await its.its.get_artifacts(Report))

    assert world.play(story) == 50
    assert most == 3

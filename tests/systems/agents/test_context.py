"""The context of an engine: metadata of its trigger, and the blackboard as its agent consumes it."""

from datetime import UTC, timedelta

import pytest
from pydantic import BaseModel, ConfigDict

from onbeat.agents import AgentContext, Artifact, ContextBuilder, Subscription, TimerTick
from onbeat.systems.agents.blackboard import Blackboard
from tests.systems.agents.conftest import Alert, LogEntry, Report, instant

NOON = instant("12:00:00")
TICK = TimerTick(timer_name="daily", fire_time=NOON, iteration=7)


def envelope(payload, artifact_id="one", **given):
    told = {"produced_by": "external", "correlation_id": "c", "tags": frozenset(), "created_at": NOON} | given  # fmt: skip
    return Artifact(id=artifact_id, type=type(payload).__name__, payload=payload, **told)


@pytest.mark.req("F6", "F10")
def test_builder_notes_a_tick_among_the_inputs_and_hides_it():
    inputs = [envelope(LogEntry(), "log"), envelope(TICK, "tick")]
    ctx = ContextBuilder(Blackboard()).build("daily", [], inputs, correlation_id="c")
    assert ctx.state["__timer__"] == {"name": "daily", "iter": 7, "fire": NOON}
    assert [each.id for each in ctx.artifacts] == ["log"]
    assert (ctx.trigger_type, ctx.timer_iteration, ctx.fire_time) == ("timer", 7, NOON)


@pytest.mark.req("F9")
def test_context_reads_the_note_or_else_a_tick_among_the_artifacts():
    by_hand = AgentContext(artifacts=[envelope(TICK)])
    assert (by_hand.trigger_type, by_hand.timer_iteration, by_hand.fire_time) == ("timer", 7, NOON)
    later = NOON + timedelta(hours=1)
    noted = AgentContext(
        artifacts=[envelope(TICK)], state={"__timer__": {"name": "x", "iter": 9, "fire": later}}
    )
    assert (noted.trigger_type, noted.timer_iteration, noted.fire_time) == ("timer", 9, later)
    neither = AgentContext(artifacts=[envelope(LogEntry())])
    assert (neither.trigger_type, neither.timer_iteration, neither.fire_time) == (
        "artifact",
        None,
        None,
    )


def names_of(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.req("F11")
def test_engine_has_the_same_api_for_timers_and_artifacts(world):
    """Timer metadata uses the existing fields: no field was added or removed."""
    got = {}

    async def engine(ctx):  # one parameter, as before there were timers
        got[ctx.trigger_type] = ctx

    world.agent("timed", engine=engine).schedule(every=timedelta(minutes=1), max_repeats=1)
    world.agent("triggered", engine=engine).consumes(LogEntry)

    async def story(its):
        await its.its.publish(LogEntry(text="a"))
        await its.passes("1s", "1m")

    world.play(story)
    timer, artifact = got["timer"], got["artifact"]
    assert type(timer) is type(artifact) is AgentContext
    assert names_of(timer) == names_of(artifact)
    assert timer.artifacts == []  # an engine gets no tick
    assert [each.payload for each in artifact.artifacts] == [LogEntry(text="a")]
    assert "__timer__" not in artifact.state
    assert (artifact.timer_iteration, artifact.fire_time) == (None, None)


def test_tick_is_immutable_and_has_its_fire_time():
    with pytest.raises(ValueError, match="frozen"):
        TICK.iteration = 8
    with pytest.raises(ValueError, match="fire_time"):
        TimerTick(timer_name="daily")


@pytest.mark.req("F7", "F36")
def test_context_reads_the_blackboard_by_the_subscriptions_of_the_agent(world):
    agent = world.agent().schedule(every=timedelta(minutes=1))
    agent.consumes(LogEntry, where=lambda log: log.level == "ERROR")
    agent.consumes(LogEntry, tags={"audit", "money"})
    agent.consumes(Alert, from_agents=["watch"])
    told = []

    async def look(ctx):
        told.append([log.text for log in ctx.get_artifacts(LogEntry)])
        told.append(ctx.get_artifacts(Alert))

    agent.with_engines(look)

    async def story(its):
        await its.its.publish(LogEntry(text="quiet"))
        its.clock.advance(1)
        await its.its.publish(LogEntry(text="bad", level="ERROR"))
        its.clock.advance(1)
        await its.its.publish(LogEntry(text="tagged"), tags=["money", "other"])
        its.clock.advance(1)
        await its.its.publish(LogEntry(text="both", level="ERROR"), tags={"audit"})
        await its.its.publish(Alert(text="of nobody"))
        await its.passes("1s")
        return await its.its.get_artifacts(LogEntry)

    everything = world.play(story)
    assert told[:2] == [["bad", "tagged", "both"], []]
    assert [log.text for log in everything] == ["quiet", "bad", "tagged", "both"]


@pytest.mark.req("F8")
def test_get_artifacts_excludes_the_triggering_artifact(world):
    told = []

    async def look(ctx):
        told.append(([log.payload.text for log in ctx.artifacts], [log.text for log in ctx.get_artifacts(LogEntry)]))  # fmt: skip

    world.agent("reader", engine=look).consumes(LogEntry)

    async def story(its):
        for text in ("first", "second", "third"):
            await its.its.publish(LogEntry(text=text))
            await its.passes("1s")

    world.play(story)
    assert told == [(["first"], []), (["second"], ["first"]), (["third"], ["first", "second"])]


def test_unconsumed_type_is_refused_instead_of_empty(world):
    async def look(ctx):
        ctx.get_artifacts(Alert)

    world.agent(engine=look).schedule(every=timedelta(hours=1)).consumes(LogEntry)

    async def story(its):
        await its.passes("1s")
        (run,) = await its.runs()
        return run.error

    told = "ValueError: agent 'daily' does not consume Alert (it consumes LogEntry: .consumes(Alert) adds it)"
    assert world.play(story) == told


def test_manually_built_context_has_no_blackboard():
    with pytest.raises(
        ValueError, match="this context has no blackboard, so it cannot read LogEntry"
    ):
        AgentContext().get_artifacts(LogEntry)


def test_subscription_requires_all_its_filters():
    which = Subscription(
        LogEntry, lambda log: log.level == "ERROR", frozenset({"a"}), frozenset({"watch"})
    )
    fits = envelope(LogEntry(level="ERROR"), tags=frozenset({"a", "b"}), produced_by="watch")
    assert which.accepts(fits)
    assert not which.accepts(envelope(Report()))
    for other in ({"tags": frozenset({"b"})}, {"produced_by": "external"}):
        told = {"tags": frozenset({"a"}), "produced_by": "watch"} | other
        assert not which.accepts(envelope(LogEntry(level="ERROR"), **told))
    assert not which.accepts(envelope(LogEntry(), tags=fits.tags, produced_by="watch"))


def test_two_types_of_one_name_are_distinguished_by_their_titles(world):
    other = type("LogEntry", (BaseModel,), {})
    world.its.agent("one").consumes(LogEntry)
    with pytest.raises(ValueError, match="two types of artifacts are called 'LogEntry'"):
        world.its.agent("two").consumes(other)
    titled = type("LogEntry", (BaseModel,), {"model_config": ConfigDict(title="OtherLog")})
    world.its.agent("three").consumes(titled)


@pytest.mark.parametrize("given", [str, 5, None, LogEntry()])
def test_only_pydantic_models_are_types_of_artifacts(world, given):
    agent = world.its.agent("one")
    for say in (agent.consumes, agent.publishes):
        with pytest.raises(TypeError, match="use a pydantic model"):
            say(given)


def test_instants_of_fires_and_artifacts_are_in_utc(world):
    world.agent().schedule(every=timedelta(hours=1))

    async def story(its):
        await its.passes("1s")
        return await its.its.publish(LogEntry())

    found = world.play(story)
    assert (world.seen[0].fire_time, world.seen[0].fire_time.tzinfo) == (instant("12:00:01"), UTC)
    assert (found.created_at, found.created_at.tzinfo) == (instant("12:00:01"), UTC)

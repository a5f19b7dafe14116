"""Stored models: round trips, order, and discarding."""

import asyncio
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    computed_field,
    create_model,
)

from onbeat.agents import Orchestrator
from onbeat.systems.agents.blackboard import KIND
from tests.systems.agents.conftest import Alert, LogEntry, Report, instant
from tests.waiting import until


class Aliased(BaseModel):
    created: datetime = Field(alias="createdAt")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    at: datetime


class Forbidding(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int

    @computed_field
    def double(self) -> int:
        return 2 * self.a


class Counting(BaseModel):
    a: int
    _reads: int = PrivateAttr(default=0)


class Secret(BaseModel):
    s: SecretStr


class Excluding(BaseModel):
    a: int = Field(exclude=True)


class Number(BaseModel):
    x: float


class Binary(BaseModel):
    b: bytes


class Anything(BaseModel):
    x: Any


class ReadByAnotherName(BaseModel):
    x: int = Field(validation_alias="y")


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def described(its, model):
    async def nothing(ctx):
        return None

    its.agent("reader").consumes(model).with_engines(nothing)


@pytest.mark.parametrize(
    "payload", [Aliased(createdAt=NOON), Strict(at=NOON), Forbidding(a=1), Counting(a=1)], ids=repr
)
def test_published_artifacts_are_the_same_after_a_restart(lasting, payload):
    if isinstance(payload, Counting):
        payload._reads = 5  # private, so it does not count

    async def publishes(its):
        await its.its.publish(payload)

    async def reads(its):
        (found,) = await its.its.get_artifacts(type(payload))
        return found.model_dump()

    described(lasting.its, type(payload))
    lasting.play(publishes)
    described(lasting.reborn(), type(payload))
    assert lasting.play(reads) == payload.model_dump()


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (Secret(s="x"), "Secret cannot be stored: s would be decoded as another value"),
        (Excluding(a=1), "Excluding cannot be stored: a is missing: Field required"),
        (Number(x=float("nan")), "Number cannot be stored: x has the value None: Input should be a valid number"),
        (Binary(b=b"\xff"), "Binary cannot be stored: .*utf-8"),
        (Anything(x=(1, 2)), "Anything cannot be stored: x would be decoded as another value"),
        (ReadByAnotherName(y=1), "ReadByAnotherName cannot be stored: y is missing: Field required"),
        (LogEntry(text="x" * 1_100_000), "LogEntry cannot be stored: it has 11000.. bytes; the limit is 1032192"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, BaseModel) else "",
)  # fmt: skip
def test_payload_that_decodes_differently_is_refused_and_not_stored(lasting, payload, said):
    async def story(its):
        with pytest.raises(ValueError, match=said):
            await its.its.publish(payload)
        assert await its.its.get_artifacts(type(payload)) == []
        assert await its.its.beat.service.list_documents(KIND) == []

    described(lasting.its, type(payload))
    lasting.play(story)


def test_no_output_is_published_if_one_is_invalid(world):
    async def both(ctx):
        return [Report(), Secret(s="x")]

    world.agent(engine=both, publishes=(Report, Secret)).schedule(every=timedelta(hours=1))

    async def story(its):
        await its.passes("1s")
        (run,) = await its.runs()
        assert "Secret cannot be stored" in run.error
        return await its.its.get_artifacts(Report)

    assert world.play(story) == []


def test_artifact_that_does_not_fit_a_changed_model_is_ignored_and_can_be_discarded(
    lasting, caplog
):
    stricter = create_model("LogEntry", host=(str, ...))

    async def publishes(its):
        await its.its.beat.service.set_gate(is_open=False)
        await its.its.publish(LogEntry(text="old"))
        its.clock.advance("1m")

    async def reads(its):
        await its.its.beat.service.set_gate(is_open=True)
        await its.its.beat.settle()
        (run,) = await its.runs("reader")
        assert "does not fit LogEntry any more" in run.error
        await its.its.publish(stricter(host="new"))
        for _ in range(2):
            assert [each.host for each in await its.its.get_artifacts(stricter)] == ["new"]
        assert await its.its.discard(stricter, before=instant("12:01:00")) == 1
        return len(await its.its.beat.service.list_documents(KIND))

    described(lasting.its, LogEntry)
    lasting.play(publishes)
    described(lasting.reborn(), stricter)
    assert lasting.play(reads) == 2  # the new one, and the discard horizon
    told = [each.message for each in caplog.records if "is ignored" in each.message]
    assert len(told) == 1
    assert "does not fit LogEntry any more: host is missing: Field required (give" in told[0]


# -- order


def test_artifacts_keep_the_order_of_publishing_within_a_millisecond_and_over_restarts(lasting):
    async def many(ctx):
        return [Report(count=n) for n in range(12)]

    def describe():
        lasting.agent(engine=many).schedule(every=timedelta(hours=1), max_repeats=1)

    async def publishes(its):
        await its.passes("1s")
        for n in range(12):
            await its.its.publish(LogEntry(text=str(n)))
        return await seen(its)

    async def seen(its):
        reports, logs = [await its.its.get_artifacts(each) for each in (Report, LogEntry)]
        return [each.count for each in reports], [int(each.text) for each in logs]

    describe()
    assert lasting.play(publishes) == ([*range(12)], [*range(12)])
    lasting.reborn()
    describe()
    assert lasting.play(seen) == ([*range(12)], [*range(12)])


# -- discarding


def test_new_artifact_is_not_discarded_after_the_clock_moved_backward(world):
    async def story(its):
        await its.its.publish(LogEntry(text="old"))
        its.clock.advance("10s")
        await its.its.discard(LogEntry, before=instant("12:00:10"))
        its.clock.advance(-2000)
        await its.its.publish(LogEntry(text="new"))
        return [log.text for log in await its.its.get_artifacts(LogEntry)]

    assert world.play(story) == ["new"]


def test_read_during_a_discard_of_another_type_works(lasting):
    async def story(its):
        other = Orchestrator(its.database, clock=its.clock)
        async with other:
            for n in range(3):
                await its.its.publish(LogEntry(text=str(n)))
            await its.its.publish(Alert())
            await other.get_artifacts(LogEntry)
            its.clock.advance("1m")
            await its.its.discard(LogEntry, before=instant("12:01:00"))
            service, forgetting = other.beat.service, asyncio.Event()
            forget = service.forget

            async def slowly(kind, name):
                forgetting.set()
                await asyncio.sleep(0.05)
                return await forget(kind, name)

            service.forget = slowly
            reading = asyncio.create_task(other.get_artifacts(LogEntry))
            await forgetting.wait()
            assert await other.discard(Alert, before=instant("12:01:00")) == 1
            return await reading

    assert lasting.play(story) == []


def test_artifact_needed_by_a_waiting_run_is_not_discarded(world):
    world.agent("reader").consumes(LogEntry, where=lambda log: log.text == "needed")

    async def story(its):
        await its.its.beat.service.set_gate(is_open=False)
        for text in ("old", "needed", "younger"):
            await its.its.publish(LogEntry(text=text))
            its.clock.advance("1s")
        assert await its.its.discard(LogEntry, before=instant("12:00:03")) == 1
        await its.its.beat.service.set_gate(is_open=True)
        await its.its.beat.settle()
        assert [ctx.artifacts[0].payload.text for ctx in its.seen] == ["needed"]
        assert await its.its.discard(LogEntry, before=instant("12:00:03")) == 2

    world.play(story)


# -- names


def test_single_tag_may_be_a_string_everywhere(world):
    async def story(its):
        made = await its.its.publish(LogEntry(), tags="urgent")
        assert made.tags == {"urgent"}
        assert len(await its.its.get_artifacts(LogEntry, tags="urgent")) == 1
        assert len(await its.its.get_artifacts(LogEntry, tags=["urgent"])) == 1
        assert len(await its.its.get_artifacts(LogEntry, from_agents="external")) == 1

    world.play(story)


# -- pending deliveries


def test_output_of_a_run_that_timed_out_during_publishing_still_triggers(world):
    async def out(ctx):
        return [Report(count=1), Report(count=2)]

    world.agent("maker", engine=out).consumes(LogEntry).policy(timeout="1s")
    world.agent("reader").consumes(Report)

    async def story(its):
        service = its.its._system._started_service
        start = service.start

        loop = asyncio.get_running_loop()
        begin = loop.time()

        def time_is_up():  # for the run that publishes
            return loop.time() > begin + 1.2

        async def slowly(schedule_id, **given):
            if schedule_id == "agents/reader":
                await until(time_is_up)
            return await start(schedule_id, **given)

        service.start = slowly
        await its.its.publish(LogEntry())
        assert await its.its.run_until_idle(timeout=10)
        (run,) = await its.runs("maker")
        return run.reason

    assert world.play(story) == "timeout"
    assert [ctx.artifacts[0].payload.count for ctx in world.seen] == [1, 2]


def test_failed_starts_of_agents_are_retried(world):
    world.agent("reader").consumes(LogEntry)

    async def story(its):
        service = its.its._system._started_service
        start, broken = service.start, []

        async def breaks_once(schedule_id, **given):
            if not broken:
                broken.append(schedule_id)
                raise ConnectionError("the store is away")
            return await start(schedule_id, **given)

        service.start = breaks_once
        with pytest.raises(ConnectionError):
            await its.its.publish(LogEntry())
        assert not await its.its._system.is_idle()
        assert await its.its.run_until_idle(timeout=10)

    world.play(story)
    assert len(world.seen) == 1


def test_repeated_publish_with_one_request_id_publishes_once(lasting):
    async def story(its):
        async with Orchestrator(its.database, clock=its.clock) as other:
            first = await other.publish(LogEntry(text="a"), request_id="r1")
            again = await its.its.publish(LogEntry(text="a"), request_id="r1")
            assert first == again
        assert await its.its.publish(LogEntry(text="a")) != first
        for wrong in (LogEntry(text="b"), Alert(text="a")):
            with pytest.raises(ValueError, match="request_id: artifact external:r1 was published"):
                await its.its.publish(wrong, request_id="r1")
        for wrong in ("", 5, "x" * 201):
            with pytest.raises(ValueError, match="request_id must be a string"):
                await its.its.publish(LogEntry(), request_id=wrong)
        await its.its.beat.settle()

    lasting.agent("reader").consumes(LogEntry)
    lasting.play(story)
    assert len(lasting.seen) == 1  # the other process has no agents, and the second is another


PROGRAM = """
import asyncio, os, sys
from pydantic import BaseModel
from onbeat.agents import Orchestrator

class Note(BaseModel):
    text: str

async def engine(ctx):
    if sys.argv[1] == "die-in-engine":
        os._exit(9)
    print("read", ctx.artifacts[0].payload.text, ctx.attempt, flush=True)

its = Orchestrator("sqlite:///agents.db")
its.agent("reader").consumes(Note).with_engines(engine)

async def main():
    await its.start()
    if sys.argv[1] == "die-before-start":
        its.beat.service.start = lambda *given, **named: os._exit(9)
    if sys.argv[1] != "go-on":
        await its.publish(Note(text="hello"))
    print("idle", await its.run_until_idle(timeout=20))
    await its.close()

asyncio.run(main())
"""


@pytest.mark.parametrize(("way", "attempt"), [("die-in-engine", 2), ("die-before-start", 1)])
def test_artifact_is_processed_although_the_process_is_killed(tmp_path, way, attempt):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))

    def run(how):
        return subprocess.run(
            [sys.executable, "program.py", how], cwd=tmp_path, capture_output=True, text=True,
            timeout=40, check=False,
        )  # fmt: skip

    assert run(way).returncode == 9
    done = run("go-on")
    assert done.stdout == f"read hello {attempt}\nidle True\n", done.stderr
    assert run("go-on").stdout == "idle True\n"

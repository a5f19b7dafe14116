"""A prompt is sent once: a waiting retry gives way to a newer run, and to disabling."""

import asyncio

import pytest

PAST = "2026-01-01T00:00:00.000Z"
SUCCESS_AND_CANCELED = [("SUCCESS", None), ("CANCELED", "a newer run took its place")]


async def failed(world, slug="daily", *, by="hand"):
    """Make a run of a slug wait for its retry after an error; the server works again."""
    await world.put(slug)
    world.server.fails = True
    if by == "hand":
        await world.run(slug)
    else:
        world.edit(slug, "last-run.json", nextRun=PAST)
        await world.settled()
    world.server.fails = False
    (run,) = await world.service.runs()
    assert (run.status, run.attempt) == ("ENQUEUED", 1)


async def ended(world):
    return [(run.status, run.error) for run in await world.service.runs()]


@pytest.mark.parametrize("how", ["route", "file", "service"])
def test_waiting_retry_is_not_sent_after_another_run(world, how):
    async def story(world):
        await failed(world)
        world.clock.advance("1m")
        if how == "route":
            await world.run("daily")
        elif how == "file":
            world.edit("daily", "last-run.json", nextRun=PAST)
        else:
            await world.service.start("daily")
        await world.settled()
        told = world.last_run("daily")
        await world.let_pass("30m", "10m")
        return told, await ended(world)

    told, runs = world.play(story)
    assert world.messages == ["daily"]
    assert runs == SUCCESS_AND_CANCELED
    assert (told["lastResult"], told["nextRun"]) == ("success", "2026-01-29T09:00:00.000Z")


def test_waiting_manual_run_gives_way_to_the_next_tick(world):
    async def story(world):
        await world.put("daily")
        await world.let_pass("59m")
        world.server.fails = True
        await world.run("daily")
        world.server.fails = False
        await world.let_pass("1m", "1h")
        return await ended(world)

    assert world.play(story) == SUCCESS_AND_CANCELED
    assert world.messages == ["daily"]


def test_retry_that_waited_at_a_crash_gives_way_to_a_later_run(world):
    async def first(world):
        await failed(world)
        world.clock.advance("1m")
        run = await world.service.start("daily")
        world.sessions.on_events = lambda at, events: None
        world.beat.wake()
        await world.beat.settle()
        assert (await world.service.run(run.run_id)).status == "SUCCESS"

    async def again(world):
        await world.let_pass("30m")
        return await ended(world)

    assert world.play(first, again) == SUCCESS_AND_CANCELED
    assert world.messages == ["daily"]


@pytest.mark.parametrize("by", ["hand", "file"])
@pytest.mark.parametrize("how", ["patch", "put", "file", "pause"])
def test_waiting_retry_is_not_sent_once_the_schedule_is_disabled(world, by, how):
    async def story(world):
        await failed(world, by=by)
        world.clock.advance("1m")
        if how == "patch":
            await world.sessions.patch(world.service, "daily", {"enabled": False})
        elif how == "put":
            await world.put("daily", enabled=False)
        elif how == "file":
            world.edit("daily", "definition.json", enabled=False)
        else:
            await world.service.pause("daily")
        await world.settled()
        await world.let_pass("29m", "10m")
        item = await world.item("daily")
        await world.sessions.patch(world.service, "daily", {"enabled": True})
        await world.let_pass("10m")
        return item, await ended(world)

    item, runs = world.play(story)
    assert world.messages == []
    assert runs == [("CANCELED", "the schedule was disabled")]
    assert (item.enabled, item.last_error) == (False, "HTTP 500: Internal Server Error")


def test_manual_run_of_a_disabled_schedule_is_sent_and_retried(world):
    async def first(world):
        await world.put("daily", enabled=False)
        world.server.fails = True
        await world.run("daily")
        await world.sessions.patch(world.service, "daily", {"prompt": "Another"})
        await world.settled()

    async def again(world):
        world.server.fails = False
        await world.let_pass("30m")

    world.play(first, again)
    assert world.messages == ["daily"]


@pytest.mark.req("C52")
def test_two_concurrent_requests_for_a_run_get_the_same_run(world):
    async def story(world):
        await world.put("daily")
        answered_all = asyncio.Event()
        world.server.before_message = answered_all.wait
        answered = await asyncio.gather(
            *(world.sessions.run(world.service, "daily") for _ in range(3))
        )
        answered_all.set()
        await world.settled()
        return answered, await world.service.runs()

    answered, runs = world.play(story)
    assert [each["status"] for each in answered] == ["running"] * 3
    assert len({each["sessionId"] for each in answered}) == 1
    assert len(runs) == 1
    assert world.messages == ["daily"]


@pytest.mark.req("C52")
def test_run_in_progress_is_returned_and_an_ended_one_is_started_again(world):
    async def story(world):
        await world.put("daily", sessionConfig={"feedback": True})
        await world.run("daily")
        again = await world.run("daily")
        (run,) = await world.service.runs()
        assert (run.status, again["status"]) == ("STARTED", "running")
        assert again["sessionId"] == run.external_id
        await world.let_pass("31m")
        await world.run("daily")

    world.play(story)
    assert world.messages == ["daily", "daily"]


def test_queued_run_is_not_sent_once_the_schedule_is_disabled(world):
    async def story(world):
        for slug in ("first", "second"):
            await world.put(slug)
        began, may_end = asyncio.Event(), asyncio.Event()

        async def slow():
            began.set()
            await may_end.wait()

        world.server.before_message = slow
        await world.service.start("first")
        await asyncio.wait_for(began.wait(), 5)
        waits = await world.service.start("second")
        await world.sessions.patch(world.service, "second", {"enabled": False})
        may_end.set()
        await world.settled()
        return (await world.service.run(waits.run_id)).status

    assert world.play(story) == "CANCELED"
    assert world.messages == ["first"]

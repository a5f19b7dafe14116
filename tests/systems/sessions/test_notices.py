"""Scheduled prompts need no cron daemon, and notifications report their outcomes."""

import asyncio

import pytest

from tests.notifiers.servers import a_channel, a_hook


async def delivered(hook, count):
    """Wait for this many messages; return the kind and the slug of each notice in them."""
    async with asyncio.timeout(10):
        while len(hook.got) < count:  # noqa: ASYNC110 - the server notes it
            await asyncio.sleep(0.01)
    notices = [notice for _, body in hook.got for notice in body["notices"]]
    return [(notice["kind"], notice["schedule_id"].rpartition("/")[2]) for notice in notices]


@pytest.mark.req("C62")
def test_prompts_are_sent_at_their_times_by_this_process_alone(world, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")  # neither cron nor at nor systemd can be called

    async def story(its):
        await its.put("standup")
        await its.let_pass("59m", "1m", "24h")
        return list(its.messages)

    assert world.play(story) == ["standup", "standup"]


@pytest.mark.req("C64")
def test_completed_prompt_is_reported_to_a_channel(world):
    async def story(its):
        async with a_hook() as hook:
            channel = a_channel(webhook=hook.url, on=["success"], every="0s")
            its.settings = {"notify": (channel,)}

            async def with_channel(its):
                await its.put("standup")
                await its.let_pass("1h")
                return await delivered(hook, 1)

            await its.beat.close()
            return await its.live(with_channel)

    assert world.play(story) == [("success", "standup")]


@pytest.mark.req("C68")
def test_third_failure_of_a_prompt_in_a_row_raises_one_alert(world):
    async def story(its):
        async with a_hook() as hook:
            channel = a_channel(webhook=hook.url, on=["failures:3", "recovery"], every="0s")
            its.settings = {"notify": (channel,)}

            async def with_channel(its):
                its.server.fails = True
                await its.put("standup", schedule={"type": "cron", "expression": "0 * * * *"})
                while (await its.beat.schedules())[0].consecutive_failures < 4:
                    await its.let_pass("30m")
                its.server.fails = False
                await its.let_pass("30m", "30m", "30m")
                return await delivered(hook, 2)

            await its.beat.close()
            return await its.live(with_channel)

    kinds = [kind for kind, _ in world.play(story)]
    assert kinds == ["failure", "recovery"]

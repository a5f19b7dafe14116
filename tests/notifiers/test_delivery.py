"""From a failed run to its recipients: real nodes, real servers, and no message sent twice."""

import asyncio
import os
import signal
import sys
import time
from contextlib import closing
from itertools import chain

import apsw
import pytest

from onbeat import Onbeat
from onbeat.app.client import client
from onbeat.app.settings import Settings
from onbeat.core.notify.notifications import BACKOFF
from onbeat.errors import InvalidSettings
from onbeat.events import NoticeInDoubt, NoticeSent
from onbeat.testing import ManualClock, a_schedule
from tests.given_settings import given_settings
from tests.inside import engine_of
from tests.notifiers.servers import a_channel, a_hook, a_post, hang
from tests.waiting import engine_has_looked

SOON = 15.0  # seconds: far more than anything here takes
RARELY = "0 0 1 1 *"


async def until(reached, *, longest=SOON):
    async with asyncio.timeout(longest):
        while not (found := await reached()):  # noqa: ASYNC110 - the state is in a database
            await asyncio.sleep(0.01)
        return found


async def states(beat):
    return {row.channel: dict(row.states) for row in await beat.service.channels()}


async def fail(beat, *names):
    """Run each schedule once; the run fails."""
    schedules = [a_schedule(name, cron=RARELY, run={"python": "fails"}) for name in names]
    await beat.define(*schedules)
    for name in names:
        await beat.start(name)


def fails():
    raise RuntimeError("disk full")


def a_beat(database, *channels, **given):
    clock = given.pop("clock", None)
    beat = Onbeat(settings=given_settings(database=database, notify=channels, **given), clock=clock)
    beat.register("fails", fails)
    return beat


def test_mail_and_a_webhook_that_fails_twice_are_each_delivered_once(tmp_path):
    toml = """
    database = "sqlite://"
    [notify.ops]
    webhook = "{}"
    [notify.boss]
    smtp = "smtp://127.0.0.1:{}"
    to = ["boss@example.org"]
    """

    async def story(server):
        clock = ManualClock("2026-01-01T12:00:00Z")
        async with a_hook(500, 503, 200) as hook:
            (tmp_path / "onbeat.toml").write_text(toml.format(hook.url, server.port))
            settings = Settings.load(environment={}, folder=tmp_path)
            beat = Onbeat(settings=settings, clock=clock)
            beat.register("fails", fails)
            async with beat:
                await fail(beat, "backup")
                for n, wait in enumerate(BACKOFF, 1):
                    await until(lambda n=n: asyncio.sleep(0, len(hook.got) >= min(n, 3)))
                    await engine_of(beat).outbox.idle()
                    clock.advance(wait)
                    beat.wake()
                return hook.got, await states(beat)

    with a_post() as server:
        got, found = asyncio.run(story(server))
        mails = server.post.got
    assert found == {"ops": {"sent": 1}, "boss": {"sent": 1}}
    assert len(got) == 3
    assert len({headers["Idempotency-Key"] for headers, _ in got}) == 1
    assert [mail["Subject"] for mail in mails] == ["[onbeat] backup failed"]
    assert "why      it failed: RuntimeError: disk full" in mails[0].get_content()


@pytest.mark.parametrize("when", ["before", "after"])
def test_message_of_a_killed_node_is_in_doubt_and_not_sent_twice(tmp_path, when):
    path = tmp_path / "onbeat.db"
    database = f"sqlite:///{path}"

    async def story():
        async with a_hook() as hook:
            node = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.notifiers.node", database, hook.url, when,
                stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            async with asyncio.timeout(60):
                assert await node.wait() == -signal.SIGKILL
            first = len(hook.got)
            with closing(apsw.Connection(str(path))) as file:  # two minutes pass
                (left,) = file.execute("SELECT state FROM outbox").fetchall()
                file.execute("UPDATE outbox SET due_at = due_at - 120000")
            async with a_beat(database, a_channel(webhook=hook.url, every="0s")) as beat:
                await until(lambda: is_so(beat, {"ops": {"in_doubt": 1}}))
                await fail(beat, "report")  # later messages are sent
                await until(lambda: is_so(beat, {"ops": {"in_doubt": 1, "sent": 1}}))
                events = [row.event for row in await beat.service.events(after=0)]
            doubts = [event for event in events if isinstance(event, NoticeInDoubt)]
            return left, first, hook.notified[first:], [event.level for event in doubts]

    expected = ("sending",), int(when == "after"), [["report"]], ["error"]
    assert asyncio.run(story()) == expected


async def is_so(beat, expected):
    return await states(beat) == expected


def test_three_nodes_send_each_failure_once(postgres_url):
    names = [f"s{n:02}" for n in range(30)]

    async def story():
        async with a_hook() as hook:
            channel = a_channel(webhook=hook.url, every="0s")
            beats = [a_beat(postgres_url, channel, stop_grace=5_000) for _ in range(3)]
            async with beats[0], beats[1], beats[2]:
                for n, name in enumerate(names):
                    await fail(beats[n % 3], name)
                await until(lambda: asyncio.sleep(0, sum(map(len, hook.notified)) >= len(names)))
                for beat in beats:
                    beat.wake()
                    await engine_has_looked(beat)
                    await engine_of(beat).outbox.idle()
                left = await states(beats[0])
                events = [row.event for row in await beats[0].service.events(after=0, limit=9999)]
            sent = sum(each.notices for each in events if isinstance(each, NoticeSent))
            keys = {headers["Idempotency-Key"] for headers, _ in hook.got}
            return (
                sorted(chain(*hook.notified)),
                sent,
                left["ops"].keys(),
                len(keys) == len(hook.got),
            )

    assert asyncio.run(story()) == (names, len(names), {"sent"}, True)


def test_hanging_channel_delays_neither_runs_nor_shutdown():
    async def story():
        async with a_hook(hang) as hook:
            beat = a_beat("sqlite://", a_channel(webhook=hook.url), stop_grace=200)
            async with beat:
                await fail(beat, "a")
                await until(lambda: asyncio.sleep(0, hook.got))
                began = time.monotonic()
                await fail(beat, "b")
                await beat.settle()
                ran = time.monotonic() - began
                began = time.monotonic()
            return ran, time.monotonic() - began

    ran, ended = asyncio.run(story())
    assert ran < 2
    assert ended < 3


def test_successes_are_sent_to_channels_that_want_them(tmp_path):
    async def story():
        async with a_hook() as hook:
            beat = a_beat("sqlite://", a_channel(webhook=hook.url, on=["success"]))
            beat.register("works", lambda: None)
            async with beat:
                await beat.define(a_schedule("report", cron=RARELY, run={"python": "works"}))
                await beat.start("report")
                await until(lambda: asyncio.sleep(0, hook.got))
            return [body["subject"] for _, body in hook.got]

    assert asyncio.run(story()) == ["[onbeat] report succeeded"]


def test_node_without_channels_or_without_the_role_has_no_outbox():
    async def story(beat):
        async with beat:
            return engine_of(beat).outbox

    channel = a_channel(webhook="https://h")
    assert asyncio.run(story(a_beat("sqlite://"))) is None
    assert asyncio.run(story(a_beat("sqlite://", channel, roles=("run",)))) is None
    assert asyncio.run(story(a_beat("sqlite://", channel))) is not None


def test_secret_of_a_channel_is_neither_logged_nor_stored(tmp_path, monkeypatch, caplog):
    caplog.set_level("DEBUG")
    monkeypatch.setenv("HOOK_PATH", "c4nary")
    path = tmp_path / "onbeat.db"

    async def story():
        async with a_hook(404) as hook:
            fields = {
                "webhook": hook.url + "/${env:HOOK_PATH}?k=c4nary",
                "headers": {"A": "c4nary"},
            }
            async with a_beat(f"sqlite:///{path}", a_channel(**fields)) as beat:
                await fail(beat, "backup")
                await until(lambda: is_so(beat, {"ops": {"failed": 1}}))
            return hook.got

    ((headers, _),) = asyncio.run(story())
    assert headers["A"] == "c4nary"
    assert "c4nary" not in caplog.text
    assert not any(b"c4nary" in each.read_bytes() for each in tmp_path.iterdir() if each.is_file())


def test_unresolved_reference_stops_a_node_but_not_a_client(tmp_path):
    settings = Settings(
        database=f"sqlite:///{tmp_path}/onbeat.db",
        notify=(a_channel(webhook="${env:NO_SUCH_VARIABLE}"),),
    )
    assert "NO_SUCH_VARIABLE" not in os.environ

    async def as_client():
        async with client(settings) as service:
            return await service.schedules()

    async def as_node():
        async with Onbeat(settings=settings):
            pass

    assert asyncio.run(as_client()) == []
    with pytest.raises(InvalidSettings) as refused:
        asyncio.run(as_node())
    problem = "notify.ops.webhook: the environment variable NO_SUCH_VARIABLE is not set"
    assert str(refused.value) == f"{problem} (set it in the environment of the node)"

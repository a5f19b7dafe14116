"""The outbox loop: when and how often messages are sent, and what a slow notifier delays."""

import asyncio
import time
from typing import get_args

import pytest

from onbeat.core.notify.notifications import BACKOFF, Delivered, DeliveryRefused, DeliveryUnknown
from onbeat.core.runs.run import Failed
from onbeat.engine.outbox import ChannelAdapter, Outbox, notification_for
from onbeat.errors import StoreFailed
from onbeat.events import (
    AnyEvent,
    RunFailed,
    RunSkipped,
    RunStarted,
    RunStuck,
    RunSucceeded,
    ScheduleParked,
)
from onbeat.ports.rows import StoredEvent
from onbeat.ports.store import Finished, Node
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock, a_schedule
from tests.notifiers.servers import a_channel
from tests.waiting import forever

NODE = Node("node-1", "here", frozenset({"command"}))


def played(story):
    async def whole():
        clock = ManualClock("2026-01-01T12:00:00Z")
        store = await SqliteStore.open(None, clock=clock, inline=True)
        try:
            await store.register(NODE)
            return await asyncio.wait_for(story(store, clock), 10)
        finally:
            await store.close()

    return asyncio.run(whole())


class Recording:
    """A notifier that records messages, and returns the given answers, the last one forever."""

    def __init__(self, *answers):
        self.letters, self._answers = [], list(answers) or [Delivered()]

    async def send(self, letter):
        self.letters.append(letter)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def sent(self):
        return [[notice.schedule_id for notice in each.bundle.notices] for each in self.letters]


class Hanging(Recording):
    """A notifier that never answers."""

    async def send(self, letter):
        self.letters.append(letter)
        try:
            await forever()
        except asyncio.CancelledError:
            return self._answers[0]


class Failing:
    """A store that fails for a while at some calls."""

    def __init__(self, store, **failing):
        self._store, self._failing = store, failing

    def __getattr__(self, name):
        found = getattr(self._store, name)

        async def call(*given, **named):
            if self._failing.get(name, 0) > 0:
                self._failing[name] -= 1
                raise StoreFailed("the database is away")
            return await found(*given, **named)

        return call if name in self._failing else found


def wired(notifier, name="ops", **fields):
    return ChannelAdapter(
        a_channel(name, **{"webhook": "https://h", "every": "0s"} | fields), notifier
    )


async def fail(store, *names):
    """Let a run of each fail."""
    await store.upsert([a_schedule(name) for name in names])
    for name in names:
        await store.enqueue(name, request_id=f"{name}-{await store.newest_event()}")
    attempts = await store.announce(NODE, await store.claim(NODE, limit=1000))
    await store.finish([Finished(each, Failed("it broke", retryable=False)) for each in attempts])


async def look(outbox):
    await outbox.look_once()
    await outbox.idle()


async def states(store):
    return {row.channel: dict(row.states) for row in await store.channels()}


def test_each_channel_is_notified_once_of_matching_events():
    async def story(store, _):
        ops, team = Recording(), Recording()
        channels = [wired(ops), wired(team, "team", schedules=["b"])]
        outbox = Outbox(store, channels)
        await fail(store, "a", "b")
        await look(outbox)
        await look(outbox)
        return ops.sent, team.sent, await states(store)

    sent = {"sent": 1}
    assert played(story) == ([["a", "b"]], [["b"]], {"ops": sent, "team": sent})


def test_message_refused_twice_is_delivered_once_under_one_key():
    async def story(store, clock):
        ops = Recording(DeliveryRefused("HTTP 500"), DeliveryRefused("HTTP 503"), Delivered())
        outbox = Outbox(store, [wired(ops)])
        await fail(store, "a")
        for wait in (0, *BACKOFF):
            clock.advance(wait)
            await look(outbox)
        return len(ops.letters), len({each.key for each in ops.letters}), await states(store)

    assert played(story) == (3, 1, {"ops": {"sent": 1}})


def test_message_refused_every_time_is_given_up_after_six_attempts():
    async def story(store, clock):
        ops = Recording(DeliveryRefused("HTTP 500"))
        outbox = Outbox(store, [wired(ops)])
        await fail(store, "a")
        for wait in (0, *BACKOFF, 86_400_000):
            clock.advance(wait)
            await look(outbox)
        events = [row.event.name for row in await store.events(limit=10_000)]
        return len(ops.letters), await states(store), events.count("notice.failed")

    assert played(story) == (6, {"ops": {"failed": 1}}, 1)


@pytest.mark.parametrize(
    "answer", [DeliveryUnknown("no answer"), RuntimeError("a defect")], ids=type
)
def test_message_with_an_unknown_result_is_not_sent_again(answer):
    async def story(store, clock):
        ops = Recording(answer)
        outbox = Outbox(store, [wired(ops)])
        await fail(store, "a")
        for _ in range(3):
            await look(outbox)
            clock.advance(3_600_000)
        return len(ops.letters), await states(store)

    assert played(story) == (1, {"ops": {"in_doubt": 1}})


def test_message_of_a_dead_node_is_in_doubt_and_reported():
    async def story(store, clock):
        ops = Recording()
        outbox = Outbox(store, [wired(ops)])
        await fail(store, "a")
        await store.collect_notices(outbox._compose, limit=9)
        await store.take_message("ops")  # and then the node dies
        clock.advance(120_000)
        await look(outbox)
        events = [row.event.name for row in await store.events(limit=10_000)]
        return ops.letters, await states(store), events.count("notice.in_doubt")

    assert played(story) == ([], {"ops": {"in_doubt": 1}}, 1)


def test_hanging_channel_delays_no_other_channel():
    async def story(store, _):
        slow, quick = Hanging(DeliveryRefused("never connected")), Recording()
        outbox = Outbox(store, [wired(slow, "slow"), wired(quick, "quick")])
        for name in "ab":
            await fail(store, name)
            await outbox.look_once()
            while len(quick.letters) < "ab".index(name) + 1:  # noqa: ASYNC110 - it is what is asked
                await asyncio.sleep(0)
        await outbox.stop(0)
        return slow.sent, quick.sent

    assert played(story) == ([["a"]], [["a"], ["b"]])


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (DeliveryRefused("never connected"), "waiting"),
        (DeliveryUnknown("no answer"), "in_doubt"),
        (Delivered(), "sent"),
    ],
)
def test_stop_waits_for_its_grace_and_records_known_results(answer, state):
    async def story(store, _):
        outbox = Outbox(store, [wired(Hanging(answer))])
        await fail(store, "a")
        outbox.start()
        while not outbox._sending:  # noqa: ASYNC110 - it begins by itself
            await asyncio.sleep(0.01)
        began = time.monotonic()
        await outbox.stop(0.2)
        return time.monotonic() - began, await states(store)

    took, found = played(story)
    assert 0.15 < took < 2
    assert found == {"ops": {state: 1}}


def test_hurry_skips_the_grace_of_a_stop():
    async def story(store, _):
        outbox = Outbox(store, [wired(Hanging(DeliveryUnknown("no answer")))])
        await fail(store, "a")
        await outbox.look_once()
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.1, outbox.hurry)
        await outbox.stop(60)
        return await states(store)

    assert played(story) == {"ops": {"in_doubt": 1}}


def test_message_just_claimed_at_a_stop_is_sent_later():
    async def story(store, clock):
        class Slow(Failing):
            async def take_message(self, channel):
                letter = await self._store.take_message(channel)
                await asyncio.sleep(0.05)
                return letter

        ops = Recording()
        outbox = Outbox(Slow(store), [wired(ops)])
        await fail(store, "a")
        await outbox.look_once()
        await asyncio.sleep(0.01)
        await outbox.stop(0)
        first = ops.sent, await states(store)
        clock.advance(BACKOFF[0])
        await look(Outbox(store, [wired(ops)]))
        return first, ops.sent

    assert played(story) == (([], {"ops": {"waiting": 1}}), [["a"]])


def test_delivery_is_recorded_even_if_the_store_fails_briefly():
    async def story(store, _):
        ops = Recording()
        outbox = Outbox(Failing(store, record_delivery=2), [wired(ops)])
        await fail(store, "a")
        await look(outbox)
        return len(ops.letters), await states(store)

    assert played(story) == (1, {"ops": {"sent": 1}})


def test_failing_store_is_logged_once_and_retried(caplog):
    async def story(store, _):
        ops = Recording()
        outbox = Outbox(Failing(store, to_send=3), [wired(ops)])
        await fail(store, "a")
        outbox.start()
        while not ops.letters:
            outbox.wake()
            await asyncio.sleep(0.01)
        await outbox.stop(1)
        return ops.sent

    assert played(story) == [["a"]]
    assert [
        record.getMessage() for record in caplog.records if record.name == "onbeat.notices"
    ] == ["notifications are delayed: the database is away"]


def test_many_failures_are_one_message_with_their_count():
    async def story(store, _):
        ops = Recording()
        await fail(store, *(f"s{n}" for n in range(300)))
        await look(Outbox(store, [wired(ops)]))
        return [(len(each.bundle.notices), each.bundle.more) for each in ops.letters]

    assert played(story) == [(50, 250)]


def test_only_the_third_consecutive_failure_is_notified():
    async def story(store, _):
        ops = Recording()
        outbox = Outbox(store, [wired(ops, on=["failures:3"])])
        for _ in range(5):
            await fail(store, "a")
            await look(outbox)
        return [each.bundle.notices[0].failures for each in ops.letters]

    assert played(story) == [3]


def test_every_marked_event_has_a_notification():
    about = ("backup", 17, 1_767_268_800)
    found = {
        "failure": RunFailed(*about, 1, "exit", "exit code 1", 2),
        "recovery": RunSucceeded(*about, 1, 2),
        "missed": RunSkipped(*about, "deadline"),
        "late": RunStarted(*about, 1, "node-1", 1, late=1_500),
        "parked": ScheduleParked("backup", "it is garbage"),
        "stuck": RunStuck(*about, 1, 7_200_000, 3_600_000, "warn_after"),
    }
    for kind, event in found.items():
        assert event.is_notable
        assert notification_for(StoredEvent(0, event)).kind == kind
    notable = {each for each in get_args(AnyEvent) if "is_notable" in vars(each)}
    assert notable == {type(event) for event in found.values()}


def test_sixth_consecutive_overlap_is_notified_as_missed():
    about = ("backup", 17, 1_767_268_800, "overlap")
    assert not RunSkipped(*about, overlaps=5).is_notable
    missed = notification_for(StoredEvent(0, RunSkipped(*about, overlaps=6)))
    assert (missed.kind, missed.reason) == ("missed", "overlap")


@pytest.mark.parametrize(
    "event",
    [
        RunSkipped("backup", 17, 1_767_268_800, "paused"),
        RunStarted("backup", 17, 1_767_268_800, 1, "node-1", 1),
    ],
    ids=lambda event: event.name,
)
def test_ordinary_events_have_no_notification(event):
    assert notification_for(StoredEvent(0, event)) is None

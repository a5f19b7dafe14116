"""The outbox of a store: each event is processed once, and each message claimed by one sender."""

import asyncio
from contextlib import suppress

import pytest

from onbeat.core.notify.notifications import (
    BACKOFF,
    DeliveryResult,
    MessageContent,
    Notification,
    compose_message,
)
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.engine.outbox import notification_for

MINUTE, HOUR = 60_000, 3_600_000


def to_ops(happened):
    """Compose messages for one channel from every notification, without an interval."""
    return to(("ops",), happened)


def to(names, happened, *, every=0):
    notices = [each for each in map(notification_for, happened) if each is not None]
    return [(name, compose_message(notices), every) for name in names] if notices else []


async def fail(world, schedule_id="backup", error="it broke"):
    """Let a run of a schedule fail."""
    if await world.schedule(schedule_id) is None:
        await world.define(schedule_id)
    await world.store.enqueue(schedule_id, request_id=str(await world.store.newest_event()))
    attempt = next(each for each in await world.start() if each.schedule_id == schedule_id)
    await world.end(attempt, Failed(error, retryable=False))


async def collect(world, compose=to_ops, *, limit=100, store=None):
    return await (store or world.store).collect_notices(compose, limit=limit)


async def a_letter(world):
    await fail(world)
    await collect(world)
    return await world.store.take_message("ops")


async def states(world):
    return {row.channel: dict(row.states) for row in await world.store.channels()}


def about(letter):
    return [notice.schedule_id for notice in letter.bundle.notices]


async def test_failed_run_becomes_a_message_with_its_details(world):
    await fail(world, error="disk full\nat line 3")
    assert (await world.store.to_send(["ops"])).has_marks
    collected = await collect(world)
    assert (collected.rows, collected.messages, collected.dropped) == (1, 1, 0)
    found = await world.store.to_send(["ops", "other"])
    assert (found.has_marks, found.channels) == (False, {"ops"})
    letter = await world.store.take_message("ops")
    (row,) = await world.rows()
    expected = Notification(
        "failure", "backup", world.clock.now(), row.run_id, row.run_at, "error", "disk full", 1
    )  # fmt: skip
    assert (letter.bundle, letter.attempt) == (MessageContent((expected,)), 1)


async def test_ordinary_events_are_not_marked(world):
    await world.end(await world.going())
    assert not (await world.store.to_send(["ops"])).has_marks
    assert (await collect(world)).rows == 0


async def test_every_success_is_marked_if_a_channel_wants_successes(world):
    world.store.marks_successes = True
    await world.end(await world.going())
    await collect(world)
    (notice,) = (await world.store.take_message("ops")).bundle.notices
    assert notice.kind == "success"


async def test_recovery_is_notified_only_after_failures(world):
    await fail(world)
    await collect(world)
    await world.store.enqueue("backup", request_id="again")
    await world.end(next(iter(await world.start())), Succeeded())
    kinds = []
    await collect(world, lambda found: kinds.extend(map(notification_for, found)) or [])
    assert [(each.kind, each.failures) for each in kinds if each] == [("recovery", 1)]


async def test_each_event_is_processed_once_by_any_node(world):
    for _ in range(3):
        await fail(world)
    second = await world.second()
    both = await asyncio.gather(*(collect(world, store=s) for s in (world.store, second) * 2))
    assert sum(each.rows for each in both) == 3


async def test_crashed_collection_leaves_everything_to_the_next(world):
    class Crash(BaseException):
        """The process ends here."""

    def crash(_):
        raise Crash

    await fail(world)
    with suppress(Crash):
        await collect(world, crash)
    assert await states(world) == {}
    assert (await collect(world)).messages == 1


async def test_events_without_a_matching_channel_are_processed_once(world):
    await fail(world)
    assert (await collect(world, lambda _: [])).rows == 1
    assert (await collect(world)).rows == 0


async def test_events_older_than_an_hour_are_dropped(world):
    await fail(world, "old")
    world.clock.advance(HOUR + 1)
    await fail(world, "new")
    collected = await collect(world)
    assert (collected.rows, collected.dropped) == (2, 1)
    assert about(await world.store.take_message("ops")) == ["new"]
    assert (await collect(world)).rows == 0


async def test_oldest_events_are_collected_first_up_to_the_limit(world):
    for name in "abc":
        await fail(world, name)
    seen = []
    found = [await collect(world, lambda rows: seen.append(len(rows)) or [], limit=2) for _ in "12"]
    assert [(each.rows, each.is_full) for each in found] == [(2, True), (1, False)]


async def test_events_before_a_message_is_sent_join_it(world):
    for name in "ab":
        await fail(world, name)
        await collect(world)
    letter = await world.store.take_message("ops")
    assert about(letter) == ["a", "b"]
    await fail(world, "c")
    await collect(world)  # the first is being sent: its content stays
    assert about(await world.store.take_message("ops")) == ["c"]


async def test_messages_of_a_channel_keep_its_interval(world):
    async def fail_and_collect(name):
        await fail(world, name)
        await collect(world, lambda found: to(("ops",), found, every=MINUTE))

    await fail_and_collect("a")
    await world.store.record_delivery(await world.store.take_message("ops"), DeliveryResult("sent"))
    world.clock.advance(10_000)
    for name in "bc":
        await fail_and_collect(name)
    assert await world.store.take_message("ops") is None
    world.clock.advance(MINUTE - 10_000)
    assert about(await world.store.take_message("ops")) == ["b", "c"]


async def test_clock_moved_backward_delays_no_message_longer(world):
    await world.store.record_delivery(await a_letter(world), DeliveryResult("sent"))
    world.clock.step(-24 * HOUR)
    await fail(world)
    await collect(world, lambda found: to(("ops",), found, every=MINUTE))
    world.clock.advance(MINUTE)
    assert await world.store.take_message("ops") is not None


async def test_message_is_claimed_by_one_sender(world):
    second = await world.second()
    for _ in range(5):  # the first have to make their connections, and hardly meet
        await fail(world)
        await collect(world)
        taken = await asyncio.gather(*(s.take_message("ops") for s in (world.store, second) * 4))
        assert sum(letter is not None for letter in taken) == 1


async def test_channels_have_separate_messages(world):
    await fail(world)
    await collect(world, lambda found: to(("ops", "team"), found))
    assert (await world.store.to_send(["ops", "team"])).channels == {"ops", "team"}
    keys = {(await world.store.take_message(name)).key for name in ("ops", "team")}
    assert len(keys) == 2


async def test_refused_message_is_sent_again_under_the_same_key(world):
    letter = await a_letter(world)
    await world.store.record_delivery(letter, DeliveryResult("waiting", "busy", BACKOFF[0]))
    assert await world.store.take_message("ops") is None
    world.clock.advance(BACKOFF[0])
    again = await world.store.take_message("ops")
    assert (again.key, again.attempt, again.bundle) == (letter.key, 2, letter.bundle)


@pytest.mark.parametrize(
    ("settled", "event"),
    [
        (DeliveryResult("sent"), "notice.sent"),
        (DeliveryResult("failed", "HTTP 404"), "notice.failed"),
        (DeliveryResult("in_doubt", "no answer"), "notice.in_doubt"),
    ],
)
async def test_delivery_result_is_an_event_without_a_notification(world, settled, event):
    letter = await a_letter(world)
    await world.new_events()
    assert await world.store.record_delivery(letter, settled)
    (told,) = await world.new_events()
    assert (told.name, told.channel, told.error) == (event, "ops", settled.error)
    assert await states(world) == {"ops": {settled.state: 1}}
    assert (await collect(world)).rows == 0
    assert await world.store.take_message("ops") is None


async def test_message_of_a_silent_sender_is_in_doubt_and_never_sent_again(world):
    letter = await a_letter(world)
    world.clock.advance(2 * MINUTE - 1)
    assert not (await world.store.to_send(["ops"])).has_silent
    assert await world.store.mark_in_doubt() == 0
    world.clock.advance(1)
    assert (await world.store.to_send([])).has_silent
    await world.new_events()
    assert await world.store.mark_in_doubt() == 1
    (told,) = await world.new_events()
    assert (told.name, told.level, told.message_id) == (
        "notice.in_doubt", "error", letter.message_id,
    )  # fmt: skip
    world.clock.advance(24 * HOUR)
    assert await world.store.take_message("ops") is None
    assert await world.store.mark_in_doubt() == 0


async def test_late_sender_still_records_the_delivery(world):
    letter = await a_letter(world)
    world.clock.advance(3 * MINUTE)
    await world.store.mark_in_doubt()
    assert await world.store.record_delivery(letter, DeliveryResult("sent"))
    assert await states(world) == {"ops": {"sent": 1}}
    assert not await world.store.record_delivery(letter, DeliveryResult("waiting"))


async def test_result_of_an_earlier_attempt_changes_nothing(world):
    letter = await a_letter(world)
    await world.store.record_delivery(letter, DeliveryResult("waiting"))
    await world.store.take_message("ops")
    assert not await world.store.record_delivery(letter, DeliveryResult("sent"))
    assert await states(world) == {"ops": {"sending": 1}}


async def test_messages_are_pruned_except_those_being_sent(world):
    sent = await a_letter(world)
    await world.store.record_delivery(sent, DeliveryResult("sent"))
    await a_letter(world)
    await fail(world)
    await collect(world, lambda found: to(("nobody",), found))
    world.clock.advance(31 * 24 * HOUR)
    await world.store.prune(before=world.clock.now() - 30 * 24 * HOUR)
    assert await states(world) == {"ops": {"sending": 1}}


async def test_restored_database_gives_no_message_key_twice(world):
    first = await a_letter(world)
    await world.close()
    again = "UPDATE outbox SET created_at = created_at + 1, due_at = 0, state = 'waiting'"
    world.database.tamper(again)
    await world.restart()
    assert (await world.store.take_message("ops")).key != first.key


async def test_last_error_of_a_channel_is_stored(world):
    await world.store.record_delivery(await a_letter(world), DeliveryResult("failed", "HTTP 404"))
    (row,) = await world.store.channels()
    assert (row.channel, row.error, row.sent_at) == ("ops", "HTTP 404", None)

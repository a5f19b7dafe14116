"""Following new time zone data: no tick starts at a time that is invalid by the new data.

It is noon UTC on New Year's Day; `berlin` ticks at 14:30 there, which is 13:30 UTC. Due rows "of older
data" are moved by the tests, as rules that have changed since would have computed them.
"""

import asyncio
import random

import pytest

from onbeat.core.time.instants import parse_instant
from onbeat.core.time.zones import VERSION, digests
from onbeat.stores.sql import rows, zone_data
from onbeat.testing import a_schedule
from tests.stores.conftest import planned

BERLIN = {"cron": "30 14 * * *", "timezone": "Europe/Berlin"}
TOKYO = {"cron": "0 23 * * *", "timezone": "Asia/Tokyo"}  # 14:00 UTC


def at(text, day=1):
    return parse_instant(f"2026-01-{day:02}T{text}:00Z")


@pytest.fixture
def small_batches(monkeypatch):
    """Nothing is followed before a node plans, but for one schedule."""
    monkeypatch.setattr(zone_data, "BATCH", 1)
    monkeypatch.setattr(zone_data, "MOST_SOON", 0)


async def with_older_data(world, moved, *, digests_of=None, restart=True):
    """Make the due rows of schedules those of older data, moved to the times of `moved`."""
    await world.close()
    world.database.tamper("UPDATE meta SET value = '1999a' WHERE name = 'tz'")
    world.database.tamper("DELETE FROM meta WHERE name = 'tz_zones'")
    if digests_of is not None:
        text = zone_data.as_json(digests_of)
        world.database.tamper("INSERT INTO meta (name, value) VALUES ('tz_zones', ?)", (text,))
    for schedule_id, run_at in moved.items():
        values = (run_at, run_at * 1000, schedule_id)
        world.database.tamper("UPDATE due SET run_at = ?, due_at = ? WHERE schedule_id = ?", values)
    if restart:
        await world.restart()


async def follow_all(store, limit=1):
    while (found := await store.follow_zones(limit=limit)) is not None:
        if found.is_done:
            return


async def next_ticks(world):
    return {row.schedule_id: row.next_run_at for row in await world.store.schedules()}


async def test_few_schedules_follow_new_zone_data_before_the_node_plans(world):
    await world.define("berlin", **BERLIN)
    await world.define("utc")
    await with_older_data(world, {"berlin": at("15:30")})
    assert await next_ticks(world) == {"berlin": at("13:30"), "utc": at("13:00")}
    assert (await world.store.overview()).following is None
    assert await world.store.follow_zones(limit=1) is None


async def test_due_row_of_older_zone_data_is_recomputed_before_it_is_decided(world, small_batches):
    await world.define("a")
    await world.define("berlin", **BERLIN)
    await with_older_data(world, {"berlin": at("12:30")})
    await world.tick("45m")  # by the older data it is due at 12:30
    assert await world.runs("run_at", "berlin") == []
    assert (await next_ticks(world))["berlin"] == at("13:30")
    await world.tick("45m")
    assert await world.runs("run_at status", "berlin") == [(at("13:30"), "ENQUEUED")]
    assert (await next_ticks(world))["berlin"] == at("13:30", day=2)


async def test_tick_moved_earlier_by_new_zone_data_is_planned_in_time(world, small_batches):
    await world.define("a")
    await world.define("berlin", **BERLIN)
    await with_older_data(world, {"berlin": at("15:30")})
    assert (await next_ticks(world))["berlin"] == at("15:30")
    await follow_all(world.store)
    await world.tick("90m")
    assert await world.runs("run_at triggered_by", "berlin") == [(at("13:30"), "timer")]


async def test_due_rows_of_the_next_hours_follow_zone_data_before_planning(world, monkeypatch):
    monkeypatch.setattr(zone_data, "BATCH", 1)
    for name in ("a", "b", "c"):
        await world.define(name)
    await world.define("soon", **BERLIN)
    await world.define("tokyo", cron="0 9 * * *", timezone="Asia/Tokyo")
    await with_older_data(world, {"soon": at("14:30"), "tokyo": at("20:00")})
    found = await next_ticks(world)
    assert (found["soon"], found["tokyo"]) == (at("13:30"), at("20:00"))
    assert (await world.store.overview()).following.done == 1
    of_ann = world.store.as_caller("ann", only_owner="ann")
    assert (await of_ann.overview()).following is None, "it counts the schedules of all owners"


async def test_following_zone_data_resumes_after_a_crash(world, small_batches):
    names = [f"s-{n}" for n in range(6)]
    await world.store.upsert([a_schedule(name, **BERLIN) for name in names])
    await with_older_data(world, dict.fromkeys(names, at("15:30")))
    await world.store.follow_zones(limit=2)
    found = (await world.store.overview()).following
    assert (found.version, found.done, found.total, found.moved) == (VERSION, 3, 6, 3)
    await world.restart()  # which follows one more
    assert list((await next_ticks(world)).values()) == [at("13:30")] * 4 + [at("15:30")] * 2
    await follow_all(world.store)
    assert set((await next_ticks(world)).values()) == {at("13:30")}
    assert (await world.store.overview()).following is None


class Crash(BaseException):
    """The process dies here."""


async def test_interrupted_batch_moves_no_due_row(world, small_batches, monkeypatch):
    names = [f"s-{n}" for n in range(6)]
    await world.store.upsert([a_schedule(name, **BERLIN) for name in names])
    await with_older_data(world, dict.fromkeys(names, at("15:30")))
    before, computed = await next_ticks(world), zone_data.next_due

    def crash_in_the_middle(schedule, *given):
        if schedule.schedule_id == "s-3":
            raise Crash
        return computed(schedule, *given)

    with monkeypatch.context() as broken:
        broken.setattr(zone_data, "next_due", crash_in_the_middle)
        with pytest.raises(Crash):
            await world.store.follow_zones(limit=5)
    assert await next_ticks(world) == before
    await follow_all(world.store)
    assert set((await next_ticks(world)).values()) == {at("13:30")}


async def test_recomputed_tick_is_later_than_the_last_decided_one(world, small_batches):
    await world.define("a")
    await world.define("berlin", **BERLIN)
    await world.tick("90m")
    await with_older_data(world, {"berlin": at("12:30", day=2)})
    await follow_all(world.store)
    assert (await next_ticks(world))["berlin"] == at("13:30", day=2)
    assert await world.runs("run_at", "berlin") == [at("13:30")]


@pytest.mark.parametrize("action", ["edit", "delete", "gate", "pause"])
async def test_no_tick_is_recorded_at_a_time_of_older_zone_data(world, small_batches, action):
    await world.define("a")
    await world.define("berlin", **BERLIN)
    await with_older_data(world, {"berlin": at("12:30")})
    world.clock.advance("45m")
    store = world.store
    if action == "edit":
        await world.define("berlin", **BERLIN | {"cron": "0 22 * * *"})
    elif action == "delete":
        await store.delete("berlin")
    elif action == "gate":
        await store.set_gate(is_open=False)
        await store.set_gate(is_open=True)
    else:
        await store.pause("berlin")
        await store.resume("berlin")
    await world.plan()
    assert await world.runs("run_at status", "berlin") == []


async def test_zones_with_unchanged_rules_are_skipped(world, small_batches):
    await world.define("a")
    await world.define("berlin", **BERLIN)
    await world.define("tokyo", **TOKYO)
    before = digests() | {"Asia/Tokyo": "other"}
    moved = {"berlin": at("15:30"), "tokyo": at("16:00")}
    await with_older_data(world, moved, digests_of=before)
    await follow_all(world.store)
    found = await next_ticks(world)
    assert (found["berlin"], found["tokyo"]) == (at("15:30"), at("14:00"))


async def test_unchanged_zones_move_no_due_row(world, small_batches):
    await world.define("a")
    await world.define("berlin", **BERLIN)
    await with_older_data(world, {}, digests_of=digests())
    assert (await world.store.overview()).following is None


async def test_second_zone_data_change_keeps_the_remaining_work_of_the_first(world, small_batches):
    await world.define("a")
    await world.define("berlin", **BERLIN)
    await world.define("tokyo", **TOKYO)
    moved = {"berlin": at("15:30"), "tokyo": at("16:00")}
    await with_older_data(world, moved, digests_of=digests() | {"Asia/Tokyo": "other"})
    await with_older_data(world, {}, digests_of=digests() | {"Europe/Berlin": "other"})
    await follow_all(world.store)
    found = await next_ticks(world)
    assert (found["berlin"], found["tokyo"]) == (at("13:30"), at("14:00"))


async def test_due_row_written_with_older_zone_data_is_recomputed(world, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(rows, "VERSION", "1999a")
        await world.define("berlin", **BERLIN)
    world.database.tamper(
        f"UPDATE due SET run_at = {at('12:30')}, due_at = {at('12:30')}000"  # as it would compute it
    )
    await world.tick("45m")
    assert await world.runs("run_at", "berlin") == []
    await follow_all(world.store)
    assert (await world.store.overview()).following is None
    assert (await next_ticks(world))["berlin"] == at("13:30")


async def test_program_with_newer_zone_data_keeps_due_rows_of_the_nodes(world):
    await world.define("berlin", **BERLIN)
    world.database.tamper("UPDATE meta SET value = '9999z' WHERE name = 'tz'")
    assert await world.store.follow_zones(limit=1) is None
    await world.define("other", **BERLIN)
    assert await world.store.follow_zones(limit=1) is None
    assert (await world.store.overview()).following.version == "9999z"


async def test_postponed_tick_stays_postponed(world, small_batches):
    await world.define("a")
    await world.define("berlin", **BERLIN)
    await with_older_data(world, {}, restart=False)
    later = (at("13:35") * 1000,)
    world.database.tamper("UPDATE due SET due_at = ? WHERE schedule_id = 'berlin'", later)
    world.clock.advance("92m")
    await world.restart()
    await follow_all(world.store)
    assert (await world.schedule("berlin")).next_due_at == at("13:35") * 1000


async def test_unreadable_definition_does_not_stop_others_from_following(world, small_batches):
    await world.define("a", **BERLIN)
    await world.define("berlin", **BERLIN)
    world.database.tamper(
        """UPDATE schedules SET definition = '{"timezone":"Nowhere"}' WHERE schedule_id = 'a'"""
    )
    await with_older_data(world, {"berlin": at("15:30")})
    await follow_all(world.store)
    assert (await next_ticks(world))["berlin"] == at("13:30")


async def test_nodes_that_follow_zone_data_concurrently_agree(world, small_batches):
    names = [f"s-{n:02}" for n in range(40)]
    await world.store.upsert([a_schedule(name, **BERLIN) for name in names])
    await with_older_data(world, dict.fromkeys(names, at("15:30")))
    beside = await world.second()
    world.clock.advance("90m")

    async def plan_all(store):
        for _ in range(20):
            await store.plan_due(planned, limit=3)

    both = (world.store, beside)
    await asyncio.gather(
        *(follow_all(store, limit=3) for store in both), *(plan_all(store) for store in both)
    )
    for _ in range(20):
        await world.plan()
    assert sorted(await world.runs("schedule_id run_at")) == [(name, at("13:30")) for name in names]
    assert set((await next_ticks(world)).values()) == {at("13:30", day=2)}


@pytest.mark.parametrize("seed", range(8))
async def test_ticks_are_those_of_the_newer_zone_data_under_random_events(
    world, small_batches, seed
):
    """Batches, plans, crashes and edits in any order: each tick has one row, at its own time."""
    drawn = random.Random(seed)
    names = [f"s-{n}" for n in range(8)]
    when = {name: f"{drawn.randrange(60)} {drawn.randrange(14, 19)} * * *" for name in names}
    zoned = {"timezone": "Europe/Berlin", "catchup": "all", "catchup_window": "7d"}
    for name in names:
        await world.define(name, cron=when[name], **zoned)
    expected = await next_ticks(world)
    shift = {name: drawn.choice([-5400, -3600, 0, 3600, 86_400]) for name in names}
    older = {name: max(run_at + shift[name], at("12:01")) for name, run_at in expected.items()}
    await with_older_data(world, older)
    for _ in range(12):
        match drawn.choice(["follow", "plan", "plan", "restart", "edit", "pass"]):
            case "follow":
                await world.store.follow_zones(limit=drawn.randrange(1, 4))
            case "plan":
                await world.plan(limit=drawn.randrange(1, 4))
            case "restart":
                await world.restart()
            case "edit":
                name = drawn.choice(names)
                text = f"v{drawn.randrange(99)}"
                await world.define(name, cron=when[name], description=text, **zoned)
            case _:
                world.clock.advance(f"{drawn.randrange(30)}m")
    await follow_all(world.store)
    world.clock.advance(at("23:00") * 1000 - world.clock.now())
    while (await world.plan()).ticks:
        pass
    assert dict(await world.runs("schedule_id run_at")) == expected
    assert len(await world.rows()) == len(names)

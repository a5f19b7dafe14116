"""Schedules defined in bulk equal schedules defined one by one."""

import pytest

from onbeat.core.time.instants import parse_instant
from onbeat.errors import InvalidSchedule, NotAllowed, RevisionConflict
from onbeat.events import RunSkipped, ScheduleChanged, ScheduleCreated
from onbeat.ports.store import InitialPosition
from onbeat.stores.sql import bulk_create, transaction
from onbeat.testing import a_schedule

KINDS = [
    {"every": "1h"},
    {"every": "1h", "group": "db"},
    {"cron": "30 14 * * *", "timezone": "Europe/Berlin"},
    {"cron": "H * * * *"},
    {"at": "2026-01-01T11:59:30Z"},  # within its grace
    {"at": "2026-01-01T09:00:00Z"},  # missed
    {"at": ["2026-01-01T08:00:00Z", "2026-01-01T09:00:00Z", "2026-02-01T09:00:00Z"]},
    {"at": "2026-12-01T09:00:00Z"},
    {"daily": "17:00", "max_runs": 3, "description": "three times"},
    {"startup": "30s"},
    {"after": {"success": "30m"}},
    {"manual": True},
    {"every": "10m", "enabled": False},
]


def plainly(row):
    """Return a row as it would be of any schedule."""
    fields = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return {name: value for name, value in fields.items() if name not in {"schedule_id", "run_id"}}


async def standing(world, name):
    runs = [plainly(run) for run in await world.rows(name)]
    return plainly(await world.schedule(name)), runs


async def test_schedule_defined_in_bulk_equals_one_defined_alone(world):
    together = [a_schedule(f"together/{n:02}", **fields) for n, fields in enumerate(KINDS)]
    await world.store.upsert(together, source="file.yaml", user_id="ada")
    events = await world.new_events()
    for n, fields in enumerate(KINDS):
        # With a beginning, even an empty one, it is defined by itself.
        name = f"alone/{n:02}"
        begin = {name: InitialPosition()}
        await world.store.upsert(
            [a_schedule(name, **fields)], source="file.yaml", user_id="ada", initial_positions=begin
        )
    hashed = 3  # what H is depends on the id
    for n in set(range(len(KINDS))) - {hashed}:
        assert await standing(world, f"together/{n:02}") == await standing(world, f"alone/{n:02}")
    told = await world.new_events()
    for kind in (ScheduleCreated, RunSkipped):
        found = [each.schedule_id for each in events if isinstance(each, kind)]
        alone = [each.schedule_id for each in told if isinstance(each, kind)]
        assert [name[-2:] for name in found] == [name[-2:] for name in alone]
    assert [row.name for row in await world.store.groups()] == ["db"]


async def test_new_changed_and_unchanged_schedules_are_distinguished(world):
    await world.store.upsert([a_schedule("a"), a_schedule("b")], source="x")
    await world.new_events()
    given = [a_schedule("a"), a_schedule("b", every="2h"), a_schedule("c")]
    done = await world.store.upsert(given, source="x")
    assert [(each.schedule_id, each.change, each.revision) for each in done] == [
        ("a", "unchanged", 1),
        ("b", "changed", 2),
        ("c", "created", 1),
    ]
    assert {type(each) for each in await world.new_events()} == {ScheduleChanged, ScheduleCreated}
    assert {each.change for each in await world.store.upsert(given, source="x")} == {"unchanged"}
    assert await world.new_events() == []


async def test_id_given_twice_is_created_and_then_edited(world, monkeypatch):
    monkeypatch.setattr(bulk_create, "BATCH", 2)
    given = [a_schedule(name, every=every) for name, every in
             [("a", "1h"), ("b", "1h"), ("c", "1h"), ("a", "2h")]]  # fmt: skip
    done = await world.store.upsert(given)
    assert [each.change for each in done] == ["created", "created", "created", "changed"]
    assert '"every":"2h"' in (await world.schedule("a")).definition


async def test_recreated_schedule_continues_its_revision(world):
    await world.store.upsert([a_schedule("a"), a_schedule("b")])
    await world.tick("1h")
    await world.store.delete("a")
    done = await world.store.upsert([a_schedule("a"), a_schedule("b")])
    assert [(each.change, each.revision) for each in done] == [("created", 2), ("unchanged", 1)]


async def test_other_source_takes_over_an_unchanged_schedule(world):
    await world.store.upsert([a_schedule("a")], source="x")
    done = await world.store.upsert([a_schedule("a"), a_schedule("b")], source="y")
    assert [each.change for each in done] == ["unchanged", "created"]
    assert (await world.schedule("a")).source == "y"


async def test_one_invalid_schedule_prevents_the_whole_bulk(world):
    given = [a_schedule("a"), a_schedule("b", after={"schedule": "nowhere", "outcome": "success"})]
    with pytest.raises(InvalidSchedule, match="nowhere"):
        await world.store.upsert(given)
    assert await world.store.schedules() == []


async def test_schedule_of_another_owner_is_refused_among_new_ones(world):
    await world.store.upsert([a_schedule("a")], user_id="ada")
    store = world.store.as_caller("bob", only_owner="bob")
    with pytest.raises(NotAllowed, match="a belongs to another owner"):
        await store.upsert([a_schedule("b"), a_schedule("a")], user_id="bob")
    assert await world.schedule("b") is None


@pytest.mark.parametrize("expected", [{"a": 1, "b": 1}, {"a": 2, "b": None}, {"a": None}])
async def test_unexpected_revision_is_refused_among_many(world, expected):
    await world.store.upsert([a_schedule("a")])
    with pytest.raises(RevisionConflict):
        await world.store.upsert([a_schedule("a"), a_schedule("b")], expected=expected)
    await world.store.upsert([a_schedule("a"), a_schedule("b")], expected={"a": 1, "b": None})


async def test_events_of_many_schedules_are_stored_in_rows_of_bounded_size(world, monkeypatch):
    monkeypatch.setattr(transaction, "MOST_EVENTS", 10)
    await world.store.upsert([a_schedule(f"s-{n:02}") for n in range(25)])
    rows = await world.store.events(after=0, limit=100)
    created = [row for row in rows if isinstance(row.event, ScheduleCreated)]
    assert [row.event.schedule_id for row in created] == [f"s-{n:02}" for n in range(25)]
    assert len({row.event_id for row in created}) == 3


async def test_single_time_within_its_grace_is_decided_after_a_bulk_define(world):
    names = [f"s-{n}" for n in range(5)]
    await world.store.upsert([a_schedule(name, at="2026-01-01T11:59:30Z") for name in names])
    await world.plan()
    run_at = parse_instant("2026-01-01T11:59:30Z")
    assert sorted(await world.runs("schedule_id run_at status")) == [
        (name, run_at, "ENQUEUED") for name in names
    ]

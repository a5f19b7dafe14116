"""The definitions of a source and its stored schedules are brought in step, by one decision."""

import asyncio

import pytest

from onbeat import Onbeat
from onbeat.errors import InvalidSchedule
from onbeat.systems.reconcile import (
    DefineSchedule,
    DeleteSchedule,
    KeepSchedule,
    Problems,
    RejectDefinition,
    RejectId,
    SourceSchedules,
    Wanted,
    reconcile,
)
from onbeat.testing import ManualClock, a_schedule
from tests.given_settings import given_settings

REFUSED = InvalidSchedule("run", "no launcher accepts it", hint="")


def wanted(*names):
    return [Wanted(a_schedule(name), "run") for name in names]


def outline(actions):
    """Return actions as short texts."""
    found = []
    for action in actions:
        match action:
            case RejectId(name) | RejectDefinition(name, _):
                found.append(f"{type(action).__name__} {name}")
            case DefineSchedule(schedule, row):
                how = "new" if row is None else f"revision {row.revision}"
                found.append(f"DefineSchedule {schedule.schedule_id} {how}")
            case KeepSchedule(row) | DeleteSchedule(row):
                found.append(f"{type(action).__name__} {row.schedule_id}")
    return found


def with_store(story, *, own=(), others=()):
    """Run a story with a service, and the schedules of two sources in its store."""

    async def whole():
        settings = given_settings(database="sqlite://")
        async with Onbeat(settings=settings, clock=ManualClock("2026-01-01T12:00:00Z")) as beat:
            await beat.service.define([a_schedule(name) for name in own], source="own")
            await beat.service.define([a_schedule(name) for name in others], source="other")
            return await story(beat.service)

    return asyncio.run(whole())


def rows_of(*, own=(), others=()):
    async def story(service):
        return await service.schedules()

    return with_store(story, own=own, others=others)


def accepts(_):
    """Refuse nothing."""


def refuses(*names):
    def check(each):
        if each.schedule.schedule_id in names:
            raise REFUSED

    return check


@pytest.mark.parametrize(
    ("names", "stored", "check", "expected"),
    [
        ([], {}, accepts, []),
        (["a"], {}, accepts, ["DefineSchedule a new"]),
        (["a"], {"own": "a"}, accepts, ["DefineSchedule a revision 1"]),
        ([], {"own": "ba"}, accepts, ["DeleteSchedule a", "DeleteSchedule b"]),
        ([], {"others": "a"}, accepts, []),
        (["a"], {"others": "a"}, accepts, ["RejectId a"]),
        (["a", "b"], {}, refuses("a"), ["RejectDefinition a", "DefineSchedule b new"]),
        (["a"], {"own": "a"}, refuses("a"), ["RejectDefinition a", "DeleteSchedule a"]),
        (
            ["d", "c", "b", "a"],
            {"own": "ez", "others": "b"},
            refuses("c"),
            [
                "RejectId b", "RejectDefinition c", "DeleteSchedule e", "KeepSchedule z",
                "DefineSchedule d new", "DefineSchedule a new",
            ],
        ),
    ],
)  # fmt: skip
def test_decision_about_the_schedules_of_a_source(names, stored, check, expected):
    actions = reconcile(
        wanted(*names),
        rows_of(**stored),
        source="own",
        check=check,
        is_readable=lambda row: row.schedule_id != "z",
    )
    assert outline(actions) == expected


def test_reasons_of_rejected_definitions_are_kept():
    (action,) = reconcile(wanted("a"), [], source="own", check=refuses("a"))
    assert action == RejectDefinition("a", REFUSED)


def test_actions_change_only_the_schedules_of_the_source():
    async def story(service):
        schedules = SourceSchedules(service, "own", field_names={}, user_id="ann")
        actions = await schedules.compare(wanted("new", "same", "taken"))
        before = {row.schedule_id for row in await service.schedules()}
        await schedules.carry_out(actions)
        after = {row.schedule_id: row for row in await service.schedules()}
        return before, {name: (row.source, row.revision) for name, row in after.items()}, after

    before, found, rows = with_store(story, own=["gone", "same"], others=["taken", "more"])
    assert before == {"gone", "same", "taken", "more"}, "a comparison changes nothing"
    assert found == {
        "new": ("own", 1), "same": ("own", 1), "taken": ("other", 1), "more": ("other", 1),
    }  # fmt: skip
    assert rows["new"].user_id == "ann"


def test_field_of_a_refused_target_is_named_as_in_the_source():
    async def story(service):
        schedules = SourceSchedules(service, "own", field_names={"run.command": "argv"})
        secret = a_schedule("a", run={"command": ["login", "secret://token"]})
        return await schedules.compare([Wanted(secret, "services.a"), *wanted("b")])

    refused, defined = with_store(story)
    assert isinstance(refused, RejectDefinition)
    assert refused.why.field == "services.a.argv[1]"
    assert outline([defined]) == ["DefineSchedule b new"]


def test_problem_is_new_until_it_is_recorded_and_again_after_it_was_solved():
    problems = Problems()
    assert problems.record("a", "broken")
    assert not problems.record("a", "broken")
    assert problems.record("a", "broken otherwise")
    assert problems.record("b", "broken")
    problems.clear("a")
    assert problems.record("a", "broken otherwise")


def test_replaced_problems_are_reported_where_they_differ():
    problems = Problems()
    assert problems.replace({"a": "one", "b": "two"}) == {"a": "one", "b": "two"}
    assert problems.replace({"b": "two", "c": "three"}) == {"c": "three"}
    assert problems.replace({"a": "one"}) == {"a": "one"}
    assert problems.by_id == {"a": "one"}

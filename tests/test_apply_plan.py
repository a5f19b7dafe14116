"""Definitions of a source: the plan shows the changes, and apply makes exactly those."""

import asyncio
from functools import wraps

import pytest

from onbeat import Onbeat
from onbeat.core.explain.tick_diff import LEFT_OUT, Difference
from onbeat.core.schedule import from_definition
from onbeat.errors import InvalidSchedule, NoSuchSchedule, RevisionConflict, SourceConflict
from onbeat.service.access import Caller
from onbeat.service.apply_plan import NOT_COUNTED, PAUSED, compare
from onbeat.testing import ManualClock, RecordingLauncher, a_schedule

MONDAY = "2026-01-05T00:00:00Z"


class ChangesHarness:
    """A scheduler on a clock that is turned, and what it started."""

    def __init__(self):
        self.clock, self.launcher = ManualClock(MONDAY), RecordingLauncher()
        self.beat = Onbeat("sqlite://", clock=self.clock, launchers={"command": self.launcher})

    @property
    def service(self):
        return self.beat.service

    async def plan(self, *schedules, source="file", **wish):
        return await self.service.plan_changes(schedules, source=source, **wish)

    async def apply(self, *schedules, **wish):
        return await self.service.apply(await self.plan(*schedules, **wish))

    async def ids(self):
        return [row.schedule_id for row in await self.service.schedules()]

    async def advance(self, length):
        self.clock.advance(length)
        await self.beat.settle()

    def started(self):
        return [attempt.schedule_id for attempt in self.launcher.attempts]


def lived(test):
    """Run a test in a world of its own."""

    @wraps(test)
    def run():
        async def play():
            world = ChangesHarness()
            async with world.beat:
                await test(world)

        asyncio.run(play())

    del run.__wrapped__  # or pytest would look for a fixture called `world`
    return run


def kinds(changes):
    return {each.schedule_id: each.kind for each in changes.changes}


@lived
async def test_plan_has_the_kind_of_change_of_each_schedule(world):
    await world.apply(a_schedule("same"), a_schedule("other"), a_schedule("old"))
    await world.service.define([a_schedule("theirs")], source="elsewhere")
    found = await world.plan(a_schedule("same"), a_schedule("other", every="2h"), a_schedule("new"), a_schedule("theirs"))  # fmt: skip
    assert kinds(found) == {
        "same": "unchanged", "other": "change", "new": "create", "theirs": "taken", "old": "keep",
    }  # fmt: skip
    assert kinds(await world.plan(a_schedule("same"), prune=True)) == {
        "same": "unchanged", "old": "remove", "other": "remove",
    }  # fmt: skip
    assert await world.ids() == ["old", "other", "same", "theirs"]  # nothing was touched


@lived
async def test_plan_has_the_ticks_gained_and_lost_within_a_week(world):
    await world.apply(a_schedule("a", cron="0 9 * * *"), a_schedule("b"))
    found = await world.plan(a_schedule("a", cron="0 9 * * MON-FRI"), a_schedule("c", every="30m"), prune=True)  # fmt: skip
    assert {e.schedule_id: (e.effect.gained, e.effect.lost) for e in found.changes} == {
        "a": (0, 2), "b": (0, 168), "c": (336, 0),
    }  # fmt: skip
    (change,) = found.of("change")
    assert change.fields == [Difference("cron", "0 9 * * *", "0 9 * * MON-FRI")]
    assert change.words == "at 09:00 on Monday to Friday, UTC"


@lived
async def test_apply_does_what_was_planned_and_leaves_no_changes(world):
    wish = [a_schedule("a"), a_schedule("b")]
    await world.apply(a_schedule("old"), a_schedule("a", every="2h"))
    done = await world.apply(*wish, prune=True)
    assert [(each.schedule_id, each.change) for each in done] == [
        ("a", "changed"),
        ("b", "created"),
    ]
    assert await world.ids() == ["a", "b"]
    assert (await world.plan(*wish, prune=True)).changes_nothing


@lived
async def test_refused_schedule_prevents_the_whole_apply(world):
    await world.apply(a_schedule("old"))
    circle = a_schedule("b", after={"schedule": "c", "outcome": "success"})
    back = a_schedule("c", after={"schedule": "b", "outcome": "success"})
    with pytest.raises(InvalidSchedule):
        await world.apply(a_schedule("a"), circle, back, prune=True)
    assert await world.ids() == ["old"]


@lived
async def test_apply_is_refused_after_another_edit_since_the_plan(world):
    await world.apply(a_schedule("a"), a_schedule("b"), a_schedule("old"))
    planned = await world.plan(a_schedule("a", every="2h"), a_schedule("b"), prune=True)
    await world.service.define([a_schedule("b", every="5h")])  # it was unchanged, as planned
    with pytest.raises(RevisionConflict, match="b has revision 2, but revision 1 was expected"):
        await world.service.apply(planned)
    assert await world.ids() == ["a", "b", "old"]
    planned = await world.plan(a_schedule("new"))
    await world.service.define([a_schedule("new", every="5h")])
    with pytest.raises(RevisionConflict, match="new has revision 1, but no schedule was expected"):
        await world.service.apply(planned)


@lived
async def test_prune_removes_only_schedules_of_the_same_source(world):
    await world.service.define([a_schedule("by-hand")])
    await world.service.define([a_schedule("theirs")], source="elsewhere")
    await world.apply(a_schedule("mine"), a_schedule("old"))
    await world.apply(a_schedule("mine"), prune=True)
    assert await world.ids() == ["by-hand", "mine", "theirs"]


@lived
async def test_plan_ignores_rows_of_other_sources(world):
    await world.service.define([a_schedule("theirs")], source="elsewhere")
    await world.apply(a_schedule("mine"))
    found = compare([], await world.service.schedules(), source="file", now=0, prune=True)
    assert kinds(found) == {"mine": "remove"}


@lived
async def test_id_of_another_source_is_refused_without_take_over(world):
    await world.service.define([a_schedule("theirs")], source="elsewhere")
    await world.service.define([a_schedule("by-hand")])
    wish = [a_schedule("theirs"), a_schedule("by-hand"), a_schedule("new")]
    with pytest.raises(SourceConflict, match="theirs is of elsewhere, by-hand is of no source: nothing was changed"):  # fmt: skip
        await world.apply(*wish)
    assert await world.ids() == ["by-hand", "theirs"]
    found = await world.plan(*wish, take_over=True)
    assert [list(each.notes) for each in found.of("change")] == [
        ["taken over, it was of elsewhere"], ["taken over, it was of no source"],
    ]  # fmt: skip
    await world.service.apply(found)
    assert {row.source for row in await world.service.schedules()} == {"file"}


@lived
async def test_plan_shows_the_edit_that_apply_would_overwrite(world):
    await world.apply(a_schedule("a", every="1h", timeout="5m", grace="2m"))
    ada = world.service.of(Caller("ada", "admin"))
    await ada.define([a_schedule("a", every="1h", timeout="9m", jitter="1m", grace="2m")])
    found = await world.plan(a_schedule("a", every="1h", timeout="5m"))
    (change,) = found.changes
    assert change.kind == "change"
    assert list(change.fields) == [
        Difference("grace", "2m", LEFT_OUT),
        Difference("jitter", "1m", LEFT_OUT),
        Difference("timeout", "9m", "5m"),
    ]
    assert (change.overwritten, change.edited_by) == ({"jitter", "timeout"}, "ada")
    await world.service.apply(found)
    (row,) = await world.service.schedules()
    assert not row.is_edited
    assert from_definition("a", row.definition).policy.timeout == 300_000


@lived
async def test_edit_with_the_same_content_as_the_file_is_not_a_change(world):
    await world.apply(a_schedule("a"))
    await world.service.define([a_schedule("a", every="2h")])
    assert kinds(await world.plan(a_schedule("a", every="2h"))) == {"a": "unchanged"}
    assert kinds(await world.plan(a_schedule("a"))) == {"a": "change"}
    await world.apply(a_schedule("a", every="2h"))
    (row,) = await world.service.schedules()
    assert not row.is_edited  # the file has said the same


@lived
async def test_apply_never_resumes_a_paused_schedule(world):
    await world.apply(a_schedule("a"), a_schedule("b"))
    await world.service.pause("a", note="for now")
    await world.service.pause("b")
    found = await world.plan(a_schedule("a", every="30m"), a_schedule("b"))
    assert [list(each.notes) for each in found.changes] == [[PAUSED], [PAUSED]]
    await world.service.apply(found)
    assert [(row.paused, row.pause_note) for row in await world.service.schedules()] == [
        (True, "for now"), (True, ""),
    ]  # fmt: skip
    await world.advance("3h")
    assert world.started() == []


@lived
async def test_apply_never_fires_past_ticks(world):
    await world.advance("30m")
    await world.apply(
        a_schedule("a", cron="0 0 * * *"), a_schedule("b")
    )  # midnight was half an hour ago
    await world.beat.settle()
    for hour in ("1h", "30m", "20m", "10m"):  # times that are past on the day, each time
        await world.apply(a_schedule("a", every=hour), a_schedule("b", every=hour))
        await world.beat.settle()
    assert world.started() == []
    await world.advance("10m")
    assert world.started() == ["a", "b"]
    for _ in range(3):
        await world.apply(a_schedule("a", every="10m"), a_schedule("b", every="10m"))
        await world.beat.settle()
    assert world.started() == ["a", "b"]


@lived
async def test_invalid_target_is_refused_by_the_plan(world):
    odd = a_schedule("a", run={"http": "ftp://example.com"})
    with pytest.raises(InvalidSchedule, match=r"a\.run\.http: .* is not a valid URL"):
        await world.plan(odd, a_schedule("b"))
    assert await world.ids() == []


@lived
async def test_ticks_of_a_plan_are_counted_up_to_a_work_limit(world):
    schedules = [a_schedule(name, every="1s") for name in "abc"]
    week = 7
    changes = (await world.plan(*schedules, work=2 * week)).changes
    assert [each.effect.is_known for each in changes] == [True, True, False]
    assert [each.effect.gained for each in changes] == [week * 86_400, week * 86_400, 0]
    assert [list(each.notes) for each in changes] == [[], [], [NOT_COUNTED]]


@lived
async def test_source_with_too_many_schedules_is_refused(world):
    await world.apply(a_schedule("a"), a_schedule("b"))
    assert len((await world.plan(a_schedule("a"), most=2)).changes) == 2
    with pytest.raises(InvalidSchedule, match="schedules: the source has too many"):
        await world.plan(a_schedule("a"), most=1)


@lived
async def test_snapshot_of_too_many_schedules_is_refused(world):
    await world.apply(a_schedule("a"), a_schedule("b"))
    assert len((await world.service.read_snapshot(most=2)).schedules) == 2
    with pytest.raises(InvalidSchedule, match="schedules: there are too many to forecast"):
        await world.service.read_snapshot(most=1)


@lived
async def test_suggestion_for_an_unknown_schedule_reads_few_names(world):
    asked = []

    async def schedules(*given, **bounds):
        asked.append(bounds["limit"])
        return await of_store(*given, **bounds)

    of_store = world.service._store.schedules
    await world.apply(*(a_schedule(f"a-{n:04}") for n in range(600)), a_schedule("report/daily"))
    world.service._store.schedules = schedules
    told = r"no schedule is called 'report/dialy' \(did you mean 'report/daily'\?\)"
    with pytest.raises(NoSuchSchedule, match=told):
        await world.service.schedule("report/dialy")
    assert sum(asked) <= 1000
    with pytest.raises(NoSuchSchedule, match=told):
        await world.service.pause("report/dialy")

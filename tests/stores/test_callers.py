"""Callers of a store: their name in events, the schedules they see, and expected revisions."""

import asyncio

import pytest

from onbeat.core.runs.run import Failed, Succeeded
from onbeat.errors import NoSuchRun, NoSuchSchedule, NotAllowed, RevisionConflict
from onbeat.ports.rows import RunFilter, ScheduleFilter
from onbeat.testing import a_schedule


def ids(rows):
    return [row.schedule_id for row in rows]


async def share(world):
    """A store with a schedule of ann's and one of bob's, each with a run."""
    await world.store.upsert([a_schedule("ann/1")], user_id="ann")
    await world.store.upsert([a_schedule("bob/1")], user_id="bob")
    await world.tick()


class TestCallersOfChanges:
    async def test_every_change_names_its_caller(self, world):
        ann = world.store.as_caller("ann")
        await ann.upsert([a_schedule("report")])
        await ann.upsert([a_schedule("report", every="2h")])
        await ann.pause("report", note="holiday")
        await ann.resume("report")
        run = await ann.enqueue("report", request_id="1")
        await ann.cancel(run.run_id)
        await ann.set_group("crawl", places=3)
        await ann.set_gate(is_open=False)
        await ann.set_gate(is_open=True)
        await ann.delete("report")
        told = [(row.event.name, row.event.by) for row in (await world.store.audit())[::-1]]
        assert told == [
            ("schedule.created", "ann"), ("schedule.changed", "ann"), ("schedule.paused", "ann"),
            ("schedule.resumed", "ann"), ("run.enqueued", "ann"), ("run.canceled", "ann"),
            ("group.changed", "ann"), ("gate.changed", "ann"), ("gate.changed", "ann"),
            ("schedule.deleted", "ann"),
        ]  # fmt: skip
        assert {event.by for event in world.received if event.name.startswith("schedule.")} == {
            "ann"
        }

    async def test_engine_events_have_no_caller(self, world):
        await world.define()
        await world.tick()
        assert await world.store.audit() == []

    async def test_audit_is_read_in_pages_and_for_one_schedule(self, world):
        ann = world.store.as_caller("ann")
        for n in range(5):
            await ann.upsert([a_schedule(f"s{n}")])
        newest, *_ = first = await world.store.audit(limit=2)
        assert [row.event.schedule_id for row in first] == ["s4", "s3"]
        rest = await world.store.audit(before=(first[-1].event_id, first[-1].n))
        assert [row.event.schedule_id for row in rest] == ["s2", "s1", "s0"]
        (one,) = await world.store.audit(schedule_id="s1", limit=1)
        assert one.event.schedule_id == "s1"
        assert newest.event_id == await world.store.newest_event()

    async def test_audit_page_may_end_within_a_transaction(self, world):
        await world.store.as_caller("ann").upsert([a_schedule(f"s{n}") for n in range(5)])
        found, before = [], None
        while page := await world.store.audit(before=before, limit=2):
            found += [row.event.schedule_id for row in page]
            before = (page[-1].event_id, page[-1].n)
        assert found == ["s4", "s3", "s2", "s1", "s0"]


class TestOwners:
    async def test_owner_sees_only_own_schedules_and_runs(self, world):
        await share(world)
        ann = world.store.as_caller("ann", only_owner="ann")
        (run,), (foreign,) = await world.rows("ann/1"), await world.rows("bob/1")
        assert ids(await ann.schedules()) == ids(await ann.runs()) == ["ann/1"]
        assert await ann.schedule("bob/1") is None
        assert (await ann.run(run.run_id)).run_id == run.run_id
        assert await ann.run(foreign.run_id) is None
        assert await ann.runs(RunFilter("bob/1")) == []
        seen = await ann.overview()
        assert (seen.schedules, seen.runs, seen.nodes) == (1, {"ENQUEUED": 1}, [])
        about = {getattr(row.event, "schedule_id", "") for row in await ann.events()}
        assert about == {"ann/1"}
        with pytest.raises(NoSuchSchedule):
            await ann.facts("bob/1", None)

    async def test_owner_changes_nothing_of_other_owners(self, world):
        await share(world)
        ann = world.store.as_caller("ann", only_owner="ann")
        (foreign,) = await world.rows("bob/1")
        before = await world.store.schedules(), await world.rows(), await world.store.events()
        for refused in (
            ann.pause("bob/1"),
            ann.resume("bob/1"),
            ann.delete("bob/1"),
            ann.enqueue("bob/1", request_id="1"),
            ann.backfill("bob/1", first=0, last=10**9, limit=9),
            ann.preview_backfill("bob/1", first=0, last=10**9, limit=9),
        ):
            with pytest.raises(NoSuchSchedule) as told:
                await refused
            assert "bob" not in str(told.value).replace("'bob/1'", ""), "nothing else is revealed"
        for refused in (ann.cancel(foreign.run_id), ann.report(foreign.run_id, Succeeded())):
            with pytest.raises(NoSuchRun):
                await refused
        with pytest.raises(NotAllowed, match="bob/1 belongs to another owner"):
            await ann.upsert([a_schedule("ann/2"), a_schedule("bob/1", every="5s")], user_id="ann")
        after = await world.store.schedules(), await world.rows(), await world.store.events()
        assert after == before

    async def test_deleted_schedule_of_another_owner_is_not_recreated(self, world):
        await share(world)
        await world.store.delete("bob/1")
        ann = world.store.as_caller("ann", only_owner="ann")
        with pytest.raises(NotAllowed):
            await ann.upsert([a_schedule("bob/1")], user_id="ann")


class TestRevisions:
    async def test_edit_of_an_outdated_revision_changes_nothing(self, world):
        await world.define()
        await world.define(every="2h")
        for expected, told in ((1, "but revision 1 was"), (None, "but no schedule was")):
            with pytest.raises(RevisionConflict, match=told):
                await world.store.upsert(
                    [a_schedule("report", every="3h")], expected={"report": expected}
                )
        with pytest.raises(RevisionConflict, match="does not exist, but revision 1 was expected"):
            await world.store.upsert([a_schedule("other")], expected={"other": 1})
        with pytest.raises(RevisionConflict):
            await world.store.delete("report", expected=1)
        assert ids(await world.store.schedules()) == ["report"]
        (done,) = await world.store.upsert(
            [a_schedule("report", every="3h")], expected={"report": 2}
        )
        assert done.revision == 3
        await world.store.delete("report", expected=3)
        assert await world.store.schedules() == []

    async def test_one_of_two_concurrent_edits_of_a_revision_succeeds(self, world):
        await world.define()
        other = await world.second()
        edits = [
            store.upsert([a_schedule("report", every=every)], expected={"report": 1})
            for store, every in ((world.store, "2h"), (other, "3h"))
        ]
        found = await asyncio.gather(*edits, return_exceptions=True)
        assert sorted(type(each).__name__ for each in found) == ["RevisionConflict", "list"]
        assert (await world.schedule()).revision == 2

    async def test_define_and_remove_are_one_transaction(self, world):
        await world.store.upsert([a_schedule("old"), a_schedule("kept")])
        with pytest.raises(NoSuchSchedule):
            await world.store.upsert([a_schedule("new")], remove=["old", "never"])
        assert ids(await world.store.schedules()) == ["kept", "old"]
        await world.store.upsert([a_schedule("new")], remove=["old"])
        assert ids(await world.store.schedules()) == ["kept", "new"]


class TestSources:
    async def test_edit_without_a_source_keeps_the_source_and_its_definition(self, world):
        await world.store.upsert([a_schedule("report")], source="one.yaml")
        said = (await world.schedule()).definition
        await world.store.upsert([a_schedule("report", every="2h")])
        row = await world.schedule()
        assert (row.source, row.base, row.is_edited) == ("one.yaml", said, True)
        await world.store.upsert([a_schedule("report", every="2h")], source="one.yaml")
        row = await world.schedule()
        assert (row.base, row.is_edited, row.revision) == (row.definition, False, 2)

    async def test_schedule_moves_to_a_source_with_the_same_definition(self, world):
        await world.store.upsert([a_schedule("report")], source="one.yaml")
        (done,) = await world.store.upsert([a_schedule("report")], source="two.yaml")
        assert (done.change, (await world.schedule()).source) == ("unchanged", "two.yaml")


class TestFiltersAndPages:
    async def test_schedules_are_filtered(self, world):
        await world.store.upsert([a_schedule("a/one"), a_schedule("b/two")], source="x.yaml")
        await world.store.upsert([a_schedule("c_3", every="90s")], user_id="ann")
        await world.store.pause("b/two")

        async def found(**which):
            return ids(await world.store.schedules(ScheduleFilter(**which)))

        assert await found(source="x.yaml") == ["a/one", "b/two"]
        assert await found(owner="ann") == ["c_3"]
        assert await found(paused=True) == ["b/two"]
        assert await found(paused=False, source="x.yaml") == ["a/one"]
        assert await found(ids=["c_3", "never"]) == ["c_3"]
        assert await found(ids=[]) == []
        assert await found(search="TWO") == ["b/two"]
        assert await found(search="90s") == ["c_3"], "also by the definition"
        assert await found(search="_") == ["c_3"], "no letter means more than itself"
        assert await found(search="%") == []

    async def test_failing_schedules_are_those_with_a_failed_last_run(self, world):
        attempt = await world.going()
        await world.store.upsert([a_schedule("fine")])
        await world.end(attempt, Failed("broken"))
        assert ids(await world.store.schedules(ScheduleFilter(failing=True))) == ["report"]
        assert ids(await world.store.schedules(ScheduleFilter(failing=False))) == ["fine"]

    async def test_pages_of_schedules_continue_after_the_last_id(self, world):
        await world.store.upsert([a_schedule(f"s{n}") for n in range(5)])
        assert ids(await world.store.schedules(limit=2)) == ["s0", "s1"]
        assert ids(await world.store.schedules(after="s1", limit=2)) == ["s2", "s3"]
        assert ids(await world.store.schedules(after="s3")) == ["s4"]

    async def test_runs_are_filtered_by_their_outcome(self, world):
        attempt = await world.going()
        await world.tick()  # skipped, as the first still runs
        await world.store.enqueue("report", request_id="1")

        async def found(**which):
            return [row.run_id for row in await world.store.runs(RunFilter(**which))]

        first, skipped, manual = (row.run_id for row in await world.rows())
        assert await found(status="STARTED") == [first] == [attempt.run_id]
        assert await found(reason="overlap") == [skipped]
        assert await found(triggered_by="manual") == [manual]
        planned = (await world.store.run(skipped)).run_at
        assert await found(since=planned, triggered_by="timer") == [skipped]
        assert await found(until=planned) == [first]
        assert await found(before=skipped) == [first]


class TestEvents:
    async def test_events_can_be_read_without_known_ones(self, world):
        await world.store.upsert([a_schedule("a"), a_schedule("b")])
        await world.store.pause("a")
        await world.store.pause("b")
        rows = await world.store.events()
        known = rows[-2].event_id
        left = await world.store.events(after=rows[0].event_id - 1, but=[known])
        assert left == [row for row in rows if row.event_id != known]

    async def test_newest_event_before_a_time_is_found(self, world):
        await world.define()
        then = await world.store.newest_event()
        world.clock.advance("1m")
        await world.store.pause("report")
        assert await world.store.newest_event() > then
        assert await world.store.newest_event(before=world.clock.now()) == then

    async def test_consecutive_failures_and_recovery_are_counted(self, world):
        await world.define()
        told = []
        for outcome in (Failed("a"), Failed("b"), Succeeded(), Succeeded()):
            await world.tick()
            await world.end(await world.start_one(), outcome)
            told.append((await world.new_events())[-1])
        assert [(event.name, event.failures) for event in told] == [
            ("run.failed", 1), ("run.failed", 2), ("run.succeeded", 2), ("run.succeeded", 0),
        ]  # fmt: skip

    @pytest.mark.parametrize(("behind", "late"), [(0, 0), (999, 0), (1000, 1000), (61_000, 61_000)])
    async def test_start_late_by_a_second_is_reported_as_late(self, world, behind, late):
        await world.waiting(grace="5m")
        world.clock.advance(behind)
        await world.start()
        (started,) = [event for event in await world.new_events() if event.name == "run.started"]
        assert started.late == late


class TestRuns:
    async def test_run_row_has_its_user_even_after_its_schedule_was_deleted(self, world):
        await share(world)
        await world.store.upsert([a_schedule("nobody/1")])
        await world.store.enqueue("nobody/1", request_id="1")
        await world.store.delete("bob/1")
        users = {row.schedule_id: row.user for row in await world.store.runs()}
        assert users == {"ann/1": "ann", "bob/1": "bob", "nobody/1": ""}
        (row,) = await world.store.runs(RunFilter("ann/1"))
        assert (await world.store.run(row.run_id)).user == "ann"

    async def test_runs_are_filtered_by_the_source_of_their_schedule(self, world):
        await world.store.upsert([a_schedule("a")], source="flows")
        await world.store.upsert([a_schedule("b")], source="other")
        await world.tick()
        assert ids(await world.store.runs(RunFilter(source="flows"))) == ["a"]
        assert ids(await world.store.runs(RunFilter(source="nobody"))) == []

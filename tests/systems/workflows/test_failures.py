"""Regressions of the origin that must not come back, each with its sentence.

Those of an hour of ticks are in `test_traps.py`; those of the engine in `tests/test_regressions.py`.
"""

import pytest

from onbeat import InvalidSchedule
from tests.inside import in_transaction, store_of
from tests.systems.workflows.conftest import DAG, WorkflowsHarness


@pytest.mark.parametrize("text", ["0 0 31 2 *", "garbage", "* * * *", "0 0 31 4,6,9,11 *"])
def test_a_cron_that_can_never_match_and_garbage_are_refused_when_defined_never_run_every_minute(
    workflows, text
):
    async def story(its):
        with pytest.raises(InvalidSchedule):
            await its.with_dag(cron_expr=text)
        await its.let_pass("1m", "1m")
        return await its.beat.schedules()

    assert workflows.play(story) == []
    assert workflows.keys == []


@pytest.mark.req("W80")
@pytest.mark.parametrize("catchup", ["none", "fire_immediately", "spread"])
def test_upserting_a_schedule_never_fires_the_past_and_never_changes_paused_unless_asked(
    workflows, catchup
):
    async def story(its):
        first = await its.with_dag(start_at="2025-01-01T00:00:00Z", catchup_policy=catchup)
        await its.let_pass("1m")
        assert its.keys == []
        await its.upsert(cron_expr="*/5 * * * *", catchup_policy=catchup)
        await its.let_pass("1m")
        assert its.keys == []
        created = (await its.get())["paused"]
        await its.registrar.pause_schedule("hourly-report", True)
        await its.let_pass("90m")
        await its.upsert(cron_expr="0 * * * *", catchup_policy=catchup)
        await its.let_pass("1m")
        return first["next_run_at"], created, (await its.get())["paused"]

    assert workflows.play(story) == ("2026-01-01T13:00:00Z", False, True)
    assert workflows.keys == []


def test_listing_or_reading_schedules_changes_nothing(tmp_path):
    world = WorkflowsHarness(f"sqlite:///{tmp_path}/onbeat.db")

    async def story(its):
        await its.with_dag()
        await its.let_pass("1h")
        store = store_of(its.beat)
        before = await in_transaction(store, lambda tx: tx.connection.total_changes())
        await its.get()
        await its.runs()
        await its.registrar.list_schedules(user_id="ada")
        await its.workflows.store.load_dag("report", 3)
        return before == await in_transaction(store, lambda tx: tx.connection.total_changes())

    assert world.play(story)


@pytest.mark.parametrize("name", ["../x", "a/../b", "/x", "x/", "."])
def test_a_slug_such_as_dot_dot_slash_x_is_refused_everywhere(workflows, name):
    async def story(its):
        asked = [
            its.upsert(schedule_id=name),
            its.registrar.get_schedule(name),
            its.registrar.pause_schedule(name, True),
            its.registrar.delete_schedule(name),
            its.registrar.runs(name),
            its.workflows.deploy(
                DAG | {"triggers": [TRIGGER | {"id": name}]},
                workflow_id="report",
                version=1,
                user_id="ada",
            ),
        ]
        for each in asked:
            with pytest.raises(InvalidSchedule):
                await each
        return await its.beat.schedules()

    assert workflows.play(story) == []


TRIGGER = {"id": "t", "type": "schedule_based", "schedule": {"cron_expr": "0 9 * * *"}}

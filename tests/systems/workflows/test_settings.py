"""Settings apply to existing schedules from the next start."""

import pytest

from onbeat.app.settings import Settings
from onbeat.core.schedule import from_definition
from tests.given_settings import given_settings
from tests.systems.workflows.conftest import DAG, WorkflowsHarness


@pytest.fixture
def world(tmp_path):
    return WorkflowsHarness(f"sqlite:///{tmp_path}/onbeat.db")


async def restart(its, **settings):
    """Start another node with other settings after this one has stopped."""
    await its.beat.close()
    its.settings = given_settings(database=its.settings.database, **settings)
    its.beat = its._new_beat()
    await its.beat.__aenter__()
    await its.beat.settle()


async def policy_of(its, schedule_id="hourly-report"):
    row = await its.beat.service.schedule(schedule_id)
    return from_definition(row.schedule_id, row.definition).policy


def test_restart_applies_changed_settings(world):
    async def story(its):
        await its.with_dag()
        found = [(await policy_of(its)).timeout]
        for minutes in (90, 30):
            length = minutes * 60_000
            await restart(its, workflows_feedback=True, workflows_timeout=length)
            found.append((await policy_of(its)).timeout // 60_000)
        await restart(its)
        return [*found, (await policy_of(its)).timeout]

    assert world.play(story) == [None, 90, 30, None]


def test_restart_applies_changed_settings_to_deployed_schedules(world):
    async def story(its):
        often = {"id": "often", "type": "schedule_based", "schedule": {"cron_expr": "* * * * *"}}
        dag = {**DAG, "triggers": [often]}
        await its.workflows.deploy(dag, workflow_id="report", version=3, user_id="ada")
        await restart(its, workflows_feedback=True)
        row = await its.beat.service.schedule("report/often")
        gone = await its.workflows.deploy(DAG, workflow_id="report", version=3, user_id="ada")
        return row.user_id, '"timeout"' in row.definition, gone["removed"]

    assert world.play(story) == ("ada", True, ["report/often"])


def test_applying_settings_fires_and_resumes_nothing(world):
    async def story(its):
        await its.with_dag()
        await its.upsert(schedule_id="resting")
        await its.registrar.pause_schedule("resting", True)
        before = [(await its.get(name))["next_run_at"] for name in ("hourly-report", "resting")]
        await restart(its, workflows_feedback=True)
        after = [await its.get(name) for name in ("hourly-report", "resting")]
        return before == [each["next_run_at"] for each in after], [e["paused"] for e in after]

    assert world.play(story) == (True, [False, True])
    assert world.started == []


def test_restart_with_the_same_settings_writes_nothing(world):
    async def story(its):
        await its.with_dag(overlap_policy="queue")
        await its.upsert(schedule_id="another", catchup_policy="spread", overlap_policy="allow")
        await restart(its)
        return [row.revision for row in await its.beat.schedules()]

    assert world.play(story) == [1, 1]


def test_settings_are_not_applied_to_schedules_edited_elsewhere(world):
    async def story(its):
        await its.with_dag()
        row = await its.beat.service.schedule("hourly-report")
        edited = row.definition.replace('"grace":"10s"', '"grace":"5s"')
        await its.beat.define(from_definition(row.schedule_id, edited))
        await restart(its, workflows_feedback=True)
        return (await policy_of(its)).grace, (await policy_of(its)).timeout

    assert world.play(story) == (5000, None)


def test_node_without_an_executor_applies_no_settings(tmp_path):
    world = WorkflowsHarness(f"sqlite:///{tmp_path}/onbeat.db", workflows_feedback=True)

    async def story(its):
        await its.with_dag()
        await its.beat.close()
        its.settings = Settings(database=its.settings.database)
        its.beat = type(its.beat)(settings=its.settings, clock=its.clock)
        await its.beat.__aenter__()
        return (await policy_of(its)).timeout

    assert world.play(story) == 3_600_000


def test_missing_folder_of_dags_is_logged_at_start_and_by_each_run(tmp_path, caplog):
    folder = tmp_path / "dags"
    world = WorkflowsHarness(workflows_folder=str(folder))

    async def story(its):
        await its.upsert()
        await its.let_pass("1h")
        return (await its.runs())[0]["reason"], (await its.runs())[0]["error"]

    told = f"no DAG of report v3 (no such file in {folder})"
    assert world.play(story) == ("invalid_target", told)
    assert (
        f"workflows_folder: {folder} is not a folder (the first deployment creates it)"
        in caplog.messages
    )


def test_existing_folder_of_dags_is_not_logged(tmp_path, caplog):
    async def story(its):
        await its.with_dag()

    WorkflowsHarness(workflows_folder=str(tmp_path)).play(story)
    assert not [each for each in caplog.messages if "workflows_folder" in each]

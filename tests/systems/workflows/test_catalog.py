"""Stored workflows: list, read and delete them by function, with their schedules."""

import pytest

from onbeat.core.schedule import read_schedule
from onbeat.errors import (
    InvalidSchedule,
    NoSuchSchedule,
    NoSuchWorkflow,
    NotAllowed,
    WorkflowIsUsed,
)
from onbeat.service.access import Caller
from tests.systems.workflows.conftest import DAG, WorkflowsHarness


@pytest.fixture(params=["database", "folder"])
def world(request, tmp_path):
    folder = str(tmp_path / "workflows") if request.param == "folder" else ""
    return WorkflowsHarness(workflows_folder=folder)


@pytest.fixture
def in_database():
    return WorkflowsHarness()


def names(found):
    return [(row["workflow_id"], row["version"]) for row in found["workflows"]]


@pytest.mark.req("W11")
def test_list_has_every_version_of_every_workflow_in_pages(world):
    ids = ["a", "a_v1", "a_v1-b", "a_v1 b", "b/c", "ümlaut %", "..", "z"]

    async def story(its):
        for workflow_id in ids:
            for version in (1, 2, 10):
                await its.workflows.store.save_dag(workflow_id, version, DAG)
        catalog, found, after = its.workflows.catalog, [], ""
        while after is not None:
            page = await catalog.list_workflows(after=after, limit=1)
            assert len(page["workflows"]) <= 1
            found += names(page)
            after = page["next"]
        one = await catalog.list_workflows(workflow_id="a")
        return found, names(one), await catalog.list_workflows(user_id="nobody")

    found, one, none = world.play(story)
    assert sorted(found) == sorted((name, n) for name in ids for n in (1, 2, 10))
    assert len(found) == len(set(found))
    assert sorted(one) == [("a", 1), ("a", 2), ("a", 10)]
    assert none == {"workflows": [], "next": None}


def test_workflow_is_read_with_its_dag_and_the_schedules_that_use_it(world):
    async def story(its):
        await its.with_dag(schedule_id="one")
        await its.upsert(schedule_id="two", version=4)
        await its.workflows.store.save_dag("report", 2, {"nodes": []})
        catalog = its.workflows.catalog
        return await catalog.get_workflow("report"), await catalog.get_version("report", 3)

    whole, version = world.play(story)
    assert [(each["version"], each["schedules"]) for each in whole["versions"]] == [
        (2, []), (3, ["one"]),
    ]  # fmt: skip
    assert (version["dag"], version["schedules"], version["user_id"]) == (DAG, ["one"], None)
    assert version["updated_at"].endswith("Z")


@pytest.mark.parametrize("call", ["get_workflow", "delete_workflow"])
def test_unknown_workflow_is_not_found(world, call):
    async def story(its):
        await its.with_dag()
        for workflow_id in ("repeat", "repor", "report_v3"):
            with pytest.raises(NoSuchWorkflow, match=f"there is no workflow '{workflow_id}'"):
                await getattr(its.workflows.catalog, call)(workflow_id)
        with pytest.raises(NoSuchWorkflow, match="there is no workflow 'report' v4"):
            await its.workflows.catalog.get_version("report", 4)

    world.play(story)


def test_used_workflow_is_not_deleted_and_its_schedules_are_named(world):
    async def story(its):
        await its.with_dag(schedule_id="one")
        await its.upsert(schedule_id="two")
        catalog = its.workflows.catalog
        for version in (3, None):
            with pytest.raises(WorkflowIsUsed) as refused:
                await catalog.delete_workflow("report", version)
            assert refused.value.schedules == ("one", "two")
            assert str(refused.value) == (
                "'report' is used by 'one', 'two' (delete them first, or delete with cascade)"
            )
        return await its.workflows.store.load_dag("report", 3), len(await its.beat.schedules())

    assert world.play(story) == (DAG, 2)


def test_unused_version_is_deleted_beside_a_used_one(world):
    async def story(its):
        await its.with_dag()
        await its.workflows.store.save_dag("report", 2, DAG)
        found = await its.workflows.catalog.delete_workflow("report", 2)
        left = await its.workflows.catalog.list_workflows()
        return [row["version"] for row in found["deleted"]], found["schedules"], names(left)

    assert world.play(story) == ([2], [], [("report", 3)])


def test_cascade_deletes_the_schedules_with_the_workflow(world):
    async def story(its):
        await its.with_dag(schedule_id="one")
        await its.upsert(schedule_id="two")
        await its.upsert(schedule_id="other", workflow_id="another")
        found = await its.workflows.catalog.delete_workflow("report", cascade=True)
        with pytest.raises(NoSuchSchedule):
            await its.registrar.get_schedule("one")
        left = [row.schedule_id for row in await its.beat.schedules()]
        return found["schedules"], left, await its.workflows.store.load_dag("report", 3)

    assert world.play(story) == (["one", "two"], ["other"], None)


def test_cascade_deletes_nothing_if_the_caller_may_not_delete_one_of_the_schedules(world):
    target = {"workflow": "report", "version": 3, "user_id": "ada", "inputs": {"k": "secret://key"}}

    async def story(its):
        await its.with_dag(schedule_id="one")
        await its.upsert(schedule_id="two")
        of_an_admin = read_schedule("two", {"every": "1h", "run": target})
        await its.beat.service.define([of_an_admin], source="workflows")
        definer = its.workflows.of(its.beat.service.of(Caller("d", "define")))
        with pytest.raises(NotAllowed, match="two may not be changed or deleted by d"):
            await definer.catalog.delete_workflow("report", cascade=True)
        return len(await its.beat.schedules()), await its.workflows.store.load_dag("report", 3)

    assert world.play(story) == (2, DAG)


def test_cascade_keeps_schedules_of_other_sources_and_the_workflow(world):
    target = {"workflow": "report", "version": 3, "user_id": "ada"}

    async def story(its):
        await its.with_dag(schedule_id="one")
        await its.beat.define(read_schedule("native", {"every": "1h", "run": target}))
        with pytest.raises(WorkflowIsUsed, match="these are defined elsewhere"):
            await its.workflows.catalog.delete_workflow("report", cascade=True)
        return len(await its.beat.schedules()), await its.workflows.store.load_dag("report", 3)

    assert world.play(story) == (2, DAG)


def test_each_user_has_separate_versions_and_deletes_only_those(in_database):
    async def story(its):
        store, catalog = its.workflows.store, its.workflows.catalog
        for user_id in ("ada", "bob", ""):
            await store.save_dag("report", 3, {"of": user_id}, user_id=user_id)
        await its.upsert(schedule_id="of-ada")
        await its.upsert(schedule_id="of-eve", user_id="eve")
        whole = await catalog.get_workflow("report")
        uses = {each["user_id"]: each["schedules"] for each in whole["versions"]}
        with pytest.raises(InvalidSchedule, match="several users have a workflow 'report'"):
            await catalog.delete_workflow("report", 3)
        await catalog.delete_workflow("report", 3, user_id="bob")
        left = await catalog.list_workflows()
        return uses, [row["user_id"] for row in left["workflows"]]

    uses, left = in_database.play(story)
    assert uses == {None: ["of-eve"], "ada": ["of-ada"], "bob": []}
    assert sorted(left, key=str) == [None, "ada"]


def test_owner_sees_and_deletes_only_own_workflows(in_database):
    async def story(its):
        for user_id in ("ada", "bob", ""):
            await its.workflows.store.save_dag("report", 3, {"of": user_id}, user_id=user_id)
        ada = its.workflows.of(its.beat.service.of(Caller("ada", "define", owner="ada")))
        seen = await ada.catalog.list_workflows()
        with pytest.raises(NoSuchWorkflow):
            await ada.catalog.delete_workflow("report", 3, user_id="bob")
        await ada.catalog.delete_workflow("report", 3)
        reader = its.workflows.of(its.beat.service.of(Caller("bob", "read", owner="bob")))
        with pytest.raises(NotAllowed, match="bob may read, not define"):
            await reader.catalog.delete_workflow("report", 3)
        left = await its.workflows.catalog.list_workflows()
        return [row["user_id"] for row in seen["workflows"]], len(left["workflows"])

    assert in_database.play(story) == (["ada"], 2)


def test_files_that_are_not_dags_are_not_listed(tmp_path):
    for name in ("a_v1.json", "a_v01.json", "a.json", "a_v1.txt", "_v1.json", ".b_v1.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "c_v1.json").mkdir()
    world = WorkflowsHarness(workflows_folder=str(tmp_path))
    found = world.play(lambda its: its.workflows.catalog.list_workflows())
    assert names(found) == [("a", 1)]


@pytest.mark.parametrize("by", ["start", "run"])
def test_inputs_of_a_run_reach_the_executor_in_meta(world, by):
    inputs = {"limit": 100, "names": ["a", None]}

    async def story(its):
        await its.with_dag()
        if by == "start":
            asked = ("report", 3, "ada", "2026-01-01T14:00:00Z", "key-1")
            assert await its.workflows.start_workflow(*asked, inputs=inputs)
        else:
            await its.beat.service.start("hourly-report", inputs=inputs)
            await its.beat.settle()
        await its.let_pass("1h")

    world.play(story)
    (dag, by_hand), (_, scheduled) = world.handed_over
    assert (dag, by_hand["inputs"]) == (DAG, inputs)
    assert "inputs" not in scheduled


def test_inputs_of_a_native_target_reach_the_executor_too(world):
    target = {"workflow": "report", "version": 3, "user_id": "ada", "inputs": {"limit": 5, "of": 1}}

    async def story(its):
        await its.workflows.store.save_dag("report", 3, DAG)
        await its.beat.define(read_schedule("native", {"every": "1h", "run": target}))
        await its.let_pass("1h")
        await its.beat.service.start("native", inputs={"limit": 7})
        await its.beat.settle()

    world.play(story)
    told = [meta["inputs"] for _, meta in world.handed_over]
    assert told == [{"limit": 5, "of": 1}, {"limit": 7, "of": 1}]


def test_inputs_that_are_not_an_object_of_json_are_refused(world):
    async def story(its):
        asked = ("report", 3, "ada", "2026-01-01T14:00:00Z", "key-1")
        for inputs in ([1], {"a": float("nan")}, {1: 2}):
            with pytest.raises(InvalidSchedule, match="is not a JSON object"):
                await its.workflows.start_workflow(*asked, inputs=inputs)

    world.play(story)

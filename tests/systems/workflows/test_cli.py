"""`onbeat workflows`: list, show and delete stored workflows, and start runs with inputs."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from onbeat import Onbeat
from onbeat.cli.command import main
from tests.systems.workflows.conftest import DAG, REPORT


@pytest.fixture
def onbeat(tmp_path, monkeypatch):
    """A folder with two versions of a workflow, one of them in use; return how to call a verb."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONBEAT_DATABASE", "sqlite:///onbeat.db")

    async def prepare():
        beat = Onbeat("sqlite:///onbeat.db")
        async with beat:
            workflows = beat.systems["workflows"]
            await workflows.store.save_dag("report", 3, DAG)
            await workflows.store.save_dag("report", 4, {"nodes": []}, user_id="ada")
            await workflows.registrar.upsert_schedule(REPORT | {"cron_expr": "0 0 1 1 *"})

    asyncio.run(prepare())

    def call(*arguments, code=0):
        done = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done.stdout if code == 0 else done.stderr

    return call


def test_workflows_are_listed_with_their_versions(onbeat):
    head, *rows = onbeat("workflows").splitlines()
    assert head.split() == ["WORKFLOW", "VERSION", "USER", "UPDATED", "AT"]
    assert [row.split()[:3] for row in rows] == [["report", "3", "-"], ["report", "4", "ada"]]
    found = json.loads(onbeat("workflows", "--json"))
    assert [(row["version"], row["user_id"]) for row in found] == [(3, None), (4, "ada")]
    assert [
        row["version"] for row in json.loads(onbeat("workflows", "--user", "ada", "--json"))
    ] == [4]


def test_workflow_is_shown_with_the_schedules_that_use_it(onbeat):
    rows = onbeat("workflows", "show", "report").splitlines()
    assert [row.split()[-1] for row in rows] == ["SCHEDULES", "hourly-report", "-"]
    found = json.loads(onbeat("workflows", "show", "report", "--version", "3", "--json"))
    assert (found["dag"], found["schedules"]) == (DAG, ["hourly-report"])


def test_used_workflow_is_deleted_only_with_cascade(onbeat):
    told = onbeat("workflows", "delete", "report", code=1)
    assert told == (
        "onbeat: 'report' is used by 'hourly-report' (delete them first, or delete with cascade)\n"
    )
    assert onbeat("workflows", "delete", "report", "-v", "4") == "deleted report v4 of ada\n"
    told = onbeat("workflows", "delete", "report", "--cascade")
    assert told == "deleted schedule hourly-report\ndeleted report v3\n"
    assert onbeat("workflows") == "no workflows (POST /schedules/deploy stores one)\n"
    assert (
        onbeat("workflows", "show", "report", code=1) == "onbeat: there is no workflow 'report'\n"
    )


def test_run_now_takes_inputs(onbeat):
    found = json.loads(onbeat("run", "hourly-report", "--input", "limit=5", "--json"))
    assert found["inputs"] == {"limit": 5}

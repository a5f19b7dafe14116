"""Waiting runs name what they wait for: an unreachable peer, or a node that offers their target."""

import asyncio
import json
import os
import subprocess
import sys
import time

import pytest

from onbeat import Onbeat
from onbeat.core.json_schema import target_schema, text
from onbeat.core.schedule import read_schedule
from onbeat.core.target_kinds import TargetKind
from onbeat.service.wait_reasons import is_offered, wait_reasons
from onbeat.testing import ManualClock
from tests.given_settings import given_settings
from tests.inside import store_of
from tests.installed_kinds import installed

COMMAND = {"command": ["true"]}
ON_RAY = {"every": "1m", "run": {"python": "models:train", "on": "ray"}}


async def listed(beat):
    found = await wait_reasons(beat.service, await beat.service.overview())
    return [(each.why, each.runs, each.schedule_id) for each in found]


async def until_run(beat, **wanted):
    async with asyncio.timeout(30):
        while True:
            for run in await beat.runs():
                if all(getattr(run, name) == value for name, value in wanted.items()):
                    return run
            await asyncio.sleep(0.02)


def play(tmp_path, story, **settings):
    clock = ManualClock("2026-01-01T12:00:00Z")
    given = {"database": f"sqlite:///{tmp_path}/onbeat.db", "roles": ("plan", "run"), **settings}

    async def whole():
        async with Onbeat(settings=given_settings(**given), clock=clock) as beat:
            await beat.define(read_schedule("train", ON_RAY))
            return await story(beat, clock)

    return asyncio.run(asyncio.wait_for(whole(), 60))


def test_waiting_run_names_the_missing_offer_and_its_setting(tmp_path):
    async def story(beat, clock):
        before = await listed(beat)
        clock.advance("1m")
        beat.wake()
        await until_run(beat, status="ENQUEUED")
        return before, await listed(beat)

    before, after = play(tmp_path, story)
    why = "no node that is up offers 'ray' (start one with the setting ray_address)"
    assert (before, after) == ([], [(why, 1, "train")])


@pytest.mark.parametrize("field", ["run", "when"])
def test_waiting_run_names_the_missing_package(tmp_path, field):
    async def story(beat, clock):
        with installed(TargetKind(name="page", schema=target_schema("page", {"page": text("it")}))):
            schedule = read_schedule(
                "page", {"every": "1m", "run": COMMAND, field: {"page": "ann"}}
            )
            await store_of(beat).upsert([schedule])
        clock.advance("1m")
        beat.wake()
        await until_run(beat, status="ENQUEUED", schedule_id="page")
        return [each for each in await listed(beat) if each[-1] == "page"]

    why = "no package on this node provides 'page'"
    assert play(tmp_path, story) == [(why, 1, "page")]


def test_kind_that_is_not_known_is_offered_by_a_node_that_offers_something_of_it():
    assert is_offered("kind:page", {"command", "page:eu"})
    assert not is_offered("kind:page", {"command", "pages"})
    assert not is_offered("ray", {"command"})
    assert is_offered("ray", {"ray"})


def test_unreachable_cluster_is_named_by_the_row_of_a_waiting_run(
    tmp_path,
):
    """Whether `why` names an unreachable cluster, or Ray itself if it is not installed."""

    async def story(beat, clock):
        clock.advance("1m")
        beat.wake()
        first = await until_run(beat, reason="busy")
        waiting = await listed(beat)
        clock.advance("1m")
        beat.wake()
        return first, waiting, await until_run(beat, run_id=first.run_id, reason="superseded")

    first, ((why, n, name),), replaced = play(tmp_path, story, ray_address="127.0.0.1:1")
    named = ("no Ray cluster at 127.0.0.1:1: Connection refused", "ray is not installed")
    assert any(each in first.error for each in named)
    assert (why, n, name) == (first.error, 1, "train")
    assert (replaced.status, replaced.error) == ("SKIPPED", first.error)


def onbeat(folder, *words):
    environment = {"PATH": os.defpath, "HOME": str(folder), "ONBEAT_ROLES": "plan,run"}
    command = [sys.executable, "-m", "onbeat", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_status_shows_what_runs_wait_for(tmp_path, as_json):
    (tmp_path / "onbeat.yaml").write_text(
        json.dumps({"schedules": {"train": {"at": "2099-01-01T00:00:00Z", "run": ON_RAY["run"]}}})
    )
    onbeat(tmp_path, "up", "-d")
    try:
        onbeat(tmp_path, "run", "train")
        until, told = time.monotonic() + 20, ""
        while "offers" not in told and time.monotonic() < until:
            told = onbeat(tmp_path, "status", *(["--json"] if as_json else []))
    finally:
        onbeat(tmp_path, "down")
    why = "no node that is up offers 'ray' (start one with the setting ray_address)"
    if as_json:
        (found,) = json.loads(told)["waiting"]
        assert found == {"why": why, "runs": 1, "schedule_id": "train"}
    else:
        assert f"waiting    1 run (train): {why}\n" in told

"""The output of runs: while they run, afterwards, and from another node."""

import threading
import time
from contextlib import contextmanager
from uuid import uuid4

import httpx
import pytest

from onbeat.app.onbeat import Onbeat
from onbeat.app.settings import Settings
from tests.web.serving import serving
from tests.web.test_schedules import problem
from tests.web.waiting import eventually


@pytest.fixture
def name():
    """Return a unique name."""
    return f"l-{uuid4().hex[:8]}"


def in_steps(folder):
    """Return a command that prints `one`, and `two` once a file named go exists."""
    script = f"echo one; while [ ! -e {folder}/go ]; do sleep 0.02; done; echo two"
    return {"every": "1h", "run": {"command": ["sh", "-c", script]}}


@contextmanager
def tail(api, run, query="?follow=true"):
    """Stream the output of a run; yield an iterator of its lines."""
    headers = {"Authorization": f"Bearer {api.admin}"}
    with httpx.stream(
        "GET", f"{api.url}/api/v1/runs/{run}/log{query}", headers=headers, timeout=20
    ) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        yield answer.iter_lines()


def test_output_of_a_finished_run_is_returned(api, name):
    api.put(f"/schedules/{name}", {"every": "1h", "run": {"command": ["echo", "héllo"]}})
    run = api.post(f"/schedules/{name}/run").json()["run_id"]
    eventually(lambda: api.get(f"/runs/{run}").json()["finished_at"])
    assert api.get(f"/runs/{run}/log").text == "héllo\n"
    assert api.get(f"/runs/{run}/log?follow=true").text == "héllo\n", "it ends immediately"
    problem(api.get("/runs/999999/log"), 404)
    problem(api.get("/runs/999999/log?follow=true"), 404)


def test_output_is_streamed_while_a_run_prints(api, name, tmp_path):
    api.put(f"/schedules/{name}", in_steps(tmp_path))
    run = api.post(f"/schedules/{name}/run").json()["run_id"]
    eventually(lambda: api.get(f"/runs/{run}").json()["status"] == "STARTED")
    with tail(api, run) as lines:
        assert next(lines) == "one"
        assert api.get(f"/runs/{run}/log").text == "one\n", "and read as far as it is"
        (tmp_path / "go").touch()
        assert list(lines) == ["two"]


def test_output_is_streamed_from_before_the_start_of_a_run(api, name, tmp_path):
    api.put(f"/schedules/{name}", in_steps(tmp_path))
    api.put("/gate", {"gate": "closed"})
    run = api.post(f"/schedules/{name}/run").json()["run_id"]
    assert api.get(f"/runs/{run}/log").text == ""
    opened = threading.Timer(0.3, api.put, ("/gate", {"gate": "open"}))
    opened.start()
    with tail(api, run) as lines:
        assert next(lines) == "one", "while it runs"
        (tmp_path / "go").touch()
        assert list(lines) == ["two"]
    opened.join()


def test_large_output_is_returned_completely(api, name):
    count = 20_000
    api.put(f"/schedules/{name}", {"every": "1h", "run": {"command": ["seq", str(count)]}})
    run = api.post(f"/schedules/{name}/run").json()["run_id"]
    with tail(api, run) as lines:
        assert list(lines)[-1] == str(count)


def test_output_stream_ends_when_the_server_stops(tmp_path, name):
    with serving(tmp_path) as api:
        api.put(
            f"/schedules/{name}",
            {"every": "1h", "run": {"command": ["sh", "-c", "echo one; sleep 60"]}},
        )
        run = api.post(f"/schedules/{name}/run").json()["run_id"]
        following = tail(api, run)
        lines = following.__enter__()
        assert next(lines) == "one"
        begin = time.monotonic()
    assert list(lines) == []
    assert time.monotonic() - begin < 5
    following.__exit__(None, None, None)


def test_output_is_fetched_from_the_node_of_the_run(tmp_path, postgres_url, name):
    with (
        serving(tmp_path / "a", database=postgres_url, roles=("plan", "api")) as asked,
        serving(tmp_path / "b", database=postgres_url) as runs,
    ):
        asked.put(f"/schedules/{name}", in_steps(tmp_path))
        run = asked.post(f"/schedules/{name}/run").json()["run_id"]
        eventually(lambda: asked.get(f"/runs/{run}").json()["status"] == "STARTED")
        addresses = {
            node["node_id"]: node["address"] for node in asked.get("/nodes").json()["nodes"]
        }
        assert addresses[asked.get(f"/runs/{run}").json()["node_id"]] == runs.url
        with tail(asked, run) as lines:
            assert next(lines) == "one"
            assert asked.get(f"/runs/{run}/log?here=true").text == "", "no other node is contacted"
            assert asked.get(f"/runs/{run}/log").text == "one\n"
            (tmp_path / "go").touch()
            assert list(lines) == ["two"]
        eventually(lambda: asked.get(f"/runs/{run}").json()["finished_at"])
        assert asked.get(f"/runs/{run}/log").text == "one\ntwo\n", "it is kept"


def test_output_of_a_node_without_an_api_is_reported_as_unavailable(tmp_path, postgres_url, name):
    with serving(tmp_path / "a", database=postgres_url, roles=("plan", "api")) as asked:
        given = Settings(database=postgres_url, output=f"{tmp_path}/b", roles=("run",))
        runs = Onbeat(settings=given)
        asked.do(runs.open())
        asked.do(runs.begin(client=False))
        try:
            asked.put(f"/schedules/{name}", in_steps(tmp_path))
            run = asked.post(f"/schedules/{name}/run").json()["run_id"]
            eventually(lambda: asked.get(f"/runs/{run}").json()["status"] == "STARTED")
            (told,) = asked.get(f"/runs/{run}/log").text.splitlines()
            assert told == "[its node has no API: its output is available once it has ended]"
            (tmp_path / "go").touch()
            eventually(lambda: asked.get(f"/runs/{run}").json()["finished_at"])
            assert asked.get(f"/runs/{run}/log").text == "one\ntwo\n"
        finally:
            asked.do(runs.close())

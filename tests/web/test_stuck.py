"""A stuck run on a node, in every surface that shows it."""

import re

import pytest
from click.testing import CliRunner

from onbeat.cli.command import main
from onbeat.engine import node
from tests.web.serving import serving
from tests.web.waiting import eventually


@pytest.fixture
def api(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "STUCK_EVERY", 0.1)
    with serving(tmp_path) as found:
        yield found


def test_every_surface_shows_a_stuck_run(api, tmp_path):
    definition = {"every": "1h", "warn_after": "1s", "run": {"command": ["sleep", "60"]}}
    assert api.put("/schedules/slow", definition).status_code == 201
    assert api.get("/schedules/slow").json()["definition"]["warn_after"] == "1s"
    api.post("/schedules/slow/run")
    eventually(lambda: api.get("/overview").json()["stuck"] == 1)
    (run,) = api.get("/runs?stuck=true").json()["runs"]
    assert (run["schedule_id"], run["status"]) == ("slow", "STARTED")
    assert run["stuck_at"] is not None
    assert "onbeat_runs_stuck 1" in api.get("/metrics").text
    assert 'onbeat_events_total{event="run.stuck"} 1' in api.get("/metrics").text
    assert "it takes longer than its warn_after of" in api.get("/schedules/slow/why").text
    at = ["--database", f"sqlite:///{tmp_path}/onbeat.db"]
    assert "stuck      1" in CliRunner().invoke(main, ["status", *at]).output
    listed = CliRunner().invoke(main, ["runs", "--stuck", *at]).output
    assert re.search(r"slow .* stuck, running for \d+s, manual\n", listed)
    assert "take longer than they should" in CliRunner().invoke(main, ["doctor", *at]).output
    api.post(f"/runs/{run['run_id']}/cancel")
    eventually(lambda: api.get("/overview").json()["stuck"] == 0)

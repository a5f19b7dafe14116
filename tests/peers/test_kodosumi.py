"""Onbeat and a real Kodosumi panel: only where `KODOSUMI_PYTHON` names a Python that has one."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("KODOSUMI_PYTHON")
ALONE = [
    "unshare",
    "--net",
    "--pid",
    "--mount-proc",
    "--fork",
    "--kill-child",
]  # its children end with it

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="KODOSUMI_PYTHON names no Python that has kodosumi"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def seen():
    """Outcomes of a successful, a refused and a canceled run."""
    if subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no network namespace can be made here")
    folder = tempfile.mkdtemp(prefix="ko")  # Ray has sockets in it: a short name
    try:
        done = subprocess.run(
            [*ALONE, sys.executable, "-m", "tests.peers.kodosumi", folder], cwd=ROOT,
            capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_flow_is_launched_and_followed_to_its_end(seen):
    run = seen["well"]
    assert (run["status"], run["result"]) == ("SUCCESS", {"Markdown": {"body": "done: hello"}})
    assert run["fid"]
    assert "has no field 'colour'" in run["log"]


def test_inputs_refused_by_the_flow_are_a_failed_launch(seen):
    run = seen["refused"]
    assert (run["status"], run["reason"], run["fid"]) == ("FAILED", "launch_failed", None)
    assert "query: Please give me a query." in run["error"]


def test_canceled_run_is_canceled_on_the_panel(seen):
    run = seen["canceled"]
    assert run["status"] == "CANCELED"
    assert run["fid"]

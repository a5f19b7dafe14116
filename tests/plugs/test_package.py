"""A launcher and a system of an installed package are part of every surface."""

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import closing

import pytest
import yaml

from tests.docs.examples import free_port
from tests.waiting import await_condition

REMINDERS = "07:30 breakfast\n19:00 dinner\n25:00 supper\n"
DINNER = {"schedules": {"dinner": {"daily": "19:00", "run": {"bell": "dinner", "times": 3}}}}


class Machine:
    """A folder with a database, on which the packages of `path` are installed."""

    def __init__(self, folder, *path):
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self._environment = {
            "PATH": os.defpath, "HOME": str(folder), "PYTHONPATH": os.pathsep.join(map(str, path)),
            "ONBEAT_LISTEN": self.address,
        }  # fmt: skip

    def onbeat(self, *words, code=0):
        """Return what a command prints, with its warnings and errors."""
        done = self._run(words, code)
        return done.stdout + done.stderr

    def _run(self, words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "onbeat", *words], cwd=self.folder, env=self._environment,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def read(self, *words):
        return json.loads(self._run((*words, "--json")).stdout)

    def get(self, path):
        """Return the body of an answer of the node's API."""
        token = (self.folder / "onbeat.db.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"http://{self.address}{path}", headers=headers)
        with closing(urllib.request.urlopen(request, timeout=10)) as answer:
            return answer.read().decode()


@pytest.fixture
def machine(packages, tmp_path):
    """A machine with the toys, a bell tower, reminders, and a schedule that rings the bell."""
    found = Machine(tmp_path, packages)
    (tmp_path / "onbeat.toml").write_text('[bell]\ntower = "tower"\n[reminders]\nfile = "days"\n')
    (tmp_path / "days").write_text(REMINDERS)
    (tmp_path / "onbeat.yaml").write_text(yaml.safe_dump(DINNER))
    return found


@pytest.fixture
def node(machine):
    machine.onbeat("up", "-d")
    yield machine
    machine.onbeat("down")


def test_target_of_a_package_is_checked_and_applied_from_yaml(machine):
    wrong = {"schedules": {"dinner": {"daily": "19:00", "run": {"bell": "dinner", "times": 13}}}}
    (machine.folder / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    refused = machine.onbeat("apply", "wrong.yaml", code=4)
    assert "run.times: 13 is out of bounds (1 to 12)" in refused
    assert "created dinner, revision 1" in machine.onbeat("apply", "onbeat.yaml")
    assert machine.read("show", "dinner")["definition"]["run"] == {"bell": "dinner", "times": 3}


def test_schema_of_files_has_the_target_of_a_package(machine):
    schema = json.loads(machine.onbeat("schema"))
    fields = [each["properties"] for each in schema["$defs"]["target"]["oneOf"]]
    (own,) = [each for each in fields if "bell" in each]
    assert own["times"]["maximum"] == 12


def test_settings_of_a_package_are_read_from_variables_files_and_options(machine):
    problem = machine.onbeat("up", "--bell-towr", "x", code=2)
    assert "--bell-tower" in problem
    assert "--bell-tower FILE" in machine.onbeat("up", "--help")
    (machine.folder / "onbeat.toml").write_text("[bell]\ntowr = 1\n")
    assert "unknown setting (did you mean 'bell_tower'?)" in machine.onbeat("list", code=2)


def test_verb_of_a_package_is_listed_and_works(node):
    assert "reminders   List reminders." in node.onbeat("--help")
    assert node.read("reminders") == ["reminders/breakfast", "reminders/dinner"]


def test_node_with_a_package_runs_its_targets(node):
    assert "SUCCESS" in node.onbeat("run", "dinner", "--wait")
    assert (node.folder / "tower").read_text() == "dinner dinner 1\n" * 3
    assert node.onbeat("logs", "dinner") == "ding\nding\nding\n"
    node.onbeat("run", "reminders/breakfast", "--wait")
    assert (node.folder / "tower").read_text().endswith("breakfast reminders/breakfast 1\n")


def test_system_of_a_package_follows_its_file_while_a_node_is_up(node):
    (node.folder / "days").write_text("07:30 breakfast\n")
    await_condition(lambda: node.read("reminders") == ["reminders/breakfast"])


def test_why_names_the_setting_that_a_target_of_a_package_needs(machine):
    (machine.folder / "onbeat.toml").write_text("")
    machine.onbeat("up", "-d")
    try:
        machine.onbeat("run", "dinner")
        (run,) = machine.read("runs", "dinner")
        why = machine.onbeat("why", "dinner", run["run_at"])
        needed = "it waits for a node that offers bell (start a node with the setting bell_tower)"
        assert needed in why
    finally:
        machine.onbeat("down")


def test_openapi_document_has_routes_and_targets_of_a_package(node):
    document = json.loads(node.get("/api/v1/openapi.json"))
    assert {"/reminders", "/api/v1/reminders"} <= document["paths"].keys()
    targets = document["components"]["schemas"]["target"]["oneOf"]
    assert any("bell" in each["properties"] for each in targets)


def test_routes_and_dashboard_show_the_system_of_a_package(node):
    ids = ["reminders/breakfast", "reminders/dinner"]
    assert json.loads(node.get("/reminders")) == ids
    assert [each["schedule_id"] for each in json.loads(node.get("/api/v1/reminders"))] == ids
    assert "<h2>Reminders</h2>" in node.get("/")


def test_doctor_reports_packages_their_checks_files_and_peers(machine):
    machine.onbeat("apply", "onbeat.yaml")
    found = {each["check"]: each for each in machine.read("doctor")}
    assert found["plugs"]["found"] == "from packages: bell, reminders"
    assert found["reminders"]["found"] == "this node has a bell"
    assert "days: line 3: daily: " in found["source files"]["found"]
    assert found["bell tower"]["found"] == "tower can be rung"


def test_package_that_cannot_be_loaded_is_left_out_and_reported(packages, tmp_path):
    broken = tmp_path / "broken"
    about = broken / "broken-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[onbeat.plugins]\nbroken = no_such_module:PLUG\n")
    machine = Machine(tmp_path, packages, broken)
    machine.onbeat("init")
    machine.onbeat("apply", "onbeat.yaml")
    found = {each["check"]: each for each in machine.read("doctor")}
    assert found["plugs"]["level"] == "warn"
    assert (
        "broken (no_such_module:PLUG) is left out: ModuleNotFoundError" in (found["plugs"]["found"])
    )
    assert "reminders" in machine.onbeat("--help")

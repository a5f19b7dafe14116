"""The files of packaging/: the systemd unit, the container image, and alert rules."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from onbeat.app.metrics import Metrics, render
from onbeat.app.settings import Settings
from onbeat.core.time.durations import parse_duration
from onbeat.ports.rows import GroupRow, NodeRow, Overview, StoreFigures

ROOT = Path(__file__).parent.parent
PACKAGING = ROOT / "packaging"
UNIT = (PACKAGING / "onbeat.service").read_text()
CONTAINER = (PACKAGING / "Containerfile").read_text()
INSTALLED = "/opt/onbeat/bin/onbeat"
MOST_EXPOSED = 2.5  # of 10, by systemd-analyze
SOON = 20  # seconds: far more than a start or a stop takes

analyzes = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and not os.environ.get("CI"),
    reason="needs systemd-analyze, which CI installs",
)


# -- systemd


def settings_of(unit):
    return dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"\w+=", line))


@pytest.fixture
def unit(tmp_path):
    """The unit, as it is installed, but for a program that is there."""
    path = tmp_path / "onbeat.service"
    path.write_text(UNIT.replace(INSTALLED, shutil.which("true")))
    return path


@analyzes
@pytest.mark.parametrize("with_secrets", [False, True])
def test_systemd_analyze_accepts_the_unit(unit, with_secrets):
    if with_secrets:
        folder = unit.with_name("onbeat.service.d")
        folder.mkdir()
        shutil.copy(PACKAGING / "secrets.conf", folder)
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    about_it = [line for line in done.stderr.splitlines() if "onbeat.service.service" in line]
    assert (done.returncode, about_it) == (0, [])


@analyzes
def test_unit_is_sandboxed(unit):
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "unrecognized option" in done.stderr:
        assert not os.environ.get("CI"), "that of CI does"
        pytest.skip("this systemd-analyze knows no --offline")
    exposed = re.search(r"Overall exposure level for onbeat.service: ([\d.]+)", done.stdout)
    assert float(exposed[1]) <= MOST_EXPOSED


def test_unit_gives_the_node_time_to_stop():
    found = settings_of(UNIT)
    assert found["KillMode"] == "mixed"
    cancel_grace = parse_duration("10s").elapsed
    assert int(found["TimeoutStopSec"]) > Settings().stop_grace / 1000 + cancel_grace


def test_unit_has_a_dedicated_user_and_a_private_folder():
    found = settings_of(UNIT)
    assert found["User"] == found["Group"] == "onbeat"
    assert (found["StateDirectory"], found["StateDirectoryMode"]) == ("onbeat", "0700")
    assert re.search(r"^u onbeat ", (PACKAGING / "onbeat.sysusers").read_text(), re.MULTILINE)


def test_unit_is_not_restarted_after_invalid_settings_or_definitions():
    found = settings_of(UNIT)
    assert found["Restart"] == "on-failure"
    assert found["RestartPreventExitStatus"].split() == ["2", "4"]  # of settings and definitions


def test_command_of_the_unit_exists():
    program, verb, *options = shlex.split(settings_of(UNIT)["ExecStart"])
    assert (program, verb) == (INSTALLED, "up")
    told = subprocess.run(
        [sys.executable, "-m", "onbeat", "up", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for option in options:
        assert not option.startswith("--") or option in told


def test_packaging_files_contain_no_secret():
    for path in PACKAGING.iterdir():
        text = path.read_text()
        assert not re.search(r"(?i)(password|token|secret)\s*=\s*\S", text), path
        assert not re.search(r"://[^/\s:@]+:[^/\s@]+@", text), path
    assert "LoadCredential=" in (PACKAGING / "secrets.conf").read_text()


@pytest.fixture
def supervisor(tmp_path):
    """The socket that systemd would listen on."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(SOON)
        yield listening


def test_node_notifies_systemd_of_ready_watchdog_and_stopping(tmp_path, supervisor):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ONBEAT_")
    }
    environment |= {"NOTIFY_SOCKET": supervisor.getsockname(), "WATCHDOG_USEC": "200000"}
    node = subprocess.Popen(
        [sys.executable, "-m", "onbeat", "up", "--json", "--roles", "plan,run"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert supervisor.recv(100) == b"READY=1"
        assert json.loads(node.stdout.readline())["pid"] == node.pid  # it was up by then
        assert supervisor.recv(100) == supervisor.recv(100) == b"WATCHDOG=1"
        node.send_signal(signal.SIGTERM)
        told = supervisor.recv(100)
        while told == b"WATCHDOG=1":
            told = supervisor.recv(100)
        assert told == b"STOPPING=1"
        assert node.wait(SOON) == 0
    finally:
        node.kill()
        node.wait()
        node.stdout.close()


# -- the container


def instructions():
    """Return the instructions of the Containerfile as pairs, by stage."""
    stages = []
    joined = re.sub(r"\\\n", " ", CONTAINER)
    for line in joined.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.strip().partition(" ")
            if word == "FROM":
                stages.append([])
            stages[-1].append((word, rest.strip()))
    return stages


def of(stage, word):
    return [rest for each, rest in stage if each == word]


def test_image_base_is_slim_with_a_fixed_version():
    for stage in instructions():
        (base,) = of(stage, "FROM")
        assert re.match(r"python:3\.\d+-slim\b", base)


def test_image_runs_without_root_and_has_a_volume():
    *_, last = instructions()
    (user,) = of(last, "USER")
    assert user.isdigit()  # so that it can be seen not to be root
    assert int(user) > 0
    assert json.loads(*of(last, "VOLUME")) == of(last, "WORKDIR") == ["/var/lib/onbeat"]
    words = [word for word, _ in last]
    assert words.index("USER") > max(n for n, word in enumerate(words) if word in ("RUN", "COPY"))


def test_image_entry_point_has_no_shell():
    *_, last = instructions()
    assert json.loads(*of(last, "ENTRYPOINT")) == ["onbeat"]
    assert json.loads(*of(last, "CMD")) == ["up"]
    assert of(last, "STOPSIGNAL") == ["SIGTERM"]


def test_image_health_check_is_the_doctor():
    *_, last = instructions()
    (health,) = of(last, "HEALTHCHECK")
    options, _, command = health.partition(" CMD ")
    assert json.loads(command) == ["onbeat", "doctor", "--quick"]
    assert set(re.findall(r"--(\w[\w-]*)=", options)) == {
        "interval",
        "timeout",
        "start-period",
        "retries",
    }


def test_image_requirements_are_hashed_and_copied_files_exist():
    build, _ = instructions()
    assert any("--require-hashes" in line for line in of(build, "RUN"))
    for line in of(build, "COPY"):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source


def test_image_contains_only_the_installed_program():
    _, last = instructions()
    assert of(last, "COPY") == ["--from=build /opt/onbeat /opt/onbeat"]
    assert of(last, "ARG") == []


# -- the rules


def figures_there_are():
    now = 1_767_268_800_000
    node = NodeRow("1", "here:1", frozenset(), frozenset(), now, now, "1", "2026a", 0)
    overview = Overview(now, True, 0, 0, 0, None, {}, [node])
    text = render(
        Metrics(), overview, [GroupRow("db", 1, 0, 0)], StoreFigures(0, None, 0, {}, 0), version="1"
    )
    return {re.match(r"\w+", line)[0] for line in text.splitlines() if not line.startswith("#")}


def rules():
    (group,) = yaml.safe_load((PACKAGING / "alerts.yml").read_text())["groups"]
    return [pytest.param(rule, id=rule["alert"]) for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules())
def test_alert_rule_uses_existing_metrics_and_has_a_summary(rule):
    named = set(re.findall(r"\bonbeat_\w+", rule["expr"]))
    assert named
    assert named <= figures_there_are()
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"].endswith(".")


@pytest.mark.parametrize("rule", rules())
def test_alert_rule_uses_existing_labels(rule):
    text = (ROOT / "src" / "onbeat" / "app/metrics.py").read_text()
    for label in re.findall(r"(\w+)=~?\"", rule["expr"]):
        assert f'"{label}"' in text, label

"""Shell completion: the scripts, and the schedules that it offers."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onbeat.cli.completion import SHELLS
from tests.cli.test_verbs import (  # noqa: F401 - all are in it
    TWO,
    WORK,
    a_node,
    as_json,
    files,
    folder,
    ok,
    write,
)


@pytest.fixture
def two():
    """Two schedules: clean and report."""
    ok("apply", write(TWO))


def completed(*words, last=""):
    """Return what a shell is offered after some words."""
    line = " ".join(["onbeat", *words, last])
    done = onbeat_with(COMP_WORDS=line, COMP_CWORD=str(len(words) + 1))
    return [each.partition(",")[2] for each in done.stdout.split()]


def onbeat_with(**variables):
    environment = {**os.environ, "_ONBEAT_COMPLETE": "bash_complete", **variables}
    program = "from onbeat.cli import main; main(prog_name='onbeat')"
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_its_script(shell):
    script = ok("completion", shell)
    assert "_ONBEAT_COMPLETE" in script
    assert as_json("completion", shell) == {"shell": shell, "script": script.removesuffix("\n")}
    program = shutil.which(shell)
    if program:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def test_verbs_and_options_are_completed():
    assert "why" in completed(last="w")
    assert "--wide" in completed("list", last="--w")
    assert completed("gate") == ["open", "close"]


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "delete", "run", "runs", "logs", "why",
    "cancel", "backfill", "audit", "export", "simulate"])  # fmt: skip
def test_schedules_are_completed(two, verb):
    assert completed(verb) == ["clean", "report"]
    assert completed(verb, last="re") == ["report"]
    assert completed(verb, last="x") == []


def test_completion_leaves_out_names_already_given(two):
    assert completed("pause", "clean") == ["report"]


def test_completion_uses_the_database_of_the_command_line_or_settings(two, monkeypatch):
    Path("onbeat.db").rename("other.db")
    assert completed("show") == []
    assert completed("show", "--database", "sqlite:///other.db") == ["clean", "report"]
    monkeypatch.setenv("ONBEAT_DATABASE", "sqlite:///other.db")
    assert completed("show") == ["clean", "report"]


def test_completion_leaves_out_deleted_schedules(two):
    ok("delete", "clean")
    assert completed("show") == ["report"]


@pytest.mark.parametrize("text", ["%", "_", "re%"])
def test_completion_takes_a_pattern_literally(two, text):
    assert completed("show", last=text) == []


def test_completion_changes_no_file(two):
    before = files()
    completed("show")
    assert files() == before


def test_schedules_are_completed_while_a_node_is_up():
    write(WORK)
    with a_node(Path.cwd()):
        assert completed("show") == ["echo", "fails", "quick", "slow"]


def test_completion_without_a_readable_database_prints_nothing(monkeypatch):
    for make in (
        lambda: None,
        lambda: Path("onbeat.db").write_bytes(b"not a database" * 100),
        lambda: monkeypatch.setenv("ONBEAT_DATABASE", "postgresql://nowhere.invalid/onbeat"),
        lambda: monkeypatch.setenv("ONBEAT_LEASE", "soon"),
    ):
        make()
        done = onbeat_with(COMP_WORDS="onbeat show ", COMP_CWORD="2")
        assert (done.stdout.strip(), done.stderr) == ("", "")


def test_completion_of_a_name_takes_less_than_a_second(two):
    took = []
    for _ in range(3):
        began = time.monotonic()
        completed("show")
        took.append(time.monotonic() - began)
    assert min(took) < 1

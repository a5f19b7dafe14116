"""`onbeat doctor` as a person and a program call it: whatever is wrong, it goes on and says so."""

import json
import os

import pytest
from click.testing import CliRunner

from onbeat.cli.command import main


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ONBEAT_"):
            monkeypatch.delenv(name)
    return tmp_path


def onbeat(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def told(*arguments):
    done = onbeat("doctor", *arguments, "--json")
    return {each["check"]: each for each in json.loads(done.stdout)}, done.exit_code


@pytest.fixture
def database(folder):
    (folder / "onbeat.yaml").write_text(
        "schedules:\n  report: {every: 1h, run: {command: [echo, hello]}}\n"
    )
    assert onbeat("apply", "onbeat.yaml").exit_code == 0
    return folder / "onbeat.db"


def test_without_a_database_it_says_so_and_nothing_fails():
    found, code = told()
    assert code == 0
    assert found["database"]["level"] == "warn"
    assert found["database"]["found"] == "onbeat.db does not exist"
    assert found["python"]["level"] == "ok"


def test_with_one_every_check_has_a_line_and_those_that_warn_a_second(database):
    done = onbeat("doctor")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    levels = [line[:4] for line in lines if line[:4].strip()]
    assert set(levels) == {"ok  ", "warn"}
    assert levels.count("warn") == len(lines) - len(levels)
    assert "warn  nodes           no node is up: nothing is planned or started" in lines
    assert f"{'':<22}onbeat up" in lines


def test_json_has_what_was_found_and_what_would_be_right(database):
    found, code = told()
    assert code == 0
    assert found["nodes"] == {
        "check": "nodes",
        "level": "warn",
        "found": "no node is up: nothing is planned or started",
        "hint": "onbeat up",
    }
    assert found["definitions"]["found"] == "all can be planned: 1"


def test_a_damaged_database_fails_and_the_machine_is_looked_at_all_the_same(database):
    database.write_bytes(b"no database\n" * 1000)
    found, code = told()
    assert code == 1
    assert found["database"]["level"] == "fail"
    assert "damaged" in found["database"]["found"]
    assert found["sqlite"]["level"] == "ok"


def test_settings_that_are_refused_fail_and_do_not_end_it(database, monkeypatch):
    monkeypatch.setenv("ONBEAT_CONCURRNCY", "3")
    found, code = told()
    assert code == 1
    assert found["settings"]["found"] == "ONBEAT_CONCURRNCY: unknown setting"
    assert found["settings"]["hint"] == "did you mean 'ONBEAT_CONCURRENCY'?"


def test_the_file_of_settings_is_named(folder):
    (folder / "onbeat.toml").write_text("concurrency = 3\n")
    (folder / "other.toml").write_text("concurrency = 3\n")
    assert told()[0]["settings"]["found"] == "read from onbeat.toml"
    assert told("--config", "other.toml")[0]["settings"]["found"] == "read from other.toml"


def test_a_server_that_cannot_be_reached_fails(folder):
    found, code = told("--database", "postgresql://me:hidden@127.0.0.1:1/onbeat")
    assert code == 1
    assert "cannot be reached" in found["database"]["found"]
    assert "hidden" not in json.dumps(found)


def test_a_real_server_is_looked_at(postgres_url):
    found, code = told("--database", postgres_url)
    assert code == 0
    assert found["postgresql"]["level"] == found["rights"]["level"] == "ok"
    assert found["database"]["found"] == "the schema 'onbeat' does not exist yet"
    assert found["clock"]["level"] == "ok"
    assert "fsync is off" in found["server"]["found"]  # as servers of tests have it


def test_a_quick_look_does_not_read_the_whole_file(database):
    assert "integrity" in told()[0]
    found, code = told("--quick")
    assert ("integrity" in found, "database" in found, code) == (False, True, 0)

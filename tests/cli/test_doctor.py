"""`onbeat doctor` as text and as JSON: a failed check is reported, and the others still run."""

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


def test_doctor_without_a_database_only_warns():
    found, code = told()
    assert code == 0
    assert found["database"]["level"] == "warn"
    assert found["database"]["found"] == "onbeat.db does not exist"
    assert found["python"]["level"] == "ok"


def test_doctor_prints_a_line_for_each_check_and_a_hint_for_warnings(database):
    done = onbeat("doctor")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    levels = [line[:4] for line in lines if line[:4].strip()]
    assert set(levels) == {"ok  ", "warn"}
    assert levels.count("warn") == len(lines) - len(levels)
    assert "warn  nodes           no node is up: nothing is planned or started" in lines
    assert f"{'':<22}onbeat up" in lines


def test_doctor_json_has_finding_and_hint(database):
    found, code = told()
    assert code == 0
    assert found["nodes"] == {
        "check": "nodes",
        "level": "warn",
        "found": "no node is up: nothing is planned or started",
        "hint": "onbeat up",
    }
    assert found["definitions"]["found"] == "all can be planned: 1"


def test_damaged_database_fails_and_other_checks_still_run(database):
    database.write_bytes(b"no database\n" * 1000)
    found, code = told()
    assert code == 1
    assert found["database"]["level"] == "fail"
    assert "damaged" in found["database"]["found"]
    assert found["sqlite"]["level"] == "ok"


def test_invalid_settings_fail_and_other_checks_still_run(database, monkeypatch):
    monkeypatch.setenv("ONBEAT_CONCURRNCY", "3")
    found, code = told()
    assert code == 1
    assert found["settings"]["found"] == "ONBEAT_CONCURRNCY: unknown setting"
    assert found["settings"]["hint"] == "did you mean 'ONBEAT_CONCURRENCY'?"


def test_doctor_names_the_settings_file(folder):
    (folder / "onbeat.toml").write_text("concurrency = 3\n")
    (folder / "other.toml").write_text("concurrency = 3\n")
    assert told()[0]["settings"]["found"] == "read from onbeat.toml"
    assert told("--config", "other.toml")[0]["settings"]["found"] == "read from other.toml"


def test_unreachable_server_fails_without_showing_its_password(folder):
    found, code = told("--database", "postgresql://me:hidden@127.0.0.1:1/onbeat")
    assert code == 1
    assert "cannot be reached" in found["database"]["found"]
    assert "hidden" not in json.dumps(found)


def test_doctor_checks_a_real_server(postgres_url):
    found, code = told("--database", postgres_url)
    assert code == 0
    assert found["postgresql"]["level"] == found["rights"]["level"] == "ok"
    assert found["database"]["found"] == "the schema 'onbeat' does not exist yet"
    assert found["clock"]["level"] == "ok"
    assert "fsync is off" in found["server"]["found"]  # as servers of tests have it


def test_doctor_quick_skips_the_integrity_check(database):
    assert "integrity" in told()[0]
    found, code = told("--quick")
    assert ("integrity" in found, "database" in found, code) == (False, True, 0)

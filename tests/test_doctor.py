"""Every check of `onbeat doctor`: when it warns or fails, and with which text."""

import asyncio
import json
import os
import ssl
import sys
from dataclasses import replace
from pathlib import Path

import apsw
import psycopg
import pytest

from onbeat.app.settings import Settings
from onbeat.core.schedule import definition
from onbeat.doctor import diagnose
from onbeat.doctor.certificates import expires_at
from onbeat.doctor.diagnose import CHECKS, gather_facts, judge
from onbeat.doctor.findings import InstallationFacts, length, names, size
from onbeat.errors import InvalidSettings
from onbeat.host.extras import install_command
from onbeat.ports.rows import NodeRow, Overview, StoreFigures, ZoneDataProgress
from onbeat.ports.store import Node
from onbeat.stores.postgres.diagnostics import look as look_at_server
from onbeat.stores.postgres.store import PostgresStore
from onbeat.stores.sql.diagnostics import DatabaseFacts, PostgresFacts, StoreFacts
from onbeat.stores.sqlite.diagnostics import look as look_at_file
from onbeat.stores.sqlite.store import LockHolder, SqliteStore
from onbeat.testing import ManualClock, a_schedule
from tests.given_settings import given_settings

CLOCK = ManualClock("2026-06-01T12:00:00Z")
NOW = CLOCK.now()
HOUR, DAY = 3_600_000, 86_400_000
EVERYTHING = frozenset({"command", "http"})
HERE = NodeRow(
    "1", "here:1", frozenset({"plan", "run"}), EVERYTHING, NOW, NOW + 5_000, "1", "2026a", 0
)
OVERVIEW = Overview(NOW, True, 1, 0, 0, NOW + HOUR, {}, [HERE])
FIGURES = StoreFigures(0, None, 0, {}, 4096)
STORE = StoreFacts(
    OVERVIEW, FIGURES, "2026a", definitions=[("report", definition(a_schedule("report")))]
)
HEALTHY = DatabaseFacts(STORE, schema=5, known_schema=5)
SERVER = PostgresFacts(17, NOW, NOW, False, 90)
POSTGRES = Settings(database="postgresql://onbeat@db/onbeat")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def facts(store=None, overview=None, figures=None, database=None, **fields):
    """Return the facts of a healthy installation, changed by the arguments."""
    overview = replace(OVERVIEW, **overview or {})
    store = replace(
        STORE, overview=overview, figures=replace(FIGURES, **figures or {}), **store or {}
    )
    healthy = {
        "now": NOW,
        "python": (3, 11, 7),
        "sqlite": "3.54.1",
        "zone_data": "2026a",
        "settings": Settings(),
        "settings_file": None,
        "database": replace(HEALTHY, standing=store, **database or {}),
        "lock_holder": LockHolder(1, "here:1", "1"),
    }
    return InstallationFacts(**healthy | fields)


def on_postgres(server=None, **fields):
    return facts(
        settings=POSTGRES,
        lock_holder=None,
        database={"postgres": replace(SERVER, **server or {})},
        **fields,
    )


def found(name, of):
    """Return the finding of one check, in a run of all."""
    (finding,) = [each for each in judge(of) if each.check == name]
    return finding


def level(name, of):
    return found(name, of).level


def test_healthy_installation_has_only_ok_findings():
    assert {each.level for each in judge(facts())} == {"ok"}
    assert {each.level for each in judge(on_postgres())} == {"ok"}


@pytest.mark.parametrize(
    ("values", "expected", "text"),
    [
        ({"in_recovery": "true"}, "fail", "the server is read-only"),
        ({"default_transaction_read_only": "on"}, "fail", "the server is read-only"),
        ({"fsync": "off"}, "warn", "fsync is off"),
        ({"full_page_writes": "off"}, "warn", "full_page_writes is off"),
        ({"synchronous_commit": "off"}, "ok", "Onbeat turns it on"),
        ({"fsync": "on"}, "ok", "make commits durable"),
    ],
)
def test_server_settings_that_affect_durability_are_reported(values, expected, text):
    finding = found("server", on_postgres({"settings": values}))
    assert (finding.level, text in finding.found) == (expected, True)


def test_every_problem_has_a_hint():
    broken = facts(
        overview={"gate_open": False},
        store={"failing": ["a"], "over": ["b"]},
        python=(3, 10, 1),
        lock_holder=None,
    )
    for each in judge(broken):
        assert (each.hint == "") == (each.level == "ok"), each


def test_check_that_raises_is_a_finding_and_the_others_still_run(monkeypatch):
    def odd_check(facts):
        raise RuntimeError("odd")

    monkeypatch.setattr(diagnose, "CHECKS", (odd_check, *CHECKS))
    first, *others = judge(facts())
    assert (first.check, first.level) == ("odd check", "fail")
    assert "RuntimeError: odd" in first.found
    assert len(others) > 10


# -- the machine


@pytest.mark.parametrize(
    ("version", "expected"), [((3, 10, 14), "fail"), ((3, 11, 0), "ok"), ((3, 14, 1), "ok")]
)
def test_unsupported_python_fails(version, expected):
    assert level("python", facts(python=version)) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.40.1", "fail"),
        ("3.51.2", "fail"),
        ("3.7.0", "fail"),
        ("3.51.3", "ok"),
        ("3.54.1", "ok"),
        ("4.0.0", "ok"),
    ],
)
def test_sqlite_version_with_a_corruption_bug_fails(version, expected):
    assert level("sqlite", facts(sqlite=version)) == expected


@pytest.mark.parametrize(("tz", "expected"), [("2024b", "warn"), ("2025c", "ok"), ("2026f", "ok")])
def test_zone_data_older_than_two_years_warns(tz, expected):
    current = facts(zone_data=tz, store={"tz": tz}, overview={"nodes": []})
    assert level("zones", current) == expected


def test_due_rows_of_newer_zone_data_fail():
    finding = found("zones", facts(zone_data="2026a", store={"tz": "2026b"}))
    assert finding.level == "fail"
    assert "2026b" in finding.found


@pytest.mark.parametrize(("nodes", "expected"), [([], "warn"), (None, "ok")])
def test_schedules_behind_the_zone_data_warn_without_a_node(nodes, expected):
    overview = {"following": ZoneDataProgress("2026a", 1000, 5000, 3, NOW)}
    finding = found("zones", facts(overview=overview | ({} if nodes is None else {"nodes": nodes})))
    assert finding.level == expected
    assert "1000 of 5000 schedules" in finding.found


def test_nodes_with_other_zone_data_warn():
    finding = found(
        "zones", facts(overview={"nodes": [HERE, replace(HERE, node_id="2", tz="2025b")]})
    )
    assert (finding.level, "2025b" in finding.found) == ("warn", True)


def test_invalid_settings_fail_with_the_name_of_the_setting():
    refused = InvalidSettings("ONBEAT_FOO", "unknown setting", hint="did you mean ONBEAT_FOE?")
    finding = found("settings", facts(settings=refused, database={"problem": "?"}))
    assert finding.level == "fail"
    assert finding.found == "ONBEAT_FOO: unknown setting"
    assert finding.hint == "did you mean ONBEAT_FOE?"


@pytest.mark.parametrize(("free", "expected"), [(2**30, "ok"), (2**28, "warn"), (2**20, "fail")])
def test_a_full_disk_fails_before_it_is_full(monkeypatch, free, expected):
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr("onbeat.doctor.machine.shutil.disk_usage", lambda _: usage)
    assert level("disk", facts()) == expected


def test_output_that_is_not_a_folder_fails(folder):
    (folder / "here").write_text("")
    assert level("output", facts(settings=Settings(output="here"))) == "fail"
    (folder / "there").mkdir()
    assert level("output", facts(settings=Settings(output="there"))) == "ok"


def make(path, mode, text=""):
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("onbeat.db", 0o600, "ok"),
        ("onbeat.db", 0o640, "ok"),
        ("onbeat.db", 0o644, "warn"),
        ("onbeat.db.token", 0o600, "ok"),
        ("onbeat.db.token", 0o640, "warn"),
        ("key.pem", 0o604, "warn"),
        ("jwt.key", 0o660, "warn"),
    ],
)
def test_files_readable_by_others_warn(folder, name, mode, expected):
    make(folder / name, mode)
    current = facts(settings=Settings(tls_key="key.pem", jwt_key="jwt.key"))
    assert level("files", current) == expected
    if expected == "warn":
        assert name in found("files", current).found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('database = "postgresql://me:hidden@db/onbeat"', "warn"),
        ('database = "postgresql://me@db/onbeat"', "ok"),
    ],
)
def test_settings_file_with_a_password_readable_by_others_warns(folder, text, expected):
    path = make(folder / "onbeat.toml", 0o644, text)
    assert level("files", facts(settings_file=path)) == expected
    path.chmod(0o600)
    assert level("files", facts(settings_file=path)) == "ok"


def test_secrets_readable_by_others_warn(folder):
    current = facts(settings=Settings(secrets="secrets"))
    assert level("secrets", current) == "fail"
    (folder / "secrets").mkdir(mode=0o700)
    make(folder / "secrets" / "smtp", 0o600)
    assert level("secrets", current) == "ok"
    make(folder / "secrets" / "smtp", 0o640)
    assert "smtp" in found("secrets", current).found
    assert level("secrets", current) == "warn"


@pytest.mark.parametrize(
    ("name", "day", "expected"),
    [("until-2026", "2026-01-01", "ok"), ("until-2026", "2026-06-20", "warn"), ("until-2026", "2026-07-02", "fail"),
     ("until-2060", "2060-06-01", "ok")],
)  # fmt: skip
def test_certificate_warns_three_weeks_before_it_expires(folder, name, day, expected):
    (folder / "cert.pem").write_text(CERTIFICATES[name])
    now = ManualClock(f"{day}T00:00:00Z").now()
    assert level("tls", facts(settings=Settings(tls_cert="cert.pem"), now=now)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        ssl.DER_cert_to_PEM_cert(b"\x30\x03\x02\x01\x01"),
        ssl.DER_cert_to_PEM_cert(b""),
    ],
)
def test_invalid_certificate_fails(folder, text):
    (folder / "cert.pem").write_text(text)
    assert level("tls", facts(settings=Settings(tls_cert="cert.pem"))) == "fail"
    with pytest.raises(ValueError, match="certificate"):
        expires_at(text)


def test_certificate_is_not_checked_without_the_extra_server(folder, monkeypatch):
    (folder / "cert.pem").write_text(CERTIFICATES["until-2026"])
    monkeypatch.setitem(sys.modules, "cryptography", None)
    finding = found("tls", facts(settings=Settings(tls_cert="cert.pem")))
    assert (finding.level, finding.hint) == ("warn", install_command("server"))
    assert "the extra `server`" in finding.found


def test_missing_certificate_fails():
    assert level("tls", facts(settings=Settings(tls_cert="nowhere.pem"))) == "fail"


# -- the database


def test_missing_database_warns():
    current = facts(
        database={
            "problem": "onbeat.db does not exist",
            "hint": "onbeat up creates it",
            "is_there": False,
        }
    )
    assert (
        level("database", replace(current, database=replace(current.database, standing=None)))
        == "warn"
    )


def test_unreachable_or_moved_database_fails():
    assert (
        level("database", facts(database={"problem": "it cannot be reached", "is_there": False}))
        == "fail"
    )
    assert (
        level("database", facts(database={"problem": "it was moved", "hint": "--database"}))
        == "fail"
    )


@pytest.mark.parametrize(("schema", "expected"), [(4, "warn"), (5, "ok"), (6, "fail")])
def test_schema_older_than_this_program_warns_and_newer_fails(schema, expected):
    assert level("database", facts(database={"schema": schema})) == expected


def test_damage_fails_and_an_unfinished_check_warns():
    assert level("integrity", facts(database={"damage": "row 3 missing"})) == "fail"
    assert level("integrity", facts(database={"is_checked": False})) == "warn"


def test_large_wal_warns():
    assert level("wal", facts(database={"wal": 300 * 2**20})) == "warn"


def test_no_node_up_warns():
    assert level("nodes", facts(lock_holder=None)) == "warn"
    assert level("nodes", on_postgres(overview={"nodes": []})) == "warn"


def test_no_node_with_the_role_plan_warns():
    runs = replace(HERE, roles=frozenset({"run"}))
    finding = found("nodes", on_postgres(overview={"nodes": [runs]}))
    assert (finding.level, "`plan`" in finding.found) == ("warn", True)


def test_silent_node_warns():
    silent = replace(HERE, node_id="2", name="there:2", alive_until=NOW - 1)
    finding = found("silent nodes", on_postgres(overview={"nodes": [HERE, silent]}))
    assert (finding.level, finding.found) == ("warn", "there:2 fell silent: its lease has expired")
    assert level("silent nodes", facts(lock_holder=None)) == "warn"  # by the lock of the file
    assert level("silent nodes", facts(overview={"nodes": [replace(HERE, alive_until=0)]})) == "ok"


def test_stopping_node_warns():
    assert (
        level("stopping nodes", facts(overview={"nodes": [replace(HERE, is_stopping=True)]}))
        == "warn"
    )


def test_unsupported_postgresql_fails():
    assert level("postgresql", on_postgres({"version": 12})) == "fail"


def test_missing_privileges_fail():
    finding = found("rights", on_postgres({"lacks": ["USAGE of the schema 'onbeat'"]}))
    assert (finding.level, "USAGE" in finding.found) == ("fail", True)


def test_few_free_connections_warn():
    assert level("connections", on_postgres({"connections_left": 3})) == "warn"


def test_pooler_warns():
    assert level("pooler", on_postgres({"is_pooled": True})) == "warn"


@pytest.mark.parametrize(
    ("apart", "expected"), [(0, "ok"), (-900, "ok"), (1_500, "warn"), (-60_000, "warn")]
)
def test_clock_skew_over_one_second_warns(apart, expected):
    assert level("clock", on_postgres({"clock": NOW + apart})) == expected


# -- the workload


@pytest.mark.parametrize(
    ("behind", "expected"), [(0, "ok"), (9_999, "ok"), (10_000, "warn"), (60_000, "fail")]
)
def test_planner_behind_warns_then_fails(behind, expected):
    assert level("planner", facts(overview={"next_due_at": NOW - behind, "due": 1})) == expected


def test_planner_and_waiting_describe_zero_in_words():
    current = facts(overview={"next_due_at": None, "due": 0}, figures={"waiting_since": None})
    assert found("planner", current).found == "no tick is due and undecided"
    assert found("waiting", current).found == "no run waits"
    one = facts(overview={"next_due_at": NOW - 3000, "due": 1})
    assert found("planner", one).found == "1 tick is due, the first for 3 s"


def test_planner_is_not_checked_without_a_node_or_with_a_closed_gate():
    late = {"next_due_at": NOW - HOUR, "due": 1}
    for current in (
        facts(overview=late, lock_holder=None),
        facts(overview=late | {"gate_open": False}),
    ):
        assert "planner" not in [each.check for each in judge(current)]


def test_closed_gate_warns():
    assert level("gate", facts(overview={"gate_open": False})) == "warn"


def test_definition_that_cannot_be_read_or_planned_fails():
    finding = found("definitions", facts(store={"definitions": [("odd", "garbage")]}))
    assert (finding.level, finding.found) == ("fail", "odd cannot be planned")
    assert level("definitions", facts(store={"parked": ["odd"]})) == "fail"


def test_target_that_no_node_offers_warns():
    wanted = a_schedule("report", run={"python": "nightly"})
    finding = found("offers", facts(store={"definitions": [("report", definition(wanted))]}))
    assert (finding.level, "'python:nightly'" in finding.found) == ("warn", True)


def test_target_of_a_package_that_is_not_installed_warns():
    given = {"definitions": [("report", '{"every": "1h", "run": {"page": "ann"}}')]}
    finding = found("offers", facts(store=given))
    problem = "no package here provides 'page', which report needs"
    assert (finding.level, finding.found) == ("warn", problem)
    assert level("definitions", facts(store=given)) == "ok"


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({"command": ["true"]}, "ok"),
        ({"command": ["no-such-program"]}, "warn"),
        ({"command": ["./here.sh"]}, "ok"),
        ({"command": ["./there.sh"]}, "warn"),
        ({"command": ["./deep.sh"], "cwd": "deep"}, "ok"),
        ({"command": ["{{ date }}"]}, "ok"),
        ({"http": "https://example.com/"}, "ok"),
    ],
)
def test_missing_program_warns(folder, run, expected):
    (folder / "deep").mkdir()
    for name in ("here.sh", "deep/deep.sh"):
        (folder / name).write_text("")
    wanted = [("report", definition(a_schedule("report", run=run)))]
    assert level("programs", facts(store={"definitions": wanted})) == expected


def test_ended_schedules_warn():
    assert found("over", facts(store={"over": ["once"]})).found == "once will never tick again"


def test_failing_and_stuck_schedules_warn_with_a_few_names():
    assert level("failing", facts(store={"failing": list("abcde")})) == "warn"
    assert level("stuck", facts(store={"stuck": ["a"]})) == "warn"
    assert "onbeat runs --stuck" in found("stuck", facts(store={"stuck": ["a"]})).hint
    assert "a, b, c and 2 more" in found("failing", facts(store={"failing": list("abcde")})).found


@pytest.mark.parametrize(("waited", "expected"), [(HOUR - 1, "ok"), (HOUR, "warn"), (-HOUR, "ok")])
def test_run_waiting_for_an_hour_warns(waited, expected):
    assert level("waiting", facts(figures={"waiting_since": NOW - waited})) == expected


@pytest.mark.parametrize(("age", "expected"), [(30 * DAY + HOUR, "ok"), (31 * DAY, "warn")])
def test_history_older_than_keep_warns(age, expected):
    assert level("history", facts(store={"first_ended": NOW - age, "runs": 7})) == expected


@pytest.mark.parametrize("state", ["failed", "in_doubt"])
def test_undelivered_notices_warn(state):
    assert level("notices", facts(figures={"outbox": {state: 1, "sent": 5}})) == "warn"


# -- gathering facts


def looked_at(path):
    return look_at_file(Path(path), CLOCK)


def a_file(path="onbeat.db", **fields):
    """Make a database with a schedule in it, if fields are given."""

    async def live():
        store = await SqliteStore.open(Path(path), clock=CLOCK, inline=True)
        await store.register(Node("1", "here:1", EVERYTHING))
        if fields:
            await store.upsert([a_schedule("report", **fields)])
        await store.close()

    asyncio.run(live())
    return Path(path)


def test_look_reads_a_file_without_changing_it():
    before = a_file(every="1h").read_bytes()
    found = looked_at("onbeat.db")
    assert found.problem == found.damage == ""
    assert found.standing.overview.schedules == 1
    assert [name for name, _ in found.standing.definitions] == ["report"]
    assert Path("onbeat.db").read_bytes() == before


def test_look_does_not_create_a_missing_file():
    found = looked_at("onbeat.db")
    assert (found.is_there, found.problem) == (False, "onbeat.db does not exist")
    assert not Path("onbeat.db").exists()


def test_foreign_damaged_and_moved_files_are_distinguished():
    connection = apsw.Connection("else.db")
    connection.execute("CREATE TABLE meta (name, value)")
    connection.close()
    assert "another application" in looked_at("else.db").problem
    Path("text.db").write_text("no database at all\n" * 500)
    assert "damaged" in looked_at("text.db").problem
    connection = apsw.Connection(str(a_file("moved.db")))
    connection.execute("INSERT INTO meta VALUES ('moved_to', 'postgresql://db/onbeat')")
    connection.close()
    assert "was moved to postgresql://db/onbeat" in looked_at("moved.db").problem


def test_file_with_damage_inside_is_not_read_further():
    path = a_file(every="1h")
    content = bytearray(path.read_bytes())
    content[5 * 4096 : 8 * 4096] = b"\x55" * (3 * 4096)
    path.write_bytes(content)
    found = looked_at(path)
    assert found.damage
    assert "\n" not in found.damage
    assert found.standing is None


@pytest.mark.parametrize("version", [1, 99])
def test_file_with_another_schema_is_neither_read_nor_migrated(version):
    path = a_file(every="1h")
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", version)
    connection.close()
    found = looked_at(path)
    assert (found.schema, found.standing) == (version, None)
    assert looked_at(path).schema == version


def test_integrity_check_stops_at_its_time_limit(monkeypatch):
    monkeypatch.setattr("onbeat.stores.sqlite.diagnostics.CHECK_LIMIT", -1.0)
    monkeypatch.setattr("onbeat.stores.sqlite.diagnostics.STEPS", 1)
    found = looked_at(a_file(every="1h"))
    assert not found.is_checked
    assert found.standing is not None


def test_ended_schedules_exclude_manual_ones_and_followers():
    async def live():
        store = await SqliteStore.open(Path("onbeat.db"), clock=CLOCK, inline=True)
        await store.upsert(
            [
                a_schedule("over", at="2020-01-01T00:00:00Z"),
                a_schedule("hourly"),
                a_schedule("by-hand", manual=True),
                a_schedule("follows", after={"schedule": "hourly", "outcome": "success"}),
                a_schedule("itself", after={"success": "1h"}),
            ]
        )
        await store.close()

    asyncio.run(live())
    assert looked_at("onbeat.db").standing.over == ["itself", "over"]


def test_look_works_with_invalid_settings():
    refused = InvalidSettings("lease", "'x' is no length", hint="5s")
    current = asyncio.run(gather_facts(refused, settings_file=None, clock=CLOCK))
    assert {each.check for each in judge(current) if each.level == "fail"} == {
        "settings",
        "database",
    }


def test_look_works_while_a_node_holds_the_file():
    async def live():
        store = await SqliteStore.open(Path("onbeat.db"), clock=CLOCK, inline=True)
        await store.register(Node("1", "here:1", EVERYTHING))
        try:
            return await gather_facts(Settings(), settings_file=None, clock=CLOCK)
        finally:
            await store.close()

    current = asyncio.run(live())
    assert (current.lock_holder.pid, current.database.problem) == (os.getpid(), "")
    assert level("nodes", current) == "ok"


def test_database_in_memory_warns():
    current = asyncio.run(
        gather_facts(Settings(database="sqlite://"), settings_file=None, clock=CLOCK)
    )
    assert level("database", current) == "warn"


# -- PostgreSQL


def looked_at_server(url):
    return asyncio.run(look_at_server(url, CLOCK))


def test_look_does_not_create_tables_on_a_server(postgres_url):
    found = looked_at_server(postgres_url)
    assert (found.is_there, found.hint, found.standing) == (False, "onbeat up creates it", None)
    assert found.postgres.connections_left > 0
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT to_regnamespace('onbeat')").fetchone() == (None,)


def make_tables(url):
    async def live():
        store = await PostgresStore.open(url)
        await store.upsert([a_schedule("report")])
        await store.close()

    asyncio.run(live())


def test_look_reads_the_tables_of_a_server(postgres_url):
    make_tables(postgres_url)
    found = looked_at_server(postgres_url)
    assert found.problem == ""
    assert found.schema == found.known_schema
    assert found.standing.overview.schedules == 1
    assert found.postgres.lacks == []
    assert abs(found.postgres.clock - NOW) > DAY  # the server's clock, not that of the test


def test_server_with_a_newer_schema_is_not_read(postgres_url):
    make_tables(postgres_url)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE onbeat.meta SET value = '99' WHERE name = 'schema'")
    found = looked_at_server(postgres_url)
    assert (found.schema, found.standing) == (99, None)


def test_missing_privileges_of_the_database_user_are_named(postgres_url):
    make_tables(postgres_url)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("DROP ROLE IF EXISTS nobody_much")
        connection.execute("CREATE ROLE nobody_much LOGIN")
    other = postgres_url.replace("//onbeat@", "//nobody_much@")
    assert other != postgres_url
    try:
        assert looked_at_server(other).postgres.lacks == ["USAGE of the schema 'onbeat'"]
        with psycopg.connect(postgres_url) as connection:
            connection.execute("GRANT USAGE ON SCHEMA onbeat TO nobody_much")
        found = looked_at_server(other)
        assert "reading and changing onbeat.due" in found.postgres.lacks
        assert found.standing is None
    finally:
        with psycopg.connect(postgres_url) as connection:
            connection.execute("DROP OWNED BY nobody_much")
            connection.execute("DROP ROLE nobody_much")


def test_unreachable_server_is_reported_without_its_password():
    found = looked_at_server("postgresql://me:hidden@127.0.0.1:1/onbeat")
    assert "cannot be reached" in found.problem
    assert "hidden" not in found.problem


def test_invalid_server_address_is_reported():
    assert "cannot be parsed" in looked_at_server("postgresql://[::1/onbeat").problem


# -- words


def test_sizes_lengths_and_names_are_readable():
    assert [size(n) for n in (12, 4096, 3 * 2**20, 5 * 2**30, 2 * 2**40)] == [
        "12 bytes", "4 KiB", "3 MiB", "5 GiB", "2.0 TiB",
    ]  # fmt: skip
    assert [length(n) for n in (0, 2_500, 59_000, 120_000, 3 * HOUR, 40 * DAY)] == [
        "0 s", "2.5 s", "59 s", "2 min", "3 h", "40 days",
    ]  # fmt: skip
    assert names("ab") == "a, b"


# Made for this test; their keys were deleted. Years from 2050 on have another encoding.
CERTIFICATES = {
    "until-2026": """-----BEGIN CERTIFICATE-----
MIIBCzCBsaADAgECAgEHMAoGCCqGSM49BAMCMA8xDTALBgNVBAMMBHRlc3QwHhcN
MjUwNzAxMDAwMDAwWhcNMjYwNzAxMDAwMDAwWjAPMQ0wCwYDVQQDDAR0ZXN0MFkw
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEH85U2d8qVi5tW/nzzNat4dETe2QEENdM
L/LI7IAKOK1K3n/ce4mRiJPHbJs0w/gMLgZsx/D8NyV4y7mHH2Ya1DAKBggqhkjO
PQQDAgNJADBGAiEA5p0x7LAJARKoVvKEPU3D9JQcPc0q9S3pAKcZSfzHq40CIQDI
Cd0rNG56k5/04tyfZ64YPHAWMnEj7U5IbfdjUCxXFw==
-----END CERTIFICATE-----
""",
    "until-2060": """-----BEGIN CERTIFICATE-----
MIIBDDCBs6ADAgECAgEHMAoGCCqGSM49BAMCMA8xDTALBgNVBAMMBHRlc3QwIBcN
MjUwNzAxMDAwMDAwWhgPMjA2MDA3MDEwMDAwMDBaMA8xDTALBgNVBAMMBHRlc3Qw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQOIqU2MhdicxXMmN+PMfNJDlEvKg9R
b6qn8pqwAZMxyhOmjl0m7jTtoGkDyFxtwHlq4/g4oJcst2rlSKmZj5R/MAoGCCqG
SM49BAMCA0gAMEUCIQDzHH2kqdJ+KXSHGiEBjhZRBL92crw65NvK9YRR8p+U8AIg
Po2Bu4Q07HWVPN5jGSNLmY4gWCrBLALgFIeyXQmaXIE=
-----END CERTIFICATE-----
""",
}


# -- the files of definitions


FINE = (
    '{"prompt": "hello", "enabled": true, "schedule": {"type": "cron", "expression": "0 9 * * *"}}'
)
SERVICES = {
    "timers_enabled": True,
    "services": {"backup": {"argv": ["true"]}},
    "timers": [{"id": "nightly", "target": "backup", "on_calendar": {"hour": 25}}],
}
FILES = [
    ({}, "onbeat.yaml", "schedules: {a: {every: 1x, run: {command: [x]}}}", "schedules.a.every"),
    ({"services_file": "s.yaml"}, "s.yaml", "services: [", ""),
    ({"services_file": "s.yaml"}, "s.yaml", json.dumps(SERVICES), "nightly: "),
    ({"services_file": "none.yaml"}, None, "", "none.yaml"),
    ({"workflows_folder": "w"}, "w/report_v1.json", "{", "report_v1.json is not JSON"),
    ({"workflows_folder": "w"}, "w/report_v1.json", "[]", "report_v1.json: "),
    ({"flows_exposes": "e"}, "e/reports.yaml", "meta: {", "reports: "),
    ({"flows_exposes": "e"}, None, "", "e does not exist"),
]  # fmt: skip


def test_corrupt_prompt_file_is_named(folder):
    settings = given_settings(sessions_url="http://x", sessions_folder="p")
    for text, expected in (("{", "warn"), (FINE, "ok")):
        (folder / "p" / "daily").mkdir(parents=True, exist_ok=True)
        (folder / "p" / "daily" / "definition.json").write_text(text)
        finding = found("session files", facts(settings=settings))
        assert finding.level == expected
        assert ("daily: definition.json is corrupt" in finding.found) == (expected == "warn")


def test_prompt_folder_that_is_not_a_folder_fails_with_a_hint(folder):
    (folder / "p").write_text("")
    settings = given_settings(sessions_url="http://x", sessions_folder="p")
    finding = found("session files", facts(settings=settings))
    assert (finding.level, finding.found) == ("fail", "p cannot be used: Not a directory")
    assert finding.hint == "set `sessions_folder` to a writable folder"


@pytest.mark.parametrize(("values", "name", "text", "problem"), FILES)
def test_broken_file_of_definitions_is_named(folder, values, name, text, problem):
    if name is not None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    finding = found("source files", facts(settings=given_settings(**values)))
    assert (finding.level, problem in finding.found) == ("warn", True), finding


def test_corrupt_session_file_is_reported_by_one_check_only(folder):
    (folder / "p" / "daily").mkdir(parents=True)
    (folder / "p" / "daily" / "definition.json").write_text("{")
    (folder / "onbeat.yaml").write_text("schedules: {}")
    current = facts(settings=given_settings(sessions_url="http://x", sessions_folder="p"))
    finding = found("session files", current)
    assert (finding.level, "daily: definition.json" in finding.found) == ("warn", True), finding
    assert level("source files", current) == "ok"


def test_valid_files_are_ok(folder):
    (folder / "p" / "daily").mkdir(parents=True)
    (folder / "p" / "daily" / "definition.json").write_text(FINE)
    values = given_settings(sessions_url="http://x", sessions_folder="p", workflows_folder="none")
    assert level("source files", facts(settings=values)) == "ok"
    assert level("session files", facts(settings=values)) == "ok"

"""Every check of the doctor: what makes it fail, and what it says then."""

import asyncio
import json
import os
import ssl
from dataclasses import replace
from pathlib import Path

import apsw
import psycopg
import pytest

from onbeat.app.settings import Settings
from onbeat.core.schedule import definition
from onbeat.doctor import diagnose
from onbeat.doctor.certificates import expires_at
from onbeat.doctor.diagnose import CHECKS, judge, look
from onbeat.doctor.findings import InstallationFacts, length, names, size
from onbeat.errors import InvalidSettings
from onbeat.ports.rows import NodeRow, Overview, StoreFigures, ZoneDataProgress
from onbeat.ports.store import Node
from onbeat.stores.postgres.diagnostics import look as look_at_server
from onbeat.stores.postgres.store import PostgresStore
from onbeat.stores.sql.diagnostics import DatabaseFacts, PostgresFacts, StoreFacts
from onbeat.stores.sqlite.diagnostics import look as look_at_file
from onbeat.stores.sqlite.store import LockHolder, SqliteStore
from onbeat.testing import ManualClock, a_schedule

CLOCK = ManualClock("2026-06-01T12:00:00Z")
NOW = CLOCK.now()
HOUR, DAY = 3_600_000, 86_400_000
EVERYTHING = frozenset({"command", "http"})
HERE = NodeRow(
    "1", "here:1", frozenset({"plan", "run"}), EVERYTHING, NOW, NOW + 5_000, "1", "2026a", 0
)
OVERVIEW = Overview(NOW, True, 1, 0, 0, NOW + HOUR, {}, [HERE])
FIGURES = StoreFigures(0, None, 0, {}, 4096)
STANDING = StoreFacts(
    OVERVIEW, FIGURES, "2026a", definitions=[("report", definition(a_schedule("report")))]
)
WELL = DatabaseFacts(STANDING, schema=5, known_schema=5)
SERVER = PostgresFacts(17, NOW, NOW, False, 90)
POSTGRES = Settings(database="postgresql://onbeat@db/onbeat")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def seen(standing=None, overview=None, figures=None, looked=None, **given):
    """Return that all is well, but for what is given."""
    overview = replace(OVERVIEW, **overview or {})
    standing = replace(
        STANDING, overview=overview, figures=replace(FIGURES, **figures or {}), **standing or {}
    )
    usual = {
        "now": NOW,
        "python": (3, 11, 7),
        "sqlite": "3.54.1",
        "tz": "2026a",
        "settings": Settings(),
        "settings_file": None,
        "looked": replace(WELL, standing=standing, **looked or {}),
        "holder": LockHolder(1, "here:1", "1"),
    }
    return InstallationFacts(**usual | given)


def on_postgres(server=None, **given):
    return seen(
        settings=POSTGRES,
        holder=None,
        looked={"postgres": replace(SERVER, **server or {})},
        **given,
    )


def found(name, given):
    """Return what one check says, in a run of all."""
    (finding,) = [each for each in judge(given) if each.check == name]
    return finding


def level(name, given):
    return found(name, given).level


def test_where_all_is_well_nothing_is_found():
    assert {each.level for each in judge(seen())} == {"ok"}
    assert {each.level for each in judge(on_postgres())} == {"ok"}


@pytest.mark.parametrize(
    ("given", "expected", "told"),
    [
        ({"in_recovery": "true"}, "fail", "the server only reads"),
        ({"default_transaction_read_only": "on"}, "fail", "the server only reads"),
        ({"fsync": "off"}, "warn", "fsync is off"),
        ({"full_page_writes": "off"}, "warn", "full_page_writes is off"),
        ({"synchronous_commit": "off"}, "ok", "on for what Onbeat commits"),
        ({"fsync": "on"}, "ok", "keep what is committed"),
    ],
)
def test_settings_of_the_server_that_promises_depend_on_are_judged(given, expected, told):
    finding = found("server", on_postgres({"settings": given}))
    assert (finding.level, told in finding.found) == (expected, True)


def test_whatever_is_not_well_says_what_would_be_right():
    broken = seen(
        overview={"gate_open": False},
        standing={"failing": ["a"], "over": ["b"]},
        python=(3, 10, 1),
        holder=None,
    )
    for each in judge(broken):
        assert (each.hint == "") == (each.level == "ok"), each


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(monkeypatch):
    def odd_check(seen):
        raise RuntimeError("odd")

    monkeypatch.setattr(diagnose, "CHECKS", (odd_check, *CHECKS))
    first, *others = judge(seen())
    assert (first.check, first.level) == ("odd check", "fail")
    assert "RuntimeError: odd" in first.found
    assert len(others) > 10


# -- the machine


@pytest.mark.parametrize(
    ("version", "expected"), [((3, 10, 14), "fail"), ((3, 11, 0), "ok"), ((3, 14, 1), "ok")]
)
def test_an_old_python_fails(version, expected):
    assert level("python", seen(python=version)) == expected


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
def test_an_sqlite_that_can_damage_a_file_fails(version, expected):
    assert level("sqlite", seen(sqlite=version)) == expected


@pytest.mark.parametrize(("tz", "expected"), [("2024b", "warn"), ("2025c", "ok"), ("2026f", "ok")])
def test_zone_data_of_two_years_ago_is_old(tz, expected):
    given = seen(tz=tz, standing={"tz": tz}, overview={"nodes": []})
    assert level("zones", given) == expected


def test_due_rows_of_newer_zone_data_fail_since_nothing_is_planned_here():
    finding = found("zones", seen(tz="2026a", standing={"tz": "2026b"}))
    assert finding.level == "fail"
    assert "2026b" in finding.found


@pytest.mark.parametrize(("nodes", "expected"), [([], "warn"), (None, "ok")])
def test_zone_data_that_is_not_followed_yet_needs_a_node(nodes, expected):
    overview = {"following": ZoneDataProgress("2026a", 1000, 5000, 3, NOW)}
    finding = found("zones", seen(overview=overview | ({} if nodes is None else {"nodes": nodes})))
    assert finding.level == expected
    assert "1000 of 5000 schedules" in finding.found


def test_nodes_with_other_zone_data_are_told():
    finding = found(
        "zones", seen(overview={"nodes": [HERE, replace(HERE, node_id="2", tz="2025b")]})
    )
    assert (finding.level, "2025b" in finding.found) == ("warn", True)


def test_settings_that_are_refused_fail_and_tell_where():
    refused = InvalidSettings("ONBEAT_FOO", "unknown setting", hint="did you mean ONBEAT_FOE?")
    finding = found("settings", seen(settings=refused, looked={"problem": "?"}))
    assert finding.level == "fail"
    assert finding.found == "ONBEAT_FOO: unknown setting"
    assert finding.hint == "did you mean ONBEAT_FOE?"


@pytest.mark.parametrize(("free", "expected"), [(2**30, "ok"), (2**28, "warn"), (2**20, "fail")])
def test_a_full_disk_fails_before_it_is_full(monkeypatch, free, expected):
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr("onbeat.doctor.machine.shutil.disk_usage", lambda _: usage)
    assert level("disk", seen()) == expected


def test_an_output_that_is_no_folder_fails(folder):
    (folder / "here").write_text("")
    assert level("output", seen(settings=Settings(output="here"))) == "fail"
    (folder / "there").mkdir()
    assert level("output", seen(settings=Settings(output="there"))) == "ok"


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
def test_files_that_others_may_read_are_told(folder, name, mode, expected):
    make(folder / name, mode)
    given = seen(settings=Settings(tls_key="key.pem", jwt_key="jwt.key"))
    assert level("files", given) == expected
    if expected == "warn":
        assert name in found("files", given).found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('database = "postgresql://me:hidden@db/onbeat"', "warn"),
        ('database = "postgresql://me@db/onbeat"', "ok"),
    ],
)
def test_a_file_of_settings_with_a_password_is_not_for_others(folder, text, expected):
    path = make(folder / "onbeat.toml", 0o644, text)
    assert level("files", seen(settings_file=path)) == expected
    path.chmod(0o600)
    assert level("files", seen(settings_file=path)) == "ok"


def test_a_folder_of_secrets_is_for_its_user_alone(folder):
    given = seen(settings=Settings(secrets="secrets"))
    assert level("secrets", given) == "fail"
    (folder / "secrets").mkdir(mode=0o700)
    make(folder / "secrets" / "smtp", 0o600)
    assert level("secrets", given) == "ok"
    make(folder / "secrets" / "smtp", 0o640)
    assert "smtp" in found("secrets", given).found
    assert level("secrets", given) == "warn"


@pytest.mark.parametrize(
    ("name", "day", "expected"),
    [("until-2026", "2026-01-01", "ok"), ("until-2026", "2026-06-20", "warn"), ("until-2026", "2026-07-02", "fail"),
     ("until-2060", "2060-06-01", "ok")],
)  # fmt: skip
def test_a_certificate_is_renewed_in_time(folder, name, day, expected):
    (folder / "cert.pem").write_text(CERTIFICATES[name])
    now = ManualClock(f"{day}T00:00:00Z").now()
    assert level("tls", seen(settings=Settings(tls_cert="cert.pem"), now=now)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        ssl.DER_cert_to_PEM_cert(b"\x30\x03\x02\x01\x01"),
        ssl.DER_cert_to_PEM_cert(b""),
    ],
)
def test_what_is_no_certificate_fails(folder, text):
    (folder / "cert.pem").write_text(text)
    assert level("tls", seen(settings=Settings(tls_cert="cert.pem"))) == "fail"
    with pytest.raises(ValueError, match="certificate"):
        expires_at(text)


def test_a_certificate_that_is_not_there_fails():
    assert level("tls", seen(settings=Settings(tls_cert="nowhere.pem"))) == "fail"


# -- the database


def test_a_database_that_is_not_there_is_told_and_no_failure():
    given = seen(
        looked={
            "problem": "onbeat.db does not exist",
            "hint": "onbeat up makes it",
            "is_there": False,
        }
    )
    assert level("database", replace(given, looked=replace(given.looked, standing=None))) == "warn"


def test_one_that_cannot_be_reached_fails():
    assert (
        level("database", seen(looked={"problem": "it cannot be reached", "is_there": False}))
        == "fail"
    )
    assert (
        level("database", seen(looked={"problem": "it was moved", "hint": "--database"})) == "fail"
    )


@pytest.mark.parametrize(("schema", "expected"), [(4, "warn"), (5, "ok"), (6, "fail")])
def test_the_tables_are_to_be_of_this_program(schema, expected):
    assert level("database", seen(looked={"schema": schema})) == expected


def test_damage_fails_and_a_check_that_takes_too_long_is_told():
    assert level("integrity", seen(looked={"damage": "row 3 missing"})) == "fail"
    assert level("integrity", seen(looked={"is_checked": False})) == "warn"


def test_a_large_wal_is_told():
    assert level("wal", seen(looked={"wal": 300 * 2**20})) == "warn"


def test_that_no_node_is_up_is_told():
    assert level("nodes", seen(holder=None)) == "warn"
    assert level("nodes", on_postgres(overview={"nodes": []})) == "warn"


def test_nodes_that_only_run_plan_nothing():
    runs = replace(HERE, roles=frozenset({"run"}))
    finding = found("nodes", on_postgres(overview={"nodes": [runs]}))
    assert (finding.level, "`plan`" in finding.found) == ("warn", True)


def test_a_node_that_fell_silent_is_told():
    silent = replace(HERE, node_id="2", name="there:2", alive_until=NOW - 1)
    finding = found("silent nodes", on_postgres(overview={"nodes": [HERE, silent]}))
    assert (finding.level, finding.found) == ("warn", "there:2 fell silent")
    assert level("silent nodes", seen(holder=None)) == "warn"  # the lock of a file tells
    assert level("silent nodes", seen(overview={"nodes": [replace(HERE, alive_until=0)]})) == "ok"


def test_a_node_that_is_to_stop_is_told():
    assert (
        level("stopping nodes", seen(overview={"nodes": [replace(HERE, is_stopping=True)]}))
        == "warn"
    )


def test_an_old_postgresql_fails():
    assert level("postgresql", on_postgres({"version": 12})) == "fail"


def test_rights_that_are_lacking_fail():
    finding = found("rights", on_postgres({"lacks": ["USAGE of the schema 'onbeat'"]}))
    assert (finding.level, "USAGE" in finding.found) == ("fail", True)


def test_few_connections_are_told():
    assert level("connections", on_postgres({"connections_left": 3})) == "warn"


def test_a_pooler_is_told():
    assert level("pooler", on_postgres({"is_pooled": True})) == "warn"


@pytest.mark.parametrize(
    ("apart", "expected"), [(0, "ok"), (-900, "ok"), (1_500, "warn"), (-60_000, "warn")]
)
def test_clocks_that_are_apart_are_told(apart, expected):
    assert level("clock", on_postgres({"clock": NOW + apart})) == expected


# -- how things stand


@pytest.mark.parametrize(
    ("behind", "expected"), [(0, "ok"), (9_999, "ok"), (10_000, "warn"), (60_000, "fail")]
)
def test_a_planner_that_is_behind_is_told(behind, expected):
    assert level("planner", seen(overview={"next_due_at": NOW - behind, "due": 1})) == expected


def test_counts_of_none_are_in_words():
    given = seen(overview={"next_due_at": None, "due": 0}, figures={"waiting_since": None})
    assert found("planner", given).found == "no tick is due and undecided"
    assert found("waiting", given).found == "no run waits"
    one = seen(overview={"next_due_at": NOW - 3000, "due": 1})
    assert found("planner", one).found == "1 tick is due, the first for 3 s"


def test_nobody_is_behind_where_nobody_plans():
    late = {"next_due_at": NOW - HOUR, "due": 1}
    for given in (seen(overview=late, holder=None), seen(overview=late | {"gate_open": False})):
        assert "planner" not in [each.check for each in judge(given)]


def test_a_closed_gate_is_told():
    assert level("gate", seen(overview={"gate_open": False})) == "warn"


def test_a_definition_that_cannot_be_read_or_planned_fails():
    finding = found("definitions", seen(standing={"definitions": [("odd", "garbage")]}))
    assert (finding.level, finding.found) == ("fail", "odd cannot be planned")
    assert level("definitions", seen(standing={"parked": ["odd"]})) == "fail"


def test_what_no_node_offers_is_told():
    wanted = a_schedule("report", run={"python": "nightly"})
    finding = found("offers", seen(standing={"definitions": [("report", definition(wanted))]}))
    assert (finding.level, "'python:nightly'" in finding.found) == ("warn", True)


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
def test_a_program_that_is_not_there_is_told(folder, run, expected):
    (folder / "deep").mkdir()
    for name in ("here.sh", "deep/deep.sh"):
        (folder / name).write_text("")
    wanted = [("report", definition(a_schedule("report", run=run)))]
    assert level("programs", seen(standing={"definitions": wanted})) == expected


def test_schedules_that_are_over_are_told():
    assert found("over", seen(standing={"over": ["once"]})).found == "once will never tick again"


def test_schedules_that_fail_again_and_again_are_told():
    assert level("failing", seen(standing={"failing": list("abcde")})) == "warn"
    assert level("stuck", seen(standing={"stuck": ["a"]})) == "warn"
    assert "onbeat runs --stuck" in found("stuck", seen(standing={"stuck": ["a"]})).hint
    assert "a, b, c and 2 more" in found("failing", seen(standing={"failing": list("abcde")})).found


@pytest.mark.parametrize(("waited", "expected"), [(HOUR - 1, "ok"), (HOUR, "warn"), (-HOUR, "ok")])
def test_a_run_that_waits_for_long_is_told(waited, expected):
    assert level("waiting", seen(figures={"waiting_since": NOW - waited})) == expected


@pytest.mark.parametrize(("age", "expected"), [(30 * DAY + HOUR, "ok"), (31 * DAY, "warn")])
def test_history_beyond_what_is_kept_is_told(age, expected):
    assert level("history", seen(standing={"first_ended": NOW - age, "runs": 7})) == expected


@pytest.mark.parametrize("state", ["failed", "in_doubt"])
def test_notices_that_did_not_arrive_are_told(state):
    assert level("notices", seen(figures={"outbox": {state: 1, "sent": 5}})) == "warn"


# -- looking


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


def test_a_file_is_looked_at_and_not_changed():
    before = a_file(every="1h").read_bytes()
    found = looked_at("onbeat.db")
    assert found.problem == found.damage == ""
    assert found.standing.overview.schedules == 1
    assert [name for name, _ in found.standing.definitions] == ["report"]
    assert Path("onbeat.db").read_bytes() == before


def test_a_file_that_is_not_there_is_not_made():
    found = looked_at("onbeat.db")
    assert (found.is_there, found.problem) == (False, "onbeat.db does not exist")
    assert not Path("onbeat.db").exists()


def test_a_file_of_something_else_a_damaged_and_a_moved_one_are_told_apart():
    connection = apsw.Connection("else.db")
    connection.execute("CREATE TABLE meta (name, value)")
    connection.close()
    assert "something else" in looked_at("else.db").problem
    Path("text.db").write_text("no database at all\n" * 500)
    assert "damaged" in looked_at("text.db").problem
    connection = apsw.Connection(str(a_file("moved.db")))
    connection.execute("INSERT INTO meta VALUES ('moved_to', 'postgresql://db/onbeat')")
    connection.close()
    assert "was moved to postgresql://db/onbeat" in looked_at("moved.db").problem


def test_damage_inside_a_file_is_found_and_the_rest_is_not_trusted():
    path = a_file(every="1h")
    content = bytearray(path.read_bytes())
    content[5 * 4096 : 8 * 4096] = b"\x55" * (3 * 4096)
    path.write_bytes(content)
    found = looked_at(path)
    assert found.damage
    assert "\n" not in found.damage
    assert found.standing is None


@pytest.mark.parametrize("version", [1, 99])
def test_a_file_of_another_version_is_not_read_and_not_brought_up_to_date(version):
    path = a_file(every="1h")
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", version)
    connection.close()
    found = looked_at(path)
    assert (found.schema, found.standing) == (version, None)
    assert looked_at(path).schema == version


def test_a_check_that_takes_too_long_is_broken_off(monkeypatch):
    monkeypatch.setattr("onbeat.stores.sqlite.diagnostics.CHECK_LIMIT", -1.0)
    monkeypatch.setattr("onbeat.stores.sqlite.diagnostics.STEPS", 1)
    found = looked_at(a_file(every="1h"))
    assert not found.is_checked
    assert found.standing is not None


def test_a_schedule_that_is_over_is_found_and_one_that_follows_another_is_not():
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


def test_the_whole_is_looked_at_with_settings_that_are_refused():
    refused = InvalidSettings("lease", "'x' is no length", hint="5s")
    given = asyncio.run(look(refused, settings_file=None, clock=CLOCK))
    assert {each.check for each in judge(given) if each.level == "fail"} == {"settings", "database"}


def test_a_file_that_is_held_is_looked_at_all_the_same():
    async def live():
        store = await SqliteStore.open(Path("onbeat.db"), clock=CLOCK, inline=True)
        await store.register(Node("1", "here:1", EVERYTHING))
        try:
            return await look(Settings(), settings_file=None, clock=CLOCK)
        finally:
            await store.close()

    given = asyncio.run(live())
    assert (given.holder.pid, given.looked.problem) == (os.getpid(), "")
    assert level("nodes", given) == "ok"


def test_memory_is_no_database_to_look_at():
    given = asyncio.run(look(Settings(database="sqlite://"), settings_file=None, clock=CLOCK))
    assert level("database", given) == "warn"


# -- PostgreSQL


def looked_at_server(url):
    return asyncio.run(look_at_server(url, CLOCK))


def test_a_server_without_our_tables_is_not_changed(postgres_url):
    found = looked_at_server(postgres_url)
    assert (found.is_there, found.hint, found.standing) == (False, "onbeat up makes it", None)
    assert found.postgres.connections_left > 0
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT to_regnamespace('onbeat')").fetchone() == (None,)


def make_tables(url):
    async def live():
        store = await PostgresStore.open(url)
        await store.upsert([a_schedule("report")])
        await store.close()

    asyncio.run(live())


def test_a_server_with_our_tables_is_read(postgres_url):
    make_tables(postgres_url)
    found = looked_at_server(postgres_url)
    assert found.problem == ""
    assert found.schema == found.known_schema
    assert found.standing.overview.schedules == 1
    assert found.postgres.lacks == []
    assert abs(found.postgres.clock - NOW) > DAY  # the test's own clock is another


def test_a_server_with_newer_tables_is_told_and_not_read(postgres_url):
    make_tables(postgres_url)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE onbeat.meta SET value = '99' WHERE name = 'schema'")
    found = looked_at_server(postgres_url)
    assert (found.schema, found.standing) == (99, None)


def test_a_user_without_rights_is_told_what_it_lacks(postgres_url):
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


def test_a_server_that_is_not_there_is_told_without_a_password():
    found = looked_at_server("postgresql://me:hidden@127.0.0.1:1/onbeat")
    assert "cannot be reached" in found.problem
    assert "hidden" not in found.problem


def test_an_address_that_makes_no_sense_is_told():
    assert "cannot be read" in looked_at_server("postgresql://[::1/onbeat").problem


# -- words


def test_sizes_lengths_and_names_are_for_people():
    assert [size(n) for n in (12, 4096, 3 * 2**20, 5 * 2**30, 2 * 2**40)] == [
        "12 bytes", "4 KiB", "3 MiB", "5 GiB", "2.0 TiB",
    ]  # fmt: skip
    assert [length(n) for n in (0, 2_500, 59_000, 120_000, 3 * HOUR, 40 * DAY)] == [
        "0 s", "2.5 s", "59 s", "2 min", "3 h", "40 days",
    ]  # fmt: skip
    assert names("ab") == "a, b"


# Made for this test; their keys are gone. Years from 2050 on are written in another way.
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


# -- the files that definitions come from


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


def test_file_of_a_prompt_that_is_corrupt_is_named(folder):
    settings = Settings(sessions_url="http://x", sessions_folder="p")
    for text, expected in (("{", "warn"), (FINE, "ok")):
        (folder / "p" / "daily").mkdir(parents=True, exist_ok=True)
        (folder / "p" / "daily" / "definition.json").write_text(text)
        finding = found("session files", seen(settings=settings))
        assert finding.level == expected
        assert ("daily: definition.json is corrupt" in finding.found) == (expected == "warn")


def test_folder_of_prompts_that_is_not_a_folder_fails_with_a_hint(folder):
    (folder / "p").write_text("")
    settings = Settings(sessions_url="http://x", sessions_folder="p")
    finding = found("session files", seen(settings=settings))
    assert (finding.level, finding.found) == ("fail", "p cannot be used: Not a directory")
    assert finding.hint == "sessions_folder: a folder that can be written to"


@pytest.mark.parametrize(("given", "name", "text", "told"), FILES)
def test_a_file_of_definitions_that_is_corrupt_is_named(folder, given, name, text, told):
    if name is not None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    finding = found("source files", seen(settings=Settings(**given)))
    assert (finding.level, told in finding.found) == ("warn", True), finding


def test_a_session_file_that_is_corrupt_is_named_once(folder):
    (folder / "p" / "daily").mkdir(parents=True)
    (folder / "p" / "daily" / "definition.json").write_text("{")
    (folder / "onbeat.yaml").write_text("schedules: {}")
    given = seen(settings=Settings(sessions_url="http://x", sessions_folder="p"))
    finding = found("session files", given)
    assert (finding.level, "daily: definition.json" in finding.found) == ("warn", True), finding
    assert level("source files", given) == "ok"


def test_files_without_a_mistake_are_well(folder):
    (folder / "p" / "daily").mkdir(parents=True)
    (folder / "p" / "daily" / "definition.json").write_text(FINE)
    given = Settings(sessions_url="http://x", sessions_folder="p", workflows_folder="none")
    assert level("source files", seen(settings=given)) == "ok"
    assert level("session files", seen(settings=given)) == "ok"

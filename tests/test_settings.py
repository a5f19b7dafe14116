"""Settings are read strictly from three places, of which the later one wins."""

import ast
import pickle
import re
import shlex
import tomllib
from dataclasses import FrozenInstanceError
from datetime import timedelta
from itertools import chain, combinations, cycle
from pathlib import Path
from typing import get_args

import pytest

from onbeat import Onbeat
from onbeat.app import settings as module
from onbeat.app.setting_sources import SET_FOR_COMMANDS
from onbeat.app.settings import (
    HttpTargets,
    JwtAlgorithm,
    LogFormat,
    LogLevel,
    Settings,
    known_settings,
)
from onbeat.errors import InvalidSettings, OnbeatError
from tests.given_settings import given_settings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "settings.md").read_text()
NAMES = list(known_settings().fields)
FORMS = "sqlite:///relative.db, sqlite:////absolute.db, or postgresql://user@host/name"
DURATIONS = "such as 45s, 90m, 1h30m, 1d or PT90M, the largest unit first"

# For each setting values as an environment writes them, and what they come to: three, if there are.
SAMPLES = {
    "database": {f"sqlite:///{name}.db": f"sqlite:///{name}.db" for name in "abc"},
    "output": {"a": "a", "b": "b", "c": "c"},
    "concurrency": {"1": 1, "64": 64, "100000": 100_000},
    "lease": {"1s": 1_000, "1m30s": 90_000, "1h": 3_600_000},
    "stop_grace": {"0s": 0, "PT1M": 60_000, "1d": 86_400_000},
    "catchup_per_second": {"1": 1, "7": 7, "100000": 100_000},
    "keep": {"1h": 3_600_000, "2w": 14 * 86_400_000, "36500d": 36_500 * 86_400_000},
    "log_level": {"debug": "debug", "warning": "warning", "error": "error"},
    "log_format": {"text": "text", "json": "json", "auto": "auto"},
    "http_targets": {"any": "any", "public": "public"},
    "roles": {"plan": ("plan",), "run": ("run",), "run, plan,run": ("run", "plan")},
    "pass_env": {"": (), "LANG": ("LANG",), "A, _b2,A": ("A", "_b2")},
    "listen": {each: each for each in ("0.0.0.0:443", "[::1]:1", "localhost:65535")},
    "public_url": {
        "": "",
        "http://a:1": "http://a:1",
        "https://b.example/x/": "https://b.example/x",
    },
    "hosts": {"": (), "A.example": ("a.example",), "a:1, [::1]": ("a:1", "[::1]")},
    "cors_origins": {
        "": (),
        "HTTPS://Chat.Example:443": ("https://chat.example",),
        "http://[::1]:3000, http://localhost:80": ("http://[::1]:3000", "http://localhost"),
    },
    "trusted_proxies": {
        "": (),
        "10.0.0.7": ("10.0.0.7",),
        "::1, 10.0.0.0/8": ("::1", "10.0.0.0/8"),
    },
    "rate_limit": {"1": 1, "5": 5, "1000000": 1_000_000},
    "jwt_algorithm": {"ES256": "ES256", "EdDSA": "EdDSA", "HS256": "HS256"},
    **{
        name: {"a": "a", "b": "b", "c": "c"}
        for name in (
            "secrets",
            "tls_cert",
            "tls_key",
            "tls_client_ca",
            "jwt_key",
            "jwt_issuer",
            "jwt_audience",
            "services_file",
            "sessions_folder",
            "sessions_cwd",
            "workflows_folder",
            "workflows_token",
            "ray_working_dir",
            "flows_exposes",
            "flows_user",
            "flows_password",
            "flows_log_file",
        )
    },
    **{
        name: {"http://a:1": "http://a:1", "https://b/x/": "https://b/x", "": ""}
        for name in ("sessions_url", "workflows_executor", "flows_panel")
    },
    **{
        name: {"1m": 60_000, "PT10M": 600_000, "1h": 3_600_000}
        for name in (
            "lookahead",
            "sessions_check",
            "sessions_busy_delay",
            "sessions_minimum",
            "flows_interval",
        )
    },
    "sessions_most": {"1": 1, "7": 7, "100000": 100_000},
    **{
        name: {"ERROR": "ERROR", "warning": "WARNING", "CRITICAL": "CRITICAL"}
        for name in ("flows_log_file_level", "flows_std_level")
    },
    "workflows_feedback": {"true": True, "false": False},
    "workflows_timeout": {"1m": 60_000, "PT10H": 36_000_000, "30d": 30 * 86_400_000},
    "workflows_overlap_policy": {each: each for each in ("allow", "queue", "skip")},
    "workflows_catchup_policy": {each: each for each in ("fire_immediately", "spread", "none")},
    "ray_address": {"auto": "auto", "10.0.0.7:6379": "10.0.0.7:6379", "": ""},
    "ray_lease": {"5s": 5_000, "PT1M": 60_000, "1h": 3_600_000},
    "workflows_jitter_ms": {"0": 0, "250": 250, "604800000": 604_800_000},
}
NUMBERS = {
    "concurrency", "catchup_per_second", "rate_limit", "sessions_most", "workflows_jitter_ms",
    "workflows_feedback",
}  # fmt: skip
LISTEN = "such as 127.0.0.1:8585, [::1]:8585 or 0.0.0.0:443"
URL = "such as https://onbeat.example.com"
PROXIES = 'such as ["10.0.0.7", "10.1.0.0/16"]'
PLACES = ["file", "environment", "flags"]
SUBSETS = list(chain.from_iterable(combinations(PLACES, size) for size in range(4)))


@pytest.fixture
def load(tmp_path):
    def load(toml=None, *, file=None, flags=None, **environment):
        if toml is not None:
            (tmp_path / "onbeat.toml").write_text(toml)
        return Settings.load(flags=flags or {}, environment=environment, file=file, folder=tmp_path)

    return load


@pytest.fixture
def refusal(load, tmp_path):
    def refusal(*args, **kwargs):
        with pytest.raises(InvalidSettings) as refused:
            load(*args, **kwargs)
        return str(refused.value).replace(f"{tmp_path}/", "")

    return refusal


ORIGINS = '(such as ["https://chat.example.com", "http://localhost:3000"])'
EACH_ORIGIN, NOT_AN_ORIGIN = f"name each origin {ORIGINS}", f"is not an origin {ORIGINS}"


def env(name):
    return f"ONBEAT_{name.upper()}"


def in_toml(name, text):
    if name in NUMBERS:
        return f"{name} = {text}\n"
    if name in {"cors_origins", "hosts", "pass_env", "roles", "trusted_proxies"}:
        return f"{name} = {[part.strip() for part in text.split(',') if part]}\n"
    return f'{name} = "{text}"\n'


# Places and their order


def test_settings_have_defaults(load):
    assert load() == Settings()


@pytest.mark.parametrize("places", SUBSETS, ids="-".join)
@pytest.mark.parametrize("name", NAMES)
def test_last_place_that_has_a_setting_wins(load, name, places):
    said = dict(zip(PLACES, cycle(SAMPLES[name]), strict=False))
    found = load(
        in_toml(name, said["file"]) if "file" in places else None,
        flags={name: said["flags"] if "flags" in places else None},
        **({env(name): said["environment"]} if "environment" in places else {}),
    )
    expected = SAMPLES[name][said[places[-1]]] if places else Settings().value(name)
    assert found.value(name) == expected
    untouched = [other for other in NAMES if other != name]
    assert all(found.value(other) == Settings().value(other) for other in untouched)


def test_setting_of_a_system_may_be_in_its_table(load, refusal):
    found = load('[sessions]\nurl = "http://a:1"\nmost = 5\n[workflows]\nfeedback = true\n')
    assert (found.value("sessions_url"), found.value("sessions_most")) == ("http://a:1", 5)
    assert found.value("workflows_feedback")
    assert refusal("[sessions]\nurll = 1").startswith("onbeat.toml: sessions_urll: unknown setting")


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        (
            '[workflows]\nlisten = "127.0.0.1:1"',
            "workflows_listen: unknown setting (listen belongs above [workflows])",
        ),
        (
            '[workflow]\nexecutor = "http://a"',
            "workflow: unknown setting (did you mean [workflows]?)",
        ),
        (
            "[workflows]\nfeedbak = true",
            "workflows_feedbak: unknown setting (did you mean 'workflows_feedback'?)",
        ),
        ("listn = 5", "listn: unknown setting (did you mean 'listen'?)"),
    ],
)
def test_setting_in_a_wrong_table_is_refused_with_the_right_place(refusal, toml, told):
    assert refusal(toml) == f"onbeat.toml: {told}"


THEIRS = {
    "TICK_MS": "500",
    "LOOKAHEAD_MS": "30000",
    "MAX_CATCHUP_PER_TICK": "7",
    "DEFAULT_OVERLAP_POLICY": "queue",
    "DEFAULT_CATCHUP_POLICY": "spread",
    "DEFAULT_JITTER_MS": "250",
}


def test_workflow_settings_are_read_by_the_names_of_the_origin(load):
    found = load(ONBEAT_WORKFLOWS_EXECUTOR="http://a:1", **THEIRS)
    assert (found.lookahead, found.catchup_per_second) == (30_000, 7)
    assert (found.value("workflows_overlap_policy"), found.value("workflows_catchup_policy")) == (
        "queue",
        "spread",
    )
    assert found.value("workflows_jitter_ms") == 250
    ours = load(ONBEAT_WORKFLOWS_JITTER_MS="9", **THEIRS)
    assert ours.value("workflows_jitter_ms") == 9  # ours wins


def test_names_of_the_origin_are_ignored_without_workflows(load):
    assert load(**THEIRS) == Settings()


def test_names_of_the_origin_apply_in_a_program_with_an_executor(tmp_path, monkeypatch):
    found = Settings.load(environment=THEIRS, folder=tmp_path, systems=("workflows",))
    assert (found.lookahead, found.value("workflows_overlap_policy")) == (30_000, "queue")
    monkeypatch.chdir(tmp_path)
    for name, value in THEIRS.items():
        monkeypatch.setenv(name, value)
    beat = Onbeat("sqlite://")
    assert beat._settings.lookahead == 60_000
    beat.executor(print)
    assert (beat._settings.lookahead, beat._settings.database) == (30_000, "sqlite://")
    given = Onbeat(settings=Settings(database="sqlite://"))
    given.executor(print)  # who gives settings has said all of them
    assert given._settings.lookahead == 60_000


def test_environment_wins_over_the_file_and_own_names_over_those_of_the_origin(load):
    toml = 'lookahead = "10s"\n[workflows]\noverlap_policy = "allow"\n'
    found = load(toml, **THEIRS)
    assert (found.lookahead, found.value("workflows_overlap_policy")) == (30_000, "queue")
    assert load(toml, ONBEAT_LOOKAHEAD="20s", **THEIRS).lookahead == 20_000


@pytest.mark.parametrize(
    ("plain", "table"),
    [("workflows_executor", "[workflows]\nexecutor"), ("sessions_url", "[sessions]\nurl")],
)
def test_setting_given_with_and_without_its_table_is_refused(refusal, plain, table):
    told = refusal(f'{plain} = "http://a"\n{table} = "http://b"\n')
    assert told.startswith(f"onbeat.toml: {plain}: it is set twice (")


@pytest.mark.parametrize("name", THEIRS)
def test_invalid_value_under_a_name_of_the_origin_is_refused(refusal, name):
    told = refusal(ONBEAT_WORKFLOWS_EXECUTOR="http://a:1", **{name: "x"})
    assert told.startswith(f"{name}: 'x' is ")


def test_different_settings_of_several_places_are_combined(load):
    found = load("concurrency = 3", flags={"log_level": "debug"}, ONBEAT_LEASE="9s")
    assert found == Settings(concurrency=3, lease=9_000, log_level="debug")


@pytest.mark.parametrize("name", NAMES)
def test_value_has_the_type_of_its_field_from_every_place(load, name):
    text = list(SAMPLES[name])[1]
    found = [load(flags={name: text}), load(**{env(name): text}), load(in_toml(name, text))]
    default = Settings().value(name)
    assert [type(each.value(name)) for each in found] == [type(default)] * 3
    assert found[0] == found[1] == found[2]


def test_flag_may_be_a_python_value(load):
    flags = {"concurrency": 5, "lease": timedelta(seconds=7), "pass_env": ("A", "B", "A")}
    assert load(flags=flags) == Settings(concurrency=5, lease=7_000, pass_env=("A", "B"))


def test_invalid_value_is_refused_even_if_overridden(refusal):
    assert refusal("concurrency = 0", flags={"concurrency": 5}).startswith("onbeat.toml: ")
    assert refusal("", flags={"lease": "5s"}, ONBEAT_LEASE="soon").startswith("ONBEAT_LEASE: ")


# The file


def test_named_file_is_read_instead_of_the_default_one(load, tmp_path):
    (tmp_path / "named.toml").write_text("concurrency = 2")
    (tmp_path / "other.toml").write_text("concurrency = 3")
    by_flag = load("lease = '9s'", file=tmp_path / "named.toml", ONBEAT_CONFIG="nowhere.toml")
    by_environment = load(ONBEAT_CONFIG=str(tmp_path / "other.toml"))
    assert by_flag == Settings(concurrency=2)
    assert by_environment == Settings(concurrency=3)


def test_file_name_is_relative_to_the_folder(load, tmp_path):
    (tmp_path / "named.toml").write_text("concurrency = 2")
    assert load(file=Path("named.toml")) == Settings(concurrency=2)
    assert load(ONBEAT_CONFIG="named.toml") == Settings(concurrency=2)


def test_folder_of_settings_may_be_relative(tmp_path, monkeypatch):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "onbeat.toml").write_text("concurrency = 2")
    monkeypatch.chdir(tmp_path)
    assert Settings.load(environment={}, folder=Path("etc")) == Settings(concurrency=2)
    (tmp_path / "etc" / "onbeat.toml").write_text("concurrncy = 2")
    with pytest.raises(InvalidSettings, match=r"^etc/onbeat.toml: concurrncy: "):
        Settings.load(environment={}, folder=Path("etc"))


def test_empty_settings_file_changes_nothing(load):
    assert load("# nothing yet\n") == Settings()


def test_missing_named_file_is_refused(refusal):
    missing = "nowhere.toml: it cannot be read: No such file or directory"
    assert refusal(file=Path("nowhere.toml")) == f"{missing} (a TOML file that can be read)"
    assert refusal(ONBEAT_CONFIG="nowhere.toml") == f"{missing} (ONBEAT_CONFIG names it)"
    assert (
        refusal(ONBEAT_CONFIG="")
        == "ONBEAT_CONFIG: it is empty (name a file, or unset the variable)"
    )


def test_folder_as_a_settings_file_is_refused(refusal, tmp_path):
    (tmp_path / "onbeat.toml").mkdir()
    told = "onbeat.toml: it cannot be read: Is a directory"
    assert refusal() == f"{told} (a TOML file that can be read)"
    assert refusal(ONBEAT_CONFIG="onbeat.toml") == f"{told} (ONBEAT_CONFIG names it)"


def test_unreadable_settings_file_is_refused(refusal, tmp_path):
    file = tmp_path / "onbeat.toml"
    file.symlink_to("onbeat.toml")
    assert refusal().startswith("onbeat.toml: it cannot be read: Too many levels of symbolic links")
    file.unlink()
    file.symlink_to("gone.toml")
    assert refusal().startswith("onbeat.toml: it cannot be read: No such file or directory")


def test_invalid_toml_is_refused_with_the_line(refusal):
    hint = 'such as concurrency = 64 or lease = "5s"'
    told = refusal("concurrency = 64\nlease = soon\n")
    assert told == f"onbeat.toml: it is not TOML: Invalid value (at line 2, column 9) ({hint})"
    for text in ("a = " + "[" * 100_000, "a = " + "9" * 5_000):
        assert refusal(text).startswith("onbeat.toml: it is not TOML: ")


def test_settings_file_in_another_encoding_is_refused(refusal, tmp_path):
    (tmp_path / "onbeat.toml").write_bytes('output = "Ausgänge"'.encode("latin-1"))
    assert refusal() == "onbeat.toml: it is not in UTF-8 (save it in UTF-8)"


def test_impossible_file_name_is_refused(refusal):
    assert "it is not a file name" in refusal(file=Path("a\0b"))


# Names


def test_unknown_setting_in_the_file_is_refused(refusal):
    no = "unknown setting"
    assert (
        refusal("concurrncy = 1") == f"onbeat.toml: concurrncy: {no} (did you mean 'concurrency'?)"
    )
    assert (
        refusal("stop-grace = 1") == f"onbeat.toml: stop-grace: {no} (did you mean 'stop_grace'?)"
    )
    no_package = "no installed package has settings web_*"
    assert refusal("[web]\nport = 1") == f"onbeat.toml: web: {no} ({no_package})"
    assert refusal("web_port = 1") == f"onbeat.toml: web_port: {no} ({no_package})"
    assert refusal('"a\\nb" = 1').startswith(f"onbeat.toml: 'a\\nb': {no} ")


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("ONBEAT_LAESE", "ONBEAT_LEASE"),
        ("ONBEAT_lease", "ONBEAT_LEASE"),
        ("ONBEAT_STOPGRACE", "ONBEAT_STOP_GRACE"),
        ("ONBEAT_CONFG", "ONBEAT_CONFIG"),
    ],
)
def test_misspelt_variable_is_refused_with_a_suggestion(refusal, variable, near):
    told = f"{variable}: unknown setting (did you mean '{near}'?)"
    assert refusal(**{variable: "1"}) == told


def test_unknown_variable_is_refused_with_all_known_names(refusal):
    known = ", ".join(sorted([*map(env, NAMES), "ONBEAT_CONFIG"]))
    assert refusal(ONBEAT_XYZ="1") == f"ONBEAT_XYZ: unknown setting (known: {known})"
    assert refusal(ONBEAT_="1").startswith("ONBEAT_: unknown setting (known: ")


def test_variables_of_commands_and_of_other_programs_are_ignored(load):
    assert {
        f"ONBEAT_{name}"
        for name in (
            "RUN_ID", "STORE", "SCHEDULE", "RUN_AT", "ATTEMPT", "KEY", "TRIGGERED_BY", "ITERATION",
            "INPUTS", "FAILPOINT", "NODE",
        )
    } == SET_FOR_COMMANDS  # fmt: skip
    others = ("HOME", "ONBEAT", "onbeat_lease", "MY_ONBEAT_LEASE", "LEASE")
    assert load(**dict.fromkeys([*SET_FOR_COMMANDS, *others], "x")) == Settings()


def test_unknown_flag_is_refused_even_without_a_value(refusal):
    told = "--stop-grce: unknown setting (did you mean 'stop_grace'?)"
    assert refusal(flags={"stop_grce": "5s"}) == told
    assert refusal(flags={"stop_grce": None}) == told


# Values


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("database = 5", "database: 5 is not a string (a string in quotes)"),
        ("output = ['a']", "output: ['a'] is not a string (a string in quotes)"),
        ('output = "a\\u0000b"', "output: the value contains a NUL character (a path)"),
        ('concurrency = "64"', "concurrency: '64' is not a whole number (1 to 100000)"),
        ("concurrency = 64.0", "concurrency: 64.0 is not a whole number (1 to 100000)"),
        ("concurrency = true", "concurrency: True is not a whole number (1 to 100000)"),
        (
            "catchup_per_second = []",
            "catchup_per_second: [] is not a whole number (1 to 100000)",
        ),
        ("lease = 5", "lease: the number 5 has no unit (5s, 5m, 5h or 5d)"),
        ("lease = true", f"lease: True is not a duration ({DURATIONS})"),
        ("keep = {days = 30}", f"keep: {{'days': 30}} is not a duration ({DURATIONS})"),
        (
            "log_level = 10",
            "log_level: 10 is not a valid value (known: debug, error, info, warning)",
        ),
        (
            "log_format = ['text']",
            "log_format: ['text'] is not a valid value (did you mean 'text'?)",
        ),
        ('pass_env = "HOME"', """pass_env: 'HOME' is not a list (such as ["HOME", "LANG"])"""),
        (
            "pass_env = [1]",
            "pass_env: 1 is not the name of an environment variable (names only, such as HOME)",
        ),
    ],
)
def test_value_of_the_wrong_type_in_the_file_is_refused(refusal, line, told):
    assert refusal(line) == f"onbeat.toml: {told}"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("concurrency", "many", "'many' is not a whole number (1 to 100000)"),
        ("concurrency", "", "'' is not a whole number (1 to 100000)"),
        ("concurrency", "1_000", "'1_000' is not a whole number (1 to 100000)"),
        ("concurrency", "٣", "'٣' is not a whole number (1 to 100000)"),
        ("concurrency", "0", "0 is out of bounds (1 to 100000)"),
        ("concurrency", "-1", "-1 is out of bounds (1 to 100000)"),
        ("concurrency", "100001", "100001 is out of bounds (1 to 100000)"),
        ("catchup_per_second", "0", "0 is out of bounds (1 to 100000)"),
        ("catchup_per_second", "100001", "100001 is out of bounds (1 to 100000)"),
        ("lease", "soon", f"'soon' is not a duration ({DURATIONS})"),
        ("lease", "5", f"'5' is not a duration ({DURATIONS})"),
        ("lease", "500ms", "'500ms' is out of bounds (1s to 1h)"),
        ("lease", "", f"'' is not a duration ({DURATIONS})"),
        ("lease", "0s", "'0s' is out of bounds (1s to 1h)"),
        ("lease", "3601s", "'3601s' is out of bounds (1s to 1h)"),
        ("stop_grace", "1d1s", "'1d1s' is out of bounds (0s to 1d)"),
        ("keep", "59m", "'59m' is out of bounds (1h to 36500d)"),
        ("keep", "36501d", "'36501d' is out of bounds (1h to 36500d)"),
        ("keep", "40000d", "'40000d' is too long (at most 98 years)"),
        ("keep", "1mo", "'1mo' has no fixed length (days, hours, minutes or seconds)"),
        ("keep", "1y", "'1y' has no fixed length (days, hours, minutes or seconds)"),
        ("log_level", "debu", "'debu' is not a valid value (did you mean 'debug'?)"),
        ("log_level", "INFO", "'INFO' is not a valid value (known: debug, error, info, warning)"),
        ("log_format", "yaml", "'yaml' is not a valid value (known: auto, json, text)"),
        (
            "pass_env",
            "A,,B",
            "'' is not the name of an environment variable (names only, such as HOME)",
        ),
        (
            "pass_env",
            "$A",
            "'$A' is not the name of an environment variable (names only, such as HOME)",
        ),
        (
            "pass_env",
            "A B",
            "'A B' is not the name of an environment variable (names only, such as HOME)",
        ),
        ("pass_env", "A=secret", "'A' includes a value (names only, such as HOME)"),
        ("listen", "8585", f"'8585' is not an address with a port ({LISTEN})"),
        ("listen", "example.com:80", f"'example.com:80' is not an address with a port ({LISTEN})"),
        (
            "listen",
            "127.0.0.1:65536",
            f"'127.0.0.1:65536' is not an address with a port ({LISTEN})",
        ),
        ("listen", "127.0.0.256:1", f"'127.0.0.256' is not an IP address ({LISTEN})"),
        ("public_url", "example.com", f"'example.com' is not the URL of a server ({URL})"),
        ("public_url", "https://me:pw@a.b", f"'a.b' is not the URL of a server ({URL})"),
        (
            "public_url",
            "https://a.b?c",
            f"'https://a.b?c' is not the URL of a server ({URL})",
        ),
        (
            "sessions_url",
            "127.0.0.1:53000",
            "'127.0.0.1:53000' is not the URL of a server (such as http://127.0.0.1:53000)",
        ),
        (
            "workflows_executor",
            "localhost:8002",
            "'localhost:8002' is not the URL of a server (such as http://127.0.0.1:8002, or ray)",
        ),
        (
            "ray_address",
            "10.0.0.7/x",
            "'10.0.0.7/x' is not an address of a Ray cluster (such as 10.0.0.7:6379, or auto for the one on this machine)",
        ),
        (
            "hosts",
            "*.example.com",
            "'*.example.com' is not a host name (such as [\"onbeat.example.com\"])",
        ),
        ("hosts", "a/b", "'a/b' is not a host name (such as [\"onbeat.example.com\"])"),
        ("cors_origins", "*", f"'*' would allow the pages of every site: {EACH_ORIGIN}"),
        ("cors_origins", "null", f"'null' would allow the pages of every site: {EACH_ORIGIN}"),
        ("cors_origins", "https://*.example.com", f"'https://*.example.com' {NOT_AN_ORIGIN}"),
        ("cors_origins", "https://a.example/", f"'https://a.example/' {NOT_AN_ORIGIN}"),
        ("cors_origins", "a.example", f"'a.example' {NOT_AN_ORIGIN}"),
        ("cors_origins", "http://a:70000", f"'http://a:70000' {NOT_AN_ORIGIN}"),
        ("trusted_proxies", "proxy", f"'proxy' is neither an IP address nor a network ({PROXIES})"),
        (
            "trusted_proxies",
            "10.0.0.1/8",
            f"'10.0.0.1/8' is neither an IP address nor a network ({PROXIES})",
        ),
        ("rate_limit", "0", "0 is out of bounds (1 to 1000000)"),
        (
            "jwt_algorithm",
            "none",
            "'none' is not a valid value (known: ES256, EdDSA, HS256, RS256)",
        ),
    ],
)
def test_invalid_text_is_refused_with_the_variable_or_flag(refusal, name, text, told):
    assert refusal(**{env(name): text}) == f"{env(name)}: {told}"
    assert refusal(flags={name: text}) == f"--{name.replace('_', '-')}: {told}"


@pytest.mark.parametrize(
    ("database", "told"),
    [
        ("", "the URL has no scheme"),
        ("onbeat.db", "the URL has no scheme"),
        ("sqlite:onbeat.db", "the URL has no scheme"),
        ("mysql://onbeat", "'mysql' is not a supported database"),
        ("SQLite:///onbeat.db", "'SQLite' is not a supported database"),
        ("sqlite://onbeat.db", "a SQLite URL has no host: a slash is missing"),
        ("sqlite:///onbeat.db?mode=ro", "the URL has options after '?'"),
        ("sqlite:///", "the URL does not name a file"),
        ("sqlite:////", "the URL does not name a file"),
        ("sqlite:///folder/", "the URL does not name a file"),
        ("sqlite:///folder/..", "the URL does not name a file"),
        ("sqlite:///:memory:", "the URL does not name a file"),
    ],
)
def test_invalid_database_address_is_refused(refusal, database, told):
    assert refusal(ONBEAT_DATABASE=database) == f"ONBEAT_DATABASE: {told} ({FORMS})"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_database_address_may_be_postgresql(load, scheme):
    found = load(ONBEAT_DATABASE=f"{scheme}://ada:s3cret@db.example:6432/onbeat?sslmode=require")
    assert (found.is_postgres, found.is_in_memory, found.database_path) == (True, False, None)
    assert found.database_shown == f"{scheme}://db.example:6432/onbeat"
    assert found.output_folder == Path("onbeat.output")


def test_database_address_with_a_driver_is_refused(refusal):
    told = refusal(flags={"database": "postgresql+psycopg://host/onbeat"})
    assert told == "--database: the URL must not name a driver (write postgresql://user@host/name)"


def test_node_may_have_a_single_role(load):
    assert load(ONBEAT_ROLES="plan").roles == ("plan",)
    assert load().roles == ("plan", "run", "api")


@pytest.mark.parametrize(
    ("roles", "told"),
    [("", "[] is not a list of roles"), ("plan,walk", "'walk' is not a role")],
)
def test_invalid_roles_are_refused(refusal, roles, told):
    assert told in refusal(ONBEAT_ROLES=roles)


@pytest.mark.parametrize(
    "address",
    ["postgresql+x://u:s3cret@h/d", "mysql://u:s3cret@h/d", "u:s3cret@h", "sqlite://s3cret@h"],
)
def test_errors_of_settings_never_quote_a_password(refusal, address):
    assert "s3cret" not in refusal(ONBEAT_DATABASE=address)


# What they come to


@pytest.mark.parametrize(
    ("database", "path", "output"),
    [
        ("sqlite:///onbeat.db", "onbeat.db", "onbeat.db.output"),
        ("sqlite:///x/onbeat.db", "x/onbeat.db", "x/onbeat.db.output"),
        ("sqlite:////var/lib/beat", "/var/lib/beat", "/var/lib/beat.output"),
    ],
)
def test_output_folder_is_beside_the_database(load, database, path, output):
    found = load(ONBEAT_DATABASE=database)
    assert found.database_path == Path(path)
    assert found.output_folder == Path(output)
    assert load(ONBEAT_DATABASE=database, ONBEAT_OUTPUT="said").output_folder == Path("said")


def test_database_in_memory_has_no_path_and_no_output_folder(load):
    found = load(ONBEAT_DATABASE="sqlite://")
    assert found.database_path is None
    assert found.output_folder is None
    assert load(ONBEAT_DATABASE="sqlite://", ONBEAT_OUTPUT="said").output_folder == Path("said")


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, "http://127.0.0.1:8585"),
        ({"listen": "[::1]:1"}, "http://[::1]:1"),
        ({"listen": "0.0.0.0:443", "tls_cert": "a"}, "https://localhost:443"),
        ({"listen": "0.0.0.0:443", "tls_cert": "a", "hosts": ("b.example",)}, "https://b.example:443"),
        ({"public_url": "https://c.example/x"}, "https://c.example/x"),
    ],
)  # fmt: skip
def test_api_url_is_the_public_url_or_the_listen_address(given, url):
    assert given_settings(**given).api_url == url


@pytest.mark.parametrize(
    ("listen", "is_exposed"),
    [("127.0.0.1:1", False), ("127.9.9.9:1", False), ("[::1]:1", False), ("localhost:1", False),
     ("0.0.0.0:1", True), ("[::]:1", True), ("10.0.0.1:1", True), ("[::ffff:10.0.0.1]:1", True)],
)  # fmt: skip
def test_address_reachable_from_other_machines_is_exposed(listen, is_exposed):
    assert Settings(listen=listen).is_exposed is is_exposed


def test_settings_are_immutable():
    with pytest.raises(FrozenInstanceError):
        Settings().lease = 1
    assert not hasattr(Settings(), "__dict__")


def test_invalid_settings_is_an_onbeat_error_and_can_be_pickled():
    error = InvalidSettings("a", "b", hint="c")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(error, OnbeatError)
    assert (again.field, again.problem, again.hint, str(again)) == ("a", "b", "c", "a: b (c)")
    assert str(InvalidSettings("", "b")) == "b"


def test_settings_module_reads_no_environment_and_no_clock():
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert not imported & {"os", "time", "datetime"}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not attributes & {"cwd", "home", "expanduser", "environ", "resolve", "absolute"}


# The page


def rows():
    cell = r" `([^`]*)` "
    return re.findall(rf"^\|{cell}\|{cell}\|{cell}\| (.+) \|$", PAGE, re.MULTILINE)


def test_settings_table_of_the_page_has_every_setting_with_its_default():
    assert [(name, variable) for name, variable, _, _ in rows()] == [(n, env(n)) for n in NAMES]
    for name, variable, default, _ in rows():
        plain = tomllib.loads(f"x = {default}")["x"]
        found = Settings.load(flags={name: plain}, environment={}, folder=Path("/nowhere"))
        assert found.value(name) == Settings().value(name), variable


@pytest.mark.parametrize(
    ("name", "beyond"),
    [
        ("concurrency", "0"),
        ("lease", "2h"),
        ("stop_grace", "2d"),
        ("catchup_per_second", "0"),
        ("keep", "1s"),
        ("rate_limit", "0"),
    ],
)
def test_settings_table_of_the_page_has_the_bounds(refusal, name, beyond):
    meanings = {name: meaning for name, _, _, meaning in rows()}
    told = refusal(flags={name: beyond})
    assert meanings[name].endswith(re.search(r"out of bounds \((.*)\)$", told)[1])


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("log_level", LogLevel),
        ("log_format", LogFormat),
        ("http_targets", HttpTargets),
        ("jwt_algorithm", JwtAlgorithm),
    ],
)
def test_settings_table_of_the_page_has_the_choices(name, choices):
    meanings = {name: meaning for name, _, _, meaning in rows()}
    assert set(re.findall(r"`(\w+)`", meanings[name])) == set(get_args(choices))


def test_examples_of_the_settings_page_have_the_documented_precedence(load):
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    in_environment, in_flags = re.findall(r"^ +\$ (.*)$", PAGE, re.MULTILINE)
    environment = dict(word.split("=") for word in shlex.split(in_environment) if "=" in word)
    _, _, flag, value = shlex.split(in_flags)
    flags = {flag.removeprefix("--").replace("-", "_"): value}
    assert load(toml).stop_grace == 60_000
    assert load(toml, **environment).stop_grace == 120_000
    found = load(toml, flags=flags, **environment)
    assert (found.stop_grace, found.concurrency) == (300_000, 64)
    assert found.pass_env == ("HTTPS_PROXY", "LANG")
    assert found.database_path == Path("/var/lib/onbeat/onbeat.db")


def test_error_on_the_settings_page_is_the_actual_one(refusal):
    assert f"`{refusal('concurrncy = 1')}`" in PAGE

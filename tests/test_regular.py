"""Paths in definitions and settings: devices, pipes, sockets and folders are refused."""

import os
import socket

import pytest

from onbeat.app.settings import Settings
from onbeat.errors import InvalidFile, InvalidSchedule, InvalidSettings
from onbeat.host.regular_files import read_regular
from onbeat.host.secrets import read_secret
from onbeat.sources.ics import ics_items
from onbeat.sources.plain_files import read_fields
from onbeat.sources.text_files import read_text
from onbeat.sources.yaml import read_definitions, read_file
from onbeat.systems.flows.expose_files import Exposes
from onbeat.systems.services.state import StateFile
from onbeat.systems.sessions.files import Corrupt, Files
from onbeat.testing import ManualClock
from onbeat.web.security.jwt import Jwt
from onbeat.web.security.tls import ssl_context
from tests.given_settings import given_settings


def make(kind, path):
    """Put something there that is not a regular file."""
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/null")
        case "endless device":
            path.symlink_to("/dev/zero")
        case "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
        case "folder":
            path.mkdir()
    return path


@pytest.fixture(params=["fifo", "device", "endless device", "socket", "folder"])
def kind(request):
    return request.param


@pytest.fixture
def odd(kind, tmp_path):
    return make(kind, tmp_path / "odd.json")


def test_only_regular_files_are_read(odd):
    with pytest.raises(OSError, match=r"regular file|such device|directory"):
        read_regular(odd)


def test_file_over_the_size_limit_is_refused(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)  # it takes no room
    with pytest.raises(OSError, match="too large: 1 KiB at most"):
        read_regular(tmp_path / "large", most=1024)
    (tmp_path / "small").write_bytes(b"x" * 1024)
    assert read_regular(tmp_path / "small", most=1024) == b"x" * 1024


@pytest.mark.parametrize("read", [read_text, ics_items, read_definitions, read_fields])
def test_definition_file_that_is_not_regular_is_refused(read, odd):
    with pytest.raises((InvalidSchedule, InvalidFile), match="cannot be read"):
        read(odd)


def test_ics_file_that_is_not_regular_is_refused(kind, tmp_path):
    make(kind, tmp_path / "holidays.ics")
    text = "calendars: {h: {ics: holidays.ics}}\nschedules: {a: {every: 1h, run: {command: [a]}, exclude: h}}"
    (tmp_path / "onbeat.yaml").write_text(text)
    with pytest.raises(InvalidFile, match="cannot be read"):
        read_file(tmp_path / "onbeat.yaml", lambda _: None)


def test_secret_file_that_is_not_regular_is_refused(kind, tmp_path):
    make(kind, tmp_path / "password")
    with pytest.raises(InvalidSchedule, match="no secret password"):
        read_secret(str(tmp_path), "password")


def test_exposes_file_that_is_not_regular_is_refused(kind, tmp_path):
    if kind != "folder":
        with pytest.raises(InvalidSchedule, match="regular file"):
            Exposes(make(kind, tmp_path / "expose.db")).read()
    make(kind, tmp_path / "a.yaml")
    (tmp_path / "expose.db").unlink(missing_ok=True)
    ((_, found),) = Exposes(tmp_path).read()
    assert isinstance(found, InvalidSchedule)


def test_session_file_that_is_not_regular_is_corrupt(kind, tmp_path):
    (tmp_path / "standup").mkdir()
    make(kind, tmp_path / "standup" / "definition.json")
    found = Files(tmp_path).read("standup")
    assert isinstance(found.definition, Corrupt)


def test_state_file_that_is_not_regular_is_left_unchanged(odd):
    state = StateFile(odd)
    assert state.load() == {}
    assert state.is_unread
    state.save({})
    assert not odd.is_file()


def test_settings_file_that_is_not_regular_is_refused(odd):
    with pytest.raises(InvalidSettings, match="cannot be read"):
        Settings.load(environment={}, file=odd, folder=odd.parent)


def test_jwt_key_file_that_is_not_regular_is_refused(odd):
    given = {"jwt_issuer": "i", "jwt_audience": "a", "jwt_algorithm": "HS256"}
    with pytest.raises(InvalidSettings, match="cannot be read"):
        Jwt(given_settings(jwt_key=str(odd), **given), ManualClock())


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_client_ca"])
def test_tls_file_that_is_not_regular_is_refused(name, kind, odd, tmp_path):
    if kind in {"device", "endless device"} and name == "tls_key":
        pytest.skip("everybody may read a device, for which it is refused before")
    odd.chmod(0o700 if kind == "folder" else 0o600) if "device" not in kind else None
    regular = tmp_path / "regular"
    regular.touch(0o600)
    given = dict.fromkeys(("tls_cert", "tls_key", "tls_client_ca"), str(regular)) | {name: str(odd)}
    with pytest.raises(InvalidSettings, match=f"{name}.*cannot be read"):
        ssl_context(given_settings(**given))

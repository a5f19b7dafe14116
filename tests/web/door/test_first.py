"""The first token: made once, and left where only its operator can read it."""

import asyncio
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from onbeat.access import LOCAL
from onbeat.settings import Settings
from onbeat.tokens import Tokens
from onbeat.web.door import ensure_first_token, link_of


@pytest.fixture
def settings(tmp_path):
    return Settings(database=f"sqlite:///{tmp_path}/onbeat.db")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "onbeat.db.token"


def first(world, settings):
    return world.run(ensure_first_token(world.tokens, settings))


def test_the_first_token_is_in_a_file_that_only_its_owner_can_read(world, settings, path):
    assert first(world, settings) == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    caller = world.run(world.tokens.authenticate(path.read_text().strip()))
    assert (caller.name, caller.scope) == ("token:first", "admin")
    (row,) = world.run(world.store.audit())
    assert (row.event.name, row.event.by) == ("token.created", LOCAL.name)


def test_there_is_one_first_token(world, settings, path):
    first(world, settings)
    secret = path.read_text()
    assert first(world, settings) is None
    assert path.read_text() == secret


def test_who_has_made_tokens_needs_no_first(world, settings, path):
    world.a_token()
    assert first(world, settings) is None
    assert not path.exists()


def test_a_session_is_no_token(world, settings, path):
    world.a_session()
    assert first(world, settings) == path


def test_what_a_stranger_put_there_is_not_written_through(world, settings, path, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "victim").chmod(0o644)
    path.symlink_to(tmp_path / "victim")
    assert first(world, settings) == path
    assert (tmp_path / "victim").read_text() == "precious"
    assert not path.is_symlink()


def test_of_nodes_that_start_at_once_one_makes_it(world, settings, path):
    async def both():
        others = [Tokens(world.store, world.clock) for _ in range(3)]
        folders = [replace(settings, database=f"{settings.database}{i}") for i in range(3)]
        pairs = zip(others, folders, strict=True)
        return await asyncio.gather(*(ensure_first_token(*pair) for pair in pairs))

    found = [each for each in world.run(both()) if each is not None]
    assert len(found) == 1
    assert [p for p in path.parent.glob("*.token*") if p.stat().st_size] == found
    assert len(world.run(world.tokens.all())) == 1


def test_with_postgresql_it_is_where_onbeat_was_started():
    assert Settings(database="postgresql://a/b").token_path == Path("onbeat.token")


def test_in_memory_there_is_none(world):
    assert first(world, Settings(database="sqlite://")) is None


def test_a_link_is_where_the_api_is_found():
    assert link_of(Settings(), "x") == "http://127.0.0.1:8585/login?code=x"

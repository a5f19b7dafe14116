"""The first token: made once, and left where only its operator can read it."""

import asyncio
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from onbeat.app.settings import Settings
from onbeat.service.access import LOCAL
from onbeat.service.tokens import Tokens
from onbeat.web.security.first_token import ensure_first_token, link_of


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


class Later:
    """Tokens of a node that saw none, and comes to make one only when another node has done so."""

    def __init__(self, tokens, before_creating):
        self._tokens, self._before_creating = tokens, before_creating

    async def all(self):
        return []

    async def create(self, *given):
        await self._before_creating()
        return await self._tokens.create(*given)


def test_who_comes_second_leaves_the_file_of_the_first_alone(world, settings, path):
    async def another_is_faster():
        assert await ensure_first_token(world.tokens, settings) == path

    late = Later(Tokens(world.store, world.clock), another_is_faster)
    assert world.run(ensure_first_token(late, settings)) is None
    assert world.run(world.tokens.authenticate(path.read_text().strip())).name == "token:first"
    assert [each.name for each in path.parent.glob("*.token*")] == [path.name]


def test_who_looks_before_the_first_has_begun_leaves_its_file_alone_too(world, settings, path):
    world.run(ensure_first_token(world.tokens, settings))
    secret = path.read_text()

    async def nothing_more():
        pass

    late = Later(Tokens(world.store, world.clock), nothing_more)
    assert world.run(ensure_first_token(late, settings)) is None
    assert path.read_text() == secret


def test_a_token_whose_secret_cannot_be_written_is_no_token(world, settings, path):
    (path / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        first(world, settings)
    assert world.run(world.tokens.all()) == []
    assert [each.name for each in path.parent.glob("*.token*")] == [path.name]


def test_with_postgresql_it_is_where_onbeat_was_started():
    assert Settings(database="postgresql://a/b").token_path == Path("onbeat.token")


def test_in_memory_there_is_none(world):
    assert first(world, Settings(database="sqlite://")) is None


def test_a_link_is_where_the_api_is_found():
    assert link_of(Settings().api_url, "x") == "http://127.0.0.1:8585/login?code=x"

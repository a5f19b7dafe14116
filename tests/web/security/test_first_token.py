"""The first token: created once, in a file that only its owner can read."""

import asyncio
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from onbeat.app.settings import Settings
from onbeat.service.access import LOCAL
from onbeat.service.tokens import Tokens
from onbeat.web.security.first_token import ensure_first_token, login_url


@pytest.fixture
def settings(tmp_path):
    return Settings(database=f"sqlite:///{tmp_path}/onbeat.db")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "onbeat.db.token"


def first(world, settings):
    return world.run(ensure_first_token(world.tokens, settings))


def test_first_token_is_in_a_file_for_its_owner_only(world, settings, path):
    assert first(world, settings) == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    caller = world.run(world.tokens.authenticate(path.read_text().strip()))
    assert (caller.name, caller.scope) == ("token:first", "admin")
    (row,) = world.run(world.store.audit())
    assert (row.event.name, row.event.by) == ("token.created", LOCAL.name)


def test_first_token_is_created_once(world, settings, path):
    first(world, settings)
    secret = path.read_text()
    assert first(world, settings) is None
    assert path.read_text() == secret


def test_database_with_tokens_gets_no_first_token(world, settings, path):
    world.a_token()
    assert first(world, settings) is None
    assert not path.exists()


def test_database_with_only_a_session_gets_a_first_token(world, settings, path):
    world.a_session()
    assert first(world, settings) == path


def test_first_token_is_not_written_through_a_link(world, settings, path, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "victim").chmod(0o644)
    path.symlink_to(tmp_path / "victim")
    assert first(world, settings) == path
    assert (tmp_path / "victim").read_text() == "precious"
    assert not path.is_symlink()


def test_only_one_of_several_starting_nodes_creates_the_first_token(world, settings, path):
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
    """Tokens of a node that saw none, and creates one only after another node has done so."""

    def __init__(self, tokens, before_creating):
        self._tokens, self._before_creating = tokens, before_creating

    async def all(self):
        return []

    async def create(self, *given):
        await self._before_creating()
        return await self._tokens.create(*given)


def test_second_node_keeps_the_token_file_of_the_first(world, settings, path):
    async def another_is_faster():
        assert await ensure_first_token(world.tokens, settings) == path

    late = Later(Tokens(world.store, world.clock), another_is_faster)
    assert world.run(ensure_first_token(late, settings)) is None
    assert world.run(world.tokens.authenticate(path.read_text().strip())).name == "token:first"
    assert [each.name for each in path.parent.glob("*.token*")] == [path.name]


def test_node_that_checked_too_early_keeps_the_token_file_of_the_first(world, settings, path):
    world.run(ensure_first_token(world.tokens, settings))
    secret = path.read_text()

    async def nothing_more():
        pass

    late = Later(Tokens(world.store, world.clock), nothing_more)
    assert world.run(ensure_first_token(late, settings)) is None
    assert path.read_text() == secret


def test_first_token_is_revoked_if_its_file_cannot_be_written(world, settings, path):
    (path / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        first(world, settings)
    assert world.run(world.tokens.all()) == []
    assert [each.name for each in path.parent.glob("*.token*")] == [path.name]


def test_first_token_file_on_postgresql_is_in_the_working_directory():
    assert Settings(database="postgresql://a/b").token_path == Path("onbeat.token")


def test_database_in_memory_has_no_first_token(world):
    assert first(world, Settings(database="sqlite://")) is None


def test_login_link_has_the_url_of_the_api():
    assert login_url(Settings().api_url, "x") == "http://127.0.0.1:8585/login?code=x"

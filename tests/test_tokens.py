"""Tokens, links and sessions: secrets, rights, expiry and revocation."""

import asyncio
import re

import pytest

from onbeat.errors import InvalidSettings, NoSuchToken, NotAllowed
from onbeat.service.access import Caller
from onbeat.service.tokens import CACHED_FOR, SESSION_LASTS, Tokens
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock

MINUTE = 60_000


@pytest.fixture
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def world(runner, tmp_path):
    clock = ManualClock()
    store = runner.run(SqliteStore.open(tmp_path / "onbeat.db", clock=clock, inline=True))
    yield TokensHarness(runner, clock, store)
    runner.run(store.close())


class TokensHarness:
    def __init__(self, runner, clock, store):
        self.run, self.clock, self.store = runner.run, clock, store
        self.tokens = Tokens(store, clock)

    def a_token(self, name="ci", scope="operate", **fields):
        return self.run(self.tokens.create(name, scope, **fields))

    def caller(self, secret, kind="token"):
        return self.run(self.tokens.authenticate(secret, kind))


def test_token_identifies_its_caller_and_scope(world):
    row, secret = world.a_token(owner="ann")
    assert world.caller(secret) == Caller("token:ci", "operate", "ann")
    assert (row.name, row.expires_at) == ("ci", None)


def test_secret_has_its_prefix_and_256_random_bits(world):
    secrets = {world.a_token(f"t{i}")[1] for i in range(20)}
    assert len(secrets) == 20
    assert all(re.fullmatch(r"onbeat_[A-Za-z0-9_-]{43}", each) for each in secrets)


def test_secrets_are_not_in_the_database(world, tmp_path):
    _, secret = world.a_token()
    code = world.run(world.tokens.link())
    session = world.run(world.tokens.session(code))
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for each in (secret, code, session.secret):
        assert each[-43:].encode() not in kept
        assert each.encode() not in kept
    assert b"token.created" in kept  # the search itself works


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s[:-1],
        lambda s: s + "A",
        str.upper,
        lambda s: f" {s}",
        lambda s: f"{s}\n",
        lambda s: "",
    ],
)
def test_altered_secret_is_refused(world, change):
    _, secret = world.a_token()
    assert world.caller(change(secret)) is None


def test_secret_is_valid_only_for_its_kind(world):
    _, token = world.a_token()
    code = world.run(world.tokens.link())
    session = world.run(world.tokens.session(world.run(world.tokens.link()))).secret
    found = {
        kind: [world.caller(each, kind) is not None for each in (token, code, session)]
        for kind in ("token", "link", "session")
    }
    assert found == {
        "token": [True, False, False],
        "link": [False, True, False],
        "session": [False, False, True],
    }


def test_expired_token_is_refused_even_if_cached(world):
    _, secret = world.a_token(expires_in=1_000)
    assert world.caller(secret) is not None
    world.clock.advance(1_000)
    assert world.caller(secret) is None


def test_revoked_token_is_refused_immediately_here_and_soon_elsewhere(world):
    _, secret = world.a_token()
    elsewhere = Tokens(world.store, world.clock)
    assert world.run(elsewhere.authenticate(secret)) is not None
    assert world.caller(secret) is not None
    world.run(world.tokens.of(Caller("boss", "admin")).revoke("ci"))
    assert world.caller(secret) is None
    world.clock.advance(int(CACHED_FOR * 1000))
    assert world.run(elsewhere.authenticate(secret)) is None


def test_tokens_are_not_looked_up_for_each_request(world):
    _, secret = world.a_token()
    assert world.caller(secret) is not None
    world.run(world.store.revoke_token("ci"))  # by another process
    assert world.caller(secret) is not None
    world.clock.advance(int(CACHED_FOR * 1000))
    assert world.caller(secret) is None


def test_token_cache_is_bounded(world, monkeypatch):
    monkeypatch.setattr("onbeat.service.tokens.MOST_CACHED", 3)
    for i in range(10):
        world.caller(world.a_token(f"t{i}")[1])
    assert len(world.tokens._cache._rows) == 3


def test_link_opens_one_session_with_the_rights_of_its_creator(world):
    ann = Caller("token:ann", "define", "ann")
    code = world.run(world.tokens.of(ann).link())
    session = world.run(world.tokens.session(code))
    assert world.caller(session.secret, "session") == Caller("session:token:ann", "define", "ann")
    assert world.run(world.tokens.session(code)) is None
    world.clock.advance(SESSION_LASTS)
    assert world.caller(session.secret, "session") is None


def test_sessions_and_tokens_are_audited(world):
    world.run(world.tokens.session(world.run(world.tokens.of(Caller("cli:ann", "admin")).link())))
    told = [(row.event.name, row.event.by) for row in world.run(world.store.audit())]
    assert told == [("session.opened", "session:cli:ann"), ("token.created", "cli:ann")]


def test_link_expires_after_ten_minutes(world):
    code = world.run(world.tokens.link())
    world.clock.advance("10m")
    assert world.run(world.tokens.session(code)) is None


def test_session_can_be_ended(world):
    session = world.run(world.tokens.session(world.run(world.tokens.link())))
    assert world.caller(session.secret, "session") is not None
    assert world.run(world.tokens.end_session(session.secret))
    assert world.caller(session.secret, "session") is None
    assert not world.run(world.tokens.end_session(session.secret))


def test_link_has_no_more_rights_than_its_creator(world):
    tokens = world.tokens.of(Caller("token:ci", "operate"))
    with pytest.raises(NotAllowed):
        world.run(tokens.link("admin"))
    session = world.run(tokens.session(world.run(tokens.link("read"))))
    assert world.caller(session.secret, "session").scope == "read"


@pytest.mark.parametrize("scope", ["read", "operate", "define"])
def test_only_admins_create_and_revoke_tokens(world, scope):
    tokens = world.tokens.of(Caller("token:ci", scope))
    for ask in (lambda: tokens.create("x", "read"), tokens.all, lambda: tokens.revoke("x")):
        with pytest.raises(NotAllowed):
            world.run(ask())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "a b"}, "name: 'a b' is not a valid token name (letters, digits and . _ @ -, at most 100)"),
        ({"name": "session:1"}, "name: 'session:1' is not a valid token name (letters, digits and . _ @ -, at most 100)"),
        ({"name": ""}, "name: '' is not a valid token name (letters, digits and . _ @ -, at most 100)"),
        ({"scope": "reed"}, "scope: 'reed' is not a scope (did you mean 'read'?)"),
        ({"owner": "a\nb"}, "owner: 'a\\nb' is not a valid owner name (letters, digits and . _ @ : / + -, at most 200)"),
        ({"expires_in": 0}, "expires: it is out of bounds (1s to 36500d)"),
    ],
)  # fmt: skip
def test_invalid_token_settings_are_refused(world, given, told):
    with pytest.raises(InvalidSettings) as refused:
        world.a_token(**given)
    assert str(refused.value) == told


def test_token_name_is_unique_until_revoked(world):
    world.a_token()
    with pytest.raises(InvalidSettings, match="a token named 'ci' exists"):
        world.a_token()
    world.run(world.tokens.revoke("ci"))
    world.a_token()


def test_unknown_token_cannot_be_revoked(world):
    world.a_token("nightly")
    with pytest.raises(
        NoSuchToken, match=r"no token is called 'nightli' \(did you mean 'nightly'\?\)"
    ):
        world.run(world.tokens.revoke("nightli"))

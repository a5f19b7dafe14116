"""The contract of every store for tokens, links and sessions."""

import asyncio

import pytest

from onbeat.events import SessionOpened, TokenCreated, TokenRevoked
from onbeat.ports.rows import TokenRow

MINUTE = 60_000


def a_token(token_id="ci", kind="token", **fields):
    return TokenRow(token_id, kind, fields.pop("name", token_id), "operate", **fields)


def a_link(world, **fields):
    return a_token("link:1", "link", name="who", expires_at=world.clock.now() + MINUTE, **fields)


async def open_session(store, link="code", session="cookie", session_id="session:1"):
    return await store.open_session(link, session, session_id, expires_in=MINUTE)


async def test_token_is_found_only_by_its_digest(world):
    token = a_token(owner="ann", created_at=1, created_by="cli:me")
    assert await world.store.add_token(token, "digest")
    assert await world.store.token_of("digest") == token
    assert await world.store.token_of("diges") is None
    assert await world.store.tokens() == [token]


async def test_token_id_is_unique(world):
    assert await world.store.add_token(a_token(), "first")
    assert not await world.store.add_token(a_token(), "second")
    assert await world.store.token_of("second") is None
    assert await world.names_told() == ["token.created"]


async def test_token_is_invalid_from_the_moment_it_expires(world):
    await world.store.add_token(a_token(expires_at=world.clock.now() + MINUTE), "digest")
    world.clock.advance(MINUTE - 1)
    assert await world.store.token_of("digest") is not None
    world.clock.advance(1)
    assert await world.store.token_of("digest") is None
    assert [row.token_id for row in await world.store.tokens()] == ["ci"]  # it is still shown


async def test_revoking_a_token_deletes_its_links_and_sessions(world):
    await world.store.add_token(a_token(), "digest")
    await world.store.add_token(a_link(world, created_by="token:ci"), "code")
    await open_session(world.store)
    await world.store.add_token(a_token("other", created_by="token:ci"), "stays")
    assert (await world.store.revoke_token("ci")).token_id == "ci"
    assert [await world.store.token_of(each) for each in ("digest", "code", "cookie")] == [None] * 3
    assert [row.token_id for row in await world.store.tokens()] == ["other"]
    assert await world.store.revoke_token("ci") is None


async def test_link_opens_one_session_with_its_rights(world):
    link = a_link(world, owner="ann", created_by="token:ci")
    await world.store.add_token(link, "code")
    opened = await open_session(world.store)
    assert (opened.scope, opened.owner, opened.created_by) == ("operate", "ann", "token:ci")
    assert await world.store.token_of("cookie") == opened
    assert await world.store.token_of("code") is None
    assert await open_session(world.store, session="again", session_id="session:2") is None


async def test_expired_link_opens_no_session(world):
    await world.store.add_token(a_link(world), "code")
    world.clock.advance(MINUTE)
    assert await open_session(world.store) is None


async def test_token_is_not_a_link(world):
    await world.store.add_token(a_token(expires_at=world.clock.now() + MINUTE), "digest")
    assert await open_session(world.store, link="digest") is None


@pytest.mark.parametrize("n", range(5))
async def test_link_used_twice_concurrently_opens_one_session(world, n):
    await world.store.add_token(a_link(world), "code")
    others = [await world.second() for _ in range(3)]
    found = await asyncio.gather(
        *(
            open_session(store, session=f"cookie-{i}", session_id=f"session:{i}")
            for i, store in enumerate([world.store, *others])
        )
    )
    assert sum(each is not None for each in found) == 1
    assert len(await world.store.tokens()) == 1
    assert (await world.names_told()).count("session.opened") == 1


async def test_expired_links_and_sessions_are_deleted(world):
    await world.store.add_token(a_link(world), "code")
    await open_session(world.store)
    world.clock.advance(MINUTE)
    assert await world.store.tokens() == []
    await world.store.add_token(a_token("session:1"), "digest")
    assert [row.kind for row in await world.store.tokens()] == ["token"]


async def test_token_events_name_the_creator_and_never_a_secret(world):
    store, until = world.store.as_caller("cli:me"), world.clock.now() + MINUTE
    await store.add_token(a_token(owner="ann"), "digest-of-token")
    await store.add_token(a_link(world), "digest-of-link")
    await open_session(store, "digest-of-link", "digest-of-session")
    await store.revoke_token("ci")
    told = await world.new_events()
    assert told == [
        TokenCreated("ci", "token", "operate", "ann", by="cli:me"),
        TokenCreated("link:1", "link", "operate", expires_at=until, by="cli:me"),
        SessionOpened("session:1", "link:1", "operate", expires_at=until, by="cli:me"),
        TokenRevoked("ci", "token", "operate", "ann", by="cli:me"),
    ]
    assert "digest-of" not in str(told)


async def test_owner_of_schedules_sees_no_token_events(world):
    await world.store.add_token(a_token(owner="ann"), "digest")
    assert await world.store.as_caller("", only_owner="ann").events() == []


async def test_all_processes_share_one_signing_key(world):
    stores = [world.store, *[await world.second() for _ in range(3)]]
    found = await asyncio.gather(*(each.signing_key(f"key {i}") for i, each in enumerate(stores)))
    assert len(set(found)) == 1
    assert await world.store.signing_key("another") == found[0]

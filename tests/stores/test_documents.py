"""The contract of every store for documents of systems."""

import pytest

from onbeat.errors import InvalidSchedule, NotAllowed


async def test_latest_document_is_found_by_kind_and_name(world):
    await world.store.keep("dag", "report", {"nodes": [1]}, user_id="ada")
    await world.store.keep("dag", "report", {"nodes": [2]}, user_id="bob")
    found = await world.store.kept("dag", "report")
    assert (found.body, found.user_id) == ({"nodes": [2]}, "ada")
    assert found.updated_at == world.clock.now()
    assert await world.store.kept("session", "report") is None


async def test_documents_of_a_kind_are_listed_by_name_in_pages(world):
    for name in ("b", "c", "a"):
        await world.store.keep("dag", name, name)
    await world.store.keep("session", "d", 1)
    assert [row.name for row in await world.store.list_documents("dag")] == ["a", "b", "c"]
    page = await world.store.list_documents("dag", after="a", limit=1)
    assert [row.name for row in page] == ["b"]


async def test_documents_changed_since_a_time_are_listed(world):
    await world.store.keep("dag", "old", 1)
    await world.store.keep("dag", "edited", 1)
    world.clock.advance("1m")
    since = world.clock.now()
    await world.store.keep("dag", "old", 1)  # unchanged: nothing was written
    await world.store.keep("dag", "edited", 2)
    await world.store.keep("dag", "new", 1)
    assert [row.name for row in await world.store.list_documents("dag", since=since)] == [
        "edited",
        "new",
    ]
    assert [row.name for row in await world.store.list_documents("dag", since=since, limit=1)] == [
        "edited"
    ]
    assert await world.store.list_documents("dag", since=since + 1) == []
    found = await world.store.list_documents("dag", since=since, but=["edited", "old"])
    assert [row.name for row in found] == ["new"]
    bobs = world.store.as_caller("token:bob", only_owner="bob")
    assert await bobs.list_documents("dag", since=since) == []


async def test_document_is_deleted_once(world):
    await world.store.keep("dag", "report", None)
    assert await world.store.forget("dag", "report")
    assert not await world.store.forget("dag", "report")
    assert await world.names_told() == ["document.kept", "document.forgotten"]


async def test_unchanged_document_is_not_written_again(world):
    await world.store.keep("dag", "report", {"a": 1})
    await world.store.keep("dag", "report", {"a": 1})
    assert await world.names_told() == ["document.kept"]


async def test_owner_sees_only_own_documents(world):
    await world.store.keep("dag", "report", 1, user_id="ada")
    bobs = world.store.as_caller("token:bob", only_owner="bob")
    assert await bobs.kept("dag", "report") is None
    assert await bobs.list_documents("dag") == []
    assert not await bobs.forget("dag", "report")
    for body in (2, 1):  # also if it is the same
        with pytest.raises(NotAllowed, match="another owner"):
            await bobs.keep("dag", "report", body, user_id="bob")
    await bobs.keep("dag", "own", 3, user_id="bob")
    assert [row.name for row in await bobs.list_documents("dag")] == ["own"]
    assert (await world.store.kept("dag", "report")).body == 1


@pytest.mark.parametrize("body", ["x" * 2**20, "\N{SNOWMAN}" * 2**19, {"a": float("nan")}, {1: 2}])
async def test_document_that_is_too_long_or_not_json_is_refused(world, body):
    with pytest.raises(InvalidSchedule):
        await world.store.keep("dag", "report", body)
    assert await world.store.list_documents("dag") == []

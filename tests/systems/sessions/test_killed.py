"""A node is killed while a session is busy: the next one follows that session."""

import asyncio
import contextlib
import sys

import pytest

from tests.systems.sessions.conftest import until


@contextlib.asynccontextmanager
async def a_node(folder):
    """Start a node in a separate process; kill it at the end."""
    program = (sys.executable, "-m", "onbeat", "up", "--listen", "127.0.0.1:0")
    with (folder / "node.log").open("ab") as log:
        node = await asyncio.create_subprocess_exec(*program, cwd=folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            node.kill()
            await node.wait()


def about_sessions(asked):
    """Return the paths of requests, without those for the list of sessions."""
    return [path for method, path, *_ in asked if (method, path) != ("GET", "/api/sessions")]


@pytest.mark.req("C45")
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_kill_9_during_a_busy_session_sends_neither_the_prompt_again_nor_another(
    world, database, request, tmp_path
):
    server, url = world.server, world.database
    if database == "postgresql":
        url = request.getfixturevalue("postgres_url")
    for slug in ("daily", "other"):
        world.define(slug)
    server.works = True

    async def story():
        at = await server.start()
        settings = f'database = "{url}"\n[sessions]\nurl = "{at}"\nfolder = "schedule"\n'
        (tmp_path / "onbeat.toml").write_text(settings)
        async with a_node(tmp_path):
            await until(lambda: server.asked and server.asked[-1][1].endswith("/state"), 30)
        asked = len(server.asked)
        async with a_node(tmp_path):
            # A start checks the server by its list, which is not about a session.
            await until(lambda: about_sessions(server.asked[asked:]), 40)
            first = about_sessions(server.asked[asked:])[0]
            # The other one has every chance to be sent.
            await until(lambda: len(about_sessions(server.asked[asked:])) > 4, 40)
            sent = list(world.messages)
            server.works = False
            server.busy.clear()
            await until(lambda: len(world.messages) == 2, 40)
        await server.stop()
        return first.endswith("/state"), len(sent)

    assert asyncio.run(asyncio.wait_for(story(), 110)) == (True, 1)
    assert sorted(world.messages) == ["daily", "other"]

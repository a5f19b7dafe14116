"""A scheduled session holds its place until the server reports it as idle."""

import asyncio

import pytest
from aiohttp import web

from onbeat.core.runs.run import Succeeded
from onbeat.errors import RunIsOver
from tests.systems.sessions.conftest import until

HOURLY = {"type": "interval", "intervalMinutes": 60}


async def due(world, length="1h"):
    """Advance the clock and start everything due, without waiting for busy sessions."""
    world.clock.advance(length)
    world.beat.wake()


async def the_run(world, slug, *statuses):
    """Wait for the latest run of a slug to be in one of these states; return it."""
    async with asyncio.timeout(10):
        while True:
            runs = await world.service.runs()
            found = [run for run in runs if run.schedule_id == slug]
            if found and (found[0].status in statuses):
                return found[0]
            await asyncio.sleep(0.01)


@pytest.mark.req("C29", "C31", "C51")
def test_overdue_prompts_are_sent_one_after_the_other_each_when_the_last_session_is_idle(world):
    slugs = ["a", "b", "c"]
    for slug in slugs:
        world.define(slug)
    world.server.works = True
    at_once = []

    async def story(world):
        for n in range(1, 4):
            await until(lambda n=n: len(world.messages) == n)
            for _ in range(20):  # enough time for the others to be sent
                await asyncio.sleep(0.01)
                at_once.append(len(world.server.busy))
            assert len(world.messages) == n
            world.server.busy.clear()
        return [(await the_run(world, slug, "SUCCESS")).status for slug in slugs]

    world.settled = lambda: asyncio.sleep(0)
    assert world.play(story) == ["SUCCESS"] * 3
    assert sorted(world.messages) == slugs
    assert max(at_once) == 1


def test_answer_to_a_run_does_not_wait_for_the_end_of_the_work(world):
    world.server.works = True

    async def story(world):
        for persists in (True, False):
            slug = f"persists-{persists}"
            fields = {"sessionConfig": {"persistSession": persists}, "enabled": False}
            await world.sessions.put(world.service, slug, _standup(**fields))
            answered = await world.sessions.run(world.service, slug)
            assert answered["status"] == "running"
            assert answered["sessionId"] in world.server.busy
            again = await world.sessions.run(world.service, slug)
            assert again == answered, "the run that is at work is the answer"
            world.server.busy.clear()
            await the_run(world, slug, "SUCCESS")
        return world.messages

    assert world.play(story) == ["persists-True", "persists-False"]


def _standup(**fields):
    schedule = {"type": "cron", "expression": "0 9 * * *"}
    return {"prompt": "Hello", "schedule": schedule} | fields


def test_server_that_does_not_report_busy_frees_the_place_with_its_answer(world):
    world.server.tells, world.server.works = False, True

    async def story(world):
        for slug in "ab":
            await world.put(slug)
        await world.let_pass("1h")
        run = await the_run(world, "a", "SUCCESS")
        return run.log_tail

    assert "the server does not report whether the session is busy" in world.play(story)
    assert sorted(world.messages) == ["a", "b"]


@pytest.mark.parametrize(
    ("state", "listed"),
    [
        (None, {"sessions": True}),
        (None, {"grouped": True}),
        ({"status": "idle"}, {"grouped": True}),  # whatever the session does
        ({"status": "busy"}, None),
        ({"isBusy": True, "status": "idle"}, None),
    ],
)
def test_every_format_of_busy_is_understood(world, state, listed):
    """The list of an older server reports it, grouped by folder."""
    server = world.server

    looks = []

    async def states(request):
        looks.append(request)
        if state is None:
            return web.Response(status=404, text="Cannot GET")
        busy = request.match_info["id"] in server.busy
        return web.json_response(state if busy else {"isBusy": False, "status": "idle"})

    async def lists(request):
        looks.append(request)
        entries = [{"sessionId": each, "isBusy": each in server.busy} for each in server.sessions]
        if listed is None:
            return web.Response(status=404)
        if "grouped" in listed:
            return web.json_response({"grouped": {"/srv": entries, "/other": []}})
        return web.json_response({"sessions": entries})

    server._state, server._list = states, lists
    # The routes were added with the methods of the class.
    server.app = web.Application()
    server.app.add_routes([
        web.post("/api/sessions", server._create),
        web.get("/api/sessions", lists),
        web.get("/api/sessions/{id}/state", states),
        web.post("/api/sessions/{id}/messages", server._message),
    ])  # fmt: skip
    server.works = True

    async def story(world):
        await world.put("daily")
        await due(world)
        await until(lambda: server.busy)
        enough = len(looks) + 4
        await until(lambda: len(looks) >= enough)
        (during,) = await world.service.runs()
        server.busy.clear()
        await the_run(world, "daily", "SUCCESS")
        return during.status

    assert world.play(story) == "STARTED"


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("tells_state", [True, False])
def test_refused_status_request_does_not_free_the_place(world, status, tells_state):
    server, refused, looks = world.server, [], []

    async def states(request):
        looks.append(request)
        if not tells_state:
            return web.Response(status=404)
        if len(refused) < 2:
            refused.append(status)
            return web.Response(status=status)
        return web.json_response({"isBusy": request.match_info["id"] in server.busy})

    async def lists(request):
        looks.append(request)
        if len(refused) < 2:
            refused.append(status)
            return web.Response(status=status)
        entries = [{"sessionId": each, "isBusy": each in server.busy} for each in server.sessions]
        return web.json_response({"sessions": entries})

    server.app = web.Application()
    server.app.add_routes([
        web.post("/api/sessions", server._create),
        web.get("/api/sessions", lists),
        web.get("/api/sessions/{id}/state", states),
        web.post("/api/sessions/{id}/messages", server._message),
    ])  # fmt: skip
    server.works = True

    async def story(world):
        await world.put("daily")
        await due(world)
        await until(lambda: len(refused) == 2)
        enough = len(looks) + 3
        await until(lambda: len(looks) >= enough)
        (during,) = await world.service.runs()
        server.busy.clear()
        await the_run(world, "daily", "SUCCESS")
        return during.status

    assert world.play(story) == "STARTED"


@pytest.mark.parametrize("stops", [True, False])
def test_timeout_stops_the_session_or_reports_that_it_may_still_be_working(world, stops):
    world.server.works, world.server.stops = True, stops

    async def story(world):
        await world.put("daily", schedule=HOURLY)
        await due(world)
        await until(lambda: world.server.busy)
        await due(world, "29m")
        await world.state_is_looked_up()
        (run,) = await world.service.runs()
        assert run.status == "STARTED"
        await due(world, "1m")
        run = await the_run(world, "daily", "FAILED")
        await world.sessions.reconcile()
        return run, world.last_run("daily"), set(world.server.busy)

    run, last_run, busy = world.play(story)
    told = "the session was stopped"
    if not stops:
        told = "the session may still be working, the server did not stop it (HTTP 404: Not Found)"
    assert (run.reason, run.error) == ("timeout", f"still working after 1800 s: {told}")
    assert (last_run["lastResult"], last_run["lastError"]) == ("error", run.error)
    assert len(busy) == (not stops)
    assert world.messages == ["daily"], "it is not sent again"


def test_canceled_run_stops_its_session(world):
    world.server.works = True

    async def story(world):
        await world.put("daily")
        await due(world)
        await until(lambda: world.server.busy)
        run = await the_run(world, "daily", "STARTED")
        await world.service.cancel(run.run_id)
        return await the_run(world, "daily", "CANCELED")

    run = world.play(story)
    assert run.error == "canceled: the session was stopped"
    assert not world.server.busy


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_busy_session_is_reattached_by_the_next_start_without_sending_the_prompt_again(
    world, database, request
):
    if database == "postgresql":
        world.database = request.getfixturevalue("postgres_url")
    world.server.works = True

    async def first(world):
        await world.put("daily")
        await world.put("other")
        await due(world)
        await until(lambda: world.server.busy)

    async def again(world):
        await world.state_is_looked_up()
        (session,) = world.server.busy
        during = await world.service.runs()
        answered = await world.sessions.run(world.service, world.messages[0])
        assert answered["sessionId"] == session, "the run that is at work is the answer"
        world.server.works = False
        world.server.busy.clear()
        for slug in ("daily", "other"):
            await the_run(world, slug, "SUCCESS")
        await world.sessions.reconcile()
        return [run.status for run in during]

    world.settled = lambda: asyncio.sleep(0)
    assert sorted(world.play(first, again)) == ["ENQUEUED", "STARTED"]
    assert sorted(world.messages) == ["daily", "other"]
    assert world.last_run("daily")["lastResult"] == "success"


def test_stopping_node_does_not_wait_for_a_session_and_writes_no_error(world):
    world.server.works = True

    async def story(world):
        await world.put("daily")
        await due(world)
        await until(lambda: world.server.busy)
        world.began = asyncio.get_running_loop().time()

    async def whole(world):
        await world.live(story)
        return asyncio.get_running_loop().time() - world.began

    async def played():
        world.url = await world.server.start()
        took = await whole(world)
        world.server.busy.clear()
        await world.server.stop()
        return took

    assert asyncio.run(asyncio.wait_for(played(), 30)) < 5
    assert world.last_run("daily")["lastError"] is None


def test_disabling_a_schedule_leaves_its_busy_session_alone(world):
    world.server.works = True

    async def story(world):
        await world.put("daily")
        await due(world)
        await until(lambda: world.server.busy)
        await world.sessions.patch(world.service, "daily", {"enabled": False})
        await world.sessions.reconcile()
        (run,) = await world.service.runs()
        world.server.busy.clear()
        await the_run(world, "daily", "SUCCESS")
        return run.status

    assert world.play(story) == "STARTED"


@pytest.mark.req("C50")
def test_session_that_is_busy_is_not_deleted_to_make_room(world):
    world.settings = {"sessions_most": 1}

    async def story(world):
        for slug in "ab":
            await world.put(slug, enabled=False)
        await world.run("a")
        (used,) = world.server.sessions
        world.server.busy.add(used)  # by a user
        await world.run("b")
        both = len(world.server.sessions)
        deleted = [path for method, path, *_ in world.server.asked if method == "DELETE"]
        world.server.busy.clear()
        return used in world.server.sessions, both, deleted

    assert world.play(story) == (True, 2, [])


@pytest.mark.parametrize("status", [409, 429])
def test_server_that_refuses_a_session_is_retried_in_an_hour(world, status):
    async def full(request):
        return web.json_response({"error": "too many sessions"}, status=status)

    world.server.app = web.Application()
    world.server.app.add_routes([web.post("/api/sessions", full)])

    async def story(world):
        await world.put("daily")
        await world.let_pass("1h")
        return world.last_run("daily")

    found = world.play(story)
    assert found["lastError"].startswith(f"the server creates no session now: HTTP {status}")
    assert found["nextRun"] == "2026-01-29T10:00:00.000Z"


def test_run_of_a_busy_session_has_its_id_as_external_id(world):
    world.server.works = True

    async def story(world):
        await world.put("daily")
        await due(world)
        await until(lambda: world.server.busy)
        await until(lambda: world.server.asked[-1][1].endswith("/state"))
        run = await the_run(world, "daily", "STARTED")
        named, busy = run.external_id, set(world.server.busy)
        world.server.busy.clear()
        run = await the_run(world, "daily", "SUCCESS")
        with pytest.raises(RunIsOver):
            await world.service.cancel(run.run_id)
        return {named} == busy

    assert world.play(story)


@pytest.mark.parametrize("how", ["timeout", "canceled", "reported"])
def test_session_of_a_run_that_its_server_reports_is_stopped_when_the_run_is_cut_off(world, how):
    world.server.works = True

    async def story(world):
        config = {"feedback": True}
        await world.put("long", sessionConfig=config, enabled=False, timeoutMinutes=10)
        await world.service.start("long")
        await world.beat.settle()
        await world.tidy()
        (run,) = await world.service.runs()
        assert run.status == "STARTED"
        assert world.server.busy, "it is at work"
        match how:
            case "timeout":
                await world.let_pass("10m")
            case "canceled":
                await world.service.cancel(run.run_id)
            case "reported":
                await world.service.report(run.run_id, Succeeded())
        await world.settled()
        await world.tidy()
        busy = set(world.server.busy)
        world.server.busy.clear()
        return busy, await world.service.run(run.run_id)

    busy, run = world.play(story)
    assert bool(busy) == (how == "reported"), "what was reported is left alone"
    if how == "timeout":
        assert run.error.endswith("it may still run"), "when it ended that was not known"


def test_session_that_has_a_later_prompt_is_not_stopped_for_an_earlier_run(world):
    async def story(world):
        config = {"feedback": True}
        await world.put("long", sessionConfig=config, enabled=False, timeoutMinutes=10)
        await world.sessions._tidying.abandon()  # it runs late
        first = await world.service.start("long")
        await world.beat.settle()
        await world.service.cancel(first.run_id)
        await world.service.start("long")
        await world.beat.settle()
        await world.tidy()
        return [path for _, path, *_ in world.server.asked if path.endswith("/cancel")]

    assert world.play(story) == []
    assert world.messages == ["long", "long"]

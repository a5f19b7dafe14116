"""Definitions as code over HTTP: what they would do, doing it, and what is to come."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from tests.web.test_schedules import problem

HOURLY = {"every": "1h", "run": {"command": ["true"]}}
DAILY = {"daily": "17:00", "run": {"command": ["true"]}}


@pytest.fixture
def name():
    """A name that no other test has."""
    return f"d-{uuid4().hex[:8]}"


def actions(answer):
    assert answer.status_code == 200, answer.text
    return {each["schedule_id"]: each["change"] for each in answer.json()["changes"]}


def test_a_plan_tells_what_applying_does_and_touches_nothing(api, name):
    asked = {"source": name, "schedules": {f"{name}/a": HOURLY, f"{name}/b": DAILY}}
    planned = actions(api.post("/plan", asked))
    assert planned == {f"{name}/a": "create", f"{name}/b": "create"}
    problem(api.get(f"/schedules/{name}%2Fa"), 404)
    assert actions(api.post("/apply", asked)) == planned
    assert api.get(f"/schedules/{name}%2Fa").json()["source"] == name
    assert set(actions(api.post("/plan", asked)).values()) == {"unchanged"}


def test_a_change_is_told_with_the_ticks_it_gains_and_loses(api, name):
    api.post("/apply", {"source": name, "schedules": {name: HOURLY}})
    (change,) = api.post(
        "/plan", {"source": name, "schedules": {name: {**HOURLY, "every": "2h"}}}
    ).json()["changes"]
    assert change["effect"]["lost"] == 84


def test_waiting_runs_keep_their_revision_unless_they_are_to_be_moved(api, name):
    nobody = {"every": "1h", "run": {"python": f"nobody-offers-{name}"}}
    api.put(f"/schedules/{name}", nobody)
    run_id = api.post(f"/schedules/{name}/run").json()["run_id"]
    edited = {**nobody, "timeout": "5m"}
    asked = {"source": name, "schedules": {name: edited}, "take_over": True}
    (planned,) = api.post("/plan", asked).json()["changes"]
    assert planned["past"]["keeps"] == [{"revision": 1, "runs": 1}]
    assert planned["past"]["words"] == [
        "keeps 1 waiting run of revision 1 (--update-waiting moves them)"
    ]
    api.post("/apply", asked)
    assert api.get(f"/runs/{run_id}").json()["revision"] == 1
    (moved,) = api.post("/apply", {**asked, "update_waiting": True}).json()["changes"]
    assert moved["past"]["moves"] == [{"revision": 1, "runs": 1}]
    assert api.get(f"/runs/{run_id}").json()["revision"] == 2
    api.put(f"/schedules/{name}", {**edited, "timeout": "6m"})
    assert api.get(f"/runs/{run_id}").json()["revision"] == 2
    where = f"/schedules/{name}?update_waiting=true"
    assert api.put(where, {**edited, "timeout": "7m"}).json()["revision"] == 4
    assert api.get(f"/runs/{run_id}").json()["revision"] == 4
    api.patch(where, {"timeout": "8m"})
    assert api.get(f"/runs/{run_id}").json()["revision"] == 5


def test_what_a_source_does_not_define_any_more_goes_only_if_it_is_asked_to(api, name):
    api.post("/apply", {"source": name, "schedules": {f"{name}/a": HOURLY, f"{name}/b": HOURLY}})
    api.put(f"/schedules/{name}%2Fby-hand", HOURLY)
    rest = {"source": name, "schedules": {f"{name}/a": HOURLY}}
    api.post("/apply", rest)
    assert api.get(f"/schedules/{name}%2Fb").status_code == 200
    api.post("/apply", {**rest, "prune": True})
    problem(api.get(f"/schedules/{name}%2Fb"), 404)
    assert api.get(f"/schedules/{name}%2Fby-hand").status_code == 200, "it is nobody's"


def test_what_is_another_s_is_taken_over_only_if_it_is_asked_to(api, name):
    api.put(f"/schedules/{name}", HOURLY)
    asked = {"source": name, "schedules": {name: DAILY}}
    assert actions(api.post("/plan", asked)) == {name: "taken"}
    assert "take_over" in problem(api.post("/apply", asked), 409)["hint"]
    assert api.get(f"/schedules/{name}").json()["definition"] == HOURLY
    api.post("/apply", {**asked, "take_over": True})
    assert api.get(f"/schedules/{name}").json()["definition"] == DAILY


def test_one_mistake_and_nothing_is_applied(api, name):
    broken = {"cron": "61 * * * *", "run": {"command": ["true"]}}
    asked = {"source": name, "schedules": {f"{name}/a": HOURLY, f"{name}/b": broken}}
    assert problem(api.post("/apply", asked), 422)["field"] == f"schedules.{name}/b.cron.minute"
    problem(api.get(f"/schedules/{name}%2Fa"), 404)


def test_applying_leaves_pauses_alone(api, name):
    api.post("/apply", {"source": name, "schedules": {name: HOURLY}})
    api.post(f"/schedules/{name}/pause")
    api.post("/apply", {"source": name, "schedules": {name: DAILY}})
    found = api.get(f"/schedules/{name}").json()
    assert (found["paused"], found["definition"]) == (True, DAILY)


def test_the_zone_of_a_source_is_of_those_that_have_none(api, name):
    own = {**DAILY, "timezone": "Asia/Tokyo"}
    asked = {
        "source": name,
        "timezone": "Europe/Berlin",
        "schedules": {f"{name}/a": DAILY, f"{name}/b": own},
    }
    api.post("/apply", asked)
    zones = [api.get(f"/schedules/{name}%2F{each}/next").json()["timezone"] for each in "ab"]
    assert zones == ["Europe/Berlin", "Asia/Tokyo"]


def test_a_forecast_tells_what_will_start_and_as_if_others_were_defined(api, name):
    api.put(f"/schedules/{name}", HOURLY)
    found = api.post("/simulate", {"until": "24h", "only": [name]}).json()
    assert str(found).count(name) >= 1
    extra = {"until": "24h", "only": [f"{name}/new"], "schedules": {f"{name}/new": HOURLY}}
    assert f"{name}/new" in api.post("/simulate", extra).text
    problem(api.get(f"/schedules/{name}%2Fnew"), 404)
    assert (
        problem(api.post("/simulate", {"until": "2020-01-01T00:00:00Z"}), 422)["field"] == "until"
    )


def test_a_long_forecast_does_not_keep_others_waiting(api, name):
    every_second = {f"{name}/{n}": {**HOURLY, "every": "1s"} for n in range(10)}
    asked = {"until": "4d", "schedules": every_second, "only": list(every_second)}
    with ThreadPoolExecutor(1) as pool:
        forecast = pool.submit(api.post, "/simulate", asked)
        waited = []
        while not forecast.done():
            begin = time.monotonic()
            assert api.get("/gate").status_code == 200
            waited.append(time.monotonic() - begin)
    assert forecast.result().json()["ticks"] > 1_000_000
    assert len(waited) > 2
    assert max(waited) < 2


def test_editors_get_a_schema_of_files(api):
    found = api.get("/schema").json()
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert "schedules" in found["properties"]


def longest_pause(api, ask):
    """Return the answer, and for how long the loop of the node did nothing else at the most."""
    done = threading.Event()

    async def watch():
        longest = 0.0
        while not done.is_set():
            begin = time.monotonic()
            await asyncio.sleep(0.002)
            longest = max(longest, time.monotonic() - begin)
        return longest

    watching = asyncio.run_coroutine_threadsafe(watch(), api.loop)
    try:
        answer = ask()
    finally:
        done.set()
    return answer, watching.result(20)


def test_a_plan_of_as_many_as_there_may_be_does_not_hold_the_engine_up(api, name):
    every_second = {f"{name}/{n}": {**HOURLY, "every": "1s"} for n in range(10_000)}
    asked = {"source": name, "schedules": every_second}
    answer, pause = longest_pause(api, lambda: api.post("/plan", asked))
    first, *_, last = answer.json()["changes"]
    assert (first["effect"]["gained"], first["effect"]["is_known"]) == (7 * 86_400, True)
    assert last["change"] == "create"
    assert pause < 1


@pytest.mark.parametrize("where", ["plan", "apply", "simulate"])
def test_more_schedules_than_a_request_may_have_are_refused(api, name, where):
    asked = {"schedules": {f"{name}/{n}": HOURLY for n in range(10_001)}}
    given = asked if where == "simulate" else {"source": name, **asked}
    told = problem(api.post(f"/{where}", given), 422)
    assert (told["field"], told["problem"]) == ("schedules", "there are 10001")


def test_a_body_as_large_as_the_door_allows_is_read(api, name):
    asked = {"source": name, "schedules": {name: {**HOURLY, "odd": "x" * (16 * 2**20 - 200)}}}
    assert problem(api.post("/plan", asked), 422)["field"] == f"schedules.{name}.odd"


def test_a_source_has_calendars_as_a_file_has(api, name):
    asked = {
        "source": name,
        "calendars": {"closed": ["2030-01-01", "2030-12-24"]},
        "schedules": {name: {**DAILY, "exclude": ["closed"]}},
    }
    assert actions(api.post("/apply", asked)) == {name: "create"}
    assert api.get(f"/schedules/{name}").json()["definition"]["exclude"]
    odd = {**asked, "calendars": {"closed": ["someday"]}}
    assert problem(api.post("/plan", odd), 422)["field"].startswith("calendars.closed")


def test_applying_answers_the_revisions_that_hold_afterwards(api, name):
    def apply(**given):
        found = api.post("/apply", {"source": name, **given}).json()["changes"]
        return {each["schedule_id"]: each["revision"] for each in found}

    one, two = f"{name}/1", f"{name}/2"
    assert apply(schedules={one: HOURLY, two: HOURLY}) == {one: 1, two: 1}
    assert apply(schedules={one: DAILY}) == {one: 2, two: 1}
    assert api.get(f"/schedules/{name}%2F1").json()["revision"] == 2
    assert apply(schedules={one: DAILY}, prune=True) == {one: 2, two: None}

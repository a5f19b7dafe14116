"""Definitions as code over HTTP: plan, apply and simulate."""

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
    """Return a unique name."""
    return f"d-{uuid4().hex[:8]}"


def actions(answer):
    assert answer.status_code == 200, answer.text
    return {each["schedule_id"]: each["change"] for each in answer.json()["changes"]}


def test_plan_returns_the_changes_of_apply_and_changes_nothing(api, name):
    asked = {"source": name, "schedules": {f"{name}/a": HOURLY, f"{name}/b": DAILY}}
    planned = actions(api.post("/plan", asked))
    assert planned == {f"{name}/a": "create", f"{name}/b": "create"}
    problem(api.get(f"/schedules/{name}%2Fa"), 404)
    assert actions(api.post("/apply", asked)) == planned
    assert api.get(f"/schedules/{name}%2Fa").json()["source"] == name
    assert set(actions(api.post("/plan", asked)).values()) == {"unchanged"}


def test_planned_change_has_the_ticks_gained_and_lost(api, name):
    api.post("/apply", {"source": name, "schedules": {name: HOURLY}})
    (change,) = api.post(
        "/plan", {"source": name, "schedules": {name: {**HOURLY, "every": "2h"}}}
    ).json()["changes"]
    assert change["effect"]["lost"] == 84


def test_waiting_runs_keep_their_revision_unless_update_waiting_is_set(api, name):
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


def test_schedule_missing_in_the_source_is_deleted_only_with_prune(api, name):
    api.post("/apply", {"source": name, "schedules": {f"{name}/a": HOURLY, f"{name}/b": HOURLY}})
    api.put(f"/schedules/{name}%2Fby-hand", HOURLY)
    rest = {"source": name, "schedules": {f"{name}/a": HOURLY}}
    api.post("/apply", rest)
    assert api.get(f"/schedules/{name}%2Fb").status_code == 200
    api.post("/apply", {**rest, "prune": True})
    problem(api.get(f"/schedules/{name}%2Fb"), 404)
    assert api.get(f"/schedules/{name}%2Fby-hand").status_code == 200, "it has no source"


def test_schedule_of_another_source_is_replaced_only_with_take_over(api, name):
    api.put(f"/schedules/{name}", HOURLY)
    asked = {"source": name, "schedules": {name: DAILY}}
    assert actions(api.post("/plan", asked)) == {name: "taken"}
    assert "take_over" in problem(api.post("/apply", asked), 409)["hint"]
    assert api.get(f"/schedules/{name}").json()["definition"] == HOURLY
    api.post("/apply", {**asked, "take_over": True})
    assert api.get(f"/schedules/{name}").json()["definition"] == DAILY


def test_one_invalid_definition_prevents_the_whole_apply(api, name):
    broken = {"cron": "61 * * * *", "run": {"command": ["true"]}}
    asked = {"source": name, "schedules": {f"{name}/a": HOURLY, f"{name}/b": broken}}
    assert problem(api.post("/apply", asked), 422)["field"] == f"schedules.{name}/b.cron.minute"
    problem(api.get(f"/schedules/{name}%2Fa"), 404)


def test_apply_keeps_pauses(api, name):
    api.post("/apply", {"source": name, "schedules": {name: HOURLY}})
    api.post(f"/schedules/{name}/pause")
    api.post("/apply", {"source": name, "schedules": {name: DAILY}})
    found = api.get(f"/schedules/{name}").json()
    assert (found["paused"], found["definition"]) == (True, DAILY)


def test_timezone_of_the_source_is_the_default_of_its_schedules(api, name):
    own = {**DAILY, "timezone": "Asia/Tokyo"}
    asked = {
        "source": name,
        "timezone": "Europe/Berlin",
        "schedules": {f"{name}/a": DAILY, f"{name}/b": own},
    }
    api.post("/apply", asked)
    zones = [api.get(f"/schedules/{name}%2F{each}/next").json()["timezone"] for each in "ab"]
    assert zones == ["Europe/Berlin", "Asia/Tokyo"]


def test_simulate_forecasts_stored_and_additional_schedules(api, name):
    api.put(f"/schedules/{name}", HOURLY)
    found = api.post("/simulate", {"until": "24h", "only": [name]}).json()
    assert str(found).count(name) >= 1
    extra = {"until": "24h", "only": [f"{name}/new"], "schedules": {f"{name}/new": HOURLY}}
    assert f"{name}/new" in api.post("/simulate", extra).text
    problem(api.get(f"/schedules/{name}%2Fnew"), 404)
    assert (
        problem(api.post("/simulate", {"until": "2020-01-01T00:00:00Z"}), 422)["field"] == "until"
    )


def test_long_forecast_does_not_block_other_requests(api, name):
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


def test_schema_of_definition_files_is_served(api):
    found = api.get("/schema").json()
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert "schedules" in found["properties"]


def longest_pause(api, ask):
    """Return the response, and the longest time that the event loop of the node was blocked."""
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


def test_plan_of_the_maximum_size_does_not_block_the_engine(api, name):
    every_second = {f"{name}/{n}": {**HOURLY, "every": "1s"} for n in range(10_000)}
    asked = {"source": name, "schedules": every_second}
    answer, pause = longest_pause(api, lambda: api.post("/plan", asked))
    first, *_, last = answer.json()["changes"]
    assert (first["effect"]["gained"], first["effect"]["is_known"]) == (7 * 86_400, True)
    assert last["change"] == "create"
    assert pause < 1


@pytest.mark.parametrize("where", ["plan", "apply", "simulate"])
def test_too_many_schedules_in_a_request_are_refused(api, name, where):
    asked = {"schedules": {f"{name}/{n}": HOURLY for n in range(10_001)}}
    given = asked if where == "simulate" else {"source": name, **asked}
    told = problem(api.post(f"/{where}", given), 422)
    assert (told["field"], told["problem"]) == ("schedules", "there are 10001")


def test_body_of_the_maximum_size_is_read(api, name):
    asked = {"source": name, "schedules": {name: {**HOURLY, "odd": "x" * (16 * 2**20 - 200)}}}
    assert problem(api.post("/plan", asked), 422)["field"] == f"schedules.{name}.odd"


def test_apply_accepts_calendars(api, name):
    asked = {
        "source": name,
        "calendars": {"closed": ["2030-01-01", "2030-12-24"]},
        "schedules": {name: {**DAILY, "exclude": ["closed"]}},
    }
    assert actions(api.post("/apply", asked)) == {name: "create"}
    assert api.get(f"/schedules/{name}").json()["definition"]["exclude"]
    odd = {**asked, "calendars": {"closed": ["someday"]}}
    assert problem(api.post("/plan", odd), 422)["field"].startswith("calendars.closed")


def test_apply_returns_the_resulting_revisions(api, name):
    def apply(**given):
        found = api.post("/apply", {"source": name, **given}).json()["changes"]
        return {each["schedule_id"]: each["revision"] for each in found}

    one, two = f"{name}/1", f"{name}/2"
    assert apply(schedules={one: HOURLY, two: HOURLY}) == {one: 1, two: 1}
    assert apply(schedules={one: DAILY}) == {one: 2, two: 1}
    assert api.get(f"/schedules/{name}%2F1").json()["revision"] == 2
    assert apply(schedules={one: DAILY}, prune=True) == {one: 2, two: None}

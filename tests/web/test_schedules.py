"""Schedules over HTTP: created, read, edited, paused and deleted."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.web.waiting import eventually

DAILY = {"daily": "17:00", "run": {"command": ["true"]}}
HOURLY = {"every": "1h", "run": {"command": ["true"]}}


@pytest.fixture
def name():
    """Return a unique name."""
    return f"s-{uuid4().hex[:8]}"


def ids(answer):
    return [each["schedule_id"] for each in answer.json()["schedules"]]


def problem(answer, status):
    """Check that a response is a problem, and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == status
    assert told["problem"]
    assert told["title"]
    return told


class TestDefining:
    def test_put_creates_a_schedule_and_then_replaces_it(self, api, name):
        made = api.put(f"/schedules/{name}", DAILY | {"jitter": "30s"})
        assert made.status_code == 201
        assert made.headers["location"] == f"/api/v1/schedules/{name}"
        assert (made.json()["revision"], made.headers["etag"]) == (1, '"1"')
        replaced = api.put(f"/schedules/{name}", HOURLY)
        assert (replaced.status_code, replaced.headers["etag"]) == (200, '"2"')
        assert replaced.json()["definition"] == HOURLY
        assert "location" not in replaced.headers

    def test_same_definition_creates_no_revision(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        assert api.put(f"/schedules/{name}", {**HOURLY, "every": "60m"}).headers["etag"] == '"1"'

    def test_schedule_id_may_contain_slashes(self, api, name):
        made = api.put(f"/schedules/{name}%2Fa%2Fb", HOURLY)
        assert made.headers["location"] == f"/api/v1/schedules/{name}%2Fa%2Fb"
        assert api.get(f"/schedules/{name}%2Fa%2Fb").json()["schedule_id"] == f"{name}/a/b"
        assert api.get(f"/schedules/{name}/a/b").status_code == 404, "a path of another length"

    def test_patch_changes_fields_and_removes_them_by_null(self, api, name):
        run = {"command": ["echo"], "env": {"A": "1", "B": "2"}}
        api.put(f"/schedules/{name}", {"every": "1h", "run": run, "jitter": "30s"})
        patch = {"jitter": None, "run": {"env": {"B": None, "C": "3"}}, "enabled": False}
        found = api.patch(f"/schedules/{name}", patch).json()["definition"]
        run = {"command": ["echo"], "env": {"A": "1", "C": "3"}}
        assert found == {"every": "1h", "run": run, "enabled": False}

    def test_patch_accepts_only_merge_patch(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        kind = {"Content-Type": "application/merge-patch+json"}
        assert api.patch(f"/schedules/{name}", {"every": "2h"}, headers=kind).status_code == 200
        other = {"Content-Type": "application/json-patch+json"}
        problem(api.patch(f"/schedules/{name}", {"every": "2h"}, headers=other), 415)

    def test_patch_replaces_the_trigger_by_null_and_another_one(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        told = problem(api.patch(f"/schedules/{name}", {"daily": "17:00"}), 422)
        assert "every" in told["problem"] or "daily" in told["problem"]
        edited = api.patch(f"/schedules/{name}", {"daily": "17:00", "every": None})
        assert edited.json()["words"] == "at 17:00 every day, UTC"

    def test_schedule_is_deleted_once(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        assert api.delete(f"/schedules/{name}").status_code == 204
        problem(api.get(f"/schedules/{name}"), 404)
        problem(api.delete(f"/schedules/{name}"), 404)

    def test_invalid_definition_is_refused_with_field_and_hint(self, api, name):
        told = problem(
            api.put(f"/schedules/{name}", {"cron": "0 25 * * *", "run": {"command": ["a"]}}), 422
        )
        assert told["field"] == "cron.hour"
        assert told["hint"] == "0 to 23"
        told = problem(
            api.put(f"/schedules/{name}", {"every": "1h", "run": {"commands": ["a"]}}), 422
        )
        assert (told["field"], told["hint"]) == ("run.commands", "did you mean 'command'?")

    def test_misspelt_field_gets_a_suggestion(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        assert name in problem(api.get(f"/schedules/{name}x"), 404)["problem"]
        told = problem(api.get("/schedules?limits=3"), 400)
        assert (told["field"], told["hint"]) == ("limits", "did you mean 'limit'?")


class TestCreating:
    def test_creating_the_same_id_twice_is_idempotent(self, api, name):
        asked = {"schedule_id": name, "definition": HOURLY}
        assert api.post("/schedules", asked).status_code == 201
        again = api.post("/schedules", asked)
        assert (again.status_code, again.json()["revision"]) == (200, 1)
        other = {"schedule_id": name, "definition": DAILY}
        assert name in problem(api.post("/schedules", other), 409)["problem"]
        assert api.get(f"/schedules/{name}").json()["definition"] == HOURLY

    def test_creating_with_the_same_key_twice_is_idempotent(self, api, name):
        headers = {"Idempotency-Key": name}
        first = api.post("/schedules", {"definition": HOURLY}, headers=headers)
        again = api.post("/schedules", {"definition": HOURLY}, headers=headers)
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["schedule_id"] == again.json()["schedule_id"]
        problem(api.post("/schedules", {"definition": DAILY}, headers=headers), 409)

    def test_idempotency_key_belongs_to_its_caller(self, api, name):
        hook = {"every": "1h", "run": {"http": "https://example.com"}}
        made = {
            api.post("/schedules", {"definition": hook}, headers={"Idempotency-Key": name}, token=token).json()["schedule_id"]
            for token in (api.admin, api.token("define"), api.token("define", "ann"))
        }  # fmt: skip
        assert len(made) == 3

    def test_concurrent_requests_with_one_key_create_one_schedule(self, api, name):
        def make(_):
            return api.post("/schedules", {"definition": HOURLY}, headers={"Idempotency-Key": name})

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(make, range(16)))
        assert sorted(each.status_code for each in answers) == [200] * 15 + [201]
        assert len({each.json()["schedule_id"] for each in answers}) == 1

    def test_schedule_without_an_id_gets_a_new_one_each_time(self, api):
        made = {
            api.post("/schedules", {"definition": HOURLY}).json()["schedule_id"] for _ in range(2)
        }
        assert len(made) == 2
        assert all(each.startswith("api/") for each in made)


class TestEditing:
    """Edits with If-Match."""

    def test_edit_of_an_outdated_revision_is_refused(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        api.patch(f"/schedules/{name}", {"every": "2h"})
        stale = {"If-Match": '"1"'}
        for answer in (
            api.put(f"/schedules/{name}", DAILY, headers=stale),
            api.patch(f"/schedules/{name}", {"every": "3h"}, headers=stale),
            api.delete(f"/schedules/{name}", headers=stale),
        ):
            assert problem(answer, 412)["hint"]
        assert api.get(f"/schedules/{name}").json()["definition"]["every"] == "2h"
        fresh = {"If-Match": api.get(f"/schedules/{name}").headers["etag"]}
        assert (
            api.patch(f"/schedules/{name}", {"every": "3h"}, headers=fresh).headers["etag"] == '"3"'
        )
        assert api.delete(f"/schedules/{name}", headers={"If-Match": '"3"'}).status_code == 204

    def test_one_of_several_edits_of_a_revision_succeeds(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)

        def edit(n):
            return api.patch(
                f"/schedules/{name}", {"every": f"{n + 2}h"}, headers={"If-Match": '"1"'}
            )

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(edit, range(8)))
        assert sorted(each.status_code for each in answers) == [200] + [412] * 7
        (won,) = (each.json()["definition"] for each in answers if each.status_code == 200)
        assert api.get(f"/schedules/{name}").json()["definition"] == won

    def test_concurrent_patches_of_different_fields_all_succeed(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        patches = [{"jitter": "5s"}, {"description": "x"}, {"priority": 3}]
        with ThreadPoolExecutor(3) as pool:
            assert [
                each.status_code
                for each in pool.map(lambda each: api.patch(f"/schedules/{name}", each), patches)
            ] == [200] * 3
        found = api.get(f"/schedules/{name}").json()["definition"]
        assert (found["jitter"], found["description"], found["priority"]) == ("5s", "x", 3)

    def test_if_match_star_requires_an_existing_schedule(self, api, name):
        any_of_them = {"If-Match": "*"}
        problem(api.put(f"/schedules/{name}", HOURLY, headers=any_of_them), 404)
        api.put(f"/schedules/{name}", HOURLY)
        assert api.put(f"/schedules/{name}", DAILY, headers=any_of_them).status_code == 200

    def test_invalid_etag_is_refused(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        for other in ("1", 'W/"1"', '"x"', '"1", "2"', '""'):
            told = problem(api.put(f"/schedules/{name}", DAILY, headers={"If-Match": other}), 422)
            assert told["field"] == "If-Match"

    def test_edit_keeps_a_pause(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        api.post(f"/schedules/{name}/pause", {"note": "holiday"})
        edited = api.put(f"/schedules/{name}", DAILY).json()
        assert (edited["paused"], edited["pause_note"]) == (True, "holiday")


class TestReading:
    def test_schedule_has_next_run_last_run_and_pause(self, api, name):
        api.put(f"/schedules/{name}", {**DAILY, "enabled": True})
        found = api.get(f"/schedules/{name}").json()
        assert found["next_run_at"].endswith("T17:00:00Z")
        assert (found["last_run_at"], found["paused"]) == (None, False)
        api.post(f"/schedules/{name}/run")
        eventually(lambda: api.get(f"/schedules/{name}").json()["last_success_at"])
        found = api.get(f"/schedules/{name}").json()
        assert found["last_run_at"] is not None
        assert found["last_exit"] == 0
        off = api.patch(f"/schedules/{name}", {"enabled": False}).json()
        assert off["definition"]["enabled"] is False
        assert api.post(f"/schedules/{name}/pause").json()["next_run_at"] is None

    def test_next_returns_five_ticks(self, api, name):
        api.put(
            f"/schedules/{name}",
            {"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin", "run": {"command": ["true"]}},
        )
        assert api.get(f"/schedules/{name}").json()["schedule_id"] == name
        found = api.get(f"/schedules/{name}/next?after=2026-03-26T12:00:00Z").json()
        assert found["words"] == "at 09:00 on Monday to Friday, Europe/Berlin"
        assert [each["run_at"] for each in found["ticks"]] == [
            "2026-03-27T08:00:00Z", "2026-03-30T07:00:00Z", "2026-03-31T07:00:00Z",
            "2026-04-01T07:00:00Z", "2026-04-02T07:00:00Z",
        ]  # fmt: skip
        assert found["ticks"][1]["local"] == "2026-03-30T09:00:00+02:00"
        assert len(api.get(f"/schedules/{name}/next?n=1000").json()["ticks"]) == 1000
        problem(api.get(f"/schedules/{name}/next?n=1001"), 400)
        assert problem(api.get(f"/schedules/{name}/next?after=tomorrow"), 422)["field"] == "after"

    def test_preview_returns_ticks_without_storing_the_definition(self, api):
        before = len(api.get("/schedules?limit=1000").json()["schedules"])
        found = api.post("/preview?n=2", {"every": "90m", "run": {"command": ["true"]}}).json()
        assert found["words"] == "every 90 minutes"
        assert len(found["ticks"]) == 2
        assert problem(
            api.post("/preview", {"cron": "0 0 31 2 *", "run": {"command": ["true"]}}), 422
        )
        assert len(api.get("/schedules?limit=1000").json()["schedules"]) == before

    def test_pages_are_consistent_while_schedules_are_added_and_deleted(self, api, name):
        for n in range(20):
            api.put(f"/schedules/{name}-{n:02}", HOURLY)
        seen, cursor = [], None
        for page in range(30):
            after = "" if cursor is None else f"&cursor={cursor}"
            answer = api.get(f"/schedules?q={name}&limit=3{after}")
            seen += ids(answer)
            cursor = answer.json()["next_cursor"]
            if cursor is None:
                break
            api.delete(f"/schedules/{name}-{19 - page:02}")
            api.put(f"/schedules/{name}-00-{page}", HOURLY)
        assert len(seen) == len(set(seen)), "none twice"
        left = {f"{name}-{n:02}" for n in range(19 - page)}
        assert left <= set(seen), "none left out that was there all the time"

    def test_full_last_page_has_no_cursor(self, api, name):
        for n in range(4):
            api.put(f"/schedules/{name}-{n}", HOURLY)
        first = api.get(f"/schedules?q={name}&limit=2").json()
        assert first["next_cursor"] == f"{name}-1"
        second = api.get(f"/schedules?q={name}&limit=2&cursor={first['next_cursor']}").json()
        assert [each["schedule_id"] for each in second["schedules"]] == [f"{name}-2", f"{name}-3"]
        assert second["next_cursor"] is None

    def test_schedules_are_filtered(self, api, name):
        api.put(f"/schedules/{name}-ok", HOURLY)
        api.put(
            f"/schedules/{name}-bad",
            {"every": "1h", "run": {"command": ["false"]}, "description": f"Of {name.upper()}%"},
        )
        api.put(f"/schedules/{name}-anns", HOURLY, token=api.token("admin", "ann"))
        api.post("/apply", {"source": name, "schedules": {f"{name}-file": HOURLY}})
        api.post(f"/schedules/{name}-ok/pause")
        api.post(f"/schedules/{name}-bad/run")
        eventually(lambda: ids(api.get(f"/schedules?q={name}&failing=true")))
        assert ids(api.get(f"/schedules?q={name}&failing=true")) == [f"{name}-bad"]
        assert ids(api.get(f"/schedules?q={name}&paused=true")) == [f"{name}-ok"]
        assert ids(api.get(f"/schedules?q={name}&owner=ann")) == [f"{name}-anns"]
        assert ids(api.get(f"/schedules?source={name}")) == [f"{name}-file"]
        assert ids(api.get(f"/schedules?q=of {name}%25")) == [f"{name}-bad"], "also of what it says"
        assert ids(api.get(f"/schedules?q={name}_ok")) == [], "nothing stands for anything"
        assert len(ids(api.get(f"/schedules?q={name.upper()}"))) == 4


class TestPausing:
    def test_pause_has_a_note_and_ends_with_resume(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        paused = api.post(f"/schedules/{name}/pause", {"note": "holiday"}).json()
        assert (paused["paused"], paused["pause_note"], paused["next_run_at"]) == (
            True,
            "holiday",
            None,
        )
        resumed = api.post(f"/schedules/{name}/resume").json()
        assert (resumed["paused"], resumed["next_run_at"] is not None) == (False, True)

    def test_pause_with_until_ends_automatically(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        until = (datetime.now(UTC) + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
        paused = api.post(f"/schedules/{name}/pause", {"until": until}).json()
        assert paused["paused_until"] == until.replace("Z", ".000Z")
        told = problem(api.post(f"/schedules/{name}/pause", {"until": "2020-01-01T00:00:00Z"}), 422)
        assert told["field"] == "until"

    def test_bulk_pauses_by_filter_and_lists_in_dry_run(self, api, name):
        for n in range(3):
            api.put(f"/schedules/{name}-{n}", HOURLY)
        api.post(f"/schedules/{name}-1/pause")
        asked = {"action": "pause", "which": {"q": name}, "note": "all"}
        told = api.post("/bulk", {**asked, "dry_run": True}).json()
        assert told == {
            "action": "pause", "dry_run": True, "changed": [f"{name}-0", f"{name}-2"], "unchanged": [f"{name}-1"],
        }  # fmt: skip
        assert ids(api.get(f"/schedules?q={name}&paused=true")) == [f"{name}-1"]
        assert api.post("/bulk", asked).json()["changed"] == told["changed"]
        assert len(ids(api.get(f"/schedules?q={name}&paused=true"))) == 3
        assert api.post(
            "/bulk", {"action": "resume", "which": {"ids": [f"{name}-0", "nobody"]}}
        ).json()["changed"] == [f"{name}-0"]
        gone = api.post("/bulk", {"action": "delete", "which": {"q": name}}).json()
        assert len(gone["changed"]) == 3
        assert ids(api.get(f"/schedules?q={name}")) == []

    def test_bulk_without_a_condition_is_refused(self, api):
        for which in ({}, {"q": ""}, {"all": False}):
            told = problem(api.post("/bulk", {"action": "delete", "which": which}), 422)
            assert told["field"] == "which"
        dry = {"action": "delete", "which": {"all": True}, "dry_run": True}
        assert api.post("/bulk", dry).status_code == 200


class TestWhy:
    def test_why_explains_any_instant(self, api, name):
        api.put(f"/schedules/{name}", DAILY)
        found = api.get(f"/schedules/{name}/why?at=2026-01-01T03:00:00Z").json()
        assert found["schedule_id"] == name
        assert found["headline"]
        assert found["at"] == "2026-01-01T03:00:00Z"
        assert problem(api.get(f"/schedules/{name}/why?at=x"), 422)["field"] == "at"

    def test_why_reads_local_times_in_the_zone_of_the_schedule(self, api, name):
        certbot = {"daily": "02:30", "timezone": "Europe/Berlin", "run": DAILY["run"]}
        api.put(f"/schedules/{name}", certbot)
        found = api.get(f"/schedules/{name}/why?at=2099-03-29T02:30").json()
        assert (found["at"], found["kind"]) == ("2099-03-29T01:00:00Z", "to_come")
        assert found["note"].startswith("02:30 does not exist in Europe/Berlin on 2099-03-29")
        found = api.get(f"/schedules/{name}/why?at=2099-10-25T02:30").json()
        assert (found["at"], found["also"]) == ("2099-10-25T00:30:00Z", ["2099-10-25T01:30:00Z"])


class TestBackfilling:
    def test_backfill_previews_past_ticks_and_runs_each_once(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        asked = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T02:00:00Z"}
        told = api.post(f"/schedules/{name}/backfill", {**asked, "dry_run": True}).json()
        assert (told["enqueued"], told["refused"]) == (3, 0)
        assert [each["action"] for each in told["ticks"]] == ["enqueue"] * 3
        assert api.get(f"/schedules/{name}/runs").json()["runs"] == []
        done = api.post(f"/schedules/{name}/backfill", asked).json()
        assert (done["enqueued"], done["dry_run"], done["following"]) == (3, False, None)
        assert api.post(f"/schedules/{name}/backfill", asked).json()["enqueued"] == 0
        runs = api.get(f"/schedules/{name}/runs").json()["runs"]
        assert {each["triggered_by"] for each in runs} == {"backfill"}
        assert sorted(each["run_at"] for each in runs) == [
            f"2026-01-01T0{n}:00:00Z" for n in range(3)
        ]

    def test_backfill_of_too_many_ticks_is_refused(self, api, name):
        api.put(f"/schedules/{name}", {**HOURLY, "every": "1s"})
        asked = {"from": "2020-01-01T00:00:00Z", "to": "2026-01-01T02:00:00Z"}
        assert problem(api.post(f"/schedules/{name}/backfill", asked), 422)["field"] == "backfill"
        api.delete(f"/schedules/{name}")

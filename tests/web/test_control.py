"""Overview, gate, groups, nodes, audit, tokens and health checks over HTTP."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx
import pytest

from onbeat.web import live
from tests.postgres import Server, new_folder
from tests.waiting import engine_has_looked
from tests.web.serving import serving
from tests.web.test_schedules import problem
from tests.web.test_streams import stream
from tests.web.waiting import eventually

HOURLY = {"every": "1h", "run": {"command": ["true"]}}


@pytest.fixture
def name():
    """Return a unique name."""
    return f"o-{uuid4().hex[:8]}"


def test_overview_counts_schedules_runs_and_nodes(api, name):
    before = api.get("/overview").json()
    api.put(f"/schedules/{name}", HOURLY)
    api.put(f"/schedules/{name}-2", HOURLY)
    api.post(f"/schedules/{name}/pause")
    found = api.get("/overview").json()
    assert found["schedules"] - before["schedules"] == 2
    assert found["paused"] - before["paused"] == 1
    assert found["gate"] == "open"
    (node,) = found["nodes"]
    assert node["alive"]
    assert node["address"] == api.url


def test_closed_gate_starts_nothing(api, name):
    api.put(f"/schedules/{name}", HOURLY)
    assert api.put("/gate", {"gate": "closed"}).json() == {"gate": "closed"}
    assert api.get("/gate").json() == {"gate": "closed"}
    run = api.post(f"/schedules/{name}/run").json()["run_id"]
    api.do(engine_has_looked(api.beat))
    assert api.get(f"/runs/{run}").json()["status"] == "ENQUEUED"
    assert api.get("//readyz").status_code == 200, "it is meant to be so"
    api.put("/gate", {"gate": "open"})
    eventually(lambda: api.get(f"/runs/{run}").json()["status"] == "SUCCESS")
    problem(api.put("/gate", {"gate": "ajar"}), 400)


def test_group_limit_is_set_and_returned(api, name):
    assert api.put(f"/groups/{name}%2Fa", {"places": 3}).json() == {
        "name": f"{name}/a", "places": 3, "used": 0, "waiting": 0,
    }  # fmt: skip
    assert {"name": f"{name}/a", "places": 3, "used": 0, "waiting": 0} in api.get("/groups").json()[
        "groups"
    ]
    problem(api.put(f"/groups/{name}", {"places": 0}), 400)
    assert problem(api.put("/groups/a%20b", {"places": 1}), 422)["field"] == "group"


def test_nodes_are_listed_and_requested_to_stop(tmp_path):
    with serving(tmp_path) as api:
        (node,) = api.get("/nodes").json()["nodes"]
        assert node["alive"]
        assert not node["stopping"]
        assert set(node["roles"]) == {"plan", "run", "api"}
        assert "command" in node["offers"]
        assert api.post("/nodes/nobody/stop").json() == {"asked": False}
        assert api.post(f"/nodes/{node['node_id']}/stop").json() == {"asked": True}
        assert api.get("/nodes").json()["nodes"][0]["stopping"]


class TestRefusals:
    """Problems of requests that cannot be read."""

    @pytest.mark.parametrize(
        ("asked", "field", "told"),
        [
            (("PUT", "/schedules/x", None), "body", "the body is missing"),
            (("PUT", "/schedules/x", [1]), "body", "Expected `object`, got `array`"),
            (("POST", "/schedules", {}), "definition", "it is missing"),
            (("POST", "/schedules/x/pause", {"notes": "x"}), "notes", "no field has this name"),
            (("POST", "/schedules/x/pause", {"note": 3}), "note", "Expected `str`, got `int`"),
            (("POST", "/bulk", {"action": "pause", "which": {"all": 1}}), "which.all", "Expected `bool`, got `int`"),
            (("POST", "/bulk", {"action": "pause", "which": {"z": 1}}), "which.z", "no field has this name"),
            (("PUT", "/groups/g", {"places": "3"}), "places", "Expected `int`, got `str`"),
            (("POST", "/bulk", {"action": "delete", "which": {"all": True}, "dry_run": "no"}), "dry_run", "Expected `bool`, got `str`"),
            (("POST", "/bulk", {"action": "pause", "which": {"ids": ["a", 3]}}), "which.ids[1]", "Expected `str`, got `int`"),
            (("GET", "/runs?limit=0", None), "limit", "Expected `int` >= 1"),
            (("GET", "/runs?limit=1&limit=2", None), "limit", "it is repeated"),
            (("GET", "/runs?status=null", None), "status", "null is not allowed"),
            (("GET", "/runs?zzz=1", None), "zzz", "no parameter has this name"),
        ],
    )  # fmt: skip
    def test_problem_names_the_invalid_field(self, api, asked, field, told):
        found = problem(api.ask(*asked), 400)
        assert (found["field"], found["problem"]) == (field, told)

    def test_problem_names_the_invalid_header(self, api):
        refused = api.post("/schedules/x/run", headers={"Idempotency-Key": "a b"})
        assert problem(refused, 400)["field"] == "Idempotency-Key"

    def test_unknown_path_and_unsupported_method_have_different_problems(self, api):
        assert "openapi.json" in problem(api.get("/nothing"), 404)["hint"]
        refused = api.ask("PATCH", "/gate", {"gate": "open"})
        assert "PUT" in problem(refused, 405)["hint"]
        assert "PUT" in refused.headers["allow"]


class TestAudit:
    def test_audit_has_the_author_and_the_content_of_each_change(self, api, name):
        by = {
            "define": api.token("define"),
            "operate": api.token("operate"),
            "ann": api.token("admin", "ann"),
        }
        hook = {"every": "1h", "run": {"http": "https://example.com"}}
        api.put(f"/schedules/{name}", hook, token=by["define"])
        api.patch(f"/schedules/{name}", {"every": "2h"}, token=by["ann"])
        api.post(f"/schedules/{name}/pause", {"note": "n"}, token=by["operate"])
        api.post(f"/schedules/{name}/resume", token=by["operate"])
        api.post("/bulk", {"action": "pause", "which": {"ids": [name]}}, token=by["operate"])
        run = api.post(f"/schedules/{name}/run", token=by["operate"]).json()["run_id"]
        api.post(f"/runs/{run}/cancel", token=by["ann"])
        api.delete(f"/schedules/{name}", token=by["define"])
        told = api.get(f"/audit?schedule_id={name}").json()["events"][::-1]
        assert [(each["name"], each["by"].removeprefix("token:")) for each in told][:6] == [
            ("schedule.created", "define-all"), ("schedule.changed", "admin-ann"),
            ("schedule.paused", "operate-all"), ("schedule.resumed", "operate-all"),
            ("schedule.paused", "operate-all"), ("run.enqueued", "operate-all"),
        ]  # fmt: skip
        assert (told[-1]["name"], told[-1]["by"]) == ("schedule.deleted", "token:define-all")
        assert told[2]["fields"]["note"] == "n"
        assert all(each["at"].endswith("Z") for each in told)

    def test_audit_has_changes_of_gate_groups_and_tokens(self, api, name):
        api.put("/groups/crawl", {"places": int(name[2:6], 16) % 1000 + 1})
        api.put("/gate", {"gate": "closed"})
        api.put("/gate", {"gate": "open"})
        api.post("/tokens", {"name": name, "scope": "read"})
        api.delete(f"/tokens/{name}")
        told = api.get("/audit?limit=5").json()["events"]
        assert all(each["by"].startswith("token:test-admin") for each in told)
        names = [each["name"] for each in told]
        assert names[2:] == ["gate.changed", "gate.changed", "group.changed"]
        assert all("token" in each for each in names[:2])
        assert "onbeat_" not in str(told), "no secret is told"

    def test_audit_pages_contain_every_event_once(self, api, name):
        for n in range(7):
            api.put(f"/schedules/{name}-{n}", HOURLY)
        api.post(
            "/bulk", {"action": "delete", "which": {"q": name}}
        )  # one row may have several events
        api.post("/apply", {"source": name, "schedules": {f"{name}/{n}": HOURLY for n in range(7)}})
        seen, cursor = [], ""
        for _ in range(200):
            page = api.get(f"/audit?limit=3{cursor}").json()
            seen += [each["event_id"] for each in page["events"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        whole = [each["event_id"] for each in api.get("/audit?limit=1000").json()["events"]]
        assert seen == whole
        assert len(seen) == len(set(seen))


class TestTokens:
    def test_token_is_created_used_and_revoked(self, api, name):
        made = api.post(
            "/tokens", {"name": f"{name}@x", "scope": "read", "owner": "ann", "expires_in": "1h"}
        )
        assert made.status_code == 201
        secret, told = made.json()["secret"], made.json()["token"]
        assert (told["scope"], told["owner"], told["kind"]) == ("read", "ann", "token")
        assert told["created_by"].startswith("token:test-admin")
        assert told["expires_at"] is not None
        assert api.get("/schedules", token=secret).status_code == 200
        listed = api.get("/tokens")
        assert secret not in listed.text
        assert f"{name}@x" in [each["name"] for each in listed.json()["tokens"]]
        assert api.delete(f"/tokens/{name}%40x").status_code == 204
        assert api.get("/schedules", token=secret).status_code == 401, "immediately"
        problem(api.delete(f"/tokens/{name}%40x"), 404)

    def test_token_name_cannot_be_reused(self, api, name):
        api.post("/tokens", {"name": name, "scope": "read"})
        assert problem(api.post("/tokens", {"name": name, "scope": "read"}), 422)["field"] == "name"
        assert problem(api.post("/tokens", {"name": "x", "scope": "read", "expires_in": "0s"}), 422)
        problem(api.post("/tokens", {"name": "x", "scope": "root"}), 400)


class TestHealth:
    def test_health_checks_need_no_token(self, api):
        for path in ("/healthz", "/readyz", "/api/v1/healthz", "/api/v1/readyz"):
            assert httpx.get(f"{api.url}{path}").json()["ok"] is True

    def test_readiness_fails_while_due_ticks_are_undecided(self, tmp_path):
        with serving(tmp_path, node=False) as api:
            assert api.get("//readyz").status_code == 200
            at = (datetime.now(UTC) - timedelta(seconds=40)).strftime("%Y-%m-%dT%H:%M:%SZ")
            api.put("/schedules/late", {"at": at, "grace": "5m", "run": {"command": ["true"]}})
            told = api.get("//readyz")
            assert told.status_code == 503
            assert re.fullmatch(
                "due ticks have not been decided for 4[0-9] s", told.json()["problem"]
            )
            assert api.get("//healthz").status_code == 200
            api.put("/gate", {"gate": "closed"})
            assert api.get("//readyz").status_code == 200, "nothing is to be decided"

    def test_readiness_fails_fast_without_the_database(self, tmp_path):
        with (
            Server(new_folder()) as server,
            serving(tmp_path, database=server.new_database()) as api,
        ):
            assert api.get("//readyz").status_code == 200
            server.pause()
            try:
                with ThreadPoolExecutor(6) as pool:
                    others = [pool.submit(api.get, "/schedules") for _ in range(6)]
                    begin = time.monotonic()
                    told = api.get("//readyz")
                    assert (told.status_code, told.json()["ok"]) == (503, False)
                    assert time.monotonic() - begin < 8
                    assert api.get("//healthz").status_code == 200, "it is alive"
                    server.resume()
                    assert {each.result().status_code for each in others} <= {200, 503}
            finally:
                server.resume()
            eventually(lambda: api.get("//readyz").status_code == 200, 20)

    @pytest.mark.usefixtures("looks_often")
    def test_streams_survive_a_restart_of_the_database_and_requests_get_retry_after(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(live, "LOOK_EVERY", 0.02)
        with (
            Server(new_folder()) as server,
            serving(tmp_path, database=server.new_database()) as api,
        ):
            slow = ["sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.1; done; echo two"]
            fields = {"manual": True, "run": {"command": slow, "cwd": str(tmp_path)}}
            api.put("/schedules/slow", fields)
            run = api.post("/schedules/slow/run").json()["run_id"]
            eventually(lambda: api.get(f"/runs/{run}/log").text == "one\n", 10)
            with (
                stream(api, "/events?name=schedule.created") as heard,
                stream(api, f"/runs/{run}/log?follow=true") as printed,
            ):
                server.stop("fast")
                refused = eventually(lambda: _unavailable(api), 10)
                for _ in range(8):  # longer than the polling interval of a stream
                    time.sleep(0.05)
                    assert _unavailable(api)
                server.start()
                eventually(lambda: api.get("/schedules").status_code == 200, 20)
                (tmp_path / "go").touch()
                api.put("/schedules/other", fields)
                assert "event: schedule.created" in heard
                assert list(printed)[-1] == "two"
        assert refused.headers["retry-after"] == "2"
        assert problem(refused, 503)["hint"] == "try again later"


def _unavailable(api):
    found = api.get("/schedules")
    return found if found.status_code == 503 else None


@pytest.fixture
def looks_often(monkeypatch):
    monkeypatch.setattr(live, "AUTHORIZE_EVERY", 0.2)


class TestMetrics:
    def test_metrics_are_in_prometheus_format(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        run = api.post(f"/schedules/{name}/run").json()["run_id"]
        eventually(lambda: api.get(f"/runs/{run}").json()["status"] == "SUCCESS")
        found = api.get("//metrics")
        assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
        for figure in (
            "schedules_due", "runs_emitted_total", "runs_skipped_overlap_total",
            "runs_failed_launch_total", "drift_seconds_bucket", "watermark_age_seconds",
        ):  # fmt: skip
            assert re.search(rf"^(onbeat_)?{figure}[ {{]", found.text, re.MULTILINE), figure
        started = dict(re.findall(r'runs_started_total{triggered_by="(\w+)"} (\d+)', found.text))
        assert int(started["manual"]) >= 1, "what people started is told apart"
        assert "timer" in started
        assert api.get("/metrics").text.count("\n") == found.text.count("\n")
        assert httpx.get(f"{api.url}/metrics").status_code == 401

"""Runs over HTTP: started, listed, canceled, and reported by their targets."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from uuid import uuid4

import pytest

from onbeat.errors import RunIsOver
from onbeat.web.problems import as_problem
from tests.web.test_schedules import problem
from tests.web.waiting import eventually

HOURLY = {"every": "1h", "run": {"command": ["true"]}}


@pytest.fixture
def name():
    """Return a unique name."""
    return f"r-{uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def accepting():
    """A target that accepts every run; `asked` has the requests that it received."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(dict(self.headers))
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", asked
    server.shutdown()
    thread.join()
    server.server_close()


def accepted(api, name, accepting, **more):
    """Return a new run that its target has accepted."""
    url, asked = accepting
    asked.clear()
    api.put(f"/schedules/{name}", {"every": "1h", "run": {"http": url}, **more})
    run = api.post(f"/schedules/{name}/run").json()["run_id"]
    eventually(lambda: asked)
    # Once the acceptance is committed, the run has no lease any more.
    eventually(lambda: api.get(f"/runs/{run}").json()["node_id"] is None)
    found = api.get(f"/runs/{run}").json()
    assert found["status"] == "STARTED"
    return found


class TestStarting:
    def test_manual_run_is_started_and_recorded_as_manual(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        started = api.post(f"/schedules/{name}/run")
        assert started.status_code == 201
        run = started.json()
        assert (run["triggered_by"], run["schedule_id"]) == ("manual", name)
        eventually(lambda: api.get(f"/runs/{run['run_id']}").json()["status"] == "SUCCESS")
        (told,) = (
            each
            for each in api.get(f"/audit?schedule_id={name}").json()["events"]
            if each["name"] == "run.enqueued"
        )
        assert told["by"].startswith("token:test-admin")
        assert told["fields"]["triggered_by"] == "manual"

    def test_repeated_idempotency_key_returns_the_same_run(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        key = {"Idempotency-Key": "order/17"}
        first = api.post(f"/schedules/{name}/run", {"inputs": {"a": 1}}, headers=key).json()
        again = api.post(f"/schedules/{name}/run", {"inputs": {"a": 1}}, headers=key).json()
        assert first["run_id"] == again["run_id"]
        assert first["request_id"] == "order/17"
        assert len(api.get(f"/schedules/{name}/runs").json()["runs"]) == 1
        problem(api.post(f"/schedules/{name}/run", {"inputs": {"a": 2}}, headers=key), 422)

    def test_manual_run_starts_also_while_the_schedule_is_paused(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        api.post(f"/schedules/{name}/pause")
        run = api.post(f"/schedules/{name}/run", {}).json()["run_id"]
        eventually(lambda: api.get(f"/runs/{run}").json()["status"] == "SUCCESS")


class TestReading:
    def test_runs_are_listed_with_their_results(self, api, name):
        api.put(
            f"/schedules/{name}",
            {
                "every": "1h",
                "run": {"command": ["sh", "-c", "exit $(($ONBEAT_RUN_ID % 2))"]},
                "overlap": "allow",
            },
        )
        started = [api.post(f"/schedules/{name}/run").json()["run_id"] for _ in range(12)]
        eventually(
            lambda: (
                not [
                    each
                    for each in api.get(f"/schedules/{name}/runs?limit=12").json()["runs"]
                    if each["finished_at"] is None
                ]
            )
        )
        page = api.get(f"/schedules/{name}/runs?limit=10").json()
        assert [each["run_id"] for each in page["runs"]] == started[:1:-1], "the latest first"
        for run in page["runs"]:
            failed = run["run_id"] % 2
            assert (run["status"], run["exit_code"]) == (
                ("FAILED", 1) if failed else ("SUCCESS", 0)
            )
            assert run["reason"] == ("exit" if failed else None)
        rest = api.get(f"/schedules/{name}/runs?limit=10&cursor={page['next_cursor']}").json()
        assert [each["run_id"] for each in rest["runs"]] == started[1::-1]
        assert rest["next_cursor"] is None

    def test_runs_are_filtered(self, api, name):
        api.put(f"/schedules/{name}", {"every": "1h", "run": {"command": ["false"]}})
        run = api.post(f"/schedules/{name}/run").json()["run_id"]
        eventually(lambda: api.get(f"/runs/{run}").json()["finished_at"])
        asked = {"backfill": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}}
        api.post(f"/schedules/{name}/backfill", asked["backfill"])

        def found(query):
            return [
                each["run_id"]
                for each in api.get(f"/runs?schedule_id={name}&{query}").json()["runs"]
            ]

        assert len(found("limit=10")) == 2
        assert found("triggered_by=manual") == [run]
        assert run in found("status=FAILED")
        assert found("triggered_by=manual&reason=exit") == [run]
        assert found("since=2026-06-01T00:00:00Z") == [run]
        assert len(found("until=2026-06-01T00:00:00Z")) == 1
        assert found("since=2026-01-01T00:00:00Z&until=2026-01-01T00:00:00Z") == []
        problem(api.get("/runs?status=GONE"), 400)
        assert problem(api.get("/runs?since=x"), 422)["field"] == "since"
        problem(api.get("/runs?schedule_id=nobody-ever"), 404)

    def test_pages_contain_every_run_once_while_more_are_added(self, api, name):
        api.put(f"/schedules/{name}", {**HOURLY, "overlap": "allow"})
        there = [api.post(f"/schedules/{name}/run").json()["run_id"] for _ in range(10)]
        seen, cursor = [], ""
        while True:
            page = api.get(f"/schedules/{name}/runs?limit=3{cursor}").json()
            seen += [each["run_id"] for each in page["runs"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
            api.post(f"/schedules/{name}/run")
        assert seen == there[::-1]

    def test_runs_of_a_deleted_schedule_are_listed(self, api, name):
        api.put(f"/schedules/{name}", HOURLY)
        run = api.post(f"/schedules/{name}/run").json()["run_id"]
        eventually(lambda: api.get(f"/runs/{run}").json()["finished_at"])
        api.delete(f"/schedules/{name}")
        assert [each["run_id"] for each in api.get(f"/schedules/{name}/runs").json()["runs"]] == [
            run
        ]

    def test_unknown_run_is_not_found(self, api):
        assert "999999" in problem(api.get("/runs/999999"), 404)["problem"]
        problem(api.get("/runs/x"), 404)
        problem(api.get("/runs/0"), 400)


class TestCancelAndReport:
    def test_started_run_is_canceled_once(self, api, name):
        api.put(f"/schedules/{name}", {"every": "1h", "run": {"command": ["sleep", "60"]}})
        run = api.post(f"/schedules/{name}/run").json()["run_id"]
        eventually(lambda: api.get(f"/runs/{run}").json()["status"] == "STARTED")
        assert api.post(f"/runs/{run}/cancel", {"note": "too long"}).status_code == 200
        eventually(lambda: api.get(f"/runs/{run}").json()["status"] == "CANCELED")
        told = api.get(f"/audit?schedule_id={name}").json()["events"]
        assert "too long" in [each["fields"].get("note") for each in told]
        problem(api.post(f"/runs/{run}/cancel"), 409)
        problem(api.post("/runs/999999/cancel"), 404)

    @pytest.mark.parametrize("by", ["run_id", "idempotency_key"])
    def test_target_reports_the_outcome_of_an_accepted_run(self, api, name, accepting, by):
        run = accepted(api, name, accepting)
        told = {"status": "SUCCESS", "result": {"rows": 3}}
        for _ in range(2):  # a repeated report changes nothing
            found = api.post(f"/runs/{run[by]}/status", told)
            assert found.status_code == 200
            assert (found.json()["status"], found.json()["result"]) == ("SUCCESS", {"rows": 3})
        problem(api.post(f"/runs/{run[by]}/status", {"status": "FAILED", "error": "no"}), 409)
        assert api.get(f"/runs/{run['run_id']}").json()["status"] == "SUCCESS"

    def test_key_of_a_run_of_another_owner_is_not_found(self, api, name, accepting):
        key = accepted(api, name, accepting)["idempotency_key"]
        ann = api.token("operate", "ann")
        unknown = "0" * len(key)
        answers = [
            api.post(f"/runs/{each}/status", {"status": "SUCCESS"}, token=ann)
            for each in (key, unknown)
        ]
        told = [problem(each, 404)["problem"] for each in answers]
        assert told == [f"no run has the key '{each[:56]}..." for each in (key, unknown)]

    def test_reported_failure_is_retried_unless_final(self, api, name, accepting):
        run = accepted(api, name, accepting, retry=["1h", "1h"])["run_id"]
        found = api.post(f"/runs/{run}/status", {"status": "FAILED", "error": "no room"}).json()
        assert (found["status"], found["attempt"], found["error"]) == ("ENQUEUED", 1, "no room")
        other = accepted(api, f"{name}-2", accepting, retry=["1h"])["run_id"]
        found = api.post(
            f"/runs/{other}/status", {"status": "FAILED", "error": "no", "final": True}
        ).json()
        assert (found["status"], found["reason"]) == ("FAILED", "error")

    def test_callback_token_may_only_report_its_run(self, api, name, accepting):
        run = accepted(api, name, accepting)
        token = accepting[1][0]["Onbeat-Callback-Token"]
        assert api.get(f"/runs/{run['run_id']}", token=token).status_code == 403
        assert (
            api.post(
                f"/runs/{run['run_id']}/status", {"status": "SUCCESS"}, token=token
            ).status_code
            == 403
        )
        done = api.post(
            f"/runs/{run['idempotency_key']}/status", {"status": "SUCCESS"}, token=token
        )
        assert done.json()["status"] == "SUCCESS"

    def test_inconsistent_report_is_refused(self, api, name, accepting):
        run = accepted(api, name, accepting)["run_id"]
        assert (
            problem(api.post(f"/runs/{run}/status", {"status": "SUCCESS", "error": "x"}), 422)[
                "field"
            ]
            == "error"
        )
        assert (
            problem(api.post(f"/runs/{run}/status", {"status": "FAILED", "result": 1}), 422)[
                "field"
            ]
            == "result"
        )
        problem(api.post(f"/runs/{run}/status", {"status": "RUNNING"}), 400)
        problem(api.post(f"/runs/{'0' * 64}/status", {"status": "SUCCESS"}), 404)
        assert api.get(f"/runs/{run}").json()["status"] == "STARTED"


def test_report_after_the_deadline_is_409_with_what_to_raise():
    found = as_problem(RunIsOver(7, "FAILED", is_late=True))
    assert (found.status, found.problem) == (
        409, "run 7 is FAILED since its deadline, and the report was added to its error: nothing was changed",
    )  # fmt: skip
    assert (
        found.hint
        == "for runs that take longer, raise the timeout of the schedule or workflows_timeout"
    )
    assert as_problem(RunIsOver(7, "SUCCESS")).hint == ""

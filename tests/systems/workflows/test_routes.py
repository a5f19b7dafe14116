"""Workflows over HTTP: the same as the functions, access control, and reports of executors."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from onbeat.errors import InvalidSchedule, NoSuchSchedule, NoSuchWorkflow, WorkflowIsUsed
from tests.systems.workflows.conftest import DAG, REPORT
from tests.web.serving import serving

YEARLY = REPORT | {"cron_expr": "0 9 1 1 *"}
TRIGGER = {"id": "yearly", "type": "schedule_based", "schedule": {"cron_expr": "0 9 1 1 *"}}


class Executor(ThreadingHTTPServer):
    """A server with given answers that records requests."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.body, self.asked = 200, {}, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def awaited(self, n):
        """Return the requests, as soon as there are this many."""
        until = time.monotonic() + 10
        while len(self.asked) < n:
            assert time.monotonic() < until, self.asked
            time.sleep(0.01)
        return self.asked[n - 1]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps(self.server.body).encode()
        self.server.asked.append((self.path, body, dict(self.headers)))
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def executor():
    with Executor() as found:
        yield found
        found.shutdown()


@pytest.fixture(scope="module")
def api(tmp_path_factory, executor):
    folder = tmp_path_factory.mktemp("workflows")
    with serving(folder, workflows_executor=executor.url, workflows_feedback=True) as found:
        yield found


class ByFunction:
    """The registrar in a program; a refusal is returned as its class and field."""

    def __init__(self, api):
        self._api, self._workflows = api, api.beat.systems["workflows"]

    def _do(self, call):
        try:
            return self._api.do(call)
        except InvalidSchedule as refused:
            return "refused", refused.field.partition(".")[0]
        except (NoSuchSchedule, NoSuchWorkflow):
            return ("not there",)
        except WorkflowIsUsed as used:
            return "used", used.problem, used.hint

    def upsert(self, given):
        return self._do(self._workflows.registrar.upsert_schedule(given))

    def pause(self, schedule_id, paused):
        return self._do(self._workflows.registrar.pause_schedule(schedule_id, paused))

    def delete(self, schedule_id):
        return self._do(self._workflows.registrar.delete_schedule(schedule_id))

    def get(self, schedule_id):
        return self._do(self._workflows.registrar.get_schedule(schedule_id))

    def list(self, **which):
        return self._do(self._workflows.registrar.list_schedules(**which))

    def runs(self, schedule_id):
        return self._do(self._workflows.registrar.runs(schedule_id))

    def deploy(self, dag, **about):
        return self._do(self._workflows.deploy(dag, **about))

    def start(self, *given, inputs=None):
        return self._do(self._workflows.run_launcher.start(*given, inputs=inputs))

    def dags(self, **which):
        return self._do(self._workflows.catalog.list_workflows(**which))

    def workflow(self, workflow_id):
        return self._do(self._workflows.catalog.get_workflow(workflow_id))

    def dag(self, workflow_id, version):
        return self._do(self._workflows.catalog.get_version(workflow_id, version))

    def delete_dag(self, workflow_id, version=None, **how):
        return self._do(self._workflows.catalog.delete_workflow(workflow_id, version, **how))


class OverHttp:
    """The same over HTTP."""

    def __init__(self, api):
        self._api = api

    def _ask(self, method, path, body=None, **options):
        answer = self._api.ask(method, f"//{path}", body, **options)
        if answer.status_code == 400:
            return "refused", answer.json()["field"].partition(".")[0]
        if answer.status_code == 404:
            return ("not there",)
        if answer.status_code == 409:
            return "used", answer.json()["problem"], answer.json()["hint"]
        assert answer.status_code in (200, 204), answer.text
        return answer.json() if answer.content else None

    def upsert(self, given):
        return self._ask("POST", "schedules/upsert", given)

    def pause(self, schedule_id, paused):
        return self._void(
            self._ask("POST", "schedules/pause", {"schedule_id": schedule_id, "paused": paused})
        )

    def delete(self, schedule_id):
        return self._ask("DELETE", f"schedules/{_quoted(schedule_id)}")

    def get(self, schedule_id):
        return self._ask("GET", f"schedules/{_quoted(schedule_id)}")

    def list(self, **which):
        return self._ask("GET", "schedules", params=which)

    def runs(self, schedule_id):
        return self._ask("GET", f"schedules/{_quoted(schedule_id)}/runs")

    def deploy(self, dag, **about):
        return self._ask("POST", "schedules/deploy", {"dag": dag, **about})

    def start(self, *given, inputs=None):
        names = ("workflow_id", "version", "user_id", "scheduled_for", "idempotency_key")
        asked = dict(zip(names, given, strict=True)) | {"inputs": inputs}
        answered = self._ask("POST", "run-launcher/start", asked)
        return answered["started"] if isinstance(answered, dict) else answered

    def dags(self, **which):
        return self._ask("GET", "workflows", params=which)

    def workflow(self, workflow_id):
        return self._ask("GET", f"workflows/{_quoted(workflow_id)}")

    def dag(self, workflow_id, version):
        return self._ask("GET", f"workflows/{_quoted(workflow_id)}/versions/{version}")

    def delete_dag(self, workflow_id, version=None, **how):
        path = f"workflows/{_quoted(workflow_id)}"
        path += "" if version is None else f"/versions/{version}"
        return self._ask("DELETE", path, params=how)

    def _void(self, answered):
        return answered if isinstance(answered, tuple) else None


class ByIdOverHttp(OverHttp):
    """The same, by the route for one schedule."""

    def pause(self, schedule_id, paused):
        path = f"schedules/{_quoted(schedule_id)}/pause"
        return self._void(self._ask("POST", path, {"paused": paused}))


def _quoted(schedule_id):
    return schedule_id.replace("/", "%2F").replace(" ", "%20")


def without_times_of(found):
    """Return an answer without its times and its place in a list."""
    if isinstance(found, dict):
        return {k: without_times_of(v) for k, v in found.items() if k not in {"updated_at", "next"}}
    return [without_times_of(each) for each in found] if isinstance(found, list) else found


def answers_of(way, name):
    """Return the answers of all calls, in one way of calling."""
    mine = YEARLY | {"schedule_id": name}
    without_times = {"updated_at": "", "next_run_at": ""}
    yield way.get(name)
    yield way.upsert(mine)
    yield {k: v for k, v in way.get(name)["schedule"].items() if k not in without_times}
    yield len(way.get(name)["preview"]), len(way.get(name)["next_fire_times"])
    yield way.upsert(mine | {"overlap_policy": None, "start_at": None})
    yield way.pause(name, True)
    yield way.get(name)["schedule"]["paused"], way.get(name)["preview"]
    yield way.upsert(mine | {"version": 4})
    yield way.get(name)["schedule"]["paused"]
    yield way.pause(name, False)
    yield way.pause("nothing", True)
    yield [
        each["version"]
        for each in way.list(user_id=mine["user_id"], workflow_id=mine["workflow_id"])
    ]
    yield way.list(user_id="nobody")
    yield way.runs(name)
    yield way.runs("nothing")
    for wrong in WRONG:
        yield way.upsert(mine | wrong)
    yield way.upsert({"workflow_id": "report"})
    yield way.delete(name)
    yield way.delete(name)
    yield way.delete("no id")
    about = {"workflow_id": mine["workflow_id"], "version": 1, "user_id": "ada"}
    yield way.deploy(DAG | {"triggers": [TRIGGER]}, **about)
    yield way.deploy(DAG | {"triggers": [{"type": "schedule_based"}]}, **about)
    yield way.start(about["workflow_id"], 1, "ada", "2026-01-01T09:00:00Z", "k")
    yield way.start(about["workflow_id"], 2, "ada", "2026-01-01T09:00:00Z", "k")
    yield way.start(about["workflow_id"], 1, "ada", "now", "k")
    yield way.start(about["workflow_id"], 1, "ada", "2026-01-01T09:00:00Z", "i", inputs={"n": 1})
    yield way.deploy(DAG | {"triggers": [TRIGGER]}, **about | {"version": 2})
    yield without_times_of(way.dags(workflow_id=about["workflow_id"]))
    yield without_times_of(way.dags(workflow_id=about["workflow_id"], limit=1))
    yield without_times_of(way.workflow(about["workflow_id"]))
    yield without_times_of(way.dag(about["workflow_id"], 1))
    yield way.dag(about["workflow_id"], 9)
    yield way.workflow("no such/thing")
    yield way.delete_dag(about["workflow_id"], 2)
    yield without_times_of(way.delete_dag(about["workflow_id"], 1))
    yield way.delete_dag(about["workflow_id"], 1)
    yield without_times_of(way.delete_dag(about["workflow_id"], cascade=True))
    yield way.dags(workflow_id=about["workflow_id"])


IN_WORDS = [
    ("upsert", YEARLY | {"version": "1"}, "version: '1' is not a whole number (a whole number is"),
    ("upsert", YEARLY | {"version": 1.5}, "version: 1.5 is not a whole number"),
    ("upsert", YEARLY | {"user_id": 7}, "user_id: 7 is not a string"),
    ("upsert", YEARLY | {"end_at": 7}, "end_at: 7 is not a string"),
    ("upsert", YEARLY | {"jitter_ms": "5"}, "jitter_ms: '5' is not a valid number (milliseconds,"),
    (
        "upsert",
        YEARLY | {"overlap_policy": "skipp"},
        "overlap_policy: no policy is called 'skipp' (did you mean 'skip'?)",
    ),
    ("upsert", YEARLY | {"catchup_policy": 5}, "catchup_policy: no policy is called 5 (known: "),
    ("upsert", YEARLY | {"cron": "* * * * *"}, "cron: no field has this name (did you mean 'cron"),
    ("upsert", YEARLY | {"paused": True}, "paused: no field has this name (pause_schedule, or PO"),
    ("upsert", {"workflow_id": "a"}, "version: it is missing (a whole number is needed)"),
    ("upsert", [], "body: [] is not a mapping"),
    ("deploy", {"dag": DAG, "version": "1"}, "version: '1' is not a whole number"),
    ("deploy", {"dag": DAG, "workflow": "r"}, "workflow: no field has this name (did you mean "),
    ("deploy", {"dag": []}, "dag: [] is not a DAG"),
    ("deploy", DAG, "nodes: no field has this name (known: dag, user_id, version, workflow_id)"),
    ("deploy", {}, "dag: it is missing"),
    ("status", {"status": "SUCESS"}, "status: no status is called 'SUCESS' (did you mean 'SUCCE"),
    ("status", {"error": "x"}, "status: it is missing (STARTED or SUCCESS or FAILED)"),
    ("status", {"status": "FAILED", "reason": "x"}, "reason: no field has this name"),
    ("status", {"status": "FAILED", "final": 1}, "final: Expected `bool`, got `int`"),
]


@pytest.mark.parametrize(("call", "given", "problem"), IN_WORDS, ids=str)
def test_refusals_have_readable_errors(api, call, given, problem):
    path = "//runs/1/status" if call == "status" else f"//schedules/{call}"
    answer = api.post(path, given)
    found = answer.json()
    hint = f" ({found['hint']})" if "hint" in found else ""
    told = f"{found.get('field', 'body')}: {found['problem']}{hint}"
    assert (answer.status_code, told[: len(problem)]) == (400, problem)


@pytest.mark.parametrize(
    "sent", [b'{"version": "1", ', b'{"version": "1", "a": "\xff"}', b"[" * 9999]
)
def test_only_bodies_that_are_not_json_are_refused(api, sent):
    headers = {"Content-Type": "application/json"}
    answer = api.post("//schedules/upsert", content=sent, headers=headers)
    assert answer.status_code == 400


WRONG = [
    {"cron_expr": "61 * * * *"},
    {"cron_expr": "0 0 31 2 *"},
    {"cron_expr": 5},
    {"timezone": "Mars/Base"},
    {"timezone": ""},
    {"version": "1"},
    {"version": -1},
    {"version": True},
    {"version": 1.0},
    {"version": 2**60},
    {"user_id": None},
    {"user_id": ""},
    {"user_id": "a" * 201},
    {"workflow_id": "a\nb"},
    {"jitter_ms": -1},
    {"jitter_ms": "5"},
    {"overlap_policy": "replace"},
    {"catchup_policy": "once"},
    {"start_at": "soon"},
    {"end_at": 5},
    {"schedule_id": "no id"},
    {"schedule_id": "../x"},
    {"cron": "* * * * *"},
]


@pytest.mark.req("W8", "W35", "W36", "W37", "W38", "W39", "W40")
def test_functions_and_routes_answer_the_same(api, executor):
    executor.status = 200
    by_function, over_http, by_id = (
        list(answers_of(way(api), "yearly/one")) for way in (ByFunction, OverHttp, ByIdOverHttp)
    )
    assert over_http == by_function
    assert by_id == by_function
    assert ("refused", "cron_expr") in by_function
    assert sum("refused" in each for each in by_function if isinstance(each, tuple)) > 20
    used = "'report' is used by 'report/yearly'"
    assert ("used", used, "delete them first, or delete with cascade") in by_function
    assert by_function[-2]["schedules"] == ["report/yearly"]
    assert by_function[-1] == {"workflows": [], "next": None}


def test_inputs_of_a_manual_start_are_sent_with_the_dag(api, executor):
    executor.status, executor.asked = 202, []
    way = OverHttp(api)
    way.deploy(DAG, workflow_id="with-inputs", version=1, user_id="ada")
    asked = ("with-inputs", 1, "ada", "2026-01-01T10:00:00Z", "key-9")
    assert way.start(*asked, inputs={"limit": 3}) is True
    _, body, _ = executor.awaited(1)
    assert (body["dag"], body["meta"]["inputs"]) == (DAG, {"limit": 3})


@pytest.mark.req("W39")
def test_workflow_is_started_manually(api, executor):
    executor.status, executor.asked = 202, []
    way = OverHttp(api)
    way.deploy(DAG, workflow_id="by-hand", version=1, user_id="ada")
    assert way.start("by-hand", 1, "ada", "2026-01-01T10:00:00+01:00", "key-1") is True
    path, body, headers = executor.awaited(1)
    assert (path, body["dag"]) == ("/execute", DAG)
    assert body["meta"]["scheduled_for"] == "2026-01-01T09:00:00Z"
    assert headers["Idempotency-Key"] == "key-1"
    assert not [name for name in headers if name.startswith("Onbeat-Callback")]


def test_run_key_in_a_path_is_unquoted_once(api):
    answer = api.ask("POST", "//runs/a%2531/status", {"status": "SUCCESS"})
    assert answer.status_code == 404
    assert "a%31" in answer.text


@pytest.mark.req("W69")
def test_routes_require_a_token(api):
    for method, path in (
        ("GET", "/schedules"), ("POST", "/schedules/upsert"), ("POST", "/run-launcher/start"),
        ("POST", f"/runs/{'a' * 64}/status"),
    ):  # fmt: skip
        assert api.client.request(method, path).status_code == 401


class TestCallback:
    """Reports of an executor about a run, with its callback token."""

    @pytest.fixture
    def begun(self, api, executor):
        """Start a run on the executor, and return the request."""
        executor.status, executor.body, executor.asked = 202, {"run_id": "r-1"}, []
        way = OverHttp(api)
        way.deploy(DAG | {"triggers": [TRIGGER]}, workflow_id="told", version=1, user_id="ada")
        api.do(api.beat.start("told/yearly"))
        _, body, headers = executor.awaited(1)
        self.until(api, lambda run: run["run_id"] == "r-1")
        yield body["meta"]["idempotency_key"], headers
        executor.body = {}
        way.delete("told/yearly")

    def until(self, api, holds):
        until = time.monotonic() + 10
        while not holds(run := OverHttp(api).runs("told/yearly")[0]):
            assert time.monotonic() < until, run
            time.sleep(0.01)
        return run

    def tell(self, api, url, headers, **told):
        token = headers["Onbeat-Callback-Token"]
        return api.client.post(url, json=told, headers={"Authorization": f"Bearer {token}"})

    @pytest.mark.req("W58", "W69")
    @pytest.mark.parametrize("short", [True, False])
    def test_executor_reports_the_outcome_by_the_key_of_the_run(self, api, begun, short):
        key, headers = begun
        url = f"/runs/{key}/status" if short else headers["Onbeat-Callback"]
        assert f"{api.url}/api/v1/runs/{key}/status" == headers["Onbeat-Callback"]
        answer = self.tell(api, url, headers, status="STARTED", run_id="r-2")
        assert (answer.status_code, answer.json()["status"]) == (200, "STARTED")
        assert OverHttp(api).runs("told/yearly")[0]["run_id"] == "r-2"
        done = self.tell(api, url, headers, status="SUCCESS", result={"rows": 3})
        assert (done.status_code, done.json()["result"]) == (200, {"rows": 3})
        assert self.tell(api, url, headers, status="SUCCESS").status_code == 200
        late = self.tell(api, url, headers, status="STARTED")
        assert (late.status_code, late.json()["problem"].split(":")[0]) == (409, late_of(done))

    @pytest.mark.req("W58")
    def test_reported_failure_is_final(self, api, begun, executor):
        key, headers = begun
        failed = self.tell(api, f"/runs/{key}/status", headers, status="FAILED", error="no mail")
        assert (failed.json()["status"], failed.json()["error"]) == ("FAILED", "no mail")
        assert len(executor.asked) == 1

    @pytest.mark.req("W69")
    def test_callback_token_is_valid_for_one_run_only(self, api, begun):
        _, headers = begun
        other = f"/runs/{'a' * 64}/status"
        assert self.tell(api, other, headers, status="SUCCESS").status_code == 403
        assert self.tell(api, "/schedules/upsert", headers, status="SUCCESS").status_code == 403
        forged = {"Onbeat-Callback-Token": headers["Onbeat-Callback-Token"][:-1] + "x"}
        key, _ = begun
        assert self.tell(api, f"/runs/{key}/status", forged, status="SUCCESS").status_code == 401

    @pytest.mark.parametrize(
        ("told", "field"),
        [
            ({"status": "DONE"}, "status"),
            ({"status": "STARTED", "result": 1}, "result"),
            ({"status": "STARTED", "error": "x"}, "error"),
            ({"status": "SUCCESS", "run_id": 5}, "run_id"),
            ({}, "status"),
        ],
    )
    def test_invalid_report_is_refused_with_its_field(self, api, begun, told, field):
        key, headers = begun
        refused = self.tell(api, f"/runs/{key}/status", headers, **told)
        assert (refused.status_code, refused.json()["field"]) == (400, field)


def late_of(done):
    return f"run {done.json()['run_id']} is SUCCESS"


@pytest.mark.req("W56")
def test_failing_executor_is_retried_three_times(api, executor):
    executor.status, executor.asked = 503, []
    way = OverHttp(api)
    way.deploy(DAG | {"triggers": [TRIGGER]}, workflow_id="busy", version=1, user_id="ada")
    api.do(api.beat.start("busy/yearly"))
    executor.awaited(2)
    executor.status = 202
    executor.awaited(3)
    assert len({body["meta"]["idempotency_key"] for _, body, _ in executor.asked}) == 1

"""Agents of a Flock server: requests, and outcomes of answers."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from onbeat import InvalidSchedule, Onbeat
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.core.schedule import read_schedule
from onbeat.core.target import read_target
from onbeat.errors import NotAllowed
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.ports.http import HttpResponse
from onbeat.ports.store import Attempt
from onbeat.service.access import Caller, as_allowed
from onbeat.systems.agents.flock import LONGEST_RESULT, FlockLauncher
from onbeat.testing import ManualClock, a_schedule

NOON = 1_767_268_800  # 2026-01-01T12:00:00Z
CHECKS = HttpLauncher(version="1", environment={}).check
DAILY = {"url": "http://127.0.0.1:8344", "agent": "daily"}
TICK = "flock.models.system_artifacts.TimerTick"


class FlockServer(ThreadingHTTPServer):
    """Answers as Flock does: it has one agent, which fails at given iterations."""

    def __init__(self, fails_at=()):
        super().__init__(("127.0.0.1", 0), _Flock)
        self.fails_at, self.asked, self.keys = set(fails_at), [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Flock(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.split("/")[1:4] != ["api", "v1", "agents"]:
            return self._answer(404, {"detail": "Not Found"})
        if self.path != "/api/v1/agents/daily/run":
            return self._answer(404, {"detail": "agent not found"})
        (given,) = body["inputs"]
        self.server.asked.append(given)
        self.server.keys.append(self.headers["Idempotency-Key"])
        if given["payload"]["iteration"] in self.server.fails_at:
            self.server.fails_at.clear()
            return self._answer(500, {"detail": "Agent execution failed: no luck"})
        artifact = {"id": "8c1f", "type": "Report", "payload": {"count": 3}, "produced_by": "daily"}
        return self._answer(200, {"artifacts": [artifact]})

    def _answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def an_attempt(**given):
    fields = {
        "run_id": 1, "schedule_id": "nightly", "run_at": NOON, "due_at": NOON * 1000, "attempt": 1,
        "fence": 1, "target": read_target({"flock": DAILY}), "iteration": 8,
    }  # fmt: skip
    return Attempt(**fields | given)


def launched(answer, **given):
    sent = []

    async def ask(method, url, **asked):
        sent.append((method, url, asked))
        return answer

    launcher = FlockLauncher(check_url=CHECKS, ask=ask)
    outcome, log = asyncio.run(launcher.launch(an_attempt(**given)))
    return outcome, log, sent


def test_agent_receives_a_tick_like_that_of_its_timer():
    outcome, log, sent = launched(HttpResponse(200, "OK", {"artifacts": []}), timeout=5000)
    ((method, url, asked),) = sent
    assert (method, url) == ("POST", "http://127.0.0.1:8344/api/v1/agents/daily/run")
    payload = {
        "timer_name": "daily",
        "iteration": 7,
        "fire_time": "2026-01-01T12:00:00+00:00",
        "schedule_spec": {"schedule": "nightly", "by": "timer"},
    }
    assert asked["body"] == {"inputs": [{"type": TICK, "payload": payload}]}
    assert asked["headers"] == {"Idempotency-Key": an_attempt().key}
    assert (asked["timeout"], asked["public_only"]) == (5000, False)
    assert outcome == Succeeded({"artifacts": []})
    assert log == "POST http://127.0.0.1:8344/api/v1/agents/daily/run\nHTTP 200 OK\n"


@pytest.mark.parametrize(
    ("answer", "error", "retryable"),
    [
        (HttpResponse(404, "Not Found", {"detail": "agent not found"}), "the server has no agent called 'daily' (agent not found)", False),
        (HttpResponse(404, "Not Found", {"detail": "Not Found"}), "HTTP 404: no Flock server at this address", False),
        (HttpResponse(500, "Internal Server Error", {"detail": "Agent execution failed: no"}), "HTTP 500: Internal Server Error: Agent execution failed: no", True),
        (HttpResponse(503, "Service Unavailable"), "HTTP 503: Service Unavailable", True),
        (HttpResponse(429, "Too Many Requests"), "HTTP 429: Too Many Requests", True),
        (HttpResponse(422, "Unprocessable Entity", {"detail": [{"loc": ["x"]}]}), "HTTP 422: Unprocessable Entity: [{'loc': ['x']}]", False),
        (HttpResponse(200, "OK", "<html>"), "the answer has no artifacts; check that this is a Flock server", False),
        (HttpResponse(200, "OK", {"artifacts": "x"}), "the answer has no artifacts; check that this is a Flock server", False),
    ],
)  # fmt: skip
def test_answers_of_the_server_give_their_outcomes(answer, error, retryable):
    outcome, _, _ = launched(answer)
    assert (outcome.error, outcome.retryable) == (error, retryable)


def test_missing_answer_is_reported_as_it_is():
    none = Failed("no answer after 300s", "timeout")
    outcome, log, _ = launched(none)
    assert outcome == none
    assert log.endswith("/run\nno answer after 300s\n")


def test_first_of_many_artifacts_are_kept_and_the_rest_counted():
    body = {"artifacts": [{"text": "x" * 1000}] * 100}
    outcome, _, _ = launched(HttpResponse(200, "OK", body))
    kept = outcome.result["artifacts"]
    assert 0 < len(json.dumps(kept)) <= LONGEST_RESULT + 200
    assert len(kept) + outcome.result["left_off"] == 100


def test_agent_name_is_quoted_as_one_path_segment():
    _, _, sent = launched(
        HttpResponse(404, "Not Found"),
        target=read_target({"flock": {"url": "http://127.0.0.1:1/flock/", "agent": "a/../b?c"}}),
    )
    assert sent[0][1] == "http://127.0.0.1:1/flock/api/v1/agents/a%2F..%2Fb%3Fc/run"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"flock": "daily"}, "flock: 'daily' is not a mapping"),
        ({"flock": {"agent": "daily"}}, "flock.url: it is missing (such as http://127.0.0.1:8344)"),
        ({"flock": {"url": "http://127.0.0.1"}}, "flock.agent: it is missing (such as daily)"),
        ({"flock": DAILY | {"agent": 5}}, "flock.agent: 5 is not a string"),
        ({"flock": DAILY | {"agent": ".."}}, "flock.agent: '..' is not a name"),
        ({"flock": DAILY | {"url": "file:///etc"}}, "flock.url: "),
        (
            {"flock": DAILY | {"url": "http://h:1/?a=1"}},
            "flock.url: 'http://h:1/?a=1' has more than a path",
        ),
        (
            {"flock": DAILY | {"url": "http://h:1/#x"}},
            "flock.url: 'http://h:1/#x' has more than a path",
        ),
        ({"flock": DAILY | {"name": "x"}}, "flock.name: no field has this name"),
        ({"flock": DAILY, "inputs": {}}, "inputs: no field has this name"),
        ({"flock": DAILY, "public_only": "x"}, "public_only: it is not a boolean"),
    ],
)
def test_invalid_flock_target_is_refused(given, said):
    with pytest.raises(InvalidSchedule) as refused:
        FlockLauncher(check_url=CHECKS).check(read_target(given))
    assert str(refused.value).startswith(said)


def test_replace_overlap_is_refused_since_runs_cannot_be_canceled():
    async def story():
        async with Onbeat("sqlite://", clock=ManualClock()) as beat:
            with pytest.raises(InvalidSchedule, match="overlap: the target cannot be canceled"):
                await beat.define(a_schedule("x", overlap="replace", run={"flock": DAILY}))

    asyncio.run(story())


def test_non_admin_may_define_only_public_addresses():
    schedule = read_schedule("x", {"every": "1h", "run": {"flock": DAILY}})
    found = as_allowed(Caller("token:ci", "define"), schedule)
    assert found.target.fields == {"flock": DAILY, "public_only": True}
    secret = read_schedule(
        "x", {"every": "1h", "run": {"flock": DAILY | {"url": "http://${env:HOST}"}}}
    )
    with pytest.raises(NotAllowed, match="a reference to a secret"):
        as_allowed(Caller("token:ci", "define"), secret)


def test_iterations_sent_to_a_server_continue_across_restarts(tmp_path):
    clock, run = ManualClock("2026-01-01T12:00:00Z"), {"retry": ["5s"]}

    async def life(flock, *lengths):
        target = {"flock": {"url": flock.url, "agent": "daily"}}
        async with Onbeat(f"sqlite:///{tmp_path}/onbeat.db", clock=clock) as beat:
            await beat.define(a_schedule("nightly", every="1h", run=target, **run))
            unknown = {"flock": {"url": flock.url, "agent": "nobody"}}
            await beat.define(a_schedule("unknown", manual=True, run=unknown, **run))
            for length in lengths:
                clock.advance(length)
                await beat.settle()
            await beat.start("unknown")
            await beat.settle()
            return await beat.runs("nightly"), await beat.runs("unknown")

    with FlockServer(fails_at=[1]) as flock:
        asyncio.run(life(flock, "1h", "1h"))
        done, (unknown, *_) = asyncio.run(life(flock, "5s", "1h"))
        flock.shutdown()
    told = [(each["payload"]["iteration"], each["payload"]["fire_time"][11:16]) for each in flock.asked]  # fmt: skip
    assert told == [(0, "13:00"), (1, "14:00"), (1, "14:00"), (2, "15:00")]
    assert flock.keys[1] == flock.keys[2]  # it is the same run
    assert {each["type"] for each in flock.asked} == {TICK}
    assert [run.status for run in done] == ["SUCCESS"] * 3
    assert done[0].result["artifacts"][0]["payload"] == {"count": 3}
    assert (unknown.status, unknown.attempt) == ("FAILED", 1)
    assert unknown.error == "the server has no agent called 'nobody' (agent not found)"

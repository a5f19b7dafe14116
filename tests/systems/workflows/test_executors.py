"""Executors: their input, and the outcomes of their answers."""

import asyncio

import pytest

from onbeat.core.runs.run import Accepted, Failed, Succeeded
from onbeat.errors import InvalidSettings
from onbeat.launchers.python.threads import CallThreads
from onbeat.ports.http import HttpResponse
from onbeat.systems.workflows.executors import CallableExecutor, HttpExecutor, Meta
from tests.systems.workflows.conftest import DAG

META = Meta("ada", "2026-01-01T13:00:00Z", "key-1", "2026-01-01T13:00:01.000Z")
AS_JSON = {
    "source": "schedule",
    "user_id": "ada",
    "scheduled_for": "2026-01-01T13:00:00Z",
    "idempotency_key": "key-1",
    "triggered_at": "2026-01-01T13:00:01.000Z",
}


class Server:
    """Answers requests and records them."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    async def __call__(self, method, url, *, body=None, headers=(), timeout=0, trusted=False):  # noqa: ASYNC109 - as `Ask` has it
        self.asked.append((method, url, body, dict(headers)))
        self.trusted = trusted
        return self.answer


def send(answer, **given):
    server = Server(answer)
    executor = HttpExecutor("http://executor:8002/", server, **given)
    return asyncio.run(executor.run(DAG, META)), server.asked[0]


@pytest.mark.req("W86", "W89")
def test_executor_gets_the_dag_and_meta_and_nothing_else():
    _, (method, url, body, headers) = send(HttpResponse(200, "OK"))
    assert (method, url) == ("POST", "http://executor:8002/execute")
    assert body == {"dag": DAG, "meta": AS_JSON}
    assert headers == {"Idempotency-Key": "key-1"}


def test_executor_may_be_on_a_private_network():
    server = Server(HttpResponse(200, "OK"))
    asyncio.run(HttpExecutor("http://executor:8002/", server).run(DAG, META))
    assert server.trusted


def test_executor_gets_the_token_and_the_callback():
    async def callback(key):
        return {"Onbeat-Callback": f"http://here/{key}"}

    _, (*_, headers) = send(HttpResponse(200, "OK"), token="${env:EXECUTOR}", callback=callback)
    assert headers["Authorization"] == "Bearer ${env:EXECUTOR}"  # resolved by the HTTP client
    assert headers["Onbeat-Callback"] == "http://here/key-1"


def test_token_that_is_not_a_reference_is_refused():
    with pytest.raises(InvalidSettings) as refused:
        HttpExecutor("http://executor", Server(None), token="hunter2")
    assert str(refused.value).startswith("workflows_token: it is not a reference to a secret")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (HttpResponse(200, "OK", {"rows": 3}), Succeeded({"rows": 3})),
        (HttpResponse(202, "Accepted", {"run_id": "r-1"}), Accepted("r-1")),
        (HttpResponse(202, "Accepted", {"id": 7}), Accepted("7")),
        (HttpResponse(202, "Accepted", "text"), Accepted("")),
        (
            HttpResponse(500, "", {"detail": "no  disk"}),
            Failed("HTTP 500: no disk", "launch_failed"),
        ),
        (HttpResponse(503, "Busy"), Failed("HTTP 503: Busy", "launch_failed")),
        (HttpResponse(429, "Slow"), Failed("HTTP 429: Slow", "launch_failed")),
        (HttpResponse(408, "Late"), Failed("HTTP 408: Late", "launch_failed")),
        (HttpResponse(400, "Bad"), Failed("HTTP 400: Bad", "launch_failed", retryable=False)),
        (HttpResponse(302, "Found"), Failed("HTTP 302: Found", "launch_failed", retryable=False)),
        (Failed("no answer after 60s", "timeout"), Failed("no answer after 60s", "launch_failed")),
        (
            Failed("this node has no secret x", "invalid_target", retryable=False),
            Failed("this node has no secret x", "invalid_target", retryable=False),
        ),
    ],
    ids=str,
)
def test_answers_of_an_executor_give_their_outcomes(answer, outcome):
    assert send(answer)[0] == outcome


@pytest.mark.req("W58")
@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_with_feedback_every_2xx_means_accepted(status):
    found, _ = send(HttpResponse(status, "", {"run_id": "r-1"}), feedback=True)
    assert found == Accepted("r-1")


def call(function):
    return asyncio.run(CallableExecutor(function).run(DAG, META))


def call_in_threads(function):
    async def whole():
        executor = CallableExecutor(function, in_thread=CallThreads(1).call)
        return await executor.run(DAG, META)

    return asyncio.run(whole())


@pytest.mark.req("W86", "W89")
def test_function_gets_the_same_arguments_async_or_plain():
    given = []

    async def later(dag, meta):
        given.append((dag, meta))
        return {"rows": 3}

    def at_once(dag, meta):
        given.append((dag, meta))
        return {"rows": 3}

    assert [call(later), call(at_once)] == [Succeeded({"rows": 3})] * 2
    assert given == [(DAG, AS_JSON)] * 2


def test_return_value_of_a_function_is_the_outcome():
    assert call(lambda *_: None) == Succeeded(None)
    assert call(lambda *_: Accepted("r-1")) == Accepted("r-1")
    refused = Failed("the executor refused the DAG", "launch_failed", retryable=False)
    assert call(lambda *_: False) == refused
    assert "not JSON" in call(lambda *_: object()).error


@pytest.mark.parametrize("error", [ConnectionError, SystemExit, KeyboardInterrupt])
def test_exception_of_a_function_is_a_failed_hand_over(error):
    def broken(*_):
        raise error("nobody there")

    assert call_in_threads(broken) == Failed(f"{error.__name__}: nobody there", "launch_failed")


def test_function_that_cancels_itself_affects_no_other_run():
    async def broken(*_):
        raise asyncio.CancelledError("why not")

    assert call(broken) == Failed("CancelledError: why not", "launch_failed")

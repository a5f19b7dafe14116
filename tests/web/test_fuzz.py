"""Malformed requests break nothing: they are refused with a reason, and valid ones are served."""

import asyncio
import json
import os
import threading
from collections import Counter

import pytest

from tests.web.fuzz import HOURLY, KINDS, Fuzzer, send_all
from tests.web.serving import serving
from tests.web.waiting import eventually

MALFORMED = int(os.environ.get("MALFORMED", "10000"))
NO_HTTP = b"Invalid HTTP request received."  # of the server itself


def wrong_with(odd, answer):
    """Return what is wrong with a response, or None."""
    if answer.status is None:
        return None if odd.waits or odd.kind in {"line", "method"} else "no answer"
    if answer.status >= 500:
        return "it broke"
    if answer.status < 400 or (answer.status == 400 and answer.body == NO_HTTP):
        return None
    if odd.sent.startswith(b"HEAD "):
        return None
    if answer.headers.get("content-type", "").startswith("text/html"):
        return None if b"/login" in odd.sent or b"text/html" in odd.sent else "a page"
    if answer.headers.get("content-type") != "application/problem+json":
        return "no problem+json"
    told = json.loads(answer.body)
    return None if told["problem"] and told["status"] == answer.status else "it says nothing"


def test_generated_requests_are_reproducible_and_of_every_kind():
    one, other = (Fuzzer("127.0.0.1:1", "t") for _ in range(2))
    first = [one.make(n) for n in range(1000)]
    assert first == [other.make(n) for n in range(1000)]
    assert {each.kind for each in first} == KINDS.keys()


@pytest.mark.timeout(300)
def test_malformed_requests_break_nothing_on_sqlite(tmp_path, caplog):
    with serving(tmp_path, roles=("plan", "api")) as api:
        attack(api, MALFORMED, caplog)


@pytest.mark.timeout(300)
def test_malformed_requests_break_nothing_on_postgresql(tmp_path, postgres_url, caplog):
    with serving(tmp_path, roles=("plan", "api"), database=postgres_url) as api:
        attack(api, MALFORMED // 5, caplog, seed=2)


def attack(api, count, caplog, seed=1):
    """Send requests, and check that each is answered correctly and that the API continues to work."""
    assert api.put("/schedules/fuzzed", HOURLY).status_code == 201
    assert api.post("/schedules/fuzzed/run").status_code == 201
    host, port = api.url.removeprefix("http://").split(":")
    fuzzer, threads = Fuzzer(f"{host}:{port}", api.admin, seed), threading.active_count()
    sent = asyncio.run(send_all(host, int(port), (fuzzer.make(n) for n in range(count))))
    assert len(sent) == count
    wrong = [
        (each.n, each.kind, told, answer.status, answer.body[:200])
        for each, answer in sent
        if (told := wrong_with(each, answer))
    ]
    assert not wrong, wrong[:10]
    refused = Counter(answer.status for _, answer in sent)
    assert refused.keys() > {400, 401, 403, 404, 405, 409, 415, 421, 422, 431}, refused
    assert threading.active_count() <= threads + 10, "a pool may have been filled, no more"
    detached(api)
    broken = [
        each.getMessage() for each in caplog.records if each.exc_info or each.levelname == "ERROR"
    ]
    assert not broken


def detached(api):
    """Check that valid requests succeed."""
    assert api.put("/gate", {"gate": "open"}).json() == {"gate": "open"}
    made = api.put("/schedules/after-all", HOURLY)
    assert made.status_code == 201
    assert api.get("/schedules/after-all").json() == made.json()
    assert api.post("/schedules/after-all/run").json()["status"] == "ENQUEUED"
    assert api.get("//readyz").json()["ok"] is True
    assert api.delete("/schedules/after-all").status_code == 204
    server = api.front._server._server.server_state
    eventually(lambda: not server.tasks and len(server.connections) <= 1)  # our own

"""A run that its target accepts, from the request to the report with its callback token."""

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import httpx
import pytest

from tests.web.serving import serving


class Accepts(BaseHTTPRequestHandler):
    """A target that accepts every request, and records it."""

    got: ClassVar[list] = []

    def do_POST(self):
        self.got.append(dict(self.headers))
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def accepting():
    Accepts.got = []
    with HTTPServer(("127.0.0.1", 0), Accepts) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def until(question):
    began = time.monotonic()
    while not question():
        assert time.monotonic() - began < 20, "it did not happen"
        time.sleep(0.02)


def test_target_reports_only_the_outcome_of_its_own_run(tmp_path, accepting):
    with serving(tmp_path) as api:
        for name in ("one", "two"):
            api.put(f"/schedules/{name}", {"every": "1h", "run": {"http": accepting}})
            api.post(f"/schedules/{name}/run")
        until(lambda: len(Accepts.got) == 2)
        until(lambda: len(api.get("/runs?status=STARTED").json()["runs"]) == 2)
        one, two = (each["Onbeat-Callback-Token"] for each in Accepts.got)
        key, other = (each["Idempotency-Key"] for each in Accepts.got)
        told = {"status": "SUCCESS", "result": {"rows": 3}}
        for token, path in [(two, f"/runs/{key}/status"), (one, f"/runs/{other}/status")]:
            assert api.post(path, told, token=token).status_code == 403
        assert api.get("/runs", token=one).status_code == 403
        found = api.post(f"/runs/{key}/status", told, token=one)
        assert found.status_code == 200, found.text
        ends = {run["idempotency_key"]: run["status"] for run in api.get("/runs").json()["runs"]}
        assert ends == {key: "SUCCESS", other: "STARTED"}
        events = api.get("/audit").json()["events"]
        assert f"run:{key}" in {event["by"] for event in events}
        shown = [api.get(path).text for path in ("/runs", "/audit", "/schedules/one")]
        assert not [text for text in shown if one in text or two in text]
        assert httpx.get(f"{api.url}/healthz").status_code == 200

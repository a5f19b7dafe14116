"""CORS: pages of the configured origins use the API with a token; those of others cannot."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

import httpx
import pytest

from tests.web.serving import serving
from tests.web.test_http_messages import answers, talk

APP = "https://chat.example.com"
PREFLIGHT = {
    "Access-Control-Request-Method": "PUT",
    "Access-Control-Request-Headers": "authorization,content-type",
}
STANDUP = {"prompt": "Hi", "schedule": {"type": "cron", "expression": "0 9 * * 1-5"}}


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("cors"), cors_origins=(APP,)) as api:
        yield api


def allowed(answer):
    return answer.headers.get("access-control-allow-origin")


def raw(api, method, path, **headers):
    """Send a request without a token, unless one is among the headers."""
    return httpx.request(method, f"{api.url}{path}", headers=headers)


@pytest.mark.parametrize("path", ["/api/schedule/x", "/api/v1/schedules/x", "/api/v1/events"])
def test_preflight_is_answered_before_authentication(api, path):
    answer = raw(api, "OPTIONS", path, Origin=APP, **PREFLIGHT)
    assert (answer.status_code, allowed(answer)) == (204, APP)
    assert "PUT" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["vary"] == "Origin"


def test_every_route_of_the_api_is_for_named_origins(api):
    document = httpx.get(
        f"{api.url}/api/v1/openapi.json", headers={"Authorization": f"Bearer {api.admin}"}
    ).json()
    routes = {re.sub(r"{[^}]*}", "1", path) for path in document["paths"]}
    assert {"/workflows", "/workflows/1/versions/1", "/runs/1/status", "/timer"} <= routes
    closed = {
        path
        for path in routes
        if allowed(raw(api, "OPTIONS", path, Origin=APP, **PREFLIGHT)) != APP
    }
    assert closed == set()


def test_preflight_with_a_body_is_answered_once_and_the_connection_closed(api):
    port = api.front.settings.listen_at[1]
    for body in (b"", b"abcdeGET /healthz HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % port):
        head = f"OPTIONS /api/v1/runs HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: {APP}\r\n"
        head += "Access-Control-Request-Method: GET\r\nContent-Length: 5\r\n\r\n"
        received, seconds = talk(port, head.encode() + body)
        assert answers(received) == [b"204"]
        assert b"connection: close" in received.lower()
        assert seconds < 3.0


def test_every_route_for_programs_can_be_used_by_pages(api):
    paths = api.get("/openapi.json").json()["paths"]
    left = {
        path
        for path in paths
        if allowed(raw(api, "OPTIONS", path, Origin=APP, **PREFLIGHT)) is None
    }
    assert left <= {"/healthz", "/readyz"}


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://chat.example.com", "https://chat.example.com:444", "null",
     "https://chat.example.com.evil.example", "https://xchat.example.com", f"{APP}/", APP.upper()],
)  # fmt: skip
def test_unknown_origin_gets_no_permission(api, origin):
    for method, headers in (("OPTIONS", PREFLIGHT), ("GET", {}), ("PUT", {})):
        token = {"Authorization": f"Bearer {api.admin}"} if method != "OPTIONS" else {}
        answer = raw(api, method, "/api/schedule/x", Origin=origin, **headers, **token)
        assert allowed(answer) is None
        assert answer.status_code != 204
    assert answer.status_code == 403, "and no page of it changes anything"


def test_two_origins_in_one_request_get_no_permission(api):
    headers = [("Origin", APP), ("Origin", APP), *PREFLIGHT.items()]
    assert allowed(httpx.options(f"{api.url}/api/schedule/x", headers=headers)) is None


def test_request_of_a_named_origin_needs_a_token_and_may_read_why(api):
    answer = raw(api, "GET", "/api/schedule", Origin=APP, **{"Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, allowed(answer)) == (401, APP)
    assert answer.json()["status"] == 401


def test_request_of_a_named_origin_has_the_rights_of_its_token(api):
    own = {"headers": {"Origin": APP, "Referer": f"{APP}/", "Sec-Fetch-Site": "cross-site"}}
    made = api.put("//api/schedule/from-a-page", STANDUP, **own)
    assert (made.status_code, allowed(made)) == (200, APP)
    reader = api.token("read")
    refused = api.put("//api/schedule/from-a-page", STANDUP, token=reader, **own)
    assert (refused.status_code, allowed(refused)) == (403, APP)
    found = api.get("/schedules/from-a-page", **own)
    assert "etag" in found.headers["access-control-expose-headers"].lower()
    assert found.headers["etag"]


def test_page_of_a_named_origin_never_uses_the_session_of_the_dashboard(api):
    code = api.do(api.beat.service.tokens.link("admin"))
    with httpx.Client(base_url=api.url) as browser:
        assert browser.get("/login", params={"code": code}).status_code == 200
        assert browser.get("/api/schedule").status_code == 200, "the session itself is good"
        answer = browser.get("/api/schedule", headers={"Origin": APP})
        assert (answer.status_code, allowed(answer)) == (401, APP)


@pytest.mark.parametrize("path", ["/", "/login", "/logout"])
def test_pages_of_the_dashboard_are_not_for_other_origins(api, path):
    for method, headers in (("OPTIONS", PREFLIGHT), ("GET", {})):
        assert allowed(raw(api, method, path, Origin=APP, **headers)) is None


def test_without_the_setting_no_origin_is_named(tmp_path):
    with serving(tmp_path) as api:
        answer = raw(api, "OPTIONS", "/api/schedule", Origin=APP, **PREFLIGHT)
        assert (answer.status_code, allowed(answer)) == (401, None)
        assert "vary" not in answer.headers


def test_page_on_the_internet_may_request_a_local_address(api):
    asked = {"Access-Control-Request-Private-Network": "true"}
    answer = raw(api, "OPTIONS", "/api/schedule", Origin=APP, **PREFLIGHT, **asked)
    assert answer.headers["access-control-allow-private-network"] == "true"


# In a real browser

PAGE = """<!doctype html><title>front end</title><script type=module>
const AT = %(url)s, TOKEN = %(token)s
const found = []
async function step(name, work) {
  try { found.push([name, await work()]) } catch (broken) { found.push([name, broken.name]) }
}
const ask = (path, given = {}) => fetch(AT + path, {
  ...given, headers: {Authorization: `Bearer ${TOKEN}`, ...given.headers},
  body: given.body && JSON.stringify(given.body),
})
const json = {"Content-Type": "application/json"}
const slug = "/api/schedule/browser"
const standup = {prompt: "Hi", schedule: {type: "cron", expression: "0 9 * * 1-5"}}
await step("list", async () => (await ask("/api/schedule")).status)
await step("put", async () => (await (await ask(slug, {method: "PUT", headers: json, body: standup})).json()).created)
await step("patch", async () => (await (await ask(slug, {method: "PATCH", headers: json, body: {enabled: false}})).json()).enabled)
await step("run", async () => (await (await ask(slug + "/run", {method: "POST"})).json()).status)
await step("etag", async () => (await ask("/api/v1/schedules/browser")).headers.get("ETag") !== null)
await step("events", async () => {
  const reader = (await ask("/api/v1/events?after=0")).body.getReader()
  const {value} = await reader.read()
  await reader.cancel()
  return value.length > 0
})
await step("delete", async () => (await (await ask(slug, {method: "DELETE"})).json()).success)
await step("no token", async () => (await (await fetch(AT + "/api/schedule")).json()).status)
await step("with cookies", async () => (await fetch(AT + "/api/schedule", {credentials: "include"})).status)
await step("page", async () => (await fetch(AT + "/")).status)
await fetch("/found", {method: "POST", body: JSON.stringify(found)})
</script>"""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
LONGEST = 60  # seconds for a browser to start and to send all requests


@pytest.fixture
def chromium():
    found = shutil.which("chromium")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("there is no chromium (apt-get install chromium)")
        pytest.skip("there is no chromium (apt-get install chromium)")
    return found


class FrontEnd(BaseHTTPRequestHandler):
    """The server of a front end: one page, and the results of that page."""

    def do_GET(self):
        body = self.server.page.encode() if self.path == "/" else b""
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.server.found.put(json.loads(body))

    def log_message(self, *_):
        pass


@contextmanager
def front_end():
    server = ThreadingHTTPServer(("127.0.0.1", 0), FrontEnd)
    server.found, server.page = Queue(), ""
    server.origin = f"http://localhost:{server.server_port}"  # another site than 127.0.0.1
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def seen_by(chromium, server, folder, api):
    """Return the results of the page of a front end in a browser."""
    token = api.token("define")  # as in docs/sessions.md
    server.page = PAGE % {"url": json.dumps(api.url), "token": json.dumps(token)}
    with (folder / "chromium.log").open("wb") as log:
        browser = subprocess.Popen(
            [chromium, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"{server.origin}/"],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            return dict(server.found.get(timeout=LONGEST))
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()


@pytest.mark.parametrize("is_named", [True, False])
def test_front_end_in_a_browser_uses_the_api_with_a_token(chromium, tmp_path, is_named):
    with front_end() as server:
        origins = (server.origin,) if is_named else (APP,)
        with serving(tmp_path, cors_origins=origins) as api:
            found = seen_by(chromium, server, tmp_path, api)
    wanted = {
        "list": 200,
        "put": True,
        "patch": False,
        "run": "running",
        "etag": True,
        "events": True,
        "delete": True,
        "no token": 401,
        "with cookies": "TypeError",
        "page": "TypeError",
    }
    assert found == (wanted if is_named else dict.fromkeys(wanted, "TypeError"))

"""The launcher of HTTP requests: what is sent, what answers mean, redirects, secrets, addresses."""

import asyncio
import gzip
import inspect
import json
import socket
import threading
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec
import pytest
from aiohttp import web

from onbeat.core.runs.run import Accepted, Busy, Failed, Gone, Succeeded
from onbeat.core.target import Target
from onbeat.errors import InvalidSchedule
from onbeat.launchers.http import sender, target
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.launchers.http.target import is_public, parse_url, redirected
from onbeat.ports.store import Attempt
from tests.waiting import forever

NOON = 1_767_268_800  # 2026-01-01T12:00:00Z
SOON = 5  # seconds: far more than anything here takes
KIB = 1024
SECRET = 'hush/"tell ünobody"'
BUSY_DATE = {"Date": "Thu, 01 Jan 2026 12:00:00 GMT"}


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]  # by lower-case name
    body: bytes
    peer: tuple[str, int]


class Server:
    """A server in a thread: it answers with `answer` and keeps the requests in `seen`."""

    def __init__(self):
        self.seen = []
        self.answer = lambda request: web.Response()
        self.asked, self.left = threading.Event(), threading.Event()
        self.url = ""

    async def start(self, host, port):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self.url = f"http://{host}:{self.port}"

    async def stop(self):
        await self._runner.cleanup()

    async def _handle(self, request):
        given = request.headers
        headers = {name.lower(): ", ".join(given.getall(name)) for name in given}
        peer = request.transport.get_extra_info("peername")
        body = await request.read()
        self.seen.append(Request(request.method, request.path_qs, headers, body, peer))
        self.asked.set()
        try:
            answer = self.answer(request)
            return await answer if inspect.isawaitable(answer) else answer
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise


@pytest.fixture
def start_server():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers = []

    def do(work):
        asyncio.run_coroutine_threadsafe(work, loop).result(SOON)

    def start(host="127.0.0.1", port=0):
        servers.append(Server())
        do(servers[-1].start(host, port))
        return servers[-1]

    yield start
    for server in servers:
        do(server.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def server(start_server):
    return start_server()


def answers(status=200, text=None, headers=None, **given):
    """Return a handler that always gives this answer."""
    return lambda request: web.Response(status=status, text=text, headers=headers, **given)


def answers_json(value, status=200, **given):
    return lambda request: web.json_response(value, status=status, **given)


def answers_raw(raw):
    """Return a handler that writes these bytes and closes the connection."""

    async def answer(request):
        request.transport.write(raw)
        request.transport.close()
        return web.Response()

    return answer


def redirects(*to, status=307):
    """Return a handler that redirects the first requests in turn, and answers the next one."""
    left = list(to)

    def answer(request):
        if left:
            return web.Response(status=status, headers={"Location": left.pop(0)})
        return web.Response(text="there")

    return answer


def an_attempt(url, *, timeout=None, inputs=None, attempt=1, **fields):
    if inputs is not None:
        fields["inputs"] = inputs
    target = Target("http", {"http": url, **fields})
    return Attempt(
        run_id=7,
        schedule_id="nightly/backup",
        run_at=NOON,
        due_at=NOON * 1000,
        attempt=attempt,
        fence=1,
        target=target,
        triggered_by="catchup",
        iteration=3,
        timeout=timeout,
        inputs_text=target.inputs_text,
    )


def a_launcher(**given):
    return HttpLauncher(
        **{"version": "1.2", "environment": {}, "timeout": SOON * 1000, **given},
    )


def run_all(*attempts, **given):
    """Launch attempts with one launcher, one after the other."""

    async def main():
        launcher = a_launcher(**given)
        try:
            return [await launcher.launch(attempt) for attempt in attempts]
        finally:
            await launcher.close()

    return asyncio.run(main())


def run(attempt, **given):
    """Launch one attempt; return its outcome and its output."""
    return run_all(attempt, **given)[0]


def outcome_of(server, **fields):
    return run(an_attempt(server.url, **fields))[0]


async def until(event):
    assert await asyncio.to_thread(event.wait, SOON)


# -- requests


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_inputs_are_the_body_as_json(server, method):
    inputs = {"limit": 100, "names": ["ä", None]}
    run(an_attempt(f"{server.url}/a?b=c", method=method, inputs=inputs))
    (seen,) = server.seen
    assert (seen.method, seen.path, json.loads(seen.body)) == (method, "/a?b=c", inputs)
    assert seen.headers["content-type"] == "application/json"


def test_request_is_a_post_without_a_body_by_default(server):
    run(an_attempt(server.url))
    (seen,) = server.seen
    assert (seen.method, seen.path, seen.body) == ("POST", "/", b"")
    assert seen.headers["content-length"] == "0"
    assert "transfer-encoding" not in seen.headers


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_inputs_of_a_method_without_a_body_are_its_query(server, method):
    inputs = {"q": "a b&c=ä+%", "n": 1.5, "all": True, "none": ""}
    run(an_attempt(f"{server.url}/a?x=1", method=method, inputs=inputs))
    (seen,) = server.seen
    assert (seen.method, seen.body) == (method, b"")
    path, _, query = seen.path.partition("?")
    given = [("x", "1"), ("q", "a b&c=ä+%"), ("n", "1.5"), ("all", "true"), ("none", "")]
    assert (path, parse_qsl(query, keep_blank_values=True)) == ("/a", given)


def test_inputs_start_a_query_where_the_url_has_none(server):
    run(an_attempt(server.url, method="GET", inputs={"n": 1}))
    assert server.seen[0].path == "/?n=1"


def test_manual_inputs_that_cannot_be_part_of_a_url_are_refused(server):
    attempt = an_attempt(server.url, method="GET")
    outcome, _ = run(msgspec.structs.replace(attempt, inputs_text='{"a": [1]}'))
    assert outcome.error == "inputs.a: [1] cannot be part of a URL (a plain value, or method: POST)"
    assert (outcome.reason, outcome.retryable, server.seen) == ("invalid_target", False, [])


def test_request_identifies_its_run_in_headers(server):
    attempt = an_attempt(server.url, attempt=2)
    run(attempt)
    expected = {
        "idempotency-key": attempt.key,
        "onbeat-run-id": "7",
        "onbeat-schedule": "nightly/backup",
        "onbeat-run-at": "2026-01-01T12:00:00Z",
        "onbeat-attempt": "2",
        "onbeat-triggered-by": "catchup",
        "onbeat-iteration": "3",
        "user-agent": "onbeat/1.2",
    }
    assert server.seen[0].headers.items() >= expected.items()


def test_every_attempt_at_a_run_has_the_same_idempotency_key(server):
    run_all(*(an_attempt(server.url, attempt=number) for number in (1, 2)))
    first, second = (seen.headers["idempotency-key"] for seen in server.seen)
    assert first == second


def test_headers_of_the_target_are_sent(server):
    headers = {"x-team": "ops", "content-type": "application/vnd.x+json", "user-agent": "me"}
    run(an_attempt(server.url, headers=headers, inputs={"a": 1}))
    assert server.seen[0].headers.items() >= headers.items()


def test_cookies_are_not_kept(server):
    server.answer = answers(headers={"Set-Cookie": "a=b"})
    run_all(an_attempt(server.url), an_attempt(server.url))
    assert not any("cookie" in seen.headers for seen in server.seen)


def test_proxy_of_the_environment_is_not_used(server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert outcome_of(server) == Succeeded()


def test_connection_is_reused(server):
    run_all(an_attempt(server.url), an_attempt(server.url))
    assert len({seen.peer for seen in server.seen}) == 1


def test_no_more_connections_are_open_than_allowed(server):
    async def slowly(request):
        await asyncio.sleep(0.01)
        return web.Response()

    async def main():
        launcher = a_launcher(concurrency=2)
        attempts = [an_attempt(server.url) for _ in range(6)]
        found = await asyncio.gather(*map(launcher.launch, attempts))
        await launcher.close()
        return found

    server.answer = slowly
    assert [outcome for outcome, _ in asyncio.run(main())] == [Succeeded()] * 6
    assert len({seen.peer for seen in server.seen}) == 2


# -- answers


def test_json_is_the_result(server):
    server.answer = answers_json({"rows": [1, "ä", None]}, status=201)
    assert outcome_of(server) == Succeeded({"rows": [1, "ä", None]})


def test_content_types_ending_in_json_are_read_as_json(server):
    server.answer = answers(text='{"a": 1}', content_type="application/problem+json")
    assert outcome_of(server) == Succeeded({"a": 1})


def test_text_body_stays_a_text_even_if_it_looks_like_json(server):
    server.answer = answers(text='{"a": 1}')
    assert outcome_of(server) == Succeeded('{"a": 1}')


@pytest.mark.parametrize(
    "text", ["{", '{"a": 1e999}', "[" * 40 + "]" * 40, "[" * 9999, '"\\ud800"']
)
def test_json_that_cannot_be_stored_is_a_text(server, text):
    server.answer = answers(text=text, content_type="application/json")
    assert outcome_of(server) == Succeeded(text)


@pytest.mark.parametrize(("method", "status"), [("POST", 204), ("POST", 200), ("HEAD", 200)])
def test_response_without_a_body_has_no_result(server, method, status):
    server.answer = answers(status)
    assert outcome_of(server, method=method) == Succeeded(None)


def test_invalid_utf_8_in_a_body_is_replaced(server):
    server.answer = lambda request: web.Response(body=b"a\xffb")
    assert outcome_of(server) == Succeeded("a\N{REPLACEMENT CHARACTER}b")


def test_long_text_is_cut_with_a_note(server):
    text = 'some "text"\n' * 10_000
    server.answer = answers(text=text)
    result = outcome_of(server).result
    kept, end = result.rsplit("\n[", 1)
    assert end == "onbeat: cut, of 120000 characters]"
    assert text.startswith(kept)
    assert 32 * KIB < len(msgspec.json.encode(result)) <= 64 * KIB


def test_long_json_is_cut_as_a_text_with_a_note(server):
    server.answer = answers_json(["x" * 70_000])
    assert outcome_of(server).result.endswith("\n[onbeat: cut, of 70004 characters]")


def test_compressed_body_is_decompressed(server):
    packed, headers = gzip.compress(b'{"a": 1}'), {"Content-Encoding": "gzip"}
    server.answer = lambda request: web.Response(
        body=packed, headers=headers, content_type="application/json"
    )
    assert outcome_of(server) == Succeeded({"a": 1})
    assert server.seen[0].headers["accept-encoding"] == "gzip"


def test_compression_bomb_is_decompressed_only_to_the_limit(server, monkeypatch):
    packed, headers = gzip.compress(bytes(100 * KIB * KIB)), {"Content-Encoding": "gzip"}
    sizes, unpacker = [], sender.zlib.decompressobj

    class Unpacker:
        def __init__(self, **given):
            self.inner = unpacker(**given)

        def decompress(self, *given):
            sizes.append(len(found := self.inner.decompress(*given)))
            return found

    monkeypatch.setattr(sender.zlib, "decompressobj", Unpacker)
    server.answer = lambda request: web.Response(body=packed, headers=headers)
    assert outcome_of(server).result.endswith("of 1048576 or more characters]")
    assert sum(sizes) == KIB * KIB + 1


def test_body_with_a_wrong_content_encoding_counts_as_no_answer(server):
    server.answer = lambda request: web.Response(
        body=b"plain", headers={"Content-Encoding": "gzip"}
    )
    outcome = outcome_of(server)
    assert outcome.error.startswith("no answer: Error -3 while decompressing")
    assert (outcome.reason, outcome.retryable) == ("error", True)


def test_endless_body_is_read_only_to_the_limit(server):
    async def endlessly(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 10_000)

    server.answer = endlessly
    assert outcome_of(server).result.endswith("of 1048576 or more characters]")
    assert server.left.wait(SOON)


def test_output_has_the_request_and_its_answer(server):
    server.answer = answers(404, "no\ncoffee")
    _, tail = run(an_attempt(f"{server.url}/pot?a=b", inputs={"c": 1}, headers={"X-A": "header"}))
    assert tail == f"POST {server.url}/pot?a=b\nHTTP 404 Not Found\nno\ncoffee"


def test_output_is_cut_at_its_limit(server):
    server.answer = answers(text="ä" * 100_000)
    _, tail = run(an_attempt(server.url))
    assert tail.startswith("POST")
    assert 64 * KIB - 1 <= len(tail.encode()) <= 64 * KIB


def test_output_has_the_request_without_an_answer(server):
    server.answer = answers_raw(b"")
    assert run(an_attempt(server.url))[1] == f"POST {server.url}/\n"


# -- accepted


@pytest.mark.parametrize(
    ("value", "external_id"),
    [
        ({"external_id": "c", "id": "b", "run_id": "a"}, "a"),
        ({"external_id": "c", "id": 12}, "12"),
        ({"external_id": "c", "id": True, "run_id": {}}, "c"),
        ({"id": "", "external_id": 1.5}, "/there"),
        ({"id": "x" * 300}, "x" * 200),
        ({"id": "a\0b"}, "/there"),
        (["id"], "/there"),
    ],
)
def test_accepted_run_has_the_id_that_the_target_returned(server, value, external_id):
    server.answer = answers_json(value, 202, headers={"Location": "/there"})
    assert outcome_of(server) == Accepted(external_id)


def test_accepted_run_needs_no_id(server):
    server.answer = answers(202, "thanks")
    assert outcome_of(server) == Accepted("")


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_target_that_declares_feedback_is_waited_for_after_any_2xx(server, status):
    server.answer = answers(status, "")
    assert outcome_of(server, feedback=True) == Accepted("")


@pytest.mark.parametrize("status", [200, 201, 204])
def test_other_2xx_without_declared_feedback_is_a_success(server, status):
    server.answer = answers(status, "")
    assert outcome_of(server) == Succeeded(None)


@pytest.mark.parametrize("url", ["", "https://onbeat.example"])
def test_accepted_run_without_a_callback_address_has_that_in_its_output(server, caplog, url):
    async def callback(key):
        return {"Onbeat-Callback-Token": "t"} | ({"Onbeat-Callback": f"{url}/{key}"} if url else {})

    server.answer = answers(202, "thanks")
    outcomes = run_all(*[an_attempt(server.url)] * 2, callback=callback)
    assert [outcome for outcome, _ in outcomes] == [Accepted("")] * 2
    line = "[onbeat: no Onbeat-Callback was sent: the setting public_url is empty]"
    assert [line in output.splitlines() for _, output in outcomes] == [not url] * 2
    (*warned,) = [each.getMessage() for each in caplog.records if "public_url" in each.getMessage()]
    assert len(warned) == (0 if url else 1)  # the first time only


def test_accepted_run_without_feedback_is_a_success(server):
    server.answer = answers_json({"id": "a"}, 202)
    assert outcome_of(server, feedback=False) == Succeeded({"id": "a"})


# -- busy, gone, failed


def test_410_means_that_the_target_is_gone(server):
    server.answer = answers(410, "moved out")
    assert outcome_of(server) == Gone("HTTP 410: moved out")


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("retry_after", "retry_in"),
    [
        ("7", 7_000),
        ("0", 1_000),
        ("86400", 3_600_000),
        ("9" * 5000, 3_600_000),
        ("Thu, 01 Jan 2026 12:02:00 GMT", 120_000),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 1_000),
        ("Fri, 02 Jan 2026 12:00:00 GMT", 3_600_000),
    ],
)
def test_busy_target_is_retried_after_its_retry_after(server, status, retry_after, retry_in):
    server.answer = answers(status, "later", {"Retry-After": retry_after, **BUSY_DATE})
    assert outcome_of(server) == Busy(f"HTTP {status}: later", retry_in)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("retry_after", [None, "soon", "-1", "1.5", "٣", "Thu, 01 Foo 2026"])
def test_busy_target_without_a_retry_after_has_failed(server, status, retry_after):
    server.answer = answers(status, headers={"Retry-After": retry_after} if retry_after else None)
    assert outcome_of(server) == Failed(f"HTTP {status}", retryable=True)


def test_retry_after_date_without_a_date_header_is_ignored(server):
    date = b"Thu, 01 Jan 2026 12:02:00 GMT"
    server.answer = answers_raw(
        b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: " + date + b"\r\n\r\n"
    )
    assert outcome_of(server) == Failed("HTTP 503", retryable=True)


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(500, True), (502, True), (504, True), (599, True), (429, True), (408, True), (425, True)]
    + [(status, False) for status in (400, 401, 403, 404, 409, 422, 300, 304, 302, 600)],
)
def test_other_statuses_are_failures_retried_if_temporary(server, status, retryable):
    server.answer = answers(status)
    assert outcome_of(server) == Failed(f"HTTP {status}", retryable=retryable)


def test_error_has_the_start_of_the_body_in_one_line(server):
    server.answer = answers(500, "one\n\ttwo\r\n" + "x" * 1000)
    assert outcome_of(server).error == "HTTP 500: " + ("one two " + "x" * 1000)[:300]


# -- no answer


def a_free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_refused_connection_is_a_failed_launch():
    port = a_free_port()
    outcome, _ = run(an_attempt(f"http://127.0.0.1:{port}"))
    error = f"127.0.0.1:{port} cannot be reached: Connection refused"
    assert outcome == Failed(error, reason="launch_failed", retryable=True)


def nowhere(host, port):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


async def no_addresses(host, port):
    return []


@pytest.mark.parametrize(
    ("host", "resolve", "problem"),
    [
        ("a.test", nowhere, "Name or service not known"),
        ("a.test", no_addresses, "it has no address"),
        (f"{'a' * 64}.test", None, "encoding with 'idna' codec failed"),
    ],
)
@pytest.mark.parametrize("public_only", [False, True])
def test_name_without_an_address_is_a_failed_launch(host, resolve, problem, public_only):
    outcome, _ = run(an_attempt(f"http://{host}"), resolve=resolve, public_only=public_only)
    assert outcome.error.startswith(f"{host}:80 cannot be reached: {problem}")
    assert (outcome.reason, outcome.retryable) == ("launch_failed", True)


def test_https_to_a_server_without_tls_fails(server):
    outcome, _ = run(an_attempt(f"https://127.0.0.1:{server.port}"))
    assert outcome.error.startswith(f"127.0.0.1:{server.port} cannot be reached: [SSL")
    assert (outcome.reason, outcome.retryable) == ("launch_failed", True)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "the connection was closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "the connection was closed"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "ClientResponseError"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
            "the connection was closed",
        ),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 99_999 + b"\r\n\r\n", "ClientResponseError"),
    ],
)
def test_request_without_an_answer_may_be_retried(server, raw, problem):
    server.answer = answers_raw(raw)
    assert outcome_of(server) == Failed(f"no answer: {problem}", reason="error", retryable=True)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "POST"])
def test_attempt_sends_its_request_only_once(server, method):
    server.answer = answers_raw(b"")
    outcome_of(server, method=method)
    assert len(server.seen) == 1


async def never(request):
    await forever()


async def too_slowly(request):
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b".")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("answer", [never, too_slowly])
def test_slow_target_times_out(server, answer):
    server.answer = answer
    outcome = outcome_of(server, timeout=50)
    assert outcome == Failed("no answer after 0.05s", reason="timeout", retryable=True)
    assert server.left.wait(SOON)


def test_run_without_a_timeout_uses_that_of_the_launcher(server):
    server.answer = never
    outcome, _ = run(an_attempt(server.url), timeout=50)
    assert outcome == Failed("no answer after 0.05s", reason="timeout", retryable=True)


def test_redirects_count_towards_the_timeout(server):
    async def slowly(request):
        await asyncio.sleep(0.03)
        return web.Response(status=307, headers={"Location": "/"})

    server.answer = slowly
    assert outcome_of(server, timeout=80).reason == "timeout"


def test_name_resolution_counts_towards_the_timeout():
    async def resolve(host, port):
        await forever()

    outcome, _ = run(an_attempt("http://a.test", timeout=50), resolve=resolve)
    assert outcome.reason == "timeout"


# -- ending


def test_cancelling_aborts_the_request(server):
    async def main():
        launcher = a_launcher()
        task = asyncio.create_task(launcher.launch(an_attempt(server.url)))
        await until(server.asked)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(server.left)
        await launcher.close()

    server.answer = never
    asyncio.run(main())


def test_closing_during_a_request_fails_it_without_an_answer(server):
    async def main():
        launcher = a_launcher()
        task = asyncio.create_task(launcher.launch(an_attempt(server.url)))
        await until(server.asked)
        await launcher.close()
        return await task

    server.answer = never
    outcome, _ = asyncio.run(main())
    assert (outcome.reason, outcome.retryable) == ("error", True)


def test_closing_twice_or_unused_is_harmless_and_a_later_launch_reopens(server):
    async def main():
        launcher = a_launcher()
        await launcher.close()
        for _ in range(2):
            assert await launcher.launch(an_attempt(server.url)) != ()
            await launcher.close()
            await launcher.close()

    asyncio.run(main())
    assert len(server.seen) == 2


def test_requests_cannot_be_killed_or_recovered():
    launcher = a_launcher()
    launcher.kill([7])
    assert asyncio.run(launcher.recover()) == 0
    assert not launcher.can_cancel(Target("http", {"http": "http://a.test"}))
    assert list(launcher.offers()) == ["http"]


# -- redirects


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_get_and_head_follow_every_redirect(server, method, status):
    server.answer = redirects("/b?c=d#e", status=status)
    outcome, tail = run(an_attempt(f"{server.url}/a", method=method))
    assert outcome == Succeeded("there" if method == "GET" else None)
    assert [(seen.method, seen.path) for seen in server.seen] == [
        (method, "/a"),
        (method, "/b?c=d"),
    ]
    lines = tail.splitlines()
    assert lines[0] == f"{method} {server.url}/a"
    assert lines[1].startswith(f"HTTP {status}")
    assert lines[2:4] == [f"{method} {server.url}/b?c=d", "HTTP 200 OK"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("status", [307, 308])
def test_other_methods_follow_307_and_308(server, method, status):
    server.answer = redirects("b", status=status)
    attempt = an_attempt(f"{server.url}/a", method=method, inputs={"n": 1})
    assert run(attempt)[0] == Succeeded("there")
    first, second = server.seen
    assert (second.method, second.body) == (method, first.body)
    assert second.headers["idempotency-key"] == attempt.key


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("status", [301, 302, 303])
def test_other_methods_do_not_follow_301_302_and_303(server, method, status):
    server.answer = redirects("/b", status=status)
    assert outcome_of(server, method=method) == Failed(f"HTTP {status}", retryable=False)
    assert len(server.seen) == 1


def test_redirect_without_a_location_is_a_failure(server):
    server.answer = answers(307, "lost")
    assert outcome_of(server) == Failed("HTTP 307: lost", retryable=False)


def test_five_redirects_are_followed(server):
    server.answer = redirects(*"abcde")
    assert outcome_of(server) == Succeeded("there")


def test_redirect_loop_fails_after_five_redirects(server):
    server.answer = answers(308, headers={"Location": "/again"})
    assert outcome_of(server) == Failed("more than 5 redirects", retryable=False)
    assert len(server.seen) == 6


NO_TARGETS = [
    "ftp://a.test/", "http://u:p@a.test/", "http://a.test:0/", "http://1.2.3:x",
    "http://[::1", "http://" + "a" * 8000, "javascript:alert(1)", "file:///etc/passwd",
]  # fmt: skip


@pytest.mark.parametrize("location", NO_TARGETS)
def test_redirect_to_an_invalid_url_is_refused(server, location):
    server.answer = redirects(location)
    outcome = outcome_of(server)
    assert outcome.error == (
        "http: '127.0.0.1' redirects to an invalid URL (http(s)://host:port/path)"
    )
    assert (outcome.reason, outcome.retryable) == ("invalid_target", False)


def test_redirect_from_https_to_http_is_refused():
    place = parse_url("https://a.test/x")
    with pytest.raises(InvalidSchedule, match=r"'a\.test' redirects from https to http"):
        redirected(place, "http://a.test/y")
    assert redirected(place, "/y").url == "https://a.test/y"
    assert redirected(parse_url("http://a.test/"), "//b.test/").url == "http://b.test/"


def test_headers_of_the_target_are_sent_to_redirects_within_the_origin(server):
    server.answer = redirects("/b")
    outcome_of(server, headers={"Authorization": "Bearer x"})
    assert [seen.headers["authorization"] for seen in server.seen] == ["Bearer x"] * 2


def test_headers_of_the_target_are_not_sent_to_another_origin(server, start_server):
    other = start_server()
    other.answer = redirects(f"{server.url}/back")
    server.answer = redirects(f"{other.url}/b")
    headers = {"Authorization": "Bearer x", "X-Team": "ops", "Content-Type": "application/x+json"}
    attempt = an_attempt(server.url, headers=headers, inputs={"a": 1})
    assert run(attempt)[0] == Succeeded("there")
    for seen in (other.seen[0], server.seen[1]):
        assert not {"authorization", "x-team"} & seen.headers.keys()
        assert seen.headers["idempotency-key"] == attempt.key
        assert seen.headers["content-type"] == "application/json"
        assert seen.headers["host"] in (f"127.0.0.1:{other.port}", f"127.0.0.1:{server.port}")


# -- secrets


def with_secret(server, text="Bearer ${env:TOKEN}", value=SECRET, **fields):
    attempt = an_attempt(server.url, headers={"Authorization": text}, **fields)
    return run(attempt, environment={"TOKEN": value, "B": "b-value", "PATH": "/bin"})


def test_header_refers_to_values_of_the_environment(server):
    with_secret(server, "${env:B} and ${env:TOKEN}${env:B}", value="secret")
    assert server.seen[0].headers["authorization"] == "b-value and secretb-value"


def echo_text(request):
    return web.Response(text=f"you said {request.headers['Authorization']}!")


def echo_json(request):
    value = request.headers["Authorization"]
    return web.json_response({"said": [value], value: 1}, status=201)


def echo_php(request):
    value = json.dumps(request.headers["Authorization"]).replace("/", "\\/")
    return web.Response(text=value, content_type="application/json")


def echo_escaped(request):
    value = "".join(f"\\u{ord(c):04x}" for c in request.headers["Authorization"])
    return web.Response(text=f'"{value}"', content_type="application/json")


def echo_number(request):
    value = request.headers["Authorization"].removeprefix("Bearer ")
    text = f"[{value[0]}.{value[1:]}e6]" if value.isdigit() else "[]"
    return web.Response(text=text, content_type="application/json")


def echo_error(request):
    return web.Response(status=500, text=request.headers["Authorization"] * 100)


def echo_gone(request):
    return web.Response(status=410, text=request.headers["Authorization"])


def echo_busy(request):
    text = request.headers["Authorization"]
    return web.Response(status=503, text=text, headers={"Retry-After": "1"})


def echo_reason(request):
    value = request.headers["Authorization"]
    return web.Response(status=500, reason=value if value.isascii() else "")


def echo_id(request):
    return web.json_response({"id": request.headers["Authorization"]}, status=202)


def echo_location(request):
    return web.Response(status=202, headers={"Location": request.headers["Authorization"]})


def echo_redirect(request):
    url = request.url.with_path("/").with_query(a="x" * 40 + request.headers["Authorization"])
    return web.Response(status=308, headers={"Location": str(url)})


def echo_redirect_to_nowhere(request):
    return web.Response(
        status=308, headers={"Location": "ftp://" + request.headers["Authorization"]}
    )


def echo_long(request):
    return web.Response(text=request.headers["Authorization"] * 60_000)


ECHOES = [
    echo_text, echo_json, echo_php, echo_escaped, echo_number, echo_error, echo_gone, echo_busy, echo_reason,
    echo_id, echo_location, echo_redirect, echo_redirect_to_nowhere, echo_long, None,
]  # fmt: skip


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("value", ["s3cret/with+signs=", SECRET, "x" * 64 + "s3cret", "4142434"])
def test_secret_never_appears_in_outcome_or_output(server, echo, value):
    server.answer = echo or answers_raw(b"HTTP/1.1 " + value.encode())
    outcome, tail = with_secret(server, value=value)
    assert server.seen[0].headers["authorization"] == f"Bearer {value}"
    shown = repr(outcome) + json.dumps(getattr(outcome, "result", ""), ensure_ascii=False) + tail
    for part in ("s3cret", "hush", "nobody", "x" * 41, "4142434"):
        assert part not in shown


def test_half_a_secret_at_the_end_of_a_cut_body_is_hidden(server):
    value = "s3cret-" * 15
    server.answer = answers(text=value * 20_000)
    outcome, tail = with_secret(server, value=value)
    assert outcome.result.endswith("or more characters]")
    assert "s3cret" not in outcome.result + tail


def test_hidden_secret_is_replaced_by_stars(server):
    server.answer = echo_text
    outcome, tail = with_secret(server)
    assert outcome == Succeeded("you said Bearer ***!")
    assert tail.endswith("OK\nyou said Bearer ***!")


def test_short_secret_value_is_not_hidden_in_results(server):
    server.answer = answers_json({"count": 1})
    assert with_secret(server, value="1")[0] == Succeeded({"count": 1})


def test_unset_variable_is_named_and_nothing_is_sent(server):
    outcome, _ = with_secret(server, "${env:TOKEN} ${env:NONE}")
    told = "headers.Authorization: this node does not pass on the environment variable NONE (add it to the setting pass_env)"
    assert outcome == Failed(told, reason="invalid_target", retryable=False)
    assert server.seen == []


@pytest.mark.parametrize("value", ["secret\n", "a\r\nX-Evil: secret", "secret\0", "secret\udcff"])
def test_invalid_header_value_is_refused_without_showing_it(server, value):
    outcome, tail = with_secret(server, value=value)
    error = "headers.Authorization: it has characters that cannot be sent (one line of text)"
    assert outcome == Failed(error, reason="invalid_target", retryable=False)
    assert (server.seen, tail.strip()) == ([], "")


# -- public addresses only


class Names:
    """A resolver that gives its answers in turn, then repeats the last one."""

    def __init__(self, *answers):
        self.answers, self.asked = answers, []

    async def __call__(self, host, port):
        self.asked.append(host)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


@pytest.fixture
def one_is_public(monkeypatch):
    """Make 127.0.0.1 the only public address, as tests can reach no other."""
    monkeypatch.setattr(target, "is_public", lambda address: str(address) == "127.0.0.1")


def refused_for(host):
    problem = f"http: {host!r} has no public address (a host on the public internet)"
    return Failed(problem, reason="invalid_target", retryable=False)


PUBLIC = [
    "8.8.8.8", "1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.32.0.1",
    "2606:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1",
]  # fmt: skip
PRIVATE = [
    "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "100.127.255.255", "100.100.100.200", "0.0.0.0", "0.1.2.3",
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.0.0.192", "192.0.2.1",
    "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "168.63.129.16",
    "::", "::1", "fe80::1", "fe80::1%1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1",
    "ff0e::1", "2001:db8::1", "2001::1", "3fff::1", "100::1", "4000::1", "5f00::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808", "2002:7f00:1::1",
    "2002:c0a8:101::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_address_of_the_public_internet_is_public(address):
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_address_of_a_private_network_is_not_public(address):
    assert not is_public(ip_address(address))


def test_name_with_only_private_addresses_is_refused():
    names = Names(["10.0.0.1", "::1"])
    outcome, _ = run(an_attempt("http://a.test"), public_only=True, resolve=names)
    assert outcome == refused_for("a.test")


def test_private_addresses_are_allowed_by_default(server):
    names = Names(["127.0.0.1"])
    outcome, _ = run(an_attempt(f"http://a.test:{server.port}/x"), resolve=names)
    assert outcome == Succeeded()
    assert server.seen[0].headers["host"] == f"a.test:{server.port}"


def test_names_are_resolved_by_the_system_by_default(server):
    assert run(an_attempt(f"http://localhost:{server.port}"))[0] == Succeeded()
    outcome, _ = run(an_attempt(f"http://localhost:{server.port}"), public_only=True)
    assert outcome == refused_for("localhost")


def test_only_public_addresses_of_a_name_are_used(server, start_server, one_is_public):
    private = start_server("127.0.0.2", server.port)
    names = Names(["127.0.0.2", "127.0.0.1", "127.0.0.2"])
    attempt = an_attempt(f"http://a.test:{server.port}")
    assert run(attempt, public_only=True, resolve=names)[0] == Succeeded()
    assert (len(server.seen), private.seen) == (1, [])


def test_name_is_resolved_only_once_for_check_and_connection(server, start_server, one_is_public):
    private = start_server("127.0.0.2", server.port)
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    attempt = an_attempt(f"http://a.test:{server.port}")
    assert run(attempt, public_only=True, resolve=names)[0] == Succeeded()
    assert names.asked == ["a.test"]
    assert (len(server.seen), private.seen) == (1, [])


def test_name_is_checked_again_for_the_next_connection(server, one_is_public):
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    server.answer = answers(headers={"Connection": "close"})
    attempts = [an_attempt(f"http://a.test:{server.port}") for _ in range(3)]
    found = run_all(*attempts, public_only=True, resolve=names, concurrency=1)
    refused = refused_for("a.test")
    assert [outcome for outcome, _ in found] == [Succeeded(), refused, refused]


SPELLINGS = [
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0X7F.1", "0177.0.0.1", "0", "017700000001",
    "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::127.0.0.1]",
]  # fmt: skip


@pytest.mark.parametrize("host", SPELLINGS)
def test_private_address_is_refused_in_every_notation(host):
    launcher, names = a_launcher(public_only=True), Names(["8.8.8.8"])
    with pytest.raises(InvalidSchedule, match="has no public address"):
        launcher.check(Target("http", {"http": f"http://{host}/"}))
    outcome, _ = run(an_attempt(f"http://{host}:9/"), public_only=True, resolve=names)
    assert (outcome.reason, names.asked) == ("invalid_target", [])
    assert "has no public address" in outcome.error


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001"])
def test_unusual_notation_connects_to_the_checked_address(server, host):
    assert run(an_attempt(f"http://{host}:{server.port}"))[0] == Succeeded()
    assert server.seen[0].headers["host"] == f"127.0.0.1:{server.port}"


@pytest.mark.parametrize("host", ["10.0.0.1", "[::1]", "a.test", "0x0a000001", "localhost"])
def test_a_redirect_to_a_private_address_is_refused(server, one_is_public, host):
    names = Names(["10.0.0.1"])
    server.answer = redirects(f"http://{host}:{a_free_port()}/")
    outcome, tail = run(an_attempt(server.url), public_only=True, resolve=names)
    assert outcome.error.endswith("has no public address (a host on the public internet)")
    assert (outcome.reason, outcome.retryable) == ("invalid_target", False)
    assert tail.splitlines()[:2] == [f"POST {server.url}/", "HTTP 307 Temporary Redirect"]


def test_a_redirect_to_a_public_address_is_followed(server, one_is_public):
    server.answer = redirects(f"http://a.test:{server.port}/b")
    names = Names(["127.0.0.1"])
    assert run(an_attempt(server.url), public_only=True, resolve=names)[0] == Succeeded("there")


# -- definitions


LONG_S = "\N{LATIN SMALL LETTER LONG S}"  # equal to "s" for case-insensitive matching
INVALID_URL = "is not a valid URL (http(s)://host:port/path?query: a literal host, no user, no fragment, no ${env:...})"


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        (
            {"http": None},
            'http: None is not a string (http: "https://example.com/hook", with method, headers and inputs beside it)',
        ),
        ({"http": 80}, "http: 80 is not a string (put it in quotes)"),
        ({"http": ""}, f"http: '' {INVALID_URL}"),
        ({"http": "a.test/x"}, f"http: 'a.test/x' {INVALID_URL}"),
        ({"http": "ftp://a.test/"}, f"http: 'ftp://a.test/' {INVALID_URL}"),
        ({"http": "http:///x"}, f"http: 'http:///x' {INVALID_URL}"),
        ({"http": "http://a b/"}, f"http: 'http://a b/' {INVALID_URL}"),
        ({"http": "http://a.test/#b"}, f"http: 'http://a.test/#b' {INVALID_URL}"),
        ({"http": "http://u:secret@a.test/"}, f"http: 'a.test/' {INVALID_URL}"),
        ({"http": "u:secret@a.test"}, f"http: 'a.test' {INVALID_URL}"),
        ({"http": "http://a.test\\@b.test/"}, f"http: 'b.test/' {INVALID_URL}"),
        ({"http": "http://a.test/${env:A}"}, f"http: 'http://a.test/${{env:A}}' {INVALID_URL}"),
        ({"http": "{{ a }}://a.test/"}, f"http: '{{{{ a }}}}://a.test/' {INVALID_URL}"),
        ({"http": "http://{{ a }}/"}, f"http: 'http://{{{{ a }}}}/' {INVALID_URL}"),
        ({"http": "http://a.test{{ a }}"}, f"http: 'http://a.test{{{{ a }}}}' {INVALID_URL}"),
        ({"http": "http://a.test:{{ a }}/"}, f"http: 'http://a.test:{{{{ a }}}}/' {INVALID_URL}"),
        ({"http": "http://exämple.test/"}, f"http: 'http://exämple.test/' {INVALID_URL}"),
        ({"http": f"http{LONG_S}://a.test"}, f"http: 'http{LONG_S}://a.test' {INVALID_URL}"),
        ({"http": "http://%31.test/"}, f"http: 'http://%31.test/' {INVALID_URL}"),
        ({"http": "http://[fe80::1%25lo]/"}, f"http: 'http://[fe80::1%25lo]/' {INVALID_URL}"),
        ({"http": "http://a.test:0/"}, "http: 0 is not a port (1 to 65535)"),
        ({"http": "http://a.test:65536/"}, "http: 65536 is not a port (1 to 65535)"),
        (
            {"http": "http://1.2.3.4.5/"},
            "http: '1.2.3.4.5' is not an IP address (such as 192.0.2.1)",
        ),
        (
            {"http": "http://127.0.0.1./"},
            "http: '127.0.0.1.' is not an IP address (such as 192.0.2.1)",
        ),
        ({"http": "http://[::g]/"}, f"http: 'http://[::g]/' {INVALID_URL}"),
        ({"http": "http://[1:2]/"}, "http: '[1:2]' is not an IP address (such as 192.0.2.1)"),
        (
            {"http": "http://a.test/\n"},
            "http: it has characters that cannot be sent (one line of text)",
        ),
        ({"http": "http://a/" + "a" * 8000}, "http: it is too long (8000 characters at most)"),
        ({"method": "FETCH"}, "method: no method is called 'FETCH' (did you mean 'PATCH'?)"),
        (
            {"method": "post"},
            "method: no method is called 'post' (known: DELETE, GET, HEAD, PATCH, POST, PUT)",
        ),
        (
            {"method": ["GET"]},
            "method: no method is called ['GET'] (did you mean 'GET'?)",
        ),
        ({"feedback": "no"}, "feedback: 'no' is not true or false (true or false)"),
        ({"inputs": [1]}, "inputs: [1] is not a mapping ({name: value})"),
        ({"headers": ["A: b"]}, "headers: ['A: b'] is not a mapping ({name: value})"),
        ({"headers": {"A": 1}}, "headers.A: 1 is not a string (put it in quotes)"),
        ({"headers": {1: "a"}}, "headers: 1 is not a string (put it in quotes)"),
        ({"headers": {"A b": "c"}}, "headers: 'A b' is not a header name (such as X-Team: text)"),
        ({"headers": {"": "c"}}, "headers: '' is not a header name (such as X-Team: text)"),
        (
            {"headers": {"A": "b\r\nC: d"}},
            "headers.A: it has characters that cannot be sent (one line of text)",
        ),
        ({"headers": {"A": "${TOKEN}"}}, "headers.A: no variable is named after ${ (${env:NAME})"),
        (
            {"headers": {"A": "${env:a b}"}},
            "headers.A: no variable is named after ${ (${env:NAME})",
        ),
        (
            {"method": "GET", "inputs": {"a": {"b": 1}}},
            "inputs.a: {'b': 1} cannot be part of a URL (a plain value, or method: POST)",
        ),
        (
            {"method": "DELETE", "inputs": {"a": None}},
            "inputs.a: None cannot be part of a URL (a plain value, or method: POST)",
        ),
        ({"header": {}}, "header: no field has this name (did you mean 'headers'?)"),
    ],
)
def test_invalid_http_target_is_refused(fields, refusal):
    with pytest.raises(InvalidSchedule) as refused:
        a_launcher().check(Target("http", {"http": "http://a.test/", **fields}))
    assert str(refused.value) == refusal


OWN = [
    "Host", "content-length", "Transfer-Encoding", "CONNECTION", "Idempotency-Key",
    "Onbeat-Run-Id", "onbeat-anything", "Upgrade", "Expect",
]  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_header_set_by_the_launcher_is_refused(name):
    with pytest.raises(InvalidSchedule) as refused:
        a_launcher().check(Target("http", {"http": "http://a.test/", "headers": {name: "a"}}))
    assert str(refused.value) == f"headers.{name}: Onbeat sets this header itself (leave it out)"


@pytest.mark.parametrize(
    "fields",
    [
        {"http": "http://a.test"},
        {"http": "HTTPS://A.test:8443?q"},
        {"http": "https://a-b_c.test/ä b?c=d e&f=@{}"},
        {"http": "http://10.0.0.1:65535/"},
        {"http": "http://[::1]:80/"},
        {"http": "https://a.test/{{ date }}/x?from={{ last.result.rows[0] | default('#@') }}"},
        {"http": "https://a.test?{{ date }}"},
        {
            "http": "http://a.test",
            "method": "GET",
            "inputs": {"a": 1, "b": "{{ date }}", "c": False},
        },
        {"http": "http://a.test", "inputs": {"a": {"b": [None]}}, "feedback": False},
        {"http": "http://a.test", "inputs": None, "headers": None},
        {"http": "http://a.test", "headers": {"Authorization": "Bearer ${env:A}${env:B_2}"}},
        {"http": "http://a.test", "headers": {"X-Date": "{{ date }} ä\tb", "X-Empty": ""}},
    ],
)
def test_valid_http_target_is_accepted(fields):
    a_launcher().check(Target("http", fields))


def test_invalid_stored_target_fails_and_nothing_is_sent(server):
    outcome, tail = run(an_attempt(server.url, methods="GET"))
    error = "methods: no field has this name (did you mean 'method'?)"
    assert outcome == Failed(error, reason="invalid_target", retryable=False)
    assert (server.seen, tail.strip()) == ([], "")

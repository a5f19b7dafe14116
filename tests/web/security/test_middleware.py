"""The security middleware: which requests reach the application, and how others are refused."""

import asyncio
import re
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onbeat.errors import StoreFailed
from onbeat.service.access import Caller
from onbeat.web.security.cookies import csrf_of
from onbeat.web.security.middleware import LARGEST, LARGEST_FILE, OPEN_PATHS
from tests.web.security.conftest import LARGE

HTML = {"accept": "text/html"}


# -- authentication


def test_application_gets_the_caller_of_a_token(world):
    assert world.ask(token=world.a_token(owner="ann")).status == 200
    ((scope, _),) = world.passed
    assert scope["state"].keys() == {"caller", "csrf", "is_still_authorized"}
    assert scope["state"]["caller"] == Caller("token:ci", "operate", "ann")
    assert scope["state"]["csrf"] == ""


def test_unauthenticated_request_is_refused_with_a_hint(world):
    found = world.ask()
    assert (found.status, found.problem_text) == (401, "authentication is required")
    assert found.headers["www-authenticate"] == 'Bearer realm="onbeat"'
    assert "onbeat token create" in found.problem["hint"]
    assert world.passed == []


@pytest.mark.parametrize(
    "given",
    [
        "", "Bearer", "Bearer ", "Basic dXNlcjpwdw==", "Token onbeat_x", "Bearer onbeat_", "Bearer null",
        f"Bearer onbeat_{'A' * 43}", "Bearer a b", "Bearer onbeat_x\tonbeat_y", "Bearer é", f"Bearer {'A' * 9000}",
        "Bearer onbeat-run.x.y", "Bearer onbeat-node.1.2", f"Bearer onbeat-node.9{'0' * 14}.{'0' * 64}",
        f"Bearer onbeat-run.{'a' * 64}.{'b' * 64}", "Bearer e30.e30.e30",
    ],
)  # fmt: skip
def test_invalid_token_is_refused(world, given):
    found = world.ask(headers={"authorization": given})
    assert found.status == 401
    assert 'error="invalid_token"' in found.headers["www-authenticate"]
    assert world.passed == []


def test_repeated_authorization_header_is_refused(world):
    token = world.a_token()
    found = world.ask(token=token, headers=[("authorization", f"Bearer {token}")])
    assert (found.status, found.problem_text) == (400, "the header is repeated")


def test_secrets_of_links_and_sessions_are_not_tokens(world):
    for secret in (world.run(world.tokens.link()), world.a_session()):
        assert world.ask(token=secret).status == 401


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_health_checks_are_open_paths(world, path):
    assert world.ask(path=path).status == 200
    assert world.passed[0][0]["state"]["caller"] is None


@pytest.mark.parametrize(
    "path", ["/healthz/", "//healthz", "/healthz/../api/v1/schedules", "/HEALTHZ", "/healthz;x", "/healthzz", "/metrics", "/login/"]
)  # fmt: skip
def test_no_other_path_is_open(world, path):
    assert world.ask(path=path).status == 401


def test_browser_without_a_session_gets_a_page_about_links(world):
    found = world.ask(path="/", headers=HTML)
    assert found.status == 401
    assert found.headers["content-type"].startswith("text/html")
    assert b"onbeat token link" in found.body
    assert (
        world.ask(headers=HTML).problem["status"] == 401
    )  # the API responds with JSON also to browsers


def test_database_failure_is_answered_with_retry_after(world):
    async def broken(digest):
        raise StoreFailed("disk I/O error on /var/lib/secret.db")

    token = world.a_token()
    world.tokens._store.token_of = broken
    found = world.ask(token=token)
    assert (found.status, found.headers["retry-after"]) == (503, "2")
    assert b"secret.db" not in found.body


def test_websocket_is_refused(world):
    sent = []

    async def play():
        async def receive():
            return {"type": "websocket.connect"}

        async def send(message):
            sent.append(message)

        await world.door({"type": "websocket", "path": "/healthz", "headers": []}, receive, send)

    world.run(play())
    assert sent == [{"type": "websocket.close", "code": 1008}]


# -- tokens of runs and nodes


def test_token_of_a_run_may_only_report_its_outcome(world):
    key, other = "a" * 64, "b" * 64
    token = world.run(world.tokens.signer()).run_token(key)
    there = f"/api/v1/runs/{key}/status"
    assert world.ask("POST", there, token=token, body=b"{}").status == 200
    assert world.passed[0][0]["state"]["caller"] == Caller(f"run:{key}", "operate")
    for method, path in [
        ("GET", there), ("PUT", there), ("POST", f"{there}/"), ("POST", f"/api/v1/runs/{other}/status"),
        ("POST", "/api/v1/schedules"), ("POST", f"/api/v1/runs/{key}/cancel"), ("POST", "/logout"),
    ]:  # fmt: skip
        found = world.ask(method, path, token=token)
        assert found.status == 403
        assert found.problem["hint"] == f"POST {there}"


def test_token_of_a_run_cannot_be_altered(world):
    key, other = "a" * 64, "b" * 64
    token = world.run(world.tokens.signer()).run_token(key)
    forged = token.replace(key, other)
    assert world.ask("POST", f"/api/v1/runs/{other}/status", token=forged).status == 401


def test_token_of_a_node_may_only_read_and_expires(world):
    signer = world.run(world.tokens.signer())
    token = signer.node_token(world.clock.now() + 60_000)
    assert world.ask(token=token).status == 200
    assert world.passed[0][0]["state"]["caller"] == Caller("node", "read")
    assert world.ask("POST", token=token, body=b"{}").status == 403
    world.clock.advance("1m")
    assert world.ask(token=token).status == 401
    assert world.ask(token=signer.node_token(world.clock.now() + 60_001)).status == 401  # too long


# -- sessions


def cookie(secret, name="onbeat"):
    return {"cookie": f"{name}={secret}"}


def test_login_link_opens_one_session(world):
    query = f"code={world.run(world.tokens.link())}"
    found = world.ask(path="/login", query=query)
    assert found.status == 200
    assert b'content="0; url=/"' in found.body, "a redirect from elsewhere would be without cookie"
    name, value, attributes = re.fullmatch(
        r"(\S+)=([^;]+); (.*)", found.headers["set-cookie"]
    ).groups()
    assert name == "onbeat"
    assert attributes == "Path=/; HttpOnly; SameSite=Strict; Max-Age=43200"
    assert world.ask(headers=cookie(value)).status == 200
    assert world.passed[0][0]["state"]["caller"].scope == "admin"
    again = world.ask(path="/login", query=query)
    assert again.status == 403
    assert again.body.count(b"<p>") == 1
    assert b"onbeat token link" in again.body


def test_cookie_over_tls_has_the_host_prefix(world):
    query = f"code={world.run(world.tokens.link())}"
    found = world.ask(path="/login", query=query, scheme="https")
    assert re.match(r"__Host-onbeat=\S+; .*; Secure$", found.headers["set-cookie"])
    assert "domain" not in found.headers["set-cookie"].lower()
    secret = world.a_session()
    assert world.ask(headers=cookie(secret), scheme="https").status == 401
    assert world.ask(headers=cookie(secret, "__Host-onbeat"), scheme="https").status == 200


@pytest.mark.parametrize(
    "query", ["", "code=", "code=x", f"code=onbeat_link_{'A' * 43}", "cod=1", "code[]=1"]
)
def test_invalid_code_opens_no_session(world, query):
    found = world.ask(path="/login", query=query)
    assert (found.status, "set-cookie" in found.headers) == (403, False)


@pytest.mark.parametrize("method", ["HEAD", "POST", "OPTIONS"])
def test_only_get_uses_up_a_link(world, method):
    query = f"code={world.run(world.tokens.link())}"
    assert world.ask(method, "/login", query=query).status == 405
    assert world.ask(path="/login", query=query).status == 200


def test_change_with_a_cookie_requires_the_csrf_token(world):
    secret, other = world.a_session(), world.a_session()
    world.ask(headers=cookie(secret))
    csrf = world.passed[0][0]["state"]["csrf"]
    assert csrf == csrf_of(secret)
    for wrong in (None, "", "x", csrf_of(other), csrf.upper(), secret):
        found = world.ask("POST", headers=cookie(secret) | {"x-csrf-token": wrong})
        assert (found.status, found.problem["field"]) == (403, "X-CSRF-Token")
    assert world.ask("POST", headers=cookie(secret) | {"x-csrf-token": csrf}).status == 200


def test_token_takes_precedence_over_a_cookie_and_needs_no_csrf_token(world):
    found = world.ask("POST", token=world.a_token(), headers=cookie("nonsense"))
    assert found.status == 200


def test_repeated_session_cookie_is_refused(world):
    secret = world.a_session()
    found = world.ask(headers={"cookie": f"onbeat=x; onbeat={secret}"})
    assert found.status == 400


def test_logout_ends_the_session(world):
    secret = world.a_session()
    headers = cookie(secret) | {"x-csrf-token": csrf_of(secret)}
    assert world.ask("GET", "/logout", headers=headers).status == 405
    assert world.ask("POST", "/logout", headers=cookie(secret)).status == 403
    found = world.ask("POST", "/logout", headers=headers)
    assert (found.status, found.headers["location"]) == (303, "/login")
    assert "Max-Age=0" in found.headers["set-cookie"]
    assert world.ask(headers=cookie(secret)).status == 401


# -- hosts


@pytest.mark.parametrize(
    "host", ["localhost:8585", "127.0.0.1:8585", "[::1]:8585", "LOCALHOST:8585"]
)
def test_names_of_this_machine_are_accepted_as_host(world, host):
    assert world.ask(path="/healthz", headers={"host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8585", "localhost", "localhost:80", "localhost.:8585", "127.0.0.1", "127.0.0.2:8585",
        "localhost.evil.example:8585", "0.0.0.0:8585", "2130706433:8585", "[::]:8585", "[::ffff:127.0.0.1]:8585",
    ],
)  # fmt: skip
def test_other_host_names_are_refused(world, host):
    found = world.ask(path="/healthz", headers={"host": host})
    assert (found.status, found.problem["field"]) == (421, "Host")


@pytest.mark.parametrize(
    "host",
    ["", "a b", "localhost:8585/", "me@localhost:8585", "localhost:858585", "localhost:8585,evil.example", "\uff4cocalhost:8585", "é"],
)  # fmt: skip
def test_invalid_host_is_refused(world, host):
    found = world.ask(path="/healthz", headers={"host": host.encode().decode("latin-1")})
    assert found.status == 400


def test_exactly_one_host_header_is_required(world):
    assert world.ask(path="/healthz", headers={"host": None}).status == 400
    assert world.ask(path="/healthz", headers=[("host", "evil.example")]).status == 400


def test_configured_host_names_are_accepted(world):
    world.open(hosts=("onbeat.example", "other.example:8443"), public_url="https://public.example")
    for host, status in [
        ("onbeat.example", 200), ("onbeat.example:99", 200), ("other.example:8443", 200), ("public.example:443", 200),
        ("other.example", 421), ("public.example", 421), ("a.onbeat.example", 421),
    ]:  # fmt: skip
        assert world.ask(path="/healthz", headers={"host": host}).status == status


# -- proxies and encryption


def test_request_from_another_machine_requires_tls(world):
    assert world.ask(path="/healthz", client="192.0.2.1").status == 403
    assert world.ask(path="/healthz", client=None).status == 403
    assert world.ask(path="/healthz", client="192.0.2.1", scheme="https").status == 200


def test_forwarded_headers_of_untrusted_clients_are_ignored(world):
    forwarded = {
        "x-forwarded-for": "203.0.113.9",
        "x-forwarded-proto": "https",
        "x-forwarded-host": "evil.example",
    }
    assert world.ask(path="/healthz", headers=forwarded).status == 200
    scope = world.passed[0][0]
    assert (scope["client"][0], scope["scheme"]) == ("127.0.0.1", "http")
    assert [name for name, _ in scope["headers"]] == [b"host"]


def test_forwarded_headers_of_trusted_proxies_are_used(world):
    world.open(trusted_proxies=("10.0.0.0/24",), hosts=("onbeat.example",))
    forwarded = {
        "x-forwarded-for": "6.6.6.6, 203.0.113.9, 10.0.0.8",
        "x-forwarded-proto": "https",
        "x-forwarded-host": "onbeat.example",
    }
    found = world.ask(path="/healthz", client="10.0.0.7", headers=forwarded)
    scope = world.passed[0][0]
    assert (scope["client"][0], scope["scheme"]) == ("203.0.113.9", "https")
    assert "strict-transport-security" in found.headers
    assert world.ask(path="/healthz", client="10.0.1.7", headers=forwarded).status == 403


@pytest.mark.parametrize("told", ["garbage", "203.0.113.9:80", "1.2.3.4 5.6.7.8", "[::1]"])
def test_invalid_forwarded_address_is_refused(world, told):
    world.open(trusted_proxies=("10.0.0.7",))
    assert (
        world.ask(path="/healthz", client="10.0.0.7", headers={"x-forwarded-for": told}).status
        == 400
    )


# -- pages of other sites


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": ""}, {"origin": "http://localhost:3000"},
        {"origin": "http://localhost"}, {"origin": "http://localhost:8585.evil.example"}, {"origin": "http://127.0.0.1:8585"},
        {"origin": "file://"}, {"origin": "http://evil@localhost:8585"}, {"referer": "https://evil.example/localhost:8585"},
        {"sec-fetch-site": "cross-site"}, {"origin": "http://localhost:8585", "sec-fetch-site": "cross-site"},
        {"origin": "https://evil.example", "referer": "http://localhost:8585/"},
    ],
)  # fmt: skip
def test_change_from_a_page_of_another_site_is_refused(world, headers):
    assert world.ask("POST", token=world.a_token(), headers=headers).status == 403
    assert world.passed == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost:8585"},
        {"referer": "http://localhost:8585/schedules?a=b"},
        {"sec-fetch-site": "same-origin"},
    ],
)
def test_changes_from_own_pages_and_programs_are_accepted(world, headers):
    assert world.ask("POST", token=world.a_token(), headers=headers).status == 200


def test_reads_from_pages_of_another_site_are_accepted(world):
    headers = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    found = world.ask(token=world.a_token(), headers=headers)
    assert found.status == 200
    assert not [name for name in found.headers if name.startswith("access-control")]


# -- sizes and bodies


def test_request_line_and_headers_are_limited(world):
    token = world.a_token()
    assert world.ask(path=f"/{'a' * 8192}", token=token).status == 414
    assert world.ask(token=token, query="a" * 8192).status == 414
    assert world.ask(token=token, headers=[(f"x-{i}", "") for i in range(100)]).status == 431
    assert world.ask(token=token, headers={"x-long": "a" * 32_768}).status == 431


@pytest.mark.parametrize("raw", [b"/%00", b"/a%0d%0aSet-Cookie:x", b"/%ff", b"/%ed%a0%80", b"/%1b"])
def test_path_and_query_must_be_printable_utf_8(world, raw):
    assert world.ask(path="/x", raw_path=raw, token=world.a_token()).status == 400
    assert world.ask(query=raw, token=world.a_token("two")).status == 400


def test_body_limit_depends_on_the_path(world):
    token = world.a_token()
    fits, more = b'"%s"' % (b"a" * (LARGEST - 2)), b'"%s"' % (b"a" * (LARGEST - 1))
    assert world.ask("POST", token=token, body=fits).status == 200
    assert world.ask("POST", token=token, body=more).status == 413
    assert world.ask("POST", LARGE, token=token, body=more).status == 200
    assert world.ask("POST", LARGE, token=token, body=b'"%s"' % (b"a" * LARGEST_FILE)).status == 413


def test_body_without_a_declared_size_is_limited(world):
    chunks = [b"a" * 2**18] * 5
    headers = {"transfer-encoding": "chunked", "content-type": "application/json"}
    found = world.ask("POST", token=world.a_token(), headers=headers, chunks=chunks)
    assert found.status == 413


def test_body_of_an_unauthenticated_request_is_not_read(world):
    unread = [{"type": "nothing that is understood"}]
    assert world.ask("POST", body=b"{}", chunks=unread).status == 401
    assert world.ask("POST", headers={"content-length": str(LARGEST + 1)}).status == 413


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "", "1, 2", " ", "٣", "9" * 30])
def test_invalid_content_length_is_refused(world, length):
    headers = {"content-length": length.encode().decode("latin-1")}
    assert world.ask("POST", token=world.a_token(), headers=headers).status in (400, 413)


@pytest.mark.parametrize(
    ("method", "kind", "status"),
    [
        ("POST", "application/json", 200), ("POST", "application/json; charset=utf-8", 200), ("POST", 'Application/JSON;charset="UTF-8"', 200),
        ("PATCH", "application/merge-patch+json", 200), ("POST", "application/merge-patch+json", 415), ("PUT", "text/plain", 415),
        ("POST", "application/x-www-form-urlencoded", 415), ("POST", "multipart/form-data; boundary=x", 415), ("POST", "", 415),
        ("POST", "application/json; charset=utf-7", 415), ("POST", "application/jsonp", 415), ("DELETE", "text/plain", 415), ("POST", None, 415),
    ],
)  # fmt: skip
def test_body_of_another_type_is_refused(world, method, kind, status):
    headers = {"content-type": kind}
    assert world.ask(method, token=world.a_token(), body=b"{}", headers=headers).status == status


def test_compressed_body_is_refused(world):
    found = world.ask(
        "POST", token=world.a_token(), body=b"{}", headers={"content-encoding": "gzip"}
    )
    assert (found.status, found.problem["field"]) == (415, "Content-Encoding")


def test_slow_body_is_refused(world):
    world.open(body_seconds=0.05)
    headers = {"transfer-encoding": "chunked", "content-type": "application/json"}
    parts = [b"[", {"type": "http.request", "body": b"1", "more_body": True}]
    found = world.ask("POST", token=world.a_token("slow"), headers=headers, chunks=parts)
    assert found.status == 408


def test_disconnected_client_gets_no_response(world):
    headers = {"content-length": "5", "content-type": "application/json"}
    found = world.ask(
        "POST", token=world.a_token(), headers=headers, chunks=[{"type": "http.disconnect"}]
    )
    assert found is None
    assert world.passed == []


@pytest.mark.parametrize(
    "body", [b"{", b'{"a":1,"a":2}', b'"\\ud800"', b"NaN", b"[" * 33 + b"]" * 33, b"9" * 20]
)
def test_ambiguous_body_does_not_reach_the_application(world, body):
    found = world.ask("POST", token=world.a_token(), body=body)
    assert (found.status, found.problem["field"]) == (400, "body")
    assert world.passed == []


def test_application_gets_the_body_unchanged(world):
    text = '{ "ä": [1.50, "\\u00e4"] }'.encode()
    world.ask("POST", token=world.a_token(), body=text)
    assert world.passed[0][1] == text


# -- rate limits


def test_wrong_tokens_from_an_address_are_throttled(world):
    for _ in range(20):
        assert world.ask(token="onbeat_wrong").status == 401
    found = world.ask(token="onbeat_wrong")
    assert (found.status, found.headers["retry-after"]) == (429, "4")
    world.clock.advance("4s")
    assert world.ask(token="onbeat_wrong").status == 401
    assert world.ask(token="onbeat_wrong").status == 429
    assert world.ask(token="onbeat_wrong", client="::1").status == 401


def guess(world, times=60):
    """Send wrong credentials of every kind from an address."""
    kinds = [
        {"token": f"onbeat_{'x' * 43}"}, {"token": f"onbeat-run.{'a' * 64}.{'0' * 64}"}, {"token": f"onbeat-node.1.{'0' * 64}"},
        {"token": "a.b.c"}, {"headers": cookie(f"onbeat_session_{'x' * 43}")},
        {"path": "/login", "query": f"code=onbeat_link_{'x' * 43}"},
    ]  # fmt: skip
    return {world.ask(**kinds[n % len(kinds)]).status for n in range(times)}


def test_valid_token_is_admitted_from_a_throttled_address(world):
    new, session = world.a_token("new"), world.a_session()
    assert guess(world) == {401, 403, 429}
    assert world.ask(token=new).status == 200
    assert world.ask(headers=cookie(session)).status == 200
    assert world.ask(token=f"{new[:-1]}_").status == 429


def test_login_link_works_from_a_throttled_address(world):
    code = world.run(world.tokens.link())
    guess(world)
    assert world.ask(path="/login", query=f"code={code}").status == 200
    assert world.ask(path="/login", query=f"code={code}").status == 429, "it is used up"


def test_token_of_a_run_is_admitted_from_a_throttled_address(world):
    signer = world.run(world.tokens.signer())
    token = signer.run_token("a" * 64)
    guess(world)
    path = f"/api/v1/runs/{'a' * 64}/status"
    assert world.ask("POST", path=path, token=token, body=b"{}").status == 200


def test_guesses_from_a_throttled_address_are_looked_up_one_at_a_time(world):
    guess(world)
    at_once, most, looked_up = 0, 0, world.store.token_of

    async def counted(digest):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        try:
            return await looked_up(digest)
        finally:
            at_once -= 1

    right = world.a_token("right")
    world.tokens._store.token_of = counted
    tokens = [f"onbeat_{n:043d}" for n in range(200)] + [right]

    async def all_at_once():
        return await asyncio.gather(*(world.asking(token=each) for each in tokens))

    *wrong, found = world.run(all_at_once())
    assert {each.status for each in wrong} == {429}
    assert (found.status, most) == (200, 1)


def test_guessed_login_codes_write_nothing(world):
    before = world.run(world.store.newest_event())
    written = []
    world.store.open_session = written.append
    guess(world, 30)
    assert (world.run(world.store.newest_event()), written) == (before, [])


def test_requests_of_a_caller_are_rate_limited(world):
    world.open(rate_limit=3)
    token, other = world.a_token(), world.a_token("other")
    assert [world.ask(token=token).status for _ in range(4)] == [200, 200, 200, 429]
    assert world.ask(token=token).headers["retry-after"] == "1"
    assert world.ask(token=other).status == 200
    world.clock.advance(1000)
    assert [world.ask(token=token).status for _ in range(4)] == [200, 200, 200, 429]


# -- headers


def test_every_response_has_security_headers(world):
    answers = [
        world.ask(token=world.a_token()), world.ask(), world.ask(path="/healthz"), world.ask(headers={"host": "evil.example"}),
        world.ask(path="/login"), world.ask("POST", token="x", body=b"{"),
    ]  # fmt: skip
    for found in answers:
        html = found.headers.get("content-type", "").startswith("text/html")
        assert found.headers["content-security-policy"].startswith(
            f"default-src '{'self' if html else 'none'}'"
        )
        assert "unsafe-inline" not in found.headers["content-security-policy"]
        wanted = {
            "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "x-frame-options": "DENY",
            "cache-control": "no-store", "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin", "cross-origin-embedder-policy": "require-corp",
        }  # fmt: skip
        assert wanted.items() <= found.headers.items()
        assert "strict-transport-security" not in found.headers
        assert len(found.all_headers) == len(found.headers)


def test_response_over_tls_has_strict_transport_security(world):
    found = world.ask(path="/healthz", scheme="https")
    assert found.headers["strict-transport-security"] == "max-age=31536000"


def test_response_has_no_server_header(world):
    world.answer_headers = [(b"Server", b"thing/1.0"), (b"cache-control", b"max-age=60")]
    found = world.ask(path="/healthz")
    assert "server" not in found.headers
    assert found.headers["cache-control"] == "max-age=60"  # the application may set its own


# -- arbitrary requests

words = st.text(string.printable, max_size=40)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "X"]),
    path=st.one_of(st.sampled_from(["/login", "/logout", "/healthz", "/api/v1/runs"]), words.map(lambda t: f"/{t}")),
    names=st.lists(
        st.tuples(
            st.sampled_from(["host", "authorization", "cookie", "origin", "referer", "content-length", "content-type",
                             "transfer-encoding", "x-forwarded-for", "x-csrf-token", "accept", "sec-fetch-site"]),
            st.text(st.characters(max_codepoint=255), max_size=60),
        ), max_size=6,
    ),
    body=st.binary(max_size=60),
)  # fmt: skip
def test_arbitrary_requests_never_make_the_middleware_fail(world, method, path, names, body):
    found = world.ask(method, path, headers=names, body=body)
    assert found is None or found.status < 500


def test_concurrent_uses_of_a_link_open_one_session(world):
    query = f"code={world.run(world.tokens.link())}"

    async def both():
        return await asyncio.gather(*(world.asking(path="/login", query=query) for _ in range(2)))

    assert sorted(each.status for each in world.run(both())) == [200, 403]

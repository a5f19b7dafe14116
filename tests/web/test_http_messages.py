"""Framing of requests over a raw socket: an ambiguous request has at most one response."""

import socket
import time

import pytest

HIDDEN = b"GET /healthz HTTP/1.1\r\nHost: localhost:%d\r\n\r\n"
CHUNKED = b"0\r\n\r\n"
# The headers of a request that a proxy may end elsewhere, and what follows them before the second.
AMBIGUOUS = {
    "both, chunked": (b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", CHUNKED),
    "both, the other way round": (b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", CHUNKED),
    "both, no length": (b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", CHUNKED),
    "both, all of it": (b"Content-Length: 200\r\nTransfer-Encoding: chunked\r\n", CHUNKED),
    "both, upper case": (b"CONTENT-LENGTH: 6\r\nTRANSFER-ENCODING: CHUNKED\r\n", CHUNKED),
    "both, xchunked": (b"Content-Length: 5\r\nTransfer-Encoding: xchunked\r\n", CHUNKED),
    "both, identity": (b"Content-Length: 5\r\nTransfer-Encoding: identity\r\n", CHUNKED),
    "both, folded": (b"Content-Length: 5\r\nTransfer-Encoding:\r\n chunked\r\n", CHUNKED),
    "both, tab": (b"Content-Length: 5\r\nTransfer-Encoding:\tchunked\r\n", CHUNKED),
    "two lengths": (b"Content-Length: 0\r\nContent-Length: 5\r\n", CHUNKED),
    "two lengths, the other way round": (b"Content-Length: 5\r\nContent-Length: 0\r\n", CHUNKED),
    "the same length twice": (b"Content-Length: 0\r\nContent-Length: 0\r\n", b""),
    "lengths in one line": (b"Content-Length: 0, 5\r\n", CHUNKED),
    "the same lengths in one line": (b"Content-Length: 0, 0\r\n", b""),
    "a length with a sign": (b"Content-Length: +0\r\n", b""),
    "a negative length": (b"Content-Length: -1\r\n", b""),
    "a length in hex": (b"Content-Length: 0x0\r\n", b""),
    "a length with an underscore": (b"Content-Length: 1_0\r\n", b"0123456789"),
    "a length with a space": (b"Content-Length: 1 0\r\n", b"0123456789"),
    "an empty length": (b"Content-Length: \r\n", b""),
    "a very long length": (b"Content-Length: " + b"0" * 40 + b"\r\n", b""),
    "xchunked": (b"Transfer-Encoding: xchunked\r\n", CHUNKED),
    "chunked, identity": (b"Transfer-Encoding: chunked, identity\r\n", CHUNKED),
    "identity, chunked": (b"Transfer-Encoding: identity, chunked\r\n", CHUNKED),
    "chunked twice": (b"Transfer-Encoding: chunked, chunked\r\n", CHUNKED),
    "chunked in two lines": (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", CHUNKED),
    "gzip": (b"Transfer-Encoding: gzip\r\n", CHUNKED),
    "identity": (b"Transfer-Encoding: identity\r\n", CHUNKED),
    "quoted": (b'Transfer-Encoding: "chunked"\r\n', CHUNKED),
    "vertical tab": (b"Transfer-Encoding: \x0bchunked\r\n", CHUNKED),
    "a NUL": (b"Transfer-Encoding: chunked\x00\r\n", CHUNKED),
    "a space before the colon": (b"Content-Length : 5\r\n", CHUNKED),
    "a tab before the colon": (b"Content-Length\t: 5\r\n", CHUNKED),
    "a space before the colon, chunked": (b"Transfer-Encoding : chunked\r\n", CHUNKED),
    "a space before the name": (b" Content-Length: 5\r\n", CHUNKED),
    "a folded length": (b"Content-Length:\r\n 5\r\n", CHUNKED),
    "a folded header": (b"X-A: b\r\n Content-Length: 5\r\n", CHUNKED),
    "a folded header by a tab": (b"X-A: b\r\n\tContent-Length: 5\r\n", CHUNKED),
    "a bare LF": (b"Content-Length: 5\n", CHUNKED),
    "a bare LF in a header": (b"X-A: b\nContent-Length: 5\r\n", CHUNKED),
    "a bare LF hides the length": (b"X-A: b\nX: ", b""),
    "a bare CR": (b"X-A: b\rContent-Length: 5\r\n", CHUNKED),
    "a name without a colon": (b"Content-Length\r\n", CHUNKED),
    "no name": (b": 5\r\n", CHUNKED),
    "a bare LF in a chunk": (b"Transfer-Encoding: chunked\r\n", b"0\n\n"),
    "a bare LF after the trailers": (b"Transfer-Encoding: chunked\r\n", b"0\r\nX: y\n\n"),
    "a bare LF in the trailers": (b"Transfer-Encoding: chunked\r\n", b"0\r\nX: y\nA: b\r\n\r\n"),
    "a chunk with a sign": (b"Transfer-Encoding: chunked\r\n", b"+0\r\n\r\n"),
    "a chunk in hex": (b"Transfer-Encoding: chunked\r\n", b"0x0\r\n\r\n"),
    "a chunk with a space": (b"Transfer-Encoding: chunked\r\n", b" 0\r\n\r\n"),
    "a long chunk size": (b"Transfer-Encoding: chunked\r\n", b"0" * 30 + b"\r\n\r\n"),
    "a chunk that is too short": (b"Transfer-Encoding: chunked\r\n", b"1\r\nab\r\n0\r\n\r\n"),
}  # fmt: skip
LINES = {
    "HTTP/1.0 chunked": b"POST %s HTTP/1.0\r\nHost: localhost:%%d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no version": b"GET %s\r\n\r\n",
    "no host": b"GET %s HTTP/1.1\r\n\r\n",
    "a bare LF after the line": b"GET %s HTTP/1.1\nHost: localhost:%%d\r\n\r\n",
    "only bare LF": b"GET %s HTTP/1.1\nHost: localhost:%%d\n\n",
    "a space in the target": b"GET %s x HTTP/1.1\r\nHost: localhost:%%d\r\n\r\n",
    "a tab in the line": b"GET\t%s\tHTTP/1.1\r\nHost: localhost:%%d\r\n\r\n",
    "a CR in the line": b"GET %s\r HTTP/1.1\r\nHost: localhost:%%d\r\n\r\n",
}  # fmt: skip
PATHS = [b"/healthz", b"/api/v1/schedules", b"/nowhere"]  # open, and with authentication


@pytest.fixture(scope="module")
def port(api):
    return api.front.settings.listen_at[1]


@pytest.fixture
def no_error_is_logged(caplog):
    yield
    assert not [each for each in caplog.records if each.exc_info], caplog.text


def talk(port, sent, *, within=5.0):
    """Return all data received until the connection is closed, and the seconds until then."""
    begin, received = time.monotonic(), b""
    with socket.create_connection(("127.0.0.1", port), timeout=within) as connection:
        try:
            connection.sendall(sent)
            while part := connection.recv(65536):
                received += part
        except ConnectionError:
            pass
    return received, time.monotonic() - begin


def answers(received):
    return [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]]


def refused(port, sent):
    received, _ = talk(port, sent)
    assert answers(received) == [b"400"], received
    assert b"connection: close" in received.lower()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize(("headers", "body"), AMBIGUOUS.values(), ids=AMBIGUOUS)
@pytest.mark.usefixtures("no_error_is_logged")
def test_request_with_ambiguous_framing_has_one_response(api, headers, body, method, path):
    port = api.front.settings.listen_at[1]
    start = b"%s %s HTTP/1.1\r\nHost: localhost:%d\r\nAuthorization: Bearer %s\r\n"
    begin = start % (method, path, port, api.admin.encode())
    received, _ = talk(port, begin + headers + b"\r\n" + body + HIDDEN % port)
    assert len(answers(received)) <= 1, received
    if not body.startswith((b"0\n", b"0\r\nX", b"+", b" ", b"0x", b"00", b"1")):
        assert answers(received) == [b"400"], received  # its headers suffice to refuse it
    assert b"connection: close" in received.lower() or not received


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", LINES)
def test_ambiguous_request_line_has_one_response(port, name, path):
    sent = LINES[name] % path
    refused(port, (sent % port if b"%d" in sent else sent) + HIDDEN % port)


def test_request_received_byte_by_byte_is_framed_the_same(port):
    headers, body = AMBIGUOUS["both, chunked"]
    sent = b"POST /healthz HTTP/1.1\r\nHost: localhost:%d\r\n" % port + headers + b"\r\n" + body
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        try:
            for byte in sent + HIDDEN % port:
                connection.sendall(bytes([byte]))
            while part := connection.recv(65536):
                received += part
        except ConnectionError:
            pass
    assert len(answers(received)) <= 1


def test_pipelined_requests_have_one_response_each(api, port):
    ask = b"Host: localhost:%d\r\nAuthorization: Bearer %s\r\n" % (port, api.admin.encode())
    chunks = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    preview = b'{"every":"1h","run":{"command":["true"]}}'
    sent = b"GET /healthz HTTP/1.1\r\n" + ask + b"\r\n"
    sent += b"POST /api/v1/preview HTTP/1.1\r\n" + ask + chunks
    sent += b"%x\r\n%s\r\n0\r\nX-Trailer: a\r\n\r\n" % (len(preview), preview)
    sent += b"POST /api/v1/preview HTTP/1.1\r\n" + ask + b"Content-Type: application/json\r\n"
    sent += b"Content-Length: %d\r\n\r\n%s" % (len(preview), preview)
    sent += b"GET /api/v1/gate HTTP/1.1\r\nConnection: close\r\n" + ask + b"\r\n"
    received, _ = talk(port, sent)
    assert answers(received) == [b"200"] * 4, received


class TestBodiesOfUnknownCallers:
    """A body announced to an open path, or without credentials, is not read."""

    @pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE"])
    @pytest.mark.parametrize(
        ("path", "status"),
        [
            (b"/healthz", {b"200", b"405"}),
            (b"/readyz", {b"200", b"405"}),
            (b"/api/v1/healthz", {b"200", b"405"}),
            (b"/api/v1/readyz", {b"200", b"405"}),
            (b"/login", {b"403", b"405"}),
            (b"/api/v1/schedules", {b"401"}),
            (b"/logout", {b"401"}),
            (b"/nowhere", {b"401"}),
            (b"/api/v1/runs/1/status", {b"401"}),
            (b"/.well-known/onbeat", {b"400"}),
            (b"/.well-known/onbeat?challenge=0123456789abcdef", {b"200", b"400"}),
        ],
    )
    @pytest.mark.parametrize(
        "announced",
        [b"Content-Length: 1000", b"Transfer-Encoding: chunked", b"Content-Length: 5\r\n\r\n{"],
    )
    def test_response_does_not_wait_for_a_refused_body(self, port, method, path, status, announced):
        head = (
            b"%s %s HTTP/1.1\r\nHost: localhost:%d\r\nContent-Type: application/json\r\n%s\r\n\r\n"
        )
        received, seconds = talk(port, head % (method, path, port, announced))
        (answer,) = answers(received)
        assert answer in status
        assert b"connection: close" in received.lower()
        assert seconds < 3.0, "the connection is closed without the rest"

    def test_body_of_a_health_check_is_not_read(self, port):
        head = b"GET /healthz HTTP/1.1\r\nHost: localhost:%d\r\nContent-Type: application/json\r\n"
        received, _ = talk(port, head % port + b"Content-Length: 4\r\n\r\n[[[[")
        assert answers(received) == [b"200"]

    def test_response_to_a_refused_large_body_arrives(self, port):
        head = b"POST /api/v1/schedules HTTP/1.1\r\nHost: localhost:%d\r\n" % port
        head += b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
        for _ in range(20):
            received, _ = talk(port, head + b" " * 1_000_000)
            assert answers(received) == [b"401"]

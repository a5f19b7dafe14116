"""Limits of connections: their number, the timeout without a request, and files left for runs."""

import asyncio
import resource
import socket
import ssl
from contextlib import asynccontextmanager, suppress

import pytest

from onbeat.app.settings import Settings
from onbeat.web import server
from onbeat.web.security.tls import ssl_context
from onbeat.web.server import HttpServer, bind, most_connections
from tests.web.security.test_tls import Authority

ASKED = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
SOON = 0.3


async def let_pass(seconds):
    """Set the clock of the event loop forward, and let it do what is due by then."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds
    await asyncio.sleep(0.02)


async def hello(scope, receive, send):
    """Respond with hello without reading the whole request."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["path"] == "/slow":
        await let_pass(3 * SOON)
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def listening(tls=None, most=None, **limits):
    """Serve it; yield the address."""
    bound = bind("127.0.0.1", 0, most=most)
    there = bound.getsockname()
    serving = HttpServer(hello, bound, tls, **limits)
    await serving.start()
    try:
        yield there
    finally:
        await serving.stop()


async def answers(there):
    """Return whether a new connection gets a response."""
    reader, writer = await asyncio.open_connection(*there)
    try:
        with suppress(ConnectionError):
            writer.write(ASKED)
            return (await reader.read(12)) == b"HTTP/1.1 200"
        return False
    finally:
        writer.close()


async def closed_after(reader):
    """Return after how many seconds the server closes a connection."""
    begin = asyncio.get_running_loop().time()
    with suppress(ConnectionError):
        async with asyncio.timeout(10):
            while await reader.read(1000):
                pass
    return asyncio.get_running_loop().time() - begin


def test_connections_beyond_the_limit_are_closed_until_one_ends():
    async def connect():
        async with listening(most=3, request_within=30) as there:
            silent = [await asyncio.open_connection(*there) for _ in range(3)]
            for _ in range(5):
                assert not await answers(there)
            silent[0][1].close()
            assert any([await answers(there) for _ in range(50)]), "there is room again"
            for _, writer in silent:
                writer.close()

    asyncio.run(connect())


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n"])
def test_connection_without_a_request_is_closed(begin):
    async def connect():
        async with listening(request_within=SOON) as there:
            reader, writer = await asyncio.open_connection(*there)
            writer.write(begin)
            assert SOON / 2 < await closed_after(reader) < 5
            writer.close()

    asyncio.run(connect())


def test_sending_byte_by_byte_does_not_extend_the_timeout():
    async def connect():
        async with listening(request_within=SOON) as there:
            reader, writer = await asyncio.open_connection(*there)

            async def drip():
                for byte in b"GET / HTTP/1.1\r\nX: " + b"x" * 1000:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            assert await closed_after(reader) < 5
            dripping.cancel()
            writer.close()

    asyncio.run(connect())


@pytest.mark.parametrize("sent", [b"G", b"x"], ids=["a request", "what is left of a body"])
def test_second_request_of_a_connection_has_the_same_timeout(sent):
    first = ASKED if sent == b"G" else b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n"

    async def connect():
        async with listening(request_within=SOON) as there:
            reader, writer = await asyncio.open_connection(*there)
            writer.write(first)
            async with asyncio.timeout(5):
                await reader.readuntil(b"hello")
            await let_pass(2 * SOON)  # who was answered may think for longer
            writer.write(sent)
            assert SOON / 2 < await closed_after(reader) < 5
            writer.close()

    asyncio.run(connect())


def test_timeout_does_not_apply_while_a_response_is_computed():
    async def connect():
        async with listening(request_within=SOON) as there:
            reader, writer = await asyncio.open_connection(*there)
            for _ in range(2):
                writer.write(ASKED.replace(b"/ ", b"/slow ", 1))
                async with asyncio.timeout(5):
                    await reader.readuntil(b"hello")
            writer.close()

    asyncio.run(connect())


def test_connection_without_a_tls_handshake_is_counted_and_closed(tmp_path):
    authority = Authority(tmp_path, "ours")
    cert, key = authority.certificate("server")
    tls = ssl_context(Settings(tls_cert=cert, tls_key=key))

    async def connect():
        async with listening(tls, most=1, request_within=SOON) as there:
            reader, silent = await asyncio.open_connection(*there)
            other, writer = await asyncio.open_connection(*there)
            assert await closed_after(other) < SOON / 2
            assert await closed_after(reader) < 5
            silent.close()
            writer.close()
            trusting = ssl.create_default_context(cafile=authority.pem)
            reader, writer = await asyncio.open_connection(*there, ssl=trusting)
            writer.write(ASKED)
            assert await reader.read(12) == b"HTTP/1.1 200"
            writer.close()

    asyncio.run(connect())


@pytest.mark.parametrize(
    ("files", "most"),
    [(64, 16), (1024, 256), (10**6, 1000), (resource.RLIM_INFINITY, 1000), (2, 1)],
)
def test_connections_leave_most_open_files_to_runs(monkeypatch, files, most):
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: (files, files))
    assert most_connections() == most


def test_server_has_the_default_limit_of_connections(monkeypatch):
    monkeypatch.setattr(server, "most_connections", lambda: 2)

    async def connect():
        async with listening() as there:
            silent = [socket.create_connection(there) for _ in range(2)]
            await asyncio.sleep(0.05)
            assert not await answers(there)
            for each in silent:
                each.close()

    asyncio.run(connect())

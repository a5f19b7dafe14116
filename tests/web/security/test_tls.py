"""TLS on a real server, and the settings that require it."""

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings
from onbeat.service.tokens import Tokens
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock
from onbeat.web.security.middleware import SecurityMiddleware
from onbeat.web.security.tls import check_exposure, ssl_context
from onbeat.web.server import HttpServer, bind
from tests.given_settings import given_settings


class Authority:
    """A certificate authority."""

    def __init__(self, folder, name):
        self.folder, self.key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.pem = self._write(f"{name}.pem", self._sign(self.name, self.key, is_authority=True))

    def certificate(self, name):
        """Return the files of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        pem = self._write(f"{name}.pem", self._sign(subject, key))
        form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        text = key.private_bytes(serialization.Encoding.PEM, form, none)
        path = self.folder / f"{name}.key"
        path.write_bytes(text)
        path.chmod(0o600)
        return pem, str(path)

    def _sign(self, subject, key, *, is_authority=False):
        day = dt.timedelta(days=1)
        now = dt.datetime.now(dt.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    def _write(self, name, certificate):
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return str(path)


async def hello(scope, receive, send):
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"server", b"x")]})
    await send({"type": "http.response.body", "body": scope["scheme"].encode()})


@contextmanager
def serving(**given):
    """Serve on a real socket, in a thread; yield its port and the secret of a token."""
    given = given_settings(**given)
    listening = bind("127.0.0.1", 0)
    ready, loop, found = threading.Event(), asyncio.new_event_loop(), {}

    async def start():
        found["store"] = await SqliteStore.open(None, clock=ManualClock(), inline=True)
        tokens = Tokens(found["store"])
        _, found["secret"] = await tokens.create("ci", "read")
        door = SecurityMiddleware(hello, tokens=tokens, settings=given, clock=ManualClock())
        found["server"] = HttpServer(door, listening, ssl_context(given))
        await found["server"].start()
        ready.set()

    async def stop():
        await found["server"].stop()
        await found["store"].close()

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(20)
        yield listening.getsockname()[1], found["secret"]
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "authority")


def client_of(authority, certificate=None):
    context = ssl.create_default_context(cafile=authority.pem)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return httpx.Client(verify=context, timeout=10)


def get(client, port, secret=None, path="/api/v1/x"):
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    return client.get(f"https://localhost:{port}{path}", headers=headers)


def test_connections_use_tls(authority):
    cert, key = authority.certificate("server")
    with serving(tls_cert=cert, tls_key=key) as (port, secret), client_of(authority) as client:
        found = get(client, port, secret)
        assert (found.status_code, found.text) == (200, "https")
        assert "max-age" in found.headers["strict-transport-security"]
        assert "server" not in found.headers
        assert get(client, port).status_code == 401


def test_clients_without_a_required_certificate_are_refused(authority, tmp_path):
    cert, key = authority.certificate("server")
    stranger = Authority(tmp_path, "stranger").certificate("client-of-stranger")
    with serving(tls_cert=cert, tls_key=key, tls_client_ca=authority.pem) as (port, secret):
        with client_of(authority, authority.certificate("client")) as client:
            assert get(client, port, secret).status_code == 200
            assert get(client, port).status_code == 401  # authentication is still required
        for certificate in (None, stranger):
            with client_of(authority, certificate) as client, pytest.raises(httpx.TransportError):
                get(client, port, secret)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_tls_versions_are_refused(authority, version):
    cert, key = authority.certificate("server")
    context = ssl_context(Settings(tls_cert=cert, tls_key=key))
    assert context.minimum_version > version
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_plain_http_is_refused_on_a_tls_port(authority):
    cert, key = authority.certificate("server")
    with serving(tls_cert=cert, tls_key=key) as (port, _), pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{port}/healthz", timeout=10)


def test_settings_without_tls_have_no_context(authority):
    assert ssl_context(Settings()) is None


def test_key_readable_by_others_is_refused(authority):
    cert, key = authority.certificate("server")
    for mode in (0o604, 0o602, 0o666):
        (authority.folder / "server.key").chmod(mode)
        with pytest.raises(InvalidSettings, match=r"^tls_key: every user .* \(chmod 600\)$"):
            ssl_context(Settings(tls_cert=cert, tls_key=key))
    (authority.folder / "server.key").chmod(0o640)  # readable by a group, which is common
    assert ssl_context(Settings(tls_cert=cert, tls_key=key)) is not None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tls_cert": "a"}, "tls_key: tls_cert requires it (a PEM file)"),
        ({"tls_key": "a"}, "tls_cert: tls_key requires it (a PEM file)"),
        ({"tls_client_ca": "a"}, "tls_cert: tls_client_ca requires it (a PEM file)"),
        ({"tls_cert": "a", "tls_key": "none"}, "tls_key: 'none' cannot be read: No such file or directory (a PEM file)"),
    ],
)  # fmt: skip
def test_incomplete_tls_settings_are_refused(given, told):
    with pytest.raises(InvalidSettings) as refused:
        ssl_context(given_settings(**given))
    assert str(refused.value) == told


def test_key_of_another_certificate_is_refused(authority):
    cert, _ = authority.certificate("server")
    _, key = authority.certificate("other")
    with pytest.raises(InvalidSettings, match=r"^tls_cert: it does not match tls_key"):
        ssl_context(Settings(tls_cert=cert, tls_key=key))


def test_key_with_a_passphrase_is_refused(authority):
    cert, key = authority.certificate("server")
    plain = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    form, locked = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    (authority.folder / "server.key").write_bytes(
        plain.private_bytes(serialization.Encoding.PEM, form, locked)
    )
    with pytest.raises(InvalidSettings, match=r"^tls_key: it has a passphrase"):
        ssl_context(Settings(tls_cert=cert, tls_key=key))


@pytest.mark.parametrize("listen", ["0.0.0.0:8585", "[::]:8585", "192.0.2.1:443"])
def test_exposed_address_without_tls_is_refused(listen):
    with pytest.raises(InvalidSettings, match=r"^listen: .* TLS is not configured \(tls_cert and"):
        check_exposure(Settings(listen=listen))
    check_exposure(Settings(listen=listen, tls_cert="a", tls_key="b"))
    check_exposure(Settings(listen=listen, trusted_proxies=("10.0.0.7",)))


@pytest.mark.parametrize("listen", ["127.0.0.1:8585", "[::1]:8585", "localhost:0"])
def test_loopback_address_needs_no_tls(listen):
    check_exposure(Settings(listen=listen))


# -- on the wire


def spoken(port, text):
    """Send raw bytes; return all data received until the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while part := connection.recv(65_536):
            found += part
    return found


HOST = b"Host: localhost:%d\r\n"


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /%%ff HTTP/1.1\r\n" + HOST + b"\r\n", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 70_000 + b"\r\n\r\n", b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 200 + b"\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: -5\r\n\r\n", b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\n" + HOST + b"\r\n", b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", b"GET / HTTP/1.1\r\n" + HOST + b" folded\r\n\r\n",
    ],
)  # fmt: skip
def test_arbitrary_bytes_on_a_tls_port_are_refused(text):
    with serving() as (port, _):
        found = spoken(port, text.replace(b"%d", b"%d" % port).replace(b"%%", b"%"))
        assert not found or found.split(b" ")[1][:1] == b"4", found[:200]
        assert b"200 OK" in spoken(
            port, b"GET /healthz HTTP/1.1\r\nConnection: close\r\n" + HOST % port + b"\r\n"
        )

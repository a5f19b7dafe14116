"""Proof that a node of a database serves an address, for a caller that has the same database.

The caller sends a challenge to `PATH`; the node signs it together with the address at which it was
reached. No other process can: the key is in the database. The address reveals a process that
forwards the challenge to a node. The response needs no token and contains no secret.
"""

import http.client
import re
import secrets
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from onbeat.errors import OnbeatError
from onbeat.service.signed_tokens import Signer
from onbeat.web.security.asgi import App, Receive, Scope, Send
from onbeat.web.security.bodies import announces_body
from onbeat.web.security.responses import SecureSend

PATH = "/.well-known/onbeat"
CHALLENGE = re.compile(r"[A-Za-z0-9_-]{16,64}")
ANSWERS_WITHIN = 2.0  # seconds
LONGEST_RESPONSE = 1000  # bytes


class IdentityProof(msgspec.Struct, frozen=True):
    """The response of a node: the address at which it was reached, and the proof."""

    server: str
    proof: str


def with_identity_proof(app: App, signer: Callable[[], Awaitable[Signer]]) -> App:
    """Return the application with the identity proof at `PATH` added."""

    async def proving(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH:
            status, body = await _prove(scope, signer)
            headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
            headers.append((b"content-length", str(len(body)).encode()))
            guarded = SecureSend(send, has_unread=announces_body(scope))
            guarded.is_tls = scope["scheme"] == "https"
            await guarded({"type": "http.response.start", "status": status, "headers": headers})
            await guarded({"type": "http.response.body", "body": body})
        else:
            await app(scope, receive, send)

    return proving


async def _prove(scope: Scope, signer: Callable[[], Awaitable[Signer]]) -> tuple[int, bytes]:
    challenge = parse_qs(scope["query_string"].decode("latin-1")).get("challenge", [""])[-1]
    if scope["method"] != "GET" or CHALLENGE.fullmatch(challenge) is None:
        return 400, b'{"error": "GET with ?challenge=, 16 to 64 letters and digits"}'
    server = _host_and_port(*scope["server"])
    try:
        proof = (await signer()).proof(challenge, server)
    except OnbeatError:
        return 503, b'{"error": "the database does not answer"}'
    return 200, msgspec.json.encode(IdentityProof(server, proof))


class NotServed(NamedTuple):
    """Why a URL is not that of a node of this database."""

    why: str
    answers: bool  # whether a server answers at the URL


def not_served(url: str, signer: Signer, *, is_proxied: bool = False) -> NotServed | None:
    """Return why a URL is not that of a node of this database, or None if it is.

    A proxy in between reaches the node at another address than the caller reaches the proxy.
    """
    challenge = secrets.token_urlsafe(24)
    try:
        status, body, peer = _send_challenge(url, challenge)
    except (OSError, UnicodeError) as broken:  # UnicodeError: an invalid host name
        return NotServed(f"{url} does not answer ({_reason(broken)})", answers=False)
    except http.client.HTTPException:  # its text quotes the response, which may be anything
        why = f"{url} is served by another process, which does not speak HTTP"
        return NotServed(why, answers=True)
    found = IdentityProof("", "")
    if status == 200:
        with suppress(msgspec.MsgspecError):
            found = msgspec.json.decode(body, type=IdentityProof)
    if not compare_digest(signer.proof(challenge, found.server).encode(), found.proof.encode()):
        return NotServed(f"{url} is served by another process", answers=True)
    if not is_proxied and not _is_same(found.server, peer):
        why = f"{url} is served by another process, which forwards requests to a node"
        return NotServed(why, answers=True)
    return None


def not_certified(url: str, certificate: Path) -> NotServed | None:
    """Return why the server at a URL does not have this certificate, or None if it has.

    For servers that require a client certificate, and so cannot be challenged.
    """
    parts = urlsplit(url)
    try:
        own = ssl.PEM_cert_to_DER_cert(_first_certificate(certificate.read_text()))
        address = (parts.hostname or "", parts.port or 443)
        found = ssl.get_server_certificate(address, timeout=ANSWERS_WITHIN)
    except (OSError, ValueError) as broken:
        return NotServed(f"{url} does not answer ({_reason(broken)})", answers=False)
    if ssl.PEM_cert_to_DER_cert(found) != own:
        return NotServed(f"{url} is served by another process", answers=True)
    return None


def _send_challenge(url: str, challenge: str) -> tuple[int, bytes, tuple[str, int]]:
    """Return the status and body of the response, and the address that it came from."""
    parts = urlsplit(url)
    host, path = parts.hostname or "", f"{parts.path.rstrip('/')}{PATH}?challenge={challenge}"
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        # The challenge is the proof. The caller's browser checks the certificate.
        context = ssl._create_unverified_context()  # noqa: SLF001, S323
        connection = http.client.HTTPSConnection(
            host, parts.port, timeout=ANSWERS_WITHIN, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=ANSWERS_WITHIN)
    try:
        connection.connect()
        peer = connection.sock.getpeername()
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(LONGEST_RESPONSE), (peer[0], peer[1])
    finally:
        connection.close()


def _is_same(server: str, peer: tuple[str, int]) -> bool:
    """Return whether both are one socket; between machines, an address may be translated."""
    if ip_address(peer[0]).is_loopback:
        return server == _host_and_port(*peer)
    return server.rpartition(":")[2] == str(peer[1])


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _first_certificate(text: str) -> str:
    end = "-----END CERTIFICATE-----"
    return text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]


def _reason(broken: Exception) -> str:
    return (broken.strerror if isinstance(broken, OSError) else None) or str(broken) or "no answer"

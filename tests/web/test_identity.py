"""The proof of a node that it serves an address, for callers with its database."""

import socket
import threading
from pathlib import Path

import httpx
import pytest

from onbeat.service.signed_tokens import Signer
from onbeat.web.identity import PATH, not_certified, not_served
from tests.web.security.test_tls import Authority
from tests.web.serving import serving


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "authority")


def signer_of(api):
    return api.do(api.beat.service.tokens.signer())


def test_node_proves_its_address_only_to_callers_with_its_database(
    tmp_path,
):
    with serving(tmp_path) as api:
        assert not_served(api.url, signer_of(api)) is None
        found = not_served(api.url, Signer(b"x" * 32))
        assert (found.answers, found.why) == (True, f"{api.url} is served by another process")
    gone = not_served(api.url, Signer(b"x" * 32))
    assert not gone.answers
    assert gone.why == f"{api.url} does not answer (Connection refused)"


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_node_proves_its_address_over_ipv6(tmp_path):
    with serving(tmp_path, listen="[::1]:0") as api:
        assert api.url.startswith("http://[::1]:")
        assert not_served(api.url, signer_of(api)) is None


def test_node_proves_its_address_over_tls_with_any_certificate(tmp_path, authority):
    cert, key = authority.certificate("server")
    with serving(tmp_path, tls_cert=cert, tls_key=key) as api:
        assert api.url.startswith("https://")
        assert not_served(api.url, signer_of(api)) is None


def test_server_that_requires_client_certificates_is_identified_by_its_own(tmp_path, authority):
    cert, key = authority.certificate("server")
    other, _ = authority.certificate("other")
    with serving(tmp_path, tls_cert=cert, tls_key=key, tls_client_ca=authority.pem) as api:
        assert not not_served(api.url, signer_of(api)).answers
        assert not_certified(api.url, Path(cert)) is None
        assert not_certified(api.url, Path(other)).why == f"{api.url} is served by another process"
    assert not not_certified(api.url, Path(cert)).answers


@pytest.mark.parametrize("challenge", ["", "short", "x" * 65, "ä" * 20, "a b c d e f g h i j"])
def test_invalid_challenge_is_refused(tmp_path, challenge):
    with serving(tmp_path, node=False) as api:
        answer = httpx.get(f"{api.url}{PATH}", params={"challenge": challenge})
        assert (answer.status_code, "proof" in answer.text) == (400, False)
        assert httpx.post(f"{api.url}{PATH}", params={"challenge": "x" * 20}).status_code == 400


def test_proof_differs_by_challenge_and_is_not_a_token(tmp_path):
    with serving(tmp_path, node=False) as api:
        answers = [
            httpx.get(f"{api.url}{PATH}", params={"challenge": each * 20}).json() for each in "ab"
        ]
        assert answers[0]["server"] == answers[1]["server"] == api.url.removeprefix("http://")
        assert answers[0]["proof"] != answers[1]["proof"]
        for each in answers:
            token = f"onbeat-node.{each['proof']}"
            assert api.get("/session", token=token).status_code == 401


@pytest.mark.parametrize(
    "sent", [b"\x1b]0;owned\x07\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n"]
)
def test_process_that_does_not_speak_http_is_reported_without_its_text(sent):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(sent)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        found = not_served(url, Signer(b"x" * 32))
        thread.join()
    told = f"{url} is served by another process, which does not speak HTTP"
    assert (found.answers, found.why) == (True, told)


def test_url_with_an_invalid_host_does_not_answer():
    found = not_served(f"http://a{'b' * 70}.example", Signer(b"x" * 32))
    assert not found.answers

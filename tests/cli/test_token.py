"""`onbeat token`: secrets are shown once, and login links only for verified nodes."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import closing, contextmanager, suppress

import pytest

from tests.cli.test_verbs import (
    as_json,
    folder,  # noqa: F401 - what every test here is in
    ok,
    onbeat,
    refused,
)


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


SECRET = r"onbeat_[A-Za-z0-9_-]{43}"


def test_token_secret_is_printed_once_and_alone_on_stdout():
    done = onbeat("token", "create", "ci", "--scope", "operate")
    assert re.fullmatch(rf"{SECRET}\n", done.stdout)
    assert done.stderr == "keep this secret: it is not shown again\n"
    assert done.stdout.strip() not in ok("token", "list") + json.dumps(as_json("token", "list"))


def test_token_list_shows_scope_and_owner():
    found = as_json(
        "token", "create", "ann", "--scope", "define", "--owner", "ann", "--expires", "90d"
    )
    assert re.fullmatch(SECRET, found.pop("secret"))
    assert as_json("token", "list") == [found]
    assert (found["scope"], found["owner"], found["kind"]) == ("define", "ann", "token")
    assert found["created_by"].startswith("cli:")
    heading, line = ok("token", "list").splitlines()
    assert heading.split() == ["TOKEN", "SCOPE", "OWNER", "BY", "CREATED", "EXPIRES"]
    assert line.split()[:3] == ["ann", "define", "ann"]
    assert line.endswith("(in 89d 23h)")


def test_token_has_scope_read_by_default():
    assert as_json("token", "create", "ci")["scope"] == "read"


def test_revoked_token_is_not_listed():
    as_json("token", "create", "ci")
    assert ok("token", "revoke", "ci") == "revoked ci\n"
    assert ok("token", "list") == "no tokens (onbeat token create NAME creates one)\n"
    assert refused(1, "token", "revoke", "ci") == "no token is called 'ci'"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            ("a b",),
            "name: 'a b' is not a valid token name (letters, digits and . _ @ -, at most 100)",
        ),
        (("ci", "--expires", "soon"), "--expires: 'soon' is not a duration"),
        (("ci", "--expires", "0s"), "expires: it is out of bounds (1s to 36500d)"),
        (("ci", "--owner", "a b"), "owner: 'a b' is not a valid owner name"),
    ],
)
def test_token_create_refuses_invalid_arguments(given, told):
    assert refused(2, "token", "create", *given).startswith(told)


LINK = r"http://127\.0\.0\.1:{port}/login\?code=onbeat_link_[\w-]{{43}}"


@contextmanager
def listener(answer=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"):
    """Another process, as far as a node can see: it answers whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard = []

        def serve():
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        heard.append(connection.recv(65536))
                        connection.sendall(answer(heard[-1]) if callable(answer) else answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], heard
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def api(*arguments, port=0):
    """A node with an API, in the background; what its start wrote."""
    where = ["--listen", f"127.0.0.1:{port}"] if port else []
    command = [sys.executable, "-m", "onbeat", "up", "-d", "--roles", "plan,run,api"]
    started = subprocess.run(
        [*command, *where, *arguments], capture_output=True, text=True, check=False, timeout=30
    )
    try:
        yield started
    finally:
        onbeat("down")


@contextmanager
def default_port_taken():
    with socket.socket() as taken:
        with suppress(OSError):  # another program has it: that is as good
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", 8585))
            taken.listen()
        yield


def codes():
    """Return how many codes of links are kept, used or not."""
    with closing(sqlite3.connect("onbeat.db")) as database:
        return database.execute("SELECT count(*) FROM tokens WHERE kind = 'link'").fetchone()[0]


def test_login_link_has_the_address_of_the_node(free_port):
    with api(port=free_port):
        found = as_json("token", "link", "--scope", "read")
        assert re.fullmatch(LINK.format(port=free_port), found["link"])
        assert found.keys() == {"link", "expires_at"}
        with urllib.request.urlopen(found["link"]) as opened:
            assert b"You are logged in." in opened.read()


def test_login_link_is_refused_without_a_node_that_serves_the_api(free_port, monkeypatch):
    as_json("token", "create", "ci")
    monkeypatch.setenv("ONBEAT_LISTEN", f"127.0.0.1:{free_port}")
    told = refused(69, "token", "link")
    url = f"http://127.0.0.1:{free_port}"
    assert told.startswith(
        f"no link: no node of this database serves the API: {url} does not answer"
    )
    assert told.endswith("(onbeat up starts a node; onbeat status shows those that are up)")
    assert codes() == 0


@pytest.mark.parametrize("body", [b"{}", b'{"server": "", "proof": ""}', b"<html>"])
def test_login_link_is_refused_if_another_process_serves_the_address(body, monkeypatch):
    as_json("token", "create", "ci")
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with listener(head + body) as (port, heard):
        monkeypatch.setenv("ONBEAT_LISTEN", f"127.0.0.1:{port}")
        assert f"http://127.0.0.1:{port} is served by another process" in refused(
            69, "token", "link"
        )
    assert codes() == 0
    assert not any(b"onbeat_link_" in each for each in heard)


def test_process_that_forwards_the_challenge_to_a_node_is_detected(free_port, monkeypatch):
    def passed_on(request):
        with socket.create_connection(("127.0.0.1", free_port)) as node:
            node.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):
                answer += node.recv(65536)
            return answer

    with api(port=free_port), listener(passed_on) as (port, heard):
        with closing(sqlite3.connect("onbeat.db")) as database, database:
            database.execute("UPDATE nodes SET address = ?", (f"http://127.0.0.1:{port}",))
        monkeypatch.setenv("ONBEAT_LISTEN", f"127.0.0.1:{port}")
        told = refused(69, "token", "link")
        assert "is served by another process, which forwards requests to a node" in told
        assert b"/.well-known/onbeat?challenge=" in heard[0]


def test_killed_node_is_not_in_a_login_link(free_port):
    with api(port=free_port) as started:
        os.kill(int(re.search(r"process (\d+)", started.stdout)[1]), signal.SIGKILL)
        until = time.monotonic() + 10
        while (done := onbeat("token", "link")).exit_code != 69 and time.monotonic() < until:
            time.sleep(0.05)
        assert "no node of this database serves the API" in done.stderr


def test_public_url_is_used_if_it_leads_to_a_node_or_cannot_be_reached(free_port, monkeypatch):
    with api(port=free_port):
        monkeypatch.setenv("ONBEAT_LISTEN", f"127.0.0.1:{free_port}")
        monkeypatch.setenv("ONBEAT_PUBLIC_URL", f"http://localhost:{free_port}")
        assert ok("token", "link").startswith(
            f"http://localhost:{free_port}/login?code=onbeat_link_"
        )
        monkeypatch.setenv("ONBEAT_PUBLIC_URL", "https://127.0.0.1:1")
        done = onbeat("token", "link")
        assert done.stdout.startswith("https://127.0.0.1:1/login?code=onbeat_link_")
        assert done.stderr.startswith("onbeat: not checked from here: https://127.0.0.1:1 does not")
        with listener() as (port, _):
            monkeypatch.setenv("ONBEAT_PUBLIC_URL", f"http://127.0.0.1:{port}")
            told = refused(69, "token", "link")
        assert told.endswith("is served by another process (public_url must lead to the API)")


def test_up_is_refused_if_the_configured_port_is_in_use():
    with listener() as (port, _), api(port=port) as started:
        assert started.returncode == 69
        assert started.stderr == (
            f"onbeat: 127.0.0.1:{port} is in use by another process"
            " (--listen 127.0.0.1:0 takes a free port; or name another)\n"
        )


def test_up_takes_and_prints_the_next_free_port_by_default():
    with default_port_taken(), api() as started:
        told = r"onbeat: 127\.0\.0\.1:8585 is in use by another process: the API is at 127\.0\.0\.1:(\d+)"
        port = re.match(told, started.stderr)[1]
        assert started.stderr.endswith(" (--listen HOST:PORT chooses another)\n")
        assert port != "8585"
        assert f"api        http://127.0.0.1:{port}/api/v1\n" in started.stdout
        assert re.fullmatch(LINK.format(port=port) + "\n", ok("token", "link"))
        assert as_json("status")["nodes"][0]["address"] == f"http://127.0.0.1:{port}"


def test_up_with_a_public_url_takes_no_other_port():
    with default_port_taken(), api("--public-url", "https://onbeat.example.com") as started:
        assert started.returncode == 69
        assert "127.0.0.1:8585 is in use by another process" in started.stderr


def test_login_link_is_refused_without_a_database():
    assert "does not exist" in refused(69, "token", "link")


def test_token_expiry_on_postgresql_uses_the_database_clock(postgres_url, monkeypatch):
    monkeypatch.setenv("ONBEAT_DATABASE", postgres_url)
    found = as_json("token", "create", "ci", "--expires", "90d")
    assert re.fullmatch(SECRET, found["secret"])
    assert found["created_at"][:10] in {
        time.strftime("%Y-%m-%d", time.gmtime(time.time() + ago)) for ago in (0, -60)
    }

"""Requests restricted to public addresses reach no others, by URL, name or redirect.

The witness is a listener on every address of this machine: not one connection may reach it.
"""

import asyncio
import socket
import threading

import pytest

from onbeat.core.runs.run import Failed, Succeeded
from onbeat.core.target import Target
from onbeat.errors import InvalidSchedule
from onbeat.launchers.http import target
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.ports.http import HttpResponse
from tests.launchers.test_http import an_attempt, redirects, server, start_server  # noqa: F401

NAMES = {
    "loop.test": ["127.0.0.1"], "loop6.test": ["::1"], "many.test": ["10.0.0.1", "127.0.0.1", "::1"],
    "metadata.google.internal": ["169.254.169.254"], "localhost": ["127.0.0.1", "::1"],
    "localhost.localdomain": ["127.0.0.1"], "127.0.0.1.nip.test": ["127.0.0.1"], "mapped.test": ["::ffff:127.0.0.1"],
    "nat64.test": ["64:ff9b::7f00:1"], "zero.test": ["0.0.0.0"], "any6.test": ["::"], "scoped.test": ["fe80::1%1"],
    "localtest.me": ["127.0.0.1"], "xn--lcalhost-4s7c": ["127.0.0.1"], "sixtofour.test": ["2002:7f00:1::1"],
}  # fmt: skip

URLS = [
    # an address of this machine, in every notation that some program accepts
    "http://127.0.0.1:{port}/", "http://127.1:{port}/", "http://127.0.1:{port}/", "http://2130706433:{port}/", "http://0x7f000001:{port}/",
    "http://0x7f.0.0.1:{port}/", "http://0x7f.1:{port}/", "http://0177.0.0.1:{port}/", "http://017700000001:{port}/", "http://0177.0.0x1:{port}/",
    "http://00000177.1:{port}/", "http://127.000.000.001:{port}/", "http://0:{port}/", "http://0.0.0.0:{port}/", "http://0x0:{port}/",
    "http://127.127.127.127:{port}/", "http://127.0.0.1.:{port}/", "http://4294967295:{port}/", "http://6425673729:{port}/", "http://256.256.256.256:{port}/",
    "http://[::1]:{port}/", "http://[::]:{port}/", "http://[0:0:0:0:0:0:0:1]:{port}/", "http://[0000::0001]:{port}/", "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/", "http://[::127.0.0.1]:{port}/", "http://[::ffff:0:127.0.0.1]:{port}/", "http://[64:ff9b::127.0.0.1]:{port}/",
    "http://[64:ff9b::7f00:1]:{port}/", "http://[64:ff9b:1::7f00:1]:{port}/", "http://[2002:7f00:1::]:{port}/", "http://[2001:0:7f00:1::80ff:fffe]:{port}/",
    "http://[fe80::1%25lo]:{port}/", "http://[fe80::1%lo]:{port}/", "http://[::1%25lo]:{port}/", "http://[::1%lo]:{port}/", "http://[fec0::1]:{port}/",
    # names
    "http://localhost:{port}/", "http://LOCALHOST:{port}/", "http://localhost.:{port}/", "http://localhost.localdomain:{port}/", "http://loop.test:{port}/",
    "http://loop6.test:{port}/", "http://many.test:{port}/", "http://mapped.test:{port}/", "http://nat64.test:{port}/", "http://zero.test:{port}/",
    "http://any6.test:{port}/", "http://scoped.test:{port}/", "http://sixtofour.test:{port}/", "http://127.0.0.1.nip.test:{port}/", "http://localtest.me:{port}/",
    "http://xn--lcalhost-4s7c:{port}/",
    # metadata of clouds
    "http://169.254.169.254/", "http://169.254.169.254:{port}/latest/meta-data/", "http://[fd00:ec2::254]/", "http://metadata.google.internal/",
    "http://0xa9fea9fe/", "http://2852039166/", "http://0251.0376.0251.0376/", "http://[::ffff:a9fe:a9fe]/", "http://100.100.100.200/", "http://168.63.129.16/",
    "http://192.0.0.192/",
    # URLs in which some parsers see another host
    "http://user@127.0.0.1:{port}/", "http://example.com@127.0.0.1:{port}/", "http://127.0.0.1:{port}@example.com/", "http://example.com#@127.0.0.1:{port}/",
    "http://example.com\\@127.0.0.1:{port}/", "http://127.0.0.1:{port}\\@example.com/", "http://example.com:80@127.0.0.1:{port}/", "http://127.0.0.1 :{port}/",
    "http://127.0.0.1%00.example.com:{port}/", "http://127.0.0.1%2eexample.com:{port}/", "http://127。0。0。1:{port}/", "http://①②⑦.⓪.⓪.①:{port}/",
    "http://\uff11\uff12\uff17.\uff10.\uff10.\uff11:{port}/", "http://127.0.0.1\u3002:{port}/", "http://l\u043ecalhost:{port}/", "http://ⓛocalhost:{port}/", "http://loca\u00adlhost:{port}/",
    "http://127.0.0.1\r\nHost: x:{port}/", "http://127.0.0.1:{port}/\r\nX: y", "http://127.0.0.1\t:{port}/", "http:///127.0.0.1:{port}/", "http:127.0.0.1:{port}/",
    "http:/\\127.0.0.1:{port}/", "//127.0.0.1:{port}/", "http://[127.0.0.1]:{port}/", "http://[::1:{port}/", "http://::1:{port}/", "http://127.0.0.1:0{port}0/",
    "http://127.0.0.1:-1/", "http://127.0.0.1:99999/", "http://{{{{ key }}}}:{port}/", "http://${{env:HOST}}:{port}/", "https://127.0.0.1:{port}/", "HTTP://127.0.0.1:{port}/",
    # other schemes
    "file:///etc/passwd", "gopher://127.0.0.1:{port}/_x", "dict://127.0.0.1:{port}/x", "ftp://127.0.0.1:{port}/", "ws://127.0.0.1:{port}/", "unix:///run/x.sock",
    "http+unix://%2Frun%2Fx.sock/", "jar:http://127.0.0.1:{port}/!/", "data:text/plain,x",
]  # fmt: skip


class Witness:
    """Listens on all addresses of this machine, and records the connections."""

    def __init__(self, addresses, port=0):
        self.connections, self._sockets = [], []
        for family, host in addresses:
            listening = socket.create_server((host, port), family=family)
            port = listening.getsockname()[1]
            self._sockets.append(listening)
            threading.Thread(target=self._listen, args=[listening], daemon=True).start()
        self.port = port

    def _listen(self, listening):
        while True:
            try:
                connection, peer = listening.accept()
            except OSError:
                return
            self.connections.append(peer)
            with connection:
                connection.recv(1000)
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )

    def close(self):
        for each in self._sockets:
            each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def witness():
    found = Witness([(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")])
    yield found
    found.close()


async def look_up(host, port):
    """Resolve only the names above: no traffic of a test leaves this machine."""
    if host.lower().rstrip(".") not in NAMES:
        raise socket.gaierror(socket.EAI_NONAME, "not known")
    return NAMES[host.lower().rstrip(".")]


def launch(*attempts, **given):
    """Send requests with one launcher, one after the other; return their outcomes."""

    async def main():
        launcher = HttpLauncher(
            version="1", environment={"HOST": "127.0.0.1"}, timeout=5000, resolve=look_up, **given
        )
        try:
            return [(await launcher.launch(attempt))[0] for attempt in attempts]
        finally:
            await launcher.close()

    return asyncio.run(main())


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("url", URLS)
def test_only_public_addresses_are_reached(witness, url, method):
    url = url.format(port=witness.port)
    (found,) = launch(an_attempt(url, method=method, public_only=True))
    assert isinstance(found, Failed)
    assert witness.connections == []


@pytest.mark.parametrize("url", URLS)
def test_literal_private_address_is_refused_when_defined(url):
    launcher = HttpLauncher(version="1", environment={}, resolve=look_up)
    fields = {"http": url.format(port=8080), "public_only": True}
    host = url.partition("//")[2].partition(":{port}")[0].lower().rstrip("./")
    if host in NAMES:
        launcher.check(Target("http", fields))  # its address may be public at launch
    else:
        with pytest.raises(InvalidSchedule):
            launcher.check(Target("http", fields))


LOCATIONS = [
    "http://127.0.0.2:{port}/", "//127.0.0.2:{port}/", "http://127.2:{port}/", "http://2130706434:{port}/", "http://0x7f000002:{port}/",
    "http://0177.0.0.2:{port}/", "http://private.test:{port}/", "http://[::ffff:127.0.0.2]:{port}/", "http://user@127.0.0.2:{port}/",
    "http://127.0.0.1:80@127.0.0.2:{port}/", "\\\\127.0.0.2:{port}/", "http:\\\\127.0.0.2:{port}/", "/\\127.0.0.2:{port}/", "http://127.0.0.2:{port}#/",
    "HTTP://127.0.0.2:{port}/", "http:127.0.0.2:{port}", "///127.0.0.2:{port}/", "http://127.0.0.2%3A{port}/", "http://both.test:{port}/",
]  # fmt: skip


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("status", [302, 307])
def test_redirects_reach_no_private_address(server, monkeypatch, location, status):  # noqa: F811
    # 127.0.0.1 is the only public address, as tests can reach no other.
    monkeypatch.setattr(target, "is_public", lambda address: str(address) == "127.0.0.1")
    monkeypatch.setitem(NAMES, "private.test", ["127.0.0.2"])
    monkeypatch.setitem(NAMES, "both.test", ["127.0.0.2", "127.0.0.1"])
    inside = Witness([(socket.AF_INET, "127.0.0.2")])
    server.answer = redirects(location.format(port=inside.port), status=status)
    try:
        launch(an_attempt(server.url, method="GET", public_only=True))
        assert server.seen  # it answered with the redirect
        assert inside.connections == []
    finally:
        inside.close()


@pytest.mark.parametrize("given", [{"public_only": True}, {}])
def test_request_of_another_launcher_reaches_no_private_address(witness, given):
    async def ask(**more):
        launcher = HttpLauncher(version="1", environment={}, public_only=not given)
        try:
            url = f"http://127.0.0.1:{witness.port}/"
            return await launcher.ask("GET", url, **given, **more)
        finally:
            await launcher.close()

    refused = asyncio.run(ask())
    assert refused.reason == "invalid_target"
    assert "has no public address" in refused.error
    assert witness.connections == []
    trusted = asyncio.run(ask(trusted=True))
    assert isinstance(trusted, Failed if given else HttpResponse)
    assert len(witness.connections) == (0 if given else 1)


def test_witness_records_unrestricted_requests(witness):
    urls = [url for url in URLS[:5] if "127" in url]
    found = launch(*(an_attempt(url.format(port=witness.port)) for url in urls))
    assert found == [Succeeded()] * len(urls)
    assert len(witness.connections) == len(urls)


def test_tables_of_urls_are_not_shortened():
    assert len(set(URLS)) >= 100
    assert len(set(LOCATIONS)) >= 19

"""Streams: authorization, limits, and their end."""

import asyncio
import time
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import fields, replace
from uuid import uuid4

import httpx
import pytest

from onbeat.core.runs.phase import Phase
from onbeat.ports.rows import NodeRow, RunRow
from onbeat.web import live, output
from onbeat.web.live import EventStreams
from onbeat.web.output import Output
from tests.inside import listeners_of
from tests.waiting import until
from tests.web.serving import serving
from tests.web.test_schedules import problem
from tests.web.waiting import eventually

ENDLESS = {"every": "1h", "run": {"command": ["sh", "-c", "echo one; sleep 60"]}}


@pytest.fixture
def name():
    """Return a unique name."""
    return f"s-{uuid4().hex[:8]}"


@pytest.fixture
def looks_often(monkeypatch):
    monkeypatch.setattr(live, "AUTHORIZE_EVERY", 0.02)


@contextmanager
def stream(api, path, token=None, **options):
    """Open a stream; yield an iterator of its lines, once the first has arrived."""
    headers = {} if "cookies" in options else {"Authorization": f"Bearer {token or api.admin}"}
    url = f"{api.url}/api/v1{path}"
    with httpx.stream("GET", url, headers=headers, timeout=10, **options) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(lines)
        yield lines


def a_token(api, name, **options):
    return api.do(api.beat.service.tokens.create(name, "read", **options))[1]


def started(api, name, fields=ENDLESS):
    """Return a started run with some output."""
    api.put(f"/schedules/{name}", fields)
    run = api.post(f"/schedules/{name}/run").json()["run_id"]
    eventually(lambda: api.get(f"/runs/{run}/log").text)
    return run


def paths(api, name):
    return ["/events", f"/runs/{started(api, name)}/log?follow=true"]


@pytest.mark.usefixtures("looks_often")
def test_stream_ends_when_its_token_is_revoked_and_not_before(api, name):
    with ExitStack() as open_streams:
        there = [
            open_streams.enter_context(stream(api, path, token=a_token(api, f"{name}-{n}")))
            for n, path in enumerate(paths(api, name))
        ]
        other = open_streams.enter_context(stream(api, "/events"))
        time.sleep(0.09)  # it is looked up several times
        api.put(f"/schedules/{name}-2", ENDLESS)
        assert next(each for each in there[0] if each.startswith("event:")), "the stream continues"
        for n, lines in enumerate(there):
            api.do(api.beat.service.tokens.revoke(f"{name}-{n}"))
            begin = time.monotonic()
            list(lines)
            assert time.monotonic() - begin < 5
        api.delete(f"/schedules/{name}-2")
        assert "event: schedule.deleted" in other, "of others nothing ends"


@pytest.mark.usefixtures("looks_often")
def test_stream_ends_when_its_token_expires(api, name):
    for n, path in enumerate(paths(api, name)):
        with stream(api, path, token=a_token(api, f"{name}-{n}", expires_in=800)) as lines:
            list(lines)


@pytest.mark.usefixtures("looks_often")
def test_stream_ends_with_its_session(api, name):
    tokens = api.beat.service.tokens
    for path in paths(api, name):
        session = api.do(tokens.session(api.do(tokens.link())))
        with stream(api, path, cookies={"onbeat": session.secret}) as lines:
            time.sleep(0.09)
            api.do(tokens.end_session(session.secret))
            list(lines)


def test_authorization_of_streams_is_checked_within_five_seconds():
    from onbeat.service.tokens import CACHED_FOR  # noqa: PLC0415 - what was looked up may be as old

    assert live.AUTHORIZE_EVERY + CACHED_FOR <= 5


def test_number_of_streams_of_a_caller_is_limited(api, name, monkeypatch):
    monkeypatch.setattr(live, "MOST_STREAMS_OF_CALLER", 2)
    events, log = paths(api, name)
    token = a_token(api, name)
    with stream(api, log, token):
        with stream(api, events, token):
            for path in (events, log):
                told = problem(api.get(path, token=token), 429)["problem"]
                assert told == f"token:{name} has too many open streams"
            with stream(api, events), stream(api, log):
                pass
            assert api.get(log.removesuffix("?follow=true"), token=token).text == "one\n"
        eventually(lambda: not api.front._live.is_full_for(f"token:{name}"))
        with stream(api, log, token):
            pass


def test_streams_of_nodes_count_only_towards_the_total(api, name, monkeypatch):
    monkeypatch.setattr(live, "MOST_STREAMS_OF_CALLER", 1)
    signer, now = api.do(api.beat.service.tokens.signer()), api.beat.service.clock.now()
    token = signer.node_token(now + 30_000)
    log = f"/runs/{started(api, name)}/log?follow=true&here=true"
    eventually(lambda: listeners_of(api.front) == 0)
    with stream(api, log, token), stream(api, log, token):
        monkeypatch.setattr(live, "MOST_STREAMS", 2)
        assert "streams are open" in problem(api.get(log), 503)["problem"]


def test_output_of_each_attempt_is_streamed(api, name, tmp_path):
    script = (
        f"echo try; if [ -e {tmp_path}/2 ]; then exit 0; fi; "
        f"if [ -e {tmp_path}/1 ]; then touch {tmp_path}/2; exit 1; fi; "
        f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; touch {tmp_path}/1; exit 1"
    )
    command = {"every": "1h", "run": {"command": ["sh", "-c", script]}, "retry": ["1s", "1s"]}
    run = started(api, name, command)
    headers = {"Authorization": f"Bearer {api.admin}"}
    url = f"{api.url}/api/v1/runs/{run}/log?follow=true"
    with httpx.stream("GET", url, headers=headers, timeout=10) as answer:
        (tmp_path / "go").touch()
        lines = list(answer.iter_lines())
    assert lines == ["try", "[attempt 2]", "try", "[attempt 3]", "try"]
    assert api.get(f"/runs/{run}").json()["status"] == "SUCCESS"


def test_node_without_the_output_file_says_so(api, name, monkeypatch):
    monkeypatch.setattr(output, "FILE_WITHIN", 0.3)
    api.put(f"/schedules/{name}", ENDLESS)
    api.put("/gate", {"gate": "closed"})
    try:
        run = api.post(f"/schedules/{name}/run").json()["run_id"]
        told = api.get(f"/runs/{run}/log?follow=true&here=true").text
    finally:
        api.post(f"/runs/{run}/cancel")
        api.put("/gate", {"gate": "open"})
    assert told == output.NOT_HERE.decode()


class Elsewhere:
    """A run on another node, whose responses a test defines."""

    def __init__(self, folder):
        unsaid = {each.name: None for each in fields(RunRow)}
        known = {"run_id": 7, "attempt": 1, "leased_by": "b", "phase": Phase.RUNNING}
        self.run, self.address, self.asked = RunRow(**unsaid | known), "", []
        self.folder, self.looks = folder, 0

    async def again(self):
        self.looks += 1
        return self.run

    def ends(self, tail):
        self.run = replace(self.run, leased_by=None, finished_at=1, log_tail=tail)

    async def heard(self):
        """Stream the output to its end, and return it."""

        async def nodes():
            none = frozenset()
            return [NodeRow("b", "b", none, none, 0, 0, "1", "UTC", 1, address=self.address)]

        async def node_token():
            return "secret"

        found = Output(
            EventStreams(),
            path_of=lambda run: self.folder / str(run.attempt),
            nodes=nodes,
            node_token=node_token,
        )
        async with asyncio.timeout(10):
            return b"".join([each async for each in found.follow(self.run, self.again)])

    @asynccontextmanager
    async def answered_by(self, answer):
        async def asked(reader, writer):
            self.asked.append(await reader.readuntil(b"\r\n\r\n"))
            await answer(writer)
            writer.close()

        async with await asyncio.start_server(asked, "127.0.0.1", 0) as server:
            self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield


OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


@pytest.fixture
def elsewhere(tmp_path):
    return Elsewhere(tmp_path)


def test_silent_run_of_another_node_is_followed_while_it_runs(elsewhere, monkeypatch):
    assert output.TIMEOUT.sock_read is output.TIMEOUT.total is None
    monkeypatch.setattr(output, "RECHECK_EVERY", 0.02)

    async def answer(writer):
        writer.write(OK + b"one\n")
        await until(lambda: elsewhere.looks > 3)
        writer.write(b"two\n")
        elsewhere.ends("two\n")

    async def follow():
        async with elsewhere.answered_by(answer):
            return await elsewhere.heard()

    assert asyncio.run(follow()) == b"one\ntwo\n"
    assert elsewhere.looks > 3, "the run is read again meanwhile"


def test_output_stream_ends_if_the_run_ended_and_its_node_is_silent(elsewhere, monkeypatch):
    monkeypatch.setattr(output, "RECHECK_EVERY", 0.02)
    gone = asyncio.Event()

    async def answer(writer):
        writer.write(OK)
        await until(lambda: elsewhere.looks > 1)
        elsewhere.ends("all of it\n")
        await gone.wait()

    async def follow():
        async with elsewhere.answered_by(answer):
            try:
                return await elsewhere.heard()
            finally:
                gone.set()

    assert asyncio.run(follow()) == b"all of it\n"


def test_redirect_of_a_node_is_not_followed(elsewhere):
    async def answer(writer):
        there = f"Location: {elsewhere.address}/other\r\n".encode()
        writer.write(b"HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\n" + there)
        writer.write(b"\r\n")
        elsewhere.ends("kept\n")

    async def follow():
        async with elsewhere.answered_by(answer):
            return await elsewhere.heard()

    assert asyncio.run(follow()) == b"[its node answered with status 302]\nkept\n"
    assert len(elsewhere.asked) == 1


def test_next_attempt_is_followed_on_its_node(elsewhere):
    async def answer(writer):
        writer.write(OK + b"elsewhere\n")
        (elsewhere.folder / "2").write_text("here\n")
        elsewhere.run = replace(elsewhere.run, attempt=3, leased_by=None)
        (elsewhere.folder / "3").write_text("and again\n")
        asyncio.get_running_loop().call_later(0.3, elsewhere.ends, "and again\n")

    async def follow():
        async with elsewhere.answered_by(answer):
            return await elsewhere.heard()

    lines = ["elsewhere", "[attempt 2]", "here", "[attempt 3]", "and again"]
    assert asyncio.run(follow()).decode().splitlines() == lines


def test_attempts_of_a_run_of_another_node_are_streamed(tmp_path, postgres_url, name):
    heard = tmp_path / "heard"  # the first attempt runs until then
    script = f"echo try; [ -e {heard} ] || {{ until [ -e {heard} ]; do sleep 0.05; done; exit 1; }}"
    command = {"every": "1h", "run": {"command": ["sh", "-c", script]}, "retry": ["1s"]}
    with (
        serving(tmp_path / "a", database=postgres_url, roles=("plan", "api")) as asked,
        serving(tmp_path / "b", database=postgres_url),
    ):
        asked.put(f"/schedules/{name}", command)
        run = asked.post(f"/schedules/{name}/run").json()["run_id"]
        headers = {"Authorization": f"Bearer {asked.admin}"}
        url = f"{asked.url}/api/v1/runs/{run}/log?follow=true"
        with httpx.stream("GET", url, headers=headers, timeout=10) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            heard.touch()
            assert [first, *lines] == ["try", "[attempt 2]", "try"]

"""Event streams: each event once, in order, resumable, and without blocking other clients."""

import itertools
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import httpx
import pytest

from onbeat.web import live
from tests.inside import listeners_of
from tests.web.serving import serving
from tests.web.test_schedules import problem
from tests.web.waiting import eventually

HOURLY = {"every": "1h", "run": {"command": ["true"]}}


@pytest.fixture
def name():
    """Return a unique name."""
    return f"e-{uuid4().hex[:8]}"


@contextmanager
def following(api, query="", *, token=None, last=None):
    """Open a stream; yield an iterator of its events, as (id, name, fields)."""
    headers = {"Authorization": f"Bearer {token or api.admin}"}
    if last is not None:
        headers["Last-Event-ID"] = last
    with httpx.stream(
        "GET", f"{api.url}/api/v1/events{query}", headers=headers, timeout=20
    ) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines) == "retry: 2000"
        yield events_of(lines)


def events_of(lines):
    told = {}
    for line in lines:
        field, _, value = line.partition(": ")
        if line:
            told[field] = value
        elif "data" in told:
            data = json.loads(told["data"])
            assert (data["event_id"], data["name"]) == (told["id"], told["event"])
            yield told["id"], told["event"], data["fields"]
            told = {}


def until(events, name, kind="schedule.deleted"):
    """Return the events up to one with this name, of this schedule."""
    found = []
    for each in events:
        found.append(each)
        if each[1] == kind and each[2].get("schedule_id") == name:
            return found
    raise AssertionError("it ended before that")


def kept(api):
    """Return the ids of all events."""

    async def read():
        rows = await api.beat.service.events(after=0, limit=100_000)
        return [f"{row.event_id}.{row.n}" for row in rows]

    return api.do(read())


def stir(api, name, count=5):
    """Cause events, also several in one transaction."""
    for n in range(count):
        api.put(f"/schedules/{name}-{n}", HOURLY)
    api.post("/apply", {"source": name, "schedules": {f"{name}/{n}": HOURLY for n in range(count)}})
    api.post("/apply", {"source": name, "schedules": {}, "prune": True})
    api.put(f"/schedules/{name}", HOURLY)
    api.delete(f"/schedules/{name}")


def test_stream_sends_events_as_they_happen(api, name):
    with following(api) as events:
        api.put(f"/schedules/{name}", HOURLY)
        run = api.post(f"/schedules/{name}/run").json()["run_id"]
        heard = until(events, name, "run.succeeded")
    assert [kind for _, kind, _ in heard if kind.startswith("schedule.")] == ["schedule.created"]
    assert {fields["run_id"] for _, kind, fields in heard if kind.startswith("run.")} == {run}


def test_stream_filters_by_schedule_and_by_event_name(api, name):
    api.put(f"/schedules/{name}", HOURLY)
    with (
        following(api, f"?schedule_id={name}") as own,
        following(api, "?name=schedule.paused") as paused,
    ):
        stir(api, f"{name}-other", 1)
        api.post(f"/schedules/{name}/pause")
        api.delete(f"/schedules/{name}")
        assert [kind for _, kind, _ in until(own, name)] == ["schedule.paused", "schedule.deleted"]
        assert next(paused)[2]["schedule_id"] == name


@pytest.mark.parametrize("cut", [0, 1, 7, 13])
def test_resumed_stream_loses_and_repeats_nothing(api, name, cut):
    begin = kept(api)[-1:] or ["0"]
    with following(api, last=begin[0]) as events:
        stir(api, name)
        first = list(itertools.islice(events, cut + 1))
    stir(api, f"{name}-2")  # while no stream is open
    with following(api, last=first[-1][0]) as events:
        stir(api, f"{name}-3")
        rest = until(events, f"{name}-3")
    heard = [each[0] for each in first + rest]
    there = kept(api)
    assert heard == there[there.index(heard[0]) : there.index(heard[-1]) + 1]
    assert begin == ["0"] or there[there.index(heard[0]) - 1] == begin[0]


def test_stream_resumes_by_query_parameter(api, name):
    stir(api, name)
    there = kept(api)
    with following(api, f"?after={there[-4]}") as events:
        assert [each[0] for each in itertools.islice(events, 3)] == there[-3:]


def test_resumed_stream_on_postgresql_loses_nothing_and_repeats_only_recent_events(
    tmp_path, postgres_url, name
):
    with (
        serving(tmp_path / "a", database=postgres_url) as one,
        serving(tmp_path / "b", database=postgres_url) as two,
        ThreadPoolExecutor(6) as pool,
    ):
        done = [pool.submit(stir, api, f"{name}-{n}", 8) for n, api in enumerate([one, two] * 3)]
        seen = []
        with following(one, "?after=0") as events:
            seen += [each[0] for each in itertools.islice(events, 20)]
        with following(two, last=seen[-1]) as events:
            for each in done:
                each.result()
            stir(two, name)
            seen += [each[0] for each in until(events, name)]
        assert set(kept(one)) <= set(seen) | {kept(one)[-1]}
        assert len(seen) < 3 * len(set(seen)), "what comes again is of the last moments"


def test_stream_of_an_owner_is_not_delayed_by_events_of_others(api, name):
    token, begin = api.token("read", "ann"), kept(api)[-1:]

    async def others():
        for n in range(live.BATCH // 2 + 50):
            await api.beat.service.pause(f"{name}-bob", note=str(n))
            await api.beat.service.resume(f"{name}-bob")

    api.put(f"/schedules/{name}-bob", HOURLY, token=api.token("admin", "bob"))
    api.put(f"/schedules/{name}", HOURLY, token=api.token("admin", "ann"))
    api.do(others())
    api.post(f"/schedules/{name}/pause")
    with following(api, token=token, last=(begin or ["0"])[0]) as events:
        assert [each[1] for each in until(events, name, "schedule.paused")] == [
            "schedule.created",
            "schedule.paused",
        ]
        api.do(others())
        api.delete(f"/schedules/{name}")
        assert [each[1] for each in until(events, name)] == ["schedule.deleted"]


def test_client_that_does_not_read_blocks_no_other(api, name):
    host, port = api.url.removeprefix("http://").split(":")
    lines = [
        "GET /api/v1/events HTTP/1.1",
        f"Host: {host}:{port}",
        f"Authorization: Bearer {api.admin}",
        "",
        "",
    ]
    with socket.create_connection((host, int(port))) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall("\r\n".join(lines).encode())
        assert slow.recv(12) == b"HTTP/1.1 200"
        with following(api) as events:
            long = {**HOURLY, "description": "x" * 2000}
            many = {f"{name}/{n}": long for n in range(1000)}  # 2 MB of events
            assert api.post("/apply", {"source": name, "schedules": many}).status_code == 200
            api.put(f"/schedules/{name}", HOURLY)
            begin = time.monotonic()
            run = api.post(f"/schedules/{name}/run").json()["run_id"]
            eventually(lambda: api.get(f"/runs/{run}").json()["status"] == "SUCCESS", 5)
            assert time.monotonic() - begin < 5
            assert len(until(events, name, "run.succeeded")) > 1000
    api.post("/bulk", {"action": "delete", "which": {"source": name}})


def test_event_stream_ends_when_the_server_stops(tmp_path):
    with serving(tmp_path) as api:
        stream = following(api)
        events = stream.__enter__()
        begin = time.monotonic()
    assert list(events) == []
    assert time.monotonic() - begin < 5
    stream.__exit__(None, None, None)


def test_invalid_event_id_is_refused(api):
    for other in ("x", "1.x", "-1", "1.2.3", "9" * 19):
        headers = {"Last-Event-ID": other}
        assert problem(api.get("/events", headers=headers), 422)["field"] == "Last-Event-ID"


def test_number_of_streams_is_limited_until_one_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "MOST_STREAMS", 5)
    with serving(tmp_path) as api:
        host, port = api.url.removeprefix("http://").split(":")
        lines = [
            "GET /api/v1/events HTTP/1.1",
            f"Host: {host}:{port}",
            f"Authorization: Bearer {api.admin}",
            "",
            "",
        ]
        asked = "\r\n".join(lines).encode()
        for _ in range(30):  # each disconnects before its first event
            with socket.create_connection((host, int(port))) as gone:
                gone.sendall(asked)
        eventually(lambda: listeners_of(api.front) == 0)
        there = [socket.create_connection((host, int(port))) for _ in range(5)]
        for each in there:
            each.sendall(asked)
            assert each.recv(12) == b"HTTP/1.1 200"
        eventually(lambda: listeners_of(api.front) == 5)
        assert "streams are open" in problem(api.get("/events"), 503)["problem"]
        for each in there:
            each.close()
        eventually(lambda: listeners_of(api.front) == 0)

"""What a clock that is turned cannot show: things that run, and are ended."""

import asyncio
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from onbeat import Onbeat, every
from onbeat.core.runs.run import Succeeded
from onbeat.core.schedule import read_schedule
from onbeat.testing import ManualClock
from tests.policies.world import SOON, awaited
from tests.waiting import forever

NEVER = {"cron": "0 0 1 1 *"}  # it is started by hand
TREE = """
import os, signal, subprocess, sys, time
child = "import time; print(flush=True); time.sleep(60)"
detached = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
plain = subprocess.Popen([sys.executable, "-c", child])
with open(os.environ["PIDS"] + ".new", "w") as file:
    print(os.getpid(), detached.pid, plain.pid, file=file)
os.rename(os.environ["PIDS"] + ".new", os.environ["PIDS"])
time.sleep(60)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TREE


async def until(question):
    """Wait for something that others do; return the answer."""
    async with asyncio.timeout(SOON):
        while not (answer := await question()):  # noqa: ASYNC110 - it is the engine's doing
            await asyncio.sleep(0.01)
        return answer


async def until_all(beat, *expected):
    """Wait until the runs, the first first, are so: `("CANCELED", "canceled")`."""

    async def is_so():
        found = (await beat.runs())[::-1]
        return [(run.status, run.reason) for run in found] == list(expected) and found

    return await until(is_so)


def lives(pid):
    """A zombie does not: whether somebody reaps it is not our business."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


@asynccontextmanager
async def a_tree(tmp_path, script=TREE, **policy):
    """Have a program run that has started two more, one of which has left its group."""
    pids = tmp_path / "pids"
    run = {"command": [sys.executable, "-c", script], "env": {"PIDS": str(pids)}}
    async with Onbeat("sqlite://") as beat:
        await beat.define(read_schedule("tree", NEVER | {"run": run} | policy))
        started = await beat.start("tree")

        async def found():
            return pids.exists() and [int(pid) for pid in pids.read_text().split()]

        tree = await until(found)
        assert all(map(lives, tree))
        try:
            yield beat, started.run_id, tree
        finally:
            for pid in filter(lives, tree):  # only if the test has failed
                os.kill(pid, signal.SIGKILL)


@awaited
async def test_a_command_that_is_canceled_is_gone_with_all_that_it_started(tmp_path):
    async with a_tree(tmp_path) as (beat, run_id, tree):
        asked = await beat.cancel(run_id, note="not needed")
        assert (asked.status, asked.end_asked_at is not None) == ("STARTED", True)
        await until_all(beat, ("CANCELED", "canceled"))
        assert not any(map(lives, tree))


@awaited
async def test_one_that_does_not_end_when_it_is_asked_to_is_killed_after_its_grace(tmp_path):
    async with a_tree(tmp_path, DEAF, cancel_grace="300ms") as (beat, run_id, tree):
        began = time.monotonic()
        await beat.cancel(run_id)
        await until_all(beat, ("CANCELED", "canceled"))
        assert time.monotonic() - began >= 0.3
        assert not any(map(lives, tree))


@awaited
async def test_a_command_that_lasts_longer_than_its_timeout_is_killed(tmp_path):
    async with a_tree(tmp_path, timeout="1s") as (beat, _, tree):
        (run,) = await until_all(beat, ("FAILED", "timeout"))
        assert run.error == "still running after 1s"
        assert not any(map(lives, tree))


@awaited
async def test_asking_twice_ends_it_once(tmp_path):
    async with a_tree(tmp_path) as (beat, run_id, _):
        first = await beat.cancel(run_id)
        again = await beat.cancel(run_id)
        assert first.end_asked_at == again.end_asked_at
        await until_all(beat, ("CANCELED", "canceled"))


@awaited
async def test_an_async_function_is_asked_to_end_when_a_newer_tick_replaces_it():
    beat, told = Onbeat("sqlite://"), []

    async def work(run):
        told.append(("began", run.iteration))
        try:
            if run.iteration == 1:
                await forever()
        except asyncio.CancelledError:
            told.append(("asked", run.iteration))
            raise

    beat.schedule(every("1s"), name="work", overlap="replace")(work)
    async with beat:

        async def is_replaced():
            found = (await beat.runs())[::-1]
            return len(found) > 1 and found[1].status == "SUCCESS" and found

        first, second, *_ = await until(is_replaced)
    assert (first.status, first.reason) == ("CANCELED", "superseded")
    assert told[:3] == [("began", 1), ("asked", 1), ("began", 2)]
    assert second.run_at == first.run_at + 1
    assert first.finished_at <= second.started_at


@awaited
async def test_an_async_function_that_is_canceled_hears_of_it_and_can_clean_up():
    beat, told = Onbeat("sqlite://"), []

    async def work():
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)
            told.append("cleaned up")

    beat.register("work", work)
    async with beat:
        await beat.define(read_schedule("work", NEVER | {"run": {"python": "work"}}))
        run = await beat.start("work")
        await until_all(beat, ("STARTED", None))
        await beat.cancel(run.run_id)
        (run,) = await until_all(beat, ("CANCELED", "canceled"))
    assert (told, run.error) == (["cleaned up"], "ended because cancellation was requested")


@awaited
async def test_an_async_function_that_lasts_longer_than_its_timeout_is_ended():
    async def work():
        await forever()

    beat = Onbeat("sqlite://")
    beat.register("work", work)
    async with beat:
        fields = NEVER | {"run": {"python": "work"}, "timeout": "1s"}
        await beat.define(read_schedule("work", fields))
        await beat.start("work")
        (run,) = await until_all(beat, ("FAILED", "timeout"))
    assert run.error == "still running after 1 s"


@awaited
async def test_a_run_that_another_program_asks_to_end_ends_within_a_second(tmp_path):
    database = f"sqlite:///{tmp_path}/onbeat.db"
    async with Onbeat(database) as beat:
        run = {"command": ["sleep", "60"]}
        await beat.define(read_schedule("sleep", NEVER | {"run": run}))
        started = await beat.start("sleep")
        await until_all(beat, ("STARTED", None))
        argv = [sys.executable, "-m", "onbeat", "cancel", str(started.run_id), "--database", database]  # fmt: skip
        other = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        said, _ = await other.communicate()
        began = time.monotonic()
        await until_all(beat, ("CANCELED", "canceled"))
        assert time.monotonic() - began < 1
    assert said == b"run 1 of sleep: cancellation requested\n"


class Server:
    """An HTTP server that answers as told, and keeps the headers that it was sent."""

    def __init__(self, *answers):
        self.answers, self.headers = list(answers), []

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/start", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/start"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _answer(self, request):
        self.headers.append(request.headers)
        status, fields = self.answers.pop(0)
        return web.json_response({"id": "order-7"}, status=status, headers=fields)


@awaited
async def test_a_server_accepts_a_run_is_busy_or_gone_and_tells_of_the_end_by_its_key():
    clock = ManualClock("2026-01-01T12:00:00Z")
    answers = [(503, {"Retry-After": "600"}), (202, {}), (410, {})]
    async with Server(*answers) as server, Onbeat("sqlite://", clock=clock) as beat:

        async def passes(length):
            await beat.settle()  # what is launched while the clock is set is late
            clock.advance(length)
            await beat.settle()
            return [(run.status, run.reason) for run in (await beat.runs())[::-1]]

        fields = {"every": "1h", "run": {"http": server.url}}
        await beat.define(read_schedule("send", fields))
        assert await passes("1h") == [("ENQUEUED", "busy")]
        assert await passes("10m") == [("STARTED", None)]
        busy, accepted = (headers["Idempotency-Key"] for headers in server.headers)
        assert busy == accepted
        told = await beat.report(accepted, Succeeded({"sent": 3}))
        assert (told.status, told.external_id, told.deferrals) == ("SUCCESS", "order-7", 1)
        assert await passes("50m") == [("SUCCESS", None), ("FAILED", "invalid_target")]

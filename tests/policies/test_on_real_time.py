"""What needs a real clock: programs that run and are canceled."""

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

NEVER = {"cron": "0 0 1 1 *"}  # started manually only
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
    """A zombie does not count as alive."""
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
async def test_canceled_command_ends_with_all_its_processes(tmp_path):
    async with a_tree(tmp_path) as (beat, run_id, tree):
        asked = await beat.cancel(run_id, note="not needed")
        assert (asked.status, asked.end_asked_at is not None) == ("STARTED", True)
        await until_all(beat, ("CANCELED", "canceled"))
        assert not any(map(lives, tree))


@awaited
async def test_command_that_ignores_its_cancellation_is_killed_after_cancel_grace(tmp_path):
    async with a_tree(tmp_path, DEAF, cancel_grace="300ms") as (beat, run_id, tree):
        began = time.monotonic()
        await beat.cancel(run_id)
        await until_all(beat, ("CANCELED", "canceled"))
        assert time.monotonic() - began >= 0.3
        assert not any(map(lives, tree))


@awaited
async def test_command_is_killed_at_its_timeout(tmp_path):
    async with a_tree(tmp_path, timeout="1s") as (beat, _, tree):
        (run,) = await until_all(beat, ("FAILED", "timeout"))
        assert run.error == "still running after 1s"
        assert not any(map(lives, tree))


@awaited
async def test_second_cancellation_changes_nothing(tmp_path):
    async with a_tree(tmp_path) as (beat, run_id, _):
        first = await beat.cancel(run_id)
        again = await beat.cancel(run_id)
        assert first.end_asked_at == again.end_asked_at
        await until_all(beat, ("CANCELED", "canceled"))


@awaited
async def test_async_function_is_canceled_when_a_newer_tick_replaces_it():
    beat, events = Onbeat("sqlite://"), []

    async def work(run):
        events.append(("began", run.iteration))
        try:
            if run.iteration == 1:
                await forever()
        except asyncio.CancelledError:
            events.append(("asked", run.iteration))
            raise

    beat.schedule(every("1s"), name="work", overlap="replace")(work)
    async with beat:

        async def is_replaced():
            found = (await beat.runs())[::-1]
            return len(found) > 1 and found[1].status == "SUCCESS" and found

        first, second, *_ = await until(is_replaced)
    assert (first.status, first.reason) == ("CANCELED", "superseded")
    assert events[:3] == [("began", 1), ("asked", 1), ("began", 2)]
    assert second.run_at == first.run_at + 1
    assert first.finished_at <= second.started_at


@awaited
async def test_canceled_async_function_can_clean_up():
    beat, events = Onbeat("sqlite://"), []

    async def work():
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)
            events.append("cleaned up")

    beat.register("work", work)
    async with beat:
        await beat.define(read_schedule("work", NEVER | {"run": {"python": "work"}}))
        run = await beat.start("work")
        await until_all(beat, ("STARTED", None))
        await beat.cancel(run.run_id)
        (run,) = await until_all(beat, ("CANCELED", "canceled"))
    assert (events, run.error) == (["cleaned up"], "ended because cancellation was requested")


@awaited
async def test_async_function_is_canceled_at_its_timeout():
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
async def test_run_canceled_by_another_program_ends_within_a_second(tmp_path):
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
    """An HTTP server with prepared answers that records the received headers."""

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
async def test_server_accepts_a_run_and_reports_its_outcome_by_key():
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
        events = await beat.report(accepted, Succeeded({"sent": 3}))
        assert (events.status, events.external_id, events.deferrals) == ("SUCCESS", "order-7", 1)
        assert await passes("50m") == [("SUCCESS", None), ("FAILED", "invalid_target")]

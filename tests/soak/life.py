"""A node in this process, on a clock that is turned, and what its memory is made of meanwhile."""

import asyncio
import gc
import threading
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw
import httpx

from onbeat import Onbeat
from onbeat.app.settings import Settings
from onbeat.core.schedule import Schedule
from onbeat.events import RunFailed, RunSucceeded
from onbeat.testing import ManualClock, a_schedule
from onbeat.web.api_server import ApiServer

STEPS, WARM = 10, 2  # measurements, and by which of them what is kept once is there
SCHEDULES = {"function": 500, "thread": 500, "fails": 500, "command": 60, "leaks": 500}
A_DAY = 86_400_000  # milliseconds


@dataclass(frozen=True, slots=True)
class Measured:
    """What there is after so many runs."""

    runs: int
    objects: int  # that the garbage collector knows
    traced: int  # bytes of all Python objects, also of those that it does not know
    sqlite: int  # bytes that SQLite has: its page caches, above all
    resident: int  # bytes of the process that no file is behind
    by_type: Counter[str]  # of some measurements only: it takes memory itself

    def __str__(self) -> str:
        sizes = f"{self.traced / 1e6:9.3f} {self.sqlite / 1e6:9.1f} {self.resident / 1e6:9.1f}"
        return f"{self.runs:9} {self.objects:9} {sizes}"


HEAD = f"{'runs':>9} {'objects':>9} {'python MB':>9} {'sqlite MB':>9} {'rss MB':>9}"


async def live(
    url: str, folder: Path, kind: str, runs: int, *, api: bool = False, tell: Callable = print
) -> list[Measured]:
    """Have a node do so many runs; return what was measured after each tenth of them."""
    roles = ("plan", "run", "api") if api else ("plan", "run")
    settings = Settings(
        database=url,
        roles=roles,
        output=str(folder / "output"),
        listen="127.0.0.1:0",
        lease=A_DAY,  # of a clock that is turned
    )
    front = ApiServer(settings) if api else None
    clock = ManualClock("2026-01-01T00:00:00Z")
    beat = Onbeat(settings=settings if front is None else front.settings, clock=clock)
    _offer(beat)
    measured = []
    async with beat, _served(front, beat):
        await beat.define(*_schedules(kind))
        tracemalloc.start()
        try:
            for step in range(1, STEPS + 1):
                while _done(beat) < runs * step // STEPS:
                    clock.advance("1s")
                    await beat.settle()
                measured.append(_measure(_done(beat), with_types=step in (WARM, STEPS)))
                tell(measured[-1])
        finally:
            tracemalloc.stop()
    return measured


def _offer(beat: Onbeat) -> None:
    async def function() -> dict[str, int]:
        return {"rows": 3}

    def thread() -> None:
        pass

    async def fails() -> None:
        raise ValueError("no")

    kept: list[bytes] = []

    async def leaks() -> None:
        kept.append(bytes(100))

    for each in (function, thread, fails, leaks):
        beat.register(each.__name__, each)


def _schedules(kind: str) -> list[Schedule]:
    run = {"command": ["true"]} if kind == "command" else {"python": kind}
    return [
        a_schedule(f"{kind}-{n}", every="1s", run=run, overlap="allow")
        for n in range(SCHEDULES[kind])
    ]


def _done(beat: Onbeat) -> int:
    return beat.metrics.events[RunSucceeded] + beat.metrics.events[RunFailed]


def _measure(runs: int, *, with_types: bool) -> Measured:
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0]
    known = gc.get_objects()
    by_type = Counter(type(each).__name__ for each in known if with_types)
    status = Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]
    return Measured(runs, len(known), traced, apsw.memory_used(), int(status) * 1024, by_type)


@asynccontextmanager
async def _served(front: ApiServer | None, beat: Onbeat) -> AsyncIterator[None]:
    """Run the API, one client that streams all events, and another that sends queries."""
    if front is None:
        yield
        return
    welcome = await front.start(beat)
    _, token = await beat.service.tokens.create("soak", "admin")
    stopped, headers = threading.Event(), {"Authorization": f"Bearer {token}"}
    url = f"{welcome.url}/api/v1"

    def listen() -> None:
        created = f"{url}/events?name=schedule.created"  # of all that is looked at, nothing is sent
        with httpx.stream("GET", created, headers=headers, timeout=None) as heard:
            for _ in heard.iter_lines():
                if stopped.is_set():
                    return

    def ask() -> None:
        with httpx.Client(headers=headers, timeout=30) as client:
            while not stopped.wait(0.2):
                for path in ("/metrics", "/runs?limit=100", "/schedules?limit=10", "/nope"):
                    client.get(f"{url}{path}")

    threads = [threading.Thread(target=each, daemon=True) for each in (listen, ask)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        await asyncio.to_thread(threads[1].join)
        await front.stop()

"""Ten thousand schedules due at once, to the last durable SUCCESS: `python -m bench.burst`.

Onbeat works as shipped: a SQLite file with synchronous FULL, events, indexes, overlap `skip`; a run
counts when its SUCCESS is committed. APScheduler 3 keeps its jobs in memory and loses them with the
process; a job counts when it says that it was executed. Each calls an async function in the event
loop, or a plain one in threads; like is compared with like, and the faster of each with the other.
Bare asyncio tasks show what the machine could do.

All have the same hourly cron in a time zone, and inputs of their own; single times, which
APScheduler only has to forget, are shown too. Of Onbeat the second herd is measured: the first has
read the definitions, which APScheduler has in memory from the start.
Rounds are interleaved and a figure is the median of its rounds. Lateness is from when all were due
until a function was called. The run fails when a ratio is below the bound printed beside it.
"""

import asyncio
import gc
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from zoneinfo import ZoneInfo

import apsw
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger

from onbeat import Onbeat, at
from onbeat.core.schedule import read_schedule
from onbeat.core.time.instants import rfc3339

ROUNDS = 3
# Times APScheduler in memory: what the design asks for (decision 0009), and what a change must not
# fall below on a busy machine, with the same function and with the faster of each.
WANTED = 3.0
BOUNDS = {"async": 2.2, "plain": 1.2, "the faster": 1.8}
LONG = 3600  # seconds
ZONE = "Europe/Berlin"
POLL = 0.002
UNFINISHED = "SELECT 1 FROM schedule_runs WHERE finished_at IS NULL LIMIT 1"
SUCCEEDED = "SELECT count(*) FROM schedule_runs WHERE status = 'SUCCESS'"


@dataclass(frozen=True, slots=True)
class Burst:
    """What one round of one contender took."""

    rate: float  # a second
    lateness: list[float]  # seconds, sorted

    def late(self, percent: int) -> float:
        return self.lateness[min(len(self.lateness) * percent // 100, len(self.lateness) - 1)]


class Clock:
    """The machine's clock, set forth when everything is ready."""

    def __init__(self) -> None:
        self._ahead = 0

    def now(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead

    def monotonic(self) -> float:
        return time.monotonic()

    def set_to(self, second: int) -> None:
        self._ahead = second * 1000 - time.time_ns() // 1_000_000


class Progress:
    """When each function was called, and whether all have ended."""

    def __init__(self, n: int) -> None:
        self._all, self._loop = n, asyncio.get_running_loop()
        self._ended = count(1)  # threads count in it too: a step of it is one for the interpreter
        self.called: list[tuple[int, float]] = []
        self.all_ended = asyncio.Event()

    async def note(self, number: int) -> None:
        self.called.append((number, time.perf_counter()))

    def note_in_thread(self, number: int) -> None:
        self.called.append((number, time.perf_counter()))

    async def note_and_end(self, number: int = -1) -> None:
        self.called.append((number, time.perf_counter()))
        self.end()

    def note_and_end_in_thread(self, number: int = -1) -> None:
        self.called.append((number, time.perf_counter()))
        self.end()

    def again(self) -> None:
        """Begin anew, with as many."""
        self._ended = count(1)
        self.called.clear()
        self.all_ended.clear()

    def end(self, _: object = None) -> None:
        if next(self._ended) == self._all:
            self._loop.call_soon_threadsafe(self.all_ended.set)


async def onbeat_async(n: int, zone: str | None) -> Burst:
    progress = Progress(n)
    return await _onbeat(progress.note_and_end, progress, n, zone)


async def onbeat_plain(n: int, zone: str | None) -> Burst:
    progress = Progress(n)
    return await _onbeat(progress.note_and_end_in_thread, progress, n, zone)


async def _onbeat(
    note: Callable[..., object], progress: Progress, n: int, zone: str | None
) -> Burst:
    clock = Clock()
    due, hourly = _in_half_an_hour()
    with tempfile.TemporaryDirectory(prefix="onbeat-burst-") as folder:
        beat = Onbeat(f"sqlite:///{folder}/onbeat.db", clock=clock)
        # A function is offered by a decoration: this one is not due before the end.
        beat.schedule(at(rfc3339(due + 2 * LONG)), name="note")(note)
        async with beat:
            single = [rfc3339(due), rfc3339(due + LONG)]
            when = {"cron": hourly, "timezone": zone} if zone is not None else {"at": single}
            runs = [{"python": "note", "inputs": {"number": i}} for i in range(n)]
            await beat.define(
                *(read_schedule(f"s{i}", {**when, "run": run}) for i, run in enumerate(runs))
            )
            with closing(apsw.Connection(f"{folder}/onbeat.db")) as connection:
                for herd in (0, 1):
                    if herd:
                        progress.again()
                    began = _begin()
                    clock.set_to(due + herd * LONG)
                    beat.wake()
                    await beat.until(progress.all_ended)
                    while connection.execute(UNFINISHED).get is not None:  # noqa: ASYNC110 - the file says what is committed
                        await asyncio.sleep(POLL)
                    took = time.perf_counter() - began
                assert connection.execute(SUCCEEDED).get == 2 * n, "not all are a success"
    return _burst(n, took, began, progress)


async def apscheduler_async(n: int, zone: str | None) -> Burst:
    progress = Progress(n)
    return await _apscheduler(AsyncIOScheduler(timezone=UTC), progress.note, progress, n, zone)


async def apscheduler_plain(n: int, zone: str | None) -> Burst:
    progress, scheduler = Progress(n), BackgroundScheduler(timezone=UTC)
    return await _apscheduler(scheduler, progress.note_in_thread, progress, n, zone)


async def _apscheduler(
    scheduler: BaseScheduler,
    note: Callable[[int], object],
    progress: Progress,
    n: int,
    zone: str | None,
) -> Burst:
    scheduler.add_listener(progress.end, EVENT_JOB_EXECUTED)
    scheduler.start(paused=True)
    due, (_, hourly) = datetime.now(UTC), _in_half_an_hour()
    for i in range(n):
        single = DateTrigger(due, UTC)
        trigger = CronTrigger.from_crontab(hourly, ZoneInfo(zone)) if zone is not None else single
        scheduler.add_job(
            note, trigger, id=f"s{i}", kwargs={"number": i}, next_run_time=due,
            misfire_grace_time=LONG, coalesce=True,
        )  # fmt: skip
    began = _begin()
    scheduler.resume()
    await progress.all_ended.wait()
    took = time.perf_counter() - began
    scheduler.shutdown()
    return _burst(n, took, began, progress)


async def bare_tasks(n: int, _: str | None) -> Burst:
    progress = Progress(n)
    began = _begin()
    await asyncio.gather(*(asyncio.create_task(progress.note(i)) for i in range(n)))
    return _burst(n, time.perf_counter() - began, began, progress)


def _in_half_an_hour() -> tuple[int, str]:
    """Return an instant that is surely to come, and the hourly cron that has it."""
    due = (int(time.time()) // 60 + 30) * 60
    return due, f"{due // 60 % 60} * * * *"


def _begin() -> float:
    gc.collect()  # what others left is not on this one's time
    return time.perf_counter()


def _burst(n: int, took: float, began: float, progress: Progress) -> Burst:
    once_each = len(progress.called) == n == len({number for number, _ in progress.called})
    assert once_each, "some were called twice, or not at all"
    return Burst(n / took, sorted(t - began for _, t in progress.called))


def measure(n: int, zone: str | None) -> dict[str, list[Burst]]:
    """Return the rounds of each contender, interleaved."""
    found: dict[str, list[Burst]] = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS):
        for name, contender in CONTENDERS.items():
            found[name].append(asyncio.run(contender(n, zone)))
    return found


def show(title: str, found: dict[str, list[Burst]], *, is_judged: bool = False) -> bool:
    """Print a table, and return whether each ratio is at least its bound."""
    rates = {name: statistics.median(each.rate for each in found[name]) for name in found}
    print(f"\n{title}, median of {ROUNDS}")
    print(f"  {'':22}{'rate':>12}{'late p50':>12}{'p99':>12}")
    for name, bursts in found.items():
        p50, p99 = (statistics.median(each.late(p) for each in bursts) * 1e3 for p in (50, 99))
        print(f"  {name:22}{rates[name]:10,.0f}/s{p50:9.1f} ms{p99:9.1f} ms")
    ratios = {kind: rates[f"onbeat, {kind}"] / rates[f"APScheduler, {kind}"] for kind in KINDS}
    onbeat, peer = (max(rates[f"{who}, {kind}"] for kind in KINDS) for who in WHO)
    ratios["the faster"] = onbeat / peer
    for kind, ratio in ratios.items():
        told = f" (guard {BOUNDS[kind]:g}, wanted {WANTED:g})" if is_judged else ""
        print(f"  {kind}: onbeat is {ratio:.2f} x APScheduler{told}")
    return all(ratio >= BOUNDS[kind] for kind, ratio in ratios.items())


WHO, KINDS = ("onbeat", "APScheduler"), ("async", "plain")
CONTENDERS: dict[str, Callable[[int, str | None], Awaitable[Burst]]] = {
    "onbeat, async": onbeat_async,
    "APScheduler, async": apscheduler_async,
    "onbeat, plain": onbeat_plain,
    "APScheduler, plain": apscheduler_plain,
    "bare asyncio tasks": bare_tasks,
}


def main() -> None:
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # it is not measured by what it logs
    show(f"1,000 hourly crons in {ZONE} due at once", measure(1_000, ZONE))
    title = f"10,000 hourly crons in {ZONE} due at once"
    ok = show(title, measure(10_000, ZONE), is_judged=True)
    show("10,000 single times due at once", measure(10_000, None))
    sys.exit(0 if ok else "\na ratio is below its bound")


if __name__ == "__main__":
    main()

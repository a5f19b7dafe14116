"""Ten thousand schedules due at one instant, to the last durable SUCCESS: `python -m bench.burst`.

Onbeat runs as shipped: a SQLite file with synchronous FULL, events, indexes, overlap `skip`; a run
counts when its SUCCESS is committed. APScheduler 3 holds its jobs in memory and loses them with the
process; a job counts at its executed event. Each calls an async function in the event
loop, or a plain one in threads; the same kinds are compared, and the faster kind of each.
Bare asyncio tasks show the limit of the machine.

All schedules have the same hourly cron in a time zone, and different inputs. One-shot schedules,
which APScheduler only has to forget, are shown too. For Onbeat the second herd is measured: the
first one reads the definitions, which APScheduler has in memory from the start.
Rounds are interleaved and a figure is the median of its rounds. Lateness is from the due instant to
the call of the function. The benchmark fails if a ratio is below the bound printed beside it.
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
# Ratio to APScheduler in memory: the aim of the design (decision 0009), and the lower bounds on a
# busy machine, for the same kind of function and for the faster of each.
AIM = 3.0
BOUNDS = {"async": 2.2, "plain": 1.2, "the faster": 1.8}
LONG = 3600  # seconds
ZONE = "Europe/Berlin"
POLL = 0.002
UNFINISHED = "SELECT 1 FROM schedule_runs WHERE finished_at IS NULL LIMIT 1"
SUCCEEDED = "SELECT count(*) FROM schedule_runs WHERE phase = 'SUCCESS'"


@dataclass(frozen=True, slots=True)
class Burst:
    """The result of one round of one contender."""

    rate: float  # a second
    lateness: list[float]  # seconds, sorted

    def late(self, percent: int) -> float:
        return self.lateness[min(len(self.lateness) * percent // 100, len(self.lateness) - 1)]


class Clock:
    """The machine's clock, moved forward when everything is ready."""

    def __init__(self) -> None:
        self._ahead = 0

    def now(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead

    def monotonic(self) -> float:
        return time.monotonic()

    def set_to(self, second: int) -> None:
        self._ahead = second * 1000 - time.time_ns() // 1_000_000


class Progress:
    """The time of each call, and whether all functions have ended."""

    def __init__(self, n: int) -> None:
        self._all, self._loop = n, asyncio.get_running_loop()
        self._ended = count(1)  # shared by threads: one step of it is atomic in the interpreter
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
        """Reset for another herd of the same size."""
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
        # A decorated function is registered: this schedule is not due before the end.
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
                    while connection.execute(UNFINISHED).get is not None:  # noqa: ASYNC110 - the file shows what is committed
                        await asyncio.sleep(POLL)
                    took = time.perf_counter() - began
                assert connection.execute(SUCCEEDED).get == 2 * n, "some runs did not succeed"
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
    """Return a future instant, and the hourly cron that ticks at it."""
    due = (int(time.time()) // 60 + 30) * 60
    return due, f"{due // 60 % 60} * * * *"


def _begin() -> float:
    gc.collect()  # garbage of earlier contenders is not on this one's time
    return time.perf_counter()


def _burst(n: int, took: float, began: float, progress: Progress) -> Burst:
    once_each = len(progress.called) == n == len({number for number, _ in progress.called})
    assert once_each, "a function was called twice, or not at all"
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
    onbeat, peer = (max(rates[f"{name}, {kind}"] for kind in KINDS) for name in SCHEDULERS)
    ratios["the faster"] = onbeat / peer
    for kind, ratio in ratios.items():
        bounds = f" (bound {BOUNDS[kind]:g}, aim {AIM:g})" if is_judged else ""
        print(f"  {kind}: onbeat is {ratio:.2f} x APScheduler{bounds}")
    return all(ratio >= BOUNDS[kind] for kind, ratio in ratios.items())


SCHEDULERS, KINDS = ("onbeat", "APScheduler"), ("async", "plain")
CONTENDERS: dict[str, Callable[[int, str | None], Awaitable[Burst]]] = {
    "onbeat, async": onbeat_async,
    "APScheduler, async": apscheduler_async,
    "onbeat, plain": onbeat_plain,
    "APScheduler, plain": apscheduler_plain,
    "bare asyncio tasks": bare_tasks,
}


def main() -> None:
    logging.getLogger("apscheduler").setLevel(logging.ERROR)  # its logging is not measured
    show(f"1,000 hourly crons in {ZONE} due at one instant", measure(1_000, ZONE))
    title = f"10,000 hourly crons in {ZONE} due at one instant"
    ok = show(title, measure(10_000, ZONE), is_judged=True)
    show("10,000 one-shot schedules due at one instant", measure(10_000, None))
    sys.exit(0 if ok else "\na ratio is below its bound")


if __name__ == "__main__":
    main()

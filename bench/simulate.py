"""Simulation of a year of a thousand schedules: `make bench`; with `--all` two more sets.

Each set is a thousand schedules with about fourteen million ticks a year. In the first set runs
last a second; it has to meet its bound. In the second, run lengths differ, up to ten minutes, so
that some ticks are skipped. In the third, ticks are at any second of the hour, where the maximum
per minute does not limit how many run concurrently: the slowest case. Each line is one run: CPU
seconds, to which the bound applies, since other processes may be at work; wall-clock seconds; and
the longest step, which would have blocked an event loop.
"""

import sys
import time
from collections.abc import Sequence
from itertools import cycle, islice

from msgspec.structs import replace

from bench.expressions import EXPRESSIONS
from onbeat.core.schedule import Schedule
from onbeat.core.snapshot import ScheduleSnapshot, Snapshot, newly_defined
from onbeat.simulate.simulation import Simulation
from onbeat.testing import a_schedule

MUST, AIM = 10.0, 4.0  # seconds
NOW = 1_767_225_600_000  # the beginning of 2026
YEAR = 365 * 86_400_000
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo", "Australia/Lord_Howe")


def mixed() -> list[Schedule]:
    """Return 820 common schedules and 180 that tick every ten minutes, all different."""
    expressions = islice(cycle(EXPRESSIONS), 820)
    dense = (f"{minute}-59/10 * * * *" for minute in cycle(range(10)))
    pairs = [*zip(expressions, cycle(ZONES), strict=False), *zip(islice(dense, 180), cycle(ZONES))]
    return [a_schedule(f"s{i}", cron=text, timezone=where) for i, (text, where) in enumerate(pairs)]


def scattered() -> list[Schedule]:
    """Return a thousand schedules that tick once or twice an hour, at different seconds."""
    once = [f"{i * 7 % 60} {i * 11 % 60} * * * *" for i in range(425)]
    twice = [f"{i * 7 % 60} {i % 30},{i % 30 + 30} * * * *" for i in range(575)]
    return [a_schedule(f"s{i}", cron=text) for i, text in enumerate(once + twice)]


def lasting(schedules: Sequence[Schedule], *, differ: bool) -> tuple[ScheduleSnapshot, ...]:
    """Return the state of the schedules when the year begins, with their run lengths."""
    found = []
    for i, schedule in enumerate(schedules):
        length = 200 + i * 997 % 60_000 + (540_000 if i % 50 == 0 else 0) if differ else 1000
        found.append(replace(newly_defined(schedule, now=NOW), length=length))
    return tuple(found)


def measure(name: str, schedules: tuple[ScheduleSnapshot, ...]) -> float:
    simulation = Simulation(Snapshot(NOW, schedules), until=NOW + YEAR)
    longest, began, used = 0.0, time.perf_counter(), time.process_time()
    at = began
    for _ in simulation.steps():
        longest, at = max(longest, time.perf_counter() - at), time.perf_counter()
    forecast, took = simulation.forecast(), time.perf_counter() - began
    used = time.process_time() - used
    skips = sum(forecast.skips.values())
    print(
        f"{name:20} {used:6.2f} s  ({took:5.2f} s wall clock)"
        f"  {forecast.ticks / 1e6:6.2f} M ticks  {skips:7} skipped"
        f"  peak {forecast.peak:4}  longest step {longest * 1000:4.0f} ms"
        + (f"  CUT OFF: {forecast.cut_off}" if forecast.cut_off else "")
    )
    return used


def main() -> int:
    schedules = mixed()
    used = measure("runs of a second", lasting(schedules, differ=False))
    if "--all" in sys.argv[1:]:
        measure("different lengths", lasting(schedules, differ=True))
        measure("at any second", lasting(scattered(), differ=True))
    print(f"1 000 schedules x 365 days: {used:.2f} s (must be {MUST:g}, aim {AIM:g})")
    return 0 if used <= MUST else 1


if __name__ == "__main__":
    sys.exit(main())

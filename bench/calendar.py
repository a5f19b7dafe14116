"""`next()` against the peers, all in one run: `make bench`.

Rounds are interleaved and a figure is the best of its rounds. The benchmark fails if a ratio is
below the bound printed beside it. Onbeat's caches are emptied before each parse.
"""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger
from celery import Celery
from celery.schedules import crontab
from croniter import croniter
from croniter_rs import croniter as croniter_rs
from cronsim import CronSim

from bench.expressions import EXPRESSIONS
from onbeat import cron
from onbeat.core.time.cron import compile_cron, compile_days, parse_field

START = datetime(2026, 1, 1, tzinfo=UTC)
START_SECOND = int(START.timestamp())
TICKS = 200
ROUNDS = 5
BULK = 1_000_000

Walk = Callable[[int], object]  # advance by this many ticks


def ours(text: str, name: str) -> Walk:
    after = cron(text, tz=name).next_after

    def walk(n: int) -> None:
        t = START_SECOND
        for _ in range(n):
            t = after(t)  # type: ignore[assignment]

    return walk


def ours_anywhere(text: str, name: str) -> Walk:
    """Evaluate instants years apart, so that a cached last answer does not help."""
    after = cron(text, tz=name).next_after

    def walk(n: int) -> None:
        t = START_SECOND
        for _ in range(n):
            t = (t + 86_028_121) % 2_000_000_000
            after(t)

    return walk


def by_cronsim(text: str, name: str) -> Walk:
    ticks = CronSim(text, START.astimezone(ZoneInfo(name)))

    def walk(n: int) -> None:
        for _ in range(n):
            next(ticks)

    return walk


def by_croniter(text: str, name: str) -> Walk:
    return _get_next(croniter(text, START.astimezone(ZoneInfo(name))).get_next)


def by_croniter_rs(text: str, name: str) -> Walk:
    return _get_next(croniter_rs(text, START.astimezone(ZoneInfo(name))).get_next)


def _get_next(step: Callable[[type], object]) -> Walk:
    def walk(n: int) -> None:
        for _ in range(n):
            step(datetime)

    return walk


def by_apscheduler(text: str, name: str) -> Walk:
    step = CronTrigger.from_crontab(text, ZoneInfo(name)).get_next_fire_time

    def walk(n: int) -> None:
        t = START
        for _ in range(n):
            t = step(t, t)

    return walk


def by_celery(text: str, name: str) -> Walk:
    minute, hour, date, month, weekday = text.split()
    app = CELERY[name]
    schedule = crontab(minute, hour, weekday, date, month, app=app, nowfun=lambda: START)

    def walk(n: int) -> None:
        t = START.astimezone(ZoneInfo(name))
        for _ in range(n):
            last, delta, _ = schedule.remaining_delta(t, tz=app.timezone)
            t = last + delta

    return walk


CELERY = {name: Celery(name) for name in ("UTC", "America/New_York")}
for _name, _app in CELERY.items():
    _app.conf.timezone = _name

SLOW = {"celery", "cronsim", "APScheduler", "croniter"}
PEERS = {
    "onbeat": ours,
    "onbeat, anywhere": ours_anywhere,
    "croniter_rs": by_croniter_rs,
    "celery": by_celery,
    "cronsim": by_cronsim,
    "APScheduler": by_apscheduler,
    "croniter": by_croniter,
}


def successive(make: Callable[[str, str], Walk], name: str) -> float:
    """Return the seconds per tick, over all expressions, without parsing."""
    walks = [make(text, name) for text in EXPRESSIONS]
    for walk in walks:
        walk(1)
    began = time.perf_counter()
    for walk in walks:
        walk(TICKS)
    return (time.perf_counter() - began) / (TICKS * len(walks))


def parse_and_first(make: Callable[[str, str], Walk], name: str) -> float:
    """Return the seconds to parse an expression and find its first tick."""
    for cached in (compile_cron, compile_days, parse_field):
        cached.cache_clear()
    began = time.perf_counter()
    for text in EXPRESSIONS:
        make(text, name)(1)
    return (time.perf_counter() - began) / len(EXPRESSIONS)


def bulk(name: str) -> float:
    """Return the seconds per tick for a million ticks in one call."""
    began = time.perf_counter()
    assert len(cron("*/5 * * * *", tz=name).upcoming(START, BULK)) == BULK
    return (time.perf_counter() - began) / BULK


def bulk_by(make: Callable[[str, str], Walk], name: str) -> float:
    walk, n = make("*/5 * * * *", name), BULK // 20  # a twentieth is enough for the rate
    began = time.perf_counter()
    walk(n)
    return (time.perf_counter() - began) / n


def count(name: str) -> float:
    """Return the seconds to count the ticks of a year that ticks every second."""
    began = time.perf_counter()
    assert len(cron("* * * * * *", tz=name).between(START, START.replace(year=2027))) == 31_536_000
    return time.perf_counter() - began


def best(rounds: int, measures: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the best of the interleaved rounds (two for slow peers) in microseconds."""
    found = dict.fromkeys(measures, float("inf"))
    for i in range(rounds):
        for peer, measure in measures.items():
            if i < 2 or peer not in SLOW:
                found[peer] = min(found[peer], measure() * 1e6)
    return found


def show(title: str, found: dict[str, float], bounds: dict[str, float]) -> bool:
    """Print a table, and return whether every ratio is at least its bound."""
    print(f"\n{title}")
    ok = True
    for peer, microseconds in found.items():
        ratio, bound = microseconds / found["onbeat"], bounds.get(peer)
        verdict = "" if bound is None else f"  must be {bound:g}"
        ok &= bound is None or ratio >= bound
        print(f"  {peer:18} {microseconds:9.3f} µs  {ratio:7.1f} x{verdict}")
    return ok


def main() -> None:
    ok = True
    for name, bounds in (("America/New_York", {"cronsim": 15.0}), ("UTC", {"croniter_rs": 0.8})):
        measures = {peer: partial(successive, make, name) for peer, make in PEERS.items()}
        ok &= show(
            f"next(), 200 expressions, successive ticks, {name}", best(ROUNDS, measures), bounds
        )
        parses = {peer: partial(parse_and_first, make, name) for peer, make in PEERS.items()}
        del parses["onbeat, anywhere"]
        ok &= show(f"parse and first tick, {name}", best(ROUNDS, parses), {"cronsim": 2.0})
        bulks: dict[str, Callable[[], float]] = {"onbeat": partial(bulk, name)}
        for peer in ("croniter_rs", "cronsim"):
            bulks[peer] = partial(bulk_by, PEERS[peer], name)
        ok &= show(f"a million ticks in one call, per tick, {name}", best(3, bulks), {})
        print(f"\ncounting the 31,536,000 seconds of 2026, {name}: {count(name) * 1e3:.2f} ms")
    sys.exit(0 if ok else "\na ratio is below its bound")


if __name__ == "__main__":
    main()

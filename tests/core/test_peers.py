"""The calendar against other people's engines. `docs/calendar.md` explains each kind of disagreement.

Where a peer differs, the walk of `tests/oracle.py` decides, and the case must be of a kind listed here:
a new kind of disagreement fails the test, whichever engine is right.
"""

import os
import random
import re
import shutil
import signal
import subprocess
from contextlib import contextmanager
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError

from onbeat import InvalidSchedule, calendar, cron
from onbeat.core.time.zones import names, zone
from tests.core.strategies import FIRST, LAST
from tests.oracle import Walk
from tests.profiles import scaled

CASES = int(os.environ.get("PEER_CASES", scaled(30_000)))  # `make laws` tries more
DAY = 86_400
SPECIAL_DATES = ["L", "LW", "L,15", "1,LW"]
SPECIAL_WEEKDAYS = ["MON#1", "5L", "FRI#3,MON", "0#5", "SUN#2", "TUE-THU"]


@pytest.mark.timeout(240)
def test_cronsim_agrees_but_for_its_known_errors():
    chance = random.Random(20261115)
    wheres = [name for name in sorted(names()) if zone(name).jumps(FIRST, LAST)]
    told = dict.fromkeys(
        (
            "step on one value",
            "odd change",
            "seconds in a gap",
            "midnight gap",
            "skipped or repeated day",
            "hangs",
        ),
        0,
    )
    for _ in range(CASES):
        text, name, t = random_case(chance, wheres)
        ours, theirs = our_answer(text, name, t), their_answer(text, name, t)
        if ours == theirs:
            continue
        kind = "hangs" if theirs == "hangs" else kind_of(text, name, t, ours, theirs)
        assert kind is not None, (text, name, t, ours, theirs)
        told[kind] += 1
        if isinstance(ours, int) and isinstance(theirs, int) and theirs > t:
            assert walk_agrees(text, name, ours, theirs), (text, name, t, ours, theirs)
    print(f"\ncronsim: {CASES} cases, disagreements: {told}")
    assert sum(told.values()) < CASES * 0.03


def our_answer(text, name, t):
    try:
        return cron(text, tz=name).next_after(t)
    except InvalidSchedule:
        return None


def their_answer(text, name, t):
    local = datetime.fromtimestamp(t, UTC).astimezone(ZoneInfo(name))
    try:
        with at_most(0.5):
            return int(next(CronSim(text, local)).timestamp())
    except (CronSimError, StopIteration):
        return None
    except TimeoutError:
        return "hangs"


def kind_of(text, name, t, ours, theirs):
    """Name the known error of cronsim that explains a disagreement, if one does."""
    if re.search(r"\b(\d+)-\1/", text):
        return "step on one value"
    until = max(x for x in (ours, theirs, t) if x is not None)
    changes = [(b.offset - a.offset, a) for a, b in zone(name).jumps(t - 3 * DAY, until + 3 * DAY)]
    if any(change % 3600 for change, _ in changes):
        return "odd change"
    if any(abs(change) > 3 * 3600 for change, _ in changes):
        return "skipped or repeated day"
    if len(text.split()) == 6 and any(change > 0 for change, _ in changes):
        return "seconds in a gap"
    if any(change > 0 and (before.end + before.offset) % DAY == 0 for change, before in changes):
        return "midnight gap"
    return None


def walk_agrees(text, name, ours, theirs):
    """Return whether a walk calls the earlier of two answers a tick just if it is ours."""
    earlier = min(ours, theirs)
    jumps = zone(name).jumps(earlier - 2 * DAY, earlier + DAY)
    odd = any(segment.offset % 60 for segment in [zone(name).segment(earlier), *sum(jumps, ())])
    step = 1 if len(text.split()) == 6 or odd else 60
    first = earlier - earlier % 60 if step == 60 else earlier
    long = any(abs(b.offset - a.offset) > 2 * 3600 for a, b in jumps)
    back = (26 if long else 2) * 3600 + 120
    return (earlier in Walk(text, name).ticks(first, first + step, step, back)) == (earlier == ours)


def random_case(chance, wheres):
    name = chance.choice(wheres)
    near = chance.choice(zone(name).jumps(FIRST, LAST))[0].end + chance.randint(-4 * DAY, DAY)
    return random_text(chance), name, chance.choice([near, chance.randint(FIRST, LAST)])


def random_text(chance):
    dates = (
        random_field(chance, 1, 31, 0.6) if chance.random() < 0.9 else chance.choice(SPECIAL_DATES)
    )
    days = (
        random_field(chance, 0, 7, 0.6)
        if chance.random() < 0.9
        else chance.choice(SPECIAL_WEEKDAYS)
    )
    fields = [
        random_field(chance, 0, 59),
        random_field(chance, 0, 23),
        dates,
        random_field(chance, 1, 12, 0.7),
        days,
    ]
    if chance.random() < 0.15:
        fields.insert(0, random_field(chance, 0, 59, 0.1))
    return " ".join(fields)


def random_field(chance, low, high, star=0.4):
    if chance.random() < star:
        return "*" if chance.random() < 0.8 else f"*/{chance.randint(1, high - low + (high != 7))}"
    terms = []
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        first = chance.randint(low, high)
        last = chance.randint(first, high)
        step = min(chance.randint(1, last - first + 1), high - low + (high != 7))
        terms.append(
            chance.choice(
                [
                    f"{first}",
                    f"{first}",
                    f"{first}-{last}",
                    f"{first}-{last}/{step}",
                    f"{first}/{step}",
                ]
            )
        )
    return ",".join(terms)


@contextmanager
def at_most(seconds):
    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


SYSTEMD = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(
    SYSTEMD is None and not os.environ.get("CI"), reason="systemd-analyze is not installed"
)


@needs_systemd
def test_systemd_has_the_same_ticks_for_calendars_in_utc():
    chance = random.Random(74)
    for _ in range(60):
        t = chance.randint(0, LAST)
        fields = [random_calendar(chance) for _ in range(20)]
        asked = [(given, as_systemd(given)) for given in fields]
        for given, (spec, elapses) in zip(
            fields, systemd([spec for _, spec in asked], t, 3), strict=True
        ):
            try:
                ours = calendar(**given).upcoming(t, 3)
            except InvalidSchedule:
                ours = []
            assert ours[: len(elapses)] == elapses or (elapses == [] and ours == []), (
                given,
                spec,
                t,
                ours,
                elapses,
            )


@needs_systemd
@pytest.mark.parametrize(
    "name", ["Europe/Berlin", "America/New_York", "Australia/Sydney", "America/Sao_Paulo"]
)
def test_systemd_has_the_same_ticks_away_from_gaps(name):
    """In a gap systemd drops the time and we run after it: such nights are left out, folds are not."""
    chance = random.Random(name)
    for _ in range(30):
        t = chance.randint(1_000_000_000, 2_000_000_000)
        given = {"hour": chance.randint(0, 23), "minute": chance.choice([0, 30, 59])}
        spec, elapses = next(iter(systemd([f"{as_systemd(given)} {name}"], t, 5)))
        gaps = [
            before.end
            for before, after in zone(name).jumps(t - DAY, t + 6 * DAY)
            if after.offset > before.offset
        ]
        if not gaps:
            assert calendar(tz=name, **given).upcoming(t, 5) == elapses, (spec, t)


def systemd(specs, t, n):
    base = datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    command = [SYSTEMD, "calendar", f"--base-time={base}", f"--iterations={n}", *specs]
    printed = subprocess.run(
        command, capture_output=True, text=True, env={"TZ": "UTC", "LC_ALL": "C"}, check=False
    )
    blocks = printed.stdout.strip().split("\n\n")
    assert len(blocks) == len(specs), printed
    for spec, block in zip(specs, blocks, strict=True):
        found = re.findall(
            r"(?:Next elapse|Iter\. #\d+|Iteration #\d+): \w+ ([\d-]+ [\d:]+) UTC", block
        )
        yield (
            spec,
            [
                int(datetime.strptime(x, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp())
                for x in found
            ],
        )


def random_calendar(chance):
    given = {
        "minute": some(chance, 0, 59),
        "hour": some(chance, 0, 23),
        "second": chance.choice([0, 0, 0, 30]),
    }
    if chance.random() < 0.4:
        given["day_of_month"] = some(chance, 1, 31)
    if chance.random() < 0.4:
        given["month"] = some(chance, 1, 12)
    if chance.random() < 0.4:
        given["day_of_week"] = sorted(chance.sample(range(7), chance.randint(1, 4)))
    return given


def some(chance, low, high):
    if chance.random() < 0.3:
        return "*"
    return sorted(chance.sample(range(low, high + 1), chance.randint(1, 4)))


def as_systemd(given):
    def text(name, *, default="*"):
        value = given.get(name, default)
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)

    weekdays = ",".join(
        ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"][day]
        for day in given.get("day_of_week", [])
    )
    date = f"*-{text('month')}-{text('day_of_month')}"
    return (
        f"{weekdays} {date} {text('hour')}:{text('minute')}:{text('second', default='0')}".strip()
    )

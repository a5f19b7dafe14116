"""Zones as whole numbers, against the standard library's reading of the same data."""

import random
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from onbeat import InvalidSchedule, cron, daily
from onbeat.core.time import zones
from onbeat.core.time.cron import compile_days
from onbeat.core.time.local_patterns import WallPattern, minutes_of_day
from onbeat.core.time.zones import Gap, Zone, zone
from tests.core.strategies import FIRST, LAST
from tests.timing import LIMIT, cpu_seconds


def seconds(name, t):
    offset = datetime.fromtimestamp(t, UTC).astimezone(ZoneInfo(name)).utcoffset()
    return offset.days * 86_400 + offset.seconds


def test_every_zone_has_the_offsets_of_the_standard_library():
    chance = random.Random(1)
    for name in sorted(zones.names()):
        instants = [chance.randint(FIRST, LAST) for _ in range(10)]
        for before, _ in zone(name).jumps(FIRST, LAST):
            instants += [before.end - 1, before.end]
        for t in instants:
            assert zone(name).offset(t) == seconds(name, t), (name, t)


def test_far_future_years_follow_the_rule():
    assert zone("Europe/Madrid").offset(int(datetime(9998, 7, 1, tzinfo=UTC).timestamp())) == 7200
    for year in (2150, 2400, 2999, 9998):
        for month in (1, 7):
            t = int(datetime(year, month, 1, tzinfo=UTC).timestamp())
            assert zone("Europe/Berlin").offset(t) == (7200 if month == 7 else 3600)


def test_local_time_is_found_in_its_first_pass_or_in_its_gap():
    berlin = zone("Europe/Berlin")
    wall = int(datetime(2026, 10, 25, 2, 30, tzinfo=UTC).timestamp())
    assert berlin.first_pass(wall) == wall - 7200
    gone = int(datetime(2026, 3, 29, 2, 30, tzinfo=UTC).timestamp())
    assert berlin.first_pass(gone) == Gap(gone - 1800 - 3600, gone - 1800, gone + 1800)


@pytest.mark.parametrize(
    ("starts", "offsets", "fixed", "wild"),
    [
        ([720, 750], [0, 60, 0], [720], [765]),  # an hour's gap at noon, and half an hour later back
        ([780, 800], [0, -60, -120], [765], [765, 885]),  # back at 13:00, and again 20 minutes later
    ],
    ids=["gap, then fold", "fold, then fold"],
)  # fmt: skip
def test_fixed_time_ticks_once_through_clock_changes(starts, offsets, fixed, wild):
    """No zone has done this yet. Minutes of a day; the time is 12:45."""
    odd = Zone(
        "Odd/Place", [-(10**11), *(60 * t for t in starts)], [60 * o for o in offsets], rule=None
    )
    bits = {
        "minutes": minutes_of_day(1 << 12, 1 << 45),
        "seconds": 1,
        "keep_gaps": True,
        "texts": (),
    }
    days = compile_days("*", "*", "*", "*", either=False)
    for is_wild, expected in ((False, fixed), (True, wild)):
        pattern = WallPattern(odd, days, wild=is_wild, **bits)
        assert [t // 60 for day in pattern.ticks(0, 86_400) for t in day] == expected


@pytest.mark.parametrize(
    "name",
    [
        "America",
        "localtime",
        "x" * 300,
        "",
        "\0",
        "../../etc/passwd",
        "Europe/Berlin\n",
        "posixrules",
        "EST5EDT4",
        "٣",
        "+01:00",
    ],
)
def test_unknown_zone_is_refused(name):
    with pytest.raises(InvalidSchedule) as refused:
        daily("09:00", tz=name)
    assert cpu_seconds(lambda: daily("09:00", tz=name)) < LIMIT
    assert refused.value.field == "timezone"
    assert "Europe/Berlin" in refused.value.hint or "did you mean" in refused.value.hint


@pytest.mark.parametrize("name", [None, 5, ["UTC"], b"UTC"])
def test_zone_that_is_not_a_string_is_refused(name):
    with pytest.raises(InvalidSchedule, match="timezone: no zone is called"):
        cron("0 9 * * *", tz=name)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Berlin", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("Europe/Berlni", "Europe/Berlin"),
    ],
)
def test_misspelt_zone_gets_a_similar_name_as_hint(written, meant):
    with pytest.raises(InvalidSchedule, match=f"did you mean {meant}"):
        zone(written)


def test_bare_offset_gets_a_fixed_zone_as_hint():
    for written in ("UTC+2", "+02:00", "GMT+02"):
        with pytest.raises(InvalidSchedule, match=r"Etc/GMT-2 for a fixed \+2:00"):
            zone(written)
    assert zone("Etc/GMT-2").offset(0) == 7200


def test_zone_data_has_a_version():
    assert zones.VERSION[:2] == "20"

"""Laws of every trigger, for random texts, zones and instants near clock changes."""

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onbeat import InvalidSchedule, calendar, cron, daily, every
from onbeat.core.time.instants import rfc3339
from onbeat.core.time.zones import zone
from onbeat.core.triggers.kinds import Manual
from onbeat.core.triggers.past import NO_PAST
from tests.core.strategies import ZONES, accepted, cron_texts, zones_and_instants
from tests.oracle import Walk
from tests.profiles import examples
from tests.timing import LIMIT, cpu_seconds

DAY = 86_400
LENGTHS = ["1s", "7s", "90m", "5h", "1d", "3d", "2w", "1mo", "5mo", "1y"]


KINDS = [
    "cron",
    "cron",
    "every",
    "daily",
    "calendar",
    "any",
    "all",
    "minus",
    "limits",
    "manual",
    "nested",
]
HOURS = [["01:30-05:00", "22:00-00:30"], "09:00-17:00", "22:00-06:00", "00:00-24:00"]
EXCLUDED = [
    "12-25",
    "12-24..01-02",
    "02-28..02-29",
    "2024-03-01..2024-04-30",
    "1999-12-31T12:00..2000-01-01T12:00",
]


@st.composite
def limited_triggers(draw, name):
    """A trigger with closed days and hours, and bounds, around it."""
    within = {
        "hours": draw(st.sampled_from(HOURS)),
        "days": draw(st.sampled_from(["*", "MON-FRI", "SUN"])),
        "outside": draw(st.sampled_from(["skip", "move"])),
    }
    return cron(
        draw(st.sampled_from(["*/20 * * * *", "0 */3 * * *", "30 2,20,23 * * *", "* * * * * *"])),
        tz=name,
        within=draw(st.none() | st.just(within)),
        exclude=draw(st.lists(st.sampled_from(EXCLUDED), max_size=2, unique=True)),
        start_at=draw(st.none() | st.just("1950-06-01T21:00:00Z")),
    )


@st.composite
def triggers(draw):
    """Any kind that depends on time alone, in a zone, and an instant near which to look at it."""
    name, t = draw(zones_and_instants())
    kind = draw(st.sampled_from(KINDS))
    one, two = accepted(draw(cron_texts()), name), accepted(draw(cron_texts()), name)
    assume(one is not None and two is not None)
    try:
        match kind:
            case "cron":
                made = one
            case "every":
                anchor = draw(st.none() | st.just("1990-01-31T02:30:00Z"))
                made = every(draw(st.sampled_from(LENGTHS)), tz=name, start_at=anchor)
            case "daily":
                made = daily(
                    f"{draw(st.integers(0, 23)):02}:{draw(st.integers(0, 59)):02}", tz=name
                )
            case "calendar":
                made = calendar(tz=name, hour=draw(st.integers(0, 3)), minute=[0, 30])
            case "any":
                made = one | two
            case "all":
                made = one & cron("0,30 * * * *", tz=name)
            case "minus":
                made = one - two
            case "manual":
                made = draw(st.sampled_from([Manual(), one | Manual(), one - Manual()]))
            case "limits":
                made = draw(limited_triggers(name))
            case _:
                one, two = draw(limited_triggers(name)), draw(limited_triggers(name))
                made = draw(st.sampled_from([one | two, one - two, (one | two) - daily("03:00")]))
    except InvalidSchedule:
        assume(False)
    return made, t


@given(triggers())
def test_the_next_tick_is_later_and_in_whole_seconds(case):
    trigger, t = case
    tick = trigger.next_after(t)
    assert tick is None or (type(tick) is int and tick > t)


@given(triggers(), st.floats(0, 1))
def test_next_tick_is_the_same_until_it_is_reached(case, share):
    trigger, t = case
    tick = trigger.next_after(t)
    assume(tick is not None)
    between = t + int((tick - 1 - t) * share)
    assert trigger.next_after(between) == tick
    assert trigger.next_after(tick - 1) == tick


@given(triggers(), st.integers(1, 6 * DAY), st.floats(0, 1))
def test_ticks_of_a_range_are_those_of_its_halves(case, length, share):
    trigger, t = case
    length = length if len(trigger.between(t, t + length)) < 5_000 else 3_000
    middle = t + int(length * share)
    whole = list(trigger.between(t, t + length))
    assert whole == list(trigger.between(t, middle)) + list(trigger.between(middle, t + length))
    assert whole == sorted(set(whole))


@given(triggers(), st.integers(1, 40 * DAY))
def test_range_properties_match_its_listed_ticks(case, length):
    trigger, t = case
    if len(trigger.between(t, t + length)) > 5_000:
        length = 3_000
    ticks, listed = trigger.between(t, t + length), []
    tick = trigger.next_after(t - 1)
    while tick is not None and tick < t + length:
        listed.append(tick)
        tick = trigger.next_after(tick)
    assert list(ticks) == listed
    assert len(ticks) == len(listed)
    assert (ticks.first, ticks.last) == ((listed[0], listed[-1]) if listed else (None, None))
    assert bool(ticks) == bool(listed)
    assert trigger.upcoming(t - 1, len(listed)) == listed
    day = [tick - t for tick in listed if tick < t + DAY and tick < t + length]
    bits = trigger.bits(t, t + min(DAY, length), NO_PAST)
    assert [i for i in range(bits.bit_length()) if bits >> i & 1] == day


@given(triggers())
@examples(300)
def test_next_tick_is_computed_within_50_ms(case):
    trigger, t = case
    assert cpu_seconds(lambda: trigger.next_after(t)) < LIMIT


@given(ZONES, st.integers(0, 23), st.integers(0, 59), st.integers(1900, 2099), st.integers(1, 365))
def test_daily_time_ticks_once_on_every_existing_day(name, hour, minute, year, day):
    first = datetime.strptime(f"{year} {day}", "%Y %j").replace(tzinfo=UTC)
    start, where = int(first.timestamp()), zone(name)
    ticks = list(daily(f"{hour}:{minute}", tz=name).between(start - 3 * DAY, start + 40 * DAY))
    dates = [rfc3339(tick, where)[:10] for tick in ticks]
    jumps = where.jumps(start - 4 * DAY, start + 41 * DAY)
    if all(abs(after.offset - before.offset) <= 3 * 3600 for before, after in jumps):
        gaps = {b - a for a, b in itertools.pairwise(ticks)}
        assert all(DAY - 4 * 3600 < gap < DAY + 4 * 3600 for gap in gaps)
        assert len(set(dates)) >= len(dates) - 1  # a gap over midnight moves one to the next date


@given(cron_texts(seconds=False), zones_and_instants())
@examples(400)
def test_ticks_match_a_walk_through_every_minute(text, where):
    name, t = where
    jumps = zone(name).jumps(t - 2 * DAY, t + 3 * DAY)
    t -= t % 60
    assume(zone(name).offset(t) % 60 == 0)  # local mean times: see the walk through every second
    assume(
        all(
            segment.offset % 60 == 0 and segment.start % 60 == 0
            for jump in jumps
            for segment in jump[1:]
        )
    )
    trigger = accepted(text, name)
    assume(trigger is not None)
    assert list(trigger.between(t, t + 2 * DAY)) == Walk(text, name).ticks(t, t + 2 * DAY)


@pytest.mark.parametrize(
    ("text", "name", "around"),
    [
        ("*/20 * * * * *", "Australia/Lord_Howe", "2024-10-05T15:30:00Z"),
        ("15,45 30 2 * * *", "America/New_York", "2024-03-10T07:00:00Z"),
        ("0 1 12 * * *", "America/New_York", "1883-11-18T17:00:00Z"),
        ("*/7 55 11 * * *", "America/New_York", "1883-11-18T17:00:00Z"),
        ("30 * * * * *", "Africa/Monrovia", "1972-01-07T00:44:30Z"),
        ("0 20 0 * * *", "Africa/Monrovia", "1972-01-07T00:44:30Z"),
        ("1 0 0 * * *", "Europe/Amsterdam", "1937-07-01T00:00:00Z"),
    ],
)
def test_ticks_match_a_walk_through_every_second(text, name, around):
    t = int(datetime.fromisoformat(around).timestamp())
    first, last = t - 4_000, t + 4_000
    assert list(cron(text, tz=name).between(first, last)) == Walk(text, name).ticks(
        first, last, step=1
    )


@given(st.text() | cron_texts() | st.text(alphabet="0123456789*/-,LW#?HMON @", max_size=40))
@examples(1_000)
def test_any_text_gives_a_trigger_or_an_invalid_schedule(text):
    def ask():
        return cron(text, tz="Europe/Berlin", key="some-id").next_after(0)

    assert cpu_seconds(ask) < LIMIT
    try:
        ask()
    except InvalidSchedule as refused:
        assert refused.problem
        assert refused.hint
        assert "\n" not in str(refused)

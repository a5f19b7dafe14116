"""Random cron texts, zones and instants, mostly around clock changes."""

from functools import cache

from hypothesis import strategies as st

from onbeat import InvalidSchedule, cron
from onbeat.core.time.zones import names, zone

FIRST, LAST = -2_208_988_800, 4_102_444_800  # 1900 to 2100
EPOCHS = st.integers(FIRST, LAST)

# Each kind of trouble there is: half-hour changes, midnight gaps, skipped days, Ramadan, negative DST.
ZONES = st.sampled_from(
    [
        "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham",
        "Pacific/Apia", "America/Sao_Paulo", "America/Santiago", "Asia/Beirut", "Asia/Tehran",
        "Africa/Casablanca", "Europe/Dublin", "America/Havana", "Asia/Pyongyang", "Africa/Cairo",
        "Antarctica/Troll", "Asia/Gaza", "America/Caracas", "Pacific/Kwajalein", "Asia/Kathmandu",
    ]
) | st.sampled_from(sorted(names()))  # fmt: skip


@cache
def jumps_of(name):
    return [before.end for before, _ in zone(name).jumps(FIRST, LAST)]


@st.composite
def zones_and_instants(draw):
    """A zone and an instant, half of the time within a few days of a clock change in it."""
    name = draw(ZONES)
    jumps = jumps_of(name)
    if jumps and draw(st.booleans()):
        return name, draw(st.sampled_from(jumps)) + draw(st.integers(-3 * 86_400, 86_400))
    return name, draw(EPOCHS)


@st.composite
def terms(draw, low, high, names_of=()):
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    step = draw(st.integers(1, high - low + (high != 7)))  # weekdays are 7 for all that 7 is one
    value = names_of[first - low] if names_of and first - low < len(names_of) else str(first)
    return draw(
        st.sampled_from(
            [
                "*",
                f"*/{step}",
                value,
                value,
                f"{first}-{last}",
                f"{first}-{last}/{step}",
                f"{first}/{step}",
            ]
        )
    )


def plain_fields(low, high, names_of=()):
    return st.just("*") | st.lists(terms(low, high, names_of), min_size=1, max_size=3).map(",".join)


MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
DATES = plain_fields(1, 31) | st.sampled_from(
    ["?", "L", "L-3", "LW", "15W", "1W", "31W", "L,15", "1,LW"]
)
DAYS_OF_WEEK = plain_fields(0, 7, WEEKDAYS) | st.sampled_from(
    ["?", "5L", "MON#1", "FRI#3,MON", "SUN#5"]
)


@st.composite
def cron_texts(draw, *, seconds=True):
    fields = [
        draw(plain_fields(0, 59)),
        draw(plain_fields(0, 23)),
        draw(DATES),
        draw(st.just("*") | plain_fields(1, 12, MONTHS)),
        draw(DAYS_OF_WEEK),
    ]
    if seconds and draw(st.integers(0, 3)) == 0:
        fields.insert(0, draw(plain_fields(0, 59)))
    return " ".join(fields)


def accepted(text, tz="UTC", **limits):
    """Return the trigger, or None for a text that can never match."""
    try:
        return cron(text, tz=tz, **limits)
    except InvalidSchedule as refused:
        assert "never" in refused.problem, refused
        return None

"""What a simulation finds, as values; and as JSON tells it. Instants are milliseconds."""

from collections.abc import Mapping
from dataclasses import dataclass

from onbeat.core.runs.run import Reason
from onbeat.core.time.instants import rfc3339_ms


@dataclass(frozen=True, slots=True)
class ScheduleForecast:
    """What one schedule would do."""

    schedule_id: str
    length: int  # how long each of its runs is taken to last
    is_length_known: bool  # by the runs it has had
    ticks: int
    fires: int  # runs that start
    skips: Mapping[Reason, int]  # ticks that start none, by reason
    waiting: int  # runs that still wait in the end
    ended_early: int  # runs that a newer one takes the place of
    waited: int  # runs that do not start at once
    longest_wait: int
    longest_wait_at: int | None  # when that one starts
    peak: int  # most runs at the same time
    peak_at: int | None


@dataclass(frozen=True, slots=True)
class DayForecast:
    """What happens on one day."""

    date: str
    fires: int
    skips: int


@dataclass(frozen=True, slots=True)
class GroupForecast:
    """How full a group gets."""

    name: str
    places: int
    peak: int
    peak_at: int | None
    waited: int  # runs that do not start at once
    longest_wait: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would happen from `first` up to `last`."""

    first: int
    last: int
    asked: int  # until when it was asked for: `last`, unless it was cut off
    cut_off: str  # why it ends earlier than asked, if it does
    schedules: tuple[ScheduleForecast, ...]
    days: tuple[DayForecast, ...]  # those on which something happens
    groups: tuple[GroupForecast, ...]
    ticks: int
    fires: int
    skips: Mapping[Reason, int]
    peak: int  # most runs at the same time, of all schedules
    peak_at: int | None
    busiest: Mapping[str, int]  # who runs in the minute of the peak, and how often


def forecast_fields(found: Forecast) -> dict[str, object]:
    """Return a forecast as JSON tells it."""
    return {
        "from": rfc3339_ms(found.first),
        "until": rfc3339_ms(found.last),
        "asked_until": rfc3339_ms(found.asked),
        "cut_off": found.cut_off or None,
        "ticks": found.ticks,
        "fires": found.fires,
        "skips": dict(found.skips),
        "peak": found.peak,
        "peak_at": _instant(found.peak_at),
        "busiest_minute": {
            "at": _instant(None if found.peak_at is None else found.peak_at // 60_000 * 60_000),
            "runs": dict(found.busiest),
        },
        "days": [{"date": day.date, "fires": day.fires, "skips": day.skips} for day in found.days],
        "groups": [_group_fields(group) for group in found.groups],
        "schedules": [_schedule_fields(each) for each in found.schedules],
    }


def _schedule_fields(found: ScheduleForecast) -> dict[str, object]:
    return {
        "schedule_id": found.schedule_id,
        "run_length_ms": found.length,
        "run_length_known": found.is_length_known,
        "ticks": found.ticks,
        "fires": found.fires,
        "skips": dict(found.skips),
        "waiting": found.waiting,
        "ended_early": found.ended_early,
        "waited": found.waited,
        "longest_wait_ms": found.longest_wait,
        "longest_wait_at": _instant(found.longest_wait_at),
        "peak": found.peak,
        "peak_at": _instant(found.peak_at),
    }


def _group_fields(found: GroupForecast) -> dict[str, object]:
    return {
        "name": found.name,
        "places": found.places,
        "peak": found.peak,
        "peak_at": _instant(found.peak_at),
        "waited": found.waited,
        "longest_wait_ms": found.longest_wait,
    }


def _instant(at: int | None) -> str | None:
    return None if at is None else rfc3339_ms(at)

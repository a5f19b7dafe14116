"""The results of a simulation, and their JSON fields. Instants are milliseconds."""

from collections.abc import Mapping
from dataclasses import dataclass

from onbeat.core.runs.run import Reason
from onbeat.core.time.instants import rfc3339_ms


@dataclass(frozen=True, slots=True)
class ScheduleForecast:
    """The forecast of one schedule."""

    schedule_id: str
    length: int  # the assumed length of each run
    is_length_known: bool  # whether it is the usual length of past runs
    ticks: int
    fires: int  # runs that start
    skips: Mapping[Reason, int]  # ticks without a run, by reason
    waiting: int  # runs that still wait at the end
    ended_early: int  # runs that a newer one supersedes
    waited: int  # runs that do not start immediately
    longest_wait: int
    longest_wait_at: int | None  # the start of that run
    peak: int  # the maximum number of concurrent runs
    peak_at: int | None


@dataclass(frozen=True, slots=True)
class DayForecast:
    """The forecast of one day."""

    date: str
    fires: int
    skips: int


@dataclass(frozen=True, slots=True)
class GroupForecast:
    """The forecast of one group."""

    name: str
    places: int
    peak: int
    peak_at: int | None
    waited: int  # runs that do not start immediately
    longest_wait: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of all schedules from `first` up to `last`."""

    first: int
    last: int
    asked: int  # the requested end: `last`, unless the simulation was cut off
    cut_off: str  # why it ends before the requested end, if it does
    schedules: tuple[ScheduleForecast, ...]
    days: tuple[DayForecast, ...]  # those with fires or skips
    groups: tuple[GroupForecast, ...]
    ticks: int
    fires: int
    skips: Mapping[Reason, int]
    peak: int  # the maximum number of concurrent runs of all schedules
    peak_at: int | None
    busiest: Mapping[str, int]  # the number of runs in the minute of the peak, by schedule


def forecast_fields(found: Forecast) -> dict[str, object]:
    """Return the JSON fields of a forecast."""
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

"""The counters of a simulation. Instants are milliseconds."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, repeat
from operator import sub

from onbeat.core.runs.run import Reason
from onbeat.core.time.instants import rfc3339
from onbeat.core.time.zones import DAY, Gap, Zone
from onbeat.simulate.forecasts import DayForecast

MINUTE = 60_000
CLOSE_MINUTES = 10  # minutes at most this far apart are examined together
MOST_EXAMINED = 10_000  # runs that are examined together
# The starts and the ends of runs, in any order, relative to some instant.
Times = tuple[list[int], list[int]]


class Counters:
    """The counters of one schedule or of one group."""

    __slots__ = (
        "ended_early", "fires", "longest_wait", "longest_wait_at", "peak", "peak_at", "running",
        "skips", "ticks", "waited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ticks = self.fires = self.ended_early = self.waited = self.longest_wait = 0
        self.skips: Counter[Reason] = Counter()
        self.longest_wait_at: int | None = None
        self.running = self.peak = 0
        self.peak_at: int | None = None

    def begin(self, at: int, *, wait: int = 0, is_reported: bool = True) -> None:
        """Count a run that starts after a wait."""
        self.running += 1
        if not is_reported:
            return
        if self.running > self.peak:
            self.peak, self.peak_at = self.running, at
        self.waited += wait > 0
        if wait > self.longest_wait:
            self.longest_wait, self.longest_wait_at = wait, at


class ConcurrencyLoad:
    """The maximum number of concurrent runs. A run does not count at the instant of its end.

    It holds an upper bound for each minute. Only where the bound exceeds the peak so far, the runs
    themselves are examined; mostly those of a few minutes.
    """

    def __init__(self, since: int) -> None:
        self._since, self._level = since, 0
        self.change: defaultdict[int, int] = defaultdict(int, {since // MINUTE: 0})  # by minute
        self.peak = 0
        self.peak_at: int | None = None

    def add(self, since: int, number: int = 1) -> None:
        """Add runs that start."""
        self.change[since // MINUTE] += number

    def remove(self, until: int, number: int = 1) -> None:
        """Remove runs that have ended by then."""
        self.change[(until - 1) // MINUTE + 1] -= number

    def add_all(self, ticks: Mapping[int, int], length: int) -> None:
        """Add the number of runs of each tick, with a maximum length in full minutes."""
        change, seconds = self.change, length // 1000 + 59
        for tick, number in ticks.items():
            change[tick // 60] += number
            change[(tick + seconds) // 60] -= number

    def find_peaks(self, until: int, find: Callable[[int, int], Times]) -> Iterator[int]:
        """Update the peak up to `until`; yield from time to time. `find` returns the runs."""
        busy: list[tuple[int, int]] = []
        for minute in sorted(minute for minute in self.change if minute * MINUTE < until):
            self._level += self.change.pop(minute)
            if self._level > self.peak:
                busy.append((minute, self._level))
        at = 0
        while at < len(busy):
            minutes: list[int] = []
            size = 0
            while at < len(busy) and size < MOST_EXAMINED:
                minute, most = busy[at]
                if minutes and minute - minutes[-1] > CLOSE_MINUTES:
                    break
                at += 1
                if most > self.peak:
                    minutes.append(minute)
                    size += most
            if minutes:
                first, last = minutes[0] * MINUTE, (minutes[-1] + 1) * MINUTE
                self._find_peak_in(first, *find(first, min(last, until)))
                yield last

    def _find_peak_in(self, first: int, starts: list[int], ends: list[int]) -> None:
        """Update the peak by these runs. A maximum is always at the start of a run."""
        since = self._since - first
        if since > 0:
            starts = [max(start, since) for start in starts]
        starts.sort()
        ends.sort()
        ended = map(bisect_right, repeat(ends), starts)
        levels = list(map(sub, count(1), ended))
        most = max(levels, default=0)
        if most > self.peak:
            self.peak, self.peak_at = most, first + starts[levels.index(most)]


class DayCounters:
    """Fires and skips by the days of a zone."""

    def __init__(self, first: int, last: int, zone: Zone) -> None:
        day = (first + zone.offset(first)) // DAY
        self._dates: list[str] = []
        self.begins: list[int] = []  # in seconds
        while not self.begins or self.begins[-1] < last:
            found = zone.first_pass(day * DAY)
            begin = found.at if isinstance(found, Gap) else found
            if not self.begins or begin > self.begins[-1]:  # a zone may skip a day
                self.begins.append(begin)
                self._dates.append(rfc3339(day * DAY)[:10])
            day += 1
        self.fires = [0] * len(self.begins)
        self.skips = [0] * len(self.begins)

    def of(self, second: int) -> int:
        """Return the index of the day of an instant, counted from 0."""
        return max(bisect_right(self.begins, second) - 1, 0)

    def split(self, ticks: Sequence[int]) -> list[tuple[int, int]]:
        """Return the number of ticks by day, for ordered ticks."""
        found: list[tuple[int, int]] = []
        at = 0
        while at < len(ticks):
            day = self.of(ticks[at])
            after = len(ticks)
            if day + 1 < len(self.begins):
                after = bisect_right(ticks, self.begins[day + 1] - 1, at)
            found.append((day, after - at))
            at = after
        return found

    def forecasts(self) -> tuple[DayForecast, ...]:
        """Return the days with fires or skips."""
        rows = zip(self._dates, self.fires, self.skips, strict=True)
        return tuple(DayForecast(*row) for row in rows if row[1] or row[2])

"""Scripts as data: which schedules are defined when, what each target does, and the acts of users.

Both sides read this and nothing else of each other: `play` does it to the product, `reference`
works out on paper what has to become of every tick. Times are texts as a person in Berlin reads
them off the wall (`Tue 10:05:30`), or whole UTC seconds.

Nothing that could race is at the same second: ticks are at whole minutes, targets take an odd
number of seconds, and people act at odd seconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE, HOUR, DAY = 60, 3600, 86_400
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True)
class Does:
    """What a target does with one attempt: how long it takes, and how it ends.

    `accepts` accepts the run, and reports its outcome `tells` after that, if at all; `busy` asks for
    a retry after `again`; any other end but `ok` is a reason.
    """

    takes: int
    ends: str = "ok"
    tells: int | None = None
    again: int = 0


@dataclass(frozen=True)
class Act:
    """An act of a user."""

    at: int
    verb: str
    name: str = ""
    given: Mapping = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Script:
    """A period, from its first second to its last."""

    first_day: date
    begins: str
    ends: str
    acts: tuple[tuple, ...]
    usually: Mapping[str, Does]
    but: Mapping[str, Does]  # of one tick `poll Mon 05:00`, and maybe of one attempt at it ` #2`
    not_when: frozenset[str] = frozenset()  # the ticks whose condition does not hold

    def instant(self, text):
        """Return the second that a clock on a wall in Berlin shows as `Sun 02:30`, or for the second time `Sun 02:30 again`."""
        found = re.fullmatch(r"(\+?)(\w{3}) (\d\d):(\d\d)(?::(\d\d))?( again)?", text)
        assert found is not None, f"{text!r} is no time"
        week_later, day, hour, minute, second, again = found.groups()
        days = (DAYS.index(day) - self.first_day.weekday()) % 7 + (7 if week_later else 0)
        wall = datetime.combine(self.first_day + timedelta(days), datetime.min.time())
        wall = wall.replace(hour=int(hour), minute=int(minute), second=int(second or 0))
        return int(wall.replace(tzinfo=BERLIN, fold=1 if again else 0).timestamp())

    def told(self, instant):
        """Return how a second of this script is written in it."""
        wall = datetime.fromtimestamp(instant, BERLIN)
        later = "+" if (wall.date() - self.first_day).days >= 7 else ""
        clock = wall.strftime("%H:%M:%S").removesuffix(":00")
        return f"{later}{DAYS[wall.weekday()]} {clock}{' again' if wall.fold else ''}"

    @property
    def first(self):
        return self.instant(self.begins)

    @property
    def last(self):
        return self.instant(self.ends)

    def all_acts(self):
        """Return the acts, in order."""
        found = [Act(self.instant(at), verb, *rest) for at, verb, *rest in self.acts]
        assert found == sorted(found, key=lambda act: act.at), "the script is in order"
        return found

    def does(self, name, tick, attempt):
        """Return what a target does with an attempt at a tick."""
        key = f"{name} {self.told(tick)}"
        return self.but.get(f"{key} #{attempt}") or self.but.get(key) or self.usually[name]

    def holds(self, name, tick):
        """Return the result of the condition of a run."""
        return f"{name} {self.told(tick)}" not in self.not_when


def takes(length, ends="ok", **more):
    """Return a target that takes this long: `40m07s`."""
    return Does(seconds(length), ends, **{name: seconds(each) for name, each in more.items()})


def seconds(text):
    """Return how many seconds `1h30m07s` is."""
    units = {"d": DAY, "h": HOUR, "m": MINUTE, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([dhms])", text))

"""An independent answer to "which minutes match?": slow, plain, and sharing nothing with the engine.

It walks real time minute by minute (or second by second), asks the standard library what the wall
clock shows, and applies the rule as Debian's cron states it: a wild job runs whenever the wall time
matches; a fixed one runs when the clock first reaches or passes a matching wall time, unless it was
carried past it by a jump of more than three hours.
"""

import calendar
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
BOUNDS = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]


class Walk:
    """A cron text of five or six fields in a zone, answered by walking."""

    def __init__(self, text, timezone="UTC"):
        fields = text.upper().split()
        if len(fields) == 5:
            fields.insert(0, "0")
        self.fields = fields
        self.zone = ZoneInfo(timezone)
        self.seconds, self.minutes, self.hours = (expand(fields[i], *BOUNDS[i]) for i in range(3))
        self.months = expand(fields[4], 1, 12, MONTHS, 1)
        self.wild = fields[1].startswith("*") or fields[2].startswith("*")
        self.days = {}

    def ticks(self, first, last, step=60, back=26 * 3600):
        """Return the ticks in `first <= t < last`; with steps of 60, all must be at whole minutes.

        `back` is how long before `first` the walk sets out, to know how far the wall clock has been.
        """
        found = []
        warm = first - back
        passed = self.wall(warm - step)
        for t in range(warm, last, step):
            wall = self.wall(t)
            if self.wild:
                hit = self.matches(wall)
            else:
                jumped = wall - passed > timedelta(hours=3, seconds=step)
                moment = wall if jumped else passed + timedelta(seconds=step)
                hit = False
                while moment <= wall and not hit:
                    hit = self.matches(moment)
                    moment += timedelta(seconds=step)
            passed = max(passed, wall)
            if hit and t >= first:
                found.append(t)
        return found

    def wall(self, t):
        return datetime.fromtimestamp(t, UTC).astimezone(self.zone).replace(tzinfo=None)

    def matches(self, wall):
        return (
            wall.second in self.seconds
            and wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.month in self.months
            and self.day_matches(wall.date())
        )

    def day_matches(self, day):
        if day not in self.days:
            in_month = any(date_matches(term, day) for term in self.fields[3].split(","))
            in_week = any(weekday_matches(term, day) for term in self.fields[5].split(","))
            starred = self.fields[3][0] in "*?" or self.fields[5][0] in "*?"
            self.days[day] = in_month and in_week if starred else in_month or in_week
        return self.days[day]


def expand(text, low, high, names=(), base=0):
    """Return the set of values that a plain field means."""
    values = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        if span in "*?":
            first, last = low, high
        else:
            ends = [
                names.index(end) + base if end in names else int(end) for end in span.split("-")
            ]
            first, last = ends[0], ends[-1] if len(ends) == 2 or not step else high
        values.update(range(first, last + 1, int(step or 1)))
    return values


def date_matches(term, day):
    last = calendar.monthrange(day.year, day.month)[1]
    if term == "LW" or term.endswith("W"):
        wanted = last if term == "LW" else int(term[:-1])
        return wanted <= last and day == nearest_workday(day.replace(day=wanted), last)
    if term.startswith("L"):
        return day.day == last - int(term[2:] or 0)
    return day.day in expand(term, 1, 31)


def nearest_workday(wanted, last):
    """Return the Monday to Friday of the month that is fewest days away."""
    month = [wanted.replace(day=d) for d in range(1, last + 1)]
    return min((d for d in month if d.weekday() < 5), key=lambda d: abs((d - wanted).days))


def weekday_matches(term, day):
    sunday_based = (day.weekday() + 1) % 7
    if "#" in term:
        name, _, nth = term.partition("#")
        return number(name) == sunday_based and (day.day - 1) // 7 + 1 == int(nth)
    if term.endswith("L"):
        return number(term[:-1]) == sunday_based and (day + timedelta(days=7)).month != day.month
    return sunday_based in {value % 7 for value in expand(term, 0, 7, WEEKDAYS)}


def number(name):
    return WEEKDAYS.index(name) if name in WEEKDAYS else int(name) % 7

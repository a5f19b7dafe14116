"""Cron expressions: from five, six or seven fields to bits.

Five fields are minute, hour, day of month, month, day of week; six put seconds first; seven add a
year. A field is a list of `*`, values, ranges and steps, with names for months and weekdays.
Further: `L`, `L-3`, `15W`, `LW` for dates; `5L`, `MON#2` for weekdays (Sunday is 0 and 7); `?` for
a day field left open; `H` for a value hashed from the schedule's id; macros such as `@daily`.

Every error is an `InvalidSchedule` that names the field, the value and what would be right.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from onbeat.core.time.days import (
    ALL_WEEKDAYS,
    DaySet,
    FromEnd,
    NthWeekday,
    Special,
    Workday,
    bits_from,
    bits_of,
)
from onbeat.core.time.local_patterns import SecondsPattern, WallPattern, minutes_of_day
from onbeat.core.time.zones import FIRST_SECOND, zone
from onbeat.errors import InvalidSchedule, in_field, quote_value

LONGEST_TEXT = 1000

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True, eq=False, slots=True)
class CronField:
    """One field of a cron expression: its name, its bounds, and the names of its values."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()  # in order, from `low`

    @property
    def label(self) -> str:
        """The name with spaces."""
        return self.name.replace("_", " ")

    @property
    def last(self) -> int:
        """The last distinct value: Sunday's 7 is the same as 0."""
        return 6 if self.name == "day_of_week" else self.high

    def hint_for(self, text: str) -> str:
        """Return a hint: the name that `text` begins with, or the bounds."""
        if text[:3] in self.names:
            return f"write {text[:3]}"
        if self.name == "day_of_week" and len(text) == 4 and text.isdigit():
            return "six fields begin with the second; a year is the seventh"
        return f"{self.low} to {self.high}" + (
            f", or {self.names[0]} to {self.names[-1]}" if self.names else ""
        )

    def named(self, text: str) -> int | None:
        """Return the value with the name `text`, if there is one."""
        return self.low + self.names.index(text) if text in self.names else None


SECOND = CronField("second", 0, 59)
MINUTE = CronField("minute", 0, 59)
HOUR = CronField("hour", 0, 23)
DAY_OF_MONTH = CronField("day_of_month", 1, 31)
MONTH = CronField("month", 1, 12, MONTH_NAMES)
DAY_OF_WEEK = CronField("day_of_week", 0, 7, WEEKDAY_NAMES)
YEAR = CronField("year", 1970, 2199)
FIELDS = (SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK, YEAR)


class Values(NamedTuple):
    """The values that a field matches: bits, and specials that depend on the month."""

    bits: int
    specials: tuple[Special, ...] = ()


def canonical(text: str) -> str:
    """Return `text` as stored: single spaces, upper case, macros in lower case."""
    tidy = " ".join(_checked(text).split())
    return tidy.lower() if tidy.startswith("@") else tidy.upper()


def as_typed(refused: InvalidSchedule, typed: str) -> InvalidSchedule:
    """Return an error about a canonical text so that it quotes the text as typed."""
    tidy = " ".join(typed.split())

    def quoted(found: re.Match[str]) -> str:
        at = tidy.upper().find(found[1].upper())
        return found[0] if at < 0 else f"'{tidy[at : at + len(found[1])]}'"

    problem = re.sub(r"'([^']+)'", quoted, refused.problem)
    return InvalidSchedule(refused.field, problem, hint=refused.hint)


def split(text: str) -> list[str]:
    """Return the seven fields of a canonical cron expression, second to year."""
    if text.startswith("@"):
        text = _expand(text)
    parts = text.split(" ")
    if not 5 <= len(parts) <= 7:
        hint = "5: minute hour day month weekday; 6: second first; 7: second ... year"
        raise InvalidSchedule(
            "cron", f"{len(parts)} field{'s' * (len(parts) != 1)} in {quote_value(text)}", hint=hint
        )
    if len(parts) == 5:
        parts.insert(0, "0")
    if len(parts) == 6:
        parts.append("*")
    return parts


def uses_hash(text: str) -> bool:
    """Return whether a canonical cron expression has an `H`, which depends on the schedule's id."""
    return "H" in text and any(term[:1] == "H" for term in text.replace(" ", ",").split(","))


@lru_cache(maxsize=4096)
def compile_cron(text: str, timezone: str, *, keep_gaps: bool = True, key: str = "") -> WallPattern:
    """Return the pattern of a canonical cron expression. `H` hashes `key`, the schedule's id."""
    texts = split(text)
    with in_field("cron"):
        if uses_hash(text):
            texts = [_spread(field, part, key) for field, part in zip(FIELDS, texts, strict=True)]
        either = texts[3][0] not in "*?" and texts[5][0] not in "*?"
        return compile_fields(texts, timezone, either=either, keep_gaps=keep_gaps)


def compile_fields(
    texts: list[str], timezone: str, *, either: bool, keep_gaps: bool
) -> WallPattern:
    """Return the pattern of seven fields, second to year; refuse one that can never match."""
    seconds = parse_field(SECOND, texts[0]).bits
    minutes, hours = parse_field(MINUTE, texts[1]).bits, parse_field(HOUR, texts[2]).bits
    days = compile_days(*texts[3:], either=either)
    kind = WallPattern if seconds & seconds - 1 == 0 else SecondsPattern
    pattern = kind(
        zone(timezone),
        days,
        minutes=minutes_of_day(hours, minutes),
        seconds=seconds,
        wild=texts[1][0] == "*" or texts[2][0] == "*",
        keep_gaps=keep_gaps,
        texts=tuple(texts),
    )
    if days.years is not None or (pattern.wild and texts[2] != "*" and days.few):
        _refuse_if_skipped(pattern)
    return pattern


def _refuse_if_skipped(pattern: WallPattern) -> None:
    """Refuse a pattern if the clocks of its zone jump over each of its times."""
    since = (
        2_000_000_000 if pattern.days.years is None else FIRST_SECOND
    )  # 2033: only the rules for the future apply
    if pattern.next_after(since) is None:
        problem = f"never matches: the clocks in {pattern.zone.name} jump over every such time"
        raise InvalidSchedule("", problem, hint="another hour or day")


@lru_cache(maxsize=1024)
def compile_days(dates: str, months: str, weekdays: str, years: str, *, either: bool) -> DaySet:
    """Return the days of four fields, shared by all patterns with the same fields."""
    in_month, in_week = parse_field(DAY_OF_MONTH, dates), parse_field(DAY_OF_WEEK, weekdays)
    days = DaySet(
        months=parse_field(MONTH, months).bits,
        dates=in_month.bits,
        weekdays=in_week.bits,
        special_dates=in_month.specials,
        special_weekdays=in_week.specials,
        either=either,
        years=None if years == "*" else frozenset(bits_of(parse_field(YEAR, years).bits)),
    )
    if days.never:
        texts = zip(FIELDS[3:], (dates, months, weekdays, years), strict=True)
        fields = ", ".join(f"{field.label} {text}" for field, text in texts if text[0] not in "*?")
        hint = "a day that exists, such as 28"
        raise InvalidSchedule("", f"never matches: no day has {fields}", hint=hint)
    return days


@lru_cache(maxsize=4096)
def parse_field(field: CronField, text: str) -> Values:
    """Return the values that one field matches."""
    if text == "*" or (text == "?" and field in (DAY_OF_MONTH, DAY_OF_WEEK)):
        return Values(
            (2 << field.high) - (1 << field.low) if field is not DAY_OF_WEEK else ALL_WEEKDAYS
        )
    if len(text) > LONGEST_TEXT:
        raise _refused(field, f"{len(text)} characters", hint=f"at most {LONGEST_TEXT}")
    bits, specials = 0, []
    for term in text.split(","):
        if field is DAY_OF_MONTH and ("L" in term or "W" in term):
            specials.append(_special_date(term))
        elif field is DAY_OF_WEEK and ("#" in term or term[-1:] == "L"):
            specials.append(_special_weekday(term))
        else:
            bits |= _term(field, term)
    if field is DAY_OF_WEEK:
        bits = (bits | bits >> 7) & ALL_WEEKDAYS
    return Values(bits, tuple(specials))


def _spread(field: CronField, text: str, key: str) -> str:
    """Return the field with each `H` replaced by its value for `key`."""
    return ",".join(
        _hashed(field, term, key) if term.startswith("H") else term for term in text.split(",")
    )


def _checked(text: str) -> str:
    """Refuse what cannot be a cron expression, before it is parsed."""
    if not isinstance(text, str):
        raise InvalidSchedule(
            "cron", f"{quote_value(text)} is not a string", hint='such as "0 9 * * MON-FRI"'
        )
    text = text.strip(" \t\r\n")
    if len(text) > LONGEST_TEXT:
        raise InvalidSchedule("cron", f"{len(text)} characters", hint=f"at most {LONGEST_TEXT}")
    if not text:
        raise InvalidSchedule("cron", "it is empty", hint='such as "0 9 * * MON-FRI"')
    if not (text.isascii() and text.isprintable()):
        if "\n" in text or "\r" in text:
            problem = f"{quote_value(text)} has several lines"
            raise InvalidSchedule("cron", problem, hint="one schedule per line")
        invalid = [char for char in text if char != "\t" and not " " <= char <= "~"]
        if invalid:
            problem = f"the character {quote_value(invalid[0])} is not allowed"
            raise InvalidSchedule("cron", problem, hint="ASCII letters and digits")
    if "TZ=" in text.upper():
        raise InvalidSchedule(
            "cron",
            f"{quote_value(text)} contains a time zone",
            hint="timezone: in a file, tz= in Python, --tz",
        )
    return text


def _expand(macro: str) -> str:
    """Return the fields of a macro."""
    if macro in MACROS:
        return MACROS[macro]
    if macro.startswith("@every"):
        raise InvalidSchedule(
            "cron", f"{quote_value(macro)} is an interval", hint=f"every: {macro[7:] or '90m'}"
        )
    if macro == "@reboot":
        raise InvalidSchedule("cron", "'@reboot' is an event, not a time", hint="startup: 0s")
    raise InvalidSchedule(
        "cron", f"{quote_value(macro)} is not a macro", hint=f"known: {', '.join(MACROS)}"
    )


def _term(field: CronField, term: str) -> int:
    """Return the bits of `5`, `1-5`, `*/2`, `5/10` or `1-30/5`."""
    base, slash, step_text = term.partition("/")
    if base == "*":
        first, last = field.low, field.high
    else:
        low, dash, high = base.partition("-")
        first = _value(field, low, term)
        last = _value(field, high, term) if dash else field.high if slash else first
        if dash and last < first:
            if field is DAY_OF_WEEK and last == 0:
                last = 7
            else:
                wrapped = (
                    f"{first}-{field.last},{field.low}-{last}"
                    if not slash
                    else "the values as a list"
                )
                raise _refused(
                    field, f"the range {quote_value(base)} runs backwards", hint=f"write {wrapped}"
                )
    if not slash:
        return (2 << last) - (1 << first)
    step = _number(step_text)
    if step is None or step == 0:
        raise _refused(
            field,
            f"{quote_value(step_text)} is not a step in {quote_value(term)}",
            hint="a whole number from 1",
        )
    count = field.last - field.low + 1
    if step > count:
        hint = f"{base}/{count} at most; for longer intervals use `every`"
        raise _refused(
            field, f"the step {quote_value(step_text)} is longer than the field", hint=hint
        )
    return bits_from(range(first, last + 1, step))


def _value(field: CronField, text: str, term: str) -> int:
    number = field.named(text)
    if number is None:
        number = _number(text)
    if number is None or not field.low <= number <= field.high:
        inside = f" in {quote_value(term)}" if term != text else ""
        raise _refused(
            field,
            f"{quote_value(text)}{inside} is not {_article(field.label)} {field.label}",
            hint=field.hint_for(text),
        )
    return number


def _article(label: str) -> str:
    return "an" if label == "hour" else "a"


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() and text.isascii() and len(text) <= 9 else None


def _special_date(term: str) -> Special:
    """Read `L`, `L-3`, `LW`, `15W`."""
    if term == "L":
        return FromEnd(0)
    if term == "LW":
        return Workday(0)
    if term.startswith("L-"):
        days = _number(term[2:])
        if days is not None and 1 <= days <= 30:
            return FromEnd(days)
    if term.endswith("W"):
        date = _number(term[:-1])
        if date is not None and 1 <= date <= 31:
            return Workday(date)
    raise _refused(
        DAY_OF_MONTH,
        f"{quote_value(term)} is not a day of month",
        hint="L, L-1 to L-30, LW, 1W to 31W",
    )


def _special_weekday(term: str) -> Special:
    """Read `5L`, `FRIL`, `MON#2`."""
    name, mark, nth_text = term.partition("#")
    nth = _number(nth_text) if mark else 0
    day = name if mark else term[:-1]
    weekday = DAY_OF_WEEK.named(day)
    if weekday is None:
        weekday = _number(day)
    if weekday is None or weekday > 7 or nth is None or (mark and not 1 <= nth <= 5):
        hint = "5L is the last Friday, MON#1 to MON#5"
        raise _refused(DAY_OF_WEEK, f"{quote_value(term)} is not a weekday of the month", hint=hint)
    return NthWeekday(weekday % 7, nth)


def _hashed(field: CronField, term: str, key: str) -> str:
    """Return the field text for `H`, `H/15`, `H(0-29)` or `H(0-29)/10` with this key."""
    if not key or not isinstance(key, str):
        raise _refused(
            field,
            f"{quote_value(term)} requires a schedule id to hash",
            hint="in Python pass key=",
        )
    base, slash, step_text = term.partition("/")
    first, last = field.low, 28 if field is DAY_OF_MONTH else field.last
    if base != "H":
        low, dash, high = base[2:-1].partition("-")
        if not (base.startswith("H(") and base.endswith(")") and dash):
            raise _refused(
                field,
                f"{quote_value(term)} is not a hashed value",
                hint="H, H/15, H(0-29) or H(0-29)/10",
            )
        first, last = _value(field, low, term), _value(field, high, term)
        if last < first:
            raise _refused(
                field, f"the range in {quote_value(term)} runs backwards", hint=f"H({last}-{first})"
            )
    step = _number(step_text) if slash else None
    if slash and (not step or step > last - first + 1):
        raise _refused(
            field,
            f"{quote_value(step_text)} is not a step in {quote_value(term)}",
            hint=f"1 to {last - first + 1}",
        )
    digest = int.from_bytes(
        sha256(f"{key}:{field.name}".encode(errors="surrogatepass")).digest()[:8], "big"
    )
    if step:
        return f"{first + digest % step}-{last}/{step}"
    return str(first + digest % (last - first + 1))


def _refused(field: CronField, problem: str, *, hint: str) -> InvalidSchedule:
    return InvalidSchedule(field.name, problem, hint=hint)

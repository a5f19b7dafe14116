"""Templates: texts with `{{ date }}`, in a language small enough to render in a transaction.

There are no statements, calls or loops. An expression in braces is a name, a path into a JSON
value, and filters. Names and filters are closed lists:

    date, time, timezone      the local date and time of the tick, and their zone
    run_at, due_at            the planned instant, and when it may start, with the zone's offset
    first_run_at, tick_count  the first of the ticks that the run covers, and their number
    schedule_id, key          the id of the schedule, and the idempotency key of the run
    iteration, triggered_by   the sequence number of the run, and its cause
    last_run, or lastRun      when the previous run ended
    last.result               its result, and any path into it: last.result.rows[0]['some id']
    last.status, last.error, last.run_at, last.finished_at      further fields of it

All of `last` is null before the first run has ended, and so is a path that does not exist. Null is
rendered as an empty text, a text unchanged, anything else as JSON; `{{ '{{' }}` renders braces. An
accepted template can be rendered with any values: a filter that does not apply is skipped.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from onbeat.core.explain.describe import MONTHS, WEEKDAYS
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import rfc3339, whole_second
from onbeat.core.time.zones import DAY, zone
from onbeat.errors import InvalidSchedule, did_you_mean, in_field, quote_value

MOST_EXPRESSIONS = 100  # in one text, and in all texts of a value
MOST_FILTERS = 10  # of one expression
LONGEST_TEXT = 64 * 1024  # bytes of a text with expressions, and of its rendering
LONGEST_CACHED = 4 * 1024  # characters of a text that is cached in parsed form

NAMES = {
    "date": "the local date of the tick, such as 2026-01-29",
    "time": "the local time of the tick, such as 17:00:00",
    "timezone": "the zone of the schedule, such as Europe/Berlin",
    "run_at": "the planned instant, such as 2026-01-29T17:00:00+01:00",
    "due_at": "when the run may start: run_at, or later by its jitter",
    "first_run_at": "the first of the ticks that the run covers, else run_at",
    "tick_count": "the number of ticks that the run covers",
    "schedule_id": "the id of the schedule",
    "key": "the idempotency key of the run, the same for each attempt",
    "iteration": "the sequence number of the run in its schedule",
    "triggered_by": (
        "the cause of the run: timer, manual, catchup, retry, backfill, artifact, overdue, next_run"
    ),
    "last_run": "when the previous run ended",
    "last.result": "the result of the previous run, and any path into it",
    "last.status": "how the previous run ended: SUCCESS, FAILED or CANCELED",
    "last.error": "the error of the previous run",
    "last.run_at": "the planned instant of the previous run",
    "last.finished_at": "when the previous run ended",
}

Values = Mapping[str, object]
Step = Callable[[object, Values], object]


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed text."""

    text: str
    parts: "tuple[str | Expression, ...]" = field(repr=False, compare=False)

    @staticmethod
    def parse(text: str) -> "Template":
        """Parse `text`, or refuse it."""
        return (_parse if len(text) <= LONGEST_CACHED else _parse.__wrapped__)(text)

    @property
    def is_plain(self) -> bool:
        """Whether it has no expression, so that it is rendered unchanged."""
        return "{{" not in self.text

    def render(self, values: Values) -> str:
        """Return the text with the values filled in."""
        if self.is_plain:
            return self.text
        parts = (part if isinstance(part, str) else _text(part.of(values)) for part in self.parts)
        return _text(_cut("".join(parts)))

    def value(self, values: Values) -> object:
        """Return the value if the whole text is one expression, otherwise the rendered text."""
        only = self.parts[0] if len(self.parts) == 1 else ""
        return only.of(values) if isinstance(only, Expression) else self.render(values)


def check_templates(value: object) -> None:
    """Refuse the first invalid text in a JSON value. Names in mappings are not templates."""
    expressions = 0
    for path, text in _texts(value):
        with in_field(path):
            expressions += sum(not isinstance(part, str) for part in Template.parse(text).parts)
            if expressions > MOST_EXPRESSIONS:
                hint = f"{MOST_EXPRESSIONS} at most, in all texts together"
                raise InvalidSchedule("", "too many {{ expressions }}", hint=hint)


def has_templates(value: object) -> bool:
    """Return whether a checked JSON value contains an expression."""
    return any("{{" in text for _, text in _texts(value))


def render_all(value: object, values: Values, *, native: bool = False) -> object:
    """Return a checked JSON value with every text rendered.

    With `native`, a text that is a single expression becomes the value of that expression.
    """
    if isinstance(value, str) and "{{" in value:
        template = Template.parse(value)
        return template.value(values) if native else template.render(values)
    if isinstance(value, (list, tuple)):
        return [render_all(item, values, native=native) for item in value]
    if isinstance(value, Mapping):
        return {name: render_all(item, values, native=native) for name, item in value.items()}
    return value


class PreviousRun(msgspec.Struct, frozen=True):
    """The previous run that ended."""

    status: str
    run_at: int
    finished_at: int  # milliseconds
    result: object = None  # a JSON value
    error: str | None = None


def values_of(
    *,
    schedule_id: str,
    timezone: str,
    run_at: int,
    due_at: int,  # milliseconds
    first_run_at: int | None,
    key: str,
    iteration: int,
    tick_count: int,
    triggered_by: str,
    last: PreviousRun | None,
    ran_before: int | None = None,
) -> dict[str, object]:
    """Return the value of every name in one run.

    `ran_before` is when the schedule last ran, in milliseconds, if that run is not stored.
    """
    where = zone(timezone)
    planned = rfc3339(run_at, where)
    ended_at = ran_before if last is None else last.finished_at
    ended = None if ended_at is None else rfc3339(ended_at // 1000, where)
    return {
        "date": planned[:10], "time": planned[11:19], "timezone": timezone,
        "run_at": planned, "due_at": rfc3339(due_at // 1000, where),
        "first_run_at": planned if first_run_at is None else rfc3339(first_run_at, where),
        "tick_count": tick_count, "schedule_id": schedule_id, "key": key,
        "iteration": iteration, "triggered_by": triggered_by, "last_run": ended,
        "last": None if last is None else {
            "result": last.result, "status": str(last.status), "error": last.error,
            "run_at": rfc3339(last.run_at, where), "finished_at": ended,
        },
    }  # fmt: skip


class Expression(NamedTuple):
    """An expression in braces: the path to a value, or a text, and the filters applied to it."""

    source: tuple[object, ...] | str
    steps: tuple[Step, ...]

    def of(self, values: Values) -> object:
        """Return the value, cut before each step: every `json` doubles the quotes of the last."""
        value = self.source if isinstance(self.source, str) else _value_at(values, self.source)
        for step in self.steps:
            try:
                value = step(_cut(value), values)
            except (InvalidSchedule, ValueError, OverflowError):  # the filter does not apply
                continue
        return _cut(value)


# The grammar. Every repetition starts with a distinct character, so that parsing never backtracks.
_NAME, _NUMBER, _QUOTED = r"[A-Za-z_]\w*+", r"(?:0|-?[1-9]\d{0,14}+)", r"""(?:'[^']*+'|"[^"]*+")"""
_LITERAL = rf"(?:{_QUOTED}|{_NUMBER}|true\b|false\b|null\b)\s*+"
_PART = rf"\.\s*+({_NAME})\s*+|\[\s*+({_NUMBER}|{_QUOTED})\s*+\]\s*+"
_FILTER = rf"\|\s*+({_NAME})\s*+(?:\(\s*+((?:{_LITERAL}(?:,\s*+{_LITERAL})*)?)\)\s*+)?"
_SOURCE = rf"(?:(?P<quoted>{_QUOTED})\s*+|(?P<name>{_NAME})\s*+(?P<path>(?:{_PART})*))"
_EXPRESSION = re.compile(rf"\s*+{_SOURCE}(?P<filters>(?:{_FILTER})*)\}}\}}", re.ASCII)
_PARTS, _FILTERS, _LITERALS = (re.compile(each, re.ASCII) for each in (_PART, _FILTER, _LITERAL))
_OPENING = re.compile(r"\{\{|\{%|(?<!\$)\{#")  # but ${#name} is shell syntax


@lru_cache(maxsize=4096)
def _parse(text: str) -> Template:
    parts: list[str | Expression] = []
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        if opening[0] != "{{":
            hint = f"{{{{ '{opening[0]}' }}}} for the characters themselves"
            raise InvalidSchedule("", "statements are not supported, only {{ name }}", hint=hint)
        if len(parts) == 2 * MOST_EXPRESSIONS or (not parts and _cut(text) != text):
            hint = f"{LONGEST_TEXT // 1024} KiB and {MOST_EXPRESSIONS} expressions at most"
            raise InvalidSchedule(
                "", "the string is too long to contain {{ expressions }}", hint=hint
            )
        found = _EXPRESSION.match(text, opening.end())
        if found is None:
            start, closed, _ = text[opening.start() :].partition("}}")
            problem = "'{{' without '}}'"
            if closed:
                problem = f"{quote_value(start + closed)} is not an expression"
            hint = "{{ name }} or {{ name | filter }}; {{ '{{' }} for the braces themselves"
            raise InvalidSchedule("", problem, hint=hint)
        quoted, name, path, filters = found.group("quoted", "name", "path", "filters")
        source = quoted[1:-1] if quoted else _path(name, path)
        parts += [text[at : opening.start()], Expression(source, _steps(filters))]
        at = found.end()
    return Template(text, tuple(part for part in (*parts, text[at:]) if part))


def _path(name: str, parts: str) -> tuple[object, ...]:
    below = (word or _literal(key) for word, key in _PARTS.findall(parts))
    path = ("last_run" if name == "lastRun" else name, *below)
    own = 2 if name == "last" else 1
    name = ".".join(str(part) for part in path[:own])
    if name not in NAMES:
        raise InvalidSchedule(
            "", f"{quote_value(name)} is not a known name", hint=did_you_mean(name, NAMES)
        )
    if len(path) > own and name != "last.result":
        raise InvalidSchedule(
            "", f"{name} has no fields", hint="only last.result can be followed by .field"
        )
    return path


def _steps(filters: str) -> tuple[Step, ...]:
    steps = []
    for name, listed in _FILTERS.findall(filters):
        if name not in FILTERS:
            problem = f"no filter is called {quote_value(name)}"
            raise InvalidSchedule("", problem, hint=did_you_mean(name, FILTERS))
        usage, takes, step_with = FILTERS[name]
        arguments = [_literal(token) for token in _LITERALS.findall(listed)]
        if [object if object in takes else type(each) for each in arguments] != takes:
            raise InvalidSchedule("", f"the arguments of {name} are wrong", hint=usage)
        steps.append(step_with(*arguments))
    if len(steps) > MOST_FILTERS:
        raise InvalidSchedule("", f"{len(steps)} filters", hint=f"{MOST_FILTERS} at most")
    return tuple(steps)


def _literal(token: str) -> object:
    return token.strip()[1:-1] if token[0] in "'\"" else msgspec.json.decode(token)


def _value_at(value: object, path: tuple[object, ...]) -> object:
    """Return the value at a path into JSON, or null."""
    for part in path:
        if isinstance(value, Mapping) and isinstance(part, str):
            value = value.get(part)
        elif isinstance(value, (list, tuple)) and isinstance(part, int):
            value = value[part] if -len(value) <= part < len(value) else None
        else:
            return None
    return value


def _texts(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in a JSON value with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _texts(item, f"{path}[{i}]")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            below = quote_value(name).strip("'")
            yield from _texts(item, f"{path}.{below}" if path else below)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else _json(value)


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):  # JSON cannot represent it
        return "null"


def _cut(value: object) -> object:
    written = value.encode(errors="surrogatepass") if isinstance(value, str) else b""
    return value if len(written) <= LONGEST_TEXT else written[:LONGEST_TEXT].decode(errors="ignore")


def _on_text(change: Callable[[str], str]) -> Step:
    return lambda value, _: None if value is None else change(_text(value))


def _date(form: str) -> Step:
    for code in _CODE.findall(form):
        if code not in tuple(_CODES):
            hint = f"known: %{' %'.join(_CODES)}"
            raise InvalidSchedule(
                "", f"the date format has an unknown code: {quote_value('%' + code)}", hint=hint
            )
    return lambda value, _: _CODE.sub(partial(_coded, _moment(value)), form)


def _coded(moment: datetime, code: re.Match[str]) -> str:
    name = {"A": WEEKDAYS[moment.weekday()], "B": MONTHS[moment.month]}.get(code[1].upper(), "")
    return (name if code[1].isupper() else name[:3]) or moment.strftime(code[0])  # in any locale


def _shift(text: str) -> Step:
    sign, size = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    length = parse_duration(size)
    by, days, seconds = sign * length.elapsed, sign * length.days, sign * length.seconds

    def step(value: object, values: Values) -> str:
        moment, own, where = _moment(value), str(value), zone(values.get("timezone", "UTC"))
        moved, in_utc = moment + timedelta(seconds=by), own[-1] in "Zz"
        t = whole_second(moment.replace(tzinfo=moment.tzinfo or UTC))
        offset = where.offset(t)
        if moment.utcoffset() == timedelta(seconds=offset) and not in_utc:  # it is of that zone
            t = where.reached(t + offset + days * DAY) if days else t
            there = datetime.fromisoformat(rfc3339(t + seconds, where))
            moved = there.replace(microsecond=moment.microsecond)
        text = moved.isoformat().replace("+00:00", "Z" if in_utc else "+00:00")
        return text[:10] if len(own) == 10 and not seconds else text

    return step


def _moment(value: object) -> datetime:
    """Return the date, local time or instant in a text; anything else is a ValueError."""
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        raise ValueError(value)
    return datetime.fromisoformat(value.upper())


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d\S*)?", re.ASCII | re.IGNORECASE)
_CODE, _CODES = re.compile("%(.?)", re.DOTALL), "YmdHMSjAaBbyz%"

# Usage, argument types, and a factory of the step, which raises if the filter does not apply.
FILTERS: dict[str, tuple[str, list[type], Callable[..., Step]]] = {
    "default": ("default('none')", [object], lambda x: lambda v, _: x if v is None else v),
    "date": ("date('%d.%m.%Y')", [str], _date),
    "shift": ("shift('-1d')", [str], _shift),
    "upper": ("upper", [], partial(_on_text, str.upper)),
    "lower": ("lower", [], partial(_on_text, str.lower)),
    "trim": ("trim", [], partial(_on_text, str.strip)),
    "json": ("json", [], lambda: lambda value, _: _json(value)),
    "first_line": ("first_line", [], partial(_on_text, lambda text: text.partition("\n")[0])),
    "truncate": ("truncate(100)", [int], lambda n: _on_text(lambda text: text[: max(n, 0)])),
}

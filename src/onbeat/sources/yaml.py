"""Read a YAML file of definitions: `timezone`, `calendars` and `schedules`.

A file with mistakes is refused as a whole, with every mistake and its line: see `InvalidFile`.
`sources/yaml_positions.py` reads the YAML, `sources/all_errors.py` finds the errors of a schedule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from onbeat.core.schedule import Schedule, read_schedule, split_timing
from onbeat.core.time.zones import zone
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.calendars import Calendars, Exclude
from onbeat.core.triggers.codec import decode
from onbeat.errors import InvalidFile, InvalidSchedule, Mistake, did_you_mean, in_field, quote_value
from onbeat.sources.all_errors import UNKNOWN, find_errors, require_fields
from onbeat.sources.holidays import holiday_items
from onbeat.sources.ics import ics_items
from onbeat.sources.text_files import read_text
from onbeat.sources.yaml_positions import MOST_MISTAKES, YamlPosition, read_yaml

SECTIONS = ("timezone", "calendars", "schedules")


class ScheduleFile(NamedTuple):
    """The schedules of a file, and its path."""

    path: Path
    schedules: list[Schedule]


@dataclass(frozen=True, slots=True)
class FileDefinitions:
    """The content of a file. Schedules are unparsed: each is parsed on access.

    Mistakes are raised as `InvalidFile`, with their lines.
    """

    path: str
    position: YamlPosition
    timezone: str
    calendars: Calendars
    schedules: Mapping[str, object]

    def trigger(self, name: str) -> Trigger:
        """Return the trigger of the schedule called `name`, which may lack `run`."""
        if name not in self.schedules:
            problem = f"no schedule is called {quote_value(name)}"
            raise InvalidSchedule("schedules", problem, hint=did_you_mean(name, self.schedules))
        try:
            timing, _ = split_timing(require_fields(self.schedules[name]))
            return decode(timing, timezone=self.timezone, key=name, calendars=self.calendars)
        except InvalidSchedule as refused:
            raise InvalidFile(self.path, [self.mistake(name, refused)]) from None

    def zone_of(self, name: str) -> str:
        """Return the zone of the schedule called `name`."""
        fields = self.schedules.get(name)
        if isinstance(fields, Mapping):
            return zone(fields.get("timezone", self.timezone)).name
        return zone(self.timezone).name

    def mistake(self, name: str, refused: InvalidSchedule) -> Mistake:
        """Return why a schedule was refused, with its line."""
        return _mistake(self.position, refused.under(f"schedules.{name}"))

    def read(self, name: str, fields: object, check: Callable[[Schedule], None]) -> Schedule:
        """Return the schedule with these fields; `check` may refuse it as well."""
        schedule = read_schedule(name, fields, timezone=self.timezone, calendars=self.calendars)
        check(schedule)
        return schedule


def read_file(path: Path, check: Callable[[Schedule], None]) -> ScheduleFile:
    """Return the schedules of a file, or refuse it with every mistake.

    `check` refuses schedules that cannot be launched.
    """
    definitions, mistakes = _read(path)
    schedules: list[Schedule] = []
    for name, fields in definitions.schedules.items():
        try:
            schedules.append(definitions.read(name, fields, check))
        except InvalidSchedule as refused:
            errors = find_errors(name, fields, partial(definitions.read, check=check))
            mistakes += [definitions.mistake(name, each) for each in errors or [refused]]
        if len(mistakes) > MOST_MISTAKES:
            break
    if mistakes:
        raise InvalidFile(str(path), mistakes)
    return ScheduleFile(path, schedules)


def read_definitions(path: Path) -> FileDefinitions:
    """Read a file without parsing its schedules, or refuse it."""
    definitions, mistakes = _read(path)
    if mistakes:
        raise InvalidFile(str(path), mistakes)
    return definitions


def _read(path: Path) -> tuple[FileDefinitions, list[Mistake]]:
    """Return the content of a file, with a valid value in place of each mistake."""
    try:
        text = read_text(path)
    except InvalidSchedule as refused:
        problem = refused.problem.removeprefix(f"{path.name} ")
        raise InvalidFile(str(path), [Mistake(None, "", problem, refused.hint)]) from None
    content, position, mistakes = read_yaml(text)
    if not isinstance(content, dict):
        if not mistakes:
            mistakes.append(Mistake(1, "", "it has no fields", "schedules: {...}"))
        content = {}

    def refuse(refused: InvalidSchedule) -> None:
        mistakes.append(_mistake(position, refused))

    for name in content:
        if name not in SECTIONS:
            refuse(InvalidSchedule(_quoted(name), UNKNOWN, hint=did_you_mean(name, SECTIONS)))
    timezone = "UTC"
    try:
        timezone = zone(content.get("timezone", timezone)).name
    except InvalidSchedule as refused:
        refuse(refused)
    sections: dict[str, Mapping[str, object]] = {}
    for name in ("calendars", "schedules"):
        section = content.get(name) or {}
        if not isinstance(section, dict):
            problem, hint = f"{quote_value(section)} is not a mapping", f"{name}: {{a-name: ...}}"
            refuse(InvalidSchedule(name, problem, hint=hint))
            section = {}
        sections[name] = section
    calendars: dict[str, tuple[str, ...]] = {}
    for name, value in sections["calendars"].items():
        calendars[name] = ()
        try:
            calendars[name] = _items(name, value, path.parent)
        except InvalidSchedule as refused:
            refuse(refused)
    schedules = sections["schedules"]
    return FileDefinitions(str(path), position, timezone, calendars, schedules), mistakes


def _mistake(position: YamlPosition, refused: InvalidSchedule) -> Mistake:
    line = position.line_of(refused.field)
    return Mistake(line, refused.field, refused.problem, refused.hint)


def _quoted(name: str) -> str:
    return quote_value(name).strip("'")


def _items(name: str, value: object, folder: Path) -> tuple[str, ...]:
    """Return the items of a calendar: a list, an .ics file, or the holidays of a region."""
    with in_field(f"calendars.{name}"):
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return Exclude(tuple(value)).items  # which refuses an item that is not a date
        if isinstance(value, Mapping) and list(value) == ["ics"] and isinstance(value["ics"], str):
            return ics_items(folder / value["ics"])
        if (
            isinstance(value, Mapping)
            and list(value) == ["holidays"]
            and isinstance(value["holidays"], str)
        ):
            return holiday_items(value["holidays"])
        hint = "[2026-12-25, 12-31], {ics: dates.ics} or {holidays: DE-BY}"
        raise InvalidSchedule("", f"{quote_value(value)} is not a calendar", hint=hint)

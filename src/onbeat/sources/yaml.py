"""Definitions in a YAML file: `timezone`, `calendars` and `schedules`.

A file that is wrong is refused whole, and every mistake in it is told with its line: see
`InvalidFile`. `sources/yaml_positions.py` has the rules of the YAML itself, `sources/all_errors.py` finds
all that is wrong with one schedule.
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
from onbeat.errors import InvalidFile, InvalidSchedule, Mistake, meant, naming, shown
from onbeat.sources.all_errors import UNKNOWN, fields_of, refusals_of
from onbeat.sources.holidays import holiday_items
from onbeat.sources.ics import ics_items
from onbeat.sources.text_files import read_text
from onbeat.sources.yaml_positions import MOST_MISTAKES, YamlPosition, read_yaml

SECTIONS = ("timezone", "calendars", "schedules")


class File(NamedTuple):
    """The schedules of a file, and where that is."""

    path: Path
    schedules: list[Schedule]


@dataclass(frozen=True, slots=True)
class FileDefinitions:
    """What one file defines, the schedules as they are written: each is read when it is asked for.

    What is wrong is raised as `InvalidFile`, with its line.
    """

    path: str
    place: YamlPosition
    timezone: str
    calendars: Calendars
    schedules: Mapping[str, object]

    def trigger(self, name: str) -> Trigger:
        """Return the trigger of the schedule called `name`, which need not say what it runs."""
        if name not in self.schedules:
            problem = f"no schedule is called {shown(name)}"
            raise InvalidSchedule("schedules", problem, hint=meant(name, self.schedules))
        try:
            timing, _ = split_timing(fields_of(self.schedules[name]))
            return decode(timing, timezone=self.timezone, key=name, calendars=self.calendars)
        except InvalidSchedule as refused:
            raise InvalidFile(self.path, [self.mistake(name, refused)]) from None

    def zone_of(self, name: str) -> str:
        """Return the zone that the schedule called `name` is in."""
        given = self.schedules.get(name)
        named = (
            given.get("timezone", self.timezone) if isinstance(given, Mapping) else self.timezone
        )
        return zone(named).name

    def mistake(self, name: str, refused: InvalidSchedule) -> Mistake:
        """Return why a schedule was refused, with the line of it."""
        return _mistake(self.place, refused.under(f"schedules.{name}"))

    def read(self, name: str, given: object, check: Callable[[Schedule], None]) -> Schedule:
        """Return the schedule of these fields, which `check` may refuse as well."""
        schedule = read_schedule(name, given, timezone=self.timezone, calendars=self.calendars)
        check(schedule)
        return schedule


def read_file(path: Path, check: Callable[[Schedule], None]) -> File:
    """Read the schedules of a file; refuse all of them for every mistake that is in it.

    `check` refuses what cannot be launched.
    """
    definitions, mistakes = _read(path)
    found: list[Schedule] = []
    for name, given in definitions.schedules.items():
        try:
            found.append(definitions.read(name, given, check))
        except InvalidSchedule as refused:
            others = refusals_of(name, given, partial(definitions.read, check=check))
            mistakes += [definitions.mistake(name, each) for each in others or [refused]]
        if len(mistakes) > MOST_MISTAKES:
            break
    if mistakes:
        raise InvalidFile(str(path), mistakes)
    return File(path, found)


def read_definitions(path: Path) -> FileDefinitions:
    """Read a file but for its schedules, or refuse it."""
    definitions, mistakes = _read(path)
    if mistakes:
        raise InvalidFile(str(path), mistakes)
    return definitions


def _read(path: Path) -> tuple[FileDefinitions, list[Mistake]]:
    """Return what a file says, with something right in place of each mistake."""
    try:
        text = read_text(path)
    except InvalidSchedule as refused:
        problem = refused.problem.removeprefix(f"{path.name} ")
        raise InvalidFile(str(path), [Mistake(None, "", problem, refused.hint)]) from None
    given, place, mistakes = read_yaml(text)
    if not isinstance(given, dict):
        if not mistakes:
            mistakes.append(Mistake(1, "", "there are no fields in it", "schedules: {...}"))
        given = {}

    def refuse(refused: InvalidSchedule) -> None:
        mistakes.append(_mistake(place, refused))

    for name in given:
        if name not in SECTIONS:
            refuse(InvalidSchedule(_quoted(name), UNKNOWN, hint=meant(name, SECTIONS)))
    timezone = "UTC"
    try:
        timezone = zone(given.get("timezone", timezone)).name
    except InvalidSchedule as refused:
        refuse(refused)
    sections: dict[str, Mapping[str, object]] = {}
    for name in ("calendars", "schedules"):
        found = given.get(name) or {}
        if not isinstance(found, dict):
            problem, hint = f"{shown(found)} is no set of names", f"{name}: {{a-name: ...}}"
            refuse(InvalidSchedule(name, problem, hint=hint))
            found = {}
        sections[name] = found
    calendars: dict[str, tuple[str, ...]] = {}
    for name, value in sections["calendars"].items():
        calendars[name] = ()
        try:
            calendars[name] = _items(name, value, path.parent)
        except InvalidSchedule as refused:
            refuse(refused)
    return FileDefinitions(str(path), place, timezone, calendars, sections["schedules"]), mistakes


def _mistake(place: YamlPosition, refused: InvalidSchedule) -> Mistake:
    line = place.line_of(refused.field)
    return Mistake(line, refused.field, refused.problem, refused.hint)


def _quoted(name: str) -> str:
    return shown(name).strip("'")


def _items(name: str, value: object, folder: Path) -> tuple[str, ...]:
    """Return the items a calendar stands for: listed, from an .ics file, or a region's holidays."""
    with naming(f"calendars.{name}"):
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return Exclude(tuple(value)).items  # refused here, should one be no date
        if isinstance(value, Mapping) and list(value) == ["ics"] and isinstance(value["ics"], str):
            return ics_items(folder / value["ics"])
        if (
            isinstance(value, Mapping)
            and list(value) == ["holidays"]
            and isinstance(value["holidays"], str)
        ):
            return holiday_items(value["holidays"])
        hint = "[2026-12-25, 12-31], {ics: dates.ics} or {holidays: DE-BY}"
        raise InvalidSchedule("", f"{shown(value)} is no calendar", hint=hint)

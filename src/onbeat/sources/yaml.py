"""Definitions in a YAML file: `timezone`, `calendars` and `schedules`.

The file is read by the rules of YAML 1.2: `on`, `no` and `17:00` are texts, dates stay as written.
A key written twice is refused, and so is a file that anchors blow up.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import yaml

from onbeat.core.calendars import Calendars, Exclude
from onbeat.core.codec import check_names, decode
from onbeat.core.schedules import Schedule, read_schedule, split_timing
from onbeat.core.ticks import Trigger
from onbeat.core.zones import zone
from onbeat.errors import InvalidSchedule, meant, naming, shown
from onbeat.sources.files import read_text
from onbeat.sources.holidays import holiday_items
from onbeat.sources.ics import ics_items

DEEPEST = 32
MOST_VALUES = 1_000_000  # in one file, each use of an anchor counted


@dataclass(frozen=True, slots=True)
class Definitions:
    """What one file defines."""

    timezone: str
    calendars: Calendars
    schedules: Mapping[str, object]

    def schedule(self, name: str) -> Schedule:
        """Return the schedule called `name`."""
        given = self._fields(name)
        with naming(f"schedules.{name}"):
            return read_schedule(name, given, timezone=self.timezone, calendars=self.calendars)

    def trigger(self, name: str) -> Trigger:
        """Return the trigger of the schedule called `name`, which need not say what it runs."""
        given = self._fields(name)
        with naming(f"schedules.{name}"):
            timing, _ = split_timing(given)
            return decode(timing, timezone=self.timezone, key=name, calendars=self.calendars)

    def zone_of(self, name: str) -> str:
        """Return the zone that the schedule called `name` is in."""
        given = self.schedules.get(name)
        named = (
            given.get("timezone", self.timezone) if isinstance(given, Mapping) else self.timezone
        )
        return zone(named).name

    def _fields(self, name: str) -> Mapping[str, object]:
        given = self.schedules.get(name)
        if given is None and name not in self.schedules:
            problem = f"no schedule is called {shown(name)}"
            raise InvalidSchedule("schedules", problem, hint=meant(name, self.schedules))
        if not isinstance(given, Mapping):
            problem = f"{shown(given)} is no schedule"
            raise InvalidSchedule(f"schedules.{name}", problem, hint="fields, such as every: 90m")
        return given


def read_definitions(path: Path) -> Definitions:
    """Read a file, or refuse it."""
    given = parse_yaml(read_text(path))
    if not isinstance(given, Mapping):
        raise InvalidSchedule("", "there are no fields in it", hint="schedules: {...}")
    check_names(given, {"timezone", "calendars", "schedules"})
    timezone = zone(given.get("timezone", "UTC")).name
    schedules = _mapping(given, "schedules")
    calendars = {
        name: _items(name, value, path.parent)
        for name, value in _mapping(given, "calendars").items()
    }
    return Definitions(timezone, calendars, schedules)


def parse_yaml(text: str) -> object:
    """Return what a YAML text says, in plain values."""
    try:
        _check_events(text)
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader, made stricter
        _check_size(value)
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        said = ", ".join(filter(None, [broken.context, broken.problem]))
        quotes = 'a text with * goes in quotes: "* * * * *"'
        hint = quotes if "scanning an alias" in said else "YAML 1.2"
        raise InvalidSchedule("", f"{where}{said}", hint=hint) from None
    except (yaml.YAMLError, ValueError, OverflowError) as broken:  # a number or character too large
        raise InvalidSchedule("", f"{broken}".splitlines()[0][:200], hint="YAML 1.2") from None
    return value


def _check_events(text: str) -> None:
    """Refuse what plain definitions do without: tags, and values nested deep."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        mark = cast("yaml.Mark | None", event.start_mark)  # the loader is the one in Python
        if depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem="nested too deep", problem_mark=mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(problem="tags are not read", problem_mark=mark)


def _mapping(given: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = given.get(name) or {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidSchedule(
            name, f"{shown(value)} is no set of names", hint=f"{name}: {{a-name: ...}}"
        )
    return value


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


def _check_size(value: object) -> None:
    left, open_values = MOST_VALUES, [value]
    while open_values:
        value = open_values.pop()
        left -= 1
        if left < 0:
            raise yaml.YAMLError(f"more than {MOST_VALUES} values, counting each use of an anchor")
        if isinstance(value, dict):
            open_values.extend(value.values())
        elif isinstance(value, list):
            open_values.extend(value)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema: few words and numbers are special, everything else is a text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - filled below

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and not key_node.tag.endswith(":merge"):
                if key_node.value in seen:
                    problem = f"the key {shown(key_node.value)} is there twice"
                    raise yaml.constructor.ConstructorError(
                        None, None, problem, key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key_node, value_node in node.value:
            if key_node.tag.endswith(":merge") and not isinstance(value_node, yaml.MappingNode):
                problem = "`<<` takes one anchor"  # a list of them could double with every line
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        super().flatten_mapping(node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
for _tag, _pattern, _starts in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_starts)
    )

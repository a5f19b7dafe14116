"""Write schedules as a YAML file that recreates them in an empty database.

Texts that a reader of YAML 1.1 would take for another type are quoted: `on`, `12:30`, `1e3`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import yaml

from onbeat.core.policy import POLICIES
from onbeat.core.target_kinds import KINDS as TARGET_KINDS
from onbeat.core.triggers.codec import AROUND, KINDS
from onbeat.sources.yaml_positions import FLOAT, INT, STRANGE

Fields = dict[str, object]

HEAD = "# Schedules, as onbeat export wrote them. Pauses and positions are kept in the database.\n"
BEFORE = ("description", *KINDS, *sorted(AROUND))  # the order of fields: these, then a target
AFTER = ("run", "when", *POLICIES)


def write_yaml(definitions: Mapping[str, str]) -> str:
    """Return the YAML of these schedules: ids, and definitions as stored."""
    parts = ScheduleFileWriter()
    parts.look(definitions.values())
    return parts.yaml(definitions) + parts.yaml_end()


class ScheduleFileWriter:
    """A file of schedules, written in parts of any number.

    `look` goes through all definitions first: a calendar name with the same items everywhere is
    written once, at the head of the file.
    """

    def __init__(self) -> None:
        self._calendars: dict[str, Sequence[str] | None] = {}  # None: the name is ambiguous
        self._is_begun = False

    def look(self, definitions: Iterable[str]) -> None:
        """Collect the calendars of definitions, before any is written."""
        for text in definitions:
            if '"calendars"' not in text:
                continue
            for name, items in _calendars(msgspec.json.decode(text, type=Fields)).items():
                first = self._calendars.setdefault(name, items)
                self._calendars[name] = items if first == items else None

    def yaml(self, definitions: Mapping[str, str]) -> str:
        """Return the next schedules as YAML, after the head if they are the first."""
        schedules, head = self._fields(definitions), ""
        if not schedules:
            return ""
        if not self._is_begun:
            head = HEAD + (_dump({"calendars": self._shared}) if self._shared else "")
        text = _dump({"schedules": schedules})
        text = text.partition("\n")[2] if self._is_begun else text
        self._is_begun = True
        return head + text

    def yaml_end(self) -> str:
        """Return the end of the file."""
        return "" if self._is_begun else f"{HEAD}schedules: {{}}\n"

    def json(self, definitions: Mapping[str, str]) -> bytes:
        """Return the next schedules as JSON."""
        encoded = [
            msgspec.json.encode(name) + b":" + msgspec.json.encode(fields)
            for name, fields in self._fields(definitions).items()
        ]
        if not encoded:
            return b""
        begin = b"," if self._is_begun else self._json_head()
        self._is_begun = True
        return begin + b",".join(encoded)

    def json_end(self) -> bytes:
        """Return the end of the file."""
        return b"}}" if self._is_begun else self._json_head() + b"}}"

    def _json_head(self) -> bytes:
        calendars = b""
        if self._shared:
            calendars = b'"calendars":' + msgspec.json.encode(self._shared) + b","
        return b"{" + calendars + b'"schedules":{'

    @property
    def _shared(self) -> dict[str, Sequence[str]]:
        return {name: items for name, items in sorted(self._calendars.items()) if items is not None}

    def _fields(self, definitions: Mapping[str, str]) -> dict[str, Fields]:
        shared, all_fields = self._shared, {}
        for name, text in definitions.items():
            fields = msgspec.json.decode(text, type=Fields)
            own = _calendars(fields)
            if all(shared.get(each) == items for each, items in own.items()):
                fields.pop("calendars", None)
            all_fields[name] = _ordered(fields)
        return all_fields


def _dump(fields: Mapping[str, object]) -> str:
    return yaml.dump(
        fields,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,  # collections of plain values are on one line
        width=100_000,  # texts are not wrapped
    )


def write_fields(fields: Fields, head: str) -> str:
    """Return the YAML of these fields, below a head of comments."""
    return head + _dump(fields)


def _calendars(fields: Fields) -> Mapping[str, Sequence[str]]:
    calendars = fields.get("calendars", {})
    assert isinstance(calendars, Mapping), "it was checked when it was defined"
    return calendars


def _ordered(fields: Fields) -> Fields:
    """Return fields in the usual order: trigger, target, policies."""
    first = [name for name in (*BEFORE, *TARGET_KINDS.fields(), *AFTER) if name in fields]
    ordered = {name: fields[name] for name in dict.fromkeys([*first, *fields])}
    for name in ("run", "when"):
        target = ordered.get(name)
        if isinstance(target, dict):
            ordered[name] = _ordered(target)
    return ordered


class _Dumper(yaml.SafeDumper):
    """Quotes texts that YAML 1.1 or 1.2 would take for another type."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - no value is an alias
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_cron = "*" in text and text.count(" ") >= 4  # quoted for consistency
    quoted = is_cron or STRANGE.search(text)
    style = '"' if quoted else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)
_NUMBERS = re.compile(f"^(?:{INT.pattern}|{FLOAT.pattern})$")
_WORDS = re.compile("^(?:y|Y|n|N|~|[Nn]ull|NULL)$")
_CLOCK = re.compile("^[0-9]+(?::[0-9]+)+$")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBERS, list("-+.0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", _CLOCK, list("0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", _WORDS, list("yYnN~"))

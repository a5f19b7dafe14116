"""Schedules written as a YAML file, which says the same when it is applied to an empty database.

What readers of YAML 1.1 would take for something else is in quotes: `on`, `12:30`, `1e3`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import yaml

from onbeat.core.policy import POLICIES
from onbeat.core.target import TARGETS
from onbeat.core.triggers.codec import AROUND, KINDS
from onbeat.sources.yaml_positions import FLOAT, INT, STRANGE

Fields = dict[str, object]

HEAD = "# Schedules, as onbeat export wrote them. Pauses and positions are kept in the database.\n"
ORDER = ("description", *KINDS, *sorted(AROUND), *TARGETS, "run", "when", *POLICIES)


def write_yaml(definitions: Mapping[str, str]) -> str:
    """Return a file with these schedules: ids, and definitions as they are kept."""
    parts = Parts()
    parts.look(definitions.values())
    return parts.yaml(definitions) + parts.yaml_end()


class Parts:
    """A file of schedules that is written part by part, whatever its size.

    First all definitions are looked at, for calendars that all mean the same by a name: these are
    written once, at the head. Then all are written.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Sequence[str] | None] = {}  # None: it means several things
        self._is_begun = False

    def look(self, definitions: Iterable[str]) -> None:
        """Look at definitions, before any is written."""
        for text in definitions:
            if '"calendars"' not in text:
                continue
            for name, items in _calendars(msgspec.json.decode(text, type=Fields)).items():
                known = self._seen.setdefault(name, items)
                self._seen[name] = items if known == items else None

    def yaml(self, definitions: Mapping[str, str]) -> str:
        """Return some more schedules as YAML, after the head if they are the first."""
        schedules, head = self._fields(definitions), ""
        if not schedules:
            return ""
        if not self._is_begun:
            head = HEAD + (_dumped({"calendars": self._shared}) if self._shared else "")
        text = _dumped({"schedules": schedules})
        text = text.partition("\n")[2] if self._is_begun else text
        self._is_begun = True
        return head + text

    def yaml_end(self) -> str:
        """Return what is left to write when there are no more."""
        return "" if self._is_begun else f"{HEAD}schedules: {{}}\n"

    def json(self, definitions: Mapping[str, str]) -> bytes:
        """Return some more schedules as JSON."""
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
        """Return what is left to write when there are no more."""
        return b"}}" if self._is_begun else self._json_head() + b"}}"

    def _json_head(self) -> bytes:
        calendars = b""
        if self._shared:
            calendars = b'"calendars":' + msgspec.json.encode(self._shared) + b","
        return b"{" + calendars + b'"schedules":{'

    @property
    def _shared(self) -> dict[str, Sequence[str]]:
        return {name: items for name, items in sorted(self._seen.items()) if items is not None}

    def _fields(self, definitions: Mapping[str, str]) -> dict[str, Fields]:
        shared, found = self._shared, {}
        for name, text in definitions.items():
            fields = msgspec.json.decode(text, type=Fields)
            own = _calendars(fields)
            if all(shared.get(each) == items for each, items in own.items()):
                fields.pop("calendars", None)
            found[name] = _ordered(fields)
        return found


def _dumped(fields: Mapping[str, object]) -> str:
    return yaml.dump(
        fields,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,  # what holds nothing but plain values is on one line
        width=100_000,  # texts are on one line
    )


def write_fields(fields: Fields, head: str) -> str:
    """Return a file with these fields under a head of comments."""
    return head + _dumped(fields)


def _calendars(given: Fields) -> Mapping[str, Sequence[str]]:
    found = given.get("calendars", {})
    assert isinstance(found, Mapping), "it was checked when it was defined"
    return found


def _ordered(given: Fields) -> Fields:
    """Return fields as a person would write them: when, what, under which policy."""
    known = [name for name in ORDER if name in given]
    found = {name: given[name] for name in dict.fromkeys([*known, *given])}
    for name in ("run", "when"):
        target = found.get(name)
        if isinstance(target, dict):
            found[name] = _ordered(target)
    return found


class _Dumper(yaml.SafeDumper):
    """Writes plainly what both YAML 1.1 and 1.2 take for a text, and quotes all other texts."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - of whatever it is
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_cron = "*" in text and text.count(" ") >= 4  # in quotes, whatever it begins with
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

"""Schedules written as a YAML file, which says the same when it is applied to an empty database.

What readers of YAML 1.1 would take for something else is in quotes: `on`, `12:30`, `1e3`.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec
import yaml

from onbeat.core.codec import AROUND, KINDS
from onbeat.core.policies import POLICIES
from onbeat.core.schedules import TARGETS
from onbeat.sources.marked import FLOAT, INT, STRANGE

Fields = dict[str, object]

HEAD = "# Schedules, as onbeat export wrote them. Pauses and positions are kept in the database.\n"
ORDER = ("description", *KINDS, *sorted(AROUND), *TARGETS, "run", "when", *POLICIES)


def write_yaml(definitions: Mapping[str, str]) -> str:
    """Return a file with these schedules: ids, and definitions as they are kept."""
    return HEAD + yaml.dump(
        file_of(definitions),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,  # what holds nothing but plain values is on one line
        width=100_000,  # texts are on one line
    )


def write_fields(fields: Fields, head: str) -> str:
    """Return a file with these fields under a head of comments."""
    return head + yaml.dump(
        fields,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100_000,
    )


def file_of(definitions: Mapping[str, str]) -> Fields:
    """Return what such a file says; calendars that all mean the same by a name are told once."""
    fields: dict[str, Fields] = {
        name: msgspec.json.decode(text, type=Fields) for name, text in definitions.items()
    }
    used: dict[str, list[Sequence[str]]] = {}
    for given in fields.values():
        for name, items in _calendars(given).items():
            used.setdefault(name, []).append(items)
    shared = {name: all_items[0] for name, all_items in sorted(used.items()) if _same(all_items)}
    for given in fields.values():
        if _calendars(given).keys() <= shared.keys():
            given.pop("calendars", None)
    schedules = {name: _ordered(given) for name, given in fields.items()}
    return ({"calendars": shared} if shared else {}) | {"schedules": schedules}


def _calendars(given: Fields) -> Mapping[str, Sequence[str]]:
    found = given.get("calendars", {})
    assert isinstance(found, Mapping), "it was checked when it was defined"
    return found


def _same(values: Sequence[object]) -> bool:
    return all(value == values[0] for value in values)


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

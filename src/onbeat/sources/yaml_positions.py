"""A YAML 1.2 text as plain values, and the line of each of them.

`on`, `no` and `17:00` are texts, dates stay as written, `0o17` is a number. What definitions do
without is refused: tags, merge keys, keys that are no texts or are there twice, several documents.
So is what only harms: anchors that blow up, values nested deep, numbers that JSON cannot say.

The parser is libyaml's where it is there, else PyYAML's own, which is slower and reads the same.
What they say is put together here, so that nothing is built before it is counted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple, NoReturn, Protocol

import yaml

from onbeat.errors import Mistake, shown
from onbeat.sources.text_files import LARGEST_FILE

DEEPEST = 32
MOST_VALUES = 1_000_000  # in one file, each use of an anchor counted
MOST_CHARACTERS = LARGEST_FILE  # of its texts, each use of an anchor counted
MOST_MISTAKES = 1000  # that are told
PARSER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
ENDLESS = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
WORDS |= dict.fromkeys(("true", "True", "TRUE"), True)
WORDS |= dict.fromkeys(("false", "False", "FALSE"), False)
TAB_INDENT = re.compile(r" *\t")
# What no text file holds, and what older rules take for the end of a line or of the file.
STRANGE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


@dataclass(frozen=True, slots=True)
class YamlPosition:
    """Where a value is: its line, and the places of what is in it, by name or by number."""

    line: int
    parts: "dict[str, YamlPosition] | list[YamlPosition]"

    def line_of(self, path: str) -> int:
        """Return the line of `run.command[1]`, or of the innermost part of it that is there."""
        place = self
        while path:
            found = _step(place, path)
            if found is None:
                break
            place, path = found
        return place.line


class PositionedValues(NamedTuple):
    """What a text says, where each value is, and what is wrong with it."""

    value: object
    place: YamlPosition
    mistakes: list[Mistake]


class _Mark(Protocol):
    """What both parsers have of a position."""

    @property
    def line(self) -> int:
        """The line, counted from 0."""


class _Sized(NamedTuple):
    """A value, and what it would take to write it out."""

    value: object
    place: YamlPosition
    values: int
    characters: int
    height: int


class _Unreadable(Exception):  # noqa: N818 - it names what is wrong
    """What follows cannot be read, or would take too long."""

    def __init__(self, mistake: Mistake) -> None:
        self.mistake = mistake


def read_yaml(text: str) -> PositionedValues:
    """Read a text; what is refused is told, with its line, and left out of the value."""
    text = text.removeprefix("\ufeff")  # allowed once, at the very beginning
    strange = STRANGE.search(text)
    if strange is not None:
        line = text.count("\n", 0, strange.start()) + 1
        problem = f"the character {shown(strange[0])} has no place in a text"
        return PositionedValues(
            None, YamlPosition(1, []), [Mistake(line, "", problem, 'as "\\u0007", if at all')]
        )
    reader = _YamlReader(text)
    try:
        return PositionedValues(*reader.document(), reader.mistakes)
    except _Unreadable as broken:
        last = broken.mistake
    except yaml.MarkedYAMLError as broken:
        line = _line(broken.problem_mark or broken.context_mark)
        there = "".join(text.split("\n")[line - 1 : line])  # it may be behind the last line
        is_tab = TAB_INDENT.match(there) is not None
        said, hint = _said(broken)
        last = Mistake(line, "", said, "indent with spaces, not tabs" if is_tab else hint)
    except (yaml.YAMLError, ValueError, OverflowError) as broken:  # a character beyond all
        last = Mistake(reader.line, "", f"{broken}".splitlines()[0][:200], "YAML 1.2")
    return PositionedValues(None, YamlPosition(1, []), [*reader.mistakes, last])


class _YamlReader:
    """Puts values together from what a parser says, event by event."""

    def __init__(self, text: str) -> None:
        self.mistakes: list[Mistake] = []
        self.line = 1
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=PARSER)
        self._anchors: dict[str, _Sized | None] = {}  # None while it is being read
        self._values = self._characters = 0
        self._path: list[str] = []  # of what is being read

    def _refuse(self, line: int, problem: str, hint: str) -> None:
        mistake = Mistake(line, "".join(self._path).removeprefix("."), problem, hint)
        if len(self.mistakes) >= MOST_MISTAKES:
            raise _Unreadable(mistake)
        self.mistakes.append(mistake)

    def document(self) -> tuple[object, YamlPosition]:
        """Return what the one document says."""
        found: tuple[object, YamlPosition] = None, YamlPosition(1, [])
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._give_up(event, "a second document begins", "one file, one document")
                if event.version not in (None, (1, 2)):
                    self._refuse(_line(event.start_mark), "another YAML is asked for", "%YAML 1.2")
            elif isinstance(event, yaml.NodeEvent):
                sized = self._node(event, 0)
                found = sized.value, sized.place
        return found

    def _give_up(self, event: yaml.Event, problem: str, hint: str) -> NoReturn:
        raise _Unreadable(Mistake(_line(event.start_mark), "", problem, hint))

    def _node(self, event: yaml.NodeEvent, depth: int) -> _Sized:
        self.line = _line(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        if depth > DEEPEST:
            self._give_up(event, "nested too deep", f"{DEEPEST} levels at most")
        if event.tag is not None:  # type: ignore[attr-defined]  # all but aliases have one
            self._refuse(self.line, "tags are not read", "plain values")
        anchor = event.anchor
        if anchor is not None:
            self._anchors[anchor] = None
        match event:
            case yaml.MappingStartEvent():
                found = self._mapping(event, depth)
            case yaml.SequenceStartEvent():
                found = self._sequence(event, depth)
            case _:
                assert isinstance(event, yaml.ScalarEvent), "there is no other kind"
                found = self._scalar(event)
        if anchor is not None:
            self._anchors[anchor] = found
        return found

    def _count(self, event: yaml.Event, values: int, characters: int) -> None:
        self._values += values
        self._characters += characters
        if self._values > MOST_VALUES:
            problem = f"more than {MOST_VALUES} values"
            self._give_up(event, problem, "each use of an anchor counts")
        if self._characters > MOST_CHARACTERS:
            problem = f"more than {MOST_CHARACTERS} characters"
            self._give_up(event, problem, "each use of an anchor counts")

    def _alias(self, event: yaml.AliasEvent, depth: int) -> _Sized:
        name = str(event.anchor)
        found = self._anchors.get(name)
        if found is None:
            if name in self._anchors:
                self._give_up(event, f"the anchor {shown(name)} holds itself", "plain values")
            problem = f"no anchor is called {shown(name)}"
            self._refuse(self.line, problem, 'a text with * goes in quotes: "* * * * *"')
            return _Sized(None, YamlPosition(self.line, []), 1, 0, 0)
        if depth + found.height > DEEPEST:
            self._give_up(event, "nested too deep", f"{DEEPEST} levels at most")
        self._count(event, found.values, found.characters)
        return found

    def _sequence(self, event: yaml.Event, depth: int) -> _Sized:
        self._count(event, 1, 0)
        line = self.line
        items: list[_Sized] = []
        for each in self._events:
            if isinstance(each, yaml.SequenceEndEvent):
                break
            assert isinstance(each, yaml.NodeEvent), "a sequence has nothing else in it"
            self._path.append(f"[{len(items)}]")
            items.append(self._node(each, depth + 1))
            self._path.pop()
        value, parts = [item.value for item in items], [item.place for item in items]
        return _sum(value, YamlPosition(line, parts), items)

    def _mapping(self, event: yaml.Event, depth: int) -> _Sized:
        self._count(event, 1, 0)
        line = self.line
        items: list[_Sized] = []
        value: dict[str, object] = {}
        parts: dict[str, YamlPosition] = {}
        for each in self._events:
            if isinstance(each, yaml.MappingEndEvent):
                break
            assert isinstance(each, yaml.NodeEvent), "a mapping has nothing else in it"
            at = _line(each.start_mark)
            key = self._node(each, depth + 1)
            self._path.append(f".{shown(key.value)}".replace("'", ""))
            name = self._name(key.value, each, at, value)
            item = self._node(self._next(), depth + 1)
            self._path.pop()
            items += [key, item]
            if name is not None:
                value[name] = item.value
                parts[name] = YamlPosition(at, item.place.parts)
        return _sum(value, YamlPosition(line, parts), items)

    def _next(self) -> yaml.NodeEvent:
        event = next(self._events)
        assert isinstance(event, yaml.NodeEvent), "a key has a value"
        return event

    def _name(
        self, key: object, event: yaml.Event, line: int, known: dict[str, object]
    ) -> str | None:
        """Return the key of a mapping, or None if it is refused."""
        if not isinstance(key, str):
            hint = (
                "a set of names has none" if isinstance(key, (dict, list)) else "put it in quotes"
            )
            self._refuse(line, f"the key {shown(key)} is no text", hint)
        elif key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
            self._refuse(line, "`<<` merges nothing in YAML 1.2", "write the fields out")
        elif key in known:
            self._refuse(line, f"the key {shown(key)} is there twice", "one of them")
        else:
            return key
        return None

    def _scalar(self, event: yaml.ScalarEvent) -> _Sized:
        text = event.value
        self._count(event, 1, len(text))
        value = self._plain(text) if event.implicit[0] else text
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            self._refuse(self.line, f"{shown(text)} holds half a character", "the whole of it")
            value = ""
        return _Sized(value, YamlPosition(self.line, []), 1, len(text), 0)

    def _plain(self, text: str) -> object:
        """Return what a text without quotes means by YAML 1.2's core schema."""
        if text in WORDS:
            return WORDS[text]
        if not (text[0] in "-+.0123456789" and len(text) < 10_000):
            return text
        found: int | float
        if INT.fullmatch(text):
            digits = text.lstrip("-+0")
            found = 2**64 if len(digits) > 20 else int(text, 0 if text[:2] in ("0o", "0x") else 10)
            is_told = -(2**63) <= found < 2**64
        elif FLOAT.fullmatch(text):
            found = float(text)
            is_told = isfinite(found)
        elif ENDLESS.fullmatch(text):
            found, is_told = 0, False
        else:
            return text
        if not is_told:
            self._refuse(self.line, f"the number {shown(text)} cannot be kept", "64 bits at most")
        return found


def _sum(value: object, place: YamlPosition, items: list[_Sized]) -> _Sized:
    return _Sized(
        value,
        place,
        1 + sum(item.values for item in items),
        sum(item.characters for item in items),
        1 + max((item.height for item in items), default=0),
    )


def _step(place: YamlPosition, path: str) -> tuple[YamlPosition, str] | None:
    """Return the place of the first part of a path, and the rest of it; names may have dots."""
    if isinstance(place.parts, list):
        number = re.match(r"\[([0-9]{1,9})\]\.?", path)
        if number is None or int(number[1]) >= len(place.parts):
            return None
        return place.parts[int(number[1])], path[number.end() :]
    ends = [found.start() for found in re.finditer(r"\.|\[|$", path)]
    for end in reversed(ends):
        name = path[:end]
        if name in place.parts:
            return place.parts[name], path[end:].removeprefix(".")
    return None


def _line(mark: _Mark | None) -> int:
    return mark.line + 1 if mark is not None else 1


def _said(broken: yaml.MarkedYAMLError) -> tuple[str, str]:
    """Return what the parser says, and a hint for what is meant most of the time."""
    said = ", ".join(filter(None, [broken.context, broken.problem]))
    quotes = 'a text with * goes in quotes: "* * * * *"'
    return said, quotes if "scanning an alias" in said else "YAML 1.2"

"""Read a YAML 1.2 text as plain values, with the line of each value.

`on`, `no` and `17:00` are texts, dates stay as written, `0o17` is a number. Refused is what
definitions do not need: tags, merge keys, keys that are not texts, duplicate keys, several
documents; and what is an attack: anchors that expand exponentially, deep nesting, huge numbers.

libyaml parses the text where it is installed, else PyYAML, which is slower and gives the same
events. Values are built here from these events, so that each is counted before it is built.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple, NoReturn, Protocol

import yaml

from onbeat.errors import Mistake, quote_value
from onbeat.sources.text_files import LARGEST_FILE

DEEPEST = 32
MOST_VALUES = 1_000_000  # in one file, each use of an anchor counted
MOST_CHARACTERS = LARGEST_FILE  # of its texts, each use of an anchor counted
MOST_MISTAKES = 1000  # reported
PARSER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
WORDS |= dict.fromkeys(("true", "True", "TRUE"), True)
WORDS |= dict.fromkeys(("false", "False", "FALSE"), False)
TAB_INDENT = re.compile(r" *\t")
QUOTE_STARS = 'put a string with * in quotes: "* * * * *"'
# Control characters, and those that YAML 1.1 takes for the end of a line or of the file.
STRANGE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


@dataclass(frozen=True, slots=True)
class YamlPosition:
    """The line of a value, and the positions of its items, by name or by index."""

    line: int
    parts: "dict[str, YamlPosition] | list[YamlPosition]"

    def line_of(self, path: str) -> int:
        """Return the line of `run.command[1]`, or of the innermost part of it that exists."""
        position = self
        while path:
            step = _step(position, path)
            if step is None:
                break
            position, path = step
        return position.line


class PositionedValues(NamedTuple):
    """The value of a text, the positions in it, and its mistakes."""

    value: object
    position: YamlPosition
    mistakes: list[Mistake]


class _Mark(Protocol):
    """A position, as both parsers report it."""

    @property
    def line(self) -> int:
        """The line, counted from 0."""


class _Sized(NamedTuple):
    """A value, and its size with all anchors expanded."""

    value: object
    position: YamlPosition
    values: int
    characters: int
    height: int


class _Unreadable(Exception):  # noqa: N818 - it names the reason
    """The rest cannot be read, or would take too long."""

    def __init__(self, mistake: Mistake) -> None:
        self.mistake = mistake


def read_yaml(text: str) -> PositionedValues:
    """Read a text; a refused part is left out of the value and listed with its line."""
    text = text.removeprefix("\ufeff")  # allowed once, at the very beginning
    strange = STRANGE.search(text)
    if strange is not None:
        line = text.count("\n", 0, strange.start()) + 1
        problem = f"the character {quote_value(strange[0])} is not allowed"
        return PositionedValues(
            None,
            YamlPosition(1, []),
            [Mistake(line, "", problem, 'remove it, or escape it: "\\u0007"')],
        )
    reader = _YamlReader(text)
    try:
        return PositionedValues(*reader.document(), reader.mistakes)
    except _Unreadable as error:
        last = error.mistake
    except yaml.MarkedYAMLError as error:
        line = _line(error.problem_mark or error.context_mark)
        content = "".join(text.split("\n")[line - 1 : line])  # it may be behind the last line
        is_tab = TAB_INDENT.match(content) is not None
        problem, hint = _problem_and_hint(error)
        last = Mistake(line, "", problem, "indent with spaces, not tabs" if is_tab else hint)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as an invalid \U escape
        last = Mistake(reader.line, "", f"{error}".splitlines()[0][:200], "YAML 1.2")
    return PositionedValues(None, YamlPosition(1, []), [*reader.mistakes, last])


class _YamlReader:
    """Builds values from the events of a parser."""

    def __init__(self, text: str) -> None:
        self.mistakes: list[Mistake] = []
        self.line = 1
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=PARSER)
        self._anchors: dict[str, _Sized | None] = {}  # None while it is being read
        self._values = self._characters = 0
        self._path: list[str] = []  # of the value that is being read

    def _refuse(self, line: int, problem: str, hint: str) -> None:
        mistake = Mistake(line, "".join(self._path).removeprefix("."), problem, hint)
        if len(self.mistakes) >= MOST_MISTAKES:
            raise _Unreadable(mistake)
        self.mistakes.append(mistake)

    def document(self) -> tuple[object, YamlPosition]:
        """Return the value of the document."""
        result: tuple[object, YamlPosition] = None, YamlPosition(1, [])
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._give_up(event, "a second document begins", "one document in a file")
                if event.version not in (None, (1, 2)):
                    problem = "this version of YAML is not supported"
                    self._refuse(_line(event.start_mark), problem, "%YAML 1.2")
            elif isinstance(event, yaml.NodeEvent):
                sized = self._node(event, 0)
                result = sized.value, sized.position
        return result

    def _give_up(self, event: yaml.Event, problem: str, hint: str) -> NoReturn:
        raise _Unreadable(Mistake(_line(event.start_mark), "", problem, hint))

    def _node(self, event: yaml.NodeEvent, depth: int) -> _Sized:
        self.line = _line(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        if depth > DEEPEST:
            self._give_up(event, "nested too deep", f"{DEEPEST} levels at most")
        if event.tag is not None:  # type: ignore[attr-defined]  # all but aliases have one
            self._refuse(self.line, "tags are not supported", "plain values")
        anchor = event.anchor
        if anchor is not None:
            self._anchors[anchor] = None
        match event:
            case yaml.MappingStartEvent():
                sized = self._mapping(event, depth)
            case yaml.SequenceStartEvent():
                sized = self._sequence(event, depth)
            case _:
                assert isinstance(event, yaml.ScalarEvent), "no other kind exists"
                sized = self._scalar(event)
        if anchor is not None:
            self._anchors[anchor] = sized
        return sized

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
        sized = self._anchors.get(name)
        if sized is None:
            if name in self._anchors:
                self._give_up(
                    event, f"the anchor {quote_value(name)} contains itself", "plain values"
                )
            problem = f"no anchor is called {quote_value(name)}"
            self._refuse(self.line, problem, QUOTE_STARS)
            return _Sized(None, YamlPosition(self.line, []), 1, 0, 0)
        if depth + sized.height > DEEPEST:
            self._give_up(event, "nested too deep", f"{DEEPEST} levels at most")
        self._count(event, sized.values, sized.characters)
        return sized

    def _sequence(self, event: yaml.Event, depth: int) -> _Sized:
        self._count(event, 1, 0)
        line = self.line
        items: list[_Sized] = []
        for each in self._events:
            if isinstance(each, yaml.SequenceEndEvent):
                break
            assert isinstance(each, yaml.NodeEvent), "a sequence holds only nodes"
            self._path.append(f"[{len(items)}]")
            items.append(self._node(each, depth + 1))
            self._path.pop()
        value, parts = [item.value for item in items], [item.position for item in items]
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
            assert isinstance(each, yaml.NodeEvent), "a mapping holds only nodes"
            at = _line(each.start_mark)
            key = self._node(each, depth + 1)
            self._path.append(f".{quote_value(key.value)}".replace("'", ""))
            name = self._name(key.value, each, at, value)
            item = self._node(self._next(), depth + 1)
            self._path.pop()
            items += [key, item]
            if name is not None:
                value[name] = item.value
                parts[name] = YamlPosition(at, item.position.parts)
        return _sum(value, YamlPosition(line, parts), items)

    def _next(self) -> yaml.NodeEvent:
        event = next(self._events)
        assert isinstance(event, yaml.NodeEvent), "a key has a value"
        return event

    def _name(
        self, key: object, event: yaml.Event, line: int, earlier: dict[str, object]
    ) -> str | None:
        """Return the key of a mapping, or None if it is refused."""
        if not isinstance(key, str):
            hint = "a string as the key" if isinstance(key, (dict, list)) else "put it in quotes"
            self._refuse(line, f"the key {quote_value(key)} is not a string", hint)
        elif key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
            self._refuse(line, "`<<` merges nothing in YAML 1.2", "write the fields out")
        elif key in earlier:
            self._refuse(line, f"the key {quote_value(key)} appears twice", "remove one of them")
        else:
            return key
        return None

    def _scalar(self, event: yaml.ScalarEvent) -> _Sized:
        text = event.value
        self._count(event, 1, len(text))
        value = self._plain(text) if event.implicit[0] else text
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            self._refuse(
                self.line, f"{quote_value(text)} has half a surrogate pair", "both halves, or none"
            )
            value = ""
        return _Sized(value, YamlPosition(self.line, []), 1, len(text), 0)

    def _plain(self, text: str) -> object:
        """Return the value of an unquoted text by the core schema of YAML 1.2."""
        if text in WORDS:
            return WORDS[text]
        if not (text[0] in "-+.0123456789" and len(text) < 10_000):
            return text
        number: int | float
        if INT.fullmatch(text):
            digits = text.lstrip("-+0")
            number = 2**64 if len(digits) > 20 else int(text, 0 if text[:2] in ("0o", "0x") else 10)
            is_in_range = -(2**63) <= number < 2**64
        elif FLOAT.fullmatch(text):
            number = float(text)
            is_in_range = isfinite(number)
        elif NOT_FINITE.fullmatch(text):
            number, is_in_range = 0, False
        else:
            return text
        if not is_in_range:
            self._refuse(
                self.line, f"the number {quote_value(text)} is out of range", "64 bits at most"
            )
        return number


def _sum(value: object, position: YamlPosition, items: list[_Sized]) -> _Sized:
    return _Sized(
        value,
        position,
        1 + sum(item.values for item in items),
        sum(item.characters for item in items),
        1 + max((item.height for item in items), default=0),
    )


def _step(position: YamlPosition, path: str) -> tuple[YamlPosition, str] | None:
    """Return the position of the first part of a path, and the rest; names may have dots."""
    if isinstance(position.parts, list):
        index = re.match(r"\[([0-9]{1,9})\]\.?", path)
        if index is None or int(index[1]) >= len(position.parts):
            return None
        return position.parts[int(index[1])], path[index.end() :]
    ends = [match.start() for match in re.finditer(r"\.|\[|$", path)]
    for end in reversed(ends):
        name = path[:end]
        if name in position.parts:
            return position.parts[name], path[end:].removeprefix(".")
    return None


def _line(mark: _Mark | None) -> int:
    return mark.line + 1 if mark is not None else 1


def _problem_and_hint(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """Return the message of the parser, and a hint at the usual cause."""
    problem = ", ".join(filter(None, [error.context, error.problem]))
    return problem, QUOTE_STARS if "scanning an alias" in problem else "YAML 1.2"

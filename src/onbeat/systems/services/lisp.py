"""A reader of Emacs Lisp data: lists, strings, numbers and symbols, each with its line.

Nothing is evaluated. Input is limited in length, depth and number of forms.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onbeat.errors import InvalidFile, Mistake, quote_value

LONGEST = 2**20  # characters of a file
DEEPEST = 100  # lists in lists
MOST = 200_000  # nodes

Kind = Literal["string", "number", "symbol", "list", "other"]
SPACE = re.compile(r"(?:[\s\f]|;[^\n]*)*")
ATOM = re.compile(r"(?:\\.|[^\s\f()\[\]\"';`,\\])+", re.DOTALL)
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?|[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)")
ESCAPE = re.compile(
    r"x[0-9a-fA-F]{1,6}|u[0-9a-fA-F]{4}|U00[0-9a-fA-F]{6}|[0-7]{1,3}|N\{[^}]*\}|.", re.DOTALL
)
PLAIN = {
    "a": "\a", "b": "\b", "d": "\x7f", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "s": " ",
    "t": "\t", "v": "\v", "\n": "", " ": "",
}  # fmt: skip
MARKS = {"'": "quote", "`": "backquote", ",@": "unquote", ",": "unquote", "#'": "function"}


@dataclass(frozen=True, slots=True)
class LispNode:
    """A node: a list has `items`, and `tail` after a dot; other nodes have `value`."""

    line: int
    kind: Kind
    value: str | int | float = ""
    items: tuple["LispNode", ...] = ()
    tail: "LispNode | None" = None

    def is_symbol(self, *names: str) -> bool:
        """Return whether the node is one of these symbols."""
        return self.kind == "symbol" and self.value in names

    @property
    def head(self) -> str:
        """The first symbol of a list, or an empty string."""
        first = self.items[0] if self.items else None
        return str(first.value) if first is not None and first.kind == "symbol" else ""

    def symbols(self) -> Iterator[str]:
        """Yield every symbol in it."""
        left = [self]
        while left:
            node = left.pop()
            if node.kind == "symbol":
                yield str(node.value)
            left += node.items
            left += [node.tail] if node.tail is not None else []


def read_lisp(text: str, path: str) -> list[LispNode]:
    """Return the forms of a file; refuse unreadable ones, with the line."""
    if len(text) > LONGEST:
        raise InvalidFile(path, [Mistake(None, "", "the file is too long", "1 MiB at most")])
    return _LispReader(text, path).forms()


class _LispReader:
    def __init__(self, text: str, path: str) -> None:
        self._text, self._path, self._at, self._line = text, path, 0, 1
        self._seen, self._counted_to = 0, 0

    def forms(self) -> list[LispNode]:
        found: list[LispNode] = []
        while self._next() is not None:
            found.append(self._node(0))
        return found

    def _next(self) -> str | None:
        """Skip spaces and comments; return the next character, or None at the end."""
        match = SPACE.match(self._text, self._at)
        assert match is not None, "the pattern matches an empty string"
        self._move(match.end())
        return self._text[self._at] if self._at < len(self._text) else None

    def _move(self, to: int) -> None:
        self._line += self._text.count("\n", self._at, to)
        self._at = to

    def _node(self, depth: int) -> LispNode:
        self._seen += 1
        if depth > DEEPEST:
            raise self._refused("lists are nested too deeply", f"{DEEPEST} at most")
        if self._seen > MOST:
            raise self._refused("the file has too many forms", f"{MOST} forms at most")
        first = self._next()
        line = self._line
        if first is None:
            raise self._refused("the file ends within a form", "a closing parenthesis")
        for mark, name in MARKS.items():
            if self._text.startswith(mark, self._at):
                self._move(self._at + len(mark))
                return LispNode(
                    line, "list", items=(LispNode(line, "symbol", name), self._node(depth + 1))
                )
        if first in "([":
            return self._list(line, depth, ")" if first == "(" else "]")
        if first == '"':
            return self._string(line)
        if first in ")]":
            raise self._refused(f"unmatched {quote_value(first)}", "remove it")
        if first in "?#":
            return self._other(line, depth)
        return self._atom(line)

    def _list(self, line: int, depth: int, end: str) -> LispNode:
        self._move(self._at + 1)
        items: list[LispNode] = []
        tail: LispNode | None = None
        while (first := self._next()) != end:
            if first is None:
                raise self._refused(f"the list of line {line} is not closed", quote_value(end))
            found = self._node(depth + 1)
            if found.is_symbol(".") and items and end == ")":
                tail = self._node(depth + 1)
                if self._next() != end:
                    raise self._refused("more than one form after a dot", "one")
                break
            items.append(found)
        self._move(self._at + 1)
        if end == "]":
            return LispNode(line, "other", "a vector", tuple(items))
        if tail is not None and tail.kind == "list":  # (a . (b c)) is (a b c)
            return LispNode(line, "list", items=(*items, *tail.items), tail=tail.tail)
        if tail is not None and tail.is_symbol("nil"):
            tail = None
        return LispNode(line, "list", items=tuple(items), tail=tail)

    def _string(self, line: int) -> LispNode:
        at, parts = self._at + 1, list[str]()
        while True:
            end = at
            while end < len(self._text) and self._text[end] not in '"\\':
                end += 1
            parts.append(self._text[at:end])
            if end >= len(self._text):
                raise self._refused(f"the string of line {line} is not closed", '"')
            if self._text[end] == '"':
                self._move(end + 1)
                return LispNode(line, "string", "".join(parts))
            found = ESCAPE.match(self._text, end + 1)
            if found is None:
                raise self._refused(f"the string of line {line} is not closed", '"')
            parts.append(self._escaped(found[0]))
            at = found.end()

    def _escaped(self, escape: str) -> str:
        if escape in PLAIN:
            return PLAIN[escape]
        code = -1
        if escape[0] in "xuU" and len(escape) > 1:
            code = int(escape[1:], 16)
        elif escape[0] in "01234567":
            code = int(escape, 8)
        elif escape[0] in "CMSAH^N":  # control and meta characters, and names
            raise self._refused(
                f"the escape {quote_value(chr(92) + escape[:1])} is not supported", "plain text"
            )
        if code == -1:
            return escape
        if code > 0x10FFFF or 0xD800 <= code < 0xE000 or code == 0:
            raise self._refused(f"{quote_value(escape)} is not a character", "a Unicode character")
        return chr(code)

    def _other(self, line: int, depth: int) -> LispNode:
        """Read notations of programs: characters, objects, and others."""
        first = self._text[self._at]
        if first == "?":
            found = re.compile(r"\?(?:\\.(?:-\\?.|[^\s()\[\]\"';]*)|.)", re.DOTALL).match(
                self._text, self._at
            )
            self._move(self._at + 1 if found is None else found.end())
            return LispNode(line, "other", "a character")
        self._move(self._at + 1)
        following = self._text[self._at : self._at + 1]
        if following in ("(", "["):
            node = self._node(depth + 1)
            return LispNode(line, "other", "an object", node.items)
        return LispNode(line, "other", f"#{self._atom(line).value}")

    def _atom(self, line: int) -> LispNode:
        found = ATOM.match(self._text, self._at)
        if found is None:
            character = quote_value(self._text[self._at : self._at + 1])
            raise self._refused(f"{character} is not supported", "Lisp data")
        self._move(found.end())
        text = found[0]
        if NUMBER.fullmatch(text):
            is_whole = re.fullmatch(r"[+-]?[0-9]+\.?", text) is not None
            if len(text) > 30:
                raise self._refused(
                    f"{quote_value(text)} is a number with too many digits", "a shorter one"
                )
            return LispNode(line, "number", int(text.rstrip(".")) if is_whole else float(text))
        return LispNode(line, "symbol", re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL))

    def _refused(self, problem: str, hint: str) -> InvalidFile:
        return InvalidFile(self._path, [Mistake(self._line, "", problem, hint)])

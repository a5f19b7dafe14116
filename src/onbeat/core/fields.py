"""Fields: the values that definitions and settings may have, each declared once.

A field is declared in the annotation of a dataclass:

    grace: Annotated[int, length("a tick decided within it is on time", least="1s")] = 60_000

By its declaration it is read, written, described in a JSON Schema, and listed in the docs.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, get_args, get_type_hints

from onbeat.core.json_schema import LENGTH, Schema
from onbeat.core.time.durations import Duration, parse_duration
from onbeat.errors import InvalidSchedule, did_you_mean, quote_value

T = TypeVar("T")
Reader = Callable[[object], object]

MILLISECONDS = re.compile(r" *([0-9]{1,12})ms *")
# A name or an address, with or without a port.
HOST = r"(?:[A-Za-z0-9][A-Za-z0-9.-]{0,252}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}


def _same(value: object) -> object:
    return value


@dataclass(frozen=True, slots=True)
class Field:
    """How a value is read, or refused with InvalidSchedule; its JSON Schema; what it means."""

    words: str
    read: Reader
    schema: Schema
    write: Callable[..., object] = _same  # returns what `read` reads as the same value

    def from_text(self, text: str) -> object:
        """Return the value that a text stands for, where only texts can be written.

        A text that stands for no value of this type is returned as it is: `read` refuses it.
        """
        match self.schema.get("type"):
            case "integer" if re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
                return int(text)
            case "boolean" if text.strip().lower() in ("true", "false"):
                return text.strip().lower() == "true"
            case "array":
                return [part.strip() for part in text.split(",")] if text.strip() else []
            case _:
                return text


def annotations(record: type[object], kind: type[T]) -> dict[str, T]:
    """Return the annotations of one kind in a dataclass, by the names of its fields, in order."""
    hints = get_type_hints(record, include_extras=True)
    return {
        name: each
        for name, hint in hints.items()
        for each in get_args(hint)[1:]
        if isinstance(each, kind)
    }


def declared(record: type[object]) -> dict[str, Field]:
    """Return the fields that a dataclass declares, by name and in order."""
    return annotations(record, Field)


def flag(words: str) -> Field:
    """Declare a Boolean."""
    return Field(words, read_flag, {"type": "boolean"})


def read_flag(value: object) -> bool:
    """Return a Boolean, or refuse any other value."""
    if not isinstance(value, bool):
        problem = f"{quote_value(value)} is neither true nor false"
        raise InvalidSchedule("", problem, hint="true or false")
    return value


def number(words: str, first: int, last: int) -> Field:
    """Declare a whole number between two others."""
    schema: Schema = {"type": "integer", "minimum": first, "maximum": last}
    return Field(words, partial(read_number, first=first, last=last), schema)


def read_number(value: object, *, first: int, last: int) -> int:
    """Return a whole number between two others, or refuse the value."""
    hint = f"{first} to {last}"
    if type(value) is not int:
        raise InvalidSchedule("", f"{quote_value(value)} is not a whole number", hint=hint)
    if not first <= value <= last:
        raise InvalidSchedule("", f"{quote_value(value)} is out of bounds", hint=hint)
    return value


def length(words: str, *, least: str = "0s", most: str = "") -> Field:
    """Declare a duration of a fixed length. Its value is in milliseconds."""
    read = partial(
        read_length,
        least=parse_duration(least).elapsed * 1000,
        most=parse_duration(most).elapsed * 1000 if most else None,
        bounds=f"{least} to {most}" if most else f"{least} or more",
    )
    return Field(words, read, LENGTH, fixed_length_text if most else length_text)


def read_length(
    value: object, *, least: int = 0, most: int | None = None, bounds: str = "0s or more"
) -> int:
    """Return the milliseconds of a duration within bounds, or refuse the value."""
    short = MILLISECONDS.fullmatch(value) if isinstance(value, str) else None
    ms = int(short[1]) if short else parse_duration(value).elapsed * 1000
    if ms < least or (most is not None and ms > most):
        problem = "is too short" if most is None else "is out of bounds"
        raise InvalidSchedule("", f"{quote_value(value)} {problem}", hint=bounds)
    return ms


def length_text(ms: int) -> str:
    """Return a duration as text: `90s`, or `1500ms`."""
    return f"{ms}ms" if ms % 1000 else str(Duration(seconds=ms // 1000))


def fixed_length_text(ms: int) -> str:
    """Return a duration as text, with days of 24 hours: `30d`."""
    return f"{ms // 86_400_000}d" if ms and ms % 86_400_000 == 0 else length_text(ms)


def choice(words: str, kind: object) -> Field:
    """Declare one of the texts of a `Literal`."""
    choices = get_args(kind)
    return Field(words, partial(read_choice, choices=choices), {"enum": list(choices)})


def read_choice(value: object, *, choices: tuple[str, ...]) -> str:
    """Return one of several texts, or refuse the value."""
    if value not in choices:
        problem = f"{quote_value(value)} is not a valid value"
        raise InvalidSchedule("", problem, hint=did_you_mean(value, choices))
    return str(value)


def text(words: str) -> Field:
    """Declare a text."""
    return Field(words, read_text, TEXT)


def read_text(value: object) -> str:
    """Return a text without NUL characters, or refuse the value."""
    if not isinstance(value, str):
        problem = f"{quote_value(value)} is not a string"
        raise InvalidSchedule("", problem, hint="a string in quotes")
    if "\0" in value:
        raise InvalidSchedule("", "the value contains a NUL character", hint="a path")
    return value


def server_url(words: str, example: str) -> Field:
    """Declare the URL of a server, which may be empty."""
    return Field(words, partial(read_url, example=example), TEXT)


def read_url(value: object, *, example: str) -> str:
    """Return the URL of a server without a trailing slash, or refuse the value."""
    address = read_text(value)
    if address and not re.fullmatch(rf"https?://{HOST}(/[A-Za-z0-9._~/-]*)?", address):
        problem = f"{quote_value(address.rpartition('@')[2])} is not the URL of a server"
        raise InvalidSchedule("", problem, hint=f"such as {example}")
    return address.rstrip("/")


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable by which users of a replaced scheduler set a setting of Onbeat."""

    setting: str  # its full name; empty: the variable is accepted and has no effect
    field: Field | None = None  # how the variable is read, if unlike the setting
    scale: int | None = None  # what a number is multiplied by


@dataclass(frozen=True, slots=True)
class Option:
    """An option of `onbeat up` that sets a setting."""

    metavar: str
    help: str
    default: str = ""  # what an empty value means

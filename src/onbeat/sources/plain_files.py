"""Read a file of fields in YAML, TOML or JSON, by its suffix."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from onbeat.errors import InvalidFile, InvalidSchedule, Mistake, quote_value
from onbeat.sources.text_files import read_text
from onbeat.sources.watch import WatchedFile
from onbeat.sources.yaml_positions import read_yaml


class FieldsFile:
    """A file of fields that is edited while Onbeat runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._watched = WatchedFile(path)

    def read(self) -> object:
        """Return its fields, or refuse it with every mistake."""
        return read_fields(self.path)

    def has_changed(self) -> bool:
        """Return whether it was edited and is no longer being written."""
        return self._watched.look()

    def put_back(self) -> None:
        """Count it as edited, so that it is read again."""
        self._watched.put_back()


def read_fields(path: Path) -> object:
    """Return the fields of a file, or refuse it, also for a duplicate name."""
    read = READERS.get(path.suffix.lower())
    if read is None:
        _refuse(path, f"{quote_value(path.suffix)} is not a supported suffix", ", ".join(READERS))
    try:
        text = read_text(path)
    except InvalidSchedule as refused:
        _refuse(path, refused.problem.removeprefix(f"{path.name} "), refused.hint)
    fields = read(path, text)
    if fields is None or fields == {}:  # it was truncated, or is yet to be written
        _refuse(path, "it is empty", "fields by name")
    return fields


def _yaml(path: Path, text: str) -> object:
    value, _, mistakes = read_yaml(text)
    if mistakes:
        raise InvalidFile(str(path), mistakes)
    return value


def _toml(path: Path, text: str) -> object:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"it is not TOML: {error}", "TOML 1.0")


def _json(path: Path, text: str) -> object:
    try:
        return json.loads(
            text.removeprefix("\ufeff"),
            object_pairs_hook=_refuse_duplicates,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        _refuse(path, f"it is not JSON: {error}", "RFC 8259")


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the key {quote_value(name)} appears twice")
        fields[name] = value
    return fields


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _refuse(path: Path, problem: str, hint: str) -> NoReturn:
    raise InvalidFile(str(path), [Mistake(None, "", problem, hint)]) from None


READERS: dict[str, Callable[[Path, str], object]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": _toml,
    ".json": _json,
}

"""A file of plain fields: YAML, TOML or JSON, as its ending says."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from onbeat.errors import InvalidFile, InvalidSchedule, Mistake, shown
from onbeat.sources.text_files import read_text
from onbeat.sources.watch import Watched
from onbeat.sources.yaml_positions import read_yaml


class FieldsFile:
    """A file that a person edits, and how it looked when it was last read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._watched = Watched(path)

    def read(self) -> object:
        """Return what is in it, or refuse it with every mistake."""
        return read_fields(self.path)

    def has_changed(self) -> bool:
        """Return whether it was edited, and has come to rest."""
        return self._watched.look()

    def put_back(self) -> None:
        """Have it count as edited."""
        self._watched.put_back()


def read_fields(path: Path) -> object:
    """Return what a file says, or refuse it: also for a name that is there twice."""
    read = READERS.get(path.suffix.lower())
    if read is None:
        _refuse(path, f"{shown(path.suffix)} is no ending of such a file", ", ".join(READERS))
    try:
        text = read_text(path)
    except InvalidSchedule as refused:
        _refuse(path, refused.problem.removeprefix(f"{path.name} "), refused.hint)
    found = read(path, text)
    if found is None or found == {}:  # it was truncated, or is yet to be written
        _refuse(path, "it is empty", "fields by name")
    return found


def _yaml(path: Path, text: str) -> object:
    given, _, mistakes = read_yaml(text)
    if mistakes:
        raise InvalidFile(str(path), mistakes)
    return given


def _toml(path: Path, text: str) -> object:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as broken:
        _refuse(path, f"it is not TOML: {broken}", "TOML 1.0")


def _json(path: Path, text: str) -> object:
    try:
        return json.loads(
            text.removeprefix("\ufeff"), object_pairs_hook=_once, parse_constant=_no_number
        )
    except (ValueError, RecursionError) as broken:
        _refuse(path, f"it is not JSON: {broken}", "RFC 8259")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {shown(name)} is there twice")
        found[name] = value
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _refuse(path: Path, problem: str, hint: str) -> NoReturn:
    raise InvalidFile(str(path), [Mistake(None, "", problem, hint)]) from None


READERS: dict[str, Callable[[Path, str], object]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": _toml,
    ".json": _json,
}

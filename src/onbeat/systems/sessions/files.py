"""The files of scheduled prompts: `<folder>/<slug>/definition.json` and `last-run.json`.

They may contain `//` comments. They are replaced atomically, so a crash leaves the old text or the
new one. This module does not interpret them.
"""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from errno import EFBIG
from pathlib import Path

import msgspec

from onbeat.host.atomic_files import replace_file
from onbeat.host.regular_files import read_regular
from onbeat.systems.sessions.definitions import SLUG, Fields

DEFINITION, LAST_RUN, MARKER = "definition.json", "last-run.json", ".onbeat"
LARGEST = 512 * 1024  # bytes of a file

Mark = tuple[int, int, int] | None
Stamp = tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A file that cannot be read, or whose contents are refused, and why."""

    name: str
    why: str
    is_refused: bool = False

    def __str__(self) -> str:
        return f"{self.name} is {self.kind}: {self.why}"

    @property
    def kind(self) -> str:
        """`refused` or `corrupt`."""
        return "refused" if self.is_refused else "corrupt"


@dataclass(frozen=True, slots=True)
class Folder:
    """The contents of a slug's folder; None: the file does not exist."""

    definition: Fields | Corrupt | None
    last_run: Fields | Corrupt | None


class Files:
    """The folder that contains all slugs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def stamps(self) -> dict[str, Stamp]:
        """Return a stamp for each slug that has files; it changes when a file changes."""
        found = {}
        for slug in self._slugs():
            stamp = tuple(_stamp(self.folder / slug / name) for name in (DEFINITION, LAST_RUN))
            if stamp[0] is not None:
                found[slug] = stamp
        return found

    def has(self, slug: str) -> bool:
        """Return whether a slug has a folder, even an empty one."""
        return (self.folder / slug).is_dir()

    def read(self, slug: str) -> Folder:
        """Return the contents of the files of a slug."""
        folder = self.folder / slug
        return Folder(_read(folder / DEFINITION), _read(folder / LAST_RUN))

    def followed(self, slugs: Iterable[str]) -> dict[str, str]:
        """Return, for slugs whose definition follows another slug, that other slug."""
        found = {}
        for slug in slugs:
            match _read(self.folder / slug / DEFINITION):
                case {"schedule": {"type": "after", "slug": str(other)}}:
                    found[slug] = other
                case _:
                    pass
        return found

    def stamp(self, slug: str, name: str) -> Mark:
        """Return a mark that changes when a file of a slug changes."""
        return _stamp(self.folder / slug / name)

    def write(self, slug: str, name: str, fields: Fields, *, over: Mark | str = "any") -> bool:
        """Replace a file of a slug atomically, but only if it still has the mark `over`."""
        text = msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"
        folder = self.folder / slug
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            _sync_folder(self.folder)
        return replace_file(
            folder / name, text, may_replace=lambda: over in ("any", self.stamp(slug, name))
        )

    def remove(self, slug: str) -> None:
        """Remove the files of a slug, and its folder unless it contains other files."""
        folder = self.folder / slug
        for name in (DEFINITION, LAST_RUN):
            with suppress(FileNotFoundError, NotADirectoryError):
                (folder / name).unlink()
        with suppress(OSError):
            folder.rmdir()
            _sync_folder(self.folder)

    def misnamed(self) -> list[str]:
        """Return the folders that have a definition but whose name is not a slug."""
        named = (name for name in self._names() if not SLUG.fullmatch(name))
        return sorted(name for name in named if (self.folder / name / DEFINITION).is_file())

    def create(self) -> None:
        """Create the folder, unless it exists."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def mark(self) -> str:
        """Return the mark of the folder, which names the store that it belongs to."""
        with suppress(OSError, UnicodeDecodeError):
            return read_regular(self.folder / MARKER, most=LARGEST).decode().strip()
        return ""

    def set_mark(self, text: str) -> None:
        """Write the mark that names the store that the folder belongs to."""
        replace_file(self.folder / MARKER, f"{text}\n".encode())

    def _slugs(self) -> list[str]:
        return sorted(name for name in self._names() if SLUG.fullmatch(name))

    def _names(self) -> list[str]:
        try:
            with os.scandir(self.folder) as entries:
                return [each.name for each in entries if each.is_dir()]
        except FileNotFoundError:
            return []


def _stamp(path: Path) -> Mark:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> Fields | Corrupt | None:
    try:
        text = read_regular(path, most=LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as broken:
        if broken.errno == EFBIG:
            return Corrupt(path.name, f"the file is longer than {LARGEST} bytes")
        return Corrupt(path.name, str(broken.strerror))
    plain = ""
    try:
        plain = COMMENT.sub(_blank_comment, text.decode("utf-8-sig"))
        found = msgspec.json.decode(plain)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as broken:
        return Corrupt(path.name, f"invalid JSON: {_describe_error(plain) or broken}")
    if not isinstance(found, dict):
        return Corrupt(path.name, "not a JSON object")
    return found


def _blank_comment(found: re.Match[str]) -> str:
    """Replace a comment by spaces, so that positions in error messages stay right."""
    return found[0] if found[0].startswith('"') else NOT_A_LINE.sub(" ", found[0])


def _describe_error(plain: str) -> str:
    """Return the position and the message of a JSON error; empty if unknown."""
    try:
        json.loads(plain)
    except json.JSONDecodeError as broken:
        return f"line {broken.lineno}, column {broken.colno}: {broken.msg}" if plain else ""
    except (ValueError, RecursionError):
        pass
    return ""


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


NOT_A_LINE = re.compile(r"[^\n]")
# A string, which may contain slashes, or a comment. An unterminated one extends to the end of the
# text; possessive quantifiers avoid backtracking.
COMMENT = re.compile(r'"(?:[^"\\]|\\.)*+"?|//[^\n]*+|/\*.*?(?:\*/|\Z)', re.DOTALL)

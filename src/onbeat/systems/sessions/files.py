"""The files of scheduled prompts: `<folder>/<slug>/definition.json` and `last-run.json`.

They are read as people write them, with `//` comments, and written such that a crash leaves the old
text or the new one, whole. Nothing here knows what they mean.
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

from onbeat.files.atomic import replace_file
from onbeat.files.regular import read_regular
from onbeat.systems.sessions.definitions import SLUG, Fields

DEFINITION, LAST_RUN, MARKER = "definition.json", "last-run.json", ".onbeat"
LARGEST = 512 * 1024  # bytes of a file

Mark = tuple[int, int, int] | None
Stamp = tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A file that says nothing, and why: it cannot be read, or what it says is refused."""

    name: str
    why: str
    is_refused: bool = False

    def __str__(self) -> str:
        return f"{self.name} is {self.kind}: {self.why}"

    @property
    def kind(self) -> str:
        """In a word."""
        return "refused" if self.is_refused else "corrupt"


@dataclass(frozen=True, slots=True)
class Folder:
    """What is in the folder of a slug: None is a file that is not there."""

    definition: Fields | Corrupt | None
    last_run: Fields | Corrupt | None


class Files:
    """The folder of all slugs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def stamps(self) -> dict[str, Stamp]:
        """Return the slugs that have files, and what changes when one of these does."""
        found = {}
        for slug in self._slugs():
            stamp = tuple(_stamp(self.folder / slug / name) for name in (DEFINITION, LAST_RUN))
            if stamp[0] is not None:
                found[slug] = stamp
        return found

    def has(self, slug: str) -> bool:
        """Return whether a slug has a folder, whatever is in it."""
        return (self.folder / slug).is_dir()

    def read(self, slug: str) -> Folder:
        """Return what the files of a slug say."""
        there = self.folder / slug
        return Folder(_read(there / DEFINITION), _read(there / LAST_RUN))

    def followed(self, slugs: Iterable[str]) -> dict[str, str]:
        """Return which slug the definition of each follows, of those that follow another."""
        found = {}
        for slug in slugs:
            match _read(self.folder / slug / DEFINITION):
                case {"schedule": {"type": "after", "slug": str(other)}}:
                    found[slug] = other
                case _:
                    pass
        return found

    def stamp(self, slug: str, name: str) -> Mark:
        """Return what changes when a file of a slug does."""
        return _stamp(self.folder / slug / name)

    def write(self, slug: str, name: str, fields: Fields, *, over: Mark | str = "any") -> bool:
        """Write a file of a slug, whole or not at all; not unless it is still the one in `over`."""
        text = msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"
        there = self.folder / slug
        if not there.is_dir():
            there.mkdir(parents=True, exist_ok=True)
            _sync_folder(self.folder)
        return replace_file(
            there / name, text, may_replace=lambda: over in ("any", self.stamp(slug, name))
        )

    def remove(self, slug: str) -> None:
        """Remove the files of a slug, and its folder unless somebody else has files there."""
        there = self.folder / slug
        for name in (DEFINITION, LAST_RUN):
            with suppress(FileNotFoundError, NotADirectoryError):
                (there / name).unlink()
        with suppress(OSError):
            there.rmdir()
            _sync_folder(self.folder)

    def others(self) -> list[str]:
        """Return the folders that have a definition, and a name that is no slug."""
        named = (name for name in self._names() if not SLUG.fullmatch(name))
        return sorted(name for name in named if (self.folder / name / DEFINITION).is_file())

    def make(self) -> None:
        """Have the folder be there."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def mark(self) -> str:
        """Return what is written on the folder: whose it is."""
        with suppress(OSError, UnicodeDecodeError):
            return read_regular(self.folder / MARKER, most=LARGEST).decode().strip()
        return ""

    def set_mark(self, text: str) -> None:
        """Write on the folder whose it is."""
        replace_file(self.folder / MARKER, f"{text}\n".encode())

    def _slugs(self) -> list[str]:
        return sorted(name for name in self._names() if SLUG.fullmatch(name))

    def _names(self) -> list[str]:
        try:
            with os.scandir(self.folder) as there:
                return [each.name for each in there if each.is_dir()]
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
            return Corrupt(path.name, f"it is longer than {LARGEST} bytes")
        return Corrupt(path.name, str(broken.strerror))
    plain = ""
    try:
        plain = COMMENT.sub(_without, text.decode("utf-8-sig"))
        found = msgspec.json.decode(plain)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as broken:
        return Corrupt(path.name, f"it is not JSON: {_where(plain) or broken}")
    if not isinstance(found, dict):
        return Corrupt(path.name, "it has no fields")
    return found


def _without(found: re.Match[str]) -> str:
    """Return a text as it is, and a comment as spaces: what follows stays where it is."""
    return found[0] if found[0].startswith('"') else NOT_A_LINE.sub(" ", found[0])


def _where(plain: str) -> str:
    """Return what is wrong with a text, and where; nothing, if that is not known."""
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
# A text, which may have slashes in it; or a comment. One that does not end goes to the end of all:
# nothing is looked at twice, however much of a file is missing.
COMMENT = re.compile(r'"(?:[^"\\]|\\.)*+"?|//[^\n]*+|/\*.*?(?:\*/|\Z)', re.DOTALL)

"""The file that keeps what became of timers, so that they go on even if the store was lost.

    {"version": 1, "timers": {"nightly": {"last_run_at": "2026-01-01T03:00:00Z", ...}}}

It is replaced whole: whoever reads it, after whatever crash, finds the old content or the new.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from onbeat.core.instants import parse_instant_ms, rfc3339_ms
from onbeat.errors import InvalidSchedule, shown
from onbeat.ports import Beginning

log = logging.getLogger("onbeat.systems")

VERSION = 1
LARGEST = 16 * 2**20  # bytes


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of one timer. Instants are milliseconds. Retries and what comes next are not."""

    last_run_at: int | None = None  # when it was last started
    last_success_at: int | None = None
    last_failure_at: int | None = None
    last_exit: int | None = None
    last_missed_at: int | None = None
    last_miss_reason: str | None = None

    def beginning(self, *, is_persistent: bool) -> Beginning:
        """Return where a timer goes on: what it missed since is caught up if it is persistent."""
        known = [each for each in (self.last_run_at, self.last_missed_at) if each is not None]
        return Beginning(
            ticked_at=max(known) if known and is_persistent else None,
            last_run_at=self.last_run_at,
            last_success_at=self.last_success_at,
            last_failure_at=self.last_failure_at,
            last_exit=self.last_exit,
            last_missed_at=self.last_missed_at,
            last_miss_reason=self.last_miss_reason,
        )


class StateFile:
    """One such file. What is wrong with it is told in the log, and keeps no timer from running."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_newer = False  # of a version that is not ours to write
        self._written: bytes | None = None
        self._told = ""

    def load(self) -> dict[str, Kept]:
        """Return what is kept of each timer; nothing of what cannot be read."""
        self._is_newer, self._written = False, None
        try:
            with self.path.open("rb") as file:
                content = file.read(LARGEST + 1)
        except FileNotFoundError:
            return {}
        except OSError as broken:
            self._tell(f"{self.path} cannot be read: {broken.strerror}: nothing is caught up by it")
            return {}
        try:
            found = read_state(content)
        except InvalidSchedule as refused:
            self._is_newer = refused.field == "version"
            self._tell(f"{self.path}: {refused}")
            return {}
        self._written, self._told = content, ""
        return found

    def save(self, timers: Mapping[str, Kept]) -> None:
        """Have the file say this, if it does not."""
        content = write_state(timers)
        if self._is_newer or content == self._written:
            return
        try:
            replace_file(self.path, content)
        except OSError as broken:
            self._tell(f"{self.path} cannot be written: {broken.strerror}")
        else:
            self._written, self._told = content, ""

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            log.error("timers: %s", problem)
            self._told = problem


def read_state(content: bytes) -> dict[str, Kept]:
    """Return what such a file keeps; refuse what is none, or of a newer `version`."""
    hint = f"it was written by another program, or in part; {{version: {VERSION}, timers: {{}}}}"
    try:
        given = msgspec.json.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise InvalidSchedule("", "it is no JSON", hint=hint) from None
    if len(content) > LARGEST or not isinstance(given, dict):
        raise InvalidSchedule("", "it keeps no timers", hint=hint)
    version, timers = given.get("version"), given.get("timers")
    if type(version) is int and version > VERSION:
        problem = f"{version} is newer than this program, which leaves the file alone"
        raise InvalidSchedule("version", problem, hint=f"{VERSION}; a newer Onbeat")
    if version != VERSION or not isinstance(timers, dict):
        raise InvalidSchedule("", "it keeps no timers", hint=hint)
    return {name: _kept(name, fields) for name, fields in timers.items()}


def write_state(timers: Mapping[str, Kept]) -> bytes:
    """Return the content of such a file, timers and fields in order."""
    told = {
        name: {
            field: rfc3339_ms(value) if field.endswith("_at") else value
            for field, value in sorted(msgspec.to_builtins(kept).items())
        }
        for name, kept in sorted(timers.items())
    }
    content = msgspec.json.encode({"version": VERSION, "timers": told})
    return msgspec.json.format(content, indent=2) + b"\n"


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file whole, such that a crash at any moment leaves the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")  # others may write as well
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else a loss of power could take the new name back
    finally:
        os.close(folder)


def _kept(name: str, fields: object) -> Kept:
    """Return what is kept of a timer; a field that makes no sense, or is not known, is let be."""
    if not isinstance(fields, dict):
        raise InvalidSchedule(f"timers.{name}", f"{shown(fields)} is no set of fields")
    found: dict[str, object] = {}
    for field in Kept.__struct_fields__:
        value = fields.get(field)
        if field.endswith("_at"):
            with suppress(InvalidSchedule):
                found[field] = None if value is None else parse_instant_ms(value)
        elif field == "last_exit":
            is_code = type(value) is int and -(2**31) <= value < 2**31
            found[field] = value if is_code else None
        else:
            found[field] = value if isinstance(value, str) else None
    return Kept(**found)  # type: ignore[arg-type]  # each is of its field's type

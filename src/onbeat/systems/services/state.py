"""The file that keeps what became of timers, so that they go on even if the store was lost.

    {"version": 1, "timers": {"nightly": {"last_run_at": "2026-01-01T03:00:00Z", ...}}}

It is replaced whole: whoever reads it, after whatever crash, finds the old content or the new.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from onbeat.core.time.instants import parse_instant_ms, rfc3339_ms
from onbeat.errors import InvalidSchedule, shown
from onbeat.files.atomic import replace_file
from onbeat.files.regular import read_regular
from onbeat.ports.store import InitialPosition

log = logging.getLogger("onbeat.systems")

VERSION = 1
LARGEST = 16 * 2**20  # bytes


class TimerHistory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of one timer. Instants are milliseconds. Retries and what comes next are not."""

    last_run_at: int | None = None  # when it was last started
    last_success_at: int | None = None
    last_failure_at: int | None = None
    last_exit: int | None = None
    last_missed_at: int | None = None
    last_miss_reason: str | None = None

    def since(self, known: "TimerHistory", *, now: int) -> "TimerHistory":
        """Return the later of what is known now and was before, which must not be later than now.

        The store tells less than was known while a run is tried again, or of what it has lost.
        """
        of_runs = ("last_run_at", "last_success_at", "last_failure_at")
        found = {name: _later(getattr(self, name), getattr(known, name), now) for name in of_runs}
        is_later = self.ended_at < known.ended_at <= now
        misses = self
        if _later(self.last_missed_at, known.last_missed_at, now) != self.last_missed_at:
            misses = known
        return TimerHistory(
            **found,
            last_exit=(known if is_later else self).last_exit,
            last_missed_at=misses.last_missed_at,
            last_miss_reason=misses.last_miss_reason,
        )

    @property
    def ended_at(self) -> int:
        """When a run was last known to have ended; 0 if none is."""
        return max(self.last_success_at or 0, self.last_failure_at or 0)

    def beginning(self, *, is_persistent: bool) -> InitialPosition:
        """Return where a timer goes on: what it missed since is caught up if it is persistent."""
        known = [each for each in (self.last_run_at, self.last_missed_at) if each is not None]
        return InitialPosition(
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
        self.is_unread = False  # what it keeps is not known, and must not be lost
        self._content: bytes | None = None  # as far as is known
        self._told = ""

    def load(self) -> dict[str, TimerHistory]:
        """Return what is kept of each timer; nothing of what cannot be read."""
        self._content = None
        try:
            content = self._read()
        except OSError as broken:
            self.is_unread = True
            self._tell(f"{self.path} cannot be read, nor written: {broken.strerror}")
            return {}
        self.is_unread = False
        if content is None:
            return {}
        wrong: list[str] = []
        try:
            found = read_state(content, wrong)
        except InvalidSchedule as refused:
            self._tell(f"{self.path}: {refused}")
            return {}
        self._content = content
        self._tell(f"{self.path}: {'; '.join(wrong)}" if wrong else "")
        return found

    def save(self, timers: Mapping[str, TimerHistory]) -> None:
        """Have the file say this, if it does not. One that nobody could read is let be."""
        content = write_state(timers)
        if content == self._content or self.is_unread:
            return
        try:
            if self._is_newer():
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, content)
        except OSError as broken:
            self._tell(f"{self.path} cannot be written: {broken.strerror}")
        else:
            self._content = content
            self._tell("")

    def _is_newer(self) -> bool:
        """Return whether somebody has put a file there that is not ours to write, and tell it."""
        there = self._read()
        if there is None or there == self._content:
            return False
        try:
            read_state(there)
        except InvalidSchedule as refused:
            if refused.field == "version":
                self._content = None
                self._tell(f"{self.path}: {refused}")
                return True
        return False

    def _read(self) -> bytes | None:
        """Return what is in the file; None if there is none."""
        try:
            return read_regular(self.path, most=LARGEST)
        except FileNotFoundError:
            return None

    def _tell(self, problem: str) -> None:
        if problem and problem != self._told:
            log.error("timers: %s", problem)
        self._told = problem


def read_state(content: bytes, wrong: list[str] | None = None) -> dict[str, TimerHistory]:
    """Return what such a file keeps; refuse what is none, or of a newer `version`.

    A timer of which it makes no sense is left out, and told in `wrong`.
    """
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
    found: dict[str, TimerHistory] = {}
    for name, fields in timers.items():
        if isinstance(fields, dict):
            found[name] = _kept(fields)
        elif wrong is not None:
            wrong.append(f"timers.{name}: {shown(fields)} is no set of fields, and is left out")
    return found


def write_state(timers: Mapping[str, TimerHistory]) -> bytes:
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


def _later(one: int | None, known: int | None, now: int) -> int | None:
    """Return the later of two instants; what is `known` does not count if it is yet to come."""
    return max(one or 0, known) if known is not None and known <= now else one


def _kept(fields: Mapping[str, object]) -> TimerHistory:
    """Return what is kept of a timer; a field that makes no sense, or is not known, is let be."""
    found: dict[str, object] = {}
    for field in TimerHistory.__struct_fields__:
        value = fields.get(field)
        if field.endswith("_at"):
            with suppress(InvalidSchedule):
                found[field] = None if value is None else parse_instant_ms(value)
        elif field == "last_exit":
            is_code = type(value) is int and -(2**31) <= value < 2**31
            found[field] = value if is_code else None
        else:
            found[field] = value if isinstance(value, str) else None
    return TimerHistory(**found)  # type: ignore[arg-type]  # each is of its field's type

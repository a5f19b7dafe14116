"""The state file: the history of timers, so that they continue even if the store was lost.

    {"version": 1, "timers": {"nightly": {"last_run_at": "2026-01-01T03:00:00Z", ...}}}

It is replaced atomically: a reader finds the old content or the new.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from onbeat.core.time.instants import parse_instant_ms, rfc3339_ms
from onbeat.errors import InvalidSchedule, quote_value
from onbeat.host.atomic_files import replace_file
from onbeat.host.regular_files import read_regular
from onbeat.ports.store import InitialPosition

log = logging.getLogger("onbeat.systems")

VERSION = 1
LARGEST = 16 * 2**20  # bytes


class TimerHistory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The recorded history of a timer. Instants are milliseconds. Retries are not recorded."""

    last_run_at: int | None = None  # the last start
    last_success_at: int | None = None
    last_failure_at: int | None = None
    last_exit: int | None = None
    last_missed_at: int | None = None
    last_miss_reason: str | None = None

    def since(self, earlier: "TimerHistory", *, now: int) -> "TimerHistory":
        """Return the later of this and an earlier history; instants after `now` are ignored.

        The store knows less than before while a run is retried, and after it was lost.
        """
        of_runs = ("last_run_at", "last_success_at", "last_failure_at")
        found = {name: _later(getattr(self, name), getattr(earlier, name), now) for name in of_runs}
        is_later = self.ended_at < earlier.ended_at <= now
        misses = self
        if _later(self.last_missed_at, earlier.last_missed_at, now) != self.last_missed_at:
            misses = earlier
        return TimerHistory(
            **found,
            last_exit=(earlier if is_later else self).last_exit,
            last_missed_at=misses.last_missed_at,
            last_miss_reason=misses.last_miss_reason,
        )

    @property
    def ended_at(self) -> int:
        """When a run last ended; 0: no ended run is known."""
        return max(self.last_success_at or 0, self.last_failure_at or 0)

    def initial_position(self, *, is_persistent: bool) -> InitialPosition:
        """Return where a timer continues; a persistent one catches up on missed ticks."""
        ticks = [each for each in (self.last_run_at, self.last_missed_at) if each is not None]
        return InitialPosition(
            ticked_at=max(ticks) if ticks and is_persistent else None,
            last_run_at=self.last_run_at,
            last_success_at=self.last_success_at,
            last_failure_at=self.last_failure_at,
            last_exit=self.last_exit,
            last_missed_at=self.last_missed_at,
            last_miss_reason=self.last_miss_reason,
        )


class StateFile:
    """A state file. Problems are logged and do not keep timers from running."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_unread = False  # its content is unknown and must not be overwritten
        self._content: bytes | None = None  # the last known content
        self._last_problem = ""

    def load(self) -> dict[str, TimerHistory]:
        """Return the history of each timer; empty if the file cannot be read."""
        self._content = None
        try:
            content = self._read()
        except OSError as broken:
            self.is_unread = True
            self._log(f"{self.path} cannot be read, so it is not written: {broken.strerror}")
            return {}
        self.is_unread = False
        if content is None:
            return {}
        wrong: list[str] = []
        try:
            found = read_state(content, wrong)
        except InvalidSchedule as refused:
            self._log(f"{self.path}: {refused}")
            return {}
        self._content = content
        self._log(f"{self.path}: {'; '.join(wrong)}" if wrong else "")
        return found

    def save(self, timers: Mapping[str, TimerHistory]) -> None:
        """Write the file if it has changed; a file that could not be read is left unchanged."""
        content = write_state(timers)
        if content == self._content or self.is_unread:
            return
        try:
            if self._is_newer():
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, content)
        except OSError as broken:
            self._log(f"{self.path} cannot be written: {broken.strerror}")
        else:
            self._content = content
            self._log("")

    def _is_newer(self) -> bool:
        """Return whether the file was replaced by one of a newer version, and log that."""
        current = self._read()
        if current is None or current == self._content:
            return False
        try:
            read_state(current)
        except InvalidSchedule as refused:
            if refused.field == "version":
                self._content = None
                self._log(f"{self.path}: {refused}")
                return True
        return False

    def _read(self) -> bytes | None:
        """Return the content of the file; None if it does not exist."""
        try:
            return read_regular(self.path, most=LARGEST)
        except FileNotFoundError:
            return None

    def _log(self, problem: str) -> None:
        if problem and problem != self._last_problem:
            log.error("timers: %s", problem)
        self._last_problem = problem


def read_state(content: bytes, wrong: list[str] | None = None) -> dict[str, TimerHistory]:
    """Return the histories in a state file; refuse a malformed one, or one of a newer `version`.

    Invalid entries are skipped and reported in `wrong`.
    """
    hint = f"written by another program, or incomplete; {{version: {VERSION}, timers: {{}}}}"
    try:
        fields = msgspec.json.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise InvalidSchedule("", "it is not JSON", hint=hint) from None
    if len(content) > LARGEST or not isinstance(fields, dict):
        raise InvalidSchedule("", "it contains no timers", hint=hint)
    version, timers = fields.get("version"), fields.get("timers")
    if type(version) is int and version > VERSION:
        problem = f"{version} is newer than this program, which leaves the file unchanged"
        raise InvalidSchedule("version", problem, hint=f"{VERSION}; a newer Onbeat")
    if version != VERSION or not isinstance(timers, dict):
        raise InvalidSchedule("", "it contains no timers", hint=hint)
    found: dict[str, TimerHistory] = {}
    for name, entry in timers.items():
        if isinstance(entry, dict):
            found[name] = _read_history(entry)
        elif wrong is not None:
            wrong.append(f"timers.{name}: {quote_value(entry)} is not a mapping; ignored")
    return found


def write_state(timers: Mapping[str, TimerHistory]) -> bytes:
    """Return the content of a state file, with timers and fields in order."""
    sorted_timers = {
        name: {
            field: rfc3339_ms(value) if field.endswith("_at") else value
            for field, value in sorted(msgspec.to_builtins(history).items())
        }
        for name, history in sorted(timers.items())
    }
    content = msgspec.json.encode({"version": VERSION, "timers": sorted_timers})
    return msgspec.json.format(content, indent=2) + b"\n"


def _later(one: int | None, earlier: int | None, now: int) -> int | None:
    """Return the later of two instants; `earlier` is ignored if it is after `now`."""
    return max(one or 0, earlier) if earlier is not None and earlier <= now else one


def _read_history(fields: Mapping[str, object]) -> TimerHistory:
    """Return the history of a timer, without invalid and unknown fields."""
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
    return TimerHistory(**found)  # type: ignore[arg-type]  # checked above

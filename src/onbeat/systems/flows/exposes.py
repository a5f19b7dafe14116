"""Read the scheduled flows from the exposes of a panel.

An expose has `name`, `enabled` and `meta`: a YAML list of flows, each with `url`, `enabled` and
`data`, which is YAML again and may contain a block `schedule:`. All other fields are ignored.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from onbeat.core.schedule import Schedule
from onbeat.errors import InvalidSchedule, in_field, quote_value
from onbeat.systems.flows.config import ScheduleConfig, read_config, schedule_key, schedule_of

EXPOSE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
LONGEST_NAME = 100

Parse = Callable[[str], object]
Row = Mapping[str, object]


class ExposeSource(Protocol):
    """Where exposes are stored."""

    path: Path

    def read(self) -> Sequence[tuple[str, Row | InvalidSchedule]]:
        """Return each expose by name, or why it cannot be read; raise if none can be read."""

    def parse(self, text: str) -> object:
        """Return the value of a YAML text, or refuse it."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A scheduled flow."""

    key: str
    config: ScheduleConfig
    schedule: Schedule


@dataclass(slots=True)
class FoundExposes:
    """The flows of exposes. Those of `unread` exposes are unknown."""

    valid: dict[str, Scheduled] = field(default_factory=dict)  # valid flows, by schedule id
    invalid: dict[str, str] = field(default_factory=dict)  # reasons, by key
    unread: set[str] = field(default_factory=set)  # names of exposes that could not be read

    def refuse(self, key: str, why: InvalidSchedule) -> None:
        self.invalid[key] = str(why)


def read_exposes(rows: Sequence[tuple[str, Row | InvalidSchedule]], parse: Parse) -> FoundExposes:
    """Return the scheduled flows of enabled exposes; an invalid one does not affect the others."""
    found = FoundExposes()
    for name, row in rows:
        if isinstance(row, InvalidSchedule):
            found.unread.add(name)
            found.refuse(name, row)
            continue
        try:
            if not _is_on(row):
                continue
            _check_name(name)
            flows = _flows_of(row, parse)
            for n, flow in enumerate(flows):
                _read_flow(name, n, flow, parse, found)
        except InvalidSchedule as refused:
            found.unread.add(name)
            found.refuse(name, refused)
        except Exception as broken:  # noqa: BLE001 - affects this expose only
            found.unread.add(name)
            found.refuse(name, _unreadable(broken))
    return found


def _read_flow(name: str, n: int, flow: object, parse: Parse, found: FoundExposes) -> None:
    """Add one flow; of several with the same url, the first one is used."""
    url = flow.get("url") if isinstance(flow, Mapping) else None
    key = schedule_key(name, url) if isinstance(url, str) and url else f"{name}/meta[{n}]"
    try:
        scheduled = _scheduled(key, url, flow, parse)
    except InvalidSchedule as refused:
        found.refuse(key, refused)
        return
    except Exception as broken:  # noqa: BLE001 - affects this expose only
        found.unread.add(name)
        found.refuse(key, _unreadable(broken))
        return
    if scheduled is None:
        return
    schedule_id = scheduled.schedule.schedule_id
    if schedule_id in found.valid:
        problem = "two flows of this expose have this url"
        twice = InvalidSchedule("url", problem, hint="the first one is used")
        found.refuse(f"{key} (meta[{n}])", twice)
    else:
        found.valid[schedule_id] = scheduled


def _scheduled(key: str, url: object, flow: object, parse: Parse) -> Scheduled | None:
    """Return a scheduled flow, or None if it has no schedule; refuse an invalid one."""
    if not isinstance(flow, Mapping):
        raise InvalidSchedule(
            "meta", f"{quote_value(flow)} is not a flow", hint="{url: ..., data: ...}"
        )
    if not _is_on(flow):
        return None
    data = _data_of(flow, parse)
    block = data.get("schedule") if isinstance(data, Mapping) else None
    if block is None:
        return None
    if not isinstance(url, str) or not url:
        raise InvalidSchedule("url", "it is missing", hint="such as /-/127.0.0.1/8125/-/")
    config = read_config(block)
    path = url if url.startswith("/") else f"/{url}"
    return Scheduled(key, config, schedule_of(config, url=path, key=key))


def _flows_of(row: Row, parse: Parse) -> Sequence[object]:
    meta = row.get("meta")
    with in_field("meta"):
        if isinstance(meta, str):
            meta = parse(meta)
        if meta is None:
            return ()
        if not isinstance(meta, (list, tuple)):
            problem = f"{quote_value(meta)} is not a list of flows"
            raise InvalidSchedule("", problem, hint="[{url: ..., data: ...}]")
        return meta


def _data_of(flow: Row, parse: Parse) -> object:
    data = flow.get("data")
    with in_field("data"):
        return parse(data) if isinstance(data, str) else data


def _is_on(fields: Row) -> bool:
    """Return whether an expose or a flow is enabled; a database has 0 or 1."""
    enabled = fields.get("enabled", True)
    if enabled is None or isinstance(enabled, bool):
        return enabled is None or enabled
    if isinstance(enabled, int) and enabled in (0, 1):
        return bool(enabled)
    hint = "true or false"
    raise InvalidSchedule("enabled", f"{quote_value(enabled)} is neither true nor false", hint=hint)


def _unreadable(broken: Exception) -> InvalidSchedule:
    problem = f"it cannot be read: {type(broken).__name__}: {broken}"
    return InvalidSchedule("", problem, hint="an expose has name, enabled and meta")


def _check_name(name: str) -> None:
    if not EXPOSE_NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        hint = "lowercase letters, digits, _ and -, at most 100"
        raise InvalidSchedule(
            "name", f"{quote_value(name)} is not a valid name of an expose", hint=hint
        )

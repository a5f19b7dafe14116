"""The past of a schedule, as far as triggers depend on it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

Ending = Literal["success", "failure", "completion"]  # the outcome of a run, as named by `after`
OUTCOMES: tuple[Ending, ...] = ("success", "failure", "completion")
STARTUP = "@startup"  # not a schedule: ids cannot contain @


class TriggerCause(msgspec.Struct, frozen=True, gc=False):
    """An event that causes a tick, and how many events are combined in it."""

    at: int  # seconds
    count: int = 1


NOTHING_HAPPENED: Mapping[str, TriggerCause] = MappingProxyType({})


class Past(msgspec.Struct, frozen=True, gc=False):
    """The past of a schedule, as far as decisions depend on it. Instants are in seconds."""

    created_at: int | None = None  # when the schedule was first defined
    runs_used: int = 0  # scheduled starts so far, counted for `max_runs`
    happened: Mapping[str, TriggerCause] = NOTHING_HAPPENED  # by cause, as named by triggers
    spread_until: int = 0  # milliseconds: missed ticks are being spread up to then
    rated: tuple[int, ...] = ()  # milliseconds: when the runs counted by `rate` were decided


NO_PAST = Past()

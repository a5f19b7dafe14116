"""The values the core speaks of."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

Ending = Literal["success", "failure", "completion"]  # how a run can end, as `after` names it
OUTCOMES: tuple[Ending, ...] = ("success", "failure", "completion")
STARTUP = "@startup"  # the cause that is no schedule: ids have no such sign


class TriggerCause(msgspec.Struct, frozen=True, gc=False):
    """An event that causes a tick, and how many further ones have joined it."""

    at: int  # seconds
    count: int = 1


NOTHING_HAPPENED: Mapping[str, TriggerCause] = MappingProxyType({})


class Past(msgspec.Struct, frozen=True, gc=False):
    """What has happened to a schedule, as far as decisions depend on it. Instants are seconds."""

    created_at: int | None = None  # when the schedule was first defined
    runs_used: int = 0  # scheduled starts so far: what `max_runs` counts
    happened: Mapping[str, TriggerCause] = NOTHING_HAPPENED  # by cause, as triggers name them
    spread_until: int = 0  # milliseconds: missed ticks are being spread up to then
    rated: tuple[int, ...] = ()  # milliseconds: when runs were decided that `rate` counts


NO_PAST = Past()

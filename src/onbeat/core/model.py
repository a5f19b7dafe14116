"""The values the core speaks of."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

Ending = Literal["success", "failure", "completion"]  # how a run can end, as `after` names it
OUTCOMES: tuple[Ending, ...] = ("success", "failure", "completion")


NOTHING_ENDED: Mapping[Ending, int] = MappingProxyType({})
NO_OTHER_ENDED: Mapping[tuple[str, Ending], int] = MappingProxyType({})


class Past(msgspec.Struct, frozen=True, gc=False):
    """What has happened to a schedule, as far as triggers depend on it. Instants are seconds."""

    created_at: int | None = None  # when the schedule was first defined
    scheduler_started_at: int | None = None
    runs_used: int = 0  # scheduled starts so far: what `max_runs` counts
    ended: Mapping[Ending, int] = NOTHING_ENDED  # its own last run
    others: Mapping[tuple[str, Ending], int] = NO_OTHER_ENDED
    spread_until: int = 0  # milliseconds: missed ticks are being spread up to then


NO_PAST = Past()

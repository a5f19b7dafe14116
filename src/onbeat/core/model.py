"""The values the core speaks of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Outcome = Literal["success", "failure", "completion"]
OUTCOMES: tuple[Outcome, ...] = ("success", "failure", "completion")


@dataclass(frozen=True, slots=True)
class Past:
    """What has happened to a schedule, as far as triggers depend on it. Instants are seconds."""

    created_at: int | None = None  # when the schedule was first defined
    scheduler_started_at: int | None = None
    runs_used: int = 0  # scheduled starts so far: what `max_runs` counts
    ended: Mapping[Outcome, int] = field(
        default_factory=lambda: MappingProxyType({})
    )  # its own last run
    others: Mapping[tuple[str, Outcome], int] = field(default_factory=lambda: MappingProxyType({}))


NO_PAST = Past()

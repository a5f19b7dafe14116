"""Policies: how ticks are decided and runs are handled, as values and as fields.

`write_policy(read_policy(fields))` is canonical: defaults are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from onbeat.core.fields import choice, declared, flag, length, number
from onbeat.core.policy_values import GROUP, NO_RETRIES, RATE, RETRY, Rate, Retries
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, in_field

Overlap = Literal["skip", "queue", "allow", "replace"]
Catchup = Literal["once", "none", "all", "spread"]
OnLost = Literal["fail", "retry"]
QueueKeep = Literal["first", "latest"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How ticks are decided and runs are handled. Durations are in milliseconds."""

    enabled: Annotated[bool, flag("if false, each tick is skipped with a reason")] = True
    grace: Annotated[
        int, length("a tick decided within it is on time; later it is missed", least="1s")
    ] = 60_000
    catchup: Annotated[
        Catchup,
        choice(
            "which missed ticks run: the latest for all, none, each, or each spread over time",
            Catchup,
        ),
    ] = "once"
    catchup_window: Annotated[int, length("missed ticks older than this are not caught up")] = (
        24 * 3_600_000
    )
    overlap: Annotated[
        Overlap, choice("what happens to a tick while a run is in flight", Overlap)
    ] = "skip"
    queue_limit: Annotated[int, number("how many may wait under overlap: queue", 1, 10_000)] = 100
    queue_keep: Annotated[
        QueueKeep, choice("which waiting runs are kept when the queue is full", QueueKeep)
    ] = "first"
    max_active: Annotated[
        int | None, number("how many may be in flight under overlap: allow", 1, 10_000)
    ] = None
    jitter: Annotated[int, length("a delay of up to this, the same for the same tick")] = 0
    jitter_around: Annotated[
        bool, flag("the jitter is before or after the tick, not only after it")
    ] = False
    retry: Annotated[Retries, RETRY] = NO_RETRIES
    timeout: Annotated[int | None, length("a run that takes longer is canceled", least="1s")] = None
    warn_after: Annotated[
        int | None,
        length("a run that takes longer is reported as stuck, and continues", least="1s"),
    ] = None
    start_deadline: Annotated[
        int | None, length("a run that waits longer than this is skipped", least="1s")
    ] = None
    cancel_grace: Annotated[
        int, length("how long a canceled run may take to end before it is killed")
    ] = 10_000
    on_lost: Annotated[
        OnLost, choice("whether a run whose node is lost is launched again", OnLost)
    ] = "fail"
    group: Annotated[str | None, GROUP] = None
    priority: Annotated[
        int, number("waiting runs with the highest priority start first", -100, 100)
    ] = 0
    rate: Annotated[Rate | None, RATE] = None
    pause_after: Annotated[
        int | None,
        number("the schedule is paused after so many failed runs in a row", 1, 1000),
    ] = None
    # Whether a run can be announced as soon as it is decided, whatever other runs exist.
    starts_directly: bool = field(init=False, repr=False, compare=False)
    # Whether the time alone decides a tick of a schedule without unfinished runs.
    is_plain: bool = field(init=False, repr=False, compare=False)

    @property
    def lateness(self) -> int:
        """How long after its due time a tick is still on time. The grace counts from `run_at`."""
        return self.grace + (self.jitter if self.jitter_around else 0)

    def __post_init__(self) -> None:
        waits = self.group or self.priority or self.start_deadline
        object.__setattr__(self, "starts_directly", not waits)
        varies = self.jitter or self.catchup == "spread" or self.rate is not None
        object.__setattr__(self, "is_plain", self.enabled and not varies)


def read_policy(fields: Mapping[str, object]) -> Policy:
    """Return the policy that these fields define. Fields left out have their defaults."""
    check_names(fields, POLICIES.keys())
    values = {}
    for name, value in fields.items():
        with in_field(name):
            values[name] = POLICIES[name].read(value)
    policy = Policy(**values)  # type: ignore[arg-type]
    _check_together(policy)
    return policy


def write_policy(policy: Policy) -> dict[str, object]:
    """Return the fields of a policy that are not at their default."""
    written: dict[str, object] = {}
    if policy == PLAIN:
        return written
    for name, default in DEFAULTS:
        value = getattr(policy, name)
        if value != default:
            written[name] = POLICIES[name].write(value)
    return written


def _check_together(policy: Policy) -> None:
    """Refuse fields that have no effect with the others."""
    written = write_policy(policy)
    for name, needs in (("max_active", "allow"), ("queue_limit", "queue"), ("queue_keep", "queue")):
        if name in written and policy.overlap != needs:
            problem = f"it has no effect with overlap: {policy.overlap}"
            raise InvalidSchedule(name, problem, hint=f"overlap: {needs}")
    if policy.jitter_around and not policy.jitter:
        raise InvalidSchedule(
            "jitter_around", "it has no effect without jitter", hint="jitter: 30s"
        )


POLICIES = declared(Policy)
PLAIN = Policy()
# The name and the default of each field.
DEFAULTS = tuple((each.name, each.default) for each in fields(Policy) if each.init)

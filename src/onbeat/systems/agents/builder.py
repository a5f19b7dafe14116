"""Describe an agent: `agent("daily").schedule(...).consumes(...).publishes(...)`.

Each call is checked immediately. What depends on the whole description (whether the agent
publishes, has an engine, and has a trigger) is checked when the orchestrator starts, so that
`.schedule()` may come before `.publishes()`.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, time, timedelta
from typing import Self

from pydantic import BaseModel

from onbeat.core.policy import Policy, read_policy
from onbeat.core.policy_values import GROUP_FORM
from onbeat.core.schedule import check_id
from onbeat.errors import InvalidSchedule, quote_value
from onbeat.systems.agents.context import AgentContext, Subscription, read_names
from onbeat.systems.agents.specs import ScheduleSpec, TimerTick

Output = BaseModel | Sequence[BaseModel] | None
Engine = Callable[[AgentContext], Awaitable[Output]]
PREFIX = "agents/"  # of the schedule ids of agents
CONCURRENCY = 2  # default number of concurrent runs of an agent
MOST_CONCURRENCY = 10_000
OWN = ("overlap", "group")  # policy fields that users cannot set


class AgentBuilder:
    """An agent that is described by chained calls."""

    def __init__(self, name: str, check: Callable[[type[BaseModel]], str]) -> None:
        """`check` refuses a model that is not a type of artifacts."""
        check_id(f"{PREFIX}{name}")
        if not GROUP_FORM.fullmatch(PREFIX + name):
            raise InvalidSchedule(
                "name", f"{quote_value(name)} is too long", hint="93 characters at most"
            )
        self.name, self.schedule_id, self._check = name, PREFIX + name, check
        self.text, self.places = "", CONCURRENCY
        self.spec: ScheduleSpec | None = None
        self.subscriptions: list[Subscription] = []
        self.outputs: list[type[BaseModel]] = []
        self.engines: list[Engine] = []
        self.own_tags: frozenset[str] = frozenset()
        self.own_policy: dict[str, object] = {}
        self.is_frozen = False

    def description(self, text: str) -> Self:
        """Set a description for people."""
        self._edit()
        self.text = text
        return self

    def schedule(
        self,
        every: timedelta | None = None,
        at: time | datetime | None = None,
        cron: str | None = None,
        after: timedelta | None = None,
        max_repeats: int | None = None,
    ) -> Self:
        """Add a timer, as in `ScheduleSpec`. Artifacts do not trigger the agent then."""
        self._edit()
        if self.spec is not None:
            raise ValueError(f"agent {self.name!r} has a schedule already (call .schedule() once)")
        self.spec = ScheduleSpec(every, at, cron, after, max_repeats)
        return self

    def consumes(
        self,
        model: type[BaseModel],
        *,
        where: Callable[..., object] | None = None,
        tags: Iterable[str] = (),
        from_agents: Iterable[str] = (),
    ) -> Self:
        """Let the agent read artifacts of a type that match all given filters.

        Without a schedule, each such artifact except its own triggers a run. Repeated calls add
        alternatives. With `tags`, an artifact must have at least one of them.
        """
        self._edit()
        if model is TimerTick:
            problem = "a TimerTick is not an artifact"
            raise ValueError(f"{problem}: use .schedule(), and read the tick from AgentContext")
        self._check(model)
        if where is not None and not callable(where):
            raise ValueError(f"where must be a function of the model, not {where!r}")
        if where is not None and _is_async(where):
            hint = "await in the engine instead"
            raise ValueError(f"where must be a plain function, not {where!r} ({hint})")
        self.subscriptions.append(
            Subscription(
                model, where, read_names("tags", tags), read_names("from_agents", from_agents)
            )
        )
        return self

    def publishes(self, *models: type[BaseModel]) -> Self:
        """Set the types that its engines return; a run that returns another type fails."""
        self._edit()
        for model in models:
            self._check(model)
        self.outputs += [each for each in models if each not in self.outputs]
        return self

    def with_engines(self, *engines: Engine) -> Self:
        """Set async functions that run in this order; what they return is published."""
        self._edit()
        for engine in engines:
            if not _is_async(engine):
                hint = "async def engine(ctx): ...; use asyncio.to_thread for blocking calls"
                raise TypeError(f"{engine!r} is not an async function ({hint})")
        self.engines += engines
        return self

    def max_concurrency(self, places: int) -> Self:
        """Set the number of concurrent runs; further runs wait."""
        self._edit()
        if type(places) is not int or not 1 <= places <= MOST_CONCURRENCY:
            raise ValueError(f"max_concurrency must be 1 to {MOST_CONCURRENCY}, not {places!r}")
        self.places = places
        return self

    def tags(self, *tags: str) -> Self:
        """Add tags to what it publishes."""
        self._edit()
        self.own_tags |= read_names("tags", tags)
        return self

    def policy(self, **policy: object) -> Self:
        """Set the policy of its runs, such as `retry=["30s"], timeout="5m", catchup="none"`."""
        self._edit()
        for name in OWN:
            if name in policy:
                hint = "max_concurrency() limits concurrent runs; further runs wait"
                raise InvalidSchedule(name, "it cannot be set for agents", hint=hint)
        read_policy(self.own_policy | policy)
        self.own_policy |= policy
        return self

    def policy_of(self) -> Policy:
        """Return the policy of its runs: none is skipped, and the concurrency is limited.

        A lost run of an artifact is retried, as nothing else would process the artifact; a lost run
        of a timer is not, as the timer fires again.
        """
        on_lost = "fail" if self.spec is not None else "retry"
        own = {"overlap": "allow", "group": self.schedule_id, "on_lost": on_lost}
        return read_policy({**own, **self.own_policy})

    def check(self) -> None:
        """Refuse an agent that cannot run or has no trigger."""
        if self.spec is not None and not self.outputs:
            raise ValueError(f"Scheduled agent {self.name!r} must declare .publishes()")
        if not self.engines:
            hint = ".with_engines(an async function)"
            raise ValueError(f"agent {self.name!r} has no engine ({hint})")
        if self.spec is None and not self.subscriptions:
            hint = ".schedule(...) or .consumes(...)"
            raise ValueError(f"agent {self.name!r} has no trigger ({hint})")

    def _edit(self) -> None:
        if self.is_frozen:
            problem = f"agent {self.name!r} has started already"
            raise RuntimeError(f"{problem}: describe it before the orchestrator starts")


def _is_async(function: object) -> bool:
    called = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(called)

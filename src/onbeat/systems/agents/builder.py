"""How an agent is described: `agent("daily").schedule(...).consumes(...).publishes(...)`.

What can be refused by itself is refused at once, what depends on the rest of the chain (whether it
publishes, has an engine, and is triggered by anything) when the orchestrator starts: `.schedule()`
may come before `.publishes()`.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, time, timedelta
from typing import Self

from pydantic import BaseModel

from onbeat.core.policy import GROUP, Policy, read_policy
from onbeat.core.schedule import check_id
from onbeat.errors import InvalidSchedule, shown
from onbeat.systems.agents.context import AgentContext, Subscription, read_names
from onbeat.systems.agents.specs import ScheduleSpec, TimerTick

Output = BaseModel | Sequence[BaseModel] | None
Engine = Callable[[AgentContext], Awaitable[Output]]
PREFIX = "agents/"  # of the schedules of agents
CONCURRENCY = 2  # runs of an agent at the same time, unless it says otherwise
MOST_CONCURRENCY = 10_000
OWN = ("overlap", "group")  # policies that are not for the user to say: agents queue up


class AgentBuilder:
    """An agent, described call by call; each returns the same agent."""

    def __init__(self, name: str, check: Callable[[type[BaseModel]], str]) -> None:
        """`check` refuses what is no type of artifacts."""
        check_id(f"{PREFIX}{name}")
        if not GROUP.fullmatch(PREFIX + name):
            raise InvalidSchedule(
                "name", f"{shown(name)} is too long", hint="93 characters at most"
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
        """Say for people what it does."""
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
        """Have a timer run it: the contract is `ScheduleSpec`. Artifacts do not trigger it then."""
        self._edit()
        if self.spec is not None:
            raise ValueError(f"agent {self.name!r} has a schedule already: one .schedule() only")
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
        """Have it see artifacts of a type: those for which everything holds that is said here.

        With a schedule that is all; without one, each such artifact runs it, except its own. Said
        again, it sees those of either. `tags` is a set of which an artifact has at least one.
        """
        self._edit()
        if model is TimerTick:
            raise ValueError(
                "a TimerTick is no artifact: .schedule() says when, AgentContext tells"
            )
        self._check(model)
        if where is not None and not callable(where):
            raise ValueError(f"where must be a function of the model, not {where!r}")
        if where is not None and _is_async(where):
            hint = "what has to be awaited is for the engine"
            raise ValueError(f"where must be a plain function, not {where!r} ({hint})")
        self.subscriptions.append(
            Subscription(
                model, where, read_names("tags", tags), read_names("from_agents", from_agents)
            )
        )
        return self

    def publishes(self, *models: type[BaseModel]) -> Self:
        """Say which types its engines return; anything else fails the run."""
        self._edit()
        for model in models:
            self._check(model)
        self.outputs += [each for each in models if each not in self.outputs]
        return self

    def with_engines(self, *engines: Engine) -> Self:
        """Have these async functions run, in this order; what each returns is published."""
        self._edit()
        for engine in engines:
            if not _is_async(engine):
                hint = "async def engine(ctx): ...; what blocks goes to asyncio.to_thread"
                raise TypeError(f"{engine!r} is no async function ({hint})")
        self.engines += engines
        return self

    def max_concurrency(self, places: int) -> Self:
        """Say how many runs of it there may be at the same time; further ones wait."""
        self._edit()
        if type(places) is not int or not 1 <= places <= MOST_CONCURRENCY:
            raise ValueError(f"max_concurrency must be 1 to {MOST_CONCURRENCY}, not {places!r}")
        self.places = places
        return self

    def tags(self, *tags: str) -> Self:
        """Have what it publishes carry these tags."""
        self._edit()
        self.own_tags |= read_names("tags", tags)
        return self

    def policy(self, **policy: object) -> Self:
        """Say how its runs are treated, such as `retry=["30s"], timeout="5m", catchup="none"`."""
        self._edit()
        for name in OWN:
            if name in policy:
                hint = "max_concurrency() says how many run at the same time; others wait"
                raise InvalidSchedule(name, "agents have their own", hint=hint)
        read_policy(self.own_policy | policy)
        self.own_policy |= policy
        return self

    def policy_of(self) -> Policy:
        """Return how its runs are treated: none is skipped, and no more run than it has places.

        What an artifact is for is done again if the process ended meanwhile, as nobody else will; a
        timer fires again anyhow, and is lost rather than run twice.
        """
        on_lost = "fail" if self.spec is not None else "retry"
        own = {"overlap": "allow", "group": self.schedule_id, "on_lost": on_lost}
        return read_policy({**own, **self.own_policy})

    def check(self) -> None:
        """Refuse an agent that could not do what it is for."""
        if self.spec is not None and not self.outputs:
            raise ValueError(f"Scheduled agent {self.name!r} must declare .publishes()")
        if not self.engines:
            hint = ".with_engines(an async function)"
            raise ValueError(f"agent {self.name!r} has no engine, so it can do nothing ({hint})")
        if self.spec is None and not self.subscriptions:
            hint = ".schedule(...) or .consumes(...)"
            raise ValueError(f"nothing ever triggers agent {self.name!r} ({hint})")

    def _edit(self) -> None:
        if self.is_frozen:
            problem = f"agent {self.name!r} is at work already"
            raise RuntimeError(f"{problem}: describe it before the orchestrator starts")


def _is_async(function: object) -> bool:
    called = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(called)

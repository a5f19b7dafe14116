"""What an engine is given: the trigger of its run, and the blackboard as its agent may see it.

A timer gives no input: its `TimerTick` is turned into a small note in `state`, and the properties
read that. So engines never see the tick itself.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from onbeat.systems.agents.blackboard import Artifact, Blackboard, Model, type_name
from onbeat.systems.agents.specs import TimerTick

TIMER = "__timer__"
Look = Callable[[type[BaseModel], Collection[str]], list[BaseModel]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which artifacts an agent consumes: of a type, and those for which everything holds.

    `tags` are a set of which an artifact has at least one; `from_agents` who may have published it.
    """

    model: type[BaseModel]
    where: Callable[..., object] | None = None
    tags: frozenset[str] = frozenset()
    from_agents: frozenset[str] = frozenset()

    def accepts(self, artifact: Artifact[BaseModel]) -> bool:
        """Return whether an artifact is meant."""
        return artifact.type == type_name(self.model) and bool(self.of([artifact]))

    def of(self, artifacts: Sequence[Artifact[BaseModel]]) -> Sequence[Artifact[BaseModel]]:
        """Return those that are meant, of artifacts that are of the type."""
        found, where = artifacts, self.where  # one filter after the other: there may be many
        if self.tags:
            found = [each for each in found if not self.tags.isdisjoint(each.tags)]
        if self.from_agents:
            found = [each for each in found if each.produced_by in self.from_agents]
        return found if where is None else [each for each in found if where(each.payload)]


def read_names(field: str, given: Iterable[str]) -> frozenset[str]:
    """Return names that were given as one text or as several; refuse what is none."""
    listed: list[object] = [given] if isinstance(given, str) else list(given)
    for each in listed:
        if not isinstance(each, str) or not each:
            raise ValueError(f"{field} must be names, not {each!r}")
    return frozenset(map(str, listed))


def _sees_nothing(model: type[BaseModel], _but: Collection[str]) -> list[BaseModel]:
    raise ValueError(f"this context has no blackboard to look for {type_name(model)} on")


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What set off a run, and what its agent can read.

    `artifacts` are the ones that triggered it: none for a timer.
    """

    agent_name: str = ""
    artifacts: list[Artifact[BaseModel]] = field(default_factory=list)
    state: dict[str, object] = field(default_factory=dict)
    correlation_id: str = ""
    attempt: int = 1
    look: Look = field(default=_sees_nothing, repr=False)

    @property
    def trigger_type(self) -> Literal["timer", "artifact"]:
        """What set it off."""
        return "artifact" if self._timer is None else "timer"

    @property
    def timer_iteration(self) -> int | None:
        """The how-manyeth fire of its timer this is, from 0 on; None if it was no timer."""
        timer = self._timer
        return None if timer is None else int(str(timer["iter"]))

    @property
    def fire_time(self) -> datetime | None:
        """The instant that the timer was planned for, in UTC; None if it was no timer."""
        timer = self._timer
        found = None if timer is None else timer["fire"]
        return found if isinstance(found, datetime) else None

    def get_artifacts(self, model: type[Model]) -> list[Model]:
        """Return what is on the blackboard of a type, as the agent's `.consumes()` filters it.

        The oldest comes first; what triggered the run is not among them. The models are shared with
        other readers: copy one before you change it. A type that is not consumed is refused.
        """
        return self.look(model, {each.id for each in self.artifacts})  # type: ignore[return-value]

    @property
    def _timer(self) -> Mapping[str, object] | None:
        """The note of the builder, or that of a tick among the inputs of a context made by hand."""
        noted = self.state.get(TIMER)
        return noted if isinstance(noted, Mapping) else note_of(self.artifacts)


class ContextBuilder:
    """Makes the contexts of runs."""

    def __init__(self, blackboard: Blackboard) -> None:
        self._blackboard = blackboard

    def build(
        self,
        agent_name: str,
        subscriptions: Sequence[Subscription],
        inputs: Sequence[Artifact[BaseModel]],
        *,
        correlation_id: str,
        attempt: int = 1,
    ) -> AgentContext:
        """Return the context of a run that these inputs, or a timer's tick among them, set off."""

        def look(model: type[BaseModel], but: Collection[str]) -> list[BaseModel]:
            own = [each for each in subscriptions if each.model is model]
            if not own:
                name = type_name(model)
                known = ", ".join(sorted({type_name(each.model) for each in subscriptions}))
                hint = f"it consumes {known or 'nothing'}: .consumes({name}) adds it"
                raise ValueError(f"agent {agent_name!r} does not consume {name} ({hint})")
            return self._seen(type_name(model), own, but)

        noted = note_of(inputs)
        shown = [each for each in inputs if not isinstance(each.payload, TimerTick)]
        state: dict[str, object] = {} if noted is None else {TIMER: noted}
        return AgentContext(agent_name, shown, state, correlation_id, attempt, look)

    def _seen(self, name: str, own: list[Subscription], but: Collection[str]) -> list[BaseModel]:
        if len(own) == 1 and not (own[0].tags or own[0].from_agents or but):  # as timers mostly do
            models, where = self._blackboard.models_of(name), own[0].where
            return list(models if where is None else filter(where, models))
        everything = self._blackboard.of_type(name)
        meant = {each.id for one in own for each in one.of(everything)} - {*but}
        return [each.payload for each in everything if each.id in meant]


def note_of(inputs: Sequence[Artifact[BaseModel]]) -> dict[str, object] | None:
    """Return what is noted of the timer whose tick is among the inputs, if one is."""
    for each in inputs:
        tick = each.payload
        if isinstance(tick, TimerTick):
            return {"name": tick.timer_name, "iter": tick.iteration, "fire": tick.fire_time}
    return None

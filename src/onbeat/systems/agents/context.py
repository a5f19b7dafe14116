"""The context of an engine: the trigger of its run, and a view of the blackboard for its agent.

A timer has no input artifact: its `TimerTick` becomes a note in `state`, which the properties read.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from onbeat.systems.agents.blackboard import Artifact, Blackboard, Model, type_name
from onbeat.systems.agents.specs import TimerTick

TIMER = "__timer__"
ReadModels = Callable[[type[BaseModel], Collection[str]], list[BaseModel]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """A filter for artifacts that an agent consumes; all conditions must match.

    An artifact must have at least one of `tags`, and be published by one of `from_agents`.
    """

    model: type[BaseModel]
    where: Callable[..., object] | None = None
    tags: frozenset[str] = frozenset()
    from_agents: frozenset[str] = frozenset()

    def accepts(self, artifact: Artifact[BaseModel]) -> bool:
        """Return whether an artifact matches."""
        return artifact.type == type_name(self.model) and bool(self.of([artifact]))

    def of(self, artifacts: Sequence[Artifact[BaseModel]]) -> Sequence[Artifact[BaseModel]]:
        """Return the matching ones among artifacts of the type."""
        found, where = artifacts, self.where  # filter step by step: the list may be long
        if self.tags:
            found = [each for each in found if not self.tags.isdisjoint(each.tags)]
        if self.from_agents:
            found = [each for each in found if each.produced_by in self.from_agents]
        return found if where is None else [each for each in found if where(each.payload)]


def read_names(field: str, names: Iterable[str]) -> frozenset[str]:
    """Return names that are given as one string or as several; refuse invalid ones."""
    listed: list[object] = [names] if isinstance(names, str) else list(names)
    for each in listed:
        if not isinstance(each, str) or not each:
            raise ValueError(f"{field} must be names, not {each!r}")
    return frozenset(map(str, listed))


def _no_blackboard(model: type[BaseModel], _but: Collection[str]) -> list[BaseModel]:
    raise ValueError(f"this context has no blackboard, so it cannot read {type_name(model)}")


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The trigger of a run, and access to artifacts.

    `artifacts` are those that triggered the run; a timer has none.
    """

    agent_name: str = ""
    artifacts: list[Artifact[BaseModel]] = field(default_factory=list)
    state: dict[str, object] = field(default_factory=dict)
    correlation_id: str = ""
    attempt: int = 1
    look: ReadModels = field(default=_no_blackboard, repr=False)

    @property
    def trigger_type(self) -> Literal["timer", "artifact"]:
        """The kind of the trigger."""
        return "artifact" if self._timer is None else "timer"

    @property
    def timer_iteration(self) -> int | None:
        """The sequence number of the timer's fire, from 0; None without a timer."""
        timer = self._timer
        return None if timer is None else int(str(timer["iter"]))

    @property
    def fire_time(self) -> datetime | None:
        """The planned instant of the timer's fire, in UTC; None without a timer."""
        timer = self._timer
        found = None if timer is None else timer["fire"]
        return found if isinstance(found, datetime) else None

    def get_artifacts(self, model: type[Model]) -> list[Model]:
        """Return the artifacts of a type on the blackboard, filtered by the agent's `.consumes()`.

        The oldest comes first; artifacts that triggered the run are excluded. The models are shared
        with other readers: copy before you change one. A type that is not consumed is refused.
        """
        return self.look(model, {each.id for each in self.artifacts})  # type: ignore[return-value]

    @property
    def _timer(self) -> Mapping[str, object] | None:
        """The note in `state`, or that of a tick in `artifacts` of a manually built context."""
        note = self.state.get(TIMER)
        return note if isinstance(note, Mapping) else note_of(self.artifacts)


class ContextBuilder:
    """Builds the contexts of runs."""

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
        """Return the context of a run with these inputs, which may include a timer's tick."""

        def read_models(model: type[BaseModel], but: Collection[str]) -> list[BaseModel]:
            own = [each for each in subscriptions if each.model is model]
            if not own:
                name = type_name(model)
                consumed = ", ".join(sorted({type_name(each.model) for each in subscriptions}))
                hint = f"it consumes {consumed or 'nothing'}: .consumes({name}) adds it"
                raise ValueError(f"agent {agent_name!r} does not consume {name} ({hint})")
            return self._matching(type_name(model), own, but)

        note = note_of(inputs)
        artifacts = [each for each in inputs if not isinstance(each.payload, TimerTick)]
        state: dict[str, object] = {} if note is None else {TIMER: note}
        return AgentContext(agent_name, artifacts, state, correlation_id, attempt, read_models)

    def _matching(
        self, name: str, own: list[Subscription], but: Collection[str]
    ) -> list[BaseModel]:
        if len(own) == 1 and not (
            own[0].tags or own[0].from_agents or but
        ):  # the usual case of timers
            models, where = self._blackboard.models_of(name), own[0].where
            return list(models if where is None else filter(where, models))
        artifacts = self._blackboard.of_type(name)
        matching = {each.id for one in own for each in one.of(artifacts)} - {*but}
        return [each.payload for each in artifacts if each.id in matching]


def note_of(inputs: Sequence[Artifact[BaseModel]]) -> dict[str, object] | None:
    """Return the note of the timer's tick among the inputs, if there is one."""
    for each in inputs:
        tick = each.payload
        if isinstance(tick, TimerTick):
            return {"name": tick.timer_name, "iter": tick.iteration, "fire": tick.fire_time}
    return None

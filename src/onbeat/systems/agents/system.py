"""Agents as schedules: what each is started by, what a run of it does, and what follows from that.

Every agent is a schedule `agents/<name>` whose target is a function of this process. A timer is its
trigger; an agent without one is started by hand, by the artifact it consumes: `request_id` is the
artifact's, so that each starts it once, whoever tries again. An artifact is kept with the agents
that are to be started for it, and marked when they are: after a crash the start does the rest.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from onbeat.core.durations import parse_duration
from onbeat.core.instants import parse_instant
from onbeat.core.limits import Limited
from onbeat.core.schedules import Schedule, Target, check_schedule, from_definition
from onbeat.core.triggers import Every, Manual
from onbeat.errors import InvalidSchedule, NoSuchSchedule, shown
from onbeat.ports import Attempt, Beginning
from onbeat.records import ScheduleRow, Which, WhichRuns
from onbeat.service import Service
from onbeat.systems.agents.blackboard import EXTERNAL, Artifact, Blackboard, type_name
from onbeat.systems.agents.builder import PREFIX, AgentBuilder
from onbeat.systems.agents.context import AgentContext, ContextBuilder
from onbeat.systems.agents.specs import ScheduleSpec, TimerTick

log = logging.getLogger("onbeat.systems")

SOURCE = "agents"
STOPPED = "run_until_idle is over: the next start goes on"  # the note of a pause that we undo
AT_ONCE = 64  # groups, schedules or runs, of what is done to many
MOST_UNFINISHED = 10_000  # runs that are looked at, for one of an agent
Run = Callable[..., Awaitable[dict[str, object]]]


class AgentSystem:
    """The agents of a process, and the blackboard they share."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentBuilder] = {}
        self.blackboard = Blackboard()
        self._builder = ContextBuilder(self.blackboard)
        self._service: Service | None = None

    def add(self, name: str) -> AgentBuilder:
        """Return a new agent."""
        if name in self.agents:
            raise ValueError(f"two agents are called {name!r}")
        if name in (EXTERNAL, "timer"):
            raise ValueError(f"no agent is called {name!r}: that is who else publishes")
        found = self.agents[name] = AgentBuilder(name, self.blackboard.know)
        return found

    def check(self) -> None:
        """Refuse agents that could not do what they are for, before anything starts."""
        for agent in self.agents.values():
            agent.check()
        for agent in self.agents.values():
            agent.is_frozen = True

    def function_of(self, agent: AgentBuilder) -> Run:
        """Return what the runs of an agent call."""

        async def run_agent(run: Attempt, artifacts: Sequence[str] = ()) -> dict[str, object]:
            return await self._run(agent, run, artifacts)

        return run_agent

    # -- as schedules

    async def begin(self, service: Service) -> None:
        """Define the agents, each as it was if it says the same, and do what was left undone."""
        self._service = service
        await self.blackboard.open(service)
        await self._set_places()
        rows = await self._rows(self.agents.values())
        now = service.clock.now()
        made = [
            self._schedule(each, rows.get(each.schedule_id), now) for each in self.agents.values()
        ]
        fresh = [each for each in self.agents.values() if each.schedule_id not in rows]
        # An interval fires at once: also if that was a moment ago by the time it is written.
        begins = {
            each.schedule_id: Beginning(ticked_at=now)
            for each in fresh
            if each.spec is not None and each.spec.interval is not None
        }
        if made:
            await service.define(made, source=SOURCE, beginnings=begins)
        await self.go_on()
        for artifact, names in self.blackboard.pending():
            await self._deliver(artifact, names)

    async def go_on(self) -> None:
        """Resume the timers that `stop_timers` paused."""
        rows = await self._rows(self._timed())
        stopped = [each for each, row in rows.items() if row.paused and row.pause_note == STOPPED]
        await _each(stopped, self._asked.resume)

    async def stop_timers(self) -> None:
        """Have no timer fire until the next start. What runs goes on."""
        rows = await self._rows(self._timed())
        going = [each for each, row in rows.items() if not row.paused]

        async def stop(schedule_id: str) -> object:
            return await self._asked.pause(schedule_id, note=STOPPED)

        await _each(going, stop)

    async def is_idle(self) -> bool:
        """Return whether no timer will fire and no run of an agent waits or is under way."""
        # What happens meanwhile writes an event: then nothing is known, and who asks asks again.
        before = await self._asked.newest_event()
        rows = await self._rows(self._timed())
        if any(row.next_run_at is not None and not row.paused for row in rows.values()):
            return False
        for status in ("ENQUEUED", "STARTED"):
            runs = await self._asked.runs(WhichRuns(status=status), limit=MOST_UNFINISHED)
            if any(run.schedule_id.startswith(PREFIX) for run in runs):
                return False
        return await self._asked.newest_event() == before

    def _timed(self) -> list[AgentBuilder]:
        return [each for each in self.agents.values() if each.spec is not None]

    async def _rows(self, agents: Iterable[AgentBuilder]) -> dict[str, ScheduleRow]:
        ids = [each.schedule_id for each in agents]
        found = await self._asked.schedules(Which(ids=ids)) if ids else []
        return {row.schedule_id: row for row in found}

    async def _set_places(self) -> None:
        """Have each agent run as often at the same time as it says."""
        there = {row.name: row.places for row in await self._asked.groups()}
        wanted = {each.schedule_id: each.places for each in self.agents.values()}
        new = [name for name, places in wanted.items() if there.get(name) != places]

        async def set_places(name: str) -> object:
            return await self._asked.set_group(name, places=wanted[name])

        await _each(new, set_places)

    def _schedule(self, agent: AgentBuilder, row: ScheduleRow | None, now: int) -> Schedule:
        target = Target("python", {"python": agent.schedule_id})
        trigger = (
            Manual()
            if agent.spec is None
            else agent.spec.trigger(anchor=_anchor(agent.spec, row, now))
        )
        found = Schedule(agent.schedule_id, trigger, target, agent.policy_of(), agent.text)
        return check_schedule(found)

    # -- runs

    async def _run(
        self, agent: AgentBuilder, run: Attempt, artifact_ids: Sequence[str]
    ) -> dict[str, object]:
        """Have the engines of an agent do their work, and publish what they return, once."""
        await self.blackboard.refresh()
        inputs = [self.blackboard.artifact(each) for each in artifact_ids]
        correlation_id = inputs[0].correlation_id if inputs else run.key[:32]
        if agent.spec is not None and not inputs:
            inputs = [_tick(agent, agent.spec, run, correlation_id)]
        ctx = self._builder.build(
            agent.name,
            agent.subscriptions,
            inputs,
            correlation_id=correlation_id,
            attempt=run.attempt,
        )
        found = await _outputs(agent, ctx)
        made = [
            await self._publish(
                each,
                # The same for every attempt at this run: what was published once stays as it is.
                artifact_id=f"{run.key[:40]}-{n}",
                produced_by=agent.name,
                correlation_id=correlation_id,
                tags=agent.own_tags,
            )
            for n, each in enumerate(found)
        ]
        return {"artifacts": [each.id for each in made]}

    async def publish(
        self, payload: object, *, tags: Iterable[str], correlation_id: str | None
    ) -> Artifact[BaseModel]:
        """Publish what comes from outside."""
        if not isinstance(payload, BaseModel) or isinstance(payload, TimerTick):
            raise TypeError(f"{shown(payload)} is no artifact: give a model of your own")
        artifact_id = self._asked.new_id()
        return await self._publish(
            payload,
            artifact_id=artifact_id,
            produced_by=EXTERNAL,
            correlation_id=correlation_id or artifact_id,
            tags=frozenset(tags),
        )

    async def _publish(
        self,
        payload: BaseModel,
        *,
        artifact_id: str,
        produced_by: str,
        correlation_id: str,
        tags: frozenset[str],
    ) -> Artifact[BaseModel]:
        at = datetime.fromtimestamp(self._asked.clock.now() / 1000, UTC)
        name = self.blackboard.know(type(payload))
        draft = Artifact(artifact_id, name, payload, produced_by, correlation_id, tags, at)
        kept = await self.blackboard.keep(
            payload,
            artifact_id=artifact_id,
            produced_by=produced_by,
            correlation_id=correlation_id,
            tags=tags,
            pending=[each.name for each in self.agents.values() if _is_triggered(each, draft)],
        )
        await self._deliver(kept, self.blackboard.pending_for(artifact_id))
        return kept

    async def _deliver(self, artifact: Artifact[BaseModel], names: Sequence[str]) -> None:
        """Start the agents that an artifact is for, each once, and mark that."""

        async def start(name: str) -> None:
            try:
                await self._asked.start(
                    PREFIX + name, request_id=artifact.id, inputs={"artifacts": [artifact.id]}
                )
            except NoSuchSchedule:
                log.warning("artifact %s is for agent %s, which is gone", artifact.id, name)

        await _each(names, start)
        await self.blackboard.delivered(artifact.id)

    @property
    def _asked(self) -> Service:
        assert self._service is not None, "it has begun"
        return self._service


async def _each(names: Sequence[str], do: Callable[[str], Awaitable[object]]) -> None:
    """Do something to many, some at a time: they share a commit where the store can."""
    for begin in range(0, len(names), AT_ONCE):
        await asyncio.gather(*map(do, names[begin : begin + AT_ONCE]))


def _anchor(spec: ScheduleSpec, row: ScheduleRow | None, now: int) -> int:
    """Return where the grid of a timer begins: where it did, while its interval is the same."""
    if row is None:
        return now // 1000 + 1
    if spec.interval is None:
        return row.created_at // 1000 + 1
    try:
        found = from_definition(row.schedule_id, row.definition).trigger
    except InvalidSchedule:  # of another program
        return now // 1000 + 1
    inner = found.trigger if isinstance(found, Limited) else found
    if not isinstance(inner, Every) or inner.every != parse_duration(spec.interval):
        return now // 1000 + 1
    assert inner.start_at is not None, "intervals are made with one"
    return parse_instant(inner.start_at) - (spec.after or timedelta(0)) // timedelta(seconds=1)


def _tick(
    agent: AgentBuilder, spec: ScheduleSpec, run: Attempt, correlation_id: str
) -> Artifact[BaseModel]:
    """Return the tick of a timer, as an input: it is on no blackboard."""
    fire = datetime.fromtimestamp(run.run_at, UTC)
    tick = TimerTick(
        timer_name=agent.name,
        fire_time=fire,
        iteration=run.iteration - 1,
        schedule_spec=spec.told(),
    )
    tags = frozenset({"system", "timer"})
    return Artifact(f"timer:{run.key}", "TimerTick", tick, "timer", correlation_id, tags, fire)


async def _outputs(agent: AgentBuilder, ctx: AgentContext) -> list[BaseModel]:
    """Return what the engines of an agent give, in their order."""
    found: list[object] = []
    for engine in agent.engines:
        given: object = await engine(ctx)
        several = [] if given is None else [given] if isinstance(given, BaseModel) else given
        if not isinstance(several, list | tuple):
            raise TypeError(
                f"agent {agent.name!r} returned {shown(given)}: a model, a list or None"
            )
        found += several
    return [_checked(agent, each) for each in found]


def _checked(agent: AgentBuilder, output: object) -> BaseModel:
    """Return what an engine gave, or refuse what its agent never publishes."""
    if isinstance(output, BaseModel) and type(output) in agent.outputs:
        return output
    known = ", ".join(map(type_name, agent.outputs)) or "nothing"
    is_model = isinstance(output, BaseModel)
    told = type_name(type(output)) if isinstance(output, BaseModel) else shown(output)
    hint = f".publishes({told}) adds it" if is_model else "a model"
    raise TypeError(f"agent {agent.name!r} returned {told}, and publishes {known} ({hint})")


def _is_triggered(agent: AgentBuilder, artifact: Artifact[BaseModel]) -> bool:
    """Return whether an artifact runs an agent: no timer does, and it is not its own."""
    if agent.spec is not None or agent.name == artifact.produced_by:
        return False
    try:
        return any(each.accepts(artifact) for each in agent.subscriptions)
    except Exception as broken:
        problem = f"`where` of agent {agent.name!r} failed for a {artifact.type}"
        raise ValueError(f"{problem}: {type(broken).__name__}: {broken}") from broken

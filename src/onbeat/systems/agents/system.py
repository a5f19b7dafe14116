"""Agents as schedules: their definitions, their runs, and the delivery of artifacts.

Every agent is a schedule `agents/<name>` whose target is a function of this process. A timer is its
trigger; an agent without one is started by the artifacts it consumes, each with the artifact's id
as `request_id`, so that it starts the agent once. An artifact is stored with the agents that are to
be started for it, and marked when they are; deliveries that failed are retried every second, and
after a crash by the next start.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace
from pydantic import BaseModel

from onbeat.core.schedule import Schedule, check_schedule, from_definition
from onbeat.core.target import Target
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.bounds import Bounded
from onbeat.core.triggers.kinds import Every, Manual
from onbeat.errors import InvalidSchedule, NoSuchSchedule, OnbeatError, quote_value
from onbeat.ports.rows import RunFilter, ScheduleFilter, ScheduleRow
from onbeat.ports.store import Attempt, InitialPosition
from onbeat.service.service import Service
from onbeat.systems.agents.blackboard import EXTERNAL, Artifact, Blackboard, type_name
from onbeat.systems.agents.builder import PREFIX, AgentBuilder
from onbeat.systems.agents.context import AgentContext, ContextBuilder, read_names
from onbeat.systems.agents.offers import TYPES, Offer, forget_taken, open_offers, take
from onbeat.systems.agents.payloads import decode, differing, encode, error_text
from onbeat.systems.agents.specs import ScheduleSpec, TimerTick
from onbeat.systems.base import PeriodicTask

log = logging.getLogger("onbeat.systems")

SOURCE = "agents"
STOPPED = "paused by run_until_idle until the next start"  # the note of a pause
AT_ONCE = 64  # groups, schedules or runs that are changed concurrently
MOST_UNFINISHED = 10_000  # runs whose inputs are read
DELIVER_EVERY = 1.0  # seconds
FORGET_EVERY = 3_600_000  # milliseconds between two deletions of old results of offers
LONGEST_END = 5.0  # seconds that publishing may take when the process stops
LONGEST_REQUEST = 200  # characters
Run = Callable[..., Awaitable[dict[str, object]]]


class AgentSystem:
    """The agents of a process, and their blackboard."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentBuilder] = {}
        self.blackboard = Blackboard()
        self._builder = ContextBuilder(self.blackboard)
        self._service: Service | None = None
        self._publishing: set[asyncio.Task[list[Artifact[BaseModel]]]] = set()
        self._deliverer: PeriodicTask | None = None
        self._forget_at = 0  # milliseconds

    def add(self, name: str) -> AgentBuilder:
        """Add an agent."""
        if name in self.agents:
            raise ValueError(f"two agents are called {name!r}")
        if name in (EXTERNAL, "timer"):
            raise ValueError(f"the name {name!r} is reserved for another publisher")
        found = self.agents[name] = AgentBuilder(name, self.blackboard.register)
        return found

    def check(self) -> None:
        """Check all agents before anything starts."""
        for agent in self.agents.values():
            agent.check()
        for agent in self.agents.values():
            agent.is_frozen = True

    def function_of(self, agent: AgentBuilder) -> Run:
        """Return the function that the runs of an agent call."""

        async def run_agent(run: Attempt, artifacts: Sequence[str] = ()) -> dict[str, object]:
            return await self._run(agent, run, artifacts)

        return run_agent

    # -- as schedules

    async def start(self, service: Service) -> None:
        """Define the agents, unchanged ones as they were, and continue pending deliveries."""
        self._service = service
        await self.blackboard.open(service)
        await self._set_places()
        rows = await self._rows(self.agents.values())
        now = service.clock.now()
        schedules = [
            self._schedule(each, rows.get(each.schedule_id), now) for each in self.agents.values()
        ]
        new = [each for each in self.agents.values() if each.schedule_id not in rows]
        # The first tick of an interval is due now, even if it is written a moment later.
        positions = {
            each.schedule_id: InitialPosition(ticked_at=now)
            for each in new
            if each.spec is not None and each.spec.interval is not None
        }
        if schedules:
            await service.define(schedules, source=SOURCE, initial_positions=positions)
        await self.resume_timers(service)
        await self._warn_of_unknown_agents()
        await self._register_types()
        await self._deliver_pending()
        if self._deliverer is None:
            step = self._step
            self._deliverer = PeriodicTask("artifacts of agents", step, every=DELIVER_EVERY)
            self._deliverer.start()

    async def stop(self) -> None:
        """Finish publishing while the store is open."""
        if self._deliverer is not None:
            await self._deliverer.stop()
            self._deliverer = None
        if self._publishing:
            await asyncio.wait(self._publishing, timeout=LONGEST_END)

    async def resume_timers(self, service: Service) -> bool:
        """Resume the timers that `stop_timers` paused; return whether there were any.

        Ticks that became due meanwhile are caught up, unless an agent's policy excludes that.
        """
        rows = await self._rows(self._timed(), service)
        stopped = [each for each, row in rows.items() if row.paused and row.pause_note == STOPPED]
        by_id = {each.schedule_id: each for each in self.agents.values()}

        async def resume(schedule_id: str) -> object:
            catchup = by_id[schedule_id].policy_of().catchup != "none"
            return await service.resume(schedule_id, catchup=catchup)

        await _each(stopped, resume)
        return bool(stopped)

    async def stop_timers(self) -> None:
        """Pause all timers until the next start. Runs in progress continue."""
        rows = await self._rows(self._timed())
        active = [each for each, row in rows.items() if not row.paused]

        async def stop(schedule_id: str) -> object:
            return await self._started_service.pause(schedule_id, note=STOPPED)

        await _each(active, stop)

    async def is_idle(self) -> bool:
        """Return whether no timer will fire, and no run of an agent waits or is in progress."""
        # A concurrent change writes an event: then the answer is no, and the caller asks again.
        before = await self._started_service.newest_event()
        rows = await self._rows(self._timed())
        if any(row.next_run_at is not None and not row.paused for row in rows.values()):
            return False
        own = {each.schedule_id for each in self.agents.values()}
        groups = [row for row in await self._started_service.groups() if row.name in own]
        if self._own_pending() or any(row.used or row.waiting for row in groups):
            return False
        return await self._started_service.newest_event() == before

    def _timed(self) -> list[AgentBuilder]:
        return [each for each in self.agents.values() if each.spec is not None]

    async def _rows(
        self, agents: Iterable[AgentBuilder], service: Service | None = None
    ) -> dict[str, ScheduleRow]:
        ids = [each.schedule_id for each in agents]
        found = (
            await (service or self._started_service).schedules(ScheduleFilter(ids=ids))
            if ids
            else []
        )
        return {row.schedule_id: row for row in found}

    async def _warn_of_unknown_agents(self) -> None:
        """Log timers whose agents this program does not have: their runs wait."""
        own = {each.schedule_id for each in self.agents.values()}
        for row in await self._started_service.schedules(ScheduleFilter(source=SOURCE)):
            is_active = row.next_run_at is not None and not row.paused
            if is_active and row.schedule_id not in own:
                message = (
                    "schedule %s: this program does not have the agent, so its runs wait "
                    "(remove: onbeat delete %s)"
                )
                log.warning(message, row.schedule_id, row.schedule_id)

    async def _set_places(self) -> None:
        """Set the concurrency limit of each agent."""
        existing = {row.name: row.places for row in await self._started_service.groups()}
        wanted = {each.schedule_id: each.places for each in self.agents.values()}
        changed = [name for name, places in wanted.items() if existing.get(name) != places]

        async def set_places(name: str) -> object:
            return await self._started_service.set_group(name, places=wanted[name])

        await _each(changed, set_places)

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
        """Run the engines of an agent, and publish what they return, once."""
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
        drafts = [
            self._draft(
                each,
                # The same id at every attempt, so that artifacts are published once.
                artifact_id=f"{run.key[:40]}-{n}",
                produced_by=agent.name,
                correlation_id=correlation_id,
                tags=agent.own_tags,
            )
            for n, each in enumerate(await _outputs(agent, ctx))
        ]
        return {"artifacts": [each.id for each in await self._uncancelled(self._publish(drafts))]}

    async def publish(
        self,
        payload: object,
        *,
        tags: Iterable[str],
        correlation_id: str | None,
        request_id: object = None,
    ) -> Artifact[BaseModel]:
        """Publish an artifact from outside. The same `request_id` gives the same artifact."""
        if not isinstance(payload, BaseModel) or isinstance(payload, TimerTick):
            raise TypeError(
                f"{quote_value(payload)} is not an artifact: use a pydantic model of your own"
            )
        artifact_id = self._started_service.new_id()
        if request_id is not None:
            if not isinstance(request_id, str) or not 0 < len(request_id) <= LONGEST_REQUEST:
                hint = f"1 to {LONGEST_REQUEST} characters"
                raise ValueError(
                    f"request_id must be a string, not {quote_value(request_id)} ({hint})"
                )
            artifact_id = f"{EXTERNAL}:{request_id}"
            await self.blackboard.refresh()  # it may have been published by another process
        draft = self._draft(
            payload,
            artifact_id=artifact_id,
            produced_by=EXTERNAL,
            correlation_id=correlation_id or artifact_id,
            tags=read_names("tags", tags),
        )
        (artifact,) = await self._uncancelled(self._publish([draft]))
        if request_id is not None and (
            type(artifact.payload) is not type(payload) or differing(artifact.payload, payload)
        ):
            problem = f"artifact {artifact_id} was published already with other contents"
            raise ValueError(f"request_id: {problem} (use another request id)")
        return artifact

    def _draft(
        self,
        payload: BaseModel,
        *,
        artifact_id: str,
        produced_by: str,
        correlation_id: str,
        tags: frozenset[str],
    ) -> Artifact[BaseModel]:
        at = datetime.fromtimestamp(self._started_service.clock.now() / 1000, UTC)
        name = self.blackboard.register(type(payload))
        return Artifact(artifact_id, name, payload, produced_by, correlation_id, tags, at)

    async def _uncancelled(
        self, publishing: Coroutine[object, object, list[Artifact[BaseModel]]]
    ) -> list[Artifact[BaseModel]]:
        """Finish publishing even if the caller is cancelled, as by the timeout of a run."""
        task = asyncio.create_task(publishing)
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)
        return await asyncio.shield(task)

    async def _publish(self, drafts: Sequence[Artifact[BaseModel]]) -> list[Artifact[BaseModel]]:
        """Store artifacts one after the other, and start the agents that each triggers."""
        for each in drafts[1:]:  # refuse invalid ones before the first is stored
            encode(each.payload, name=each.type)
        published: list[Artifact[BaseModel]] = []
        for draft in drafts:
            stored = await self.blackboard.keep(
                draft.payload,
                artifact_id=draft.id,
                produced_by=draft.produced_by,
                correlation_id=draft.correlation_id,
                tags=draft.tags,
                pending=[each.name for each in self.agents.values() if _is_triggered(each, draft)],
            )
            await self._deliver(stored.id, self._own_pending().get(stored.id, ()))
            published.append(stored)
        return published

    async def discard(self, model: type[BaseModel], *, before: datetime) -> int:
        """Delete artifacts of a type up to an instant, or up to the first that a run needs."""
        await self.blackboard.refresh()
        needed = {*self.blackboard.pending()}  # first: a pending one may become a run
        for status in ("ENQUEUED", "STARTED"):
            which = RunFilter(status=status, source=SOURCE)
            for run in await self._started_service.runs(which, limit=MOST_UNFINISHED):
                ids = (run.inputs or {}).get("artifacts")
                needed.update(map(str, ids) if isinstance(ids, list) else ())
        return await self.blackboard.discard(model, before=before, but=needed)

    # -- deliveries

    def _own_pending(self) -> Mapping[str, Sequence[str]]:
        """Return artifacts, and the agents of this program that are to be started for each."""
        found = {
            artifact_id: [name for name in names if name in self.agents]
            for artifact_id, names in self.blackboard.pending().items()
        }
        return {artifact_id: names for artifact_id, names in found.items() if names}

    async def _deliver_pending(self) -> None:
        """Continue deliveries that failed, or that another process did not finish."""
        for artifact_id, names in self._own_pending().items():
            await self._deliver(artifact_id, names)

    async def _step(self) -> None:
        """Continue pending deliveries, and take offers."""
        await self._deliver_pending()
        for artifact_id, offer in (await open_offers(self._started_service)).items():
            if self.blackboard.model_of(offer.type) is not None:
                await take(
                    self._started_service,
                    artifact_id,
                    await self._publish_offer(artifact_id, offer),
                )
        if (now := self._started_service.clock.now()) >= self._forget_at:
            await forget_taken(self._started_service)
            self._forget_at = now + FORGET_EVERY

    async def _publish_offer(self, artifact_id: str, offer: Offer) -> Offer:
        """Publish an offered artifact if it is valid; return the offer with its result.

        Any error of the model refuses the offer, so that the next ones are not blocked. An error of
        the store does not: the offer is taken later.
        """
        model = self.blackboard.model_of(offer.type)
        assert model is not None, "the caller has checked it"
        try:
            await self.publish(
                decode(model, offer.payload),
                tags=offer.tags,
                correlation_id=offer.correlation_id,
                request_id=artifact_id.removeprefix(f"{EXTERNAL}:"),
            )
        except (ValueError, InvalidSchedule) as wrong:  # pydantic raises ValueError
            return replace(offer, state="refused", error=error_text(wrong))
        except (OnbeatError, OSError):
            raise  # retried later
        except Exception as wrong:  # raised by the model's own code
            log.exception(
                "artifact %s: validation by its model %s crashed", artifact_id, offer.type
            )
            return replace(offer, state="refused", error=f"its model raised {type(wrong).__name__}")
        return replace(offer, state="published")

    async def _register_types(self) -> None:
        """Register the types that can be offered to this program."""
        consumed = {
            type_name(each.model): sorted(
                agent.name
                for agent in self.agents.values()
                if agent.spec is None and each.model in {s.model for s in agent.subscriptions}
            )
            for agent in self.agents.values()
            for each in agent.subscriptions
        }
        for name, triggers in consumed.items():
            await self._started_service.keep(TYPES, name, {"triggers": triggers})

    async def _deliver(self, artifact_id: str, names: Sequence[str]) -> None:
        """Start the agents that an artifact triggers, each once, and mark the artifact."""

        async def start(name: str) -> None:
            try:
                await self._started_service.start(
                    PREFIX + name,
                    request_id=artifact_id,
                    inputs={"artifacts": [artifact_id]},
                    triggered_by="artifact",
                    note=self.blackboard.type_of(artifact_id),
                )
            except NoSuchSchedule:
                log.warning(
                    "artifact %s: agent %s was not started: it was deleted", artifact_id, name
                )

        await _each(names, start)
        await self.blackboard.mark_delivered(artifact_id, names)

    @property
    def _started_service(self) -> Service:
        assert self._service is not None, "it was started"
        return self._service


async def _each(names: Sequence[str], do: Callable[[str], Awaitable[object]]) -> None:
    """Do something for many names, some concurrently, so that the store may share commits."""
    for first in range(0, len(names), AT_ONCE):
        await asyncio.gather(*map(do, names[first : first + AT_ONCE]))


def _anchor(spec: ScheduleSpec, row: ScheduleRow | None, now: int) -> int:
    """Return where the grid of a timer starts; it stays while the interval is the same."""
    if row is None:
        return now // 1000 + 1
    if spec.interval is None:
        return row.created_at // 1000 + 1
    try:
        found = from_definition(row.schedule_id, row.definition).trigger
    except InvalidSchedule:  # of another program
        return now // 1000 + 1
    inner = found.trigger if isinstance(found, Bounded) else found
    if not isinstance(inner, Every) or inner.every != parse_duration(spec.interval):
        return now // 1000 + 1
    assert inner.start_at is not None, "ScheduleSpec sets it"
    return parse_instant(inner.start_at) - (spec.after or timedelta(0)) // timedelta(seconds=1)


def _tick(
    agent: AgentBuilder, spec: ScheduleSpec, run: Attempt, correlation_id: str
) -> Artifact[BaseModel]:
    """Return the tick of a timer as an input; it is not on the blackboard."""
    fire = datetime.fromtimestamp(run.run_at, UTC)
    tick = TimerTick(
        timer_name=agent.name,
        fire_time=fire,
        iteration=run.iteration - 1,
        schedule_spec=spec.as_fields(),
    )
    tags = frozenset({"system", "timer"})
    return Artifact(f"timer:{run.key}", "TimerTick", tick, "timer", correlation_id, tags, fire)


async def _outputs(agent: AgentBuilder, ctx: AgentContext) -> list[BaseModel]:
    """Return what the engines of an agent return, in order."""
    found: list[object] = []
    for engine in agent.engines:
        returned: object = await engine(ctx)
        one = [returned] if isinstance(returned, BaseModel) else returned
        several = [] if returned is None else one
        if not isinstance(several, list | tuple):
            raise TypeError(
                f"agent {agent.name!r} returned {quote_value(returned)} (a model, a list or None)"
            )
        found += several
    return [_checked(agent, each) for each in found]


def _checked(agent: AgentBuilder, output: object) -> BaseModel:
    """Return an output of an engine, or refuse an undeclared one."""
    known = ", ".join(map(type_name, agent.outputs)) or "nothing"
    if not isinstance(output, BaseModel):
        name, hint = quote_value(output), "a model"
    elif type(output) not in agent.outputs:
        name = type_name(type(output))
        hint = f".publishes({name}) adds it"
    else:
        return output
    raise TypeError(f"agent {agent.name!r} returned {name}, but publishes {known} ({hint})")


def _is_triggered(agent: AgentBuilder, artifact: Artifact[BaseModel]) -> bool:
    """Return whether an artifact triggers an agent: not with a timer, and not its own."""
    if agent.spec is not None or agent.name == artifact.produced_by:
        return False
    try:
        return any(each.accepts(artifact) for each in agent.subscriptions)
    except Exception as broken:
        problem = f"`where` of agent {agent.name!r} failed for a {artifact.type}"
        raise ValueError(f"{problem}: {type(broken).__name__}: {broken}") from broken

"""Agents as schedules: what each is started by, what a run of it does, and what follows from that.

Every agent is a schedule `agents/<name>` whose target is a function of this process. A timer is its
trigger; an agent without one is started by the artifact it consumes: `request_id` is the
artifact's, so that each starts it once, whoever tries again. An artifact is kept with the agents
that are to be started for it, and marked when they are: what is left over after an error is tried
again every second, and after a crash the next start does the rest.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace
from pydantic import BaseModel

from onbeat.core.schedule import Schedule, Target, check_schedule, from_definition
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.bounds import Bounded
from onbeat.core.triggers.kinds import Every, Manual
from onbeat.errors import InvalidSchedule, NoSuchSchedule, OnbeatError, shown
from onbeat.ports.rows import RunFilter, ScheduleFilter, ScheduleRow
from onbeat.ports.store import Attempt, InitialPosition
from onbeat.service.service import Service
from onbeat.systems.agents.blackboard import EXTERNAL, Artifact, Blackboard, type_name
from onbeat.systems.agents.builder import PREFIX, AgentBuilder
from onbeat.systems.agents.context import AgentContext, ContextBuilder, read_names
from onbeat.systems.agents.offers import TYPES, Offer, forget_taken, offered, take
from onbeat.systems.agents.payloads import decoded, differing, encoded
from onbeat.systems.agents.payloads import told as error_of
from onbeat.systems.agents.specs import ScheduleSpec, TimerTick
from onbeat.systems.base import PeriodicTask

log = logging.getLogger("onbeat.systems")

SOURCE = "agents"
STOPPED = "run_until_idle is over: the next start goes on"  # the note of a pause that we undo
AT_ONCE = 64  # groups, schedules or runs, of what is done to many
MOST_UNFINISHED = 10_000  # runs that are looked at, for what they were started by
DELIVER_EVERY = 1.0  # seconds between two tries to start what could not be started
FORGET_EVERY = 3_600_000  # milliseconds between two looks at what was taken long ago
LONGEST_END = 5.0  # seconds that publishing may take when the process ends
LONGEST_REQUEST = 200  # characters
Run = Callable[..., Awaitable[dict[str, object]]]


class AgentSystem:
    """The agents of a process, and the blackboard they share."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentBuilder] = {}
        self.blackboard = Blackboard()
        self._builder = ContextBuilder(self.blackboard)
        self._service: Service | None = None
        self._publishing: set[asyncio.Task[list[Artifact[BaseModel]]]] = set()
        self._deliverer: PeriodicTask | None = None
        self._forgets_at = 0  # milliseconds

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

    async def start(self, service: Service) -> None:
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
            each.schedule_id: InitialPosition(ticked_at=now)
            for each in fresh
            if each.spec is not None and each.spec.interval is not None
        }
        if made:
            await service.define(made, source=SOURCE, beginnings=begins)
        await self.go_on(service)
        await self._tell_of_strangers()
        await self._register_types()
        await self._deliver_pending()
        if self._deliverer is None:
            step = self._look_for_work
            self._deliverer = PeriodicTask("artifacts of agents", step, every=DELIVER_EVERY)
            self._deliverer.start()

    async def stop(self) -> None:
        """Let what is being published come to its end, while the store is open."""
        if self._deliverer is not None:
            await self._deliverer.stop()
            self._deliverer = None
        if self._publishing:
            await asyncio.wait(self._publishing, timeout=LONGEST_END)

    async def go_on(self, service: Service) -> bool:
        """Resume the timers that `stop_timers` paused; return whether there were any.

        What fell due meanwhile is caught up, unless an agent's policy says that it never is.
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
        own = {each.schedule_id for each in self.agents.values()}
        groups = [row for row in await self._asked.groups() if row.name in own]
        if self._own_pending() or any(row.used or row.waiting for row in groups):
            return False
        return await self._asked.newest_event() == before

    def _timed(self) -> list[AgentBuilder]:
        return [each for each in self.agents.values() if each.spec is not None]

    async def _rows(
        self, agents: Iterable[AgentBuilder], service: Service | None = None
    ) -> dict[str, ScheduleRow]:
        ids = [each.schedule_id for each in agents]
        found = await (service or self._asked).schedules(ScheduleFilter(ids=ids)) if ids else []
        return {row.schedule_id: row for row in found}

    async def _tell_of_strangers(self) -> None:
        """Warn of timers whose agents this program does not have: their runs wait for ever."""
        own = {each.schedule_id for each in self.agents.values()}
        for row in await self._asked.schedules(ScheduleFilter(source=SOURCE)):
            going = row.next_run_at is not None and not row.paused
            if going and row.schedule_id not in own:
                told = "%s has a timer, and no agent here: its runs wait (onbeat delete %s ends it)"
                log.warning(told, row.schedule_id, row.schedule_id)

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
        drafts = [
            self._draft(
                each,
                # The same for every attempt at this run: what was published once stays as it is.
                artifact_id=f"{run.key[:40]}-{n}",
                produced_by=agent.name,
                correlation_id=correlation_id,
                tags=agent.own_tags,
            )
            for n, each in enumerate(await _outputs(agent, ctx))
        ]
        return {"artifacts": [each.id for each in await self._to_its_end(self._publish(drafts))]}

    async def publish(
        self,
        payload: object,
        *,
        tags: Iterable[str],
        correlation_id: str | None,
        request_id: object = None,
    ) -> Artifact[BaseModel]:
        """Publish what comes from outside. The same `request_id` is the same artifact."""
        if not isinstance(payload, BaseModel) or isinstance(payload, TimerTick):
            raise TypeError(f"{shown(payload)} is no artifact: give a model of your own")
        artifact_id = self._asked.new_id()
        if request_id is not None:
            if not isinstance(request_id, str) or not 0 < len(request_id) <= LONGEST_REQUEST:
                hint = f"1 to {LONGEST_REQUEST} characters"
                raise ValueError(f"request_id must be a text, not {shown(request_id)} ({hint})")
            artifact_id = f"{EXTERNAL}:{request_id}"
            await self.blackboard.refresh()  # it may have been published by another process
        draft = self._draft(
            payload,
            artifact_id=artifact_id,
            produced_by=EXTERNAL,
            correlation_id=correlation_id or artifact_id,
            tags=read_names("tags", tags),
        )
        (kept,) = await self._to_its_end(self._publish([draft]))
        if request_id is not None and (
            type(kept.payload) is not type(payload) or differing(kept.payload, payload)
        ):
            problem = f"artifact {artifact_id} was published already, and is another"
            raise ValueError(f"request_id: {problem} (another request id)")
        return kept

    def _draft(
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
        return Artifact(artifact_id, name, payload, produced_by, correlation_id, tags, at)

    async def _to_its_end(
        self, publishing: Coroutine[object, object, list[Artifact[BaseModel]]]
    ) -> list[Artifact[BaseModel]]:
        """Publish, also if whoever asked for it is cancelled: a run may time out meanwhile."""
        task = asyncio.create_task(publishing)
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)
        return await asyncio.shield(task)

    async def _publish(self, drafts: Sequence[Artifact[BaseModel]]) -> list[Artifact[BaseModel]]:
        """Keep artifacts, one after the other, and start the agents that each is for."""
        for each in drafts[1:]:  # one that cannot be kept is found before the first is
            encoded(each.payload, name=each.type)
        made: list[Artifact[BaseModel]] = []
        for draft in drafts:
            kept = await self.blackboard.keep(
                draft.payload,
                artifact_id=draft.id,
                produced_by=draft.produced_by,
                correlation_id=draft.correlation_id,
                tags=draft.tags,
                pending=[each.name for each in self.agents.values() if _is_triggered(each, draft)],
            )
            await self._deliver(kept.id, self._own_pending().get(kept.id, ()))
            made.append(kept)
        return made

    async def discard(self, model: type[BaseModel], *, before: datetime) -> int:
        """Forget artifacts of a type up to then, or up to the first that a run still waits for."""
        await self.blackboard.refresh()
        needed = {*self.blackboard.pending()}  # before the runs: what was pending may be one then
        for status in ("ENQUEUED", "STARTED"):
            which = RunFilter(status=status, source=SOURCE)
            for run in await self._asked.runs(which, limit=MOST_UNFINISHED):
                given = (run.inputs or {}).get("artifacts")
                needed.update(map(str, given) if isinstance(given, list) else ())
        return await self.blackboard.discard(model, before=before, but=needed)

    # -- deliveries

    def _own_pending(self) -> Mapping[str, Sequence[str]]:
        """Return artifacts, and the agents of this program still to be started for each."""
        found = {
            artifact_id: [name for name in names if name in self.agents]
            for artifact_id, names in self.blackboard.pending().items()
        }
        return {artifact_id: names for artifact_id, names in found.items() if names}

    async def _deliver_pending(self) -> None:
        """Do what was left undone, here or by a process that is gone."""
        for artifact_id, names in self._own_pending().items():
            await self._deliver(artifact_id, names)

    async def _look_for_work(self) -> None:
        """Do what was left undone, and take what was offered over HTTP."""
        await self._deliver_pending()
        for artifact_id, offer in (await offered(self._asked)).items():
            if self.blackboard.model_of(offer.type) is not None:
                await take(self._asked, artifact_id, await self._taken(artifact_id, offer))
        if (now := self._asked.clock.now()) >= self._forgets_at:
            await forget_taken(self._asked)
            self._forgets_at = now + FORGET_EVERY

    async def _taken(self, artifact_id: str, offer: Offer) -> Offer:
        """Publish what was offered, if it is what its type says; return what became of it.

        Whatever the model raises is a refusal: an offer never keeps those after it from their turn.
        A store that fails is not, and the offer is taken later.
        """
        model = self.blackboard.model_of(offer.type)
        assert model is not None, "it was looked for"
        try:
            await self.publish(
                decoded(model, offer.payload),
                tags=offer.tags,
                correlation_id=offer.correlation_id,
                request_id=artifact_id.removeprefix(f"{EXTERNAL}:"),
            )
        except (ValueError, InvalidSchedule) as wrong:  # those of pydantic are of the first kind
            return replace(offer, state="refused", error=error_of(wrong))
        except (OnbeatError, OSError):
            raise  # it is tried again
        except Exception as wrong:  # a model has code of its own: the other offers do not wait
            log.exception("artifact %s of type %s cannot be validated", artifact_id, offer.type)
            return replace(offer, state="refused", error=f"its model raises {type(wrong).__name__}")
        return replace(offer, state="published")

    async def _register_types(self) -> None:
        """Have other processes know which types can be offered to this program."""
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
            await self._asked.keep(TYPES, name, {"triggers": triggers})

    async def _deliver(self, artifact_id: str, names: Sequence[str]) -> None:
        """Start the agents that an artifact is for, each once, and mark that."""

        async def start(name: str) -> None:
            try:
                await self._asked.start(
                    PREFIX + name,
                    request_id=artifact_id,
                    inputs={"artifacts": [artifact_id]},
                    triggered_by="artifact",
                    note=self.blackboard.type_of(artifact_id),
                )
            except NoSuchSchedule:
                log.warning("artifact %s is for agent %s, which is gone", artifact_id, name)

        await _each(names, start)
        await self.blackboard.delivered(artifact_id, names)

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
    inner = found.trigger if isinstance(found, Bounded) else found
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
    known = ", ".join(map(type_name, agent.outputs)) or "nothing"
    if not isinstance(output, BaseModel):
        told, hint = shown(output), "a model"
    elif type(output) not in agent.outputs:
        told = type_name(type(output))
        hint = f".publishes({told}) adds it"
    else:
        return output
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

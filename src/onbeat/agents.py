"""Agents in a program: `from onbeat.agents import AgentContext, Orchestrator`.

    orchestrator = Orchestrator("sqlite:///agents.db")
    orchestrator.agent("daily").schedule(at=time(17)).publishes(Report).with_engines(report)
    orchestrator.run()  # until Ctrl-C; or: async with orchestrator: ...

Timers, artifacts and runs are stored in the database: a restart continues where it stopped.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Self

from onbeat.app.onbeat import Onbeat
from onbeat.app.settings import Settings
from onbeat.core.explain.why import Why
from onbeat.events import Event
from onbeat.host.extras import install_command
from onbeat.ports.clock import Clock
from onbeat.ports.rows import RunRow

try:
    from onbeat.systems.agents.blackboard import Artifact, Model
    from onbeat.systems.agents.builder import AgentBuilder
    from onbeat.systems.agents.context import AgentContext, ContextBuilder, Subscription, read_names
    from onbeat.systems.agents.specs import ScheduleSpec, TimerTick
    from onbeat.systems.agents.system import AgentSystem
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] != "pydantic":
        raise
    problem = f"agents need pydantic, which is not installed ({install_command('agents')})"
    raise ModuleNotFoundError(problem, name="pydantic") from None

__all__ = [
    "AgentBuilder",
    "AgentContext",
    "Artifact",
    "ContextBuilder",
    "Orchestrator",
    "ScheduleSpec",
    "Subscription",
    "TimerTick",
]

POLL_EVERY = 0.2  # seconds between two checks for changes by other processes


class Orchestrator:
    """Agents, their blackboard, and the scheduler that runs them, in one program.

    It starts when it is entered, or with the first `publish` or `run_until_idle`; all agents are
    checked before any timer fires. `beat` is the scheduler.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.beat = Onbeat(database, settings=settings, clock=clock)
        self._new_beat = partial(Onbeat, database, settings=settings, clock=clock)
        self._system = AgentSystem()
        self._is_checked = self._is_open = self._has_paused_timers = False
        self._starting: asyncio.Lock | None = None
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def agent(self, name: str) -> AgentBuilder:
        """Return a new agent to describe before the orchestrator starts."""
        if self._is_checked:
            raise RuntimeError(f"agent {name!r} must be added before the orchestrator starts")
        return self._system.add(name)

    async def publish(
        self,
        artifact: Model,
        *,
        tags: Iterable[str] = (),
        correlation_id: str | None = None,
        request_id: str | None = None,
    ) -> Artifact[Model]:
        """Publish an artifact on the blackboard; return its envelope when it is durable.

        Each agent without a schedule that consumes it gets a run, durably. The same `request_id`
        gives the same artifact, so a call whose outcome is unknown can be repeated.
        """
        await self.start()
        return await self._system.publish(  # type: ignore[return-value]
            artifact, tags=tags, correlation_id=correlation_id, request_id=request_id
        )

    async def get_artifacts(
        self,
        model: type[Model],
        *,
        tags: Iterable[str] = (),
        from_agents: Iterable[str] = (),
        correlation_id: str | None = None,
    ) -> list[Model]:
        """Return the artifacts of a type, oldest first."""
        found = await self.get_envelopes(
            model, tags=tags, from_agents=from_agents, correlation_id=correlation_id
        )
        return [each.payload for each in found]

    async def get_envelopes(
        self,
        model: type[Model],
        *,
        tags: Iterable[str] = (),
        from_agents: Iterable[str] = (),
        correlation_id: str | None = None,
    ) -> list[Artifact[Model]]:
        """Return the artifacts of a type with their publisher, time and tags."""
        await self.start()
        board = self._system.blackboard
        name = board.register(model)
        await board.refresh()
        which = Subscription(
            model, None, read_names("tags", tags), read_names("from_agents", from_agents)
        )
        found = list(which.of(board.of_type(name)))
        if correlation_id is not None:
            found = [each for each in found if each.correlation_id == correlation_id]
        return found  # type: ignore[return-value]

    async def discard(self, model: type[Model], *, before: datetime) -> int:
        """Delete artifacts of a type that were published before an instant; return how many.

        Every process holds all artifacts in memory, so delete old ones. Artifacts from the first
        that a run still needs are kept.
        """
        await self.start()
        return await self._system.discard(model, before=before)

    async def run_until_idle(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - a documented signature
        """Wait until no run waits or is in progress and no timer will fire; return whether so.

        After `timeout` seconds the timers are paused, for all programs on the database, until the
        next call of this, `close`, or the next start. Runs in progress continue.
        """
        await self.start()
        await self._system.resume_timers(self.beat.service)
        if await self._system.is_idle():
            return True
        try:
            async with asyncio.timeout(timeout):
                while not await self._system.is_idle():
                    await self._wait_for_change()
        except TimeoutError:
            self._has_paused_timers = True
            await self._system.stop_timers()
            return False
        return True

    async def _wait_for_change(self) -> None:
        try:
            async with asyncio.timeout(POLL_EVERY):
                await self._changed.wait()
        except TimeoutError:
            return  # changes by other processes send no event
        self._changed.clear()

    def run(self) -> None:
        """Run until SIGINT or SIGTERM, then shut down."""
        self._check()
        self.beat.log_to_stderr()
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """Run like `run`, inside a running event loop."""
        stopped = self.beat.catch_signals()
        async with self:
            await self.beat.until(stopped)

    async def start(self) -> None:
        """Check and define every agent, and run them, unless already started."""
        async with self._one_at_a_time():
            if self._is_open:
                return
            self._check()
            self._changed = asyncio.Event()
            await self.beat.open()
            try:
                self.beat.listen(self._on_events)
                await self.beat.begin(apply_files=self._system.start)
            except BaseException:
                await self._system.stop()
                await self.beat.close()
                raise
            self._is_open = True

    async def close(self) -> None:
        """Shut down. The orchestrator can be started again, even in another event loop."""
        async with self._one_at_a_time():
            if not self._is_open:
                return
            self._is_open = False
            try:
                await self._system.stop()
            finally:
                await self.beat.close()
            if self._has_paused_timers:
                await self._resume_timers()

    async def _resume_timers(self) -> None:
        """Resume the timers that a timeout paused; this process runs none any more."""
        self._has_paused_timers = False
        beat = self._new_beat()
        try:
            await self._system.resume_timers(await beat.open())
        finally:
            await beat.close()

    def _one_at_a_time(self) -> asyncio.Lock:
        """Return the lock for starting and closing, which belongs to the event loop."""
        loop = asyncio.get_running_loop()
        if self._starting is None or self._loop is not loop:
            self._starting, self._loop = asyncio.Lock(), loop
        return self._starting

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def pause(self, agent: str, *, note: str = "") -> bool:
        """Pause the timer of an agent; artifacts still trigger it."""
        return await self.beat.pause(self._id(agent), note=note)

    async def resume(self, agent: str, *, catchup: bool = False) -> bool:
        """Resume the timer of an agent from now on."""
        return await self.beat.resume(self._id(agent), catchup=catchup)

    async def why(self, agent: str, at: datetime | None = None) -> Why:
        """Explain why an agent ran, or did not, at an instant or at its latest tick."""
        instant = at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)
        second = None if instant is None else int(instant.timestamp())
        return await self.beat.why(self._id(agent), second)

    async def history(self, agent: str, *, limit: int = 50) -> list[RunRow]:
        """Return the runs of an agent, latest first."""
        return await self.beat.runs(self._id(agent), limit=limit)

    def artifact_counts(self) -> dict[str, int]:
        """Return the number of artifacts of each type."""
        return self._system.blackboard.counts()

    def _id(self, agent: str) -> str:
        if agent not in self._system.agents:
            known = ", ".join(sorted(self._system.agents)) or "none"
            raise LookupError(f"no agent is called {agent!r} (known: {known})")
        return self._system.agents[agent].schedule_id

    def _check(self) -> None:
        if not self._is_checked:
            self._system.check()
            for agent in self._system.agents.values():
                self.beat.register(agent.schedule_id, self._system.function_of(agent))
            self._is_checked = True

    def _on_events(self, _at: int, _events: Sequence[Event]) -> None:
        """Wake up waiters after a commit, in any thread."""
        with suppress(RuntimeError):  # the loop is closed, so nothing waits
            assert self._loop is not None, "it has started"
            self._loop.call_soon_threadsafe(self._changed.set)

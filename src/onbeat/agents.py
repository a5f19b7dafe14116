"""Agents in a program: `from onbeat.agents import AgentContext, Orchestrator`.

    orchestrator = Orchestrator("sqlite:///agents.db")
    orchestrator.agent("daily").schedule(at=time(17)).publishes(Report).with_engines(report)
    orchestrator.run()  # until Ctrl-C; or: async with orchestrator: ...

Timers, artifacts and runs are kept in the database: a restart goes on where it was.
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
from onbeat.ports.rows import RunRow
from onbeat.ports.store import Clock

try:
    from onbeat.systems.agents.blackboard import Artifact, Model
    from onbeat.systems.agents.builder import AgentBuilder
    from onbeat.systems.agents.context import AgentContext, ContextBuilder, Subscription, read_names
    from onbeat.systems.agents.specs import ScheduleSpec, TimerTick
    from onbeat.systems.agents.system import AgentSystem
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] != "pydantic":
        raise
    problem = "agents need pydantic, which is not installed (pip install 'onbeat[agents]')"
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

LOOK_EVERY = 0.2  # seconds between two looks, for what other processes do


class Orchestrator:
    """Agents, their blackboard, and the scheduler that runs them, in one program.

    It starts when it is entered, or with the first `publish` or `run_until_idle`; then every agent
    is checked, before any timer fires. `beat` is the scheduler itself.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.beat = Onbeat(database, settings=settings, clock=clock)
        self._another = partial(Onbeat, database, settings=settings, clock=clock)
        self._system = AgentSystem()
        self._is_checked = self._is_open = self._has_stopped_timers = False
        self._starting: asyncio.Lock | None = None
        self._happened = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def agent(self, name: str) -> AgentBuilder:
        """Return a new agent, to be described before the orchestrator starts."""
        if self._is_checked:
            raise RuntimeError(f"agent {name!r} comes too late: the orchestrator has started")
        return self._system.add(name)

    async def publish(
        self,
        artifact: Model,
        *,
        tags: Iterable[str] = (),
        correlation_id: str | None = None,
        request_id: str | None = None,
    ) -> Artifact[Model]:
        """Put something on the blackboard; return its envelope when it is durable.

        Each agent without a schedule that consumes it has a run then, whatever happens. The same
        `request_id` is the same artifact: whoever does not know whether it worked says it again.
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
        """Return what is on the blackboard of a type, the oldest first."""
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
        """Return the same with who published it, when, under which tags."""
        await self.start()
        board = self._system.blackboard
        name = board.know(model)
        await board.refresh()
        which = Subscription(
            model, None, read_names("tags", tags), read_names("from_agents", from_agents)
        )
        found = list(which.of(board.of_type(name)))
        if correlation_id is not None:
            found = [each for each in found if each.correlation_id == correlation_id]
        return found  # type: ignore[return-value]

    async def discard(self, model: type[Model], *, before: datetime) -> int:
        """Forget artifacts of a type that were published before then; return how many.

        All that is on the blackboard is in the memory of each process, so discard what is old. From
        the first on that a run still waits for, they stay.
        """
        await self.start()
        return await self._system.discard(model, before=before)

    async def run_until_idle(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - as its users know it
        """Wait until nothing runs, nothing waits, and no timer will ever fire; return whether so.

        After `timeout` seconds the timers stop, for all that share the database, until this is
        called again, or `close`, or the next start. What is under way then goes on.
        """
        await self.start()
        await self._system.go_on(self.beat.service)
        if await self._system.is_idle():
            return True
        try:
            async with asyncio.timeout(timeout):
                while not await self._system.is_idle():
                    await self._until_something_happens()
        except TimeoutError:
            self._has_stopped_timers = True
            await self._system.stop_timers()
            return False
        return True

    async def _until_something_happens(self) -> None:
        try:
            async with asyncio.timeout(LOOK_EVERY):
                await self._happened.wait()
        except TimeoutError:
            return  # other processes are not heard
        self._happened.clear()

    def run(self) -> None:
        """Run until SIGINT or SIGTERM, then stop in good order."""
        self._check()
        self.beat.log_to_stderr()
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """Do the same inside a running event loop."""
        stopped = self.beat.catch_signals()
        async with self:
            await self.beat.until(stopped)

    async def start(self) -> None:
        """Check every agent, define them, and run them; if that was not done yet."""
        async with self._one_at_a_time():
            if self._is_open:
                return
            self._check()
            self._happened = asyncio.Event()
            await self.beat.open()
            try:
                self.beat.listen(self._heard)
                await self.beat.begin(first=self._system.start)
            except BaseException:
                await self._system.stop()
                await self.beat.close()
                raise
            self._is_open = True

    async def close(self) -> None:
        """Stop in good order. It may be started again, in another event loop, too."""
        async with self._one_at_a_time():
            if not self._is_open:
                return
            self._is_open = False
            try:
                await self._system.stop()
            finally:
                await self.beat.close()
            if self._has_stopped_timers:
                await self._let_timers_go()

    async def _let_timers_go(self) -> None:
        """Undo what a timeout did, when nothing can fire here any more: others may go on."""
        self._has_stopped_timers = False
        beat = self._another()
        try:
            await self._system.go_on(await beat.open())
        finally:
            await beat.close()

    def _one_at_a_time(self) -> asyncio.Lock:
        """Return what starting and closing wait for: it belongs to the event loop."""
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
        """Have the timer of an agent not fire; artifacts still run what they trigger."""
        return await self.beat.pause(self._id(agent), note=note)

    async def resume(self, agent: str, *, catchup: bool = False) -> bool:
        """Let the timer of an agent go on from now."""
        return await self.beat.resume(self._id(agent), catchup=catchup)

    async def why(self, agent: str, at: datetime | None = None) -> Why:
        """Say why an agent ran, or did not, at an instant, or at its latest tick."""
        instant = at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)
        second = None if instant is None else int(instant.timestamp())
        return await self.beat.why(self._id(agent), second)

    async def history(self, agent: str, *, limit: int = 50) -> list[RunRow]:
        """Return the runs of an agent, the latest first."""
        return await self.beat.runs(self._id(agent), limit=limit)

    def artifact_counts(self) -> dict[str, int]:
        """Return how many artifacts of each type are in memory."""
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

    def _heard(self, _at: int, _events: Sequence[Event]) -> None:
        """Hear of a commit, in whichever thread that was."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            assert self._loop is not None, "it has started"
            self._loop.call_soon_threadsafe(self._happened.set)

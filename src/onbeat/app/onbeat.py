"""`Onbeat`: a scheduler in a program."""

import asyncio
import logging
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from onbeat.app import logs
from onbeat.app.metrics import Metrics
from onbeat.app.parts import checking_launchers
from onbeat.app.runtime import Runtime
from onbeat.app.settings import Settings
from onbeat.core.explain.why import Why
from onbeat.core.policy import read_policy
from onbeat.core.runs.run import Accepted, Failed, Succeeded
from onbeat.core.schedule import ID, Schedule, check_schedule
from onbeat.core.target import read_target
from onbeat.core.triggers.base import Trigger
from onbeat.engine.node import Activity
from onbeat.engine.store_retry import until_answered
from onbeat.errors import InvalidSchedule, InvalidSettings, in_field, quote_value
from onbeat.launchers.python.launcher import Function, FunctionLauncher
from onbeat.ports.clock import Clock
from onbeat.ports.launcher import Launcher, check_launch
from onbeat.ports.rows import RunFilter, RunRow, ScheduleRow
from onbeat.ports.store import Listener, Upserted
from onbeat.service.service import Service

START_LIMIT = 15.0  # seconds: a start fails if the store does not answer for so long

F = TypeVar("F", bound=Function)


class Onbeat:
    """A scheduler in your own program, or the one that `onbeat up` runs.

    Entered (`async with beat:`), it defines the decorated schedules and runs as a node. If another
    process is the node of this database, it joins as a client: it can define, start and read, and
    becomes the node when the other one ends.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        launchers: Mapping[str, Launcher] | None = None,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        address: str = "",
    ) -> None:
        """`address` is where this process serves the API, if it does: other nodes connect there."""
        self._load = partial(_load, database) if settings is None else None
        if settings is not None and database is not None:
            settings = replace(settings, database=database)
        self._settings = settings or _load(database)
        self._address = address
        self._clock = clock
        self._own_launchers = dict(launchers or {})
        self._new_id = new_id
        self._functions = FunctionLauncher(concurrency=self._settings.concurrency)
        self._decorated: dict[str, Schedule] = {}
        self._executor: Function | None = None
        self._runtime: Runtime | None = None
        self._start_by = 0.0  # by the clock of the event loop

    def schedule(
        self,
        trigger: Trigger,
        *,
        name: str | None = None,
        inputs: Mapping[str, object] | None = None,
        when: Mapping[str, object] | None = None,
        **policy: object,
    ) -> Callable[[F], F]:
        """Run a function at the ticks of `trigger`, under a policy such as `overlap="queue"`.

        `when` is a condition that is checked first, such as `{"command": ["test", "-e", "ready"]}`.
        """
        if not isinstance(trigger, Trigger):
            hint = '@beat.schedule(every("5m")), or cron, daily, at, ...'
            raise InvalidSchedule("trigger", f"{quote_value(trigger)} is not a trigger", hint=hint)

        def decorate(function: F) -> F:
            schedule_id = name or function.__name__
            if self._runtime is not None:
                problem = f"{schedule_id!r} is decorated while the scheduler runs"
                raise InvalidSchedule(
                    "schedule", problem, hint="decorate before it runs, or call define"
                )
            fields = {"python": schedule_id} | ({"inputs": dict(inputs)} if inputs else {})
            target = read_target(fields)
            if schedule_id in self._decorated:
                problem = f"two schedules are called {schedule_id!r}"
                raise InvalidSchedule("name", problem, hint="rename one with name=...")
            self._functions.register(schedule_id, function)
            probe = None if when is None else read_target(when)
            found = check_schedule(
                Schedule(schedule_id, trigger, target, read_policy(policy), when=probe)
            )
            with in_field(schedule_id):
                check_launch(found, {**checking_launchers(), "python": self._functions})
            self._decorated[schedule_id] = found
            return function

        return decorate

    def register(self, name: str, function: Function) -> None:
        """Make a function available, by name, to schedules that are defined elsewhere."""
        if self._runtime is not None:
            problem = f"{name!r} is registered while the scheduler is running"
            raise InvalidSchedule("python", problem, hint="register before it runs")
        if not ID.fullmatch(name):
            raise InvalidSchedule(
                "python", f"{quote_value(name)} is not a name", hint="such as nightly"
            )
        if not callable(function):
            problem = f"{quote_value(function)} is not callable"
            raise InvalidSchedule("python", problem, hint="a function, plain or async")
        self._functions.register(name, function)

    def executor(self, function: F) -> F:
        """Let a function run the DAGs of workflows: `(dag, meta)`, plain or async.

        Its return value is the result of the run. It is called again with the same
        `meta["idempotency_key"]` if the outcome of the first call is unknown.
        """
        if self._runtime is not None or self._executor not in (None, function):
            problem = (
                "the scheduler is running"
                if self._runtime is not None
                else "another executor is set"
            )
            raise InvalidSchedule("executor", problem, hint="set one executor, before it runs")
        if not callable(function):
            problem = f"{quote_value(function)} is not callable"
            raise InvalidSchedule("executor", problem, hint="a function, plain or async")
        self._executor = function
        if self._load is not None:
            self._settings = self._load(systems=("workflows",))
        return function

    def run(self) -> None:
        """Run until SIGINT or SIGTERM, then stop in good order.

        Events are logged to stderr if the program has not set up logging itself.
        """
        self.log_to_stderr()
        asyncio.run(self.serve())

    def log_to_stderr(self) -> None:
        """Log events to stderr, unless the program has set up logging itself."""
        if not logging.getLogger().handlers:
            logs.set_up(level=self._settings.log_level, as_json=self._settings.logs_json)

    async def serve(self) -> None:
        """Run inside a running event loop. A second signal ends runs without their grace."""
        stopped = self.catch_signals()
        async with self:
            await self.until(stopped)

    def catch_signals(self) -> asyncio.Event:
        """Return an event that SIGINT or SIGTERM sets. A second signal ends runs immediately."""
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()

        def on_signal() -> None:
            if stopped.is_set() and self._runtime is not None:
                self._runtime.end_runs_now()
            stopped.set()

        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) is not signal.SIG_IGN:  # as `nohup` has it
                loop.add_signal_handler(each, on_signal)
        return stopped

    async def until(self, stopped: asyncio.Event) -> None:
        """Wait for a stop request, here or by `onbeat down`; raise the error of a failed engine."""
        await self._running.until(stopped)

    async def __aenter__(self) -> Self:
        await self.open_patiently()
        try:
            await self.begin()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open_patiently(self) -> Service:
        """Open the store of a node; wait up to START_LIMIT seconds for one that does not answer.

        What remains of that time is available to `begin`.
        """
        self._start_by = asyncio.get_running_loop().time() + START_LIMIT
        return await until_answered(self.open, "the node is not up yet", until=self._start_by)

    async def open(self) -> Service:
        """Open the store as a client: nothing is planned or launched."""
        self._runtime = await Runtime.open(
            self._settings,
            self._functions,
            new_id=self._new_id,
            clock=self._clock,
            own_launchers=self._own_launchers,
            execute=self._executor,
            address=self._address,
        )
        return self._runtime.service

    async def begin(
        self,
        *,
        client: bool = True,
        apply_files: Callable[[Service], Awaitable[None]] | None = None,
    ) -> None:
        """Define what was decorated and start a node; with `client`, wait for another node's end.

        `apply_files` defines further schedules. They are there before the node plans.
        """
        await self._running.start(
            list(self._decorated.values()),
            apply_files=apply_files,
            may_be_client=client,
            until=self._start_by,
        )

    async def close(self) -> None:
        """Stop in good order: the node, then the systems, which record its last outcomes."""
        if self._runtime is None:
            return
        try:
            await self._runtime.close()
        finally:
            self._runtime = None

    async def define(self, *schedules: Schedule, update_waiting: bool = False) -> list[Upserted]:
        """Define schedules. A definition that changes nothing writes nothing.

        A waiting run starts as the revision it was decided under specifies, unless `update_waiting`
        moves it to the new one.
        """
        return await self.service.define(schedules, update_waiting=update_waiting)

    async def start(
        self, schedule_id: str, *, request_id: str | None = None, **inputs: object
    ) -> RunRow:
        """Start a run now, with other inputs if they are given."""
        return await self.service.start(schedule_id, inputs=inputs or None, request_id=request_id)

    async def pause(self, schedule_id: str, *, note: str = "", until: int | None = None) -> bool:
        """Pause a schedule, until an instant if one is given."""
        return await self.service.pause(schedule_id, note=note, until=until)

    async def cancel(self, run_id: int, *, note: str = "") -> RunRow:
        """Cancel a run."""
        return await self.service.cancel(run_id, note=note)

    async def report(
        self, run: int | str, outcome: Succeeded | Failed | Accepted, *, external_id: str = ""
    ) -> RunRow:
        """Report the outcome of a run that its target accepted, or that it has started."""
        return await self.service.report(run, outcome, external_id=external_id)

    async def resume(self, schedule_id: str, *, catchup: bool = False) -> bool:
        """Resume a paused schedule from now on; with `catchup`, decide the ticks of the pause."""
        return await self.service.resume(schedule_id, catchup=catchup)

    async def delete(self, schedule_id: str) -> None:
        """Delete a schedule."""
        await self.service.delete(schedule_id)

    async def why(self, schedule_id: str, at: int | str | None = None) -> Why:
        """Explain why a schedule ran, or did not, at an instant or at its latest tick.

        The instant is in seconds, or a text: RFC 3339, or a local time in the schedule's zone.
        """
        return await self.service.why(schedule_id, at)

    async def schedules(self) -> list[ScheduleRow]:
        """Return every schedule, by id."""
        return await self.service.schedules()

    async def runs(self, schedule_id: str | None = None, *, limit: int = 50) -> list[RunRow]:
        """Return runs, latest first."""
        return await self.service.runs(RunFilter(schedule_id), limit=limit)

    def wake(self) -> None:
        """Make the engine look for work immediately, such as after a test has set its clock."""
        self._running.wake()

    async def settle(self) -> None:
        """Wait until everything that is due by the clock has been decided, run and recorded."""
        engine = self._running.engine
        assert engine is not None, "only a node settles: another process is the node"
        await engine.settle()

    @property
    def systems(self) -> Mapping[str, object]:
        """The systems that its settings specify, by name, while it is open."""
        return self._running.parts

    @property
    def service(self) -> Service:
        """All use cases, while it is open."""
        return self._running.service

    def listen(self, listener: Listener) -> None:
        """Add a listener for the events that this process commits."""
        self._running.listeners.append(listener)

    @property
    def metrics(self) -> Metrics:
        """The counters of this process since it was opened."""
        return self._running.metrics

    @property
    def is_node(self) -> bool:
        """Whether this process is a node, rather than a client of another process that is."""
        return self._running.engine is not None

    @property
    def activity(self) -> Activity:
        """What the engine of this node is doing at this moment, for tests that wait for it."""
        engine = self._running.engine
        assert engine is not None, "only a node has an engine: another process is the node"
        return engine.activity

    @property
    def _running(self) -> Runtime:
        assert self._runtime is not None, "enter it first: async with beat: ..."
        return self._runtime


def _load(database: str | None, *, systems: Collection[str] = ()) -> Settings:
    """Load the settings of the folder that the program was started in."""
    try:
        return Settings.load(
            flags={"database": database},
            environment=os.environ,
            folder=Path(),
            systems=systems,
        )
    except InvalidSettings as wrong:  # here it was an argument, not a flag
        field = wrong.field.removeprefix("--")
        raise InvalidSettings(field, wrong.problem, hint=wrong.hint) from None

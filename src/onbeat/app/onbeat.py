"""`Onbeat`: a scheduler in a program, and what else is done with a whole database."""

import asyncio
import logging
import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from onbeat.app import logs
from onbeat.app.metrics import Metrics
from onbeat.app.opened import OpenInstallation, SystemClock, launchers_that_check, open_postgres
from onbeat.app.settings import Settings
from onbeat.app.systems import RunningSystems
from onbeat.core.explain.why import Why
from onbeat.core.policy import read_policy
from onbeat.core.runs.run import Accepted, Failed, Succeeded
from onbeat.core.schedule import ID, Schedule, check_schedule
from onbeat.core.target import read_target
from onbeat.core.triggers.base import Trigger
from onbeat.engine.store_retry import until_answered
from onbeat.errors import (
    InvalidSchedule,
    InvalidSettings,
    StoreHeld,
    StoreInDoubt,
    naming,
    shown,
)
from onbeat.launchers.python.launcher import Function, FunctionLauncher
from onbeat.ports.outside import Launcher, Listener, check_launch
from onbeat.ports.rows import RunFilter, RunRow, ScheduleRow
from onbeat.ports.store import Clock, Node, Upserted
from onbeat.service.access import LOCAL, Caller
from onbeat.service.service import Service
from onbeat.stores.sqlite.store import SqliteStore

START_LIMIT = 15.0  # seconds in which a store that fails may answer, before a start is given up

F = TypeVar("F", bound=Function)
log = logging.getLogger("onbeat.engine")


class Onbeat:
    """A scheduler in your own program, or the one that `onbeat up` runs.

    Entered (`async with beat:`) it defines what was decorated and runs as a node. If another
    process is the node of this database, it joins as a client: it can define, start and read, and
    becomes the node when that one ends.
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
        """`address` is where this process has the API, if it has: other nodes ask there."""
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
        self._open: OpenInstallation | None = None
        self._start_by = 0.0  # by the clock of the event loop
        self._hosted: RunningSystems | None = None
        self._taking_over: asyncio.Task[None] | None = None

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

        `when` is asked first, such as `{"command": ["test", "-e", "ready"]}`.
        """
        if not isinstance(trigger, Trigger):
            hint = '@beat.schedule(every("5m")), or cron, daily, at, ...'
            raise InvalidSchedule("trigger", f"{shown(trigger)} is no trigger", hint=hint)

        def decorate(function: F) -> F:
            schedule_id = name or function.__name__
            if self._open is not None:
                problem = f"{schedule_id!r} is decorated while it runs already"
                raise InvalidSchedule("schedule", problem, hint="decorate first, or use define")
            fields = {"python": schedule_id} | ({"inputs": dict(inputs)} if inputs else {})
            target = read_target(fields)
            if schedule_id in self._decorated:
                problem = f"two schedules are called {schedule_id!r}"
                raise InvalidSchedule("name", problem, hint="name=... gives one another name")
            self._functions.register(schedule_id, function)
            probe = None if when is None else read_target(when)
            found = check_schedule(
                Schedule(schedule_id, trigger, target, read_policy(policy), when=probe)
            )
            with naming(schedule_id):
                check_launch(found, {**launchers_that_check(), "python": self._functions})
            self._decorated[schedule_id] = found
            return function

        return decorate

    def register(self, name: str, function: Function) -> None:
        """Offer a function under a name, to schedules that are defined elsewhere."""
        if self._open is not None:
            problem = f"{name!r} is registered while it runs already"
            raise InvalidSchedule("python", problem, hint="register first, then run")
        if not ID.fullmatch(name):
            raise InvalidSchedule("python", f"{shown(name)} is no name", hint="such as nightly")
        if not callable(function):
            problem = f"{shown(function)} is no function"
            raise InvalidSchedule("python", problem, hint="a function, plain or async")
        self._functions.register(name, function)

    def executor(self, function: F) -> F:
        """Have a function run the DAGs of workflows: `(dag, meta)`, plain or async.

        What it returns is the result of the run. It is called again under the same key if nobody
        knows what came of it: `meta["idempotency_key"]`.
        """
        if self._open is not None or self._executor not in (None, function):
            problem = "it runs already" if self._open is not None else "there is another"
            raise InvalidSchedule("executor", problem, hint="one, before it is entered")
        if not callable(function):
            problem = f"{shown(function)} is no function"
            raise InvalidSchedule("executor", problem, hint="a function, plain or async")
        self._executor = function
        if self._load is not None:
            self._settings = self._load(for_workflows=True)
        return function

    def run(self) -> None:
        """Run until SIGINT or SIGTERM, then stop in good order.

        A program that has set up no logging has what happens written to stderr.
        """
        self.log_to_stderr()
        asyncio.run(self.serve())

    def log_to_stderr(self) -> None:
        """Have what happens written to stderr, unless the program has set up logging itself."""
        if not logging.getLogger().handlers:
            logs.set_up(level=self._settings.log_level, as_json=self._settings.logs_json)

    async def serve(self) -> None:
        """Do the same inside a running event loop; a second signal ends what still runs at once."""
        stopped = self.catch_signals()
        async with self:
            await self.until(stopped)

    def catch_signals(self) -> asyncio.Event:
        """Return what SIGINT or SIGTERM will set; a second one ends what still runs."""
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()

        def on_signal() -> None:
            if stopped.is_set() and self._open is not None:
                self._open.hurry()
            stopped.set()

        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) is not signal.SIG_IGN:  # as `nohup` has it
                loop.add_signal_handler(each, on_signal)
        return stopped

    async def until(self, stopped: asyncio.Event) -> None:
        """Wait until told to stop, here or by `onbeat down`; or raise what made the engine fail."""
        waiting, ended = asyncio.ensure_future(stopped.wait()), self._opened.ended
        while not (stopped.is_set() or ended.done()):
            taking_over = self._taking_over
            any_of: list[asyncio.Future[Any]] = [waiting, ended]
            if taking_over is not None and not taking_over.done():
                any_of.append(taking_over)
            await asyncio.wait(any_of, return_when=asyncio.FIRST_COMPLETED)
            if taking_over is not None and taking_over.done():
                taking_over.result()
        waiting.cancel()
        if ended.done():
            ended.result()

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

        What is left of that time is for `begin`.
        """
        self._start_by = asyncio.get_running_loop().time() + START_LIMIT
        return await until_answered(self.open, "the node is not up yet", until=self._start_by)

    async def open(self) -> Service:
        """Open the store, as a client: nothing is planned or launched."""
        self._open = await OpenInstallation.make(
            self._settings,
            self._clock,
            self._own_launchers,
            self._functions,
            self._new_id,
            address=self._address,
            execute=self._executor,
        )
        self._hosted = RunningSystems(self._settings, self._open)
        return self._open.service

    async def begin(
        self, *, client: bool = True, first: Callable[[Service], Awaitable[None]] | None = None
    ) -> None:
        """Define what was decorated and run as a node; or be a client until there is none.

        A node does so `first`, and `first` of its own: what follows a start is there when it does.
        """
        opened = self._opened

        async def define() -> None:
            if self._decorated:
                await opened.service.define(list(self._decorated.values()), source="python")
            if first is not None:
                await first(opened.service)

        async def begin() -> None:
            await define()
            await begin_systems()

        async def begin_systems() -> None:
            if "plan" in self._settings.roles:
                await self.systems.begin()

        try:
            await opened.begin(begin, until=self._start_by)
        except StoreHeld as held:
            if not client:
                raise
            log.warning("joined as a client, and takes over when that ends: %s", held)
            self._taking_over = asyncio.create_task(opened.take_over(begin_systems))
            await define()

    async def close(self) -> None:
        """Stop in good order: the node, then the systems, which tell what it did last."""
        if self._taking_over is not None:
            self._taking_over.cancel()
            await asyncio.wait([self._taking_over])
            self._taking_over = None
        opened = self._open
        if opened is None:
            return
        try:
            await opened.stop()
            if self._hosted is not None:
                await self._hosted.end()
        finally:
            self._hosted = self._open = None
            await opened.close()

    async def define(self, *schedules: Schedule, update_waiting: bool = False) -> list[Upserted]:
        """Define schedules; what changes nothing writes nothing.

        Runs that wait start by the revision they were decided under, unless `update_waiting` moves
        them to the new one.
        """
        return await self.service.define(schedules, update_waiting=update_waiting)

    async def start(
        self, schedule_id: str, *, request_id: str | None = None, **inputs: object
    ) -> RunRow:
        """Start a run now, with other inputs if they are given."""
        return await self.service.start(schedule_id, inputs=inputs or None, request_id=request_id)

    async def pause(self, schedule_id: str, *, note: str = "", until: int | None = None) -> bool:
        """Start nothing more of a schedule by itself, until then if that is given."""
        return await self.service.pause(schedule_id, note=note, until=until)

    async def cancel(self, run_id: int, *, note: str = "") -> RunRow:
        """Have a run end."""
        return await self.service.cancel(run_id, note=note)

    async def report(
        self, run: int | str, outcome: Succeeded | Failed | Accepted, *, external_id: str = ""
    ) -> RunRow:
        """Tell of a run that its target had accepted: that it has begun, or its end."""
        return await self.service.report(run, outcome, external_id=external_id)

    async def resume(self, schedule_id: str, *, catchup: bool = False) -> bool:
        """Let a schedule go on from now."""
        return await self.service.resume(schedule_id, catchup=catchup)

    async def delete(self, schedule_id: str) -> None:
        """Take a schedule away."""
        await self.service.delete(schedule_id)

    async def why(self, schedule_id: str, at: int | str | None = None) -> Why:
        """Say why a schedule ran, or did not, at an instant, or at its latest tick.

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
        """Have the engine look again at once, such as when a clock of its own was set."""
        self._opened.wake()

    async def settle(self) -> None:
        """Wait until everything that is due by the clock has been decided, run and recorded."""
        engine = self._opened.engine
        assert engine is not None, "only a node settles: another process is the node"
        await engine.settle()

    @property
    def systems(self) -> RunningSystems:
        """The systems that its settings ask for, while it is open."""
        assert self._hosted is not None, "enter it first: async with beat: ..."
        return self._hosted

    @property
    def service(self) -> Service:
        """Everything that can be asked for, while it is open; the systems work on it."""
        return self._opened.service

    def listen(self, listener: Listener) -> None:
        """Have what happens told to somebody else, too: what this process commits."""
        self._opened.listeners.append(listener)

    @property
    def metrics(self) -> Metrics:
        """What this process did since it was opened, counted."""
        return self._opened.metrics

    @property
    def is_node(self) -> bool:
        """Whether this process plans and runs, rather than being a client of one that does."""
        return self._opened.engine is not None

    @property
    def _opened(self) -> OpenInstallation:
        assert self._open is not None, "enter it first: async with beat: ..."
        return self._open


def _load(database: str | None, *, for_workflows: bool = False) -> Settings:
    """Return the settings that are found where a program is started."""
    try:
        return Settings.load(
            flags={"database": database},
            environment=os.environ,
            folder=Path(),
            for_workflows=for_workflows,
        )
    except InvalidSettings as wrong:  # here it was an argument, and no flag
        field = wrong.field.removeprefix("--")
        raise InvalidSettings(field, wrong.problem, hint=wrong.hint) from None


@asynccontextmanager
async def client(settings: Settings, caller: Caller = LOCAL) -> AsyncIterator[Service]:
    """Open a store for a while, to define, start and read; nothing is planned or launched."""
    beat = Onbeat(settings=settings)
    try:
        yield (await beat.open()).of(caller)
    finally:
        await beat.close()


async def move(settings: Settings, to: Settings) -> dict[str, int]:
    """Move all that a SQLite file keeps to PostgreSQL; return how many rows of each table went.

    Nobody may be the node of the file. From then on it is refused, so that nothing runs twice; a
    move that was broken off may be made again.
    """
    if settings.database_path is None or not to.is_postgres:
        raise InvalidSettings("move", "it goes from a SQLite file to PostgreSQL", hint="--database")
    source = await SqliteStore.open(settings.database_path, clock=SystemClock(), to_move=True)
    try:
        await source.hold(Node(str(uuid.uuid4()), "onbeat move", frozenset()))
        target = await open_postgres(to)
        try:
            # The file is given up when all is there and not yet kept: there are never two that run.
            return await target.take_in(lambda: source.tables(moved_to=to.database_shown))
        except StoreInDoubt:
            raise  # it may have been kept
        except BaseException:
            await source.take_back()
            raise
        finally:
            await target.close()
    finally:
        await source.close()

"""The whole, put together: the one file that names stores, launchers and the real clock."""

import asyncio
import logging
import os
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import onbeat
from onbeat import logs
from onbeat.core.schedules import ID, Schedule, check_schedule, read_policy, read_target
from onbeat.core.ticks import Trigger
from onbeat.engine.loop import Engine
from onbeat.errors import InvalidSchedule, InvalidSettings, StoreHeld, naming, shown
from onbeat.launchers.function import Function, FunctionLauncher
from onbeat.launchers.process import (
    PASSED,
    ProcessLauncher,
    forget_output,
    output_path,
)
from onbeat.ports import Clock, Launcher, Node, RunRow, ScheduleRow, Upserted
from onbeat.service import Service
from onbeat.settings import Settings
from onbeat.stores.sqlite import Holder, SqliteStore, who_holds

F = TypeVar("F", bound=Function)
log = logging.getLogger("onbeat.engine")

TAKE_OVER_EVERY = 0.5  # seconds between two tries of a client to become the node


class SystemClock:
    """The machine's own clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


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
    ) -> None:
        if settings is None:
            try:
                settings = Settings.load(
                    flags={"database": database}, environment=os.environ, folder=Path()
                )
            except InvalidSettings as wrong:  # here it was an argument, and no flag
                field = wrong.field.removeprefix("--")
                raise InvalidSettings(field, wrong.problem, hint=wrong.hint) from None
        elif database is not None:
            settings = replace(settings, database=database)
        self._settings = settings
        self._clock = clock or SystemClock()
        self._own_launchers = dict(launchers or {})
        self._new_id = new_id
        self._functions = FunctionLauncher(concurrency=self._settings.concurrency)
        self._decorated: dict[str, Schedule] = {}
        self._open: _Opened | None = None
        self._taking_over: asyncio.Task[None] | None = None

    def schedule(
        self,
        trigger: Trigger,
        *,
        name: str | None = None,
        inputs: Mapping[str, object] | None = None,
        **policy: object,
    ) -> Callable[[F], F]:
        """Run a function at the ticks of `trigger`, under a policy such as `overlap="queue"`."""
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
            with naming(schedule_id):
                self._functions.check(target)
            found = check_schedule(Schedule(schedule_id, trigger, target, read_policy(policy)))
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

    def run(self) -> None:
        """Run until SIGINT or SIGTERM, then stop in good order.

        A program that has set up no logging has what happens written to stderr.
        """
        if not logging.getLogger().handlers:
            logs.set_up(level=self._settings.log_level, as_json=self._settings.logs_json)
        asyncio.run(self.serve())

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
        """Wait until told to stop, or raise what made the engine fail."""
        waiting = asyncio.ensure_future(stopped.wait())
        while not stopped.is_set():
            engine = self._opened.engine
            other = engine.failed if engine is not None else self._taking_over
            both = {waiting} | ({other} if other is not None else set())
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if other is not None and other.done():
                other.result()
        waiting.cancel()

    async def __aenter__(self) -> Self:
        await self.open()
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

    async def open(self) -> Service:
        """Open the store, as a client: nothing is planned or launched."""
        self._open = await _Opened.make(
            self._settings, self._clock, self._own_launchers, self._functions, self._new_id
        )
        return self._open.service

    async def begin(self, *, client: bool = True) -> None:
        """Define what was decorated and run as a node; or be a client until there is none."""
        opened = self._opened
        try:
            await opened.begin()
        except StoreHeld as held:
            if not client:
                raise
            log.warning("joined as a client, and takes over when that ends: %s", held)
            self._taking_over = asyncio.create_task(opened.take_over())
        if self._decorated:
            await opened.service.define(list(self._decorated.values()), source="python")

    async def close(self) -> None:
        """Stop in good order."""
        if self._taking_over is not None:
            self._taking_over.cancel()
            await asyncio.wait([self._taking_over])
            self._taking_over = None
        if self._open is not None:
            await self._open.close()
            self._open = None

    async def define(self, *schedules: Schedule) -> list[Upserted]:
        """Define schedules; what changes nothing writes nothing."""
        return await self.service.define(schedules)

    async def start(
        self, schedule_id: str, *, request_id: str | None = None, **inputs: object
    ) -> RunRow:
        """Start a run now, with other inputs if they are given."""
        return await self.service.start(schedule_id, inputs=inputs or None, request_id=request_id)

    async def pause(self, schedule_id: str, *, note: str = "") -> bool:
        """Start nothing more of a schedule by itself."""
        return await self.service.pause(schedule_id, note=note)

    async def resume(self, schedule_id: str, *, catchup: bool = False) -> bool:
        """Let a schedule go on from now."""
        return await self.service.resume(schedule_id, catchup=catchup)

    async def delete(self, schedule_id: str) -> None:
        """Take a schedule away."""
        await self.service.delete(schedule_id)

    async def schedules(self) -> list[ScheduleRow]:
        """Return every schedule, by id."""
        return await self.service.schedules()

    async def runs(self, schedule_id: str | None = None, *, limit: int = 50) -> list[RunRow]:
        """Return runs, latest first."""
        return await self.service.runs(schedule_id=schedule_id, limit=limit)

    def wake(self) -> None:
        """Have the engine look again at once, such as when a clock of its own was set."""
        self._opened.wake()

    async def settle(self) -> None:
        """Wait until everything that is due by the clock has been decided, run and recorded."""
        engine = self._opened.engine
        assert engine is not None, "only a node settles: another process is the node"
        await engine.settle()

    @property
    def service(self) -> Service:
        """Everything that can be asked for, while it is open; the systems work on it."""
        return self._opened.service

    @property
    def is_node(self) -> bool:
        """Whether this process plans and runs, rather than being a client of one that does."""
        return self._opened.engine is not None

    @property
    def _opened(self) -> "_Opened":
        assert self._open is not None, "enter it first: async with beat: ..."
        return self._open


@asynccontextmanager
async def client(settings: Settings) -> AsyncIterator[Service]:
    """Open a store for a while, to define, start and read; nothing is planned or launched."""
    beat = Onbeat(settings=settings)
    try:
        yield await beat.open()
    finally:
        await beat.close()


def check_target(schedule: Schedule) -> None:
    """Refuse a schedule whose target could never be launched, without a store."""
    _launchers_that_check()[schedule.target.kind].check(schedule.target)


@cache
def _launchers_that_check() -> Mapping[str, Launcher]:
    return {
        "command": ProcessLauncher(Path(), environment={}),
        "python": FunctionLauncher(),
    }


def _make_writable(folder: Path) -> None:
    """Make the folder that output goes to, or refuse one that cannot be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as broken:
        problem = f"{folder} cannot be made: {broken.strerror}"
        raise InvalidSettings("output", problem, hint="a folder for what runs print") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        problem = f"{folder} cannot be written to"
        raise InvalidSettings("output", problem, hint="a folder for what runs print")


def holder(settings: Settings) -> Holder | None:
    """Return the node that has the database now, if one has."""
    return None if settings.database_path is None else who_holds(settings.database_path)


def output_file(settings: Settings, run_id: int, attempt: int) -> Path | None:
    """Return where an attempt's output is, or was, if it is in a file."""
    folder = settings.output_folder
    return None if folder is None else output_path(folder, run_id, attempt)


class _Opened:
    """An open store with everything that works on it."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: SqliteStore,
        launchers: Mapping[str, Launcher],
        functions: FunctionLauncher,
        *,
        output: Path,
        new_id: Callable[[], str],
    ) -> None:
        self._settings, self._clock, self._store = settings, clock, store
        self._functions, self._output = functions, output
        self._launchers, self._new_id = launchers, new_id
        self.service = Service(store, launchers, new_id=new_id, wake=self.wake)
        self.engine: Engine | None = None

    @classmethod
    async def make(
        cls,
        settings: Settings,
        clock: Clock,
        own: Mapping[str, Launcher],
        functions: FunctionLauncher,
        new_id: Callable[[], str],
    ) -> Self:
        store = await SqliteStore.open(settings.database_path, clock=clock, listener=logs.tell)
        output = settings.output_folder or Path(tempfile.gettempdir()) / f"onbeat-{store.store_id}"
        # A copy of the file has the same id: it must not end what the original has running.
        inode = f"-{store.path.stat().st_ino:x}" if store.path is not None else ""
        commands = ProcessLauncher(
            output,
            store_id=f"{store.store_id}{inode}",
            environment=os.environ,
            passed=(*PASSED, *settings.pass_env),
        )
        launchers: dict[str, Launcher] = {"command": commands, "python": functions, **own}
        return cls(settings, clock, store, launchers, functions, output=output, new_id=new_id)

    async def take_over(self) -> None:
        """Begin as soon as no other process is the node."""
        while self.engine is None:
            await asyncio.sleep(TAKE_OVER_EVERY)
            with suppress(StoreHeld):
                await self.begin()
        log.warning("took over: this process is the node now")

    async def begin(self) -> None:
        _make_writable(self._output)
        offers = {name for launcher in self._launchers.values() for name in launcher.offers()}
        offers |= set(self._functions.offers())  # whoever launches them
        name = f"{socket.gethostname()}:{os.getpid()}"
        node = Node(
            self._new_id(), name, frozenset(offers), self._settings.lease, onbeat.__version__
        )
        engine = Engine(
            self._store,
            self._clock,
            node,
            self._launchers,
            concurrency=self._settings.concurrency,
            catchup_per_second=self._settings.catchup_per_second,
            keep=self._settings.keep,
            forget=partial(forget_output, self._output),
        )
        await engine.start()
        self.engine = engine

    def hurry(self) -> None:
        """End what still runs, without waiting for its grace."""
        if self.engine is not None:
            self.engine.dispatcher.end_all()

    def wake(self) -> None:
        """Have the engine look again at once."""
        if self.engine is not None:
            self.engine.planner.wake()

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.stop(self._settings.stop_grace / 1000)
        for launcher in self._launchers.values():
            await launcher.close()
        await self._store.close()

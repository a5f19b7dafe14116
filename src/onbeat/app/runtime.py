"""The life of a process on a database.

A node goes through these steps, in this order, and back in reverse:

1. open: the store, the launchers, the systems as objects; a client stops here,
2. acquire: the lock of a SQLite file, so that no other process is its node,
3. define: the schedules of the program, then those of its files,
4. start the systems, which bring their own schedules up to date,
5. start the engine, which registers the node, plans and launches.
"""

import asyncio
import logging
import os
import shutil
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import onbeat
from onbeat.app import logs, notifications
from onbeat.app.metrics import Metrics
from onbeat.app.output import make_writable
from onbeat.app.parts import ProcessParts
from onbeat.app.settings import Settings
from onbeat.app.stores import open_store
from onbeat.core.schedule import Schedule
from onbeat.engine.node import Engine
from onbeat.engine.store_retry import until_answered
from onbeat.errors import InvalidFile, NodeDeclaredLost, StoreFailed, StoreHeld
from onbeat.host.output_files import delete_old_output
from onbeat.launchers.python.launcher import FunctionLauncher
from onbeat.ports.clock import Clock
from onbeat.ports.launcher import Launcher
from onbeat.ports.store import Listener, Node
from onbeat.service.service import Service
from onbeat.stores.sql.store import SqlStore

log = logging.getLogger("onbeat.engine")

TAKE_OVER_EVERY = 0.5  # seconds between two attempts of a client to become the node


class Runtime:
    """A store that is open, with everything that works on it. Make one with `open`."""

    def __init__(
        self,
        settings: Settings,
        store: SqlStore,
        functions: FunctionLauncher,
        *,
        listeners: list[Listener],
        metrics: Metrics,
        new_id: Callable[[], str],
        own_launchers: Mapping[str, Launcher] | None,
        execute: Callable[..., object] | None,
        address: str,
    ) -> None:
        self._settings, self.store = settings, store
        self.listeners, self.metrics = listeners, metrics
        self._new_id, self._address = new_id, address
        self.parts = ProcessParts(
            settings,
            store,
            functions,
            new_id=new_id,
            wake=self.wake,
            own=own_launchers,
            execute=execute,
            address=address,
        )
        self.service = self.parts.service
        listeners += self.parts.listeners
        self.engine: Engine | None = None
        self._definitions: Sequence[Schedule] = ()
        self._apply_files: Callable[[Service], Awaitable[None]] | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._taking_over: asyncio.Task[None] | None = None
        # Done when the node has stopped because it was requested to, or with its error.
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls,
        settings: Settings,
        functions: FunctionLauncher,
        *,
        new_id: Callable[[], str],
        clock: Clock | None = None,
        own_launchers: Mapping[str, Launcher] | None = None,
        execute: Callable[..., object] | None = None,
        address: str = "",
    ) -> Self:
        """Open the store of the settings, and make what works on it.

        `address` is where this process serves the API, if it does; `execute` runs DAGs in this
        program.
        """
        metrics = Metrics()
        listeners: list[Listener] = [metrics.on_events, lambda _, events: logs.write_log(events)]
        store = await open_store(settings, clock, listeners)
        return cls(
            settings,
            store,
            functions,
            listeners=listeners,
            metrics=metrics,
            new_id=new_id,
            own_launchers=own_launchers,
            execute=execute,
            address=address,
        )

    async def start(
        self,
        definitions: Sequence[Schedule] = (),
        *,
        apply_files: Callable[[Service], Awaitable[None]] | None = None,
        may_be_client: bool = True,
        until: float = 0.0,
    ) -> None:
        """Become the node. If another process is it, be a client that takes over from that one.

        A store that fails is tried again until `until`, by the clock of the event loop.
        """
        self._definitions, self._apply_files = definitions, apply_files
        make_writable(self.parts.output)
        try:
            engine = await until_answered(self._start_node, "the node is not up yet", until=until)
        except StoreHeld as held:
            if not may_be_client:
                raise
            log.warning(
                "another process is the node of this database; "
                "this one is a client until that process ends: %s",
                held,
            )
            self._taking_over = asyncio.create_task(self._take_over())
            await self._define()
        else:
            self._supervise(engine)

    async def _start_node(self, *, is_defined: bool = False) -> Engine:
        """Take steps 2 to 5. A client that takes over has defined its schedules already."""
        node = self._new_node()
        await self.store.acquire(node)
        if not is_defined:
            await self._define()
        if "plan" in self._settings.roles:
            await self.parts.start()
        return await self._start_engine(node)

    async def _define(self) -> None:
        if self._definitions:
            await self.service.define(list(self._definitions), source="python")
        if self._apply_files is not None:
            await self._apply_files(self.service)

    def _new_node(self) -> Node:
        roles = self._settings.roles
        return Node(
            self._new_id(),
            f"{socket.gethostname()}:{os.getpid()}",
            self.parts.offers() if "run" in roles else frozenset(),
            self._settings.lease,
            onbeat.__version__,
            frozenset(role for role in roles if role != "api" or self._address),
            self._address,
        )

    async def _start_engine(self, node: Node) -> Engine:
        settings = self._settings
        engine = Engine(
            self.store,
            self.store.clock,
            node,
            self.parts.launchers,
            concurrency=settings.concurrency,
            catchup_per_second=settings.catchup_per_second,
            lookahead=settings.lookahead,
            keep=settings.keep,
            forget=partial(delete_old_output, self.parts.output),
            outbox=notifications.outbox(settings, self.store),
        )
        await engine.start()
        return engine

    async def _take_over(self) -> None:
        """Become the node as soon as no other process is it."""
        logged = ""
        while self.engine is None:
            await asyncio.sleep(TAKE_OVER_EVERY)
            try:
                self._supervise(await self._start_node(is_defined=True))
            except StoreHeld:
                continue
            except (InvalidFile, StoreFailed) as error:  # the next attempt may succeed
                if str(error) != logged:
                    logged = str(error)
                    log.error("cannot become the node yet, will be retried: %s", logged)  # noqa: TRY400
        log.warning("took over: this process is the node now")

    def _supervise(self, engine: Engine) -> None:
        self.engine = engine
        self._supervising = asyncio.create_task(self._supervised(engine))

    async def _supervised(self, engine: Engine) -> None:
        """Stop the node when that is requested; register again if other nodes declared it dead."""
        try:
            while await self._is_forgotten(engine):
                await engine.stop(0)
                engine = await until_answered(self._register_again, "cannot register again")
                self.engine = engine
            log.warning("stop requested by onbeat down")
            self.engine = None
            await engine.stop(self._settings.stop_grace / 1000)
        except Exception as error:  # noqa: BLE001 - `ended` carries it to the caller
            self.ended.set_exception(error)
            self.ended.exception()  # marked as retrieved: `ended` may have no reader
        else:
            self.ended.set_result(None)

    async def _register_again(self) -> Engine:
        return await self._start_engine(self._new_node())

    async def _is_forgotten(self, engine: Engine) -> bool:
        """Wait for a stop request, or until other nodes declared this one dead; raise its error."""
        requested = asyncio.ensure_future(engine.asked_to_stop.wait())
        either: list[asyncio.Future[Any]] = [requested, engine.failed]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            requested.cancel()
        error = engine.failed.exception() if engine.failed.done() else None
        if error is not None and not isinstance(error, NodeDeclaredLost):
            raise error
        if error is not None:
            log.warning("this process registers again as another node: %s", error)
        return error is not None

    async def until(self, stopped: asyncio.Event) -> None:
        """Wait for a stop request, here or by `onbeat down`; raise the error of a failed engine."""
        waiting = asyncio.ensure_future(stopped.wait())
        while not (stopped.is_set() or self.ended.done()):
            taking_over = self._taking_over
            any_of: list[asyncio.Future[Any]] = [waiting, self.ended]
            if taking_over is not None and not taking_over.done():
                any_of.append(taking_over)
            await asyncio.wait(any_of, return_when=asyncio.FIRST_COMPLETED)
            if taking_over is not None and taking_over.done():
                taking_over.result()
        waiting.cancel()
        if self.ended.done():
            self.ended.result()

    def end_runs_now(self) -> None:
        """End what still runs, without waiting for its grace."""
        if self.engine is not None:
            self.engine.hurry()

    def wake(self) -> None:
        """Make the engine look for work immediately."""
        if self.engine is not None:
            self.engine.look_for_changes()

    async def close(self) -> None:
        """Stop the engine, then the systems, which record its last outcomes; close the store."""
        if self._taking_over is not None:
            self._taking_over.cancel()
            await asyncio.wait([self._taking_over])
        try:
            await self._stop_engine()
            await self.parts.stop()
        finally:
            try:
                await self.parts.close()
            finally:
                await self.store.close()
                if self._settings.output_folder is None:  # a store in memory leaves nothing behind
                    shutil.rmtree(self.parts.output, ignore_errors=True)

    async def _stop_engine(self) -> None:
        """Stop the engine, if there is one, when its runs have ended or their grace has."""
        if self._supervising is not None:
            if self.engine is not None:  # otherwise it is being stopped already
                self._supervising.cancel()
            await asyncio.wait([self._supervising])
        if self.engine is not None:
            await self.engine.stop(self._settings.stop_grace / 1000)

"""Python functions on a Ray cluster: `run: {python: "reports:build", on: ray}`.

Each run has a detached actor of its own, named by the run's key, so that it cannot start twice. It
goes on when the node that started it is gone, and is found again by whoever has the run next. It
stays until its outcome is recorded; then it is ended.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from onbeat.core.runs.run import Busy, Canceled, Failed, Lost, Outcome, Succeeded
from onbeat.core.schedule import Target
from onbeat.core.time.instants import rfc3339
from onbeat.engine.concurrency import finish_despite_cancel
from onbeat.errors import InvalidSchedule, StoreFailed
from onbeat.events import Event, RunCanceled, RunFailed, RunRetrying, RunSucceeded
from onbeat.ports.rows import DocumentRow, RunRow
from onbeat.ports.store import Attempt, Clock
from onbeat.systems.ray.dag import read_dag
from onbeat.systems.ray.link import Fields, GatewayEnded, Heard, Link
from onbeat.systems.ray.target import read_target

log = logging.getLogger("onbeat.ray")

BUSY_FOR = 10_000  # milliseconds after which a cluster that did not answer is asked again
HOW_TO_REACH = "start a cluster, or correct the setting ray_address: docs/ray.md"
PAUSE = 1.0
LONGEST_FILE = 10 * 1024 * 1024  # bytes of output that are kept while it runs
LAST_WORDS = 3.0  # seconds that a node which stops waits for the cluster
KEPT_FOR = 60.0  # seconds that a DAG's outcome stays on the cluster after it was told
FORGOTTEN_AFTER = 600.0  # seconds after which one that nobody came back for is ended
NEVER = 2**62
WAITS = "[onbeat: waits for a place on the cluster]\n"  # as the gateway tells it
ZERO_OR_ONE = "it was started zero or one times"


class RunRecords(Protocol):
    """What is asked of a store."""

    clock: Clock

    async def run(self, run_id: int) -> RunRow | None:
        """Return one run."""

    async def keep(self, kind: str, name: str, body: object, *, user_id: str = "") -> None:
        """Keep it in place of what has this name."""

    async def kept(self, kind: str, name: str) -> DocumentRow | None:
        """Return what has this name."""


class RayLauncher:
    """Runs functions on a cluster; without a link to one it offers nothing, and runs wait.

    `path_of` is the file that an attempt prints to.
    """

    def __init__(
        self,
        link: Link | None,
        *,
        books: RunRecords | None = None,
        path_of: Callable[[int, int], Path] = lambda run_id, attempt: Path(),  # noqa: ARG005
    ) -> None:
        self._link, self._books, self._path_of = link, books, path_of
        self._known = ("", 0)  # a cluster, and since when runs were started there
        self._held: dict[int, str] = {}  # the runs that are attended here, and their runners
        self._begun: set[int] = set()  # those that may run by now: the cluster was asked for them
        self._left: set[int] = set()  # which go on without this node
        self._actors: dict[int, object] = {}  # what Ray calls those that have begun
        self.on_begun: Callable[[Attempt, str], None] | None = None
        # Whose outcome was told and is not recorded yet: its runner, and of which attempt.
        self._told: dict[int, tuple[str, object]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._keeping: set[asyncio.Task[None]] = set()  # outcomes of DAGs, for a while

    def check(self, target: Target) -> None:
        read_target(target)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - it is so for all of them
        """Whatever it started can be ended, with its worker."""
        return True

    def offers(self) -> Iterable[str]:
        return () if self._link is None else ("ray",)

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        try:
            asked = read_target(attempt.target)
        except InvalidSchedule as refused:  # it was defined by another version
            return Failed(str(refused), "invalid_target", retryable=False), ""
        if attempt.is_to_end:
            await finish_despite_cancel(self._end(attempt.key, grace=attempt.cancel_grace / 1000))
            return Canceled("ended because it was asked to"), ""
        spec = {"python": asked.python, "inputs": attempt.inputs}
        self._held[attempt.run_id] = attempt.key
        if attempt.may_run:
            self._begun.add(attempt.run_id)
        printed = _Printed(self._path_of(attempt.run_id, attempt.attempt))
        try:
            found, tail = await self._attend(attempt, spec, asked.options, printed)
        finally:
            self._held.pop(attempt.run_id, None)
            self._actors.pop(attempt.run_id, None)
            self._begun.discard(attempt.run_id)
            self._left.discard(attempt.run_id)
        return found, tail

    async def _attend(
        self, attempt: Attempt, spec: Fields, options: Mapping[str, object], printed: "_Printed"
    ) -> tuple[Outcome, str]:
        """See an attempt through to its end, or end it."""
        allowed = None if attempt.timeout is None else attempt.timeout / 1000
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(allowed) as limit:

                def heard(told: Fields) -> None:
                    printed.write(str(told.get("output", "")))
                    self._begun.add(attempt.run_id)
                    self._tell_begun(attempt, told.get("actor"))
                    if allowed is not None and "ran" in told:  # it may run since long before this
                        limit.reschedule(loop.time() + allowed - float(str(told["ran"])))

                asking = _Asking(
                    attempt.key, spec, options, _about(attempt), attempt.run_at * 1000,
                    may_run=attempt.may_run, at_least_once=attempt.at_least_once,
                )  # fmt: skip
                told = await self._outcome_of(asking, heard)
                if isinstance(outcome := told.get("outcome"), dict):
                    self._told[attempt.run_id] = attempt.key, outcome["attempt"]
                    printed.finish(str(outcome["tail"]))
                    self._tell_begun(attempt, outcome.get("actor"))
                return _meaning(told, at_least_once=attempt.at_least_once)
        except TimeoutError:
            await finish_despite_cancel(self._end(attempt.key, grace=attempt.cancel_grace / 1000))
            said = f"still running after {(attempt.timeout or 0) / 1000:g} s"
            return Failed(said, "timeout"), printed.tail
        except asyncio.CancelledError:
            if attempt.run_id not in self._begun:
                return Busy("it was given up before it began", 0), ""
            if attempt.run_id not in self._left:
                await finish_despite_cancel(
                    self._end(attempt.key, grace=attempt.cancel_grace / 1000)
                )
            raise

    def _tell_begun(self, attempt: Attempt, actor: object) -> None:
        """Tell once of each actor that has begun; one that is found again has begun before."""
        if actor and self._actors.get(attempt.run_id) != actor:
            self._actors[attempt.run_id] = actor
            log.info("run %d of %s: actor %s", attempt.run_id, attempt.schedule_id, actor)
            if not attempt.may_run and self.on_begun is not None:
                self.on_begun(attempt, str(actor))

    async def _outcome_of(self, asking: "_Asking", heard: Heard) -> Fields:
        """Return what a runner says in the end, through as many gateways as that takes.

        As long as nothing has begun, a cluster that does not answer is only `unreachable`.
        """
        assert self._link is not None, "what offers nothing is asked for nothing"
        loop = asyncio.get_running_loop()
        until = loop.time() + self._link.lease
        while True:
            try:
                since = await self._here_since()
                told = await self._link.ask("run", asking.fields(), heard)
                # The cluster would know if it had begun, unless that was in another life of it.
                never = told.get("never_began") and since <= asking.not_before
                if never or told.get("unborn"):
                    asking.may_run = False
                    await asyncio.sleep(PAUSE)
                    continue
                return told  # noqa: TRY300 - each way out has its reason beside it
            except StoreFailed as broken:
                if not asking.may_run:
                    return {"unreachable": str(broken)}
                await asyncio.sleep(PAUSE)
            except GatewayEnded as cut:
                asking.may_run = asking.may_run or cut.begun
                if not asking.may_run:
                    return {"unreachable": str(cut)}
                if cut.begun:  # it was reached, so that this is another silence
                    until = loop.time() + self._link.lease
                elif loop.time() > until:
                    return {"silent": str(cut)}
                await asyncio.sleep(PAUSE)

    async def _here_since(self) -> int:
        """Return since when, in milliseconds, all runs were started in this life of the cluster."""
        assert self._link is not None, "it is asked"
        assert self._books is not None, "it can do more than check"
        cluster = await self._link.cluster()
        if not cluster:
            return NEVER
        if self._known[0] != cluster:
            found = await self._books.kept("ray", "cluster")
            said = found.body if found is not None else {"id": "", "since": 0}
            if not isinstance(said, dict) or said.get("id") != cluster:
                since = 0 if found is None else self._books.clock.now()  # it is the first there is
                said = {"id": cluster, "since": since}
                await self._books.keep("ray", "cluster", said)  # before anything is started there
            self._known = cluster, int(str(said["since"]))
        return self._known[1]

    async def run_dag(self, key: str, dag: Fields, meta: Fields) -> Outcome:
        """Run the nodes of a DAG on the cluster, each once those before it are done.

        The same key is the same run: it is found again if it goes on, or has just ended.
        """
        try:
            read_dag(dag)
        except ValueError as refused:
            return Failed(str(refused), "invalid_target", retryable=False)
        about = {"schedule_key": str(meta.get("source", "")), "user": meta.get("user_id")}
        about |= {"triggered_by": "workflow", "key": key, "attempt": 1}
        asking = _Asking(
            key, {"dag": dag, "meta": meta}, {"num_cpus": 0}, about, 0,
            may_run=False, at_least_once=True,
        )  # fmt: skip
        try:
            told = await self._outcome_of(asking, lambda _: None)
        except asyncio.CancelledError:
            await finish_despite_cancel(self._end(key))
            raise
        if "outcome" in told:
            _begin(self._forget(key), self._keeping)
        outcome, why = _meaning(told, at_least_once=True)
        if isinstance(outcome, Lost):
            return Failed(why.strip(), "launch_failed")
        if isinstance(outcome, Failed):  # its end is told: another attempt is another run of it
            await self._end(key)
        return outcome

    def leave(self, run_ids: Collection[int]) -> frozenset[int]:
        """Let go of what goes on without this node: whoever has the run next finds it."""
        left = frozenset(run_ids) & self._begun
        self._left |= left
        return left

    def kill(self, run_ids: Collection[int]) -> None:
        """Nothing is to be killed: it has the run's name, so that nobody can start it again."""

    async def recover(self) -> int:
        return 0  # what goes on is found again, run by run

    async def close(self) -> None:
        if self._ending:  # of runs that have just been recorded; who does not answer is left
            await asyncio.wait(self._ending, timeout=LAST_WORDS)
        for task in (*self._ending, *self._keeping):
            task.cancel()
        if self._link is not None:
            await self._link.close()

    def on_events(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - as listeners are told
        """Hear what was recorded: whose outcome is, that runner is needed no more."""
        for event in events:
            match event:
                case RunSucceeded() | RunFailed() | RunCanceled() | RunRetrying():
                    told = self._told.pop(event.run_id, None)
                    if told is not None:
                        _begin(self._end(told[0], attempt=told[1]), self._ending)
                case _:
                    pass

    async def tidy(self) -> None:
        """End runners whose run is over, or is no more: of a node that died at the wrong moment."""
        if self._link is None or self._books is None:
            return
        attended = {*self._held.values(), *(name for name, _ in self._told.values())}
        try:
            found = (await self._link.ask("list", {})).get("runners", ())
        except GatewayEnded:
            return  # nobody is there
        assert isinstance(found, list), "so it is told"
        for each in found:
            if each["name"] in attended:
                continue
            if "run_id" in each:
                run = await self._books.run(each["run_id"])
                is_over = run is None or run.finished_at is not None
            else:
                is_over = each["is_over"] and each["over_for"] > FORGOTTEN_AFTER
            if is_over:
                await self._end(each["name"], attempt=each["attempt"])

    async def mirror(self, name: str, namespace: str, meta: Fields) -> None:
        """Have an actor on the cluster tell this to whoever looks there; it may fail in silence."""
        if self._link is not None:
            with suppress(GatewayEnded):
                await self._link.ask(
                    "mirror", {"name": name, "namespace": namespace, "meta": dict(meta)}
                )

    async def _forget(self, name: str) -> None:
        await asyncio.sleep(KEPT_FOR)
        await self._end(name)

    async def _end(self, name: str, *, grace: float = 0, attempt: object = None) -> None:
        """End a runner, or only that of an attempt; who cannot be reached is ended when it can."""
        assert self._link is not None, "it was started through it"
        try:
            await self._link.ask("end", {"name": name, "grace": grace, "attempt": attempt})
        except GatewayEnded as cut:
            log.warning("runner %s could not be ended yet: %s", name[:12], cut)


class _Asking:
    """What a gateway is asked for: a runner, which is started unless it may have been before."""

    def __init__(
        self,
        name: str,
        spec: Fields,
        options: Mapping[str, object],
        about: Mapping[str, object],
        not_before: int,  # milliseconds: nothing of it can have been started earlier
        *,
        may_run: bool,
        at_least_once: bool,
    ) -> None:
        self.not_before = not_before
        self._given = {"name": name, "spec": spec, "options": options, "about": about}
        self.may_run, self._at_least_once = may_run, at_least_once

    def fields(self) -> Fields:
        only_find = self.may_run and not self._at_least_once
        return {**self._given, "may_run": self.may_run, "only_find": only_find}


class _Printed:
    """The file of what an attempt prints, as far as it is told while it runs."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, 0
        self.tail = ""

    def write(self, text: str) -> None:
        if not text or self._size > LONGEST_FILE:
            return
        self.tail = (self.tail + text)[-65_536:]
        with suppress(OSError):  # it is told again when it has ended
            if not self._size:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._path.write_bytes(b"")
            with self._path.open("ab") as file:
                file.write(text.encode(errors="replace"))
        self._size += len(text)

    def finish(self, tail: str) -> None:
        """Add what is known of the end, and was not told before: whoever reads the file has it."""
        said = self.tail.removeprefix(WAITS)
        if tail.startswith(said):
            self.write(tail[len(said) :])
        else:  # there was too much of it in between
            self.write(f"\n[onbeat: some of its output was dropped]\n{tail}")


def _about(attempt: Attempt) -> dict[str, object]:
    """Return what a runner tells of itself, and hands to a function that has a parameter `run`."""
    return {
        "run_id": attempt.run_id,
        "key": attempt.key,
        "schedule_id": attempt.schedule_id,
        "schedule_key": attempt.schedule_id,
        "run_at": attempt.run_at,
        "planned_for": rfc3339(attempt.run_at),
        "attempt": attempt.attempt,
        "iteration": attempt.iteration,
        "triggered_by": attempt.cause if attempt.request_id else "timer",
        "cause": attempt.triggered_by,  # more exactly: the first time, a retry, a catch-up
        "user": attempt.user_id,
        "revision": attempt.revision,
    }


def _meaning(told: Fields, *, at_least_once: bool) -> tuple[Outcome, str]:
    """Return the outcome that an answer of the gateway stands for."""
    match told:
        case {"outcome": dict(outcome)}:
            tail = str(outcome.get("tail", ""))
            if "error" not in outcome:
                return Succeeded(outcome["result"]), tail
            may_again = bool(outcome["is_set_up"])
            return Failed(str(outcome["error"]), retryable=may_again), tail
        case {"unreachable": why}:
            return Busy(f"Ray cannot be reached: {why} ({HOW_TO_REACH})", BUSY_FOR), ""
        case {"silent": why}:
            return _lost(f"{why}: {ZERO_OR_ONE}", at_least_once=at_least_once)
        case {"absent": True}:
            return _lost(f"nothing of it is left on the cluster: {ZERO_OR_ONE}")
        case {"lost": why}:
            return _lost(str(why), at_least_once=at_least_once)
        case _:
            return Failed(str(told.get("broken", told)), "launch_failed", retryable=False), ""


def _lost(why: str, *, at_least_once: bool = False) -> tuple[Outcome, str]:
    """Return what becomes of a run that is gone: it is over, unless it is to be started again."""
    return (Lost() if at_least_once else Failed(why, "lost", retryable=False)), f"{why}\n"


def _begin(work: Coroutine[object, object, None], among: set[asyncio.Task[None]]) -> None:
    task = asyncio.ensure_future(work)
    among.add(task)
    task.add_done_callback(among.discard)

"""Python functions on a Ray cluster: `run: {python: "reports:build", on: ray}`.

Each run has a detached actor that is named by the run's key, so that it cannot start twice. It
continues when its node ends, and the node that claims the run next reattaches it. It stays until
the outcome is recorded, and is ended then.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from onbeat.core.runs.run import Busy, Canceled, Failed, Lost, Outcome, Succeeded
from onbeat.core.target import Target
from onbeat.core.time.instants import rfc3339
from onbeat.engine.concurrency import finish_despite_cancel
from onbeat.errors import InvalidSchedule, StoreFailed
from onbeat.events import Event, RunCanceled, RunFailed, RunRetrying, RunSucceeded
from onbeat.ports.clock import Clock
from onbeat.ports.rows import DocumentRow, RunRow
from onbeat.ports.store import Attempt
from onbeat.systems.ray.dag import read_dag
from onbeat.systems.ray.link import Fields, GatewayEnded, Link, OnMessage
from onbeat.systems.ray.target import read_target

log = logging.getLogger("onbeat.ray")

BUSY_FOR = 10_000  # delay in milliseconds before a silent cluster is tried again
HOW_TO_REACH = "start a cluster, or correct the setting ray_address: docs/ray.md"
PAUSE = 1.0
LONGEST_FILE = 10 * 1024 * 1024  # bytes of output that are stored while a run is in progress
LAST_WORDS = 3.0  # seconds that a stopping node waits for the cluster
KEPT_FOR = 60.0  # seconds that a DAG's outcome stays on the cluster after it was read
FORGOTTEN_AFTER = 600.0  # seconds after which an abandoned runner is ended
NEVER = 2**62
WAITS = "[onbeat: waits for a place on the cluster]\n"  # as the gateway sends it
ZERO_OR_ONE = "it was started zero or one times"


class RunRecords(Protocol):
    """The parts of a store that the launcher uses."""

    clock: Clock

    async def run(self, run_id: int) -> RunRow | None:
        """Return a run."""

    async def keep(self, kind: str, name: str, body: object, *, user_id: str = "") -> None:
        """Store a document, replacing its predecessor."""

    async def kept(self, kind: str, name: str) -> DocumentRow | None:
        """Return the document of this name."""


class RayLauncher:
    """Runs functions on a cluster; without a link to one it offers nothing, and runs wait.

    `path_of` is the file of an attempt's output.
    """

    def __init__(
        self,
        link: Link | None,
        *,
        records: RunRecords | None = None,
        path_of: Callable[[int, int], Path] = lambda run_id, attempt: Path(),  # noqa: ARG005
    ) -> None:
        self._link, self._records, self._path_of = link, records, path_of
        self._cluster = ("", 0)  # its id, and since when it is used
        self._attended: dict[int, str] = {}  # runs followed here, and their runners
        self._begun: set[int] = set()  # of these, the runs that may have been started
        self._left: set[int] = set()  # of these, the runs that are left to another node
        self._actors: dict[int, object] = {}  # Ray's ids of the actors that have begun
        self.on_begun: Callable[[Attempt, str], None] | None = None
        # Runs whose outcome is not recorded yet: the runner, and its attempt.
        self._unrecorded: dict[int, tuple[str, object]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._keeping: set[asyncio.Task[None]] = set()  # outcomes of DAGs, for KEPT_FOR

    def check(self, target: Target) -> None:
        read_target(target)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - the same for all
        """Return True: any runner can be ended with its worker."""
        return True

    def offers(self) -> Iterable[str]:
        return () if self._link is None else ("ray",)

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        try:
            on_ray = read_target(attempt.target)
        except InvalidSchedule as refused:  # defined by another version
            return Failed(str(refused), "invalid_target", retryable=False), ""
        if attempt.is_cancel_requested:
            await finish_despite_cancel(self._end(attempt.key, grace=attempt.cancel_grace / 1000))
            return Canceled("canceled as requested"), ""
        spec = {"python": on_ray.python, "inputs": attempt.inputs}
        self._attended[attempt.run_id] = attempt.key
        if attempt.may_run:
            self._begun.add(attempt.run_id)
        output = _OutputFile(self._path_of(attempt.run_id, attempt.attempt))
        try:
            found, tail = await self._attend(attempt, spec, on_ray.options, output)
        finally:
            self._attended.pop(attempt.run_id, None)
            self._actors.pop(attempt.run_id, None)
            self._begun.discard(attempt.run_id)
            self._left.discard(attempt.run_id)
        return found, tail

    async def _attend(
        self, attempt: Attempt, spec: Fields, options: Mapping[str, object], output: "_OutputFile"
    ) -> tuple[Outcome, str]:
        """Follow an attempt until it ends, or end it."""
        allowed = None if attempt.timeout is None else attempt.timeout / 1000
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(allowed) as limit:

                def on_message(message: Fields) -> None:
                    output.write(str(message.get("output", "")))
                    self._begun.add(attempt.run_id)
                    self._note_actor(attempt, message.get("actor"))
                    if allowed is not None and "ran" in message:  # it may have started long ago
                        limit.reschedule(loop.time() + allowed - float(str(message["ran"])))

                request = _RunRequest(
                    attempt.key, spec, options, _about(attempt), attempt.run_at * 1000,
                    may_run=attempt.may_run, at_least_once=attempt.at_least_once,
                )  # fmt: skip
                answer = await self._request(request, on_message)
                if isinstance(outcome := answer.get("outcome"), dict):
                    self._unrecorded[attempt.run_id] = attempt.key, outcome["attempt"]
                    output.finish(str(outcome["tail"]))
                    self._note_actor(attempt, outcome.get("actor"))
                return _outcome_of(answer, at_least_once=attempt.at_least_once)
        except TimeoutError:
            await finish_despite_cancel(self._end(attempt.key, grace=attempt.cancel_grace / 1000))
            problem = f"still running after {(attempt.timeout or 0) / 1000:g} s"
            return Failed(problem, "timeout"), output.tail
        except asyncio.CancelledError:
            if attempt.run_id not in self._begun:
                return Busy("given up before it began", 0), ""
            if attempt.run_id not in self._left:
                await finish_despite_cancel(
                    self._end(attempt.key, grace=attempt.cancel_grace / 1000)
                )
            raise

    def _note_actor(self, attempt: Attempt, actor: object) -> None:
        """Log each new actor once, and report its start unless it was reattached."""
        if actor and self._actors.get(attempt.run_id) != actor:
            self._actors[attempt.run_id] = actor
            log.info(
                "run %d of schedule %s: started as Ray actor %s",
                attempt.run_id,
                attempt.schedule_id,
                actor,
            )
            if not attempt.may_run and self.on_begun is not None:
                self.on_begun(attempt, str(actor))

    async def _request(self, request: "_RunRequest", on_message: OnMessage) -> Fields:
        """Return a runner's final answer, reconnecting as often as needed.

        While nothing has begun, a silent cluster is only `unreachable`.
        """
        assert self._link is not None, "without a link it offers nothing"
        loop = asyncio.get_running_loop()
        until = loop.time() + self._link.lease
        while True:
            try:
                since = await self._used_since()
                answer = await self._link.ask("run", request.fields(), on_message)
                # The cluster knows whether it has begun, unless the cluster was restarted since.
                never = answer.get("never_began") and since <= request.not_before
                if never or answer.get("unborn"):
                    request.may_run = False
                    await asyncio.sleep(PAUSE)
                    continue
                return answer  # noqa: TRY300 - beside the other exits
            except StoreFailed as broken:
                if not request.may_run:
                    return {"unreachable": str(broken)}
                await asyncio.sleep(PAUSE)
            except GatewayEnded as cut:
                request.may_run = request.may_run or cut.begun
                if not request.may_run:
                    return {"unreachable": str(cut)}
                if cut.begun:  # it was reached, so the silence starts again
                    until = loop.time() + self._link.lease
                elif loop.time() > until:
                    return {"silent": str(cut)}
                await asyncio.sleep(PAUSE)

    async def _used_since(self) -> int:
        """Return since when (ms) runs are started on this cluster, as identified by its id."""
        assert self._link is not None, "without a link it offers nothing"
        assert self._records is not None, "a launcher with a link has records"
        cluster = await self._link.cluster()
        if not cluster:
            return NEVER
        if self._cluster[0] != cluster:
            found = await self._records.kept("ray", "cluster")
            document = found.body if found is not None else {"id": "", "since": 0}
            if not isinstance(document, dict) or document.get("id") != cluster:
                since = 0 if found is None else self._records.clock.now()  # the first cluster
                document = {"id": cluster, "since": since}
                await self._records.keep("ray", "cluster", document)  # before anything is started
            self._cluster = cluster, int(str(document["since"]))
        return self._cluster[1]

    async def run_dag(self, key: str, dag: Fields, meta: Fields) -> Outcome:
        """Run the nodes of a DAG on the cluster, each after its dependencies.

        The same key is the same run: it is reattached if it is running, or has just ended.
        """
        try:
            read_dag(dag)
        except ValueError as refused:
            return Failed(str(refused), "invalid_target", retryable=False)
        about = {"schedule_key": str(meta.get("source", "")), "user": meta.get("user_id")}
        about |= {"triggered_by": "workflow", "key": key, "attempt": 1}
        request = _RunRequest(
            key, {"dag": dag, "meta": meta}, {"num_cpus": 0}, about, 0,
            may_run=False, at_least_once=True,
        )  # fmt: skip
        try:
            answer = await self._request(request, lambda _: None)
        except asyncio.CancelledError:
            await finish_despite_cancel(self._end(key))
            raise
        if "outcome" in answer:
            _start(self._end_later(key), self._keeping)
        outcome, why = _outcome_of(answer, at_least_once=True)
        if isinstance(outcome, Lost):
            return Failed(why.strip(), "launch_failed")
        if isinstance(outcome, Failed):  # another attempt is a new run
            await self._end(key)
        return outcome

    def leave(self, run_ids: Collection[int]) -> frozenset[int]:
        """Leave runs that may have begun to the node that claims them next."""
        left = frozenset(run_ids) & self._begun
        self._left |= left
        return left

    def kill(self, run_ids: Collection[int]) -> None:
        """Do nothing: a runner has the run's name, so it cannot start twice."""

    async def recover(self) -> int:
        return 0  # runs are reattached one by one

    async def close(self) -> None:
        if self._ending:  # an unavailable cluster is not awaited
            await asyncio.wait(self._ending, timeout=LAST_WORDS)
        for task in (*self._ending, *self._keeping):
            task.cancel()
        if self._link is not None:
            await self._link.close()

    def on_events(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - a listener
        """End the runners of runs whose outcome was recorded."""
        for event in events:
            match event:
                case RunSucceeded() | RunFailed() | RunCanceled() | RunRetrying():
                    runner = self._unrecorded.pop(event.run_id, None)
                    if runner is not None:
                        _start(self._end(runner[0], attempt=runner[1]), self._ending)
                case _:
                    pass

    async def tidy(self) -> None:
        """End runners whose run has ended or was deleted, as after the crash of a node."""
        if self._link is None or self._records is None:
            return
        attended = {*self._attended.values(), *(name for name, _ in self._unrecorded.values())}
        try:
            found = (await self._link.ask("list", {})).get("runners", ())
        except GatewayEnded:
            return  # no cluster
        assert isinstance(found, list), "as the gateway sends it"
        for each in found:
            if each["name"] in attended:
                continue
            if "run_id" in each:
                run = await self._records.run(each["run_id"])
                has_ended = run is None or run.finished_at is not None
            else:
                has_ended = each["is_over"] and each["over_for"] > FORGOTTEN_AFTER
            if has_ended:
                await self._end(each["name"], attempt=each["attempt"])

    async def mirror(self, name: str, namespace: str, meta: Fields) -> None:
        """Update the mirror actor on the cluster, if the cluster can be reached."""
        if self._link is not None:
            with suppress(GatewayEnded):
                await self._link.ask(
                    "mirror", {"name": name, "namespace": namespace, "meta": dict(meta)}
                )

    async def _end_later(self, name: str) -> None:
        await asyncio.sleep(KEPT_FOR)
        await self._end(name)

    async def _end(self, name: str, *, grace: float = 0, attempt: object = None) -> None:
        """End a runner, or only that of an attempt; an unreachable one is ended by `tidy`."""
        assert self._link is not None, "without a link it starts nothing"
        try:
            await self._link.ask("end", {"name": name, "grace": grace, "attempt": attempt})
        except GatewayEnded as cut:
            log.warning(
                "Ray runner %s could not be stopped yet, will be retried: %s", name[:12], cut
            )


class _RunRequest:
    """A request to a gateway for a runner, which is started unless it may be running already."""

    def __init__(
        self,
        name: str,
        spec: Fields,
        options: Mapping[str, object],
        about: Mapping[str, object],
        not_before: int,  # milliseconds: it was not started earlier
        *,
        may_run: bool,
        at_least_once: bool,
    ) -> None:
        self.not_before = not_before
        self._fields = {"name": name, "spec": spec, "options": options, "about": about}
        self.may_run, self._at_least_once = may_run, at_least_once

    def fields(self) -> Fields:
        only_find = self.may_run and not self._at_least_once
        return {**self._fields, "may_run": self.may_run, "only_find": only_find}


class _OutputFile:
    """The file of an attempt's output, written while the attempt runs."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, 0
        self.tail = ""

    def write(self, text: str) -> None:
        if not text or self._size > LONGEST_FILE:
            return
        self.tail = (self.tail + text)[-65_536:]
        with suppress(OSError):  # it is sent again at the end
            if not self._size:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._path.write_bytes(b"")
            with self._path.open("ab") as file:
                file.write(text.encode(errors="replace"))
        self._size += len(text)

    def finish(self, tail: str) -> None:
        """Append the rest of the output at the end of the attempt."""
        written = self.tail.removeprefix(WAITS)
        if tail.startswith(written):
            self.write(tail[len(written) :])
        else:  # too much was printed since
            self.write(f"\n[onbeat: some of its output was dropped]\n{tail}")


def _about(attempt: Attempt) -> dict[str, object]:
    """Return what a runner shows about itself, and passes to a function's parameter `run`."""
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
        "cause": attempt.triggered_by,  # such as tick, retry, catch-up
        "user": attempt.user_id,
        "revision": attempt.revision,
    }


def _outcome_of(answer: Fields, *, at_least_once: bool) -> tuple[Outcome, str]:
    """Return the outcome for an answer of the gateway."""
    match answer:
        case {"outcome": dict(outcome)}:
            tail = str(outcome.get("tail", ""))
            if "error" not in outcome:
                return Succeeded(outcome["result"]), tail
            is_retryable = bool(outcome["is_set_up"])
            return Failed(str(outcome["error"]), retryable=is_retryable), tail
        case {"unreachable": why}:
            return Busy(f"Ray cannot be reached: {why} ({HOW_TO_REACH})", BUSY_FOR), ""
        case {"silent": why}:
            return _lost(f"{why}: {ZERO_OR_ONE}", at_least_once=at_least_once)
        case {"absent": True}:
            return _lost(f"the cluster has no trace of it: {ZERO_OR_ONE}")
        case {"lost": why}:
            return _lost(str(why), at_least_once=at_least_once)
        case _:
            return Failed(str(answer.get("broken", answer)), "launch_failed", retryable=False), ""


def _lost(why: str, *, at_least_once: bool = False) -> tuple[Outcome, str]:
    """Return the outcome of a lost run: it failed, unless it is to be started again."""
    return (Lost() if at_least_once else Failed(why, "lost", retryable=False)), f"{why}\n"


def _start(work: Coroutine[object, object, None], among: set[asyncio.Task[None]]) -> None:
    task = asyncio.ensure_future(work)
    among.add(task)
    task.add_done_callback(among.discard)

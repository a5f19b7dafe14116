"""`OutcomeRecorder`: outcomes and unlaunched runs, kept until the store has them.

Rules:

- An outcome is kept until it is recorded. A call is repeated until the store answers; an outcome
  that cannot be recorded becomes a failure, and affects no other.
- At every `await`, each run that has ended and is not recorded, or that was claimed and not
  launched, is in one of the three lists here. The node frees runs that are in none of its lists
  (`UnknownRuns.release`), and they would start twice.
- `idle` returns when no slot is taken and the lists are empty. It also returns once recording has
  ended: nothing would wake its callers any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from onbeat.core.runs.run import Accepted, Failed
from onbeat.engine.slots import Slots
from onbeat.engine.store_retry import until_answered
from onbeat.errors import StoreUnusable
from onbeat.ports.store import Attempt, Finished, Store

T = TypeVar("T")
log = logging.getLogger("onbeat.engine")


class OutcomeRecorder:
    """Records outcomes and hands back runs: in each round, all that have collected."""

    def __init__(
        self, store: Store, slots: Slots, on_recorded: Callable[[Sequence[Finished]], None]
    ) -> None:
        """`on_recorded` gets the outcomes of each round, which may be none."""
        self._store, self._slots, self._on_recorded = store, slots, on_recorded
        self.rounds = 0  # how many times outcomes were recorded
        self._finished: list[Finished] = []
        self._recording: list[Finished] = []
        self._unlaunched: list[Attempt] = []
        self._late = 0  # of these, how many were too late to be launched and are not logged yet
        self._wanted, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._has_ended = False

    @property
    def unrecorded(self) -> int:
        """How many outcomes wait to be recorded, or are being recorded."""
        return len(self._finished) + len(self._recording)

    @property
    def is_recording(self) -> bool:
        """Whether outcomes are being recorded, or are about to be."""
        return bool(self.unrecorded or self._unlaunched) or self._wanted.is_set()

    @property
    def is_idle(self) -> bool:
        """Whether no slot is taken, and all runs are recorded or handed back."""
        return self._is_empty and self._idle.is_set()

    @property
    def _is_empty(self) -> bool:
        return not (self._slots.taken or self.unrecorded or self._unlaunched)

    def kept(self) -> Iterator[Attempt]:
        """Yield the attempts of all lists."""
        yield from (each.attempt for each in (*self._finished, *self._recording))
        yield from self._unlaunched

    def mark_busy(self) -> None:
        """Have `idle` wait for the next round, unless there will be none."""
        if not self._has_ended:
            self._idle.clear()

    def add(self, finished: Finished) -> None:
        """Collect an outcome, to be recorded with others."""
        self._finished.append(finished)
        if len(self._finished) == 1:  # one round takes all of them
            self._wanted.set()

    def hand_back(self, attempts: Sequence[Attempt], *, late: int = 0) -> None:
        """Collect claimed runs that will not be launched, `late` of them for being too late."""
        if attempts:
            self._late += late
            self.mark_busy()
            self._unlaunched += attempts
            self._wanted.set()

    def wake(self) -> None:
        """Begin a round, even if nothing has collected: this node may be idle now."""
        self._wanted.set()

    async def idle(self) -> None:
        """Wait until no slot is taken and all runs are recorded or handed back, or for the end."""
        await self._idle.wait()

    @property
    def has_ended(self) -> bool:
        """Whether nothing is recorded any more: `idle` does not mean that all runs have ended."""
        return self._has_ended

    async def run(self) -> None:
        """Record until cancelled."""
        self._has_ended = False
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                await self.record_once()
        finally:
            self._has_ended = True
            self._idle.set()  # else waiting callers would never wake

    async def record_once(self) -> None:
        """Record collected outcomes, and hand back runs that were not launched."""
        unlaunched = list(self._unlaunched)
        batch, self._finished = self._finished, []
        self._recording = batch  # before any await: the node frees runs that are in no list
        if self._late:
            log.warning("%d runs were too late to be launched: handed back", self._late)
            self._late = 0
        if unlaunched:
            await self.until_answered(partial(self._store.hand_back, unlaunched))
            del self._unlaunched[: len(unlaunched)]
        if batch:
            held = set(await self._finish(batch))
            self._recording = []
            if len(held) < len(batch):
                _log_lost([each for each in batch if each.attempt.run_id not in held])
        self.rounds += 1
        self._on_recorded(batch)
        if self._is_empty:
            self._idle.set()

    async def until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until the store answers."""
        return await until_answered(call, "outcomes wait to be recorded")

    async def _finish(self, batch: list[Finished]) -> list[int]:
        """Record outcomes; one that cannot be recorded becomes a failure and affects no other."""
        try:
            return await self.until_answered(partial(self._store.finish, batch))
        except StoreUnusable:
            raise
        except Exception:
            log.exception("recording a batch of outcomes failed: recording them one by one")
        held: list[int] = []
        for each in batch:
            try:
                held += await self.until_answered(partial(self._store.finish, [each]))
            except Exception as broken:  # noqa: BLE001 - it affects only this outcome
                error = f"its outcome could not be recorded: {exception_text(broken)}"
                failed = Finished(each.attempt, Failed(error, retryable=False))
                held += await self.until_answered(partial(self._store.finish, [failed]))
        return held


def exception_text(broken: BaseException) -> str:
    """Return the type and the message of an exception."""
    try:
        return f"{type(broken).__name__}: {broken}"
    except Exception:  # noqa: BLE001 - `__str__` of an exception may fail
        return type(broken).__name__


def _log_lost(finished: Sequence[Finished]) -> None:
    """Log outcomes that were not recorded, as their runs were decided meanwhile."""
    for each in finished:
        if isinstance(each.outcome, Accepted):  # its target reported the outcome earlier
            log.debug("run %d: reported before its launch was answered", each.attempt.run_id)
        else:
            log.warning(
                "run %d: its outcome is not recorded: this node no longer holds the run",
                each.attempt.run_id,
            )

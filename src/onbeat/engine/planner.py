"""The planner: asleep until the earliest due row, or until something changes."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from onbeat.core.decide.overlap import LOOKAHEAD
from onbeat.core.decide.plan import is_plain, plan
from onbeat.core.policy import Policy
from onbeat.core.runs.decisions import Plan
from onbeat.core.runs.run import Run
from onbeat.core.schedule import Schedule
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.past import Past
from onbeat.engine.dispatcher import Dispatcher
from onbeat.engine.store_retry import Backoff
from onbeat.errors import StoreFailed
from onbeat.ports.clock import Clock
from onbeat.ports.store import Node, PlanResult, Store

BATCH, FEW = 500, 64  # due rows in one transaction: at most, and too few to be worth one
LONGEST_SLEEP = 3600.0
LONGEST_WAIT = 60_000  # milliseconds, of those whose catch-up was over the allowance
PATIENCE = 0.1  # seconds to wait for a free place, so that a run need not be claimed
LOOK_AGAIN = 0.25  # seconds, if something is due that another node has taken

log = logging.getLogger("onbeat.engine")


class Planner:
    """Decides what is due, batch after batch, and hands what may start to the dispatcher."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        node: Node,
        dispatcher: Dispatcher,
        *,
        catchup_per_second: int = 100,
        lookahead: int = LOOKAHEAD,
    ) -> None:
        """`lookahead` is over how many milliseconds missed ticks are spread, at most."""
        self._lookahead = lookahead
        self._store, self._clock, self._node, self._dispatcher = store, clock, node, dispatcher
        self._allowance = Allowance(clock, catchup_per_second)
        self._wake = asyncio.Event()
        self._last: _Alike | None = None
        self._stopping, self._is_behind, self._is_outdated = False, False, False
        self._expired_at = clock.monotonic()
        self._told_of: frozenset[str] = frozenset()  # what was needed and is not offered
        self._sleeps = False
        self.next_due: int | None = None  # until then there is nothing to do, unless it is woken

    def stop(self) -> None:
        """Plan nothing more; what is being planned is still launched."""
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        """Look again: something has changed."""
        self._wake.set()

    @property
    def is_looking(self) -> bool:
        """Whether it looks for what is due, or is about to."""
        return not self._stopping and (not self._sleeps or self._wake.is_set())

    async def run(self) -> None:
        """Plan until stopped."""
        backoff = Backoff()
        while not self._stopping:
            self._wake.clear()
            before = self._clock.now()
            try:
                planned = await self.plan_once() if "plan" in self._node.roles else PlanResult(0)
                if planned.enqueued or not planned.ticks:  # or a waiting run has become due
                    self._dispatcher.wake()
                else:
                    self._dispatcher.wake_soon()
                await self._expire(idle=not planned.ticks)
                if planned.is_full:
                    continue
                self.next_due = await self._store.next_due(after=before)
                backoff.reset()
            except StoreFailed as broken:
                self._dispatcher.doubt(broken)
                await backoff.sleep("planning failed", broken)
                continue
            was_due = self.next_due is not None and self.next_due <= before
            await self._sleep(LOOK_AGAIN if was_due and not planned.ticks else 0.0)

    async def plan_once(self) -> PlanResult:
        """Decide one batch of what is due, and have it launched."""
        most = min(BATCH, self._dispatcher.concurrency)
        if self._is_behind:  # what ends as soon as it is launched gives its place back first
            await asyncio.sleep(0)
        enough = min(most, FEW if self._is_behind else 1)
        await self._dispatcher.wait_for_places(enough, PATIENCE)
        self._allowance.renew()
        sent = self._clock.monotonic()
        with self._dispatcher.reserved(most) as slots:
            # No more than can be launched at once, if that is a good many; if it is not, ticks are
            # decided all the same, and their runs wait: none is late because the node is busy.
            limit = slots if slots >= FEW else BATCH
            planned = await self._store.plan_due(
                self._plan, limit=limit, node=self._node, slots=slots
            )
            self._dispatcher.launch(planned.attempts, sent)
        self._is_behind = planned.is_full
        if planned.asks:
            self.on_asks()
        if planned.is_outdated and not self._is_outdated:
            log.error("others have newer time zone data: this node plans nothing (update tzdata)")
        self._is_outdated = planned.is_outdated
        if "run" not in self._node.roles:
            return planned  # what it does not offer is for others to say
        for needs in sorted(planned.unoffered - self._told_of):
            log.warning(
                "%s is not offered here: runs that need it wait for a node that does", needs
            )
        self._told_of |= planned.unoffered
        return planned

    def on_asks(self) -> None:
        """Hear that started runs were asked to end, to let newer ones take their place."""

    async def _expire(self, *, idle: bool) -> None:
        """End what has waited too long: whenever there is nothing else to do, or once a second."""
        now = self._clock.monotonic()
        if "plan" in self._node.roles and (idle or now - self._expired_at >= 1):
            self._expired_at = now
            while await self._store.expire(limit=BATCH) >= BATCH:
                pass

    def _plan(
        self, schedule: Schedule, run_at: int, unfinished: Sequence[Run], past: Past, now: int
    ) -> Plan:
        """Plan one schedule. Those of a herd mostly have one trigger, and then one plan."""
        trigger, policy, last = schedule.trigger, schedule.policy, self._last
        if (
            last is not None
            and trigger is last.trigger
            and policy is last.policy
            and (run_at, now) == last.moment
            and schedule.target.is_enabled
            and not unfinished
        ):
            return last.plan
        room = self._allowance
        found = plan(
            schedule,
            run_at,
            unfinished,
            past,
            now=now,
            allowance=room.share(),
            waits=room.waits(),
            lookahead=self._lookahead,
        )
        if found.catchups or found.is_short:
            room.take(schedule.schedule_id, found.catchups, is_short=found.is_short)
        if found.decisions and not (unfinished or found.catchups) and is_plain(schedule):
            self._last = _Alike(trigger, policy, (run_at, now), found)
        return found

    async def _sleep(self, least: float) -> None:
        """Sleep until the next due row, or until woken; at least so long if that is due already.

        A row that was due and not to be had is another node's, which may give it back; one that has
        become due since is for the next look, at once.
        """
        seconds = LONGEST_SLEEP
        if self.next_due is not None:
            left = (self.next_due - self._clock.now()) / 1000
            seconds = min(left if left > 0 else least, LONGEST_SLEEP)
        timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        self._sleeps = True
        try:
            await self._wake.wait()
        finally:
            self._sleeps = False
            timer.cancel()


class _Alike(NamedTuple):
    """A plan that depends on nothing else of its schedule, nor of what went before."""

    trigger: Trigger
    policy: Policy
    moment: tuple[int, int]  # run_at and now
    plan: Plan


class Allowance:
    """How many missed ticks this node may still start: so many in any second.

    Where that was not enough for all, each schedule gets an equal share of the next, and those that
    wait come back by and by: as many in a second as can be served, if not quite.
    """

    def __init__(self, clock: Clock, per_second: int) -> None:
        self._clock, self._per_second = clock, per_second
        self._now = self._second = clock.monotonic()
        self._taken: deque[tuple[float, int]] = deque()  # in the last second: when, and how many
        self._left = per_second
        self._short: set[str] = set()  # those that had not enough in this second
        self._sharers = 1

    def renew(self) -> None:
        """Allow again what was taken more than a second ago."""
        self._now = self._clock.monotonic()
        while self._taken and self._now - self._taken[0][0] >= 1:
            self._left += self._taken.popleft()[1]
        if self._now - self._second >= 1:
            self._second, self._sharers = self._now, max(len(self._short), 1)
            self._short.clear()

    def share(self) -> int:
        """Return how many one schedule may start."""
        return min(self._left, max(self._per_second // self._sharers, 1))

    def waits(self) -> int:
        """Return over how many milliseconds those that have to wait come back."""
        return min(1000 * self._sharers // self._per_second, LONGEST_WAIT)

    def take(self, schedule_id: str, count: int, *, is_short: bool) -> None:
        """Use up so many, for a schedule that may need more."""
        if count:
            self._taken.append((self._now, count))
            self._left -= count
        if is_short:
            self._short.add(schedule_id)

"""`Planner`: sleeps until the earliest due row or a change, and has due ticks decided."""

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

BATCH, FEW = 500, 64  # due rows in one transaction: at most, and at least while behind
LONGEST_SLEEP = 3600.0
LONGEST_WAIT = 60_000  # milliseconds that a catch-up beyond the allowance is put off at most
PATIENCE = 0.1  # seconds to wait for a free slot, which saves claiming the run later
LOOK_AGAIN = 0.25  # seconds, if a due row is locked by another node

log = logging.getLogger("onbeat.engine")


class Planner:
    """Decides due ticks in batches, and passes runs that may start to the dispatcher."""

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
        """`lookahead`: the milliseconds over which missed ticks are spread at most."""
        self._lookahead = lookahead
        self._store, self._clock, self._node, self._dispatcher = store, clock, node, dispatcher
        self._allowance = Allowance(clock, catchup_per_second)
        self._wake = asyncio.Event()
        self._last: _SharedPlan | None = None
        self._stopping, self._is_behind, self._is_outdated = False, False, False
        self._expired_at = clock.monotonic()
        self._logged_unoffered: frozenset[str] = frozenset()
        self._sleeps = False
        self.next_due: int | None = None  # the planner sleeps until then, or until woken

    def stop(self) -> None:
        """Plan nothing more; runs that are being planned are still launched."""
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        """Look again: something has changed."""
        self._wake.set()

    @property
    def is_looking(self) -> bool:
        """Whether it is looking for due ticks, or about to."""
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
                self._dispatcher.unknown.note(broken)
                await backoff.sleep("planning failed", broken)
                continue
            was_due = self.next_due is not None and self.next_due <= before
            await self._sleep(LOOK_AGAIN if was_due and not planned.ticks else 0.0)

    async def plan_once(self) -> PlanResult:
        """Decide one batch of due ticks, and launch the announced runs."""
        most = min(BATCH, self._dispatcher.slots.concurrency)
        if self._is_behind:  # runs that end immediately free their slots first
            await asyncio.sleep(0)
        enough = min(most, FEW if self._is_behind else 1)
        await self._dispatcher.slots.wait_for(enough, PATIENCE)
        self._allowance.renew()
        sent = self._clock.monotonic()
        with self._dispatcher.slots.reserve(most) as slots:
            # As many as can be launched now, if that is enough for a batch. Otherwise ticks are
            # decided anyway, and their runs wait: no tick is late because the node is busy.
            limit = slots if slots >= FEW else BATCH
            planned = await self._store.plan_due(
                self._plan, limit=limit, node=self._node, slots=slots
            )
            self._dispatcher.launch(planned.attempts, sent)
        self._is_behind = planned.is_full
        if planned.has_cancel_requests:
            self.on_cancel_requests()
        if planned.is_outdated and not self._is_outdated:
            log.error(
                "other nodes have newer time zone data: this node plans nothing (update tzdata)"
            )
        self._is_outdated = planned.is_outdated
        if "run" not in self._node.roles:
            return planned  # a node that runs nothing need not offer anything
        for needs in sorted(planned.unoffered - self._logged_unoffered):
            log.warning("this node cannot launch %s: its runs wait for a node that can", needs)
        self._logged_unoffered |= planned.unoffered
        return planned

    def on_cancel_requests(self) -> None:
        """React to requests to cancel started runs, which newer ones replace."""

    async def _expire(self, *, idle: bool) -> None:
        """End runs that have waited too long: when idle, and otherwise once a second."""
        now = self._clock.monotonic()
        if "plan" in self._node.roles and (idle or now - self._expired_at >= 1):
            self._expired_at = now
            while await self._store.expire(limit=BATCH) >= BATCH:
                pass

    def _plan(
        self, schedule: Schedule, run_at: int, unfinished: Sequence[Run], past: Past, now: int
    ) -> Plan:
        """Plan one schedule. Many schedules of one trigger and moment share a plan."""
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
        allowance = self._allowance
        found = plan(
            schedule,
            run_at,
            unfinished,
            past,
            now=now,
            allowance=allowance.share(),
            waits=allowance.waits(),
            lookahead=self._lookahead,
        )
        if found.catchups or found.is_short:
            allowance.take(schedule.schedule_id, found.catchups, is_short=found.is_short)
        if found.decisions and not (unfinished or found.catchups) and is_plain(schedule):
            self._last = _SharedPlan(trigger, policy, (run_at, now), found)
        return found

    async def _sleep(self, least: float) -> None:
        """Sleep until the next due row or until woken; `least` seconds if that is due already.

        `least` is for a due row that another node has locked and may release. A row that has become
        due meanwhile is planned immediately.
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


class _SharedPlan(NamedTuple):
    """A plan that depends only on these values, not on other parts of a schedule or its past."""

    trigger: Trigger
    policy: Policy
    moment: tuple[int, int]  # run_at and now
    plan: Plan


class Allowance:
    """How many missed ticks this node may still start: at most `per_second` in any second.

    If that was not enough, each schedule gets an equal share in the next second, and those that
    wait are spread over as many seconds as they need.
    """

    def __init__(self, clock: Clock, per_second: int) -> None:
        self._clock, self._per_second = clock, per_second
        self._now = self._second = clock.monotonic()
        self._taken: deque[tuple[float, int]] = deque()  # in the last second: when, and how many
        self._left = per_second
        self._short: set[str] = set()  # schedules that had too little in this second
        self._sharers = 1

    def renew(self) -> None:
        """Restore what was taken more than a second ago."""
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
        """Return the milliseconds over which schedules that have to wait are spread."""
        return min(1000 * self._sharers // self._per_second, LONGEST_WAIT)

    def take(self, schedule_id: str, count: int, *, is_short: bool) -> None:
        """Take `count` for a schedule; `is_short` if it needs more."""
        if count:
            self._taken.append((self._now, count))
            self._left -= count
        if is_short:
            self._short.add(schedule_id)

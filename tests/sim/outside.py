"""Targets that continue without their node, as flows and Ray runners do, and their launcher.

`Outside` is where they run: it keeps what was started there by the key of the run, whatever happens
to nodes. It can be unreachable, a request can arrive late or unanswered, and a target can end or
vanish while no node follows it. It is also a witness: it notes each true start and each true end.
"""

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from onbeat.core.runs.run import Accepted, Busy, Canceled, Failed, Gone, Lost, Succeeded
from onbeat.core.target_kinds import TargetKind
from onbeat.engine.concurrency import finish_despite_cancel
from tests.installed_kinds import installed
from tests.sim.targets import Targets, say

SCHEMA = {"type": "object", "properties": {"outside": {}}}
OUTSIDE = TargetKind(name="outside", schema=SCHEMA, reattaches=True)
LATEST = 2.0  # seconds after which a request arrives, at most
AGAIN = 1.0  # seconds between two requests while the outside is unreachable
SAID = [
    (0.58, lambda rng, attempt: Succeeded({"n": attempt.attempt})),
    (0.29, lambda rng, attempt: Failed("exit code 1", "exit", exit_code=1)),
    (0.04, lambda rng, attempt: Failed("ended by SIGKILL", "signal", False, -9)),
    (0.02, lambda rng, attempt: Canceled("ended itself")),
    (1.0, lambda rng, attempt: Accepted(f"external {attempt.run_id}")),
]
NOT_RECORDED = ("lost", "canceled", "superseded")  # after these a run is detached: it continues


@contextmanager
def outside_kind(*, reports=False):
    """Install the kind of target, for as long as a simulation and its check take."""
    with installed(replace(OUTSIDE, reports=reports)):
        yield


class AwayError(Exception):
    """The outside is unreachable: the request was not sent."""


class UnansweredError(Exception):
    """A request was sent and not answered: it may have arrived, or may arrive later."""


@dataclass
class Started:
    """A target that truly runs, or ran."""

    key: str
    run_id: int
    attempt: int  # that started it
    began: float
    ends: float  # when it ends by itself, or vanishes
    vanishes: bool
    outcome: object  # what it says when it ends by itself
    over: float = float("inf")
    how: str = ""  # "itself", "vanished", or why it was ended
    is_recorded: bool = False  # an outcome of its attempt, or of one that reattached it, was
    is_beside: bool = False  # it was started beside another of its key, or before that was recorded

    @property
    def is_over(self):
        return bool(self.how)

    def end(self, at, how):
        self.over, self.how = at, how


class Outside:
    """The outside world of a simulation."""

    def __init__(self, world):
        self._world, self._rng, self._loop = world, world.rng, world.loop
        self.started: list[Started] = []
        self._latest: dict[str, Started] = {}
        self.asked: dict[int, str] = {}  # logged before a start is requested: keys, by run
        self.recorded: dict[int, float] = {}  # the last attempt with an outcome, by run
        self.to_end: dict[str, str] = {}  # ends that were not confirmed, by key: why
        self._outages = list(_outages(self._rng))

    # -- whether it can be reached

    @property
    def back_at(self):
        """When the present outage ends; 0 without one."""
        now = self._loop.time()
        if self._world.quiet:
            return 0.0
        return next((until for since, until in self._outages if since <= now < until), 0.0)

    def was_away(self, since):
        """Whether it was unreachable at any time since then."""
        return any(first <= self._loop.time() and last >= since for first, last in self._outages)

    async def request(self, work, *given):
        """Send a request; return the answer. It arrives even if the node dies meanwhile."""
        if self.back_at:
            self._world.seen["outside: unreachable"] += 1
            raise AwayError
        arriving = self._loop.create_future()
        late = not self._world.quiet and self._rng.random() < 0.06
        delay = self._rng.uniform(0, LATEST) if late else self._rng.choice([0, 0.01, 0.1])
        self._loop.call_later(delay, self._arrive, arriving, work, given)
        if late:
            await asyncio.sleep(self._rng.uniform(0, LATEST))
            self._world.seen["outside: unanswered"] += 1
            raise UnansweredError
        return await asyncio.shield(arriving)

    def _arrive(self, arriving, work, given):
        answer = work(*given)
        if not arriving.done():
            arriving.set_result(answer)

    # -- what can be requested

    def find(self, key):
        """Return what runs under a key, or has ended and is not recorded yet; or None."""
        found = self._look(key)
        known = found is not None and not found.is_recorded and found.how != "vanished"
        return found if known else None

    def start(self, attempt, *, is_repeated):
        """Start a target. A request that is repeated, or late, starts none a second time."""
        latest, now, rng = self._look(attempt.key), self._loop.time(), self._rng
        if latest is not None and latest.attempt >= attempt.attempt:
            return latest
        if is_repeated and latest is not None and not latest.is_over:
            return latest
        longest = rng.choice([0.1, 1, 4, 25]) if rng.random() < 0.75 else 150
        new = Started(
            attempt.key, attempt.run_id, attempt.attempt, now, now + longest * rng.random(),
            vanishes=rng.random() < 0.04, outcome=say(rng, attempt, SAID),
        )  # fmt: skip
        recorded = latest is None or latest.is_recorded or latest.how == "vanished"
        new.is_beside = not recorded and (not latest.is_over or not is_repeated)
        self.started.append(new)
        self._latest[attempt.key] = new
        if (how := self.to_end.pop(attempt.key, None)) is not None:  # it arrived too late
            new.end(now, how)
        return new

    def end(self, key, how):
        """End what runs under a key, if anything does, and what arrives under it later."""
        found = self._look(key)
        if found is None:
            self.to_end[key] = how
        elif not found.is_over:
            found.end(self._loop.time(), how)

    def end_all_left(self):
        """Repeat the ends that were not confirmed."""
        if self.back_at:
            return
        for key, how in list(self.to_end.items()):
            found = self._look(key)
            if found is not None:
                del self.to_end[key]
                self.end(key, how)

    def record(self, run_id, attempt):
        """Note that an outcome of a run is recorded: what has ended under its key is removed."""
        self.recorded[run_id] = attempt
        key = self.asked.pop(run_id, None)
        if key is not None and (found := self._look(key)) is not None:
            found.is_recorded = True

    def settle(self):
        """Let everything end by itself that has had the time for it."""
        for key in self._latest:
            self._look(key)

    def _look(self, key):
        found = self._latest.get(key)
        if found is not None and not found.is_over and self._loop.time() >= found.ends:
            found.end(found.ends, "vanished" if found.vanishes else "itself")
            self._world.seen[f"outside: ended by {found.how}"] += 1
        return found


def _outages(rng):
    at = rng.expovariate(1 / 90)
    while at < 3600:
        until = at + rng.choice([0.5, 3, 10, 60]) * rng.random()
        yield at, until
        at = until + rng.expovariate(1 / 90)


class OutsideTargets(Targets):
    """The launcher of one node: it starts targets outside, or reattaches them, and follows them."""

    def __init__(self, node):
        super().__init__(node)
        self._outside = node.world.outside
        self._begun = set()  # runs that may run outside
        self._left = set()  # of these, the runs that are left to another node
        self._ending = set()
        self._in_doubt = set()  # runs of which a request was not answered

    def offers(self):
        return ["outside"]

    def leave(self, run_ids):
        left = (self._begun - self._ending) & set(run_ids)
        self._left |= left
        return left

    async def recover(self):
        self._outside.end_all_left()
        return 0

    async def launch(self, attempt):
        node, world = self._node, self._world
        node.faults.reach("launch")
        seen = self._see(attempt)
        world.launched.append(seen)
        node.faults.reach("launched")
        try:
            seen.outcome = await self._attend(attempt)
        finally:
            seen.over = world.loop.time()
            silent = self._outside.was_away(seen.began) or attempt.run_id in self._in_doubt
            seen.was_well = node.is_well and node.slow_until <= seen.began and not silent
            for runs in (self._begun, self._left, self._ending, self._in_doubt):
                runs.discard(attempt.run_id)
        if isinstance(seen.outcome, Accepted):
            world.will_tell(attempt.run_id)
        return seen.outcome, "it failed" if isinstance(seen.outcome, Failed) else ""

    async def _attend(self, attempt):
        """Start a target or reattach it, and follow it until it ends; or end it."""
        run_id = attempt.run_id
        if attempt.may_run or attempt.is_cancel_requested:
            self._begun.add(run_id)
        try:
            if attempt.is_cancel_requested:
                return await self._recall(attempt)
            found = await self._begin(attempt)
            return await self._follow(attempt, found) if isinstance(found, Started) else found
        except asyncio.CancelledError:
            if self._node.faults.dead or run_id in self._left:
                self._world.seen["outside: left"] += run_id in self._left
                raise
            if run_id not in self._begun:
                return Busy("given up before it began", 0)
            await self._end(attempt, "canceled")
            raise

    async def _begin(self, attempt):
        """Return what runs, or an outcome if nothing was started or it may not be started again."""
        rng, loop = self._rng, self._world.loop
        patience = loop.time() + rng.choice([2, 15])
        while True:
            try:
                if attempt.may_run:
                    found = await self._reattach(attempt)
                    if found is not None:
                        return found
                return await self._start(attempt)
            except AwayError:
                if not attempt.may_run and attempt.run_id not in self._begun:
                    return Busy("unreachable", rng.choice([500, 5_000]))
                if loop.time() > patience:
                    return Lost()
            except UnansweredError:
                if attempt.run_id in self._begun and not attempt.may_run and rng.random() < 0.3:
                    self._world.seen["outside: in doubt, and given up"] += 1
                    return Failed("its start was not answered", "lost", retryable=False)
            await asyncio.sleep(AGAIN)

    async def _reattach(self, attempt):
        """Return what runs; None if it was not started, or is started at least once."""
        self._reach("reattach")
        found = await self._request(attempt, self._outside.find, attempt.key)
        self._reach("reattached")
        if found is not None:
            self._world.seen[f"reattached, {'ended' if found.is_over else 'running'}"] += 1
            return found
        if self._outside.recorded.get(attempt.run_id, 0) >= attempt.attempt:
            self._world.seen["not found: another node was faster"] += 1
            return Lost()  # this node has stalled
        if attempt.run_id in self._outside.asked and not attempt.at_least_once:
            self._world.seen["not found: lost"] += 1
            return Failed("it was started zero or one times", "lost", retryable=False)
        again = attempt.run_id in self._outside.asked
        self._world.seen[f"not found: started {'again' if again else 'after all'}"] += 1
        return None

    async def _start(self, attempt):
        """Request a start, which is logged before; or return an outcome without a start."""
        draw = self._rng.random()
        if attempt.run_id not in self._outside.asked:  # it surely was not started
            if draw < (0.5 if attempt.may_run else 0.07):
                return Busy("no time", self._rng.choice([200, 5_000, 30_000]))
            if draw > 0.99:
                return Gone("it is no more")
            if draw > 0.98:
                raise RuntimeError("a launcher with a defect")
        if self._outside.back_at:
            raise AwayError
        repeated = attempt.may_run or attempt.run_id in self._begun
        self._begun.add(attempt.run_id)
        self._outside.asked[attempt.run_id] = attempt.key
        self._reach("start outside")
        request = partial(self._outside.start, attempt, is_repeated=repeated)
        return await self._request(attempt, request)

    async def _follow(self, attempt, found):
        """Wait for the end of a target, or until its timeout has passed."""
        loop, limit = self._world.loop, attempt.timeout
        until = float("inf") if limit is None else found.began + limit / 1000
        while not found.is_over:
            await asyncio.sleep(max(min(found.ends, until) - loop.time(), 0))
            if loop.time() >= until and loop.time() < found.ends:
                await self._end(attempt, "timeout")
                return Failed("it took too long", "timeout", retryable=False)
            try:
                await self._request(attempt, self._outside.find, attempt.key)
            except (AwayError, UnansweredError):
                await asyncio.sleep(AGAIN)
        self._reach("outcome")
        return self._outcome_of(attempt, found)

    def _outcome_of(self, attempt, found):
        if found.how == "itself":
            return found.outcome
        if found.how == "vanished":
            return Lost() if attempt.at_least_once else Failed("gone", "lost", retryable=False)
        return Canceled(f"it was ended: {found.how}")

    async def _recall(self, attempt):
        """End a target as requested; it may have ended already."""
        patience = self._world.loop.time() + self._rng.choice([2, 15])
        while True:
            try:
                self._reach("recall")
                found = await self._request(attempt, self._outside.find, attempt.key)
                if found is None and attempt.run_id in self._outside.asked:
                    return Failed("it was started zero or one times", "lost", retryable=False)
                if found is None:
                    return Canceled("it was not started")
                if found.how == "itself" and self._rng.random() < 0.5:
                    return found.outcome
                await self._request(attempt, self._outside.end, attempt.key, "canceled")
                self._world.seen["recalled"] += 1
                return Canceled("as requested")
            except (AwayError, UnansweredError):
                if self._world.loop.time() > patience:
                    return Lost()
            await asyncio.sleep(AGAIN)

    async def _end(self, attempt, how):
        """End a target, even if the call is cancelled meanwhile; unless the node is dead."""
        self._ending.add(attempt.run_id)
        await finish_despite_cancel(self._send_end(attempt, how))

    async def _send_end(self, attempt, how):
        self._reach("end outside")
        try:
            await self._request(attempt, self._outside.end, attempt.key, how)
        except (AwayError, UnansweredError):
            self._outside.to_end[attempt.key] = how
            self._world.seen["outside: to be ended later"] += 1

    async def _request(self, attempt, work, *given):
        """Send a request, unless the node is dead or stalls; a stalled node sends it later."""
        node, loop = self._node, self._world.loop
        stalled = node.stalled_until - loop.time()
        if stalled > 0:
            await asyncio.sleep(stalled)
            node.end_if_nobody_took_over()
        node.faults.reach("request")
        try:
            answer = await self._outside.request(work, *given)
        except UnansweredError:
            self._in_doubt.add(attempt.run_id)
            raise
        node.faults.reach("answer of a request")
        return answer

    def _reach(self, point):
        self._node.faults.reach(point)

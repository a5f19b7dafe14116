"""A real sequence of calls for every edge of the table of phases, on every database."""

import re

import pytest

from onbeat.core.runs.apply import RunChange
from onbeat.core.runs.phase import CLAIMABLE, Phase, edges
from onbeat.core.runs.run import Run
from onbeat.ports.rows import RunFilter
from onbeat.stores.sql.rows import write
from tests.inside import in_transaction
from tests.stores.conftest import a_node
from tests.stores.test_phases import FLOW, HTTP, OFFERS, OUTCOMES, RAY, logged, watch, watched

QUEUE, REPLACE = {"overlap": "queue"}, {"overlap": "replace"}
RETRY = {"retry": ["0s", "0s", "0s"]}
ON_RAY = RAY | RETRY
LATE = {"start_deadline": "1m"}
LATER = {"jitter": "50m", **QUEUE}

# What is done with a run, and the phases that it has after one another. Schedules tick every hour.
# The run is that of the first tick, or the one that a step in {} makes.
PATHS = {
    "starts": ({}, "tick claim announce done", "WAITING CLAIMED RUNNING SUCCESS"),
    "fails": ({}, "tick claim announce fails", "WAITING CLAIMED RUNNING FAILED"),
    "is ended": ({}, "tick claim announce ended", "WAITING CLAIMED RUNNING CANCELED"),
    "starts directly": ({}, "tick_and_start done", "RUNNING SUCCESS"),
    "is too late": (LATE, "tick wait expire", "WAITING SKIPPED"),
    "is canceled": ({}, "tick cancel", "WAITING CANCELED"),
    "is canceled when claimed": ({}, "tick claim cancel", "WAITING CLAIMED CANCELED"),
    "is freed": ({}, "tick claim hand_back", "WAITING CLAIMED WAITING"),
    "has a condition": ({}, "tick claim skip_condition", "WAITING CLAIMED SKIPPED"),
    "is handed back": (
        {}, "tick claim announce hand_back claim", "WAITING CLAIMED RUNNING WAITING CLAIMED",
    ),
    # later
    "is due later": (LATER, "ahead wait claim", "SCHEDULED CLAIMED"),
    "is due later, and freed": (LATER, "ahead wait claim hand_back", "SCHEDULED CLAIMED SCHEDULED"),
    "is due later, and handed back": (
        LATER, "ahead wait claim announce hand_back", "SCHEDULED CLAIMED RUNNING SCHEDULED",
    ),
    "is due later, and canceled": (LATER, "ahead cancel", "SCHEDULED CANCELED"),
    "is due later, when it is too late": (
        LATER | LATE, "ahead wait expire", "SCHEDULED SKIPPED",
    ),
    "is due later, when another runs": (
        LATER, "ahead backfill start_another wait claim end_another",
        "SCHEDULED QUEUED SCHEDULED",
    ),
    # retries
    "is retried": (RETRY, "tick start fails claim", "WAITING CLAIMED RUNNING RETRYING CLAIMED"),
    "is freed before a retry": (
        RETRY, "tick start fails claim hand_back", "WAITING CLAIMED RUNNING RETRYING CLAIMED RETRYING",
    ),
    "is not retried on a condition": (
        RETRY, "tick start fails claim skip_condition",
        "WAITING CLAIMED RUNNING RETRYING CLAIMED FAILED",
    ),
    "is canceled before a retry": (
        RETRY, "tick start fails cancel", "WAITING CLAIMED RUNNING RETRYING CANCELED",
    ),
    "is retried too late": (
        RETRY | LATE, "tick start fails wait expire", "WAITING CLAIMED RUNNING RETRYING FAILED",
    ),
    "is retried when another runs": (
        RETRY | QUEUE, "{backfill} start fails tick start_another end_another",
        "BACKFILL CLAIMED RUNNING RETRYING QUEUED RETRYING",
    ),
    "is retried too late when another runs": (
        RETRY | QUEUE | {"start_deadline": "90m"},
        "{backfill} start fails tick start_another wait wait expire",
        "BACKFILL CLAIMED RUNNING RETRYING QUEUED FAILED",
    ),
    # busy targets
    "finds its target busy": (
        {}, "tick start busy claim hand_back",
        "WAITING CLAIMED RUNNING DEFERRED CLAIMED DEFERRED",
    ),
    "finds its target busy, and is canceled": (
        {}, "tick start busy cancel", "WAITING CLAIMED RUNNING DEFERRED CANCELED",
    ),
    "finds its target busy for too long": (
        {"start_deadline": "2m"}, "tick start busy wait expire",
        "WAITING CLAIMED RUNNING DEFERRED SKIPPED",
    ),
    "finds its target busy after an attempt": (
        RETRY | LATE, "tick start fails start busy wait expire",
        "WAITING CLAIMED RUNNING RETRYING CLAIMED RUNNING DEFERRED FAILED",
    ),
    "finds its target busy when another runs": (
        QUEUE, "{backfill} start busy tick start_another end_another",
        "BACKFILL CLAIMED RUNNING DEFERRED QUEUED DEFERRED",
    ),
    "finds its target busy when another waits": (
        QUEUE, "tick start tick busy", "WAITING CLAIMED RUNNING SKIPPED",
    ),
    # backfills
    "is backfilled": ({}, "{backfill} claim hand_back", "BACKFILL CLAIMED BACKFILL"),
    "is backfilled and handed back": ({}, "{backfill} start hand_back", "BACKFILL CLAIMED RUNNING BACKFILL"),
    "is backfilled and canceled": ({}, "{backfill} cancel", "BACKFILL CANCELED"),
    "is backfilled when another runs": (
        {}, "tick start {backfill} claim end_another", "BACKFILL QUEUED BACKFILL",
    ),
    "is skipped and backfilled": (
        LATE, "tick wait expire revive switch_off claim",
        "WAITING SKIPPED BACKFILL SKIPPED",
    ),
    # queues
    "waits for another": (
        QUEUE, "tick start {tick} end_another claim", "QUEUED WAITING CLAIMED",
    ),
    "waits for another, and is canceled": (
        QUEUE, "tick start {tick} cancel", "QUEUED CANCELED",
    ),
    "waits for another too long": (
        QUEUE | LATE, "tick start {tick} wait expire", "QUEUED SKIPPED",
    ),
    # cancellations
    "is canceled while it runs": (
        {}, "tick start cancel ended", "WAITING CLAIMED RUNNING CANCELING CANCELED",
    ),
    "succeeds before it is canceled": (
        {}, "tick start cancel done", "WAITING CLAIMED RUNNING CANCELING SUCCESS",
    ),
    "fails before it is canceled": (
        {}, "tick start cancel fails", "WAITING CLAIMED RUNNING CANCELING FAILED",
    ),
    # reports
    "is reported": (HTTP, "tick start accepted report", "WAITING CLAIMED RUNNING ACCEPTED SUCCESS"),
    "is reported as failed": (
        HTTP, "tick start accepted report_failure", "WAITING CLAIMED RUNNING ACCEPTED FAILED",
    ),
    "is reported as failed, and retried": (
        HTTP | RETRY, "tick start accepted report_failure",
        "WAITING CLAIMED RUNNING ACCEPTED RETRYING",
    ),
    "is accepted and canceled": (
        HTTP, "tick start accepted cancel", "WAITING CLAIMED RUNNING ACCEPTED CANCELED",
    ),
    "is accepted and replaced": (
        HTTP | REPLACE | {"timeout": "2h"}, "tick start accepted tick expire",
        "WAITING CLAIMED RUNNING ACCEPTED REVOKED CANCELED",
    ),
    "is reported when it was replaced": (
        HTTP | REPLACE | {"timeout": "2h"}, "tick start accepted tick report",
        "WAITING CLAIMED RUNNING ACCEPTED REVOKED SUCCESS",
    ),
    "is reported as failed when it was replaced": (
        HTTP | REPLACE | {"timeout": "2h"}, "tick start accepted tick report_failure",
        "WAITING CLAIMED RUNNING ACCEPTED REVOKED FAILED",
    ),
    # detached
    "is reattached": (
        ON_RAY, "tick start lost claim announce done",
        "WAITING CLAIMED RUNNING DETACHED REATTACHING REATTACHED SUCCESS",
    ),
    "is reattached, and fails": (
        RAY, "tick start lost start fails",
        "WAITING CLAIMED RUNNING DETACHED REATTACHING REATTACHED FAILED",
    ),
    "is reattached, and ended": (
        RAY, "tick start lost start ended",
        "WAITING CLAIMED RUNNING DETACHED REATTACHING REATTACHED CANCELED",
    ),
    "is reattached, and retried": (
        ON_RAY, "tick start lost start fails",
        "WAITING CLAIMED RUNNING DETACHED REATTACHING REATTACHED RETRYING",
    ),
    "is reattached, and busy": (
        RAY, "tick start lost start busy",
        "WAITING CLAIMED RUNNING DETACHED REATTACHING REATTACHED DEFERRED",
    ),
    "is reattached, and accepted": (
        FLOW, "tick start lost start accepted",
        "WAITING CLAIMED RUNNING DETACHED REATTACHING REATTACHED ACCEPTED",
    ),
    "is lost again": (
        RAY, "tick start lost start lost",
        "WAITING CLAIMED RUNNING DETACHED REATTACHING REATTACHED DETACHED",
    ),
    "is freed before it is reattached": (
        RAY, "tick start lost claim hand_back",
        "WAITING CLAIMED RUNNING DETACHED REATTACHING DETACHED",
    ),
    "is reattached and canceled": (
        RAY, "tick start lost start cancel ended",
        "WAITING CLAIMED RUNNING DETACHED REATTACHING REATTACHED CANCELING CANCELED",
    ),
    "is canceled before it is reattached": (
        RAY, "tick start lost cancel claim announce ended",
        "WAITING CLAIMED RUNNING DETACHED RECALLED RECALLING CANCELING CANCELED",
    ),
    "is canceled while it is reattached": (
        RAY, "tick start lost claim cancel claim hand_back",
        "WAITING CLAIMED RUNNING DETACHED REATTACHING RECALLED RECALLING RECALLED",
    ),
    "is lost while it is canceled": (
        RAY, "tick start cancel lost", "WAITING CLAIMED RUNNING CANCELING RECALLED",
    ),
    # a schedule that can no longer be read
    "cannot be read": ({}, "tick break_definition claim", "WAITING FAILED"),
    "cannot be read later": (LATER, "ahead move break_definition wait claim", "SCHEDULED FAILED"),
    "cannot be read when it is backfilled": ({}, "{backfill} break_definition claim", "BACKFILL FAILED"),
    # a backup that is put back
    "is restored while it is detached": (
        RAY, "tick start lost restore", "WAITING CLAIMED RUNNING DETACHED FAILED",
    ),
    "is restored while it is reattached": (
        RAY, "tick start lost claim restore",
        "WAITING CLAIMED RUNNING DETACHED REATTACHING FAILED",
    ),
    "is restored while it is recalled": (
        RAY, "tick start lost cancel restore",
        "WAITING CLAIMED RUNNING DETACHED RECALLED FAILED",
    ),
    "is restored while it is claimed to be canceled": (
        RAY, "tick start lost cancel claim restore",
        "WAITING CLAIMED RUNNING DETACHED RECALLED RECALLING FAILED",
    ),
}  # fmt: skip

WRITE = "UPDATE schedule_runs SET phase = ?3 WHERE run_id = ?1 AND phase = ?2"


class Path:
    """A schedule on its way, with the run that is watched and another one."""

    def __init__(self, world, schedule_id, fields):
        self.world, self.store, self.id, self.fields = world, world.store, schedule_id, fields
        self.run_id = self.attempt = self.another = None

    async def take(self, step):
        name = step.strip("{}")
        if name in OUTCOMES:
            await self.world.end(self.attempt, OUTCOMES[name])
        else:
            await getattr(self, name)()
        if self.run_id is None or name != step:
            (newest,) = await self.world.store.runs(RunFilter(self.id), limit=1)
            self.run_id, self.another = newest.run_id, self.attempt

    async def define(self, **fields):
        await self.world.define(self.id, **{"every": "1h", **self.fields, **fields})

    async def tick(self):
        await self.world.tick()

    async def tick_and_start(self):
        self.world.clock.advance("1h")
        found = await self.world.plan(slots=9)
        (self.attempt,) = (each for each in found.attempts if each.schedule_id == self.id)

    async def ahead(self):
        """Decide a tick before it is due: an edit does."""
        self.world.clock.advance("1h")
        await self.define(every="30m", jitter="0s")

    async def move(self):
        """Have waiting runs start by the definition of now."""
        await self.define(every="30m", jitter="0s", update_waiting=True)

    async def wait(self):
        self.world.clock.advance("1h")

    async def start(self):
        await self.claim()
        await self.announce()

    async def claim(self):
        """Claim what may start; hand others back that are not of this schedule."""
        found = await self.world.claim()
        for each in found:
            if each.run_id == self.run_id:
                self.attempt = each
            elif each.schedule_id == self.id:
                self.another = each
        others = [each for each in found if each.schedule_id != self.id]
        await self.world.store.hand_back(others)

    async def announce(self):
        assert await self.world.announce([self.attempt]) == [self.attempt]

    async def start_another(self):
        self.another = None
        await self.claim()
        assert await self.world.announce([self.another]) == [self.another]

    async def end_another(self):
        await self.world.end(self.another)

    async def hand_back(self):
        await self.world.store.hand_back([self.attempt])

    async def skip_condition(self):
        await self.world.store.skip_condition([self.attempt])

    async def expire(self):
        await self.world.store.expire(limit=100)

    async def cancel(self):
        await self.world.store.cancel(self.run_id)

    async def report(self):
        await self.world.store.report(self.run_id, OUTCOMES["done"])

    async def report_failure(self):
        await self.world.store.report(self.run_id, OUTCOMES["fails"])

    async def backfill(self):
        """Backfill the tick before the schedule was defined."""
        last = self.world.clock.now() // 1000 - 7200
        step = await self.world.store.backfill(self.id, first=last - 3600, last=last, limit=1)
        assert step.enqueued == 1

    async def revive(self):
        run_at = (await self.world.store.run(self.run_id)).run_at
        step = await self.world.store.backfill(self.id, first=run_at, last=run_at, limit=1)
        assert step.enqueued == 1

    async def switch_off(self):
        await self.define(run={"command": ["true"], "enabled": False})

    async def break_definition(self):
        await self.world.break_definition(self.id)
        await self.world.register(offers=OFFERS)

    async def restore(self):
        """Do as if the database were a backup that was put back."""
        await self.world.reopen()
        await self.world.store.acquire(a_node("the-next"))
        following = ""
        while following is not None:
            following = await self.world.store.record_gap(after=following)
        await self.world.register(offers=OFFERS)

    async def leave(self):
        """Leave nothing behind that other schedules could meet."""
        await self.world.store.delete(self.id)


async def play(world, name, visit=None):
    """Take a path, calling `visit` after each step; return the phases of its run."""
    fields, steps, _ = PATHS[name]
    path = Path(world, re.sub("[ ,]+", "-", name), fields)
    await path.define()
    for step in steps.split():
        await path.take(step)
        if visit is not None:
            await visit(path)
    phases = await logged(world, path.run_id)
    await path.leave()
    return phases


async def test_every_edge_of_the_table_is_taken_by_real_calls(world):
    watch(world)
    await world.register(offers=OFFERS)
    found = {name: await play(world, name) for name in PATHS}
    assert found == {name: phases.split() for name, (_, _, phases) in PATHS.items()}
    assert await watched(world) == set(edges())


def refuse_others(tx, run_id, phase):
    """Try to write every change of a run that does not begin with its phase."""
    for pair in edges():
        if pair[0] is not phase:
            change = RunChange(*(Run(run_id, 0, each, 0) for each in pair))
            with pytest.raises(AssertionError, match=f"run {run_id} was not {pair[0]}"):
                write(tx, WRITE, change)


async def test_run_is_not_written_from_a_phase_that_it_is_not_in(world):
    watch(world)
    await world.register(offers=OFFERS)
    left = set(Phase)

    async def visit(path):
        before = await logged(world, path.run_id)
        phase = Phase(before[-1])
        if phase in left:
            left.discard(phase)
            await in_transaction(world.store, lambda tx: refuse_others(tx, path.run_id, phase))
            assert await logged(world, path.run_id) == before

    for name in PATHS:
        await play(world, name, visit)
    assert not left


INDEX = {
    "Sqlite": "SELECT sql FROM sqlite_schema WHERE name = 'waiting_runs'",
    "Postgres": "SELECT indexdef FROM pg_indexes WHERE indexname = 'waiting_runs'",
}


async def test_index_of_waiting_runs_has_the_claimable_phases(world):
    statement = INDEX[type(world.database).__name__]
    (definition,) = await in_transaction(world.store, lambda tx: tx.one(statement))
    condition = definition.partition("WHERE")[2]
    assert set(re.findall("'([A-Z]+)'", condition)) == set(CLAIMABLE)

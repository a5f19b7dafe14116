"""Runs walk along every edge of the table of phases, on every database, and along no other.

A walk calls the store at random, as planners, dispatchers, targets and users do. A trigger of the
database logs every row that any statement writes, with the phase before and after.
"""

import random
from contextlib import suppress
from typing import NamedTuple

import pytest

from onbeat.core.runs.phase import FIRST, PHASES, Phase, edges
from onbeat.core.runs.run import Accepted, Busy, Canceled, Failed, Gone, Lost, Succeeded
from onbeat.errors import OnbeatError
from onbeat.ports.rows import RunFilter
from tests.inside import in_transaction
from tests.stores.conftest import Sqlite, a_node

OFFERS = frozenset({"command", "ray", "flow", "http"})
RAY = {"run": {"python": "reports:build", "on": "ray"}}
FLOW = {"run": {"flow": {"url": "/-/127.0.0.1/8125/-/"}}}
OUTCOMES = {
    "done": Succeeded(7),
    "fails": Failed("no luck"),
    "gone": Gone("it is gone"),
    "busy": Busy("it is busy", 0),
    "lost": Lost(),
    "accepted": Accepted("job-7", timeout=600_000),
    "ended": Canceled("it was ended"),
}
RETRIES = {"retry": ["0s", "0s", "7m"]}
LATER = {"jitter": "50m"}
HTTP = {"run": {"http": {"url": "http://127.0.0.1:9/work"}}}

SEEN = "run_id, phase, leased_by, blocked_by, finished_at, end_asked_at"
NEW = ", ".join(f"new.{name.strip()}" for name in SEEN.split(","))
WATCH_SQLITE = [
    f"CREATE TABLE phase_log (n INTEGER PRIMARY KEY, before, {SEEN})",
    f"""CREATE TRIGGER log_new AFTER INSERT ON schedule_runs BEGIN
            INSERT INTO phase_log (before, {SEEN}) VALUES (NULL, {NEW}); END""",
    f"""CREATE TRIGGER log_changed AFTER UPDATE ON schedule_runs BEGIN
            INSERT INTO phase_log (before, {SEEN}) VALUES (old.phase, {NEW}); END""",
]
WATCH_POSTGRES = [
    """CREATE TABLE onbeat.phase_log (n bigint GENERATED ALWAYS AS IDENTITY, before text,
            run_id bigint, phase text, leased_by text, blocked_by bigint, finished_at bigint,
            end_asked_at bigint)""",
    f"""CREATE FUNCTION onbeat.log_phase() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO onbeat.phase_log (before, {SEEN}) VALUES (
                CASE WHEN TG_OP = 'UPDATE' THEN old.phase END, {NEW});
            RETURN NULL; END $$""",
    """CREATE TRIGGER log_phase AFTER INSERT OR UPDATE ON onbeat.schedule_runs
            FOR EACH ROW EXECUTE FUNCTION onbeat.log_phase()""",
]


def watch(world):
    """Log every row that is written from now on."""
    for statement in WATCH_SQLITE if isinstance(world.database, Sqlite) else WATCH_POSTGRES:
        world.database.tamper(statement)


async def logged(world, run_id):
    """Return the phases of a run, from the first."""
    sql = "SELECT phase FROM phase_log WHERE run_id = ?1 ORDER BY n"
    found = await in_transaction(world.store, lambda tx: tx.all(sql, (run_id,)))
    return [
        phase for (phase,), before in zip(found, [None, *found], strict=False) if (phase,) != before
    ]


async def watched(world):
    """Return the edges that were taken, and check every row that was written."""
    rows = await in_transaction(
        world.store, lambda tx: tx.all(f"SELECT before, {SEEN} FROM phase_log ORDER BY n")
    )
    taken = set()
    for before, _, phase, leased_by, blocked_by, finished_at, end_asked_at in rows:
        facts, after = PHASES[Phase(phase)], Phase(phase)
        columns = (phase, leased_by, blocked_by, finished_at, end_asked_at)
        assert (leased_by is not None) == facts.is_leased, columns
        assert (finished_at is not None) == facts.is_over, columns
        if not facts.is_over:
            assert (blocked_by is not None) == facts.is_queued, columns
            assert (end_asked_at is not None) == facts.is_to_end, columns
        if before is None:
            assert after in FIRST, f"a new row is {after}"
        elif before != after:
            taken.add((Phase(before), after))
    assert taken <= set(edges()), taken - set(edges())
    return taken


# Where walks go: the schedules there, the outcomes of their attempts, and how often what is called.
class Place(NamedTuple):
    targets: tuple = ({}, HTTP, RAY, FLOW)
    policies: tuple = (
        {},
        {"overlap": "queue", **RETRIES},
        {"overlap": "replace", **RETRIES},
        {"overlap": "allow", "max_active": 1, **RETRIES},
        {"overlap": "queue", "start_deadline": "4m", "retry": ["3m", "0s"]},
        {"on_lost": "retry", **RETRIES},
    )
    every: tuple = ("2m", "5m", "10m")
    outcomes: tuple = tuple(OUTCOMES.values())
    weights: dict = {}  # noqa: RUF012 - of calls, by their names in Walk, beside those of WEIGHTS


WEIGHTS = {
    "pass_time": 8, "plan": 10, "claim": 12, "announce": 12, "finish": 12, "hand_back": 5, "cancel": 4,
    "report": 3, "expire": 4, "backfill": 3, "enqueue": 2, "edit": 1, "pause": 1, "resume": 3,
    "skip_condition": 1, "restart": 1, "stop": 1,
}  # fmt: skip
PLACES = {
    "everywhere": Place(),
    "reports": Place(
        targets=(HTTP, FLOW),
        policies=({"overlap": "replace"}, RETRIES),
        outcomes=(*[OUTCOMES["accepted"]] * 3, OUTCOMES["lost"], OUTCOMES["fails"]),
        weights={"report": 20, "cancel": 1, "backfill": 0, "edit": 0, "plan": 20, "restart": 0},
    ),
    "detached": Place(
        targets=(RAY, FLOW),
        outcomes=(*OUTCOMES.values(), *[OUTCOMES["lost"]] * 6),
        weights={"cancel": 12, "edit": 0, "hand_back": 10},
    ),
    "later": Place(
        policies=(LATER | RETRIES, LATER | {"overlap": "queue"} | RETRIES),
        every=("1h", "61m", "62m"),
        weights={"pass_time": 20, "edit": 16, "backfill": 8, "hand_back": 12, "restart": 0},
    ),
    "by force": Place(weights={"restore": 2, "break_definition": 4, "edit": 8}),
}


class Walk:
    """Random calls of a store about a few schedules, on a node that dies from time to time."""

    def __init__(self, world, place, seed):
        self.world, self.place, self.chance = world, PLACES[place], random.Random(seed)
        self.held, self.started = [], []
        self.ids = [f"{place[0]}{seed}-{n}" for n in range(3)]

    async def begin(self):
        await self.world.register(offers=OFFERS)
        for schedule_id in self.ids:
            await self.define(schedule_id)

    async def play(self, steps):
        weights = WEIGHTS | self.place.weights
        calls = [getattr(self, name) for name, times in weights.items() for _ in range(times)]
        for _ in range(steps):
            with suppress(OnbeatError):  # a run that is over, for one
                await self.chance.choice(calls)()

    async def define(self, schedule_id, **fields):
        place, choice = self.place, self.chance.choice
        given = {"every": choice(place.every), **choice(place.targets), **choice(place.policies)}
        update_waiting = self.chance.random() < 0.5
        await self.world.define(schedule_id, update_waiting=update_waiting, **given | fields)

    async def pass_time(self):
        self.world.clock.advance(
            self.chance.choice([1, 1_000, 30_000, 60_000, 120_000, 300_000, 1_800_000])
        )

    async def plan(self):
        self.started += (await self.world.plan(slots=self.chance.choice([0, 0, 9]))).attempts

    async def claim(self):
        self.held += await self.world.claim(limit=self.chance.choice([1, 3, 100]))

    async def announce(self):
        some = self.some_of(self.held)
        self.started += await self.world.announce(some)

    async def finish(self):
        for attempt in self.some_of(self.started):
            await self.world.end(attempt, self.chance.choice(self.place.outcomes))

    async def hand_back(self):
        await self.world.store.hand_back(
            self.some_of(self.chance.choice([self.held, self.started]))
        )

    async def skip_condition(self):
        await self.world.store.skip_condition(self.some_of(self.held))

    async def cancel(self):
        for run_id in await self.some_run():
            await self.world.store.cancel(run_id)

    async def report(self):
        outcome = self.chance.choice([Succeeded(7), Failed("no luck"), Accepted("job-8")])
        for run_id in await self.some_run():
            await self.world.store.report(run_id, outcome)

    async def expire(self):
        await self.world.store.expire(limit=self.chance.choice([1, 100]))

    async def backfill(self):
        second = self.world.clock.now() // 1000
        first = second - self.chance.choice([600, 3600, 7200])
        await self.world.store.backfill(self.some_id(), first=first, last=second, limit=2)

    async def enqueue(self):
        await self.world.store.enqueue(self.some_id(), request_id=str(self.chance.random()))

    async def edit(self):
        if self.chance.random() < 0.2:
            await self.world.store.delete(self.some_id())
        await self.define(self.some_id(), enabled=self.chance.random() < 0.8)

    async def pause(self):
        await self.world.store.pause(self.some_id())

    async def resume(self):
        for schedule_id in self.ids:
            await self.world.store.resume(schedule_id, catchup=self.chance.random() < 0.5)

    async def restart(self):
        """Let the node fall silent; another one takes over."""
        await self.world.reopen()
        await self.world.register(offers=OFFERS)
        if self.world.store.is_shared:
            while await self.world.store.rescue(self.world.node) is not None:
                pass

    async def stop(self):
        await self.world.store.unregister(self.world.node)
        await self.world.register(offers=OFFERS)

    async def restore(self):
        """Do as if the database were a backup that was put back."""
        await self.world.reopen()
        await self.world.store.acquire(a_node("the-next"))
        following = ""
        while following is not None:
            following = await self.world.store.record_gap(after=following)
        await self.world.register(offers=OFFERS)

    async def break_definition(self):
        """Have a schedule whose runs cannot start any more, until it is edited."""
        await self.world.break_definition(self.some_id())
        await self.world.register(offers=OFFERS)

    def some_id(self):
        return self.chance.choice(self.ids)

    def some_of(self, attempts):
        """Take some attempts out of a list; some may be of an older claim."""
        taken = [each for each in attempts if self.chance.random() < 0.6]
        attempts[:] = [each for each in attempts if each not in taken]
        return taken

    async def some_run(self):
        """Return the id of a run, which is mostly unfinished; nothing if there is no run."""
        rows = await self.world.store.runs(RunFilter(self.some_id()), limit=12)
        likely = [
            row.run_id for row in rows if row.finished_at is None or self.chance.random() < 0.1
        ]
        return self.chance.sample(likely, min(1, len(likely)))


@pytest.mark.parametrize("place", PLACES)
async def test_random_walk_takes_only_edges_of_the_table(world, place):
    watch(world)
    taken = set()
    for seed in range(2):
        walk = Walk(world, place, seed)
        await walk.begin()
        await walk.play(150)
        taken |= await watched(world)
    assert len(taken) > 12, "it went far enough"

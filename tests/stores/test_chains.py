"""Long chains of schedules that follow each other: the number of statements to define them."""

import itertools

import pytest

from onbeat.core.schedule import read_schedule
from onbeat.errors import InvalidSchedule
from onbeat.stores.sql.followers import keep_follows

RUN = {"run": {"command": ["true"]}}


def a_chain(length, **first):
    """Return schedules of which each follows the one before."""
    begin = read_schedule("s00000", {**(first or {"every": "1h"}), **RUN})
    names = [f"s{n:05}" for n in range(length)]
    return [begin] + [
        read_schedule(name, {"after": {"schedule": before, "outcome": "success"}, **RUN})
        for before, name in itertools.pairwise(names)
    ]


class Counting:
    """A transaction that counts its statements."""

    def __init__(self, tx):
        self._tx, self.statements = tx, 0

    def __getattr__(self, name):
        if name in {"all", "one", "run", "many", "each"}:
            self.statements += 1
        return getattr(self._tx, name)


async def statements(world, schedules):
    def call(tx):
        counting = Counting(tx)
        keep_follows(counting, schedules)
        return counting.statements

    return await world.store._write(call)


async def test_number_of_statements_is_independent_of_the_chain_length(world):
    chain = a_chain(1000)
    await world.store.upsert(chain)
    assert await statements(world, chain) == await statements(world, chain[:10]) <= 7


async def test_cycle_in_a_long_chain_is_refused_and_shown_shortened(world):
    chain = a_chain(300)
    await world.store.upsert(chain)
    (first, *_) = a_chain(1, after={"schedule": "s00299", "outcome": "success"})
    with pytest.raises(InvalidSchedule, match="this is a cycle") as refused:
        await world.store.upsert([first])
    assert len(str(refused.value)) < 300
    assert "s00000 follows s00299 follows s00298" in str(refused.value)
    assert (await world.store.schedule("s00000")).revision == 1

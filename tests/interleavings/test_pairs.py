"""Every pair of calls on one schedule, through every order of their statements.

`make interleavings` has some more calls than `make test`, and prints how many orders there were.
"""

import os
import re
from itertools import combinations_with_replacement

import pytest

from onbeat.errors import NoSuchSchedule, RunIsOver
from onbeat.stores.postgres import transaction
from onbeat.stores.postgres.transaction import PostgresTransaction
from onbeat.stores.sql import gate, plan_due, zone_data
from tests.interleavings.stepper import Explorer
from tests.interleavings.world import BEFORE, TwoClients
from tests.postgres import shared_server

USUAL = (
    "plan", "claim", "announce", "finish", "lost", "edit", "move", "pause", "delete", "recreate", "run", "close",
    "cancel", "backfill", "claim in a group", "follow",
)  # fmt: skip
OTHERS = (
    "plan by two",
    "announce late",
    "hand back",
    "release_unknown",
    "resume",
    "open",
    "cancel waiting",
)  # `make interleavings`
IN_ALL = os.environ.get("INTERLEAVINGS") == "all"
NAMES = (*USUAL, *OTHERS) if IN_ALL else USUAL
ONLY = {  # with others they are like `plan` and `claim`
    "plan by two": {"plan by two", "plan", "lost", "close"},
    "claim in a group": {"claim in a group"},
    "follow": {"follow", "plan", "finish", "lost", "edit", "pause", "delete", "close"},
    "move": {"plan", "claim", "announce", "finish", "lost", "edit", "move"},  # else it is an edit
}
if not IN_ALL:  # those that can meet on a run
    ONLY |= {
        "cancel": {"plan", "claim", "announce", "finish", "lost", "delete", "cancel", "backfill"},
        "backfill": {"plan", "claim", "edit", "delete", "cancel", "backfill"},
    }
EXPECTED = (NoSuchSchedule, RunIsOver)  # raised to the second caller
PAIRS = [
    (one, other)
    for one, other in combinations_with_replacement(NAMES, 2)
    if (one == other or not {one, other} <= BEFORE.keys())  # those need different situations
    and other in ONLY.get(one, NAMES)
    and one in ONLY.get(other, NAMES)
]


@pytest.fixture(scope="module")
def world():
    server = shared_server()
    url = server.new_database()
    world = TwoClients(url)
    yield world
    world.close()
    server.drop_database(url)


def played(world, pair):
    """Yield the problems of each order: what calls raised, and what the checker found."""
    explorer, said = Explorer(world.watching), {}
    for actors in explorer.orders(lambda: world.actors(pair)):
        errors = [actor.error for actor in actors if actor.error is not None]
        wrong = [repr(error) for error in errors if not isinstance(error, EXPECTED)]
        state = world.state()  # many orders come to the same
        if state not in said:
            said[state] = world.check()
        wrong += said[state]
        yield f"{wrong}\n{explorer.describe()}" if wrong else ""


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_interleaved_calls_lose_and_double_no_tick(world, pair):
    orders = 0
    for wrong in played(world, pair):
        assert not wrong
        orders += 1
    print(f"{orders} orders")  # shown by -s
    assert orders > 0


def nothing(*_):
    """Hold nothing."""


def without_locks(monkeypatch, name):
    text = getattr(transaction, name)
    unlocked = re.sub(r"FOR UPDATE (OF \w, \w )?SKIP LOCKED", "", text)
    assert unlocked != text, f"{name} locks no row"
    monkeypatch.setattr(transaction, name, unlocked)


DEFECTS = {
    "a planner decides by what it saw before others followed": (
        ("plan", "follow"),
        lambda patch: patch.setattr(zone_data, "follow_taken", lambda tx, cursor, rows: rows),
    ),
    "no call holds a schedule": (
        ("finish", "lost"),
        lambda patch: patch.setattr(PostgresTransaction, "hold", nothing),
    ),
    "the gate is turned while others start": (
        ("announce", "close"),
        lambda patch: patch.setattr(PostgresTransaction, "keep_gate", nothing),
    ),
    "two define the same schedule": (
        ("recreate", "recreate"),
        lambda patch: (
            patch.setattr(PostgresTransaction, "hold_definitions", nothing),
            patch.setattr(PostgresTransaction, "hold", nothing),
        ),
    ),
    "due rows are taken and not held": (
        ("plan", "plan"),
        lambda patch: without_locks(patch, "TAKE_DUE"),
    ),
    "waiting runs are taken and not held": (
        ("claim", "claim"),
        lambda patch: without_locks(patch, "TAKE_WAITING"),
    ),
    "the places of a group are counted and not held": (
        ("claim in a group", "claim in a group"),
        lambda patch: without_locks(patch, "TAKE_GROUPS"),
    ),
    "a node that is being given up still starts runs": (
        ("plan by two", "lost"),
        lambda patch: patch.setattr(plan_due, "may_start", lambda tx, node: True),
    ),
    "what was paused or deleted is opened with the gate": (
        ("delete", "open"),
        lambda patch: patch.setattr(gate, "find_all", all_alive),
    ),
}


def all_alive(tx, schedule_ids, find=gate.find_all):
    found = find(tx, schedule_ids)
    for known in found:
        known.deleted = False
    return found


@pytest.mark.parametrize("name", DEFECTS)
def test_seeded_defect_is_found_in_some_interleaving(world, monkeypatch, name):
    pair, put_in = DEFECTS[name]
    put_in(monkeypatch)
    assert any(wrong for wrong in played(world, pair)), f"{name} was not found"

"""Pairs of calls on runs that continue without their node, through every order of their statements.

`make interleavings` has some more pairs than `make test`.
"""

import pytest

from onbeat.stores.postgres.transaction import PostgresTransaction
from tests.interleavings.detached import DetachedClients
from tests.interleavings.test_pairs import IN_ALL, nothing, played
from tests.postgres import shared_server
from tests.sim.outside import outside_kind

USUAL = [
    ("reattach", "cancel tick"), ("rescue", "hand back"), ("rescue", "hand back late"),
    ("leave", "report"), ("leave", "cancel"), ("leave", "cancel again"),
    ("release_unknown", "finish"), ("release_unknown", "cancel unknown"),
    ("announce", "cancel taken"), ("plan", "cancel tick"),
]  # fmt: skip
OTHERS = [
    ("reattach", "reattach"), ("reattach", "plan"), ("reattach", "pause"), ("reattach", "delete"),
    ("rescue", "announce"), ("rescue", "cancel taken"), ("rescue", "cancel silent"),
    ("rescue", "reattach"), ("rescue", "delete"), ("hand back", "cancel taken"),
    ("leave", "report again"), ("leave", "plan"), ("leave", "finish"), ("leave", "delete"),
    ("release_unknown", "leave"), ("release_unknown", "cancel again"),
    ("release_unknown", "report"), ("release_unknown", "reattach"),
    ("finish", "cancel again"), ("cancel tick", "cancel tick"), ("announce", "pause"),
]  # fmt: skip
PAIRS = [*USUAL, *OTHERS] if IN_ALL else USUAL


@pytest.fixture(scope="module")
def world():
    server = shared_server()
    url = server.new_database()
    with outside_kind(reports=True):
        world = DetachedClients(url)
        yield world
        world.close()
    server.drop_database(url)


@pytest.mark.parametrize("pair", PAIRS, ids=" + ".join)
def test_interleaved_calls_lose_and_double_no_detached_run(world, pair):
    orders = 0
    for wrong in played(world, pair):
        assert not wrong
        orders += 1
    print(f"{orders} orders")  # shown by -s
    assert orders > 0


@pytest.mark.parametrize("pair", [("leave", "cancel"), ("reattach", "cancel tick")])
def test_calls_that_hold_no_schedule_are_found_out(world, monkeypatch, pair):
    monkeypatch.setattr(PostgresTransaction, "hold", nothing)
    assert any(played(world, pair))

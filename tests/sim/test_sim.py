"""A few seeds with every run of the tests; `make sim` plays many."""

import pytest

from tests.sim.__main__ import play


@pytest.mark.parametrize("seed", range(6))
def test_a_simulated_life_breaks_no_invariant(seed):
    _, ticks, wrong = play(seed)
    assert wrong == []
    assert ticks > 10


def test_same_seed_gives_the_same_simulation():
    assert play(7) == play(7)

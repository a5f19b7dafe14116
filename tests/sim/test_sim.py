"""A few seeds with every run of the tests; `make sim` plays many, `make mutants` puts defects in."""

import pytest

from tests.sim.__main__ import play
from tests.sim.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("seed", range(6))
def test_a_simulated_life_breaks_no_invariant(seed):
    _, ticks, wrong = play(seed)
    assert wrong == []
    assert ticks > 10


def test_a_seed_plays_the_same_again():
    assert play(7) == play(7)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_fits_the_source(mutant):
    assert (ROOT / "src" / "onbeat" / mutant.file).read_text().count(mutant.text) == 1

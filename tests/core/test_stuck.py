"""When a run counts as stuck."""

from onbeat.core.runs.stuck import ENOUGH, LEAST, Limit, is_stuck, p99, stuck_after


def test_the_p99_of_a_hundred_is_the_second_longest():
    assert p99(range(1, 101)) == 99
    assert p99(range(1, 21)) == 20
    assert p99([7]) == 7


def test_run_is_not_stuck_without_enough_past_runs():
    assert stuck_after(None, [60_000] * (ENOUGH - 1)) is None
    assert not is_stuck(None, started_at=0, now=2**60)


def test_three_times_the_p99_is_the_limit_but_never_less_than_ten_seconds():
    assert stuck_after(None, [60_000] * ENOUGH) == Limit(180_000, "p99")
    assert stuck_after(None, [1] * ENOUGH) == Limit(LEAST, "p99")


def test_warn_after_overrides_the_limit_from_past_runs():
    assert stuck_after(5_000, [60_000] * ENOUGH) == Limit(5_000, "warn_after")


def test_a_run_is_stuck_when_it_takes_longer_than_its_limit():
    limit = Limit(1_000, "warn_after")
    assert not is_stuck(limit, started_at=0, now=1_000)
    assert is_stuck(limit, started_at=0, now=1_001)

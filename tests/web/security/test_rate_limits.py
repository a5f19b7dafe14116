"""Token buckets: refill, and limited number."""

import pytest

from onbeat.testing import ManualClock
from onbeat.web.security.rate_limits import TokenBuckets, network_of


@pytest.fixture
def clock():
    return ManualClock()


def test_bucket_allows_its_burst_and_then_its_rate(clock):
    buckets = TokenBuckets(clock, rate=2, burst=3)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.advance(500)
    assert [buckets.take("a"), buckets.take("a")] == [0, 0.5]


def test_bucket_never_exceeds_its_burst(clock):
    buckets = TokenBuckets(clock, rate=2, burst=3)
    buckets.take("a")
    clock.advance("1h")
    assert [buckets.take("a") == 0 for _ in range(4)] == [True, True, True, False]


def test_each_key_has_its_own_bucket(clock):
    buckets = TokenBuckets(clock, rate=1, burst=1)
    assert [buckets.take(key) for key in "aba"] == [0, 0, 1]


def test_querying_the_wait_uses_no_token(clock):
    buckets = TokenBuckets(clock, rate=1, burst=1)
    assert [buckets.wait("a") for _ in range(3)] == [0, 0, 0]
    assert len(buckets) == 0


def test_buckets_ignore_the_wall_clock(clock):
    buckets = TokenBuckets(clock, rate=1, burst=1)
    buckets.take("a")
    clock.step(3_600_000)
    assert buckets.take("a") == 1


def test_number_of_buckets_is_limited_and_the_most_idle_is_dropped(clock):
    buckets = TokenBuckets(clock, rate=0.001, burst=1, most=100)
    for i in range(1000):
        buckets.take(f"{i}")
    assert len(buckets) == 100
    assert buckets.wait("999") > 0
    assert buckets.wait("0") == 0  # forgotten


@pytest.mark.parametrize(
    ("address", "house"),
    [
        ("192.0.2.1", "192.0.2.1"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::/64"), ("unknown", "unknown"), ("x" * 1000, "x" * 100),
    ],
)  # fmt: skip
def test_network_of_one_customer_has_one_bucket(address, house):
    assert network_of(address) == house

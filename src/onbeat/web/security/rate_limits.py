"""Rate limits by token buckets, with a bounded number of buckets."""

from collections import OrderedDict
from ipaddress import ip_address, ip_network

from onbeat.ports.clock import Clock

MOST = 10_000  # buckets that are kept: a further one replaces the longest unused


class TokenBuckets:
    """For each key a bucket of up to `burst` tokens, refilled with `rate` tokens per second."""

    def __init__(self, clock: Clock, *, rate: float, burst: float, most: int = MOST) -> None:
        self._clock, self._rate, self._burst, self._most = clock, rate, burst, most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def wait(self, key: str) -> float:
        """Return in how many seconds a token is available: 0 if there is one now."""
        missing = 1 - self._level(key)
        return missing / self._rate if missing > 0 else 0.0

    def take(self, key: str) -> float:
        """Take a token and return 0, or return in how many seconds one is available."""
        if wait := self.wait(key):
            return wait
        self._levels[key] = self._level(key) - 1, self._clock.monotonic()
        self._levels.move_to_end(key)
        while len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return 0.0

    def _level(self, key: str) -> float:
        if key not in self._levels:
            return self._burst
        level, at = self._levels[key]
        passed = max(0.0, self._clock.monotonic() - at)
        return min(self._burst, level + passed * self._rate)


def network_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or an IPv6 /64 network."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    if found.version == 4 or found.ipv4_mapped is not None:
        return str(found if found.version == 4 else found.ipv4_mapped)
    return str(ip_network((found, 64), strict=False))

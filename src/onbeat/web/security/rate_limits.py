"""How often something may be done: buckets that fill again, of not too many."""

from collections import OrderedDict
from ipaddress import ip_address, ip_network

from onbeat.ports.clock import Clock

MOST = 10_000  # buckets that are kept; who comes beyond these takes the place of the most idle


class TokenBuckets:
    """For each key a bucket of `burst` drops, into which `rate` of them fall in a second."""

    def __init__(self, clock: Clock, *, rate: float, burst: float, most: int = MOST) -> None:
        self._clock, self._rate, self._burst, self._most = clock, rate, burst, most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def wait(self, key: str) -> float:
        """Return in how many seconds there is a drop: none if there is one now."""
        missing = 1 - self._level(key)
        return missing / self._rate if missing > 0 else 0.0

    def take(self, key: str) -> float:
        """Take a drop, if there is one; return how long to wait if there is none."""
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
    """Return what counts as one: an IPv4 address, or the /64 that one IPv6 customer has."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    if found.version == 4 or found.ipv4_mapped is not None:
        return str(found if found.version == 4 else found.ipv4_mapped)
    return str(ip_network((found, 64), strict=False))

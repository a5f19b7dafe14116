"""What memory may be, whatever a node has done before."""

from collections.abc import Sequence

from tests.soak.life import WARM, Measured

# For each run, at most, and once in all: what is kept for each run would be an object, or bytes.
OBJECTS, ONCE = 0.02, 300
BYTES, BYTES_ONCE = 8.0, 64 * 2**10  # of Python objects
RESIDENT, RESIDENT_ONCE = 40.0, 4 * 2**20  # malloc keeps what was freed, up to a bound
SQLITE = 48 * 2**20  # bytes in all: a page cache of 16 MiB for the writer, and one for each reader
FULL = 0.98  # of what SQLite ever has: before that its caches are still being filled
LONG = 0.25  # of all runs: over fewer, what is resident says nothing


def grown(measured: Sequence[Measured]) -> list[str]:
    """Return what grows with the number of runs, in words."""
    first, last = measured[WARM - 1], measured[-1]
    runs, found = last.runs - first.runs, []
    if (objects := last.objects - first.objects) > OBJECTS * runs + ONCE:
        more = (last.by_type - first.by_type).most_common(5)
        found.append(f"{objects / runs:.3f} objects a run: {more}")
    if (traced := last.traced - first.traced) > BYTES * runs + BYTES_ONCE:
        found.append(f"{traced / runs:.1f} bytes of Python objects a run")
    if last.sqlite > SQLITE:
        found.append(f"SQLite has {last.sqlite / 2**20:.1f} MiB")
    most = max(each.sqlite for each in measured)
    full = next(each for each in measured if each.sqlite >= FULL * most)
    since = last.runs - full.runs
    resident = last.resident - full.resident
    if since > LONG * last.runs and resident > RESIDENT * since + RESIDENT_ONCE:
        found.append(f"{resident / since:.0f} resident bytes a run")
    return found

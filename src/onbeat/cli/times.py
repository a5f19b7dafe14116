"""Instants and lengths as people read them in a table."""

from onbeat.core.time.instants import rfc3339

UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def moment(t: int | None, now: int) -> str:
    """Return an instant in milliseconds, and how far off it is: `2026-01-01 12:00:00Z (in 5m)`."""
    if t is None:
        return "-"
    text = rfc3339(t // 1000).replace("T", " ")
    away = abs(t - now) // 1000
    return f"{text} ({f'in {length(away)}' if t > now else f'{length(away)} ago'})"


def length(seconds: int) -> str:
    """Return a length in its two largest units: `1h 5m`."""
    parts = []
    for size, unit in UNITS:
        if seconds >= size:
            parts.append(f"{seconds // size}{unit}")
            seconds %= size
    return " ".join(parts[:2]) or "0s"


def took(started_at: int | None, finished_at: int | None) -> str:
    """Return how long a run took: `350ms`, `12.4s`, `1h 5m`."""
    if started_at is None or finished_at is None:
        return "-"
    ms = max(finished_at - started_at, 0)
    if ms < 1000:
        return f"{ms}ms"
    return f"{ms / 1000:.1f}s" if ms < 60_000 else length(ms // 1000)

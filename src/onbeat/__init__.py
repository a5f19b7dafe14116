"""Onbeat: a durable scheduler for agents, workflows and oneshot jobs.

>>> from onbeat import cron
>>> trigger = cron("0 9 * * MON-FRI", tz="Europe/Berlin")
>>> trigger.next_after(1_767_225_600)  # 2026-01-01T00:00:00Z; every instant is UTC seconds
1767254400
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onbeat.app.onbeat import Onbeat
    from onbeat.core.triggers.build import after, at, calendar, cron, daily, every, startup
    from onbeat.errors import InvalidSchedule, OnbeatError

__version__ = "0.1.0"

__all__ = [
    "InvalidSchedule",
    "Onbeat",
    "OnbeatError",
    "after",
    "at",
    "calendar",
    "cron",
    "daily",
    "every",
    "startup",
]


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that the command line starts quickly."""
    if name not in __all__:
        raise AttributeError(f"module 'onbeat' has no attribute {name!r}")
    home = "onbeat.errors" if name[0].isupper() else "onbeat.core.triggers.build"
    if name == "Onbeat":
        home = "onbeat.app.onbeat"
    return getattr(import_module(home), name)

"""Oneshot services and the timers that start them. Whoever is outside uses these names only."""

from onbeat.systems.services.listing import DISABLED, HEADING, Listing, Standing
from onbeat.systems.services.system import Source, TimerSystem, invalid_timers, is_open

__all__ = [
    "DISABLED",
    "HEADING",
    "Listing",
    "Source",
    "Standing",
    "TimerSystem",
    "invalid_timers",
    "is_open",
]

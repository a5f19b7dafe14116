"""Oneshot services and the timers that start them. Whoever is outside uses these names only."""

from onbeat.systems.services.importing import import_elisp, import_state
from onbeat.systems.services.lisp import LONGEST as LONGEST_LISP
from onbeat.systems.services.listing import DISABLED, HEADING, Listing, Standing
from onbeat.systems.services.system import Source, TimerSystem, invalid_timers, is_open

__all__ = [
    "DISABLED",
    "HEADING",
    "LONGEST_LISP",
    "Listing",
    "Source",
    "Standing",
    "TimerSystem",
    "import_elisp",
    "import_state",
    "invalid_timers",
    "is_open",
]

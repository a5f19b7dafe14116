"""Kinds of target that are installed only for a while, as if this process had another package."""

from contextlib import contextmanager

from onbeat.core import schedule
from onbeat.core.target_kinds import KINDS


@contextmanager
def installed(*kinds):
    """Install more kinds: a definition that is read meanwhile may name them."""
    before = dict(KINDS._by_name), dict(KINDS._by_key), KINDS._unresolved_needs
    schedule._decoded.cache_clear()
    try:
        KINDS.install(kinds)
        yield
    finally:
        KINDS._by_name, KINDS._by_key, KINDS._unresolved_needs = before
        schedule._decoded.cache_clear()

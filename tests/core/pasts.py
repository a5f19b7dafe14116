"""Pasts in which the events that triggers wait for have happened."""

from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.past import Past, TriggerCause

T = parse_instant("2026-01-01T00:00:00Z")


def happened(*triggers, at=T):
    """Return a past in which everything that causes ticks of these happened at `at`."""
    return Past(happened={cause: TriggerCause(at) for each in triggers for cause in each.causes()})

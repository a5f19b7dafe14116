"""Oneshot services and the timers that start them."""

from onbeat.systems.services.timers import RETRY, Timers, define_timers, read_timers

__all__ = ["RETRY", "Timers", "define_timers", "read_timers"]

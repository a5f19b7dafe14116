"""Oneshot services and their timers."""

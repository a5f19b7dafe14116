"""Workflows that are started by cron texts."""

from onbeat.systems.workflows.registrar import RUN_LAUNCHER, Registrar

__all__ = ["RUN_LAUNCHER", "Registrar"]

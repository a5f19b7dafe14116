"""Simulation of schedules: the production decisions on a virtual clock."""

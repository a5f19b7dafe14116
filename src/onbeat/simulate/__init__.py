"""Simulation: the production decisions on a virtual clock."""

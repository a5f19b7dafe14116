"""Agents around a blackboard."""

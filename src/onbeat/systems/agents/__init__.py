"""Agents that share a blackboard."""

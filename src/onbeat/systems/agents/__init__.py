"""Agents around a blackboard: timers and artifacts run them, and what they return is published."""

from onbeat.systems.agents.blackboard import Artifact, Blackboard, Model, type_name
from onbeat.systems.agents.builder import AgentBuilder
from onbeat.systems.agents.context import AgentContext, ContextBuilder, Subscription, read_names
from onbeat.systems.agents.specs import ScheduleSpec, TimerTick
from onbeat.systems.agents.system import AgentSystem

__all__ = [
    "AgentBuilder",
    "AgentContext",
    "AgentSystem",
    "Artifact",
    "Blackboard",
    "ContextBuilder",
    "Model",
    "ScheduleSpec",
    "Subscription",
    "TimerTick",
    "read_names",
    "type_name",
]

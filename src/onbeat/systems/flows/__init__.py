"""Flows of a panel, timed by a `schedule:` block in their meta. Others use these names only."""

from onbeat.systems.flows.config import (
    SOURCE,
    TIMER_NAME,
    TIMER_NAMESPACE,
    TIMER_USER,
    ScheduleConfig,
    ScheduleStatus,
    TimerStatus,
    read_config,
    schedule_id_of,
    schedule_key,
    target_of,
)
from onbeat.systems.flows.exposes import Source, read_exposes
from onbeat.systems.flows.system import Mirror, Timer, schedules_of, status_of
from onbeat.systems.flows.template import META_TEMPLATE
from onbeat.systems.flows.timer_log import TimerLog, timer_logger

__all__ = [
    "META_TEMPLATE",
    "SOURCE",
    "TIMER_NAME",
    "TIMER_NAMESPACE",
    "TIMER_USER",
    "Mirror",
    "ScheduleConfig",
    "ScheduleStatus",
    "Source",
    "Timer",
    "TimerLog",
    "TimerStatus",
    "read_config",
    "read_exposes",
    "schedule_id_of",
    "schedule_key",
    "schedules_of",
    "status_of",
    "target_of",
    "timer_logger",
]

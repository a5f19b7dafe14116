"""Reminders over HTTP: `GET /reminders`, and the same below the prefix of the API."""

from litestar import get
from litestar.di import NamedDependency

from onbeat.service.serialize import ScheduleFields, schedule_fields
from onbeat.service.service import Service
from onbeat_toys.reminders.system import listed


@get("/reminders", operation_id="reminders")
async def reminders(service: NamedDependency[Service]) -> list[str]:
    """Return the ids of reminders."""
    return [row.schedule_id for row in await listed(service)]


@get("/reminders", operation_id="reminder_schedules")
async def reminder_schedules(service: NamedDependency[Service]) -> list[ScheduleFields]:
    """Return the schedules of reminders."""
    return [schedule_fields(row) for row in await listed(service)]


ROUTES = [reminders]
API_ROUTES = [reminder_schedules]

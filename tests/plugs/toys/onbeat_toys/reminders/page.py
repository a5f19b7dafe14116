"""The section of reminders on the dashboard."""

from onbeat.service.service import Service
from onbeat.web.html import table
from onbeat_toys.reminders.system import listed


async def section(service: Service, _reminders: object) -> str:
    """Return the section of reminders."""
    rows = await listed(service)
    return f"<h2>Reminders</h2>\n{table(('ID',), [[row.schedule_id] for row in rows])}"

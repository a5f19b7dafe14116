"""The section of timers on the dashboard."""

from html import escape

from onbeat.errors import InvalidFile, InvalidSchedule
from onbeat.service.service import Service
from onbeat.systems.services.system import TimerSystem
from onbeat.systems.services.timer_list import DISABLED, HEADING
from onbeat.web.html import table


async def section(service: Service, timers: TimerSystem) -> str:
    """Return the section of timers."""
    try:
        found = await timers.listed(service)
    except (InvalidSchedule, InvalidFile):
        return "<h2>Timers</h2>\n<p class=bad>The timer file cannot be read: see the log.</p>"
    if found is None:
        return f"<h2>Timers</h2>\n<p>{escape(DISABLED)}.</p>"
    text = table(HEADING, [each.cells(found.now) for each in found.timers])
    if found.invalid:
        invalid = table(("ID", "Reason"), list(found.invalid.items()))
        text += f"\n<h3>Invalid timers</h3>\n{invalid}"
    return f"<h2>Timers</h2>\n{text}"

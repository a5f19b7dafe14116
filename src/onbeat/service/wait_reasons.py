"""Why due runs wait: a peer that does not answer, or a target that no node offers."""

from collections.abc import Sequence

import msgspec

from onbeat.core.runs.phase import Status
from onbeat.core.schedule import from_definition
from onbeat.core.target_kinds import KINDS, is_offered, missing_kind
from onbeat.errors import InvalidSchedule
from onbeat.ports.rows import Overview, RunFilter, RunRow, ScheduleFilter
from onbeat.service.service import Service

MOST = 500  # waiting runs that are read


class WaitReasons(msgspec.Struct, frozen=True):
    """The number of runs that wait for the same reason."""

    why: str
    runs: int
    schedule_id: str  # of the first of them


async def wait_reasons(service: Service, found: Overview) -> Sequence[WaitReasons]:
    """Return why due runs wait, other than for their turn; the most frequent reason first."""
    waiting = await service.runs(RunFilter(status=Status.ENQUEUED), limit=MOST)
    due = [run for run in waiting if run.blocked_by is None and run.leased_by is None]
    needs = await _needs(service, {run.schedule_id for run in due})
    offered = {name for node in found.nodes if node.alive_until > found.now for name in node.offers}
    counted: dict[str, list[RunRow]] = {}
    for run in due:
        need = needs.get(run.schedule_id, "")
        if need and not is_offered(need, offered) and run.due_at <= found.now:
            counted.setdefault(not_offered(need), []).append(run)
        elif run.reason == "busy" and run.error:
            counted.setdefault(run.error, []).append(run)
    listed = [WaitReasons(why, len(runs), runs[-1].schedule_id) for why, runs in counted.items()]
    return sorted(listed, key=lambda each: -each.runs)


def not_offered(need: str) -> str:
    """Return the reason that no node offers a target, with the setting that would change it."""
    if missing := missing_kind(need):
        return f"no package on this node provides {missing!r}"
    setting = setting_of(need)
    hint = f" (start one with the setting {setting})" if setting else ""
    return f"no node that is up offers {need!r}{hint}"


def setting_of(need: str) -> str:
    """Return the setting with which a node offers a target, or an empty text."""
    kind = KINDS.find(need)
    return "" if kind is None else kind.setting


async def _needs(service: Service, ids: set[str]) -> dict[str, str]:
    rows = await service.schedules(ScheduleFilter(ids=sorted(ids))) if ids else []
    found = {}
    for row in rows:
        try:
            schedule = from_definition(row.schedule_id, row.definition)
        except InvalidSchedule:  # reported elsewhere
            continue
        found[row.schedule_id] = schedule.needs
    return found

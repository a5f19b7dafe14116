"""The registrar: schedules of workflows, in the words of their system.

A run calls the function that is registered as `run-launcher` with `workflow_id`, `version` and
`user_id`, and with the attempt, whose `run_at` and `key` are the planned time and the idempotency
key.
"""

import uuid
from collections.abc import Callable, Mapping

import msgspec

from onbeat.core.instants import rfc3339
from onbeat.core.schedules import (
    Schedule,
    check_id,
    from_definition,
    json_can_say,
    read_schedule,
)
from onbeat.errors import InvalidSchedule, NoSuchSchedule, meant, shown
from onbeat.records import ScheduleRow
from onbeat.service import Service
from onbeat.systems.wording import check_fields, told_in
from onbeat.telling import schedule_fields

SOURCE = "workflows"  # whose schedules these are, in the store
RUN_LAUNCHER = "run-launcher"  # the name of the function that starts a workflow
PREVIEW = 5
LONGEST_JITTER = 7 * 86_400_000

Fields = Mapping[str, object]


class Registrar:
    """Defines the schedules of workflows, and reads them back."""

    def __init__(
        self, service: Service, *, new_id: Callable[[], str] = lambda: str(uuid.uuid4())
    ) -> None:
        self._service, self._new_id = service, new_id

    async def upsert_schedule(self, given: Fields) -> dict[str, object]:
        """Define a schedule; return its `schedule_id`, made here unless given, and `next_run_at`.

        What is left out is at its default. A schedule that is paused stays so.
        """
        schedule = _read(given, self._new_id)
        known = await self._service.find(schedule.schedule_id)
        if known is not None and known.source != SOURCE:
            problem = f"{shown(schedule.schedule_id)} is there, and of no workflow"
            raise InvalidSchedule("schedule_id", problem, hint="another id")
        user_id = str(given["user_id"])
        await self._service.define([schedule], source=SOURCE, user_id=user_id)
        row = await self._service.schedule(schedule.schedule_id)
        next_run_at = schedule_fields(row).next_run_at
        return {"schedule_id": schedule.schedule_id, "next_run_at": next_run_at}

    async def pause_schedule(self, schedule_id: str, paused: bool) -> None:  # noqa: FBT001 - as its users call it
        """Let a schedule rest, or go on from now."""
        if not isinstance(paused, bool):
            problem = f"{shown(paused)} is neither true nor false"
            raise InvalidSchedule("paused", problem, hint="true")
        await self._row(schedule_id)
        if paused:
            await self._service.pause(schedule_id)
        else:
            await self._service.resume(schedule_id)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Take a schedule away; its started runs finish."""
        await self._row(schedule_id)
        await self._service.delete(schedule_id)

    async def get_schedule(self, schedule_id: str) -> dict[str, object]:
        """Return a schedule, with a `preview` of when it fires next."""
        return _told(await self._row(schedule_id))

    async def _row(self, schedule_id: str) -> ScheduleRow:
        """Return a schedule of this system; those of others are not here."""
        row = await self._service.schedule(check_id(schedule_id))
        if row.source != SOURCE:
            raise NoSuchSchedule(schedule_id)
        return row


def _read(given: Fields, new_id: Callable[[], str]) -> Schedule:
    """Return the schedule that these fields ask for, or refuse them."""
    check_fields(given, REQUIRED.keys() | OPTIONAL)
    for name, kind in REQUIRED.items():
        value = given.get(name)
        if type(value) is not kind or value == "" or not json_can_say(value):
            what = "a whole number" if kind is int else "a text"
            problem = f"{shown(value)} is not {what}" if name in given else "it is missing"
            raise InvalidSchedule(name, problem, hint=f"{what} is needed")
    jitter = given.get("jitter_ms", 0)
    if type(jitter) is not int or not 0 <= jitter <= LONGEST_JITTER:
        hint = f"milliseconds, 0 to {LONGEST_JITTER}"
        raise InvalidSchedule("jitter_ms", f"{shown(jitter)} is no such number", hint=hint)
    catchup = given.get("catchup_policy", "none")
    if not isinstance(catchup, str) or catchup not in CATCHUP:
        problem = f"no policy is called {shown(catchup)}"
        raise InvalidSchedule("catchup_policy", problem, hint=meant(catchup, CATCHUP))
    workflow = {name: given[name] for name in WORKFLOW}
    fields = {
        "cron": given["cron_expr"],
        "timezone": given["timezone"],
        "run": {"python": RUN_LAUNCHER, "inputs": workflow},
        "jitter": f"{jitter}ms",
        "jitter_around": jitter > 0,
        "overlap": given.get("overlap_policy", "skip"),
        "catchup": CATCHUP[catchup],
    }
    fields |= {name: given[name] for name in ("start_at", "end_at") if given.get(name) is not None}
    schedule_id = given.get("schedule_id")
    with told_in(WORDS):
        return read_schedule(new_id() if schedule_id is None else check_id(schedule_id), fields)


def _told(row: ScheduleRow) -> dict[str, object]:
    """Return a row in the words of this system."""
    schedule = from_definition(row.schedule_id, row.definition)
    fields = msgspec.json.decode(row.definition)
    preview: list[int] = []
    if row.next_run_at is not None:
        preview = schedule.trigger.upcoming(row.next_run_at - 1, PREVIEW)
    told = schedule_fields(row)
    return {
        "schedule_id": row.schedule_id,
        **{name: schedule.target.inputs[name] for name in WORKFLOW},
        "cron_expr": fields["cron"],
        "timezone": fields.get("timezone", "UTC"),
        "start_at": fields.get("start_at"),
        "end_at": fields.get("end_at"),
        "next_run_at": told.next_run_at,
        "paused": row.paused,
        "jitter_ms": schedule.policy.jitter,
        "overlap_policy": schedule.policy.overlap,
        "catchup_policy": next(k for k, v in CATCHUP.items() if v == schedule.policy.catchup),
        "updated_at": told.updated_at,
        "preview": [rfc3339(tick) for tick in preview],
    }


WORKFLOW = ("workflow_id", "version", "user_id")
REQUIRED = {
    "workflow_id": str,
    "version": int,
    "user_id": str,
    "cron_expr": str,
    "timezone": str,
}
OPTIONAL = {"schedule_id", "start_at", "end_at", "jitter_ms", "overlap_policy", "catchup_policy"}
CATCHUP = {"none": "none", "fire_immediately": "all", "spread": "spread"}
WORDS = {"cron": "cron_expr", "overlap": "overlap_policy", "jitter": "jitter_ms"}

"""The registrar: defines the schedules of workflows, with the fields of this system.

Each is a schedule with `run: {workflow, version, user_id}` and this system's policy: a failed
hand-over is retried three times, a second apart, and a lost run is retried once under the same key,
by which the executor recognizes it.
"""

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from onbeat.core.policy import read_policy
from onbeat.core.runs.phase import Status
from onbeat.core.schedule import Schedule, check_id, from_definition, read_schedule
from onbeat.core.time.instants import rfc3339
from onbeat.errors import (
    InvalidSchedule,
    NoSuchSchedule,
    NotAllowed,
    RevisionConflict,
    did_you_mean,
    quote_value,
)
from onbeat.ports.rows import RunFilter, RunRow, ScheduleFilter, ScheduleRow
from onbeat.service.serialize import run_fields, schedule_fields
from onbeat.service.service import Service
from onbeat.systems.field_names import check_fields, renamed_errors
from onbeat.systems.workflows.store import check_text, check_workflow

log = logging.getLogger("onbeat.systems")

SOURCE = "workflows"  # the `source` of these schedules in the store
DEPLOYED = "workflows-deployed"  # the `source` of schedules made by deploying a DAG
SOURCES = (SOURCE, DEPLOYED)
TRIES = 10  # while others change the same schedules
PREVIEW = 5
LONGEST_JITTER = 7 * 86_400_000
MOST_LISTED = 1000
PAGE = 500  # schedules that are read together
POLICY: Mapping[str, object] = {
    "retry": {"delays": ["1s", "1s", "1s"], "on": ["launch_failed"]},
    "on_lost": "retry",
    "catchup_window": "720h",
}
LONGEST_QUEUE = 1000  # waiting runs of one schedule
ON_TIME = "10s"  # with catchup none: how late a tick may start
TAKEN = ("deploy", "pause", "upsert")  # routes below /schedules that are not ids

OF_SETTINGS = ("grace", "queue_limit", "retry", "timeout")  # policy fields set by the settings

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class WorkflowDefaults:
    """Defaults of fields that a schedule omits."""

    overlap_policy: str = "skip"
    catchup_policy: str = "none"
    jitter_ms: int = 0
    feedback: bool = False  # the executor reports the outcome of every run
    timeout: int = 3_600_000  # how long that report is awaited, in milliseconds


class Registrar:
    """Defines, changes and lists the schedules of workflows."""

    def __init__(
        self,
        service: Service,
        *,
        defaults: WorkflowDefaults = WorkflowDefaults(),
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._service, self._defaults, self._new_id = service, defaults, new_id

    async def upsert_schedule(self, values: Fields) -> dict[str, object]:
        """Define a schedule; return its `schedule_id`, generated unless given, and `next_run_at`.

        Omitted fields get their defaults. A paused schedule stays paused, and no past tick starts.
        """
        schedule = self.read(values)
        for left in reversed(range(TRIES)):
            existing = await self.check_free([schedule])
            row = existing.get(schedule.schedule_id)
            source = SOURCE if row is None else row.source
            try:
                (found,) = await self.put([schedule], existing, source=source)
            except RevisionConflict:
                if not left:
                    raise
            else:
                return found
        raise AssertionError("the last try returns, or raises")

    async def check_free(self, schedules: Iterable[Schedule]) -> dict[str, ScheduleRow]:
        """Return the existing schedules with these ids; refuse ids that others use."""
        users = {each.schedule_id: each.target.fields["user_id"] for each in schedules}
        rows = await self._service.schedules(ScheduleFilter(ids=list(users))) if users else []
        for row in rows:
            if row.source not in SOURCES:
                problem = f"{quote_value(row.schedule_id)} exists already and is not a workflow"
                raise InvalidSchedule("schedule_id", problem, hint="choose another id")
            owner = _fields_of(row)["user_id"] if _is_workflow(row) else users[row.schedule_id]
            if owner != users[row.schedule_id]:
                problem = f"{quote_value(row.schedule_id)} belongs to {quote_value(owner)}"
                hint = "choose another schedule_id, or delete that one first"
                raise InvalidSchedule("user_id", problem, hint=hint)
        return {row.schedule_id: row for row in rows}

    async def put(
        self,
        schedules: Sequence[Schedule],
        existing: Mapping[str, ScheduleRow],
        *,
        source: str,
        remove: Iterable[ScheduleRow] = (),
    ) -> list[dict[str, object]]:
        """Define and delete schedules of one user, all or none; return the defined ones.

        Raises RevisionConflict if the schedules are no longer as in `existing`.
        """
        users = {str(each.target.fields["user_id"]) for each in schedules}
        assert len(users) <= 1, "they are of one user"
        ids = [each.schedule_id for each in schedules]
        removed = {row.schedule_id: row.revision for row in remove}
        revisions = {name: existing[name].revision if name in existing else None for name in ids}
        await self._service.define(
            schedules,
            source=source,
            user_id=next(iter(users), ""),
            remove=list(removed),
            expected={**removed, **revisions},
        )
        rows = {
            row.schedule_id: row for row in await self._service.schedules(ScheduleFilter(ids=ids))
        }
        return [_registered(name, rows.get(name)) for name in ids]

    async def pause_schedule(self, schedule_id: str, paused: bool) -> None:  # noqa: FBT001 - a documented signature
        """Pause a schedule, or resume it from now on."""
        if not isinstance(paused, bool):
            problem = f"{quote_value(paused)} is neither true nor false"
            raise InvalidSchedule("paused", problem, hint="true")
        check_may(self._service, "operate")
        await self._row(schedule_id)
        if paused:
            await self._service.pause(schedule_id)
        else:
            await self._service.resume(schedule_id)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule; its started runs finish."""
        check_may(self._service, "define")
        await self._row(schedule_id)
        await self._service.delete(schedule_id)

    async def get_schedule(self, schedule_id: str) -> dict[str, object]:
        """Return a schedule and its next ticks, as `preview` and as `next_fire_times`."""
        row = await self._row(schedule_id)
        coming: list[int] = []
        if row.next_run_at is not None:
            trigger = from_definition(row.schedule_id, row.definition).trigger
            coming = trigger.upcoming(row.next_run_at - 1, PREVIEW)
        preview = [rfc3339(tick) for tick in coming]
        return {"schedule": _fields_of(row), "preview": preview, "next_fire_times": preview}

    async def list_schedules(
        self, *, user_id: str | None = None, workflow_id: str | None = None, limit: int = 100
    ) -> list[dict[str, object]]:
        """Return up to `limit` schedules by id, of a user, of a workflow, or all."""
        wanted = {"user_id": user_id, "workflow_id": workflow_id}
        found: dict[str, dict[str, object]] = {}
        most = _limit(limit)
        for source in SOURCES:
            matching = 0
            async for row in self._of_source(source):
                fields = _fields_of(row)
                if all(value in (None, fields[name]) for name, value in wanted.items()):
                    found[row.schedule_id] = fields
                    matching += 1
                if matching == most:
                    break
        return [found[name] for name in sorted(found)][:most]

    async def deployed(self, workflow_id: str, user_id: str) -> list[ScheduleRow]:
        """Return the schedules that deploying a workflow of a user has defined."""
        prefix = f"{workflow_id}/"
        found: list[ScheduleRow] = []
        async for row in self._of_source(DEPLOYED, after=prefix):
            if not row.schedule_id.startswith(prefix):
                break
            fields = _fields_of(row)
            if (fields["workflow_id"], fields["user_id"]) == (workflow_id, user_id):
                found.append(row)
        return found

    async def _of_source(self, source: str, *, after: str = "") -> AsyncIterator[ScheduleRow]:
        """Yield schedules of workflows by id, after `after`."""
        while rows := await self._service.schedules(
            ScheduleFilter(source=source), after=after, limit=PAGE
        ):
            for row in filter(_is_workflow, rows):
                yield row
            if len(rows) < PAGE:
                return
            after = rows[-1].schedule_id

    async def runs(self, schedule_id: str, *, limit: int = 10) -> list[dict[str, object]]:
        """Return the last runs of a schedule, latest first."""
        await self._row(schedule_id)
        which = RunFilter(check_id(schedule_id))
        return [_run_fields(row) for row in await self._service.runs(which, limit=_limit(limit))]

    async def _row(self, schedule_id: str) -> ScheduleRow:
        """Return a schedule of this system; those of other systems are not found."""
        row = await self._service.schedule(check_id(schedule_id))
        if not _is_workflow(row):
            raise NoSuchSchedule(schedule_id)
        return row

    def read(self, values: Fields) -> Schedule:
        """Return the schedule of these fields, or refuse them."""
        default = self._defaults
        values = check_given(values, default)
        jitter = values.get("jitter_ms", default.jitter_ms)
        assert isinstance(jitter, int), "check_given accepted it"
        overlap = str(values.get("overlap_policy", default.overlap_policy))
        catchup = CATCHUP[str(values.get("catchup_policy", default.catchup_policy))]
        fields = {
            **self._policy(overlap, catchup),
            "cron": values["cron_expr"],
            "timezone": values["timezone"],
            "run": {
                "workflow": values["workflow_id"],
                "version": values["version"],
                "user_id": values["user_id"],
            },
            "jitter": f"{jitter}ms",
            "jitter_around": jitter > 0,
        }
        fields |= {name: values[name] for name in ("start_at", "end_at") if name in values}
        schedule_id = values.get("schedule_id")
        with renamed_errors(FIELD_NAMES):
            return read_schedule(
                self._new_id() if schedule_id is None else check_id(schedule_id), fields
            )

    def _policy(self, overlap: str, catchup: str) -> dict[str, object]:
        """Return the policy that results from these two and from the settings."""
        found = {**POLICY, "overlap": overlap, "catchup": catchup}
        if overlap == "queue":
            found["queue_limit"] = LONGEST_QUEUE
        if catchup == "none":
            found["grace"] = ON_TIME
        if self._defaults.feedback:
            found["timeout"] = f"{self._defaults.timeout // 1000}s"
        return found

    async def apply_settings(self) -> None:
        """Bring the retries, timeouts and queues of stored schedules in line with the settings.

        Nothing fires because of it, and paused schedules stay paused. Schedules that were edited
        elsewhere are left unchanged.
        """
        for source in SOURCES:
            found: dict[str, list[ScheduleRow]] = {}
            async for row in self._of_source(source):
                if not row.is_edited and self._with_settings(row) is not None:
                    found.setdefault(row.user_id, []).append(row)
            for rows in found.values():
                for n in range(0, len(rows), PAGE):
                    await self._define(rows[n : n + PAGE])

    async def _define(self, rows: Sequence[ScheduleRow]) -> None:
        """Define schedules of one user by the settings: together, or one by one on a conflict."""
        try:
            await self._service.define(
                [each for row in rows if (each := self._with_settings(row)) is not None],
                source=rows[0].source,
                user_id=rows[0].user_id,
                expected={row.schedule_id: row.revision for row in rows},
            )
        except (RevisionConflict, InvalidSchedule) as refused:
            for row in rows if len(rows) > 1 else ():
                await self._define([row])
            if len(rows) == 1:
                log.warning(
                    "workflow schedule %s could not be updated to the settings: %s",
                    rows[0].schedule_id,
                    refused,
                )

    def _with_settings(self, row: ScheduleRow) -> Schedule | None:
        """Return a schedule with the policy of the settings, or None if it has that already."""
        schedule = from_definition(row.schedule_id, row.definition)
        policy = schedule.policy
        wanted = read_policy(self._policy(policy.overlap, policy.catchup))
        changed = replace(policy, **{name: getattr(wanted, name) for name in OF_SETTINGS})
        return None if changed == policy else msgspec.structs.replace(schedule, policy=changed)


def check_given(values: Fields, default: WorkflowDefaults = WorkflowDefaults()) -> Fields:
    """Return the fields of an upsert that are not null, or refuse invalid ones."""
    try:
        check_fields(values, REQUIRED | OPTIONAL)
    except InvalidSchedule as refused:
        if refused.field != "paused":
            raise
        hint = "pause_schedule, or POST /schedules/pause: an upsert does not change it"
        raise InvalidSchedule(refused.field, refused.problem, hint=hint) from None
    values = {name: value for name, value in values.items() if value is not None}
    for name in sorted(REQUIRED - values.keys(), key=list(REQUIRED_IN_ORDER).index):
        what = REQUIRED_IN_ORDER[name]
        raise InvalidSchedule(name, "it is missing", hint=f"{what} is needed")
    check_workflow(values["workflow_id"], values["version"])
    for name in ("user_id", "cron_expr", "timezone"):
        check_text(name, values[name])
    check_free_of_routes(values.get("schedule_id"))
    jitter = values.get("jitter_ms", default.jitter_ms)
    if type(jitter) is not int or not 0 <= jitter <= LONGEST_JITTER:
        hint = f"milliseconds, 0 to {LONGEST_JITTER}"
        raise InvalidSchedule(
            "jitter_ms", f"{quote_value(jitter)} is not a valid number", hint=hint
        )
    check_one_of("overlap_policy", OVERLAP, values.get("overlap_policy", default.overlap_policy))
    check_one_of("catchup_policy", CATCHUP, values.get("catchup_policy", default.catchup_policy))
    for name in ("start_at", "end_at"):
        if not isinstance(values.get(name, ""), str):
            check_text(name, values[name])
    return values


def check_free_of_routes(schedule_id: object) -> None:
    """Refuse an id whose URL is another route."""
    if schedule_id in TAKEN:
        problem = f"/schedules/{schedule_id} is another route"
        raise InvalidSchedule("schedule_id", problem, hint="choose another id")


def check_may(service: Service, scope: Literal["read", "operate", "define"]) -> None:
    """Refuse a caller without the scope, before anything is read."""
    caller = service.caller
    if not caller.may(scope):
        problem = f"{caller.name or 'this caller'} may {caller.scope}, not {scope}"
        raise NotAllowed(problem, hint=f"a token with scope {scope}")


def check_one_of(name: str, known: Iterable[str], value: object) -> None:
    """Refuse an unknown value; the message uses the last part of the field's name."""
    names = list(known)
    if not isinstance(value, str) or value not in names:
        problem = f"no {name.rpartition('_')[2]} is called {quote_value(value)}"
        raise InvalidSchedule(name, problem, hint=did_you_mean(value, names))


def _limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= MOST_LISTED:
        problem = f"{quote_value(limit)} is not a valid number"
        raise InvalidSchedule("limit", problem, hint=f"1 to {MOST_LISTED}")
    return limit


def _is_workflow(row: ScheduleRow) -> bool:
    """Return whether a schedule belongs to this system and still runs a workflow."""
    try:
        kind = from_definition(row.schedule_id, row.definition).target.kind
    except InvalidSchedule:  # unreadable, which is reported elsewhere
        return False
    return row.source in SOURCES and kind == "workflow"


def _registered(schedule_id: str, row: ScheduleRow | None) -> dict[str, object]:
    """Return the result of an upsert; without `next_run_at` if the schedule was deleted since."""
    next_run_at = None if row is None else schedule_fields(row).next_run_at
    return {"schedule_id": schedule_id, "next_run_at": next_run_at}


def _fields_of(row: ScheduleRow) -> dict[str, object]:
    """Return a row with the fields of this system; unknown values stay as they are."""
    fields, core = msgspec.json.decode(row.definition), schedule_fields(row)
    policy, run = from_definition(row.schedule_id, row.definition).policy, fields["run"]
    names = {theirs: ours for ours, theirs in CATCHUP.items()}
    return {
        "schedule_id": row.schedule_id,
        "workflow_id": run["workflow"],
        "version": run["version"],
        "user_id": run["user_id"],
        "cron_expr": fields.get("cron"),
        "timezone": fields.get("timezone", "UTC"),
        "start_at": fields.get("start_at"),
        "end_at": fields.get("end_at"),
        "next_run_at": core.next_run_at,
        "paused": row.paused,
        "jitter_ms": policy.jitter,
        "overlap_policy": policy.overlap,
        "catchup_policy": names.get(policy.catchup, policy.catchup),
        "updated_at": core.updated_at,
    }


def _run_fields(row: RunRow) -> dict[str, object]:
    """Return a run with the fields of this system, which has no status for canceled runs."""
    core, status = run_fields(row), row.status
    if status == Status.CANCELED:
        status = Status.SKIPPED if row.started_at is None else Status.FAILED
    result = row.result if isinstance(row.result, Mapping) else {}
    run_id = row.external_id or result.get("run_id")
    return {
        "idempotency_key": core.idempotency_key,
        "schedule_id": row.schedule_id,
        "run_at": core.run_at,
        "status": str(status),
        "run_id": None if run_id is None else str(run_id),
        "number": row.run_id,
        "tick_count": row.tick_count,
        "first_run_at": core.first_run_at,
        "reason": row.reason,
        "error": row.error,
        "created_at": core.created_at,
        "updated_at": core.updated_at,
    }


REQUIRED_IN_ORDER = {
    "workflow_id": "a string",
    "version": "a whole number",
    "user_id": "a string",
    "cron_expr": "a string",
    "timezone": "a string",
}
REQUIRED = frozenset(REQUIRED_IN_ORDER)
OPTIONAL = frozenset(
    {"schedule_id", "start_at", "end_at", "jitter_ms", "overlap_policy", "catchup_policy"}
)
OVERLAP = ("allow", "skip", "queue")
CATCHUP = {"none": "none", "fire_immediately": "all", "spread": "spread"}
FIELD_NAMES = {
    "cron": "cron_expr",
    "overlap": "overlap_policy",
    "jitter": "jitter_ms",
    "run.workflow": "workflow_id",
    "run.user_id": "user_id",
}

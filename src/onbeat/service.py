"""The use cases: what the command line, Python and every other surface can ask for.

Surfaces translate; what is allowed and what it means is here, once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from onbeat.core.backfill import Choice
from onbeat.core.instants import rfc3339, rfc3339_ms
from onbeat.core.policies import GROUP
from onbeat.core.runs import Failed, Succeeded
from onbeat.core.schedules import Schedule, Target, from_definition
from onbeat.core.why import Why, explain
from onbeat.core.words import words
from onbeat.errors import InvalidSchedule, NoSuchRun, NoSuchSchedule, naming, shown
from onbeat.ports import (
    Backfilled,
    GroupRow,
    Launcher,
    Launchers,
    NodeRow,
    Overview,
    RunRow,
    ScheduleRow,
    Store,
    Upserted,
)

MOST_RUNS = 10_000  # in one answer
MOST_PLACES = 10_000  # of a group
MOST_BACKFILLED = 10_000  # ticks in one stretch


class Service:
    """The use cases on one store. `wake` has a node in this process look at what was changed."""

    def __init__(
        self,
        store: Store,
        launchers: Launchers,
        *,
        new_id: Callable[[], str],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._launchers, self._new_id, self._wake = store, launchers, new_id, wake

    async def define(
        self, schedules: Sequence[Schedule], *, source: str = "", user_id: str = ""
    ) -> list[Upserted]:
        """Define schedules, all or none; what changes nothing writes nothing."""
        for schedule in schedules:
            with naming(schedule.schedule_id):
                self.check(schedule)
        done = await self._store.upsert(schedules, source=source, user_id=user_id)
        self._wake()
        return done

    def check(self, schedule: Schedule) -> None:
        """Refuse a schedule whose target, or condition, could never be launched."""
        check_launch(schedule, self._launchers)

    async def pause(self, schedule_id: str, *, note: str = "", until: int | None = None) -> bool:
        """Start nothing more of a schedule by itself; return whether that is a change.

        It goes on by itself when `until` is reached.
        """
        now = self._store.clock.now()
        if until is not None and until <= now:
            problem = f"{rfc3339_ms(until)} is past"
            raise InvalidSchedule("until", problem, hint=f"later than {rfc3339_ms(now)}")
        changed = await self._store.pause(schedule_id, note=note, until=until)
        self._wake()
        return changed

    async def resume(self, schedule_id: str, *, catchup: bool = False) -> bool:
        """Let a schedule go on from now, and run what the pause left out only if asked to."""
        changed = await self._store.resume(schedule_id, catchup=catchup)
        self._wake()
        return changed

    async def delete(self, schedule_id: str) -> None:
        """Take a schedule away. Its started runs finish."""
        await self._store.delete(schedule_id)

    async def start(
        self,
        schedule_id: str,
        *,
        inputs: Mapping[str, object] | None = None,
        request_id: str | None = None,
    ) -> RunRow:
        """Start a run now, beside the schedule's ticks. The same `request_id` is the same run."""
        found = await self._store.enqueue(
            schedule_id, request_id=request_id or self._new_id(), inputs=inputs
        )
        self._wake()
        asked = msgspec.json.decode(msgspec.json.encode(inputs)) if inputs else {}
        kept = found.inputs or {}
        if any(name not in kept or kept[name] != value for name, value in asked.items()):
            problem = f"run {found.run_id} has this request id, and other inputs"
            raise InvalidSchedule("request_id", problem, hint="another request id")
        return found

    async def cancel(self, run_id: int, *, note: str = "") -> RunRow:
        """Have a run end: one that waits at once, a started one as soon as its node can."""
        found = await self._store.cancel(run_id, note=note)
        self._wake()
        return found

    async def report(self, run: int | str, outcome: Succeeded | Failed) -> RunRow:
        """Record what a target tells of a run that it had accepted, by the run's id or key."""
        found = await self._store.report(run, outcome)
        self._wake()
        return found

    async def preview_backfill(self, schedule_id: str, *, first: int, last: int) -> list[Choice]:
        """Return what a backfill of the ticks from `first` to `last` would do with each."""
        await self._bounded(schedule_id, first, last)
        return await self._store.preview_backfill(
            schedule_id, first=first, last=last, limit=MOST_BACKFILLED
        )

    async def backfill(self, schedule_id: str, *, first: int, last: int) -> Backfilled:
        """Run ticks of the past after all: as many as there is room for; go on from `following`."""
        await self._bounded(schedule_id, first, last)
        found = await self._store.backfill(
            schedule_id, first=first, last=last, limit=MOST_BACKFILLED
        )
        self._wake()
        return found

    async def _bounded(self, schedule_id: str, first: int, last: int) -> None:
        row = await self.schedule(schedule_id)
        trigger = from_definition(schedule_id, row.definition).trigger
        count = len(trigger.between(first, last + 1)) if first <= last else 0
        if count > MOST_BACKFILLED:
            hint = f"{MOST_BACKFILLED} at most: a shorter stretch"
            raise InvalidSchedule("backfill", f"{count} ticks", hint=hint)

    async def set_group(self, name: str, *, places: int) -> bool:
        """Say how many runs of a group may be started at the same time."""
        if not GROUP.fullmatch(name):
            hint = "letters, digits and . _ / -, at most 100"
            raise InvalidSchedule("group", f"{shown(name)} is no name of a group", hint=hint)
        if not 1 <= places <= MOST_PLACES:
            hint = f"1 to {MOST_PLACES}"
            raise InvalidSchedule("places", f"{places} is no number of places", hint=hint)
        changed = await self._store.set_group(name, places=places)
        self._wake()
        return changed

    async def groups(self) -> list[GroupRow]:
        """Return the groups there are, by name, and how full they are."""
        return await self._store.groups()

    async def set_gate(self, *, is_open: bool) -> bool:
        """Turn the switch that stops everything; return whether that is a change."""
        changed = await self._store.set_gate(is_open=is_open)
        self._wake()
        return changed

    async def schedules(self, *, source: str | None = None) -> list[ScheduleRow]:
        """Return every schedule, or those of one source, by id."""
        return await self._store.schedules(source=source)

    async def schedule(self, schedule_id: str) -> ScheduleRow:
        """Return one schedule."""
        found = await self.find(schedule_id)
        if found is None:
            known = [row.schedule_id for row in await self._store.schedules()]
            raise NoSuchSchedule(schedule_id, known)
        return found

    async def find(self, schedule_id: str) -> ScheduleRow | None:
        """Return one schedule, if it is there."""
        return await self._store.schedule(schedule_id)

    async def runs(
        self,
        *,
        schedule_id: str | None = None,
        status: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[RunRow]:
        """Return runs, latest first."""
        found = await self._store.runs(
            schedule_id=schedule_id, status=status, before=before, limit=min(limit, MOST_RUNS)
        )
        if schedule_id is not None and not found:  # one that was deleted still has its history
            await self.schedule(schedule_id)
        return found

    async def run(self, run_id: int) -> RunRow:
        """Return one run."""
        found = await self._store.run(run_id)
        if found is None:
            raise NoSuchRun(run_id)
        return found

    async def why(self, schedule_id: str, at: int | None = None) -> Why:
        """Say why a schedule ran, or did not, at an instant: by default of its latest tick."""
        return explain(await self._store.facts(schedule_id, at))

    async def ask_to_stop(self, node_ids: Collection[str]) -> int:
        """Have nodes stop in good order; return how many are there to hear of it."""
        return await self._store.ask_to_stop(node_ids)

    async def overview(self) -> Overview:
        """Return how things stand."""
        return await self._store.overview()


def check_launch(schedule: Schedule, launchers: Launchers) -> None:
    """Refuse a schedule whose target, or condition, could never be launched."""
    with naming("run"):
        launcher = _launcher_of(schedule.target, launchers)
        launcher.check(schedule.target)
    if schedule.policy.overlap == "replace" and not launcher.can_cancel(schedule.target):
        problem = "what it starts cannot be ended, so that nothing could take its place"
        raise InvalidSchedule("overlap", problem, hint="skip, queue or allow")
    if schedule.when is not None:
        with naming("when"):
            _launcher_of(schedule.when, launchers).check(schedule.when)


def _launcher_of(target: Target, launchers: Launchers) -> Launcher:
    launcher = launchers.get(target.kind)
    if launcher is None:
        raise InvalidSchedule(
            target.kind, "nothing launches it", hint=f"known: {', '.join(launchers)}"
        )
    return launcher


def schedule_fields(row: ScheduleRow) -> dict[str, object]:
    """Return a schedule as JSON tells it."""
    try:
        told: str | None = words(from_definition(row.schedule_id, row.definition).trigger)
    except InvalidSchedule as refused:
        told = f"cannot be read: {refused}"
    return {
        "schedule_id": row.schedule_id,
        "words": told,
        "definition": _json(row.definition),
        "revision": row.revision,
        "source": row.source,
        "user_id": row.user_id,
        "paused": row.paused,
        "pause_note": row.pause_note,
        "paused_until": _millisecond(row.paused_until),
        "next_run_at": _second(row.next_run_at),
        "next_due_at": _millisecond(row.next_due_at),
        "iteration": row.iteration,
        "runs_used": row.runs_used,
        "last_run_at": _millisecond(row.last_run_at),
        "last_success_at": _millisecond(row.last_success_at),
        "last_failure_at": _millisecond(row.last_failure_at),
        "last_exit": row.last_exit,
        "last_missed_at": _millisecond(row.last_missed_at),
        "last_miss_reason": row.last_miss_reason,
        "consecutive_failures": row.consecutive_failures,
        "created_at": _millisecond(row.created_at),
        "updated_at": _millisecond(row.updated_at),
    }


def run_fields(row: RunRow) -> dict[str, object]:
    """Return a run as JSON tells it."""
    return {
        "run_id": row.run_id,
        "schedule_id": row.schedule_id,
        "run_at": _second(row.run_at),
        "due_at": _millisecond(row.due_at),
        "status": row.status,
        "reason": row.reason,
        "triggered_by": row.triggered_by,
        "attempt": row.attempt,
        "iteration": row.iteration,
        "revision": row.revision,
        "tick_count": row.tick_count,
        "first_run_at": _second(row.first_run_at),
        "blocked_by": row.blocked_by,
        "priority": row.priority,
        "group": row.grp,
        "deadline_at": _millisecond(row.deadline_at),
        "end_asked_at": _millisecond(row.end_asked_at),
        "deferrals": row.deferrals,
        "external_id": row.external_id,
        "idempotency_key": row.key,
        "request_id": row.request_id,
        "started_at": _millisecond(row.started_at),
        "finished_at": _millisecond(row.finished_at),
        "exit_code": row.exit_code,
        "error": row.error,
        "result": row.result,
        "inputs": row.inputs,
        "rendered": row.rendered,
        "created_at": _millisecond(row.created_at),
        "updated_at": _millisecond(row.updated_at),
    }


def overview_fields(found: Overview) -> dict[str, object]:
    """Return how things stand as JSON tells it."""
    return {
        "now": rfc3339_ms(found.now),
        "gate": "open" if found.gate_open else "closed",
        "schedules": found.schedules,
        "paused": found.paused,
        "due": found.due,
        "next_due_at": _millisecond(found.next_due_at),
        "runs": dict(found.runs),
        "nodes": [node_fields(node, found.now) for node in found.nodes],
    }


def node_fields(row: NodeRow, now: int) -> dict[str, object]:
    """Return a node as JSON tells it."""
    return {
        "node_id": row.node_id,
        "name": row.name,
        "roles": sorted(row.roles),
        "offers": sorted(row.offers),
        "running": row.running,
        "alive": row.alive_until > now,
        "stopping": row.is_stopping,
        "started_at": rfc3339_ms(row.started_at),
        "alive_until": rfc3339_ms(row.alive_until),
        "version": row.version,
        "tz": row.tz,
    }


def _second(t: int | None) -> str | None:
    return None if t is None else rfc3339(t)


def _millisecond(t: int | None) -> str | None:
    return None if t is None else rfc3339_ms(t)


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return text

"""What is kept, as JSON tells it: the same fields on the command line and over HTTP."""

import msgspec

from onbeat.core.instants import rfc3339, rfc3339_ms
from onbeat.core.schedules import from_definition
from onbeat.core.words import words
from onbeat.errors import InvalidSchedule
from onbeat.records import NodeRow, Overview, RunRow, ScheduleRow


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

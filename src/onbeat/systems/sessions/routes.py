"""Schedules of prompts to chat sessions, with the routes and fields of their original API.

Problems have the key `error`, which its clients read, in addition to the usual keys.
"""

from typing import Annotated, Any

import msgspec
from litestar import Response, Router, delete, get, patch, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody, PathParameter
from litestar.types import ControllerRouterHandler

from onbeat.errors import InvalidSchedule
from onbeat.service.service import Service
from onbeat.systems.sessions.definitions import OUTCOMES, SLUG, TIMEOUT, PromptRefused
from onbeat.systems.sessions.system import PromptFields, Sessions
from onbeat.web.params import ApiRequest, decode_segment, problem_responses
from onbeat.web.problems import PROBLEM_JSON, problem

Fields = dict[str, object]
Slug = Annotated[
    str,
    PathParameter(
        min_length=1,
        max_length=600,  # percent-encoded; the schema states the length after decoding
        description="The name of a schedule, and of the folder of its files.",
        schema_extra={"pattern": f"^{SLUG.pattern}$", "max_length": 100},
    ),
]


class SessionSchedules(msgspec.Struct, frozen=True):
    """All scheduled prompts, by slug."""

    schedules: list[PromptFields]


class SessionSchedulePut(msgspec.Struct, frozen=True, rename="camel"):
    """A scheduled prompt that was defined, and whether it is new."""

    slug: str
    next_run: str | None
    created: bool


class SessionSchedulePatched(msgspec.Struct, frozen=True, rename="camel"):
    """A scheduled prompt that was changed."""

    slug: str
    enabled: bool
    next_run: str | None


class SessionScheduleDeleted(msgspec.Struct, frozen=True):
    """A scheduled prompt was deleted, or did not exist."""

    success: bool


class SessionScheduleStarted(msgspec.Struct, frozen=True, rename="camel"):
    """A prompt that was sent; its session, if that exists already."""

    slug: str
    status: str
    session_id: str | None


@get(
    "/api/schedule", operation_id="session_schedules", responses=problem_responses("schedule", 404)
)
async def get_all(
    service: NamedDependency[Service], sessions: NamedDependency[Sessions]
) -> SessionSchedules:
    """Return all scheduled prompts."""
    return SessionSchedules(await sessions.items(service))


@get(
    "/api/schedule/{slug:str}",
    operation_id="session_schedule",
    responses=problem_responses("schedule", 404, 409),
)
async def get_one(
    service: NamedDependency[Service], sessions: NamedDependency[Sessions], slug: Slug
) -> PromptFields:
    """Return a scheduled prompt."""
    return await sessions.item(service, decode_segment(slug))


@put(
    "/api/schedule/{slug:str}",
    operation_id="session_schedule_put",
    responses=problem_responses("schedule", 404, 409),
)
async def put_one(
    service: NamedDependency[Service],
    sessions: NamedDependency[Sessions],
    slug: Slug,
    data: JSONBody[Fields],
) -> SessionSchedulePut:
    """Create a scheduled prompt, or replace its definition."""
    done = await sessions.put(service, decode_segment(slug), data)
    return msgspec.convert(done, SessionSchedulePut)


@patch(
    "/api/schedule/{slug:str}",
    operation_id="session_schedule_patch",
    responses=problem_responses("schedule", 404, 409),
)
async def patch_one(
    service: NamedDependency[Service],
    sessions: NamedDependency[Sessions],
    slug: Slug,
    data: JSONBody[Fields],
) -> SessionSchedulePatched:
    """Enable or disable a scheduled prompt, or change other fields, which requires scope define."""
    done = await sessions.patch(service, decode_segment(slug), data)
    return msgspec.convert(done, SessionSchedulePatched)


@delete(
    "/api/schedule/{slug:str}",
    operation_id="session_schedule_delete",
    status_code=200,
    responses=problem_responses("schedule", 404),
)
async def delete_one(
    service: NamedDependency[Service], sessions: NamedDependency[Sessions], slug: Slug
) -> SessionScheduleDeleted:
    """Delete a scheduled prompt and its files. One that does not exist is not an error."""
    done = await sessions.delete(service, decode_segment(slug))
    return msgspec.convert(done, SessionScheduleDeleted)


@post(
    "/api/schedule/{slug:str}/run",
    operation_id="session_schedule_run",
    status_code=200,
    responses=problem_responses("schedule", 404, 409),
)
async def run_one(
    service: NamedDependency[Service], sessions: NamedDependency[Sessions], slug: Slug
) -> SessionScheduleStarted:
    """Send a prompt now, in addition to its schedule."""
    done = await sessions.run(service, decode_segment(slug))
    return msgspec.convert(done, SessionScheduleStarted)


async def provide_sessions(state: State) -> Sessions:
    """Return the sessions system, or refuse the request if it is not configured."""
    sessions: Sessions | None = state.systems.get("sessions")
    if sessions is None:
        raise PromptRefused(404, "the sessions system is off: set sessions_url")
    return sessions


def _refused(_: ApiRequest, refused: PromptRefused) -> Response[bytes]:
    return _respond(refused.status, refused.error, refused.hint)


def _invalid(_: ApiRequest, refused: InvalidSchedule) -> Response[bytes]:
    return _respond(400, str(refused), "")


def _respond(status: int, error: str, hint: str) -> Response[bytes]:
    found: Fields = msgspec.to_builtins(problem(status, error, hint=hint))
    body = msgspec.json.encode({"error": error} | found)
    return Response(body, status_code=status, media_type=PROBLEM_JSON)


ROUTES: list[ControllerRouterHandler] = [
    Router(
        "/",
        route_handlers=[get_all, get_one, put_one, patch_one, delete_one, run_one],
        dependencies={"sessions": Provide(provide_sessions)},
        exception_handlers={PromptRefused: _refused, InvalidSchedule: _invalid},
    )
]

# The schemas of bodies. The sessions system itself validates them, with its own messages.
_TEXT = {"type": "string", "pattern": r"\S"}
_FIELDS: dict[str, Any] = {
    "prompt": {**_TEXT, "examples": ["Standup for {{ date }}"]},
    "enabled": {"type": "boolean", "default": True},
    "schedule": {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "type": {"const": "cron"},
                    "expression": _TEXT,
                    "timezone": {"type": ["string", "null"], "default": "UTC"},
                },
                "required": ["type", "expression"],
            },
            {
                "type": "object",
                "properties": {
                    "type": {"const": "interval"},
                    "intervalMinutes": {"type": "integer", "minimum": 1, "maximum": 525_600},
                },
                "required": ["type", "intervalMinutes"],
            },
            {
                "type": "object",
                "properties": {
                    "type": {"const": "after"},
                    "slug": _TEXT,
                    "outcome": {"enum": [*OUTCOMES, None], "default": OUTCOMES[0]},
                    "delayMinutes": {
                        "type": ["integer", "null"],
                        "minimum": 0,
                        "maximum": 525_600,
                        "default": 0,
                    },
                },
                "required": ["type", "slug"],
            },
        ]
    },
    "timeoutMinutes": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": 10_080,
        "default": TIMEOUT,
    },
    "rateLimit": {
        "type": ["object", "null"],
        "properties": {
            "maxRuns": {"type": "integer", "minimum": 1, "maximum": 1000},
            "per": {"enum": ["hour", "day"]},
        },
        "required": ["maxRuns", "per"],
        "additionalProperties": False,
    },
    "sessionConfig": {
        "type": ["object", "null"],
        "properties": {
            "model": {"type": ["string", "null"], "pattern": r"\S"},
            "persistSession": {"type": ["boolean", "null"], "default": True},
            "feedback": {"type": ["boolean", "null"], "default": False},
        },
    },
}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "session_schedule_put": (
        "SessionDefinition",
        {
            "title": "A scheduled prompt",
            "type": "object",
            "properties": _FIELDS,
            "required": ["prompt", "schedule"],
            "additionalProperties": True,
        },
    ),
    "session_schedule_patch": (
        "SessionDefinitionPatch",
        {
            "title": "A change of a scheduled prompt",
            "type": "object",
            "properties": _FIELDS,
            "anyOf": [{"required": [name]} for name in _FIELDS],
            "additionalProperties": True,
        },
    ),
}

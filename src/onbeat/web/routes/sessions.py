"""Schedules of prompts to chat sessions, at the routes and in the shapes that their system has.

A refusal says `{"error": "..."}`, as its users know it, beside what refusals say elsewhere.
"""

from typing import Annotated, Any

import msgspec
from litestar import Response, Router, delete, get, patch, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody, PathParameter
from litestar.types import ControllerRouterHandler

from onbeat.app.systems import RunningSystems
from onbeat.errors import InvalidSchedule
from onbeat.service.service import Service
from onbeat.systems.sessions.definitions import OUTCOMES, SLUG, TIMEOUT, PromptRefused
from onbeat.systems.sessions.system import PromptFields, Sessions
from onbeat.web.params import Asked, name_of, problem_responses
from onbeat.web.problems import PROBLEM_JSON, problem

Fields = dict[str, object]
Slug = Annotated[
    str,
    PathParameter(
        min_length=1,
        max_length=600,  # as it is sent; what is promised is what it stands for
        description="The name of a schedule, and of the folder of its files.",
        schema_extra={"pattern": f"^{SLUG.pattern}$", "max_length": 100},
    ),
]


class SessionSchedules(msgspec.Struct, frozen=True):
    """All of them, by slug."""

    schedules: list[PromptFields]


class SessionSchedulePut(msgspec.Struct, frozen=True, rename="camel"):
    """What was defined, and whether it is new."""

    slug: str
    next_run: str | None
    created: bool


class SessionSchedulePatched(msgspec.Struct, frozen=True, rename="camel"):
    """What was changed."""

    slug: str
    enabled: bool
    next_run: str | None


class SessionScheduleDeleted(msgspec.Struct, frozen=True):
    """It is not there any more."""

    success: bool


class SessionScheduleStarted(msgspec.Struct, frozen=True, rename="camel"):
    """What was started; its session, if it has one by now."""

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
    return await sessions.item(service, name_of(slug))


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
    """Schedule a prompt, or give it another definition: all of it is replaced."""
    done = await sessions.put(service, name_of(slug), data)
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
    """Enable or disable a scheduled prompt, or change some of it, which needs scope define."""
    done = await sessions.patch(service, name_of(slug), data)
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
    """Take a scheduled prompt away, with its files; one that is not there is gone already."""
    done = await sessions.delete(service, name_of(slug))
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
    """Send a prompt now, whatever the time is."""
    done = await sessions.run(service, name_of(slug))
    return msgspec.convert(done, SessionScheduleStarted)


async def provide_sessions(state: State) -> Sessions:
    """Return the system, if there is one."""
    systems: RunningSystems = state.systems
    if systems.sessions is None:
        raise PromptRefused(404, "the sessions system is off: set sessions_url")
    return systems.sessions


def _refused(_: Asked, refused: PromptRefused) -> Response[bytes]:
    return _answer(refused.status, refused.error, refused.hint)


def _invalid(_: Asked, refused: InvalidSchedule) -> Response[bytes]:
    return _answer(400, str(refused), "")


def _answer(status: int, error: str, hint: str) -> Response[bytes]:
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

# What bodies are, which are read by the system itself: it refuses them in words of its own.
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
SENT: dict[str, tuple[str, dict[str, Any]]] = {
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
            "title": "Some of a scheduled prompt",
            "type": "object",
            "properties": _FIELDS,
            "anyOf": [{"required": [name]} for name in _FIELDS],
            "additionalProperties": True,
        },
    ),
}

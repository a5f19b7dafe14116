"""Refusals as `application/problem+json`: what is wrong, where, and what would be right."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus

import msgspec

from onbeat.errors import (
    AlreadyThere,
    ChangedSince,
    InvalidSchedule,
    InvalidSettings,
    NoSuchRun,
    NoSuchSchedule,
    NoSuchToken,
    NoSuchWorkflow,
    NotAllowed,
    OfAnotherSource,
    OnbeatError,
    RunIsHeld,
    RunIsOver,
    StoreFailed,
    StoreUnusable,
    WorkflowIsUsed,
)

PROBLEM_JSON = "application/problem+json"
RETRY_AFTER = 2  # seconds after which to ask again, if the database does not answer
WITH_ERROR = "/api/schedule/"  # the routes of the sessions system, whose callers know them so


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why something was refused. `problem` is for people; who programs looks at `status`."""

    status: int
    title: str
    problem: str
    field: str = ""
    hint: str = ""
    type: str = "about:blank"

    def as_json(self, path: str = "") -> bytes:
        """Return it as it is sent, to who asked for a path: some look for it in `error`."""
        if f"{path}/".startswith(WITH_ERROR):
            return msgspec.json.encode({"error": self.problem} | msgspec.to_builtins(self))
        return msgspec.json.encode(self)


def problem(status: int, told: str, *, field: str = "", hint: str = "") -> Problem:
    """Return a refusal with this status."""
    return Problem(status, HTTPStatus(status).phrase, told, field, hint)


def unreadable(found: Sequence[Mapping[str, object]]) -> Problem:
    """Return what a caller is told of what the framework could not read: the first of it."""
    # Of a body that may be left out, and is, it tells only if something else is wrong.
    first = next((each for each in found if each.get("message") != NO_BODY), {})
    if not first:
        return problem(400, "there is no body", field="body")
    told, field = str(first.get("message", "it cannot be read")), str(first.get("key", ""))
    if first.get("source") == "header":
        field = field.replace("_", "-").title().replace("-Id", "-ID")
    field = "" if field == "data" else field
    if match := NAMED.fullmatch(told):
        told = "it is missing" if match[1] == "missing required" else "no field has this name"
        field = f"{field}.{match[2]}" if field else match[2]
    return problem(400, told, field=field or "body")


def of_another_type(refused: msgspec.ValidationError) -> Problem:
    """Return what a caller is told of a body that is JSON, and not what it should be."""
    told, _, place = str(refused).partition(" - at `$")
    return unreadable([{"message": told, "key": place.rstrip("`").lstrip(".")}])


def as_problem(refused: OnbeatError) -> Problem:
    """Return what a caller is told of an error that Onbeat raises on purpose."""
    match refused:
        case InvalidSchedule() | InvalidSettings():
            return problem(422, refused.problem, field=refused.field, hint=refused.hint)
        case NoSuchSchedule() | NoSuchRun() | NoSuchToken() | NoSuchWorkflow():
            return problem(404, str(refused))
        case NotAllowed():
            return problem(403, refused.problem, hint=refused.hint)
        case ChangedSince():
            return problem(412, str(refused), hint="read it again, and change that")
        case OfAnotherSource():
            hint = "take_over: true makes them this source's; source names the one they are of"
            return problem(409, refused.problem, hint=hint)
        case RunIsOver() | WorkflowIsUsed():
            return problem(409, refused.problem, hint=refused.hint)
        case AlreadyThere() | RunIsHeld():
            return problem(409, str(refused))
        case StoreFailed() | StoreUnusable():
            return problem(503, "the database does not answer as it should", hint="try again later")
        case _:
            return problem(409, str(refused))


NO_BODY = "'data'"
NAMED = re.compile("Object (missing required|contains unknown) field `(.*)`", re.DOTALL)

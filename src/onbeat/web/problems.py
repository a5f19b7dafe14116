"""Errors as `application/problem+json`: what is wrong, where, and how to correct it."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus

import msgspec

from onbeat.errors import (
    InvalidSchedule,
    InvalidSettings,
    NoSuchRun,
    NoSuchSchedule,
    NoSuchToken,
    NoSuchWorkflow,
    NotAllowed,
    OnbeatError,
    RevisionConflict,
    RunIsHeld,
    RunIsOver,
    ScheduleExists,
    SourceConflict,
    StoreFailed,
    StoreUnusable,
    WorkflowIsUsed,
)
from onbeat.host.plugs import plugs

PROBLEM_JSON = "application/problem+json"
RETRY_AFTER = 2  # seconds after which to retry, if the database does not answer


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused. `problem` is for people; programs use `status`."""

    status: int
    title: str
    problem: str
    field: str = ""
    hint: str = ""
    type: str = "about:blank"

    def as_json(self, path: str = "") -> bytes:
        """Return the body of the response to a request for `path`."""
        if any(f"{path}/".startswith(f"{each}/") for p in plugs() for each in p.error_paths):
            return msgspec.json.encode({"error": self.problem} | msgspec.to_builtins(self))
        return msgspec.json.encode(self)


def problem(status: int, text: str, *, field: str = "", hint: str = "") -> Problem:
    """Return a problem with this status."""
    return Problem(status, HTTPStatus(status).phrase, text, field, hint)


def unreadable(errors: Sequence[Mapping[str, object]]) -> Problem:
    """Return the problem for the first of the validation errors of the framework."""
    # It reports the absence of an optional body too, if something else is wrong.
    first = next((each for each in errors if each.get("message") != NO_BODY), {})
    if not first:
        return problem(400, "the body is missing", field="body")
    text, field = str(first.get("message", "it cannot be read")), str(first.get("key", ""))
    if first.get("source") == "header":
        field = field.replace("_", "-").title().replace("-Id", "-ID")
    field = "" if field == "data" else field
    if match := NAMED.fullmatch(text):
        text = "it is missing" if match[1] == "missing required" else "no field has this name"
        field = f"{field}.{match[2]}" if field else match[2]
    return problem(400, text, field=field or "body")


def wrong_type(refused: msgspec.ValidationError) -> Problem:
    """Return the problem for a body that is JSON of another type than expected."""
    text, _, path = str(refused).partition(" - at `$")
    return unreadable([{"message": text, "key": path.rstrip("`").lstrip(".")}])


def as_problem(refused: OnbeatError) -> Problem:
    """Return the problem for an error that Onbeat raises on purpose."""
    match refused:
        case InvalidSchedule() | InvalidSettings():
            return problem(422, refused.problem, field=refused.field, hint=refused.hint)
        case NoSuchSchedule() | NoSuchRun() | NoSuchToken() | NoSuchWorkflow():
            return problem(404, str(refused))
        case NotAllowed():
            return problem(403, refused.problem, hint=refused.hint)
        case RevisionConflict():
            return problem(412, str(refused), hint="read it again and repeat the change")
        case SourceConflict():
            hint = "take_over: true moves them to this source; or use the source that owns them"
            return problem(409, refused.problem, hint=hint)
        case RunIsOver() | WorkflowIsUsed():
            return problem(409, refused.problem, hint=refused.hint)
        case ScheduleExists() | RunIsHeld():
            return problem(409, str(refused))
        case StoreFailed() | StoreUnusable():
            return problem(503, "the database is unavailable", hint="try again later")
        case _:
            return problem(409, str(refused))


NO_BODY = "'data'"
NAMED = re.compile("Object (missing required|contains unknown) field `(.*)`", re.DOTALL)

"""Refusals as `application/problem+json`: what is wrong, where, and what would be right."""

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
    NotAllowed,
    OnbeatError,
    RunIsHeld,
    RunIsOver,
    StoreFailed,
    StoreUnusable,
)

PROBLEM_JSON = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why something was refused. `problem` is for people; who programs looks at `status`."""

    status: int
    title: str
    problem: str
    field: str = ""
    hint: str = ""
    type: str = "about:blank"

    def as_json(self) -> bytes:
        """Return it as it is sent."""
        return msgspec.json.encode(self)


def problem(status: int, told: str, *, field: str = "", hint: str = "") -> Problem:
    """Return a refusal with this status."""
    return Problem(status, HTTPStatus(status).phrase, told, field, hint)


def as_problem(refused: OnbeatError) -> Problem:
    """Return what a caller is told of an error that Onbeat raises on purpose."""
    match refused:
        case InvalidSchedule() | InvalidSettings():
            return problem(422, refused.problem, field=refused.field, hint=refused.hint)
        case NoSuchSchedule() | NoSuchRun() | NoSuchToken() | NoSuchToken():
            return problem(404, str(refused))
        case NotAllowed():
            return problem(403, refused.problem, hint=refused.hint)
        case ChangedSince():
            return problem(412, str(refused), hint="read it again, and change that")
        case AlreadyThere() | RunIsOver() | RunIsHeld():
            return problem(409, str(refused))
        case StoreFailed() | StoreUnusable():
            return problem(503, "the database does not answer as it should", hint="try again later")
        case _:
            return problem(409, str(refused))

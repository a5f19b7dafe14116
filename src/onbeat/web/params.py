"""What routes share: who asks, how pages and instants are read, and what an answer may be."""

import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import unquote

from litestar.connection import Request
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, PathParameter, QueryParameter

from onbeat.core.schedule import ID, check_id
from onbeat.core.time.instants import parse_instant, parse_instant_ms, rfc3339_ms
from onbeat.errors import InvalidSchedule, naming, shown
from onbeat.service.access import Caller
from onbeat.service.service import Service
from onbeat.web.problems import Problem

LONGEST_PAGE = 1000
INSTANT = (
    r"^ *[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2}) *$"
)
LOCAL_OR_INSTANT = INSTANT.replace("]{2}) *$", "]{2})? *$")

Asked = Request[object, object, State]

ScheduleId = Annotated[
    str,
    PathParameter(
        min_length=1,
        max_length=600,  # as it is sent; what is promised is what it stands for
        description="The id of a schedule; a slash in it is sent as %2F.",
        schema_extra={"pattern": f"^{ID.pattern}$", "max_length": 200},
    ),
]
RunId = Annotated[int, PathParameter(ge=1, le=2**62, description="The number of a run.")]
Limit = Annotated[
    int, QueryParameter(ge=1, le=LONGEST_PAGE, description="How many there are on a page.")
]
Search = Annotated[
    str, QueryParameter(max_length=200, description="A part of the id or of the definition.")
]
Instant = Annotated[
    str | None,
    QueryParameter(
        max_length=64,
        description="An instant as RFC 3339, such as 2026-12-01T09:00:00Z.",
        schema_extra={"pattern": INSTANT},
    ),
]
Moment = Annotated[
    str | None,
    QueryParameter(
        max_length=64,
        description=(
            "An instant as RFC 3339, such as 2026-12-01T09:00:00Z; without an offset it is a local "
            "time in the zone of the schedule."
        ),
        schema_extra={"pattern": LOCAL_OR_INSTANT},
    ),
]
IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern="^[!-~]+$",
        required=False,
        description="The same key is the same request: what was made then is the answer again.",
    ),
]
IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        max_length=64,
        required=False,
        description="The ETag that was read: refused with 412 if it was changed since.",
        schema_extra={"pattern": '^(\\*|"[0-9]{1,18}")$'},
    ),
]
UpdateWaiting = Annotated[
    bool,
    QueryParameter(
        description="Move runs that wait to the new revision. Else they start by their own."
    ),
]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a longer list."""

    limit: int
    cursor: str | None


def problem_responses(told: str, *statuses: int) -> dict[int, ResponseSpec]:
    """Return what a route answers besides what it is for: refusals, as problems.

    What the door refuses is added to all of them, by `web/openapi.py`.
    """
    about = {
        404: f"There is no such {told}.",
        409: f"The {told} is not in a state in which this could be done.",
        412: "It was changed since it was read.",
        422: "What was sent can be read, and is refused: `field` says where.",
        503: "The database does not answer.",
    }
    return {
        status: ResponseSpec(
            Problem,
            description=about[status],
            media_type="application/problem+json",
            generate_examples=False,
        )
        for status in sorted({*statuses, 503})
    }


async def provide_service(request: Asked, state: State) -> Service:
    """Return the use cases as whoever asks may have them."""
    caller = request.scope["state"].get("caller")  # the door has put it there
    assert isinstance(caller, Caller), "nothing comes here but through the door"
    service: Service = state.service
    return service.of(caller)


def name_of(given: str) -> str:
    """Return the name that a part of a path stands for: paths come as they were sent."""
    return unquote(given)


def schedule_id_of(given: str) -> str:
    """Return the id that a part of a path stands for, or refuse it."""
    return check_id(name_of(given))


def instant_of(field: str, given: str) -> int:
    """Return an instant in seconds, or refuse it."""
    with naming(field):
        return parse_instant(given)


def milliseconds_of(field: str, given: str, *, now: int) -> int:
    """Return an instant that is to come, in milliseconds, or refuse it."""
    with naming(field):
        found = parse_instant_ms(given)
    if found <= now:
        raise InvalidSchedule(
            field, f"{shown(given)} is past", hint=f"later than {rfc3339_ms(now)}"
        )
    return found


def revision_of(if_match: str | None) -> int | None:
    """Return the revision that an ETag stands for; None: whichever there is."""
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip()
    if len(text) > 2 and text[0] == text[-1] == '"' and text[1:-1].isascii():
        number = text[1:-1]
        if number.isdigit() and len(number) < 19:
            return int(number)
    hint = 'such as "3", as ETag gave it'
    raise InvalidSchedule("If-Match", f"{shown(if_match)} is no ETag of a schedule", hint=hint)


def etag(revision: int) -> str:
    """Return the ETag of a revision of a schedule."""
    return f'"{revision}"'


def place_of(field: str, given: str) -> tuple[int, int]:
    """Return the event that an id such as 1234.0 is of: its row, and which of that it is."""
    match = EVENT_ID.fullmatch(given)
    if match is None:
        hint = "such as 1234.0, as it was given"
        raise InvalidSchedule(field, f"{shown(given)} is no event's id", hint=hint)
    return int(match[1]), int(match[2]) if match[2] else 10**9


EVENT_ID = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?", re.ASCII)

"""What routes share: parameter types, parsing of ids and instants, ETags and problem responses."""

import re
from typing import Annotated
from urllib.parse import unquote

from litestar.connection import Request
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, PathParameter, QueryParameter

from onbeat.core.schedule import ID, check_id
from onbeat.core.time.instants import parse_instant, parse_instant_ms, rfc3339_ms
from onbeat.errors import InvalidSchedule, in_field, quote_value
from onbeat.service.access import Caller
from onbeat.service.service import Service
from onbeat.web.problems import Problem

LONGEST_PAGE = 1000
INSTANT = (
    r"^ *[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2}) *$"
)
LOCAL_OR_INSTANT = INSTANT.replace("]{2}) *$", "]{2})? *$")

ApiRequest = Request[object, object, State]

ScheduleId = Annotated[
    str,
    PathParameter(
        min_length=1,
        max_length=600,  # percent-encoded; the schema states the length after decoding
        description="The id of a schedule; a slash in it is sent as %2F.",
        schema_extra={"pattern": f"^{ID.pattern}$", "max_length": 200},
    ),
]
RunId = Annotated[int, PathParameter(ge=1, le=2**62, description="The number of a run.")]
Limit = Annotated[
    int, QueryParameter(ge=1, le=LONGEST_PAGE, description="The maximum number of items on a page.")
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
LocalOrInstant = Annotated[
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
        description=(
            "Identifies a request. Repeating it with the same key returns the first result."
        ),
    ),
]
IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        max_length=64,
        required=False,
        description="The ETag that was read; the request fails with 412 if it changed since.",
        schema_extra={"pattern": '^(\\*|"[0-9]{1,18}")$'},
    ),
]
UpdateWaiting = Annotated[
    bool,
    QueryParameter(
        description=(
            "Move waiting runs to the new revision; by default they keep the one they have."
        )
    ),
]


def problem_responses(subject: str, *statuses: int) -> dict[int, ResponseSpec]:
    """Return the problem responses of a route, for OpenAPI.

    Those of the security middleware are added to every route by `web/openapi.py`.
    """
    descriptions = {
        404: f"The {subject} was not found.",
        409: f"The state of the {subject} does not allow this.",
        412: "It was changed since it was read.",
        422: "The request was understood but refused: `field` names the invalid part.",
        503: "The database does not answer.",
    }
    return {
        status: ResponseSpec(
            Problem,
            description=descriptions[status],
            media_type="application/problem+json",
            generate_examples=False,
        )
        for status in sorted({*statuses, 503})
    }


async def provide_service(request: ApiRequest, state: State) -> Service:
    """Return the use cases with the rights of the caller."""
    caller = request.scope["state"].get("caller")  # set by the security middleware
    assert isinstance(caller, Caller), "every request has passed the security middleware"
    service: Service = state.service
    return service.of(caller)


def decode_segment(segment: str) -> str:
    """Decode a segment of a path; the framework gets paths as they were sent."""
    return unquote(segment)


def read_schedule_id(segment: str) -> str:
    """Return the schedule id in a segment of a path, or refuse it."""
    return check_id(decode_segment(segment))


def read_instant(field: str, text: str) -> int:
    """Return an instant in seconds, or refuse it."""
    with in_field(field):
        return parse_instant(text)


def read_future_ms(field: str, text: str, *, now: int) -> int:
    """Return a future instant in milliseconds, or refuse it."""
    with in_field(field):
        instant = parse_instant_ms(text)
    if instant <= now:
        hint = f"later than {rfc3339_ms(now)}"
        raise InvalidSchedule(field, f"{quote_value(text)} is in the past", hint=hint)
    return instant


def read_revision(if_match: str | None) -> int | None:
    """Return the revision in an If-Match header; None accepts any revision."""
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip()
    if len(text) > 2 and text[0] == text[-1] == '"' and text[1:-1].isascii():
        number = text[1:-1]
        if number.isdigit() and len(number) < 19:
            return int(number)
    hint = 'the value of the ETag header, such as "3"'
    raise InvalidSchedule(
        "If-Match", f"{quote_value(if_match)} is not an ETag of a schedule", hint=hint
    )


def etag(revision: int) -> str:
    """Return the ETag of a revision of a schedule."""
    return f'"{revision}"'


def read_event_id(field: str, text: str) -> tuple[int, int]:
    """Return the row and the index within it of an event id such as 1234.0, or refuse it."""
    match = EVENT_ID.fullmatch(text)
    if match is None:
        hint = "the id of an event, such as 1234.0"
        raise InvalidSchedule(field, f"{quote_value(text)} is not the id of an event", hint=hint)
    return int(match[1]), int(match[2]) if match[2] else 10**9


EVENT_ID = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?", re.ASCII)

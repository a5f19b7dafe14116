"""Read what a panel answers: a form, a launch, a status, a cancellation.

Pure: an answer becomes a value. `Unavailable` means that the request has started nothing, or that a
flow may still be running, and that a retry may succeed.
"""

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from onbeat.core.runs.run import Failed, Succeeded
from onbeat.errors import quote_value
from onbeat.ports.http import HttpResponse

LONGEST_ID = 200
LONGEST_ERROR = 500
OVERLOADED = (429, 503)  # a panel that answers so has started nothing
GONE = (404, 410)
IN_DOUBT = "its launch was sent and not answered: it may be running, and is not launched again"

Answer = HttpResponse | Failed


class Unavailable(msgspec.Struct, frozen=True):
    """The panel cannot answer now."""

    error: str


class Form(msgspec.Struct, frozen=True):
    """The form of a flow."""

    fields: frozenset[str] | None  # the names of its fields; None: unknown

    def missing(self, inputs: Mapping[str, object]) -> list[str]:
        """Return the inputs that it has no field for, sorted."""
        return [] if self.fields is None else sorted(inputs.keys() - self.fields)


class Launched(msgspec.Struct, frozen=True):
    """A flow was launched."""

    fid: str


class UnknownFlow(msgspec.Struct, frozen=True):
    """The panel does not know a flow: not yet, or not any more."""

    error: str


class Unreadable(msgspec.Struct, frozen=True):
    """The panel answered, but with no JSON object: a proxy's page, or more than is read of it."""

    error: str


class FlowStatus(msgspec.Struct, frozen=True):
    """What the panel knows of a flow."""

    status: str
    outcome: Succeeded | Failed | None = None  # None: it has not ended


def read_form(path: str, answer: Answer) -> Form | Unavailable | Failed:
    """Return the form of the flow at a path, or why there is none."""
    if isinstance(answer, Failed):
        return Unavailable(answer.error)
    if answer.status >= 500 or answer.status in OVERLOADED:
        return Unavailable(panel_error_text(answer))
    if answer.status == 404:
        problem = f"the panel has no flow {path}: {panel_error_text(answer)}"
        return Failed(problem, "launch_failed", retryable=False)
    if answer.status >= 400:
        return Failed(panel_error_text(answer), "launch_failed", retryable=False)
    return Form(_fields_of(answer.body))


def read_launch(answer: Answer) -> Launched | Unavailable | Failed:
    """Return the id of a launch, or why there is none: `lost` if it may have been launched."""
    if isinstance(answer, Failed):
        if answer.reason == "launch_failed":  # nothing was sent
            return Unavailable(answer.error)
        if answer.reason == "invalid_target":
            return answer
        return Failed(f"{answer.error}: {IN_DOUBT}", "lost", retryable=False)
    if answer.status in OVERLOADED:
        return Unavailable(panel_error_text(answer))
    if answer.status >= 500:  # it was available a moment ago: it may be launched
        return Failed(f"{panel_error_text(answer)}: {IN_DOUBT}", "lost", retryable=False)
    body = answer.body if isinstance(answer.body, Mapping) else {}
    found = body.get("result")
    if answer.status >= 400 or not isinstance(found, str) or body.get("errors"):
        return Failed(_refusal(answer), "launch_failed", retryable=False)
    if not 0 < len(found) <= LONGEST_ID or not found.isprintable():
        return Failed("the panel returned an invalid id", "launch_failed", retryable=False)
    return Launched(found)


def read_status(answer: Answer) -> FlowStatus | UnknownFlow | Unavailable | Unreadable:
    """Return the status of a flow, with its outcome if it has ended."""
    if isinstance(answer, Failed):
        return Unavailable(answer.error)
    if answer.status in GONE:
        return UnknownFlow(panel_error_text(answer))
    if answer.status >= 400:  # the flow may still be known
        return Unavailable(panel_error_text(answer))
    body = answer.body
    if not isinstance(body, Mapping):
        problem = f"{status_line(answer)}, and no JSON object of up to 1 MiB"
        return Unreadable(f"{problem}: {quote_value(body)}")
    status = str(body.get("status"))
    if status == "finished":
        return FlowStatus(status, Succeeded(_result(body)))
    if status == "error":
        return FlowStatus(status, Failed(_error(body)))
    return FlowStatus(status)


def is_canceled(answer: Answer) -> bool:
    """Return whether a cancellation was confirmed: the flow has ended."""
    if isinstance(answer, Failed):
        return False
    return 200 <= answer.status < 300 or answer.status in GONE


def status_line(answer: Answer) -> str:
    """Return the status of an answer, or why there is none, for the output of a run."""
    if isinstance(answer, Failed):
        return answer.error
    return f"HTTP {answer.status} {answer.phrase}".rstrip()


def panel_error_text(answer: Answer) -> str:
    """Return the error of an answer, with the server's reason if it has one."""
    if isinstance(answer, Failed):
        return answer.error
    reason = answer.body if isinstance(answer.body, str) else ""
    if isinstance(answer.body, Mapping):
        found = [answer.body.get(name) for name in ("detail", "error", "message")]
        reason = next((each for each in found if isinstance(each, str)), "")
    reason = " ".join(reason.split())[:LONGEST_ERROR]
    return f"{answer.error}: {reason}" if reason else answer.error


def _fields_of(body: object) -> frozenset[str] | None:
    elements = body.get("elements") if isinstance(body, Mapping) else None
    if not isinstance(elements, list):
        return None
    names = [each.get("name") for each in elements if isinstance(each, Mapping)]
    return frozenset(name for name in names if isinstance(name, str))


def _refusal(answer: HttpResponse) -> str:
    """Return why a launch was refused, by field."""
    body = answer.body if isinstance(answer.body, Mapping) else {}
    errors = body.get("errors")
    if isinstance(errors, Mapping):
        each = {name: error for name, error in errors.items() if error}
        parts = [f"{name}: {_joined(error)}" for name, error in each.items()]
        return f"the flow refused its inputs: {'; '.join(parts) or 'no reason given'}"
    if answer.status >= 400:
        return f"the panel refused the launch: {panel_error_text(answer)}"
    return "the panel returned no id: unknown whether a flow was launched"


def _joined(error: object) -> str:
    return ", ".join(map(str, error)) if isinstance(error, list) else str(error)


def _result(body: Mapping[str, object]) -> object:
    """Return the result of a flow: JSON in a string."""
    final = body.get("final")
    if isinstance(final, str):
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(final)
    return final


def _error(body: Mapping[str, object]) -> str:
    final = _result(body)
    while isinstance(final, Mapping) and len(final) == 1:  # {"Text": {"body": "..."}}
        final = next(iter(final.values()))
    return str(final) if final else "the flow failed without an error message"

"""Read the target of a prompt, `run: {session: {...}}`, or refuse it."""

from collections.abc import Mapping
from dataclasses import dataclass

from onbeat.core.target import Target
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, in_field, quote_value

LONGEST_ID = 200  # characters
EXAMPLES = {
    "prompt": "Standup for {{ date }}",
    "url": "http://127.0.0.1:3000",
    "model": "large",
    "cwd": "/srv/app",
}  # for string fields
FIELDS = {"prompt", "url", "model", "cwd", "persist", "feedback"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and the session it is sent to; the operator's settings fill empty fields."""

    text: str
    url: str = ""
    model: str = ""
    cwd: str = ""
    persist: bool = True  # all runs share one session
    feedback: bool = False  # the server reports the outcome of a run
    public_only: bool = False


def read_prompt(target: Target) -> Prompt:
    """Return the prompt of `run: {session: {prompt: ...}}`, or refuse it."""
    check_names(target.fields, {"session", "public_only"})
    fields = target.fields.get("session")
    with in_field("session"):
        if not isinstance(fields, Mapping):
            problem = f"{quote_value(fields)} is not a mapping"
            raise InvalidSchedule("", problem, hint='{prompt: "Standup for {{ date }}"}')
        check_names(fields, FIELDS)
        if "prompt" not in fields:
            raise InvalidSchedule("prompt", "it is missing", hint="the text to send to the session")
        return Prompt(
            _text("prompt", fields["prompt"]),
            url=_text("url", fields["url"]) if "url" in fields else "",
            model=_text("model", fields["model"]) if "model" in fields else "",
            cwd=_text("cwd", fields["cwd"]) if "cwd" in fields else "",
            persist=_flag("persist", fields.get("persist", True)),
            feedback=_flag("feedback", fields.get("feedback", False)),
            public_only=_flag("public_only", target.fields.get("public_only", False)),
        )


def session_id_of(body: object) -> str | None:
    """Return the session id in a server's answer, or None."""
    found = body.get("sessionId") if isinstance(body, Mapping) else None
    is_valid = isinstance(found, str) and 0 < len(found) <= LONGEST_ID and found.isprintable()
    return str(found) if is_valid and found not in {".", ".."} else None  # these are paths


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        problem = (
            "it is empty" if isinstance(value, str) else f"{quote_value(value)} is not a string"
        )
        raise InvalidSchedule(name, problem, hint=f'{name}: "{EXAMPLES[name]}"')
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidSchedule(name, f"{quote_value(value)} is not a boolean", hint="true or false")
    return value

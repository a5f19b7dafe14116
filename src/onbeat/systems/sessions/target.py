"""What a prompt is: read from a target, or refused. Nothing here sends anything."""

from collections.abc import Mapping
from dataclasses import dataclass

from onbeat.core.target import Target
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, naming, shown

LONGEST_ID = 200  # characters
EXAMPLES = {
    "prompt": "Standup for {{ date }}",
    "url": "http://127.0.0.1:3000",
    "model": "large",
    "cwd": "/srv/app",
}  # of fields that are texts
FIELDS = {"prompt", "url", "model", "cwd", "persist", "feedback"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent to a session, and to which. What is empty is the operator's to say."""

    text: str
    url: str = ""
    model: str = ""
    cwd: str = ""
    persist: bool = True  # all runs share one session
    feedback: bool = False  # the server reports the end of a run
    public_only: bool = False


def read_prompt(target: Target) -> Prompt:
    """Return what `run: {session: {prompt: ...}}` asks for, or refuse it."""
    check_names(target.fields, {"session", "public_only"})
    given = target.fields.get("session")
    with naming("session"):
        if not isinstance(given, Mapping):
            problem = f"{shown(given)} is no set of fields"
            raise InvalidSchedule("", problem, hint='{prompt: "Standup for {{ date }}"}')
        check_names(given, FIELDS)
        if "prompt" not in given:
            raise InvalidSchedule("prompt", "it is missing", hint="what is sent to the session")
        return Prompt(
            _text("prompt", given["prompt"]),
            url=_text("url", given["url"]) if "url" in given else "",
            model=_text("model", given["model"]) if "model" in given else "",
            cwd=_text("cwd", given["cwd"]) if "cwd" in given else "",
            persist=_flag("persist", given.get("persist", True)),
            feedback=_flag("feedback", given.get("feedback", False)),
            public_only=_flag("public_only", target.fields.get("public_only", False)),
        )


def session_id_of(body: object) -> str | None:
    """Return the id of the session that a server says it has made."""
    found = body.get("sessionId") if isinstance(body, Mapping) else None
    is_one = isinstance(found, str) and 0 < len(found) <= LONGEST_ID and found.isprintable()
    return str(found) if is_one and found not in {".", ".."} else None  # they are paths


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        problem = "it is empty" if isinstance(value, str) else f"{shown(value)} is not a text"
        raise InvalidSchedule(name, problem, hint=f'{name}: "{EXAMPLES[name]}"')
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidSchedule(name, f"{shown(value)} is no answer", hint="true or false")
    return value

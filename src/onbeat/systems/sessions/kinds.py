"""The kind of target of `run: {session: {prompt: "Standup"}}`."""

from collections.abc import Mapping

from onbeat.core.json_schema import flag, record, target_schema, text
from onbeat.core.target import Target
from onbeat.core.target_kinds import TargetKind
from onbeat.ports.http import MAY_BE_PRIVATE, PUBLIC_ONLY, URL, restrict_to_public


def _has_url(fields: Mapping[str, object]) -> bool:
    """Return whether a prompt has a server of its own, which every node can send it to."""
    session = fields.get("session")
    return isinstance(session, Mapping) and bool(session.get("url"))


def _needs(fields: Mapping[str, object]) -> str:
    return "session:url" if _has_url(fields) else "session"


def _for_definers(target: Target, owner: str | None) -> Target:
    """Return a prompt that is sent to a public address, or to the server of the operator."""
    return restrict_to_public(target, owner) if _has_url(target.fields) else target


SESSION = TargetKind(
    name="session",
    is_stored_sorted=True,
    schema=target_schema(
        "session",
        {
            "session": record(
                {
                    "prompt": text(
                        "what is sent to the session", "Standup for {{ date }}", minLength=1
                    ),
                    "url": text(
                        "the chat server; default: that of the settings",
                        "http://127.0.0.1:53000",
                        pattern=URL,
                    ),
                    "model": text("the model of a new session", "claude-sonnet", minLength=1),
                    "cwd": text("the working directory of a new session", "/srv", minLength=1),
                    "persist": flag("whether all runs share one session", default=True),
                    "feedback": flag(
                        "whether the server reports the outcome of a run", default=False
                    ),
                },
                required=("prompt",),
            ),
            "public_only": PUBLIC_ONLY,
        },
        inputs=False,
    ),
    reports=True,
    reattaches=True,
    needs=_needs,
    setting="sessions_url",
    plain_fields=frozenset({"session"}),
    for_definers=_for_definers,
    beyond_definers=MAY_BE_PRIVATE,
)

KINDS = (SESSION,)

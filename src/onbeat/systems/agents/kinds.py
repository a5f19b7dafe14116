"""The kind of target of `run: {flock: {url: ..., agent: daily}}`."""

from onbeat.core.json_schema import record, target_schema, text
from onbeat.core.target_kinds import TargetKind
from onbeat.ports.http import MAY_BE_PRIVATE, PUBLIC_ONLY, URL, restrict_to_public

FLOCK = TargetKind(
    name="flock",
    is_stored_sorted=True,
    schema=target_schema(
        "flock",
        {
            "flock": record(
                {
                    "url": text("a Flock server", "http://127.0.0.1:8344", pattern=URL),
                    "agent": text("the agent to run", "daily", minLength=1, maxLength=200),
                },
                required=("url", "agent"),
            ),
            "public_only": PUBLIC_ONLY,
        },
        inputs=False,
    ),
    retries_timeouts=True,
    plain_fields=frozenset({"flock"}),
    for_definers=restrict_to_public,
    beyond_definers=MAY_BE_PRIVATE,
)

KINDS = (FLOCK,)

"""The kind of target of `run: {http: "https://..."}`."""

from onbeat.core.json_schema import by_name, or_null, target_schema, text
from onbeat.core.target_kinds import TargetKind
from onbeat.ports.http import MAY_BE_PRIVATE, PUBLIC_ONLY, URL, restrict_to_public

HTTP = TargetKind(
    name="http",
    is_stored_sorted=True,
    schema=target_schema(
        "http",
        {
            "http": text("a URL", "https://example.com/hook", pattern=URL),
            "method": {
                "enum": ["POST", "PUT", "PATCH", "GET", "HEAD", "DELETE"],
                "default": "POST",
            },
            "headers": or_null(by_name({"type": "string"})),
            "feedback": or_null(
                {
                    "type": "boolean",
                    "description": (
                        "whether it reports the outcome after any 2xx answer; default: only "
                        "after 202; false: never, and a 2xx answer is a success"
                    ),
                }
            ),
            "public_only": PUBLIC_ONLY,
        },
    ),
    reports=True,
    retries_timeouts=True,
    plain_fields=frozenset({"inputs"}),
    for_definers=restrict_to_public,
    beyond_definers=MAY_BE_PRIVATE,
)

KINDS = (HTTP,)

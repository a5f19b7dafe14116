"""The kind of target of `run: {command: [./backup.sh, --all]}`."""

from onbeat.core.json_schema import by_name, described, target_schema
from onbeat.core.target_kinds import TargetKind

COMMAND = TargetKind(
    name="command",
    is_stored_sorted=True,
    schema=target_schema(
        "command",
        {
            "command": described(
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
                "a program and its arguments, without a shell",
                ["./backup.sh", "--all"],
            ),
            "cwd": {
                "type": ["string", "null"],
                "minLength": 1,
                "description": "its working directory",
            },
            "env": described(
                by_name({"type": "string"}) | {"propertyNames": {"pattern": "^[^=]+$"}},
                "environment variables besides PATH, HOME and the like",
                {"LEVEL": "full"},
            ),
        },
    ),
    retries_timeouts=True,
    plain_fields=frozenset({"command", "cwd", "inputs"}),
)

KINDS = (COMMAND,)

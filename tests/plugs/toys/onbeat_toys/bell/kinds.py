"""The kind of target of `run: {bell: dinner, times: 3}`."""

from onbeat.core.json_schema import target_schema, text
from onbeat.core.target_kinds import TargetKind

MOST_TIMES = 12

BELL = TargetKind(
    name="bell",
    schema=target_schema(
        "bell",
        {
            "bell": text("what the bell rings for", "dinner", minLength=1),
            "times": {"type": "integer", "minimum": 1, "maximum": MOST_TIMES, "default": 1},
        },
        inputs=False,
    ),
    setting="bell_tower",
)

KINDS = (BELL,)

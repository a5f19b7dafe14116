"""The kind of target of `run: {python: "reports:build", on: ray}`."""

from onbeat.core.json_schema import by_name, described, or_null, target_schema, text
from onbeat.core.target import Target
from onbeat.core.target_kinds import TargetKind
from onbeat.errors import InvalidSchedule


def _check_condition(_target: Target) -> None:
    raise InvalidSchedule("on", "a condition is evaluated in the node", hint="omit it")


RAY = TargetKind(
    name="ray",
    field="python",
    on="ray",
    is_stored_sorted=True,
    schema=target_schema(
        "python",
        {
            "python": text("module:function, on the cluster", "reports:build", minLength=1),
            "on": {"const": "ray", "description": "on the Ray cluster instead of in the node"},
            "resources": or_null(
                described(
                    by_name({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}),
                    "the resources that a worker needs",
                    {"cpus": 2, "gpus": 0.5, "memory": "2GiB"},
                )
            ),
            "runtime_env": or_null(
                {"type": "object", "description": "a runtime environment of Ray"}
            ),
        },
        required=("on",),
    ),
    reattaches=True,
    retries_timeouts=True,
    setting="ray_address",
    requires="a node with the setting ray_address and Ray installed: docs/ray.md",
    plain_fields=frozenset({"python", "resources", "runtime_env", "inputs"}),
    check_condition=_check_condition,
)

KINDS = (RAY,)

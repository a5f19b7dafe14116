"""The kind of target of `run: {flow: {url: /-/host/port/-/}}`."""

from onbeat.core.json_schema import record, target_schema, text
from onbeat.core.target import Target
from onbeat.core.target_kinds import TargetKind
from onbeat.errors import InvalidSchedule


def _check_condition(_target: Target) -> None:
    problem = "a condition is evaluated in the node"
    raise InvalidSchedule("flow", problem, hint="a command, a function or a request")


def _for_definers(target: Target, owner: str | None) -> Target:  # noqa: ARG001 - for every owner
    """Return the target as it is: the operator configures the address of the panel."""
    return target


FLOW = TargetKind(
    name="flow",
    is_stored_sorted=True,
    schema=target_schema(
        "flow",
        {
            "flow": record(
                {
                    "url": text(
                        "the path of a flow on the panel", "/-/127.0.0.1/8125/-/", pattern="^/"
                    ),
                    "key": text(
                        "the key shown on the panel; default: the id of the schedule",
                        "reports/-/127.0.0.1/8125/-",
                        minLength=1,
                        maxLength=500,
                    ),
                },
                required=("url",),
            )
        },
    ),
    reports=True,
    reattaches=True,
    setting="flows_panel",
    plain_fields=frozenset({"flow", "inputs"}),
    check_condition=_check_condition,
    for_definers=_for_definers,
)

KINDS = (FLOW,)

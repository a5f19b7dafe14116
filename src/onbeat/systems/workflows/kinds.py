"""The kind of target of `run: {workflow: report, version: 3, user_id: ada}`."""

from onbeat.core.json_schema import target_schema, text
from onbeat.core.target import Target
from onbeat.core.target_kinds import TargetKind
from onbeat.errors import NotAllowed


def _for_definers(target: Target, owner: str | None) -> Target:
    """Return a workflow of the caller: the operator configures the address of the executor."""
    if owner not in (None, target.fields.get("user_id")):
        problem = f"{owner} may not define a workflow of another user"
        raise NotAllowed(problem, hint=f"user_id: {owner}")
    return target


WORKFLOW = TargetKind(
    name="workflow",
    is_stored_sorted=True,
    schema=target_schema(
        "workflow",
        {
            "workflow": text("the id of a workflow", "report", minLength=1),
            "version": {
                "type": "integer",
                "minimum": 0,
                "description": "the version of the workflow",
            },
            "user_id": text("the user for whom it runs", "ada", minLength=1),
        },
        required=("version", "user_id"),
    ),
    reports=True,
    setting="workflows_executor",
    requires="a node with an executor: the setting workflows_executor",
    plain_fields=frozenset({"workflow", "user_id", "inputs"}),
    for_definers=_for_definers,
)

KINDS = (WORKFLOW,)

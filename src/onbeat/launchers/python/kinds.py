"""The kind of target of `run: {python: "reports:build"}`."""

from collections.abc import Mapping

from onbeat.core.json_schema import target_schema, text
from onbeat.core.target import Target
from onbeat.core.target_kinds import TargetKind
from onbeat.errors import InvalidSchedule, NotAllowed


def _needs(fields: Mapping[str, object]) -> str:
    """Return what a node must offer: a registered function is offered by name."""
    name = fields["python"]
    return "python" if ":" in str(name) else f"python:{name}"


def _is_registered(target: Target) -> bool:
    return target.needs != target.kind


def _check_condition(target: Target) -> None:
    if _is_registered(target):
        problem = (
            "a condition cannot be a registered function: any node must be able to evaluate it"
        )
        raise InvalidSchedule("python", problem, hint="module:function")


def _check_remote(target: Target) -> None:
    if not _is_registered(target):
        problem = "a definition sent over the API may not name code to import"
        raise NotAllowed(problem, hint="a registered name, or a definition in a local file")


PYTHON = TargetKind(
    name="python",
    is_stored_sorted=True,
    schema=target_schema(
        "python",
        {
            "python": text(
                "module:function, or the name of a registered function",
                "reports:build",
                minLength=1,
            )
        },
    ),
    needs=_needs,
    retries_timeouts=True,
    plain_fields=frozenset({"python", "inputs"}),
    answers_by_result=True,
    check_condition=_check_condition,
    check_remote=_check_remote,
)

KINDS = (PYTHON,)

"""The settings of workflows: `workflows_executor` and so on."""

from dataclasses import dataclass
from typing import Annotated, Literal

from onbeat.core.fields import (
    TEXT,
    Field,
    Option,
    Variable,
    choice,
    flag,
    length,
    number,
    read_url,
    text,
)

OverlapPolicy = Literal["allow", "skip", "queue"]
CatchupPolicy = Literal["none", "fire_immediately", "spread"]


def _read_executor(value: object) -> str:
    return "ray" if value == "ray" else read_url(value, example="http://127.0.0.1:8002, or ray")


@dataclass(frozen=True, slots=True)
class WorkflowsSettings:
    """Where DAGs are, what runs them, and the defaults of their schedules."""

    folder: Annotated[
        str,
        text(
            "the folder with the DAGs of [workflows](workflows.md). Empty: they are stored in "
            "the database"
        ),
    ] = ""
    executor: Annotated[
        str,
        Field(
            (
                "the URL of the executor, such as `http://127.0.0.1:8002`, or `ray` for [the "
                "cluster](ray.md#workflows)"
            ),
            _read_executor,
            TEXT,
        ),
        Option("URL", "URL of the executor, which runs workflow DAGs."),
    ] = ""
    token: Annotated[
        str,
        text(
            "the `Authorization` sent to the executor: `${env:NAME}`, after `Bearer`, or "
            "`secret://name` for the whole value"
        ),
    ] = ""
    feedback: Annotated[
        bool,
        flag(
            "whether the executor reports the outcome of every run, so that an answer only "
            "means that the run has begun"
        ),
    ] = False
    timeout: Annotated[
        int,
        length(
            "how long an accepted run is in flight without a report: 1m to 30d",
            least="1m",
            most="30d",
        ),
    ] = 3_600_000
    overlap_policy: Annotated[
        OverlapPolicy,
        choice("default of schedules without one: `allow`, `skip` or `queue`", OverlapPolicy),
    ] = "skip"
    catchup_policy: Annotated[
        CatchupPolicy,
        choice(
            "default of schedules without one: `none`, `fire_immediately` or `spread`",
            CatchupPolicy,
        ),
    ] = "none"
    jitter_ms: Annotated[
        int, number("default of schedules without one, in milliseconds", 0, 7 * 86_400_000)
    ] = 0


# Variables of the scheduler that this system replaces.
VARIABLES = {
    "TICK_MS": Variable("", number("", 1, 3_600_000)),  # accepted and ignored: nothing is polled
    "LOOKAHEAD_MS": Variable("lookahead", number("", 1000, 3_600_000)),
    "MAX_CATCHUP_PER_TICK": Variable("catchup_per_second"),
    "DEFAULT_OVERLAP_POLICY": Variable("workflows_overlap_policy"),
    "DEFAULT_CATCHUP_POLICY": Variable("workflows_catchup_policy"),
    "DEFAULT_JITTER_MS": Variable("workflows_jitter_ms"),
}

"""The launcher of `run: {workflow: report, version: 3, user_id: ada}`: one try for each attempt.

Failures that may be temporary are `launch_failed`: the quick retries of this system are retries of
its schedules, which survive a restart. An outcome reported by an executor is final, unless a
schedule has another retry policy.
"""

import asyncio
from collections.abc import Collection, Iterable

from onbeat.core.runs.run import Accepted, Failed, Outcome
from onbeat.core.target import Target
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule
from onbeat.ports.store import Attempt
from onbeat.systems.workflows.run_launcher import RunLauncher
from onbeat.systems.workflows.store import check_text, check_workflow


class WorkflowLauncher:
    """Hands DAGs to an executor; without one it offers nothing, and runs wait."""

    def __init__(
        self, run_launcher: RunLauncher | None, *, report_timeout: int | None = None
    ) -> None:
        self._run_launcher, self._report_timeout = run_launcher, report_timeout

    def check(self, target: Target) -> None:
        read_workflow(target)

    def offers(self) -> Iterable[str]:
        launcher = self._run_launcher
        return ("workflow",) if launcher is not None and launcher.has_executor else ()

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - the same for all
        """Return False: a DAG that an executor has accepted cannot be canceled."""
        return False

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        assert self._run_launcher is not None, "without an executor it offers nothing"
        try:
            workflow_id, version, user_id = read_workflow(attempt.target)
        except InvalidSchedule as refused:  # defined by another version
            return Failed(str(refused), "invalid_target", retryable=False), ""
        hand_over = self._run_launcher.hand_over(
            workflow_id,
            version,
            user_id,
            attempt.run_at,
            attempt.key,
            owner=attempt.user_id,
            inputs=attempt.inputs,
        )
        if attempt.timeout is None:
            return self._with_deadline(await hand_over), ""
        try:
            async with asyncio.timeout(attempt.timeout / 1000):
                return await hand_over, ""
        except TimeoutError:
            problem = f"still running after {attempt.timeout / 1000:g} s"
            return Failed(problem, "timeout", retryable=False), ""

    def _with_deadline(self, outcome: Outcome) -> Outcome:
        """Return an outcome; an accepted one gets the deadline of the settings as its default."""
        if isinstance(outcome, Accepted) and outcome.timeout is None:
            return Accepted(outcome.external_id, self._report_timeout)
        return outcome

    def kill(self, run_ids: Collection[int]) -> None:
        """Do nothing: the executor has the DAG."""

    async def recover(self) -> int:
        return 0  # functions end with their process

    async def close(self) -> None:
        """Do nothing: the HTTP client owns the connections."""


def read_workflow(target: Target) -> tuple[str, int, str]:
    """Return the workflow, version and user of a target, or refuse it."""
    fields = target.fields
    check_names(fields, {"workflow", "version", "user_id", "inputs"})
    if target.has_templates:
        raise InvalidSchedule("", "a workflow cannot contain templates", hint="its DAG can")
    workflow_id, version, user_id = map(fields.get, ("workflow", "version", "user_id"))
    check_text("workflow", workflow_id)
    check_workflow(workflow_id, version)
    check_text("user_id", user_id)
    assert isinstance(workflow_id, str), "checked above"
    assert isinstance(version, int), "checked above"
    return workflow_id, version, str(user_id)

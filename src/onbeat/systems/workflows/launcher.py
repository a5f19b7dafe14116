"""The launcher of `run: {workflow: report, version: 3, user_id: ada}`: one try for each attempt.

What another try could help with fails as `launch_failed`: the quick tries of this system are the
retries of its schedules, which survive a restart. What an executor tells of a run that it had is
final, unless a schedule says otherwise.
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
    """Hands DAGs over by a run launcher; without an executor it offers nothing, and runs wait."""

    def __init__(
        self, run_launcher: RunLauncher | None, *, report_timeout: int | None = None
    ) -> None:
        self._run_launcher, self._report_timeout = run_launcher, report_timeout

    def check(self, target: Target) -> None:
        fields = target.fields
        check_names(fields, {"workflow", "version", "user_id", "inputs"})
        if target.has_templates:
            raise InvalidSchedule("", "a workflow has no templates", hint="its DAG may have some")
        check_text("workflow", fields.get("workflow"))
        check_workflow(fields.get("workflow"), fields.get("version"))
        check_text("user_id", fields.get("user_id"))

    def offers(self) -> Iterable[str]:
        launcher = self._run_launcher
        return ("workflow",) if launcher is not None and launcher.has_executor else ()

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - it is so for all of them
        """Return False: what an executor has taken on cannot be called back."""
        return False

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        assert self._run_launcher is not None, "what offers nothing is asked for nothing"
        fields = attempt.target.fields
        workflow_id, version = str(fields["workflow"]), fields["version"]
        assert isinstance(version, int), "it was checked when it was defined"
        handed_over = self._run_launcher.hand_over(
            workflow_id,
            version,
            str(fields["user_id"]),
            attempt.run_at,
            attempt.key,
            owner=attempt.user_id,
            inputs=attempt.inputs,
        )
        if attempt.timeout is None:
            return self._awaited(await handed_over), ""
        try:
            async with asyncio.timeout(attempt.timeout / 1000):
                return await handed_over, ""
        except TimeoutError:
            told = f"still running after {attempt.timeout / 1000:g} s"
            return Failed(told, "timeout", retryable=False), ""

    def _awaited(self, outcome: Outcome) -> Outcome:
        """Return an outcome with the deadline of the settings, where it has none."""
        if isinstance(outcome, Accepted) and outcome.timeout is None:
            return Accepted(outcome.external_id, self._report_timeout)
        return outcome

    def kill(self, run_ids: Collection[int]) -> None:
        """Nothing more can be done: what was handed over is the executor's."""

    async def recover(self) -> int:
        return 0  # a function ends with its process, and what was sent away is another's

    async def close(self) -> None:
        """Nothing is left: the requests are another launcher's."""

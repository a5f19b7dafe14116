"""The run launcher: loads the DAG of a workflow and hands it to the executor."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping

from onbeat.core.runs.run import Accepted, Failed, Outcome, Succeeded
from onbeat.core.target import is_json_value
from onbeat.core.time.instants import parse_instant, rfc3339, rfc3339_ms
from onbeat.errors import InvalidSchedule, InvalidSettings, OnbeatError, in_field, quote_value
from onbeat.ports.clock import Clock
from onbeat.systems.workflows.executors import Executor, Meta, RayExecutor
from onbeat.systems.workflows.store import DirectoryStore, WorkflowStore, check_text, check_workflow

log = logging.getLogger("onbeat.workflows")

TRIES = 4  # one, and three retries
BETWEEN = 1.0  # seconds
KEY = re.compile(r"[!-~]{1,200}")  # a valid header value


class RunLauncher:
    """Hands stored DAGs to an executor; without one it launches nothing."""

    def __init__(
        self,
        store: WorkflowStore,
        executor: Executor | None,
        *,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.store, self._executor, self._clock, self._sleep = store, executor, clock, sleep

    @property
    def has_executor(self) -> bool:
        """Whether this process can run DAGs."""
        return self._executor is not None

    @property
    def imports_code(self) -> bool:
        """Whether the nodes of a DAG name functions, which are imported where they run."""
        return isinstance(self._executor, RayExecutor)

    async def start(
        self,
        workflow_id: str,
        version: int,
        user_id: str,
        scheduled_for: str,
        idempotency_key: str,
        *,
        inputs: Mapping[str, object] | None = None,
    ) -> bool:
        """Hand a workflow over, with a few quick retries; return whether the executor has it.

        False: the DAG does not exist, or the executor refused it.
        """
        checked = check_start(
            workflow_id, version, user_id, scheduled_for, idempotency_key, inputs=inputs
        )
        for left in reversed(range(TRIES)):
            outcome = await self.hand_over(*checked, inputs=inputs)
            if isinstance(outcome, (Succeeded, Accepted)):
                return True
            problem = outcome.error if isinstance(outcome, Failed) else type(outcome).__name__
            if not (left and isinstance(outcome, Failed) and outcome.retryable):
                break
            await self._sleep(BETWEEN)
        log.warning(
            "workflow %s v%s was not started for user %s: %s",
            workflow_id,
            version,
            user_id,
            problem,
        )
        return False

    async def hand_over(
        self,
        workflow_id: str,
        version: int,
        user_id: str,
        run_at: int,
        key: str,
        *,
        owner: str = "",
        inputs: Mapping[str, object] | None = None,
    ) -> Outcome:
        """Hand a workflow over, once, and return the outcome.

        The DAG is that of the user, of the `owner` of the schedule, or one without an owner.
        """
        if self._executor is None:
            hint = "workflows_executor, or a function: @beat.executor"
            raise InvalidSettings(
                "workflows_executor",
                "no executor is set, so this process cannot run DAGs",
                hint=hint,
            )
        now = rfc3339_ms(self._clock.now())
        try:
            users = [each for each in (user_id, owner) if each]
            dag = await self.store.load_dag(workflow_id, version, users=users)
            if dag is None:
                problem = f"no DAG of {workflow_id} v{version} ({self._where()})"
                return Failed(problem, "invalid_target", retryable=False)
            meta = Meta(user_id, rfc3339(run_at), key, now, inputs=inputs or None)
            return await self._executor.run(dag, meta)
        except InvalidSchedule as refused:
            return Failed(str(refused), "invalid_target", retryable=False)
        except OnbeatError as broken:  # such as no answer of the database
            return Failed(str(broken), "launch_failed")

    def _where(self) -> str:
        """Return how to provide a DAG."""
        if isinstance(self.store, DirectoryStore):
            return f"no such file in {self.store.folder}"
        return "deploy it with POST /schedules/deploy"


def check_start(
    workflow_id: object,
    version: object,
    user_id: object,
    scheduled_for: object,
    key: object,
    *,
    inputs: object = None,
) -> tuple[str, int, str, int, str]:
    """Return the checked arguments, with the planned time in seconds; or refuse them."""
    check_workflow(workflow_id, version)
    check_text("user_id", user_id)
    if not isinstance(key, str) or not KEY.fullmatch(key):
        hint = "1 to 200 letters, digits and signs, without spaces"
        raise InvalidSchedule(
            "idempotency_key", f"{quote_value(key)} is not a valid idempotency key", hint=hint
        )
    if inputs is not None and not (isinstance(inputs, Mapping) and is_json_value(inputs)):
        problem = f"{quote_value(inputs)} is not a JSON object"
        raise InvalidSchedule("inputs", problem, hint='{"limit": 100}')
    if not isinstance(scheduled_for, str):
        hint = "such as 2026-12-01T09:00:00Z"
        raise InvalidSchedule(
            "scheduled_for", f"{quote_value(scheduled_for)} is not a string", hint=hint
        )
    with in_field("scheduled_for"):
        run_at = parse_instant(scheduled_for)
    assert isinstance(workflow_id, str), "checked above"
    assert isinstance(version, int), "checked above"
    return workflow_id, version, str(user_id), run_at, key

"""Executors: run the DAG of a workflow. Each gets the DAG as JSON, and metadata about the run."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from onbeat.core.runs.run import Accepted, Failed, Outcome, Succeeded
from onbeat.core.target import is_json_value
from onbeat.errors import InvalidSettings, quote_value
from onbeat.ports.http import CallbackHeaders, HttpResponse, SendRequest
from onbeat.systems.workflows.store import Dag

ON_RAY = "ray"  # the setting `executor` that names the Ray cluster
LONGEST_ANSWER = 60_000  # milliseconds; a longer run is accepted first, and reported later
LONGEST_ID = 200
RETRYABLE = {408, 425, 429}  # besides 5xx

Function = Callable[..., object]
Submit = Callable[[str, Dag, Mapping[str, object]], Awaitable[Outcome]]
InThread = Callable[[Callable[[], object]], Awaitable[object]]


class Meta(msgspec.Struct, frozen=True):
    """What an executor gets besides the DAG. Instants are RFC 3339 in UTC."""

    user_id: str
    scheduled_for: str  # the planned time, however late the run is
    idempotency_key: str  # the same at every attempt, to recognize repeated ones
    triggered_at: str  # when the DAG was handed over
    source: str = "schedule"
    inputs: Mapping[str, object] | None = None  # of the run or of its schedule

    def fields(self) -> dict[str, object]:
        """Return the fields for JSON, without `inputs` if there are none."""
        fields: dict[str, object] = msgspec.to_builtins(self)
        if self.inputs is None:
            del fields["inputs"]
        return fields


class Executor(Protocol):
    """Runs the DAG of a workflow, or accepts it."""

    async def run(self, dag: Dag, meta: Meta) -> Outcome:
        """Hand a DAG over and return the outcome, without raising.

        After `Accepted` the executor reports the outcome later; `Failed` says whether to retry.
        """


class HttpExecutor:
    """Sends `{dag, meta}` as JSON to `{url}/execute`.

    Any 2xx status means that the DAG was run. 202, or any 2xx with `feedback`, means that it was
    accepted and that the outcome will be reported, by the headers of `callback`.
    """

    def __init__(
        self,
        url: str,
        ask: SendRequest,
        *,
        token: str = "",
        feedback: bool = False,
        callback: CallbackHeaders | None = None,
    ) -> None:
        self._url, self._ask = f"{url.rstrip('/')}/execute", ask
        self._token, self._feedback, self._callback = check_token(token), feedback, callback
        self._without_callback = partial(HttpExecutor, url, ask, token=token, feedback=feedback)

    def without_callback(self) -> "HttpExecutor":
        """Return the same executor for hand-overs whose outcome is not awaited."""
        return self._without_callback()

    async def run(self, dag: Dag, meta: Meta) -> Outcome:
        headers = {"Idempotency-Key": meta.idempotency_key}
        if self._token:
            headers |= {"Authorization": self._token}
        if self._callback is not None:
            headers |= await self._callback(meta.idempotency_key)
        body = {"dag": dag, "meta": meta.fields()}
        found = await self._ask(
            "POST", self._url, body=body, headers=headers, timeout=LONGEST_ANSWER, trusted=True
        )
        if isinstance(found, Failed):  # it may have begun: the key identifies it
            is_setup = found.reason == "invalid_target"
            return found if is_setup else Failed(found.error, "launch_failed", found.retryable)
        return self._outcome(found)

    def _outcome(self, answer: HttpResponse) -> Outcome:
        status = answer.status
        if status == 202 or (self._feedback and 200 <= status < 300):
            return Accepted(external_id(answer.body))
        if 200 <= status < 300:
            return Succeeded(answer.body)
        is_retryable = status >= 500 or status in RETRYABLE
        return Failed(_error_text(answer), "launch_failed", retryable=is_retryable)


class CallableExecutor:
    """Calls a function of this program, async or plain, with the DAG and `meta` as a dict.

    Its return value is the result; False refuses the DAG, and an exception means that the hand-over
    failed. Plain functions run in threads. A function that continues elsewhere returns
    `Accepted("its id")`, and reports the outcome with the run's key.
    """

    def __init__(self, function: Function, *, in_thread: InThread = asyncio.to_thread) -> None:
        self._function, self._in_thread = function, in_thread

    async def run(self, dag: Dag, meta: Meta) -> Outcome:
        fields = meta.fields()
        try:
            found = await self._call(dag, fields)
        except asyncio.CancelledError as broken:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _broken(broken)  # raised by the function
        except BaseException as broken:  # noqa: BLE001 - a function may raise anything
            return _broken(broken)
        if isinstance(found, Outcome):
            return found
        if found is False:
            return Failed("the executor refused the DAG", "launch_failed", retryable=False)
        if not is_json_value(found):
            return Failed(f"it returned {quote_value(found)}, which is not JSON", retryable=False)
        return Succeeded(found)

    async def _call(self, dag: Dag, meta: Mapping[str, object]) -> object:
        call: Callable[..., object] = self._function
        if inspect.iscoroutinefunction(call):
            return await call(dag, meta)
        found = await self._in_thread(partial(call, dag, meta))
        return await _awaited(found) if inspect.isawaitable(found) else found


class RayExecutor:
    """Runs the nodes of a DAG as tasks on a Ray cluster, each after those that it depends on.

    A node is `{"id": "send", "python": "reports:send", "inputs": {...}, "after": ["fetch"]}`. The
    result has the return value of each node, by id. The same key is the same run on the cluster.
    """

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    async def run(self, dag: Dag, meta: Meta) -> Outcome:
        return await self._submit(meta.idempotency_key, dag, meta.fields())


async def _awaited(found: Awaitable[object]) -> object:
    return await found


def _broken(broken: BaseException) -> Failed:
    return Failed(f"{type(broken).__name__}: {broken}", "launch_failed")


def check_token(token: str) -> str:
    """Return the value of the Authorization header; `token` must be a reference to a secret."""
    if not token:
        return ""
    if not token.startswith(("${env:", "secret://")):
        hint = "secret://name, a file that contains 'Bearer ...', or ${env:NAME}"
        raise InvalidSettings("workflows_token", "it is not a reference to a secret", hint=hint)
    return f"Bearer {token}"


def external_id(body: object) -> str:
    """Return the executor's id of the run that it accepted, or an empty string."""
    ids = map(body.get, ("run_id", "id", "external_id")) if isinstance(body, Mapping) else ()
    texts = [str(value) for value in ids if type(value) in (str, int)]
    return next((text[:LONGEST_ID] for text in texts if text and text.isprintable()), "")


def _error_text(answer: HttpResponse) -> str:
    """Return the error of an answer, with the executor's reason if it has one."""
    reason = answer.body if isinstance(answer.body, str) else ""
    if isinstance(answer.body, Mapping):
        found = [answer.body.get(name) for name in ("detail", "error", "message", "problem")]
        reason = next((each for each in found if isinstance(each, str)), "")
    reason = " ".join(reason.split())[:300]
    return f"{answer.error}: {reason}" if reason else answer.error

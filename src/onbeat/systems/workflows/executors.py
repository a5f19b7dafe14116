"""Executors: who runs the DAG of a workflow. Each is given the DAG as JSON, and what it is for."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from onbeat.core.runs.run import Accepted, Failed, Outcome, Succeeded
from onbeat.core.target import json_can_say
from onbeat.errors import InvalidSettings, shown
from onbeat.ports.http import Callback, HttpResponse, SendRequest
from onbeat.systems.workflows.store import Dag

LONGEST_ANSWER = 60_000  # milliseconds: one that works for longer answers first, and reports
LONGEST_ID = 200
RETRYABLE = {408, 425, 429}  # besides 5xx

Function = Callable[..., object]
Submit = Callable[[str, Dag, Mapping[str, object]], Awaitable[Outcome]]
InThread = Callable[[Callable[[], object]], Awaitable[object]]


class Meta(msgspec.Struct, frozen=True):
    """What an executor is told besides the DAG. Instants are RFC 3339 in UTC."""

    user_id: str
    scheduled_for: str  # the planned time, however late it is
    idempotency_key: str  # the same at every attempt: whoever has seen it need not run it again
    triggered_at: str  # when it was handed over
    source: str = "schedule"
    inputs: Mapping[str, object] | None = None  # of the run, or of its schedule

    def fields(self) -> dict[str, object]:
        """Return the same for JSON: without `inputs` where there are none."""
        told: dict[str, object] = msgspec.to_builtins(self)
        if self.inputs is None:
            del told["inputs"]
        return told


class Executor(Protocol):
    """Runs the DAG of a workflow, or takes it on."""

    async def run(self, dag: Dag, meta: Meta) -> Outcome:
        """Hand a DAG over; return what came of that. It raises nothing of its own.

        `Accepted` means that it tells of the end itself; `Failed` says if another try could help.
        """


class HttpExecutor:
    """Sends `{dag, meta}` as JSON to `{url}/execute`.

    Whatever is 2xx means that it was done; 202, or with `feedback` any of them, that it was begun
    and that its end will be reported, as the headers of `callback` tell.
    """

    def __init__(
        self,
        url: str,
        ask: SendRequest,
        *,
        token: str = "",
        feedback: bool = False,
        callback: Callback | None = None,
    ) -> None:
        self._url, self._ask = f"{url.rstrip('/')}/execute", ask
        self._token, self._feedback, self._callback = check_token(token), feedback, callback
        self._without_callback = partial(HttpExecutor, url, ask, token=token, feedback=feedback)

    def without_callback(self) -> "HttpExecutor":
        """Return the same, for what nobody awaits the end of: it lets the executor tell nothing."""
        return self._without_callback()

    async def run(self, dag: Dag, meta: Meta) -> Outcome:
        headers = {"Idempotency-Key": meta.idempotency_key}
        if self._token:
            headers |= {"Authorization": self._token}
        if self._callback is not None:
            headers |= await self._callback(meta.idempotency_key)
        body = {"dag": dag, "meta": meta.fields()}
        found = await self._ask(
            "POST", self._url, body=body, headers=headers, timeout=LONGEST_ANSWER
        )
        if isinstance(found, Failed):  # nobody knows whether it was begun: the key says so
            is_setup = found.reason == "invalid_target"
            return found if is_setup else Failed(found.error, "launch_failed", found.retryable)
        return self._meaning(found)

    def _meaning(self, answer: HttpResponse) -> Outcome:
        status = answer.status
        if status == 202 or (self._feedback and 200 <= status < 300):
            return Accepted(external_id(answer.body))
        if 200 <= status < 300:
            return Succeeded(answer.body)
        may_again = status >= 500 or status in RETRYABLE
        return Failed(_told(answer), "launch_failed", retryable=may_again)


class CallableExecutor:
    """Calls a function of this program, async or plain, with the DAG and `meta` as a dict.

    What it returns is the result; False refuses the DAG, and an exception means that it could not
    be handed over. Plain functions run in threads. A function that goes on elsewhere returns
    `Accepted("its id")`, and reports the end by the run's key.
    """

    def __init__(self, function: Function, *, in_thread: InThread = asyncio.to_thread) -> None:
        self._function, self._in_thread = function, in_thread

    async def run(self, dag: Dag, meta: Meta) -> Outcome:
        given = meta.fields()
        try:
            found = await self._called(dag, given)
        except asyncio.CancelledError as broken:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _broken(broken)  # the function's own
        except BaseException as broken:  # noqa: BLE001 - what a function may raise is its own business
            return _broken(broken)
        if isinstance(found, Outcome):
            return found
        if found is False:
            return Failed("the executor refused it", "launch_failed", retryable=False)
        if not json_can_say(found):
            return Failed(f"it returned {shown(found)}: that is no JSON", retryable=False)
        return Succeeded(found)

    async def _called(self, dag: Dag, meta: Mapping[str, object]) -> object:
        call: Callable[..., object] = self._function
        if inspect.iscoroutinefunction(call):
            return await call(dag, meta)
        found = await self._in_thread(partial(call, dag, meta))
        return await _awaited(found) if inspect.isawaitable(found) else found


class RayExecutor:
    """Runs the nodes of a DAG as tasks on a Ray cluster, each as soon as those before it are done.

    A node is `{"id": "send", "python": "reports:send", "inputs": {...}, "after": ["fetch"]}`. What
    the nodes return is the result, by their ids. The same key is the same run on the cluster.
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
    """Return what the header says who asks; a token is a reference, so that none is in a file."""
    if not token:
        return ""
    if not token.startswith(("${env:", "secret://")):
        hint = "secret://name, whose file has 'Bearer ...' in it, or ${env:NAME}"
        raise InvalidSettings("workflows_token", "it is no reference to a secret", hint=hint)
    return f"Bearer {token}"


def external_id(body: object) -> str:
    """Return what an executor calls the run that it has begun."""
    told = map(body.get, ("run_id", "id", "external_id")) if isinstance(body, Mapping) else ()
    texts = [str(value) for value in told if type(value) in (str, int)]
    return next((text[:LONGEST_ID] for text in texts if text and text.isprintable()), "")


def _told(answer: HttpResponse) -> str:
    """Return what is told of a refusal: also why, where the executor says so."""
    said = answer.body if isinstance(answer.body, str) else ""
    if isinstance(answer.body, Mapping):
        found = [answer.body.get(name) for name in ("detail", "error", "message", "problem")]
        said = next((each for each in found if isinstance(each, str)), "")
    said = " ".join(said.split())[:300]
    return f"{answer.error}: {said}" if said else answer.error

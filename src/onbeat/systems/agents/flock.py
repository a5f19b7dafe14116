"""Agents of a Flock server: `run: {flock: {url: http://127.0.0.1:8344, agent: daily}}`.

The server runs the agent and answers with its result (`POST /api/v1/agents/NAME/run`). The input is
a tick, so that the agent sees a fire of its timer, whose iterations continue across restarts.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from onbeat.core.runs.run import Failed, Outcome, Succeeded
from onbeat.core.target import Target
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, in_field, quote_value
from onbeat.ports.http import HttpResponse, SendRequest
from onbeat.ports.store import Attempt

TICK = "flock.models.system_artifacts.TimerTick"  # type name of the input
LONGEST_ANSWER = 60 * 60_000  # milliseconds, if a schedule has no timeout
LONGEST_RESULT = 16 * 1024  # bytes of artifacts that are stored
LONGEST_DETAIL = 500  # characters of a server's error
LONGEST_NAME = 200


class FlockLauncher:
    """Runs an agent on a server for each attempt; `check_url` refuses invalid URLs.

    With `public_only` no private address is requested. Without `ask` it can only check targets.
    """

    def __init__(
        self,
        *,
        check_url: Callable[[Target], None],
        ask: SendRequest | None = None,
        public_only: bool = False,
    ) -> None:
        self._check_url, self._ask, self._public_only = check_url, ask, public_only

    def check(self, target: Target) -> None:
        url, _ = _read(target)
        fields = {"http": url, "public_only": target.fields.get("public_only", False)}
        try:
            self._check_url(Target("http", fields))
        except InvalidSchedule as refused:
            raise InvalidSchedule("flock.url", refused.problem, hint=refused.hint) from None

    def offers(self) -> tuple[str, ...]:
        return ("flock",)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - the same for all
        """Return False: the server has no request to cancel a run."""
        return False

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        try:
            url, agent = _read(attempt.target)
        except InvalidSchedule as refused:
            return Failed(str(refused), "invalid_target", retryable=False), ""
        assert self._ask is not None, "it only checks targets"
        where = f"{url.rstrip('/')}/api/v1/agents/{quote(agent, safe='')}/run"
        answer = await self._ask(
            "POST",
            where,
            body={"inputs": [{"type": TICK, "payload": tick_of(attempt, agent)}]},
            headers={"Idempotency-Key": attempt.key},
            timeout=attempt.timeout or LONGEST_ANSWER,
            public_only=self._public_only or attempt.target.fields.get("public_only") is True,
        )
        if isinstance(answer, Failed):
            return answer, f"POST {where}\n{answer.error}\n"
        line = f"POST {where}\nHTTP {answer.status} {answer.phrase}".rstrip()
        return _outcome(answer, agent), f"{line}\n"

    def kill(self, run_ids: Collection[int]) -> None:
        """Do nothing: cancelling the launch aborted the request."""

    async def recover(self) -> int:
        return 0  # a request ends with its process

    async def close(self) -> None:
        """Do nothing: the HTTP client owns the connections."""


def tick_of(attempt: Attempt, agent: str) -> dict[str, object]:
    """Return the tick for an agent; Flock counts iterations from 0."""
    return {
        "timer_name": agent,
        "iteration": attempt.iteration - 1,
        "fire_time": datetime.fromtimestamp(attempt.run_at, UTC).isoformat(),
        "schedule_spec": {"schedule": attempt.schedule_id, "by": attempt.triggered_by},
    }


def _read(target: Target) -> tuple[str, str]:
    """Return the URL and the agent of a target, or refuse it."""
    check_names(target.fields, {"flock", "public_only"})
    fields = target.fields.get("flock")
    if not isinstance(target.fields.get("public_only", False), bool):
        raise InvalidSchedule("public_only", "it is not a boolean", hint="true or false")
    with in_field("flock"):
        if not isinstance(fields, Mapping):
            hint = "{url: http://127.0.0.1:8344, agent: daily}"
            raise InvalidSchedule("", f"{quote_value(fields)} is not a mapping", hint=hint)
        check_names(fields, {"url", "agent"})
        url, agent = (_text(name, fields.get(name)) for name in ("url", "agent"))
        if len(agent) > LONGEST_NAME or agent in {".", ".."}:
            raise InvalidSchedule(
                "agent", f"{quote_value(agent)} is not a name", hint="such as daily"
            )
        if "?" in url or "#" in url:
            hint = "only the address of the server, such as http://127.0.0.1:8344"
            raise InvalidSchedule("url", f"{quote_value(url)} has more than a path", hint=hint)
        return url, agent


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        problem = (
            "it is missing" if value in (None, "") else f"{quote_value(value)} is not a string"
        )
        example = {"url": "http://127.0.0.1:8344", "agent": "daily"}[name]
        raise InvalidSchedule(name, problem, hint=f"such as {example}")
    return value


def _outcome(answer: HttpResponse, agent: str) -> Outcome:
    """Return the outcome for an answer."""
    body = answer.body if isinstance(answer.body, Mapping) else {}
    artifacts, detail = body.get("artifacts"), str(body.get("detail") or "")[:LONGEST_DETAIL]
    if answer.status == 404 and detail in ("", "Not Found"):
        return Failed("HTTP 404: no Flock server at this address", retryable=False)
    if answer.status == 404:
        return Failed(f"the server has no agent called {agent!r} ({detail})", retryable=False)
    if not 200 <= answer.status < 300:
        error = f"{answer.error}: {detail}" if detail else answer.error
        return Failed(error, retryable=answer.status >= 500 or answer.status in (408, 429))
    if not isinstance(artifacts, Sequence) or isinstance(artifacts, str):
        problem = "the answer has no artifacts; check that this is a Flock server"
        return Failed(problem, retryable=False)
    return Succeeded(_result(artifacts))


def _result(artifacts: Sequence[object]) -> dict[str, object]:
    """Return the first artifacts up to the size limit, and how many were left off."""
    first: list[object] = []
    left = LONGEST_RESULT
    for each in artifacts:
        left -= len(msgspec.json.encode(each))
        if left < 0:
            break
        first.append(each)
    missing = len(artifacts) - len(first)
    return {"artifacts": first, **({"left_off": missing} if missing else {})}

"""The contract of sending HTTP requests: `SendRequest`, `HttpResponse`, `Callback`."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from onbeat.core.runs.run import Failed

NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a server answered: what its body says as JSON, or else its text."""

    status: int
    phrase: str  # such as Not Found
    body: object = None

    @property
    def error(self) -> str:
        """What is told of an answer that is no success."""
        return f"HTTP {self.status}: {self.phrase}" if self.phrase else f"HTTP {self.status}"


class SendRequest(Protocol):
    """How a launcher sends one request, whatever the server then answers."""

    async def __call__(
        self,
        method: str,
        url: str,
        *,
        body: object = None,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: int = 60_000,  # noqa: ASYNC109 - milliseconds, as a policy has them
        public_only: bool = False,
        secrets: Mapping[str, str] = NO_HEADERS,
    ) -> HttpResponse | Failed:
        """Return the answer, or why there is none. A body goes as JSON; no redirect is followed.

        Headers may name secrets, and so may `secrets`, which are further fields of the body:
        neither the answer nor a failure tells them.
        """


Callback = Callable[[str], Awaitable[Mapping[str, str]]]
"""The headers that say how to tell of the end of a run that has this key."""

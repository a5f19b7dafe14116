"""`SendRequest`: how launchers send HTTP requests, and the `HttpResponse` they get.

Also what kinds of target with an address of HTTP have in common.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from onbeat.core.json_schema import flag
from onbeat.core.runs.run import Failed
from onbeat.core.target import Target

NO_HEADERS: Mapping[str, str] = {}
URL = "^[Hh][Tt][Tt][Pp][Ss]?://.+"  # the pattern of an address, for a JSON Schema
PUBLIC_ONLY = flag("whether it may connect to public addresses only", default=False)
MAY_BE_PRIVATE = "it may send to private addresses"  # `TargetKind.beyond_definers`


def restrict_to_public(target: Target, owner: str | None) -> Target:  # noqa: ARG001 - for every owner
    """Return a target that connects to public addresses only: `TargetKind.for_definers`."""
    return Target(target.kind, {**target.fields, "public_only": True}, target.is_enabled)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer of a server. The body is decoded if it is JSON, else its text."""

    status: int
    phrase: str  # such as Not Found
    body: object = None

    @property
    def error(self) -> str:
        """The error to report for an answer that is not a success."""
        return f"HTTP {self.status}: {self.phrase}" if self.phrase else f"HTTP {self.status}"


class SendRequest(Protocol):
    """Sends one request, whatever the server answers."""

    async def __call__(
        self,
        method: str,
        url: str,
        *,
        body: object = None,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: int = 60_000,  # noqa: ASYNC109 - milliseconds, as in a policy
        public_only: bool = False,
        trusted: bool = False,
        secrets: Mapping[str, str] = NO_HEADERS,
    ) -> HttpResponse | Failed:
        """Return the answer, or the failure without one. The body is sent as JSON.

        With `public_only`, or if the operator set it for all targets, no address of a private
        network is connected to. `trusted` is for addresses of the settings, which the operator has
        chosen: never for one of a target.

        Redirects are not followed. Headers and `secrets`, which are further fields of the body, may
        refer to secrets: neither the answer nor a failure contains their values.
        """


CallbackHeaders = Callable[[str], Awaitable[Mapping[str, str]]]
"""Returns the headers with which a target reports the outcome of the run with this key."""

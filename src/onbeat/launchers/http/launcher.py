"""Launch HTTP requests: `run: {http: "https://...", inputs: {...}}`.

All attempts of a run have the same Idempotency-Key, so that a target recognizes a repetition. A
name is resolved once for each connection, which is made to an address of that answer: the address
that was checked is the one that is used. Redirects are followed here, each checked like the first
URL.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from onbeat.core.runs.run import Failed, Outcome
from onbeat.core.target import Target
from onbeat.host.secrets import SecretReferences, check_inputs, check_no_reference
from onbeat.launchers.http.target import WITH_BODY, AllowedHosts, read_target, with_query
from onbeat.ports.http import NO_HEADERS, CallbackHeaders, HttpResponse
from onbeat.ports.store import Attempt

if TYPE_CHECKING:
    from onbeat.launchers.http.sender import Resolve, Sender


class HttpLauncher:
    """Sends one request for each attempt.

    `environment` has the values that a header may refer to as `${env:NAME}`, and the folder
    `secrets` the files for `secret://name`: a user who may define a schedule can have them sent
    anywhere. `timeout` is in milliseconds, for runs without one. With `public_only` no address of a
    private network is connected to, except for a `trusted` request; a target may demand the same.
    `callback` returns the headers
    that let a target report the outcome of the run with a given key.
    """

    def __init__(
        self,
        *,
        version: str,
        environment: Mapping[str, str],
        secrets: str = "",
        concurrency: int = 64,
        timeout: int = 60_000,
        public_only: bool = False,
        resolve: "Resolve | None" = None,
        callback: CallbackHeaders | None = None,
    ) -> None:
        self._version, self._references = version, SecretReferences(environment, secrets)
        self._callback = callback
        self._concurrency, self._timeout = concurrency, timeout
        self._public_only, self._resolve = public_only, resolve
        # By `public_only`: requests to public addresses share no connections with others.
        self._senders: dict[bool, Sender] = {}

    def check(self, target: Target) -> None:
        method, request, *_ = read_target(target)
        AllowedHosts(public_only=self._is_public_only(target)).check(request)
        check_no_reference("http", request.url)
        check_inputs(target.inputs)
        if method not in WITH_BODY:
            with_query(request, target.inputs)

    def offers(self) -> tuple[str, ...]:
        return ("http",)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - for every target
        """Return False: a request that a target received cannot be undone."""
        return False

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        longest = self._timeout if attempt.timeout is None else attempt.timeout
        return await self._sender(self._is_public_only(attempt.target)).send(attempt, longest)

    async def ask(
        self,
        method: str,
        url: str,
        *,
        body: object = None,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: int = 60_000,  # noqa: ASYNC109 - milliseconds, as a policy has them
        public_only: bool = False,
        trusted: bool = False,
        secrets: Mapping[str, str] = NO_HEADERS,
    ) -> HttpResponse | Failed:
        """Send one request for another launcher. The contract is `SendRequest`."""
        sender = self._sender(public_only or (self._public_only and not trusted))
        return await sender.request(
            method, url, body=body, headers=headers, longest=timeout, secrets=secrets
        )

    def kill(self, run_ids: Collection[int]) -> None:
        """Do nothing: a request is aborted when its launch is cancelled."""

    async def recover(self) -> int:
        return 0  # a request ends with its process

    async def close(self) -> None:
        """Close all connections. A later launch opens new ones."""
        for sender in self._senders.values():
            await sender.close()

    def _is_public_only(self, target: Target) -> bool:
        return self._public_only or bool(target.fields.get("public_only"))

    def _sender(self, public_only: bool) -> "Sender":  # noqa: FBT001 - the only argument
        if public_only not in self._senders:
            # It takes 0.1 s to import.
            from onbeat.launchers.http.sender import Sender  # noqa: PLC0415

            self._senders[public_only] = Sender(
                version=self._version,
                references=self._references,
                callback=self._callback,
                concurrency=self._concurrency,
                allowed_hosts=AllowedHosts(public_only=public_only),
                resolve=self._resolve,
            )
        return self._senders[public_only]

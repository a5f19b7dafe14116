"""Requests: `run: {http: "https://...", inputs: {...}}`, and what their answers mean.

Every attempt at a run carries the same Idempotency-Key, so a target that saw it knows it again. A
name is looked up once for a connection, which is made to an address of that very answer: what was
checked is what is spoken to. Redirects are followed here, each checked like the first URL.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from onbeat.core.runs.run import Failed, Outcome
from onbeat.core.target import Target
from onbeat.files.secrets import SecretReferences, check_inputs, check_no_reference
from onbeat.launchers.http.target import WITH_BODY, AllowedHosts, asking, read_target
from onbeat.ports.outside import NO_HEADERS, Callback, HttpResponse
from onbeat.ports.store import Attempt

if TYPE_CHECKING:
    from onbeat.launchers.http.sender import Resolve, Sender


class HttpLauncher:
    """Sends one request for each attempt.

    `environment` has the values that a header may name as `${env:NAME}`, and the folder `secrets`
    the files for `secret://name`: whoever may define a schedule can have them sent anywhere.
    `timeout` is in milliseconds, for runs that have none. With `public_only` no address of a
    private network is ever spoken to; a target may ask for the same. `callback` returns the headers
    that say how to tell of the end of a run that has a key.
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
        callback: Callback | None = None,
    ) -> None:
        self._version, self._references = version, SecretReferences(environment, secrets)
        self._callback = callback
        self._concurrency, self._timeout = concurrency, timeout
        self._public_only, self._resolve = public_only, resolve
        # Those to public addresses have connections of their own, which nothing else is sent over.
        self._senders: dict[bool, Sender] = {}

    def check(self, target: Target) -> None:
        method, place, *_ = read_target(target)
        AllowedHosts(public_only=self._is_public_only(target)).check(place)
        check_no_reference("http", place.url)
        check_inputs(target.inputs)
        if method not in WITH_BODY:
            asking(place, target.inputs)

    def offers(self) -> tuple[str, ...]:
        return ("http",)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - it is so for all of them
        """Return False: what a target has accepted cannot be called back."""
        return False

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        longest = self._timeout if attempt.timeout is None else attempt.timeout
        return await self._opened(self._is_public_only(attempt.target)).send(attempt, longest)

    async def ask(
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
        """Send one request for another launcher, which says where to. The contract is `Ask`."""
        sender = self._opened(public_only)
        return await sender.ask(
            method, url, body=body, headers=headers, longest=timeout, secrets=secrets
        )

    def kill(self, run_ids: Collection[int]) -> None:
        """Nothing more can be done: the request was aborted when its launch was cancelled."""

    async def recover(self) -> int:
        return 0  # a request ends with its process

    async def close(self) -> None:
        """Close all connections. A launch that comes later opens new ones."""
        for sender in self._senders.values():
            await sender.close()

    def _is_public_only(self, target: Target) -> bool:
        return self._public_only or bool(target.fields.get("public_only"))

    def _opened(self, public_only: bool) -> "Sender":  # noqa: FBT001 - it is all that it is asked
        if public_only not in self._senders:
            # A tenth of a second, which only those who send anything have to wait for.
            from onbeat.launchers.http.sender import Sender  # noqa: PLC0415

            self._senders[public_only] = Sender(
                version=self._version,
                references=self._references,
                callback=self._callback,
                concurrency=self._concurrency,
                reach=AllowedHosts(public_only=public_only),
                resolve=self._resolve,
            )
        return self._senders[public_only]

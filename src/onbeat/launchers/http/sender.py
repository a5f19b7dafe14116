"""Send requests, and turn their answers into outcomes."""

import asyncio
import logging
import os
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from ipaddress import ip_address

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from onbeat.core.runs.run import Accepted, Busy, Failed, Gone, Outcome, Succeeded
from onbeat.core.target import is_json_value
from onbeat.core.time.instants import rfc3339
from onbeat.errors import InvalidSchedule
from onbeat.host.secrets import Redactor, SecretReferences
from onbeat.launchers.http.target import (
    WITH_BODY,
    AllowedHosts,
    check_text,
    parse_url,
    read_target,
    redirected,
    with_query,
)
from onbeat.ports.http import NO_HEADERS, CallbackHeaders, HttpResponse
from onbeat.ports.store import Attempt

Resolve = Callable[[str, int], Awaitable[Iterable[str]]]

MOST_REDIRECTS = 5
LONGEST_READ = 1024 * 1024  # bytes of a body, decompressed
LONGEST_KEPT = 64 * 1024  # bytes of a result as JSON, and of the output of a request
LONGEST_ERROR, LONGEST_ID = 300, 200  # characters
LONGEST_WAIT = 3600  # seconds, of the Retry-After of a busy target
KEEP_ALIVE = 4  # seconds: many servers close after five, and a request sent just then is lost

NO_CALLBACK = "[onbeat: no Onbeat-Callback was sent: the setting public_url is empty]"
NO_CALLBACK_LOG = "run %d of %s was accepted without a callback address: set public_url"

warnings = logging.getLogger("onbeat.http")


class Sender:
    """Sends requests over pooled connections."""

    def __init__(
        self,
        *,
        version: str,
        references: SecretReferences,
        concurrency: int,
        allowed_hosts: AllowedHosts,
        resolve: Resolve | None,
        callback: CallbackHeaders | None,
    ) -> None:
        self._version, self._references, self._concurrency = version, references, concurrency
        self._callback, self._has_warned = callback, False
        self._allowed_hosts, self._resolver = (
            allowed_hosts,
            _Resolver(resolve or _look_up, allowed_hosts),
        )
        self._session: aiohttp.ClientSession | None = None

    async def send(self, attempt: Attempt, longest: int) -> tuple[Outcome, str]:
        """Send the request of an attempt; return its outcome and output. `longest` is in ms."""
        log = _Log()
        try:
            async with asyncio.timeout(longest / 1000) as limit:
                outcome = await self._send(attempt, log)
        except InvalidSchedule as refused:
            outcome = Failed(log.hide(str(refused)), "invalid_target", retryable=False)
        except Exception as error:  # noqa: BLE001 - any error fails only this attempt
            late = Failed(f"no answer after {longest / 1000:g}s", "timeout")
            outcome = late if limit.expired() else _no_answer(error, log)
        return outcome, log.text()

    async def request(
        self,
        method: str,
        url: str,
        *,
        body: object,
        headers: Mapping[str, str],
        longest: int,
        secrets: Mapping[str, str] = NO_HEADERS,
    ) -> HttpResponse | Failed:
        """Send one request for another launcher. The contract is `SendRequest`."""
        log = _Log()
        try:
            async with asyncio.timeout(longest / 1000) as limit:
                body = self._with_secrets(body, secrets, log)
                return await self._request(method, url, body, headers, log)
        except InvalidSchedule as refused:
            return Failed(log.hide(str(refused)), "invalid_target", retryable=False)
        except Exception as error:  # noqa: BLE001 - any error fails only this request
            late = Failed(f"no answer after {longest / 1000:g}s", "timeout")
            return late if limit.expired() else _no_answer(error, log)

    async def _request(
        self,
        method: str,
        url: str,
        body: object,
        headers: Mapping[str, str],
        log: "_Log",
    ) -> HttpResponse:
        target = parse_url(check_text("url", url))
        self._allowed_hosts.check(target)
        filled, data = self._fill(headers.items(), log), None
        if body is not None:
            data, filled["Content-Type"] = msgspec.json.encode(body), "application/json"
        async with self._client().request(
            method, target.url, data=data, headers=filled, allow_redirects=False
        ) as response:
            read, is_cut = await _read_body(response)
            log.body = log.hide(read.decode(errors="replace"), is_cut=is_cut)
            is_json = response.content_type.endswith(("/json", "+json"))
            # Decode all of it: the calling launcher looks for its fields in it.
            result = _result(log, is_json=is_json, is_cut=is_cut, longest=LONGEST_READ)
            return HttpResponse(response.status, log.hide(response.reason or ""), result)

    async def close(self) -> None:
        """Close all connections. A later request opens new ones."""
        if self._session is not None:
            await self._session.close()

    async def _send(self, attempt: Attempt, log: "_Log") -> Outcome:
        """Send the request, follow redirects, and return the outcome by the last answer."""
        method, target, of_target, feedback = read_target(attempt.target)
        body, own = None, _own_headers(attempt)
        if method not in WITH_BODY:
            target = with_query(target, attempt.inputs)
        elif attempt.inputs_text is not None:
            body, own["Content-Type"] = attempt.inputs_text.encode(), "application/json"
        headers, logged_url = own | self._fill(of_target, log), target.url
        if feedback is not False and self._callback is not None:
            headers |= (callback := await self._callback(attempt.key))
            log.hidden.keep(callback.get("Onbeat-Callback-Token", ""))
        followed = (301, 302, 303, 307, 308) if method in ("GET", "HEAD") else (307, 308)
        for _ in range(MOST_REDIRECTS + 1):
            self._allowed_hosts.check(target)
            log.lines.append(f"{method} {logged_url}")
            async with self._client().request(
                method, target.url, data=body, headers=headers, allow_redirects=False
            ) as response:
                log.lines.append(f"HTTP {response.status} {response.reason or ''}".rstrip())
                location = response.headers.get("Location", "")
                if not location or response.status not in followed:
                    outcome = await _outcome(response, log, feedback=feedback)
                    if isinstance(outcome, Accepted):
                        self._note_callback(attempt, headers, log)
                    return outcome
            before, target = target, redirected(target, location)
            # The URL of a redirect may quote a secret, in any encoding.
            logged_url = target.origin if log.hidden else target.url
            if target.origin != before.origin:
                headers = own  # the headers of the target are for its origin only
        return Failed(f"more than {MOST_REDIRECTS} redirects", retryable=False)

    def _note_callback(self, attempt: Attempt, headers: Mapping[str, str], log: "_Log") -> None:
        """Report that the target got no callback address: its run may wait until its deadline."""
        if self._callback is None or "Onbeat-Callback" in headers:
            return
        log.lines.append(NO_CALLBACK)
        if not self._has_warned:
            self._has_warned = True
            warnings.warning(NO_CALLBACK_LOG, attempt.run_id, attempt.schedule_id)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=self._resolver,
                    use_dns_cache=False,
                    limit=self._concurrency,
                    keepalive_timeout=KEEP_ALIVE,
                ),
                headers={"User-Agent": f"onbeat/{self._version}", "Accept-Encoding": "gzip"},
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(),  # `send` limits the whole request
                auto_decompress=False,
                trust_env=False,
            )
            # aiohttp would send a GET again when its connection breaks, within one attempt.
            self._session._retry_connection = False  # noqa: SLF001 - the only way to switch it off
        return self._session

    def _with_secrets(self, body: object, secrets: Mapping[str, str], log: "_Log") -> object:
        """Return a body with additional fields, in which references are replaced by secrets."""
        if not secrets:
            return body
        assert isinstance(body, Mapping), "fields can only be added to a mapping"
        fill, hidden = self._references.fill, log.hidden
        return {**body, **{name: fill(name, text, hidden) for name, text in secrets.items()}}

    def _fill(self, headers: Iterable[tuple[str, str]], log: "_Log") -> dict[str, str]:
        """Return headers in which references are replaced by secrets."""
        filled = dict(headers)
        for name, value in filled.items():
            text = self._references.fill(f"headers.{name}", value, log.hidden)
            filled[name] = check_text(f"headers.{name}", text)
        return filled


class _Resolver(AbstractResolver):
    """Resolves a name for a connection, without the addresses that may not be used."""

    def __init__(self, resolve: Resolve, allowed_hosts: AllowedHosts) -> None:
        self._resolve, self._allowed_hosts = resolve, allowed_hosts

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:  # noqa: ARG002 - any family
        try:
            addresses = [ip_address(text) for text in await self._resolve(host, port)]
        except ValueError as error:  # a name that DNS cannot encode
            raise socket.gaierror(socket.EAI_NONAME, str(error)) from None
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "it has no address")
        return [
            ResolveResult(hostname=host, host=str(a), port=port, family=0, proto=0, flags=0)
            for a in self._allowed_hosts.usable(host, addresses)
        ]

    async def close(self) -> None:
        pass


async def _look_up(host: str, port: int) -> list[str]:
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in entries]


class _Log:
    """The output of a run: the request, its answers and the last body, without secrets."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.body = ""
        self.hidden = Redactor()
        self.hide = self.hidden.hide

    def text(self) -> str:
        text = self.hide("".join(f"{line}\n" for line in self.lines)) + self.body
        return text.encode(errors="replace")[:LONGEST_KEPT].decode(errors="ignore")


async def _outcome(
    response: aiohttp.ClientResponse, log: _Log, *, feedback: bool | None
) -> Outcome:
    """Return the outcome by an answer. 202 always means that the target will report the outcome.

    `feedback` is declared by the target: True if it reports after any 2xx, False if it never
    reports and gets no callback.
    """
    body, is_cut = await _read_body(response)
    log.body = log.hide(body.decode(errors="replace"), is_cut=is_cut)
    status, headers = response.status, response.headers
    if 200 <= status < 300:
        is_json = response.content_type.endswith(("/json", "+json"))
        result = _result(log, is_json=is_json, is_cut=is_cut)
        if feedback or (feedback is None and status == 202):
            return Accepted(_external_id(result, log.hide(headers.get("Location", ""))))
        return Succeeded(result)
    detail = " ".join(log.body.split())[:LONGEST_ERROR]
    error = f"HTTP {status}: {detail}" if detail else f"HTTP {status}"
    if status == 410:
        return Gone(error)
    if status in (429, 503) and (wait := _retry_after(headers)) is not None:
        return Busy(error, wait)
    return Failed(error, retryable=500 <= status < 600 or status in (408, 425, 429))


async def _read_body(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """Return the decompressed body up to `LONGEST_READ`, and whether it was cut there."""
    is_packed = response.headers.get("Content-Encoding", "").lower() in ("gzip", "deflate")
    unpacker, body = zlib.decompressobj(wbits=47) if is_packed else None, bytearray()
    while part := await response.content.readany():
        room = LONGEST_READ + 1 - len(body)
        body += part if unpacker is None else unpacker.decompress(part, room)
        if len(body) > LONGEST_READ:  # aiohttp closes a connection that is released unread
            return bytes(body[:LONGEST_READ]), True
    return bytes(body), False


def _result(log: _Log, *, is_json: bool, is_cut: bool, longest: int = LONGEST_KEPT) -> object:
    """Return the value of a body if it is JSON up to `longest`, else its text, cut if long."""
    text, length = log.body, len(log.body)
    with suppress(msgspec.DecodeError, RecursionError):
        if is_json and not is_cut and length <= longest:
            value = msgspec.json.decode(text)
            if is_json_value(value):  # another JSON encoding may reveal more secrets
                again = msgspec.json.encode(value).decode() if log.hidden else ""
                return msgspec.json.decode(log.hide(again)) if again else value
    note = f"\n[onbeat: cut, of {length}{' or more' if is_cut else ''} characters]"
    while len(msgspec.json.encode(text[:length])) > LONGEST_KEPT - 2 * len(note):
        length = min(length, LONGEST_KEPT) * 7 // 8  # some characters are longer in JSON
    return text[:length] + note if is_cut or length < len(text) else text or None


def _external_id(result: object, location: str) -> str:
    """Return the id that a target gave to an accepted run."""
    ids = map(result.get, ("run_id", "id", "external_id")) if isinstance(result, dict) else ()
    texts = [str(value) for value in (*ids, location) if type(value) in (str, int)]
    return next((text[:LONGEST_ID] for text in texts if text and text.isprintable()), "")


def _retry_after(headers: Mapping[str, str]) -> int | None:
    """Return the wait of a Retry-After in milliseconds, or None if it has no valid one."""
    value = headers.get("Retry-After", "").strip()
    try:
        if value.isascii() and value.isdigit():
            seconds = float(value)
        else:  # a date, relative to the clock of the server
            until, now = map(parsedate_to_datetime, (value, headers.get("Date", "")))
            seconds = (until - now).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    return int(1000 * min(max(seconds, 1), LONGEST_WAIT))


def _no_answer(error: Exception, log: _Log) -> Failed:
    if isinstance(error, aiohttp.ClientConnectorError):
        is_plain = type(error) is aiohttp.ClientConnectorError and (error.errno or 0) > 0
        problem = os.strerror(error.errno or 0) if is_plain else error.strerror
        text = f"{error.host}:{error.port} cannot be reached: {problem}"
        return Failed(log.hide(text), "launch_failed")
    # The target may have received the request; the next attempt has the same key.
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return Failed("no answer: the connection was closed")
    # The text of other errors of aiohttp can quote the answer, and so a secret.
    text = str(error) if isinstance(error, OSError | zlib.error) else type(error).__name__
    return Failed(f"no answer: {log.hide(text)}")


def _own_headers(attempt: Attempt) -> dict[str, str]:
    return {
        "Idempotency-Key": attempt.key,
        "Onbeat-Run-Id": str(attempt.run_id),
        "Onbeat-Schedule": attempt.schedule_id,
        "Onbeat-Run-At": rfc3339(attempt.run_at),
        "Onbeat-Attempt": str(attempt.attempt),
        "Onbeat-Triggered-By": attempt.triggered_by,
        "Onbeat-Iteration": str(attempt.iteration),
    }

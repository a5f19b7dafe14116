"""Sending requests, and what their answers mean."""

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
from onbeat.core.target import json_can_say
from onbeat.core.time.instants import rfc3339
from onbeat.errors import InvalidSchedule
from onbeat.files.secrets import Redactor, SecretReferences
from onbeat.launchers.http.target import (
    WITH_BODY,
    AllowedHosts,
    asking,
    place_of,
    read_target,
    redirected,
    text_of,
)
from onbeat.ports.outside import NO_HEADERS, Callback, HttpResponse
from onbeat.ports.store import Attempt

Resolve = Callable[[str, int], Awaitable[Iterable[str]]]

MOST_REDIRECTS = 5
LONGEST_READ = 1024 * 1024  # bytes of a body, after it was unpacked
LONGEST_KEPT = 64 * 1024  # bytes of a result as JSON, and of what is told of a request
LONGEST_ERROR, LONGEST_ID = 300, 200  # characters
LONGEST_WAIT = 3600  # seconds that a busy target may ask for
KEEP_ALIVE = 4  # seconds: many servers close after five, and a request that meets that is lost

NO_CALLBACK = "[onbeat: no Onbeat-Callback was sent: the setting public_url is empty]"

warnings = logging.getLogger("onbeat.http")


class Sender:
    """Sends requests over connections that are kept for a while."""

    def __init__(
        self,
        *,
        version: str,
        references: SecretReferences,
        concurrency: int,
        reach: AllowedHosts,
        resolve: Resolve | None,
        callback: Callback | None,
    ) -> None:
        self._version, self._references, self._concurrency = version, references, concurrency
        self._callback, self._has_warned = callback, False
        self._reach, self._resolver = reach, _Resolver(resolve or _look_up, reach)
        self._session: aiohttp.ClientSession | None = None

    async def send(self, attempt: Attempt, longest: int) -> tuple[Outcome, str]:
        """Send one request, and return what came of it in so many milliseconds."""
        log = _Log()
        try:
            async with asyncio.timeout(longest / 1000) as limit:
                outcome = await self._ask(attempt, log)
        except InvalidSchedule as refused:
            outcome = Failed(log.hide(str(refused)), "invalid_target", retryable=False)
        except Exception as broken:  # noqa: BLE001 - whatever it is, it is this attempt's alone
            late = Failed(f"no answer after {longest / 1000:g}s", "timeout")
            outcome = late if limit.expired() else _without_answer(broken, log)
        return outcome, log.text()

    async def ask(
        self,
        method: str,
        url: str,
        *,
        body: object,
        headers: Mapping[str, str],
        longest: int,
        secrets: Mapping[str, str] = NO_HEADERS,
    ) -> HttpResponse | Failed:
        """Send one request for somebody else. The contract is `Ask`."""
        log = _Log()
        try:
            async with asyncio.timeout(longest / 1000) as limit:
                body = self._with_secrets(body, secrets, log)
                return await self._answer(method, url, body, headers, log)
        except InvalidSchedule as refused:
            return Failed(log.hide(str(refused)), "invalid_target", retryable=False)
        except Exception as broken:  # noqa: BLE001 - whatever it is, it is this request's alone
            late = Failed(f"no answer after {longest / 1000:g}s", "timeout")
            return late if limit.expired() else _without_answer(broken, log)

    async def _answer(
        self,
        method: str,
        url: str,
        body: object,
        headers: Mapping[str, str],
        log: "_Log",
    ) -> HttpResponse:
        place = place_of(text_of("url", url))
        self._reach.check(place)
        filled, data = self._fill(headers.items(), log), None
        if body is not None:
            data, filled["Content-Type"] = msgspec.json.encode(body), "application/json"
        async with self._opened().request(
            method, place.url, data=data, headers=filled, allow_redirects=False
        ) as response:
            read, is_cut = await _read_body(response)
            log.body = log.hide(read.decode(errors="replace"), is_cut=is_cut)
            is_json = response.content_type.endswith(("/json", "+json"))
            found = _result(log, is_json=is_json, is_cut=is_cut)
            return HttpResponse(response.status, log.hide(response.reason or ""), found)

    async def close(self) -> None:
        """Close all connections. What is sent later opens new ones."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, attempt: Attempt, log: "_Log") -> Outcome:
        """Send the request, follow redirects, and return what the last answer means."""
        method, place, wanted, feedback = read_target(attempt.target)
        body, own = None, _own_headers(attempt)
        if method not in WITH_BODY:
            place = asking(place, attempt.inputs)
        elif attempt.inputs_text is not None:
            body, own["Content-Type"] = attempt.inputs_text.encode(), "application/json"
        headers, told = own | self._fill(wanted, log), place.url
        if feedback is not False and self._callback is not None:
            headers |= (how := await self._callback(attempt.key))
            log.hidden.keep(how.get("Onbeat-Callback-Token", ""))
        followed = (301, 302, 303, 307, 308) if method in ("GET", "HEAD") else (307, 308)
        for _ in range(MOST_REDIRECTS + 1):
            self._reach.check(place)
            log.lines.append(f"{method} {told}")
            async with self._opened().request(
                method, place.url, data=body, headers=headers, allow_redirects=False
            ) as response:
                log.lines.append(f"HTTP {response.status} {response.reason or ''}".rstrip())
                location = response.headers.get("Location", "")
                if not location or response.status not in followed:
                    outcome = await _outcome(response, log, feedback=feedback)
                    if isinstance(outcome, Accepted):
                        self._note_callback(attempt, headers, log)
                    return outcome
            before, place = place, redirected(place, location)
            told = place.origin if log.hidden else place.url  # one may be in it, in any spelling
            if place.origin != before.origin:
                headers = own  # what is meant for one is no other's business
        return Failed(f"more than {MOST_REDIRECTS} redirects", retryable=False)

    def _note_callback(self, attempt: Attempt, headers: Mapping[str, str], log: "_Log") -> None:
        """Say so if the target was not sent where to report: its run may be held for an hour."""
        if self._callback is None or "Onbeat-Callback" in headers:
            return
        log.lines.append(NO_CALLBACK)
        if not self._has_warned:
            self._has_warned = True
            told = "run %d of %s was accepted, and its target was sent no callback address: set"
            warnings.warning(f"{told} public_url", attempt.run_id, attempt.schedule_id)

    def _opened(self) -> aiohttp.ClientSession:
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
                timeout=aiohttp.ClientTimeout(),  # ours is around all of it
                auto_decompress=False,
                trust_env=False,
            )
            # A GET whose connection breaks would be sent twice, by an attempt that counts as one.
            self._session._retry_connection = False  # noqa: SLF001 - there is no other way
        return self._session

    def _with_secrets(self, body: object, secrets: Mapping[str, str], log: "_Log") -> object:
        """Return a body with further fields, with secrets in place of their names."""
        if not secrets:
            return body
        assert isinstance(body, Mapping), "only fields can be beside others"
        fill, hidden = self._references.fill, log.hidden
        return {**body, **{name: fill(name, text, hidden) for name, text in secrets.items()}}

    def _fill(self, headers: Iterable[tuple[str, str]], log: "_Log") -> dict[str, str]:
        """Return headers with secrets in place of their names."""
        found = dict(headers)
        for name, value in found.items():
            filled = self._references.fill(f"headers.{name}", value, log.hidden)
            found[name] = text_of(f"headers.{name}", filled)
        return found


class _Resolver(AbstractResolver):
    """Gives a connection the addresses of one look-up, but for those that it may not use."""

    def __init__(self, resolve: Resolve, reach: AllowedHosts) -> None:
        self._resolve, self._reach = resolve, reach

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:  # noqa: ARG002 - any will do
        try:
            found = [ip_address(text) for text in await self._resolve(host, port)]
        except ValueError as broken:  # a name that DNS cannot spell
            raise socket.gaierror(socket.EAI_NONAME, str(broken)) from None
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "it has no address")
        return [
            ResolveResult(hostname=host, host=str(a), port=port, family=0, proto=0, flags=0)
            for a in self._reach.usable(host, found)
        ]

    async def close(self) -> None:
        pass


async def _look_up(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(at[0]) for *_, at in found]


class _Log:
    """What is told of a request and its answers: lines, a body, and never a secret."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.body = ""
        self.hidden = Redactor()
        self.hide = self.hidden.hide

    def text(self) -> str:
        told = self.hide("".join(f"{line}\n" for line in self.lines)) + self.body
        return told.encode(errors="replace")[:LONGEST_KEPT].decode(errors="ignore")


async def _outcome(
    response: aiohttp.ClientResponse, log: _Log, *, feedback: bool | None
) -> Outcome:
    """Return what an answer means. 202 is the promise to report, whether declared or not.

    `feedback` is what the target declares: True that it reports after any 2xx, False that it was
    given no callback and never reports.
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
    said = " ".join(log.body.split())[:LONGEST_ERROR]
    error = f"HTTP {status}: {said}" if said else f"HTTP {status}"
    if status == 410:
        return Gone(error)
    if status in (429, 503) and (wait := _wait_asked_for(headers)) is not None:
        return Busy(error, wait)
    return Failed(error, retryable=500 <= status < 600 or status in (408, 425, 429))


async def _read_body(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """Return the body, unpacked, as far as it is read, and whether that is not all of it."""
    is_packed = response.headers.get("Content-Encoding", "").lower() in ("gzip", "deflate")
    unpacker, found = zlib.decompressobj(wbits=47) if is_packed else None, bytearray()
    while part := await response.content.readany():
        room = LONGEST_READ + 1 - len(found)
        found += part if unpacker is None else unpacker.decompress(part, room)
        if len(found) > LONGEST_READ:  # a connection that is released like this is closed
            return bytes(found[:LONGEST_READ]), True
    return bytes(found), False


def _result(log: _Log, *, is_json: bool, is_cut: bool) -> object:
    """Return what a body says as JSON, if that can be kept; else its text, cut if too long."""
    text, length = log.body, len(log.body)
    with suppress(msgspec.DecodeError, RecursionError):
        if is_json and not is_cut and length <= LONGEST_KEPT:
            value = msgspec.json.decode(text)
            if json_can_say(value):  # spelt in another way it may show more secrets
                again = msgspec.json.encode(value).decode() if log.hidden else ""
                return msgspec.json.decode(log.hide(again)) if again else value
    note = f"\n[onbeat: cut, of {length}{' or more' if is_cut else ''} characters]"
    while len(msgspec.json.encode(text[:length])) > LONGEST_KEPT - 2 * len(note):
        length = min(length, LONGEST_KEPT) * 7 // 8  # some characters are longer in JSON
    return text[:length] + note if is_cut or length < len(text) else text or None


def _external_id(result: object, location: str) -> str:
    """Return the name that a target has told for what it accepted."""
    told = map(result.get, ("run_id", "id", "external_id")) if isinstance(result, dict) else ()
    texts = [str(value) for value in (*told, location) if type(value) in (str, int)]
    return next((text[:LONGEST_ID] for text in texts if text and text.isprintable()), "")


def _wait_asked_for(headers: Mapping[str, str]) -> int | None:
    """Return the milliseconds after which to ask again, or None if nothing usable says so."""
    asked = headers.get("Retry-After", "").strip()
    try:
        if asked.isascii() and asked.isdigit():
            seconds = float(asked)
        else:  # by the clock of whoever says it, whatever ours is
            until, now = map(parsedate_to_datetime, (asked, headers.get("Date", "")))
            seconds = (until - now).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    return int(1000 * min(max(seconds, 1), LONGEST_WAIT))


def _without_answer(error: Exception, log: _Log) -> Failed:
    if isinstance(error, aiohttp.ClientConnectorError):
        is_plain = type(error) is aiohttp.ClientConnectorError and (error.errno or 0) > 0
        problem = os.strerror(error.errno or 0) if is_plain else error.strerror
        told = f"{error.host}:{error.port} cannot be reached: {problem}"
        return Failed(log.hide(told), "launch_failed")
    # From here on it may have arrived, and the next attempt comes under the same key.
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return Failed("no answer: the connection was closed")
    # What else aiohttp says can quote the answer, and so a secret.
    said = str(error) if isinstance(error, OSError | zlib.error) else type(error).__name__
    return Failed(f"no answer: {log.hide(said)}")


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

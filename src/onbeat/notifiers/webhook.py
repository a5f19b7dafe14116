"""Deliver messages as JSON by POST, with the same Idempotency-Key for every attempt.

Redirects are not followed: another server must not get the message. Only the status of an answer is
used, as its body could quote a secret.
"""

import asyncio
import os
from typing import TYPE_CHECKING

import msgspec

from onbeat.core.notify.channels import Channel
from onbeat.core.notify.notifications import (
    Delivered,
    Delivery,
    DeliveryRefused,
    DeliveryUnknown,
    OutgoingMessage,
    fields,
)

if TYPE_CHECKING:
    import aiohttp

TIMEOUT = 15.0  # seconds, for the whole request
TEMPORARY = frozenset({408, 425, 429})  # may succeed later, as may 5xx


class WebhookNotifier:
    """Sends messages to one URL."""

    def __init__(self, channel: Channel, *, longest: float = TIMEOUT) -> None:
        self._channel, self._longest = channel, longest

    async def send(self, message: OutgoingMessage) -> Delivery:
        import aiohttp  # noqa: PLC0415 - it takes 0.1 s to import

        is_connected = False

        async def connected(*_: object) -> None:
            nonlocal is_connected
            is_connected = True

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(connected)
        try:
            async with asyncio.timeout(self._longest):
                return await self._post(message, trace)
        except ValueError:  # also for a name that DNS cannot encode
            return DeliveryRefused("its address is not a valid URL", again=False)
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno or 0
            reason = os.strerror(number) if number > 0 else error.os_error.strerror
            return DeliveryRefused(f"{error.host}:{error.port} cannot be reached: {reason}")
        except (aiohttp.ClientError, OSError, asyncio.CancelledError) as error:
            # The text of other errors can quote the address, and so a secret.
            is_late = isinstance(error, TimeoutError)
            reason = (
                f"no answer after {self._longest:g} s" if is_late else "the connection was lost"
            )
            if isinstance(error, asyncio.CancelledError):
                reason = "canceled before an answer arrived"
            if is_connected:
                return DeliveryUnknown(reason)
            return DeliveryRefused(f"never connected: {reason}")

    async def _post(self, message: OutgoingMessage, trace: "aiohttp.TraceConfig") -> Delivery:
        import aiohttp  # noqa: PLC0415

        body = {"channel": message.channel, "key": message.key, **fields(message.bundle)}
        headers = {
            "User-Agent": "onbeat",
            **dict(self._channel.headers),
            "Content-Type": "application/json",
            "Idempotency-Key": message.key,
        }
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(),  # `send` limits the whole request
                trace_configs=[trace],
                trust_env=False,
            ) as session,
            session.post(
                self._channel.address,
                data=msgspec.json.encode(body),
                headers=headers,
                allow_redirects=False,
            ) as answer,
        ):
            return _delivery(answer.status, answer.headers.get("Retry-After", ""))


def _delivery(status: int, retry_after: str) -> Delivery:
    """Return whether the message was delivered, by the status of the answer."""
    if 200 <= status < 300:
        return Delivered()
    if 300 <= status < 400:
        return DeliveryRefused(f"HTTP {status}: redirects are not followed", again=False)
    again = status >= 500 or status in TEMPORARY
    seconds = retry_after.strip()
    is_number = seconds.isascii() and seconds.isdigit() and len(seconds) < 7
    wait = int(seconds) * 1000 if is_number else 0
    return DeliveryRefused(f"HTTP {status}", again=again, wait=wait)

"""Webhooks: a message as JSON in one POST, under the same Idempotency-Key at every attempt.

Redirects are not followed, as a message may be nobody else's business. Of an answer nothing but the
status is read: what else it says could quote a secret.
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

LONGEST = 15.0  # seconds, all in all
AGAIN = frozenset({408, 425, 429})  # refused for now; so is what a server fails at


class WebhookNotifier:
    """Sends messages to one URL."""

    def __init__(self, channel: Channel, *, longest: float = LONGEST) -> None:
        self._channel, self._longest = channel, longest

    async def send(self, letter: OutgoingMessage) -> Delivery:
        import aiohttp  # noqa: PLC0415 - a tenth of a second, for those who send

        is_connected = False

        async def connected(*_: object) -> None:
            nonlocal is_connected
            is_connected = True

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(connected)
        try:
            async with asyncio.timeout(self._longest):
                return await self._post(letter, trace)
        except ValueError:  # also of a name that cannot be looked up
            return DeliveryRefused("its address is no URL that can be asked", again=False)
        except aiohttp.ClientConnectorError as broken:
            number = broken.os_error.errno or 0
            why = os.strerror(number) if number > 0 else broken.os_error.strerror
            return DeliveryRefused(f"{broken.host}:{broken.port} cannot be reached: {why}")
        except (aiohttp.ClientError, OSError, asyncio.CancelledError) as broken:
            # What aiohttp says can quote the address, and so a secret.
            late = isinstance(broken, TimeoutError)
            why = f"no answer after {self._longest:g} s" if late else "the connection was lost"
            if isinstance(broken, asyncio.CancelledError):
                why = "it was given up before there was an answer"
            return (
                DeliveryUnknown(why) if is_connected else DeliveryRefused(f"never connected: {why}")
            )

    async def _post(self, letter: OutgoingMessage, trace: "aiohttp.TraceConfig") -> Delivery:
        import aiohttp  # noqa: PLC0415

        told = {"channel": letter.channel, "key": letter.key, **fields(letter.bundle)}
        headers = {
            "User-Agent": "onbeat",
            **dict(self._channel.headers),
            "Content-Type": "application/json",
            "Idempotency-Key": letter.key,
        }
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(),  # ours is around all of it
                trace_configs=[trace],
                trust_env=False,
            ) as session,
            session.post(
                self._channel.address,
                data=msgspec.json.encode(told),
                headers=headers,
                allow_redirects=False,
            ) as answer,
        ):
            return _meaning(answer.status, answer.headers.get("Retry-After", ""))


def _meaning(status: int, retry_after: str) -> Delivery:
    """Return what an answer means."""
    if 200 <= status < 300:
        return Delivered()
    if 300 <= status < 400:
        return DeliveryRefused(f"HTTP {status}: redirects are not followed", again=False)
    again = status >= 500 or status in AGAIN
    asked = retry_after.strip()
    is_number = asked.isascii() and asked.isdigit() and len(asked) < 7
    return DeliveryRefused(
        f"HTTP {status}", again=again, wait=int(asked) * 1000 if is_number else 0
    )

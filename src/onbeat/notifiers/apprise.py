"""Deliver messages by Apprise, which supports a hundred services (extra `notify`).

Apprise only returns success or failure. It can fail after the service accepted the message, so a
failure is recorded as in doubt and not retried.
"""

import asyncio
import threading
from contextlib import suppress

from onbeat.core.notify.channels import Channel
from onbeat.core.notify.notifications import (
    Delivered,
    Delivery,
    DeliveryRefused,
    DeliveryUnknown,
    OutgoingMessage,
    subject,
    text,
)
from onbeat.host.extras import install_command


class AppriseNotifier:
    """Sends messages to one Apprise address."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def send(self, message: OutgoingMessage) -> Delivery:
        """Send a message from a daemon thread, which does not delay the end of the process."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Delivery] = loop.create_future()

        def work() -> None:
            delivery = self._deliver(message)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_resolve, done, delivery)

        threading.Thread(target=work, name="onbeat-apprise", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            return DeliveryUnknown("canceled before an answer arrived")

    def _deliver(self, message: OutgoingMessage) -> Delivery:
        try:
            import apprise  # noqa: PLC0415 - an extra, and slow to import

            client = apprise.Apprise()
            is_supported = client.add(self._channel.address)
        except ModuleNotFoundError:
            return DeliveryRefused(
                f"apprise is not installed ({install_command('notify')})", again=False
            )
        except Exception as error:  # noqa: BLE001 - the caller waits for a result
            return DeliveryRefused(f"apprise failed: {type(error).__name__}", again=False)
        if not is_supported:
            return DeliveryRefused("apprise does not support this address", again=False)
        try:
            is_sent = client.notify(body=text(message.bundle), title=subject(message.bundle))
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            return DeliveryUnknown(f"apprise failed: {type(error).__name__}")
        return (
            Delivered()
            if is_sent
            else DeliveryUnknown("apprise reported a failure without a reason")
        )


def _resolve(done: "asyncio.Future[Delivery]", delivery: Delivery) -> None:
    if not done.done():
        done.set_result(delivery)

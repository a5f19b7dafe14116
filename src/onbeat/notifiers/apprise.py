"""Apprise: a hundred other services (extra `notify`), by the addresses of that library.

It only says yes or no. A no can come after the service has taken the message, so that it is told
as in doubt, and not tried again.
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
from onbeat.files.extras import install_command


class AppriseNotifier:
    """Sends messages by one address of Apprise."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def send(self, letter: OutgoingMessage) -> Delivery:
        """Send it from a thread of its own, which nothing has to wait for."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Delivery] = loop.create_future()

        def work() -> None:
            delivery = self._deliver(letter)
            with suppress(RuntimeError):  # nobody is there any more
                loop.call_soon_threadsafe(_resolve, done, delivery)

        threading.Thread(target=work, name="onbeat-apprise", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            return DeliveryUnknown("it was given up before there was an answer")

    def _deliver(self, letter: OutgoingMessage) -> Delivery:
        try:
            import apprise  # noqa: PLC0415 - an extra, and slow to import

            box = apprise.Apprise()
            is_known = box.add(self._channel.address)
        except ModuleNotFoundError:
            return DeliveryRefused(
                f"apprise is not installed ({install_command('notify')})", again=False
            )
        except Exception as broken:  # noqa: BLE001 - whoever waits for the thread is to hear of it
            return DeliveryRefused(f"apprise failed: {type(broken).__name__}", again=False)
        if not is_known:
            return DeliveryRefused("apprise does not know such an address", again=False)
        try:
            is_sent = box.notify(body=text(letter.bundle), title=subject(letter.bundle))
        except Exception as broken:  # noqa: BLE001 - a plugin may raise anything
            return DeliveryUnknown(f"apprise failed: {type(broken).__name__}")
        return (
            Delivered()
            if is_sent
            else DeliveryUnknown("apprise says that it was not delivered, not why")
        )


def _resolve(done: "asyncio.Future[Delivery]", delivery: Delivery) -> None:
    if not done.done():
        done.set_result(delivery)

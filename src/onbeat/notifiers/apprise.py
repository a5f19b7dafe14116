"""Apprise: a hundred other services (extra `notify`), by the addresses of that library.

It only says yes or no. A no can come after the service has taken the message, so that it is told
as in doubt, and not tried again.
"""

import asyncio
import threading
from contextlib import suppress

from onbeat.core.channels import Channel
from onbeat.core.notices import Delivery, Letter, Refused, Sent, Unknown, subject, text


class AppriseNotifier:
    """Sends messages by one address of Apprise."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def send(self, letter: Letter) -> Delivery:
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
            return Unknown("it was given up before there was an answer")

    def _deliver(self, letter: Letter) -> Delivery:
        try:
            import apprise  # noqa: PLC0415 - an extra, and slow to import

            box = apprise.Apprise()
            is_known = box.add(self._channel.address)
        except ModuleNotFoundError:
            return Refused("apprise is not installed (pip install 'onbeat[notify]')", again=False)
        except Exception as broken:  # noqa: BLE001 - whoever waits for the thread is to hear of it
            return Refused(f"apprise failed: {type(broken).__name__}", again=False)
        if not is_known:
            return Refused("apprise does not know such an address", again=False)
        try:
            is_sent = box.notify(body=text(letter.bundle), title=subject(letter.bundle))
        except Exception as broken:  # noqa: BLE001 - a plugin may raise anything
            return Unknown(f"apprise failed: {type(broken).__name__}")
        return Sent() if is_sent else Unknown("apprise says that it was not delivered, not why")


def _resolve(done: "asyncio.Future[Delivery]", delivery: Delivery) -> None:
    if not done.done():
        done.set_result(delivery)

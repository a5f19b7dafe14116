"""`Notifier`: the adapter that delivers the messages of a channel."""

from typing import Protocol

from onbeat.core.notify.notifications import Delivery, OutgoingMessage


class Notifier(Protocol):
    """The adapter that delivers the messages of one channel."""

    async def send(self, letter: OutgoingMessage) -> Delivery:
        """Send a message once and return the result. It does not raise.

        A cancelled call gives up, and returns immediately whether the message was sent.
        """

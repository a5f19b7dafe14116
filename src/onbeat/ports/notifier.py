"""The contract of what delivers messages: `Notifier`."""

from typing import Protocol

from onbeat.core.notify.notifications import Delivery, OutgoingMessage


class Notifier(Protocol):
    """The adapter that delivers the messages of one channel."""

    async def send(self, letter: OutgoingMessage) -> Delivery:
        """Send a message, once, and return what is known of it. It raises nothing of its own.

        Cancelling the call gives up: it then returns at once whether anything was sent.
        """

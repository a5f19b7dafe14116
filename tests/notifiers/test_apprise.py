"""Delivery by Apprise, which only returns success or failure."""

import asyncio

import pytest

from onbeat.core.notify.notifications import Delivered, DeliveryRefused, DeliveryUnknown
from onbeat.notifiers.apprise import AppriseNotifier
from tests.notifiers.servers import a_channel, a_message

# Some of its plugins import deprecated modules.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def sent(address):
    return asyncio.run(AppriseNotifier(a_channel(apprise=address)).send(a_message()))


async def answered(status):
    """Send by Apprise's JSON plugin to a server that answers with this status."""
    got = []

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        got.append(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        channel = a_channel(apprise=f"json://127.0.0.1:{port}/")
        return await AppriseNotifier(channel).send(a_message()), got


def test_successful_apprise_delivery_is_delivered():
    delivery, (body,) = asyncio.run(answered(200))
    assert delivery == Delivered()
    assert b"backup failed (3 in a row)" in body


def test_failed_apprise_delivery_is_in_doubt():
    delivery, _ = asyncio.run(answered(500))
    assert delivery == DeliveryUnknown("apprise reported a failure without a reason")


def test_unsupported_apprise_address_is_refused_permanently():
    problem = "apprise does not support this address"
    assert sent("nonsense://s3cret") == DeliveryRefused(problem, again=False)

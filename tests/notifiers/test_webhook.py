"""Delivery by webhook: one POST for each message, and its result."""

import asyncio
import json
import re
import socket
from pathlib import Path

import pytest
from aiohttp import web

from onbeat.core.notify.notifications import Delivered, DeliveryRefused, DeliveryUnknown
from onbeat.notifiers.webhook import WebhookNotifier
from tests.notifiers.servers import a_channel, a_hook, a_message, hang, hang_up

PAGE = Path(__file__).parents[2] / "docs" / "notifications.md"


def sent(*answers, longest=5.0, message=None, **fields):
    """Send one message to a server with these answers; return the result and its requests."""

    async def story():
        async with a_hook(*answers) as hook:
            channel = a_channel(webhook=hook.url, **fields)
            notifier = WebhookNotifier(channel, longest=longest)
            return await notifier.send(message or a_message()), hook.got

    return asyncio.run(story())


def test_webhook_message_is_one_post_with_its_key():
    delivery, got = sent(204, headers={"X-Team": "ops"})
    assert delivery == Delivered()
    ((headers, body),) = got
    assert headers["Idempotency-Key"] == body["key"] == "k" * 64
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Team"] == "ops"
    assert body["subject"] == "[onbeat] backup failed (3 in a row)"


def test_example_in_the_docs_equals_the_message_sent():
    _, ((_, body),) = sent(200)
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert json.loads(example) == body


@pytest.mark.parametrize("status", [500, 502, 503, 408, 425, 429])
def test_temporary_statuses_are_retried(status):
    delivery, _ = sent(status)
    assert delivery == DeliveryRefused(f"HTTP {status}", again=True)


@pytest.mark.parametrize("status", [400, 401, 404, 410, 413, 422])
def test_permanent_statuses_are_not_retried(status):
    delivery, _ = sent(status)
    assert delivery == DeliveryRefused(f"HTTP {status}", again=False)


def test_retry_after_sets_the_wait():
    async def busy(_):
        return web.Response(status=429, headers={"Retry-After": "90"})

    assert sent(busy)[0] == DeliveryRefused("HTTP 429", again=True, wait=90_000)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_refused_and_not_followed(status):
    async def away(request):
        return web.Response(status=status, headers={"Location": f"http://{request.host}/other"})

    delivery, got = sent(away, 200)
    assert delivery == DeliveryRefused(f"HTTP {status}: redirects are not followed", again=False)
    assert len(got) == 1


def test_refused_webhook_connection_is_a_refusal_and_not_in_doubt():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without listening
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        notifier = WebhookNotifier(a_channel(webhook=f"http://{address}/s3cret"))
        delivery = asyncio.run(notifier.send(a_message()))
    assert delivery == DeliveryRefused(f"{address} cannot be reached: Connection refused")


@pytest.mark.parametrize("host", ["a" * 64, "a..b", "127.0.0.1:99999"])
def test_invalid_webhook_address_is_not_retried(host):
    notifier = WebhookNotifier(a_channel(webhook=f"http://{host}/s3cret"))
    delivery = asyncio.run(notifier.send(a_message()))
    assert delivery == DeliveryRefused("its address is not a valid URL", again=False)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [(hang, "no answer after 0.2 s"), (hang_up, "the connection was lost")],
)
def test_request_sent_without_an_answer_is_in_doubt(answer, problem):
    delivery, got = sent(answer, longest=0.2)
    assert delivery == DeliveryUnknown(problem)
    assert len(got) == 1


def test_request_without_a_connection_is_a_refusal():
    async def story():
        full = socket.socket()  # its queue is full, and no connection is accepted
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        try:
            url = f"http://127.0.0.1:{full.getsockname()[1]}/"
            return await WebhookNotifier(a_channel(webhook=url), longest=0.2).send(a_message())
        finally:
            for each in (full, *waiting):
                each.close()

    delivery = asyncio.run(story())
    assert delivery == DeliveryRefused("never connected: no answer after 0.2 s")


def test_cancelling_after_the_request_was_sent_is_in_doubt():
    async def story():
        async with a_hook(hang) as hook:
            notifier = WebhookNotifier(a_channel(webhook=hook.url))
            sending = asyncio.ensure_future(notifier.send(a_message()))
            while not hook.got:  # noqa: ASYNC110 - another task fills it
                await asyncio.sleep(0.01)
            sending.cancel()
            return await sending

    assert asyncio.run(story()) == DeliveryUnknown("canceled before an answer arrived")


def test_endless_response_is_not_read():
    async def endless(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 65_536)

    delivery, _ = sent(endless)
    assert delivery == Delivered()


def test_error_of_a_failed_delivery_has_no_secret():
    delivery, _ = sent(500, headers={"Authorization": "Bearer s3cret"})
    assert delivery.error == "HTTP 500"

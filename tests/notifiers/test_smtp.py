"""Delivery by mail to a real server on loopback, and its result."""

import asyncio
import socket
import ssl
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest

from onbeat.core.notify.notifications import Delivered, DeliveryRefused, DeliveryUnknown
from onbeat.notifiers.smtp import SmtpNotifier
from tests.notifiers.servers import a_channel, a_message, a_post
from tests.waiting import forever, until

TO = ["you@there.example", "me@there.example"]


def mail(post, message=None, *, user="", scheme="smtp", longest=5.0, **fields):
    server = f"{scheme}://{user}{'@' * bool(user)}127.0.0.1:{post.port}"
    channel = a_channel(**{"smtp": server, "to": TO, "from": "onbeat@here.example"} | fields)
    return asyncio.run(SmtpNotifier(channel, longest=longest).send(message or a_message()))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key -out cert"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    return context


def test_message_is_one_mail_to_all_recipients():
    with a_post() as server:
        assert mail(server) == Delivered()
        (found,) = server.post.got
    assert found["Subject"] == "[onbeat] backup failed (3 in a row)"
    assert found["To"] == "you@there.example, me@there.example"
    assert found["Message-ID"] == f"<{'k' * 64}@here.example>"
    assert found["Auto-Submitted"] == "auto-generated"
    assert found["Date"].datetime.isoformat() == "2026-01-01T12:00:00+00:00"
    assert found.sent_to == TO
    assert "why      it failed: disk full" in found.get_content()
    assert found.get_content_type() == "text/plain"


@pytest.mark.parametrize(
    "evil",
    [
        "x\r\nBcc: evil@example.org",
        "\r\n.\r\nMAIL FROM:<evil@example.org>",
        ".",
        "ünïcode \u2028 \x00",
    ],
)
def test_run_error_cannot_inject_a_header_or_a_command(evil):
    with a_post() as server:
        assert mail(server, a_message(error=evil, schedule_id=evil)) == Delivered()
        (found,) = server.post.got
    assert "Bcc" not in found
    assert found.sent_to == TO
    assert found["Subject"].startswith("[onbeat]")
    assert "look     onbeat why" in found.get_content()


def test_line_beginning_with_a_dot_is_sent_unchanged():
    with a_post() as server:
        mail(server, a_message(schedule_id=".hidden"))
        (found,) = server.post.got
    assert found.get_content().startswith(".hidden failed")


def test_smtp_logs_in_with_user_and_password():
    with a_post(logs_in=True) as server:
        assert mail(server, user="me@there.example", password="s3cret") == Delivered()
        assert server.post.passwords == [(b"me@there.example", b"s3cret")]


def test_wrong_password_is_refused_permanently_and_not_shown():
    with a_post(logs_in=True) as server:
        delivery = mail(server, user="me", password="hush-hush")
    assert (type(delivery), delivery.again) == (DeliveryRefused, False)
    assert delivery.error.startswith("SMTP 535: ")
    assert "hush" not in delivery.error


def test_connection_is_encrypted_if_the_server_offers_it(certificate):
    with a_post(tls_context=certificate, require_starttls=True) as server:
        assert mail(server) == Delivered()


def test_password_is_not_sent_unencrypted_to_another_machine(monkeypatch):
    monkeypatch.setattr("onbeat.core.notify.channels.MailServer.is_here", False)
    with a_post(logs_in=True) as server:
        delivery = mail(server, user="me", password="s3cret")
        assert server.post.passwords == []
    assert delivery.again is False
    assert "would be sent unencrypted" in delivery.error


def test_untrusted_certificate_of_another_machine_is_refused(certificate, monkeypatch):
    monkeypatch.setattr("onbeat.core.notify.channels.MailServer.is_here", False)
    with a_post(tls_context=certificate) as server:
        delivery = mail(server)
        assert server.post.got == []
    assert isinstance(delivery, DeliveryRefused)
    assert "TLS: " in delivery.error


@pytest.mark.parametrize(("line", "again"), [("451 later", True), ("554 no", False)])
def test_smtp_refusals_are_retried_by_their_code(line, again):
    with a_post() as server:
        server.post.answers = [line]
        delivery = mail(server)
    assert delivery == DeliveryRefused(f"SMTP {line.replace(' ', ': ', 1)}", again=again)


def test_temporarily_refused_recipient_delays_the_mail_until_the_last_try():
    with a_post() as server:
        server.post.refused = {TO[0]: "450 busy"}
        delivery = mail(server)
        assert delivery == DeliveryRefused(f"SMTP 450: {TO[0]}: busy", again=True)
        assert server.post.got == []
        assert mail(server, a_message(attempt=6)) == Delivered(f"{TO[0]}: 450 busy")
        assert [each.sent_to for each in server.post.got] == [[TO[1]]]


def test_permanently_refused_recipient_does_not_affect_the_others():
    with a_post() as server:
        server.post.refused = {TO[0]: "550 unknown"}
        assert mail(server) == Delivered(f"{TO[0]}: 550 unknown")
        assert [each.sent_to for each in server.post.got] == [[TO[1]]]
        server.post.refused |= {TO[1]: "550 unknown"}
        assert mail(server) == DeliveryRefused(f"SMTP 550: {TO[0]}: unknown", again=False)


def test_refused_smtp_connection_is_a_refusal_and_not_in_doubt():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without listening
        port = taken.getsockname()[1]
        delivery = mail(SimpleNamespace(port=port))
    assert delivery == DeliveryRefused(f"127.0.0.1:{port}: Connection refused")


def test_disconnect_after_the_message_is_in_doubt():
    async def hang_up(server):
        server.transport.abort()
        return "250 OK"

    with a_post() as server:
        server.post.answers = [hang_up]
        delivery = mail(server)
        assert len(server.post.got) == 1
    assert isinstance(delivery, DeliveryUnknown)


def test_missing_answer_after_the_message_is_in_doubt():
    async def hang(_):
        await forever()

    with a_post() as server:
        server.post.answers = [hang]
        delivery = mail(server, longest=0.2)
    assert isinstance(delivery, DeliveryUnknown)


def test_cancelling_before_the_message_was_sent_is_a_refusal():
    with socket.socket() as silent:  # it accepts the connection and sends nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"smtp://127.0.0.1:{silent.getsockname()[1]}"

        async def story():
            notifier = SmtpNotifier(a_channel(smtp=url, to=TO), longest=30)
            sending = asyncio.ensure_future(notifier.send(a_message()))
            connection, _ = await asyncio.to_thread(silent.accept)
            sending.cancel()
            with connection:
                return await sending

        began = time.monotonic()
        assert asyncio.run(story()) == DeliveryRefused("canceled before it was sent")
        assert time.monotonic() - began < 2


def test_cancelled_delivery_sends_nothing_later():
    go, reached, taken = threading.Event(), threading.Event(), []

    async def story(server):
        async def held(smtp, *_):
            taken.append(smtp)
            reached.set()
            while not go.is_set():  # noqa: ASYNC110 - another thread sets it
                await asyncio.sleep(0.01)
            return "250 OK"

        server.post.handle_MAIL = held
        url = f"smtp://127.0.0.1:{server.port}"
        sending = asyncio.ensure_future(SmtpNotifier(a_channel(smtp=url, to=TO)).send(a_message()))
        while not reached.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)
        sending.cancel()
        delivery = await sending
        go.set()
        await until(lambda: taken[0].transport is None)  # the thread has hung up
        return delivery, server.post.got

    with a_post() as server:
        assert asyncio.run(story(server)) == (
            DeliveryRefused("canceled before it was sent"),
            [],
        )


def test_smtps_address_is_encrypted_from_the_start(certificate):
    with a_post(ssl_context=certificate) as server:
        assert mail(server, scheme="smtps") == Delivered()
        assert len(server.post.got) == 1

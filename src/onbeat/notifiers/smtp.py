"""Deliver messages as plain text mail over SMTP.

The connection is encrypted if the server offers STARTTLS, or from the start (smtps). A password is
never sent unencrypted to another machine. The Message-ID is the same for every attempt.
"""

import asyncio
import re
import smtplib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from onbeat.core.notify.channels import Channel, MailServer
from onbeat.core.notify.notifications import (
    Delivered,
    Delivery,
    DeliveryRefused,
    DeliveryUnknown,
    OutgoingMessage,
    first_line,
    subject,
    text,
)

TIMEOUT = 10.0  # seconds, for each step


class SmtpNotifier:
    """Sends messages to the addresses of a channel, by one server."""

    def __init__(self, channel: Channel, *, longest: float = TIMEOUT) -> None:
        self._channel, self._server, self._longest = (
            channel,
            MailServer.of(channel.address),
            longest,
        )

    async def send(self, message: OutgoingMessage) -> Delivery:
        """Send a message from a daemon thread, which does not delay the end of the process."""
        return await self._in_thread(
            _SmtpSession(self._channel, self._server, message, self._longest)
        )

    async def reach(self) -> Delivery:
        """Connect and log in without sending a message."""
        return await self._in_thread(_SmtpSession(self._channel, self._server, None, self._longest))

    async def _in_thread(self, session: "_SmtpSession") -> Delivery:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Delivery] = loop.create_future()

        def work() -> None:
            delivery = session.deliver()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_resolve, done, delivery)

        threading.Thread(target=work, name="onbeat-smtp", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            return session.cancel()


def _resolve(done: "asyncio.Future[Delivery]", delivery: Delivery) -> None:
    if not done.done():
        done.set_result(delivery)


class _SmtpSession:
    """The delivery of one message; without a message, only connecting and logging in."""

    def __init__(
        self, channel: Channel, server: MailServer, message: OutgoingMessage | None, longest: float
    ) -> None:
        self._channel, self._server = channel, server
        self._message, self._longest = message, longest
        self._lock = threading.Lock()
        self._is_canceled = False
        self._is_sent = False  # the server may have the whole message
        self._smtp: smtplib.SMTP | None = None

    def deliver(self) -> Delivery:
        """Send the message, and return whether the server has it."""
        try:
            with _quitting(self._connect()) as smtp:
                return Delivered() if self._message is None else self._transmit(smtp, self._message)
        except smtplib.SMTPResponseException as refused:
            return _refused(refused.smtp_code, refused.smtp_error)
        except _Canceled:
            return DeliveryRefused("canceled before it was sent")
        except ssl.SSLError as error:
            problem = getattr(error, "verify_message", "") or error.reason or "TLS failed"
            return self._failed(f"TLS: {problem}")
        except Exception as error:  # noqa: BLE001 - the caller waits for a result
            problem = error.strerror if isinstance(error, OSError) else None
            return self._failed(first_line(problem or type(error).__name__))

    def cancel(self) -> Delivery:
        """Send nothing more, and return whether all was sent already."""
        with self._lock:
            self._is_canceled = True
            smtp = self._smtp
            is_sent = self._is_sent
        if smtp is not None and smtp.sock is not None:
            with suppress(OSError):
                smtp.sock.shutdown(2)  # the thread stops waiting for an answer
        if is_sent:
            return DeliveryUnknown("canceled before an answer arrived")
        return DeliveryRefused("canceled before it was sent")

    def _connect(self) -> smtplib.SMTP:
        server, tls = self._server, ssl.create_default_context()
        if server.is_here:  # a relay on this machine usually has a self-signed certificate
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        name = "localhost" if server.is_here else None
        if server.is_encrypted:
            smtp: smtplib.SMTP = smtplib.SMTP_SSL(
                server.host, server.port, name, timeout=self._longest, context=tls
            )
        else:
            smtp = smtplib.SMTP(server.host, server.port, name, timeout=self._longest)
        with self._lock:
            self._smtp = smtp
            if self._is_canceled:
                smtp.close()
                raise _Canceled
        try:
            smtp.ehlo_or_helo_if_needed()
            is_private = server.is_encrypted
            if not is_private and smtp.has_extn("starttls"):
                smtp.starttls(context=tls)
                smtp.ehlo()
                is_private = True
            if server.user:
                self._log_in(smtp, is_private=is_private or server.is_here)
        except BaseException:
            smtp.close()
            raise
        return smtp

    def _log_in(self, smtp: smtplib.SMTP, *, is_private: bool) -> None:
        if not is_private:
            problem = "the server offers no encryption: the password would be sent unencrypted"
            raise smtplib.SMTPResponseException(530, problem)
        smtp.login(self._server.user, self._channel.password)

    def _transmit(self, smtp: smtplib.SMTP, message: OutgoingMessage) -> Delivery:
        _expect(smtp.mail(self._channel.sender))
        refused: list[tuple[str, int, str]] = []
        for address in self._channel.to:
            code, answer = smtp.rcpt(address)
            if not 200 <= code < 300:
                refused.append((address, code, _text(answer)))
        temporary = [each for each in refused if each[1] < 500]
        if len(refused) == len(self._channel.to) or (temporary and not message.is_last_try):
            address, code, problem = (temporary or refused)[0]  # sent to all at the next attempt
            smtp.rset()
            return _refused(code, f"{address}: {problem}")
        code, answer = smtp.docmd("DATA")
        if code != 354:
            return _refused(code, answer)
        body = re.sub(rb"(?m)^\.", b"..", self._mail(message).as_bytes(policy=SMTP))
        with self._lock:
            if self._is_canceled:
                raise _Canceled
            self._is_sent = True
        smtp.send(body + b".\r\n")
        code, answer = smtp.getreply()
        if not 200 <= code < 300:
            return _refused(code, answer)
        return Delivered(", ".join(f"{address}: {code} {why}" for address, code, why in refused))

    def _mail(self, message: OutgoingMessage) -> EmailMessage:
        """Return the message as mail. `EmailMessage` refuses line breaks in headers."""
        channel, mail = self._channel, EmailMessage(policy=SMTP)
        mail["From"], mail["To"] = channel.sender, ", ".join(channel.to)
        mail["Subject"] = first_line(subject(message.bundle))
        mail["Date"] = format_datetime(datetime.fromtimestamp(message.created_at / 1000, UTC))
        mail["Message-ID"] = f"<{message.key}@{channel.sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(text(message.bundle), cte="quoted-printable")
        return mail

    def _failed(self, problem: str) -> Delivery:
        with self._lock:
            is_sent = self._is_sent
        where = f"{self._server.host}:{self._server.port}"
        return (
            DeliveryUnknown(f"{where}: {problem}")
            if is_sent
            else DeliveryRefused(f"{where}: {problem}")
        )


@contextmanager
def _quitting(smtp: smtplib.SMTP) -> Iterator[smtplib.SMTP]:
    """Send QUIT at the end; an error then does not change the result."""
    try:
        yield smtp
    finally:
        with suppress(smtplib.SMTPException, OSError):
            smtp.docmd("QUIT")
        smtp.close()


class _Canceled(Exception):  # noqa: N818 - private to this module
    """Nothing more may be sent."""


def _expect(answer: tuple[int, bytes]) -> None:
    if not 200 <= answer[0] < 300:
        raise smtplib.SMTPResponseException(*answer)


def _refused(code: int, answer: bytes | str) -> DeliveryRefused:
    """Return the refusal of a server: codes from 500 on are permanent."""
    return DeliveryRefused(f"SMTP {code}: {_text(answer)}", again=code < 500)


def _text(answer: bytes | str) -> str:
    return first_line(answer if isinstance(answer, str) else answer.decode(errors="replace"))

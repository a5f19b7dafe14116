"""Mail: plain text, over SMTP.

The connection is encrypted where the server offers it (STARTTLS), or from the start (smtps). A
password is never sent in the clear to another machine. The Message-ID is the same at every attempt.
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

LONGEST = 10.0  # seconds that each step may take


class SmtpNotifier:
    """Sends messages to some addresses, by one server."""

    def __init__(self, channel: Channel, *, longest: float = LONGEST) -> None:
        self._channel, self._server, self._longest = (
            channel,
            MailServer.of(channel.address),
            longest,
        )

    async def send(self, letter: OutgoingMessage) -> Delivery:
        """Send it from a thread of its own, which nothing has to wait for."""
        return await self._in_thread(_Post(self._channel, self._server, letter, self._longest))

    async def reach(self) -> Delivery:
        """Connect and log in as for a message, send none, and return what came of that."""
        return await self._in_thread(_Post(self._channel, self._server, None, self._longest))

    async def _in_thread(self, post: "_Post") -> Delivery:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Delivery] = loop.create_future()

        def work() -> None:
            delivery = post.deliver()
            with suppress(RuntimeError):  # nobody is there any more
                loop.call_soon_threadsafe(_resolve, done, delivery)

        threading.Thread(target=work, name="onbeat-smtp", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            return post.give_up()


def _resolve(done: "asyncio.Future[Delivery]", delivery: Delivery) -> None:
    if not done.done():
        done.set_result(delivery)


class _Post:
    """One message on its way to a server; without a letter, the way alone."""

    def __init__(
        self, channel: Channel, server: MailServer, letter: OutgoingMessage | None, longest: float
    ) -> None:
        self._channel, self._server = channel, server
        self._letter, self._longest = letter, longest
        self._lock = threading.Lock()
        self._is_given_up = False
        self._is_sent = False  # the server may have all of it
        self._smtp: smtplib.SMTP | None = None

    def deliver(self) -> Delivery:
        """Hand it over, and return what is known."""
        try:
            with _leaving(self._connect()) as smtp:
                return Delivered() if self._letter is None else self._hand_over(smtp, self._letter)
        except smtplib.SMTPResponseException as refused:
            return _refused(refused.smtp_code, refused.smtp_error)
        except _GivenUp:
            return DeliveryRefused("it was given up before it was sent")
        except ssl.SSLError as broken:
            told = getattr(broken, "verify_message", "") or broken.reason or "TLS failed"
            return self._lost(f"TLS: {told}")
        except Exception as broken:  # noqa: BLE001 - whoever waits for the thread is to hear of it
            said = broken.strerror if isinstance(broken, OSError) else None
            return self._lost(first_line(said or type(broken).__name__))

    def give_up(self) -> Delivery:
        """Send nothing more, and return whether all was sent already."""
        with self._lock:
            self._is_given_up = True
            smtp = self._smtp
            is_sent = self._is_sent
        if smtp is not None and smtp.sock is not None:
            with suppress(OSError):
                smtp.sock.shutdown(2)  # whoever waits for an answer need not
        if is_sent:
            return DeliveryUnknown("it was given up before there was an answer")
        return DeliveryRefused("it was given up before it was sent")

    def _connect(self) -> smtplib.SMTP:
        server, tls = self._server, ssl.create_default_context()
        if server.is_here:  # a relay of this machine mostly has a certificate of its own making
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
            if self._is_given_up:
                smtp.close()
                raise _GivenUp
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
            problem = "the server offers no encryption, and a password would be sent in the clear"
            raise smtplib.SMTPResponseException(530, problem)
        smtp.login(self._server.user, self._channel.password)

    def _hand_over(self, smtp: smtplib.SMTP, letter: OutgoingMessage) -> Delivery:
        _expect(smtp.mail(self._channel.sender))
        refused: list[tuple[str, int, str]] = []
        for address in self._channel.to:
            code, said = smtp.rcpt(address)
            if not 200 <= code < 300:
                refused.append((address, code, _text(said)))
        later = [each for each in refused if each[1] < 500]
        if len(refused) == len(self._channel.to) or (later and not letter.is_last_try):
            address, code, problem = (later or refused)[0]  # nobody has it: all get it later
            smtp.rset()
            return _refused(code, f"{address}: {problem}")
        code, said = smtp.docmd("DATA")
        if code != 354:
            return _refused(code, said)
        body = re.sub(rb"(?m)^\.", b"..", self._mail(letter).as_bytes(policy=SMTP))
        with self._lock:
            if self._is_given_up:
                raise _GivenUp
            self._is_sent = True
        smtp.send(body + b".\r\n")
        code, said = smtp.getreply()
        if not 200 <= code < 300:
            return _refused(code, said)
        return Delivered(", ".join(f"{address}: {code} {said}" for address, code, said in refused))

    def _mail(self, letter: OutgoingMessage) -> EmailMessage:
        """Return it as mail. A header that could hold another is refused by `EmailMessage`."""
        channel, mail = self._channel, EmailMessage(policy=SMTP)
        mail["From"], mail["To"] = channel.sender, ", ".join(channel.to)
        mail["Subject"] = first_line(subject(letter.bundle))
        mail["Date"] = format_datetime(datetime.fromtimestamp(letter.created_at / 1000, UTC))
        mail["Message-ID"] = f"<{letter.key}@{channel.sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(text(letter.bundle), cte="quoted-printable")
        return mail

    def _lost(self, problem: str) -> Delivery:
        with self._lock:
            is_sent = self._is_sent
        where = f"{self._server.host}:{self._server.port}"
        return (
            DeliveryUnknown(f"{where}: {problem}")
            if is_sent
            else DeliveryRefused(f"{where}: {problem}")
        )


@contextmanager
def _leaving(smtp: smtplib.SMTP) -> Iterator[smtplib.SMTP]:
    """Leave a server politely at the end: whatever happens then changes nothing any more."""
    try:
        yield smtp
    finally:
        with suppress(smtplib.SMTPException, OSError):
            smtp.docmd("QUIT")
        smtp.close()


class _GivenUp(Exception):  # noqa: N818 - nobody but this module sees it
    """There is to be no more sending."""


def _expect(answer: tuple[int, bytes]) -> None:
    if not 200 <= answer[0] < 300:
        raise smtplib.SMTPResponseException(*answer)


def _refused(code: int, said: bytes | str) -> DeliveryRefused:
    """Return what a server's refusal means: from 500 on it is for good."""
    return DeliveryRefused(f"SMTP {code}: {_text(said)}", again=code < 500)


def _text(said: bytes | str) -> str:
    return first_line(said if isinstance(said, str) else said.decode(errors="replace"))

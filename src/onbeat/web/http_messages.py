"""Strict framing of HTTP/1.1 requests, against request smuggling.

A proxy and a server that disagree about the length of a request let a client hide a second request
in the first. h11 follows RFC 9112 but is lenient where the RFC allows it. This module is not: a
request that another program could frame differently is answered with 400, and its connection is
closed, so that there is never a second response.
"""

import re

import h11

Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class StrictConnection(h11.Connection):
    """A server connection that refuses requests with ambiguous length or line endings."""

    def __init__(self, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size)
        self._is_chunked = False

    def next_event(self) -> Event:
        """Return the next event, or raise RemoteProtocolError."""
        reads_head = self.their_state is h11.IDLE
        reads_chunks = self._is_chunked and self.their_state is h11.SEND_BODY
        before = self.trailing_data[0] if reads_head or reads_chunks else b""
        event = super().next_event()
        if reads_head and isinstance(event, h11.Request):
            check_head(self._taken(before))
            self._is_chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
        elif reads_chunks and isinstance(event, h11.EndOfMessage):
            check_lines(self._taken(before))
        return event

    def _taken(self, before: bytes) -> bytes:
        """Return what was consumed of the received bytes."""
        return before[: len(before) - len(self.trailing_data[0])]


def check_head(head: bytes) -> None:
    """Refuse a request line and headers that are ambiguous."""
    check_lines(head)
    line, *headers = head.split(b"\r\n")
    names: list[bytes] = []
    for each in headers:
        if each.startswith((b" ", b"\t")):
            raise h11.RemoteProtocolError("a header is folded")
        names.append(each.partition(b":")[0].lower())
    lengths, encodings = names.count(b"content-length"), names.count(b"transfer-encoding")
    if lengths + encodings > 1:
        raise h11.RemoteProtocolError("the length of the body is specified twice")
    if encodings and not line.endswith(b"HTTP/1.1"):
        raise h11.RemoteProtocolError("Transfer-Encoding requires HTTP/1.1")
    if lengths and not LENGTH.search(head):
        raise h11.RemoteProtocolError("Content-Length is not one number")


def check_lines(text: bytes) -> None:
    """Refuse lines that do not end with CR LF."""
    if not text.count(b"\r\n") == text.count(b"\n") == text.count(b"\r"):
        raise h11.RemoteProtocolError("a line ends with a bare LF or CR")


LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*[0-9]{1,18}[ \t]*\r\n")

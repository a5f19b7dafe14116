"""Limits of requests: sizes, content types, and JSON that every parser reads alike."""

import asyncio
import json
import re
from itertools import accumulate
from urllib.parse import unquote_to_bytes

import msgspec

from onbeat.errors import quote_value
from onbeat.web.security.asgi import Receive, Scope, values_of
from onbeat.web.security.responses import RequestRefused

LONGEST_LINE = 8 * 1024  # bytes of a path with its query
LONGEST_HEADERS, MOST_HEADERS = 32 * 1024, 100
DEEPEST = 32
LEAST, MOST = -(2**63), 2**63 - 1
MOST_VALUES = 1_000_000  # in one body: decoding them blocks the event loop
LARGE = 1024 * 1024  # bytes of a body from which on it is checked in a thread


class Disconnected(Exception):  # noqa: N818 - it names what is wrong
    """The client has disconnected before its request was complete."""


def check_line_and_headers(scope: Scope) -> None:
    """Refuse a request line or headers that are too long, or text that is ambiguous."""
    path, query = scope.get("raw_path") or scope["path"].encode(), scope["query_string"]
    if len(path) + len(query) > LONGEST_LINE:
        raise RequestRefused(414, "the URL is too long", hint=f"{LONGEST_LINE} bytes at most")
    headers = scope["headers"]
    if len(headers) > MOST_HEADERS or sum(len(n) + len(v) for n, v in headers) > LONGEST_HEADERS:
        hint = f"{MOST_HEADERS} headers and {LONGEST_HEADERS} bytes at most"
        raise RequestRefused(431, "the headers are too many or too long", hint=hint)
    for part, field in ((path, "path"), (query, "query")):
        try:
            text = unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            raise RequestRefused(400, "it is not in UTF-8", field=field) from None
        if UNPRINTABLE.search(text):
            raise RequestRefused(400, "it contains a control character", field=field)


def announces_body(scope: Scope) -> bool:
    """Return whether the headers announce a body."""
    lengths = values_of(scope, b"content-length")
    return any(each.strip("0") for each in lengths) or bool(values_of(scope, b"transfer-encoding"))


def check_declared(scope: Scope, *, cap: int) -> bool:
    """Refuse headers of a body that is too large or not JSON; return whether there is a body."""
    lengths = set(values_of(scope, b"content-length"))
    if len(lengths) > 1 or not all(re.fullmatch(r"[0-9]{1,18}", each) for each in lengths):
        raise RequestRefused(400, "it is not a length", field="Content-Length")
    length = int(next(iter(lengths), 0))
    if length > cap:
        raise RequestRefused(413, "the body is too large", hint=f"{cap} bytes at most")
    if not length and not values_of(scope, b"transfer-encoding"):
        return False
    if any(each.lower() != "identity" for each in values_of(scope, b"content-encoding")):
        hint = "send it without Content-Encoding"
        raise RequestRefused(415, "the body is compressed", field="Content-Encoding", hint=hint)
    types = values_of(scope, b"content-type")
    accepted = ACCEPTED_TYPES.get(scope["method"], ACCEPTED_TYPES["POST"])
    kind = CONTENT_TYPE.fullmatch(types[0]) if len(types) == 1 else None
    if kind is None or kind[1].lower() not in accepted:
        problem = f"{quote_value(', '.join(types))} is not supported"
        raise RequestRefused(415, problem, field="Content-Type", hint=" or ".join(accepted))
    return True


async def read_body(receive: Receive, *, cap: int, seconds: float) -> bytes:
    """Return the whole body, or refuse it when it is too large or takes too long."""
    parts, size, has_more = [], 0, True
    try:
        async with asyncio.timeout(seconds):
            while has_more:
                message = await receive()
                if message["type"] != "http.request":
                    raise Disconnected
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > cap:
                    raise RequestRefused(413, "the body is too large", hint=f"{cap} bytes at most")
                has_more = message.get("more_body", False)
    except TimeoutError:
        hint = f"{seconds:g} seconds at most"
        raise RequestRefused(408, "the body arrived too slowly", hint=hint, headers=CLOSE) from None
    return b"".join(parts)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns a body that was read, and then what follows it."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> dict[str, object]:
        return messages.pop() if messages else dict(await receive())

    return replay


async def check_body(body: bytes) -> None:
    """Call `check_json`, for a large body in a thread."""
    if len(body) > LARGE:
        await asyncio.to_thread(check_json, body)
    else:
        check_json(body)


def check_json(body: bytes) -> None:
    """Refuse a body that is not JSON, or is JSON that parsers read differently.

    Deep nesting, a repeated name, an integer of more than 64 bits, a NUL, an unpaired surrogate:
    these are legal or nearly so, and programs are known to disagree about each of them.
    """
    if not body:
        return
    if sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        hint = f"{MOST_VALUES} values at most"
        raise RequestRefused(413, "it has too many values", field="body", hint=hint)
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise RequestRefused(400, TOO_DEEP, field="body", hint=DEPTH_HINT) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as broken:
        raise RequestRefused(400, f"this is not JSON: {broken}", field="body") from None
    # From here on every string is closed, so that the time taken is linear in the size.
    plain = STRING.sub(b"", body)
    steps = memoryview(plain.translate(STEPS, delete=NO_BRACKETS)).cast("b")
    if max(accumulate(steps), default=0) > DEEPEST:
        raise RequestRefused(400, TOO_DEEP, field="body", hint=DEPTH_HINT)
    for match in LONG_NUMBER.finditer(plain):
        if not LEAST <= int(match[0]) <= MOST:
            problem = f"{quote_value(int(match[0]))} has more than 64 bits"
            raise RequestRefused(400, problem, field="body", hint="a smaller number, or a string")
    if NUL in body and NUL in body.replace(rb"\\", b""):  # escaped backslashes begin no escape
        raise RequestRefused(400, "a string contains NUL", field="body", hint="leave it out")
    names = plain.count(b":")
    if names and STRING.sub(b"", msgspec.json.encode(value)).count(b":") != names:
        raise RequestRefused(400, _repeated_name(body), field="body", hint="each name once")


def _repeated_name(body: bytes) -> str:
    """Return the problem of a body in which an object has a name twice."""
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, object]]) -> None:
        names = [name for name, _ in pairs]
        if len(names) < 99:
            repeated.extend({name for name in names if names.count(name) > 1})

    json.loads(body, object_pairs_hook=collect)
    return f"the name {quote_value(repeated[0])} is repeated" if repeated else "a name is repeated"


TOO_DEEP, DEPTH_HINT = "it is nested too deeply", f"{DEEPEST} levels at most"
ACCEPTED_TYPES = {
    "POST": ("application/json",),
    "PATCH": ("application/json", "application/merge-patch+json"),
}
CLOSE = ((b"connection", b"close"),)
CONTENT_TYPE = re.compile(r'([\w.+/-]+)\s*(?:;\s*charset="?(?i:utf-8)"?\s*)?')
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")  # +1 and -1 level, as signed bytes
NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
LONG_NUMBER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}+(?![.eE])")
NUL = rb"\u0000"

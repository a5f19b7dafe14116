"""What comes in: sizes, types, and JSON that means one thing to everybody who reads it."""

import asyncio
import json
import re
from itertools import accumulate
from urllib.parse import unquote_to_bytes

import msgspec

from onbeat.errors import shown
from onbeat.web.security.asgi import Receive, Scope, values_of
from onbeat.web.security.responses import RequestRefused

LONGEST_LINE = 8 * 1024  # bytes of a path with its query
LONGEST_HEADERS, MOST_HEADERS = 32 * 1024, 100
DEEPEST = 32
LEAST, MOST = -(2**63), 2**63 - 1
MOST_VALUES = 1_000_000  # in one body: reading them is one breath, in which nothing else is done
LARGE = 1024 * 1024  # bytes of a body that is checked beside what else is done


class Disconnected(Exception):  # noqa: N818 - it names what is wrong
    """Whoever asked is gone: nobody is left to answer."""


def check_line_and_headers(scope: Scope) -> None:
    """Refuse what is too long, or cannot be read in one way only."""
    path, query = scope.get("raw_path") or scope["path"].encode(), scope["query_string"]
    if len(path) + len(query) > LONGEST_LINE:
        raise RequestRefused(414, "the URL is too long", hint=f"{LONGEST_LINE} bytes at most")
    headers = scope["headers"]
    if len(headers) > MOST_HEADERS or sum(len(n) + len(v) for n, v in headers) > LONGEST_HEADERS:
        hint = f"{MOST_HEADERS} headers and {LONGEST_HEADERS} bytes at most"
        raise RequestRefused(431, "the headers are too many or too long", hint=hint)
    for part, told in ((path, "path"), (query, "query")):
        try:
            text = unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            raise RequestRefused(400, "it is not in UTF-8", field=told) from None
        if UNPRINTABLE.search(text):
            raise RequestRefused(400, "there is a control character in it", field=told)


def announces_body(scope: Scope) -> bool:
    """Return whether the headers say that a body follows."""
    lengths = values_of(scope, b"content-length")
    return any(each.strip("0") for each in lengths) or bool(values_of(scope, b"transfer-encoding"))


def check_declared(scope: Scope, *, cap: int) -> bool:
    """Refuse a body that is too large or of another kind than JSON; return whether there is one."""
    lengths = set(values_of(scope, b"content-length"))
    if len(lengths) > 1 or not all(re.fullmatch(r"[0-9]{1,18}", each) for each in lengths):
        raise RequestRefused(400, "it is no length", field="Content-Length")
    length = int(next(iter(lengths), 0))
    if length > cap:
        raise RequestRefused(413, "the body is too large", hint=f"{cap} bytes at most")
    if not length and not values_of(scope, b"transfer-encoding"):
        return False
    if any(each.lower() != "identity" for each in values_of(scope, b"content-encoding")):
        hint = "as it is, without Content-Encoding"
        raise RequestRefused(415, "the body is packed", field="Content-Encoding", hint=hint)
    kinds, known = values_of(scope, b"content-type"), KINDS.get(scope["method"], KINDS["POST"])
    kind = CONTENT_TYPE.fullmatch(kinds[0]) if len(kinds) == 1 else None
    if kind is None or kind[1].lower() not in known:
        told = f"{shown(', '.join(kinds))} is not what is read here"
        raise RequestRefused(415, told, field="Content-Type", hint=" or ".join(known))
    return True


async def read_body(receive: Receive, *, cap: int, seconds: float) -> bytes:
    """Return the whole body, or refuse it when it is too large or takes too long."""
    parts, size, detached = [], 0, True
    try:
        async with asyncio.timeout(seconds):
            while detached:
                message = await receive()
                if message["type"] != "http.request":
                    raise Disconnected
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > cap:
                    raise RequestRefused(413, "the body is too large", hint=f"{cap} bytes at most")
                detached = message.get("more_body", False)
    except TimeoutError:
        hint = f"{seconds:g} seconds at most"
        raise RequestRefused(408, "the body came too slowly", hint=hint, headers=CLOSE) from None
    return b"".join(parts)


def given_again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body that was read, and then what comes after it."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> dict[str, object]:
        return messages.pop() if messages else dict(await receive())

    return again


async def check_body(body: bytes) -> None:
    """Do what `check_json` does; others have their turn while a large body is looked at."""
    if len(body) > LARGE:
        await asyncio.to_thread(check_json, body)
    else:
        check_json(body)


def check_json(body: bytes) -> None:
    """Refuse what is no JSON, or JSON that some would read in another way than others.

    Too deep, a key twice, an integer of more than 64 bits, a NUL, half a character: these are
    legal or nearly so, and each has been taken for something else by a program somewhere.
    """
    if not body:
        return
    if sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        told, hint = "there is too much in the body", f"{MOST_VALUES} values at most"
        raise RequestRefused(413, told, field="body", hint=hint)
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise RequestRefused(
            400, "it is too deep", field="body", hint=f"{DEEPEST} at most"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as broken:
        raise RequestRefused(400, f"this is not JSON: {broken}", field="body") from None
    # From here on every string is closed, so that none of this takes longer than the body is.
    plain = STRING.sub(b"", body)
    steps = memoryview(plain.translate(STEPS, delete=NO_BRACKETS)).cast("b")
    if max(accumulate(steps), default=0) > DEEPEST:
        raise RequestRefused(400, "it is too deep", field="body", hint=f"{DEEPEST} at most")
    for match in LONG_NUMBER.finditer(plain):
        if not LEAST <= int(match[0]) <= MOST:
            told = f"{shown(int(match[0]))} has more than 64 bits"
            raise RequestRefused(400, told, field="body", hint="a smaller number, or a text")
    if NUL in body and NUL in body.replace(rb"\\", b""):  # which begins no escape any more
        raise RequestRefused(400, "there is a NUL in a text", field="body", hint="leave it out")
    names = plain.count(b":")
    if names and STRING.sub(b"", msgspec.json.encode(value)).count(b":") != names:
        raise RequestRefused(400, _twice(body), field="body", hint="each name once")


def _twice(body: bytes) -> str:
    """Return what to say of a body in which a name stands twice."""
    found: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        names = [name for name, _ in pairs]
        found.extend({name for name in names if names.count(name) > 1} if len(names) < 99 else ())

    json.loads(body, object_pairs_hook=look)
    return f"{shown(found[0])} is there twice" if found else "a name is there twice"


KINDS = {
    "POST": ("application/json",),
    "PATCH": ("application/json", "application/merge-patch+json"),
}
CLOSE = ((b"connection", b"close"),)
CONTENT_TYPE = re.compile(r'([\w.+/-]+)\s*(?:;\s*charset="?(?i:utf-8)"?\s*)?')
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")  # in and out again, as signed bytes
NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
LONG_NUMBER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}+(?![.eE])")
NUL = rb"\u0000"

"""What a request is: read from a target, or refused. Nothing here sends anything."""

import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import quote, urlencode, urljoin

from onbeat.core.target import Target
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, meant, shown
from onbeat.files.secrets import check_reference

Address = IPv4Address | IPv6Address

LONGEST_TEXT = 8000  # of a URL and of a header: most servers take no more


def is_public(address: Address) -> bool:
    """Return whether an address is one of the whole internet, also if it is wrapped in another."""
    if isinstance(address, IPv6Address):
        wrapped = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            wrapped = IPv4Address(int(address) & 0xFFFF_FFFF)
        if wrapped is not None:
            return is_public(wrapped)
        if address not in UNICAST:  # all that is public in IPv6 so far
            return False
    return address.is_global and not (address.is_multicast or any(address in n for n in INSIDE))


class AllowedHosts:
    """Which addresses may be spoken to: all of them, or those of the whole internet."""

    def __init__(self, *, public_only: bool) -> None:
        self._public_only = public_only

    def check(self, place: "RequestTarget") -> None:
        """Refuse an address that may not be used: a connection to one asks no resolver."""
        if place.address is not None:
            self.usable(place.host, [place.address])

    def usable(self, host: str, found: list[Address]) -> list[Address]:
        """Return those of a host's addresses that may be used, or refuse the host."""
        usable = [each for each in found if is_public(each)] if self._public_only else found
        if not usable:
            problem = f"{shown(host)} has no public address"
            raise InvalidSchedule("http", problem, hint="a host that the whole internet can reach")
        return usable


class RequestTarget(NamedTuple):
    """Where a request goes, in the one spelling that is checked and that is connected to."""

    origin: str  # scheme, host and port
    host: str
    url: str
    address: Address | None  # if the host is one


def read_target(target: Target) -> tuple[str, RequestTarget, list[tuple[str, str]], bool | None]:
    """Return the method, place and headers of a target, and whether it reports outcomes.

    That is None if nothing was declared: it does if it answers 202.
    """
    given = target.fields
    check_names(given, {"http", "method", "headers", "inputs", "feedback", "public_only"})
    method, feedback = given.get("method", "POST"), given.get("feedback")
    if not isinstance(method, str) or method not in METHODS:
        problem = f"no method is called {shown(method)}"
        raise InvalidSchedule("method", problem, hint=meant(method, METHODS))
    if not isinstance(feedback, bool | None):
        raise InvalidSchedule("feedback", f"{shown(feedback)} is no answer", hint="true or false")
    public_only = given.get("public_only", False)
    if not isinstance(public_only, bool):
        problem = f"{shown(public_only)} is no answer"
        raise InvalidSchedule("public_only", problem, hint="true or false")
    for field in ("headers", "inputs"):
        if not isinstance(given.get(field), Mapping | None):
            problem = f"{shown(given[field])} is no set of names"
            raise InvalidSchedule(field, problem, hint="{name: value}")
    named: Mapping[object, object] = given.get("headers") or {}  # type: ignore[assignment]
    headers = [_header(text_of("headers", n), text_of(f"headers.{n}", v)) for n, v in named.items()]
    return method, place_of(text_of("http", given.get("http"))), headers, feedback


def _example(field: str) -> str:
    """Return how a field that is a text is written."""
    if field == "http":
        return 'http: "https://example.com/hook", with method, headers and inputs beside it'
    return 'headers: {Accept: "text/plain"}'


def text_of(field: str, value: object) -> str:
    """Return a text that can be sent, or refuse it."""
    if not isinstance(value, str):
        hint = "put it in quotes" if isinstance(value, (int, float)) else _example(field)
        raise InvalidSchedule(field, f"{shown(value)} is not a text", hint=hint)
    if len(value) > LONGEST_TEXT:
        raise InvalidSchedule(field, "it is too long", hint=f"{LONGEST_TEXT} characters at most")
    if not VISIBLE.fullmatch(value):  # it is not told, as it may be a secret
        raise InvalidSchedule(field, "it holds what cannot be sent", hint="one line of text")
    return value


@lru_cache(maxsize=4096)
def place_of(text: str) -> RequestTarget:
    """Return the place that a URL names, or refuse it. Between {{ and }} anything can stand."""
    match = URL.fullmatch(text)
    if match is None or "#" in TEMPLATE.sub("", text) or "${env:" in text:
        problem = f"{shown(text.rpartition('@')[2])} is no URL that can be asked"
        hint = "http(s)://host:port/path?query: a literal host, no user, no fragment, no ${env:...}"
        raise InvalidSchedule("http", problem, hint=hint)
    scheme, host, rest = match[1].lower(), match[2].lower(), match[4]
    port, address = int(match[3] or PORTS[scheme]), None
    with suppress(OSError, UnicodeError):  # it is a name, and no odd spelling of an address
        found = socket.getaddrinfo(host.strip("[]"), None, flags=socket.AI_NUMERICHOST)
        address = ip_address(found[0][4][0])
        host = f"[{address}]" if address.version == 6 else str(address)
    # What looks like an address to aiohttp is not given to our resolver, so it has to be one.
    if address is None and (":" in host or host.replace(".", "").isdigit()):
        raise InvalidSchedule("http", f"{shown(host)} is no address", hint="such as 192.0.2.1")
    if not 1 <= port <= 65_535:
        raise InvalidSchedule("http", f"{port} is no port", hint="1 to 65535")
    origin = f"{scheme}://{host}" if port == PORTS[scheme] else f"{scheme}://{host}:{port}"
    return RequestTarget(
        origin, host, f"{origin}{'' if rest.startswith('/') else '/'}{rest}", address
    )


def redirected(place: RequestTarget, location: str) -> RequestTarget:
    """Return the place that an answer sends us to, or refuse it."""
    found, told = None, f"{shown(place.host)} redirects to what"
    with suppress(InvalidSchedule, ValueError):  # it may quote a secret from the answer
        found = place_of(text_of("http", urljoin(place.url, location.partition("#")[0])))
    if found is None:
        raise InvalidSchedule("http", f"{told} is no URL", hint="http(s)://host:port/path")
    if place.origin.startswith("https:") and not found.origin.startswith("https:"):
        raise InvalidSchedule("http", f"{told} is not encrypted", hint="https")
    return found


def asking(place: RequestTarget, inputs: Mapping[str, object]) -> RequestTarget:
    """Return the place with inputs in its query, or refuse those that cannot stand there."""
    for name, value in inputs.items():
        if not isinstance(value, (str, int, float)):
            problem = f"{shown(value)} cannot stand in a URL"
            raise InvalidSchedule(f"inputs.{name}", problem, hint="a plain value, or method: POST")
    texts = {n: str(v).lower() if isinstance(v, bool) else v for n, v in inputs.items()}
    query = f"{'&' if '?' in place.url else '?'}{urlencode(texts, quote_via=quote)}"
    return place._replace(url=place.url + query) if inputs else place


@lru_cache(maxsize=4096)
def _header(name: str, value: str) -> tuple[str, str]:
    """Return a header, or refuse it; no refusal tells the value, as it may be a secret."""
    lower, path = name.lower(), f"headers.{name}"
    if not TOKEN.fullmatch(name):
        raise InvalidSchedule("headers", f"{shown(name)} is no name", hint="such as X-Team: text")
    if lower in OWN_HEADERS or lower.startswith("onbeat-"):
        raise InvalidSchedule(path, "Onbeat sets this header itself", hint="leave it out")
    check_reference(path, value)
    return name, value


WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
METHODS = WITH_BODY | {"GET", "HEAD", "DELETE"}
PORTS = {"http": 80, "https": 443}
OWN_HEADERS = frozenset({
    "host", "content-length", "transfer-encoding", "connection", "idempotency-key",
    "keep-alive", "upgrade", "expect", "trailer",
})  # fmt: skip
# A host is plain ASCII, so that nobody can read another one in it than we do.
URL = re.compile(r"(?ai)(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?((?:[/?].*)?)")
TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VISIBLE = re.compile(r"[\t -~\xa0-\ud7ff\ue000-\U0010ffff]*")
UNICAST, NAT64 = ip_network("2000::/3"), ip_network("64:ff9b::/96")
# What `ipaddress` takes, or once took, for public: metadata of clouds, old relays, examples.
INSIDE = [*map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16", "3fff::/20"))]

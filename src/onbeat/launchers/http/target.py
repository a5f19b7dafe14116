"""Read and check the request of a target, without sending it."""

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
from onbeat.errors import InvalidSchedule, did_you_mean, quote_value
from onbeat.host.secrets import check_reference

Address = IPv4Address | IPv6Address

LONGEST_TEXT = 8000  # characters of a URL or a header: most servers accept no more


def is_public(address: Address) -> bool:
    """Return whether an address is on the public internet, also if it is embedded in IPv6."""
    if isinstance(address, IPv6Address):
        wrapped = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            wrapped = IPv4Address(int(address) & 0xFFFF_FFFF)
        if wrapped is not None:
            return is_public(wrapped)
        if address not in UNICAST:  # all public IPv6 addresses that are allocated so far
            return False
    return address.is_global and not (address.is_multicast or any(address in n for n in INSIDE))


class AllowedHosts:
    """Which addresses may be connected to: all, or only public ones."""

    def __init__(self, *, public_only: bool) -> None:
        self._public_only = public_only

    def check(self, target: "RequestTarget") -> None:
        """Refuse a literal address that may not be used: it is connected to without a resolver."""
        if target.address is not None:
            self.usable(target.host, [target.address])

    def usable(self, host: str, addresses: list[Address]) -> list[Address]:
        """Return the addresses of a host that may be used, or refuse the host."""
        usable = [each for each in addresses if is_public(each)] if self._public_only else addresses
        if not usable:
            problem = f"{quote_value(host)} has no public address"
            raise InvalidSchedule("http", problem, hint="a host on the public internet")
        return usable


class RequestTarget(NamedTuple):
    """Where a request goes, in the canonical form that is both checked and connected to."""

    origin: str  # scheme, host and port
    host: str
    url: str
    address: Address | None  # if the host is one


def read_target(target: Target) -> tuple[str, RequestTarget, list[tuple[str, str]], bool | None]:
    """Return the method, URL and headers of a target, and whether it reports outcomes.

    None if that is not declared: then it reports if it answers 202.
    """
    fields = target.fields
    check_names(fields, {"http", "method", "headers", "inputs", "feedback", "public_only"})
    method, feedback = fields.get("method", "POST"), fields.get("feedback")
    if not isinstance(method, str) or method not in METHODS:
        problem = f"no method is called {quote_value(method)}"
        raise InvalidSchedule("method", problem, hint=did_you_mean(method, METHODS))
    if not isinstance(feedback, bool | None):
        problem = f"{quote_value(feedback)} is not true or false"
        raise InvalidSchedule("feedback", problem, hint="true or false")
    public_only = fields.get("public_only", False)
    if not isinstance(public_only, bool):
        problem = f"{quote_value(public_only)} is not true or false"
        raise InvalidSchedule("public_only", problem, hint="true or false")
    for field in ("headers", "inputs"):
        if not isinstance(fields.get(field), Mapping | None):
            problem = f"{quote_value(fields[field])} is not a mapping"
            raise InvalidSchedule(field, problem, hint="{name: value}")
    values: Mapping[object, object] = fields.get("headers") or {}  # type: ignore[assignment]
    headers = [
        _header(check_text("headers", name), check_text(f"headers.{name}", value))
        for name, value in values.items()
    ]
    return method, parse_url(check_text("http", fields.get("http"))), headers, feedback


def _example(field: str) -> str:
    """Return an example of a text field."""
    if field == "http":
        return 'http: "https://example.com/hook", with method, headers and inputs beside it'
    return 'headers: {Accept: "text/plain"}'


def check_text(field: str, value: object) -> str:
    """Return a text that can be sent, or refuse it."""
    if not isinstance(value, str):
        hint = "put it in quotes" if isinstance(value, (int, float)) else _example(field)
        raise InvalidSchedule(field, f"{quote_value(value)} is not a string", hint=hint)
    if len(value) > LONGEST_TEXT:
        raise InvalidSchedule(field, "it is too long", hint=f"{LONGEST_TEXT} characters at most")
    if not VISIBLE.fullmatch(value):  # it is not shown, as it may be a secret
        problem = "it has characters that cannot be sent"
        raise InvalidSchedule(field, problem, hint="one line of text")
    return value


@lru_cache(maxsize=4096)
def parse_url(text: str) -> RequestTarget:
    """Return the target of a URL, or refuse it. Anything is allowed between {{ and }}."""
    match = URL.fullmatch(text)
    if match is None or "#" in TEMPLATE.sub("", text) or "${env:" in text:
        problem = f"{quote_value(text.rpartition('@')[2])} is not a valid URL"
        hint = "http(s)://host:port/path?query: a literal host, no user, no fragment, no ${env:...}"
        raise InvalidSchedule("http", problem, hint=hint)
    scheme, host, rest = match[1].lower(), match[2].lower(), match[4]
    port, address = int(match[3] or PORTS[scheme]), None
    with suppress(OSError, UnicodeError):  # else it is a name, not an address in some notation
        entries = socket.getaddrinfo(host.strip("[]"), None, flags=socket.AI_NUMERICHOST)
        address = ip_address(entries[0][4][0])
        host = f"[{address}]" if address.version == 6 else str(address)
    # aiohttp does not pass to our resolver what it takes for an address: it must be one.
    if address is None and (":" in host or host.replace(".", "").isdigit()):
        raise InvalidSchedule(
            "http", f"{quote_value(host)} is not an IP address", hint="such as 192.0.2.1"
        )
    if not 1 <= port <= 65_535:
        raise InvalidSchedule("http", f"{port} is not a port", hint="1 to 65535")
    origin = f"{scheme}://{host}" if port == PORTS[scheme] else f"{scheme}://{host}:{port}"
    return RequestTarget(
        origin, host, f"{origin}{'' if rest.startswith('/') else '/'}{rest}", address
    )


def redirected(target: RequestTarget, location: str) -> RequestTarget:
    """Return the target of a redirect, or refuse it."""
    new, host = None, quote_value(target.host)
    with suppress(InvalidSchedule, ValueError):  # the error may quote a secret of the answer
        new = parse_url(check_text("http", urljoin(target.url, location.partition("#")[0])))
    if new is None:
        problem = f"{host} redirects to an invalid URL"
        raise InvalidSchedule("http", problem, hint="http(s)://host:port/path")
    if target.origin.startswith("https:") and not new.origin.startswith("https:"):
        raise InvalidSchedule("http", f"{host} redirects from https to http", hint="https")
    return new


def with_query(target: RequestTarget, inputs: Mapping[str, object]) -> RequestTarget:
    """Return the target with inputs in its query, or refuse inputs that are not plain values."""
    for name, value in inputs.items():
        if not isinstance(value, (str, int, float)):
            problem = f"{quote_value(value)} cannot be part of a URL"
            raise InvalidSchedule(f"inputs.{name}", problem, hint="a plain value, or method: POST")
    texts = {n: str(v).lower() if isinstance(v, bool) else v for n, v in inputs.items()}
    query = f"{'&' if '?' in target.url else '?'}{urlencode(texts, quote_via=quote)}"
    return target._replace(url=target.url + query) if inputs else target


@lru_cache(maxsize=4096)
def _header(name: str, value: str) -> tuple[str, str]:
    """Return a header, or refuse it without showing its value, which may be a secret."""
    lower, path = name.lower(), f"headers.{name}"
    if not TOKEN.fullmatch(name):
        raise InvalidSchedule(
            "headers", f"{quote_value(name)} is not a header name", hint="such as X-Team: text"
        )
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
# A host is plain ASCII, so that every library parses the same one.
URL = re.compile(r"(?ai)(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?((?:[/?].*)?)")
TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VISIBLE = re.compile(r"[\t -~\xa0-\ud7ff\ue000-\U0010ffff]*")
UNICAST, NAT64 = ip_network("2000::/3"), ip_network("64:ff9b::/96")
# Not public, though some version of `ipaddress` says so: cloud metadata, old relays, examples.
INSIDE = [*map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16", "3fff::/20"))]

"""Checks of host names, trusted proxies, and origins of pages.

A browser sends the requests of any page. The host name and the origin of the page distinguish the
requests of the dashboard from those of other sites.
"""

import re
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from socket import gethostname
from urllib.parse import urlsplit

from onbeat.app.settings import Settings
from onbeat.core.fields import HOST
from onbeat.errors import quote_value
from onbeat.web.security.asgi import Scope, is_unsafe, values_of
from onbeat.web.security.responses import RequestRefused

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
PORTS = {"http": 80, "https": 443}
FORWARDED = frozenset({
    b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port",
    b"x-forwarded-proto", b"x-real-ip",
})  # fmt: skip
MOST_PROXIES = 20

HostPort = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """The trusted address of the client, the host and port requested, and whether TLS was used."""

    client: str
    host: HostPort
    is_tls: bool


class Hosts:
    """Reads the origin of requests, and refuses those for other hosts or from other sites."""

    def __init__(self, settings: Settings) -> None:
        self._proxies = [ip_network(each) for each in settings.trusted_proxies]
        host, self._port = settings.listen_at
        own = f"[{host}]" if ":" in host else host
        self._with_own_port = {*LOOPBACK, own, gethostname().lower()}  # as used by other nodes
        self._with_port: set[HostPort] = set()
        self._names: set[str] = set()
        for each in settings.hosts:
            name, port = _split(each)
            self._names.add(name) if port is None else self._with_port.add((name, port))
        if settings.public_url:
            url = urlsplit(settings.public_url)
            name, port = _split(url.netloc)
            self._with_port.add((name, port or PORTS[url.scheme]))

    def read(self, scope: Scope) -> RequestOrigin:
        """Return the trusted origin of a request, or refuse the request."""
        peer = (scope.get("client") or ("",))[0]
        is_tls, names, client = scope["scheme"] == "https", values_of(scope, b"host"), peer
        if self._is_proxy(peer):
            client = self._forwarded_for(scope) or peer
            is_tls = is_tls or values_of(scope, b"x-forwarded-proto")[-1:] == ["https"]
            names = values_of(scope, b"x-forwarded-host") or names
        elif not is_tls and not _is_loopback(peer):
            hint = "https, or through the proxy"
            raise RequestRefused(403, "a request from another machine requires TLS", hint=hint)
        host = self._requested_host(names, is_tls=is_tls)
        port = (scope.get("server") or (None, None))[1] or self._port
        if not self._is_own(host, port):
            problem = f"the API is not served as {quote_value(names[0])}"
            hint = "the setting hosts allows further names"
            raise RequestRefused(421, problem, field="Host", hint=hint)
        return RequestOrigin(client, host, is_tls)

    def check_origin(self, scope: Scope, origin: RequestOrigin) -> None:
        """Refuse a change requested by a page of another site."""
        if not is_unsafe(scope):
            return
        if "cross-site" in values_of(scope, b"sec-fetch-site"):
            problem = "a page of another site sent this request"
            raise RequestRefused(403, problem, field="Sec-Fetch-Site")
        for field, header in (("Origin", b"origin"), ("Referer", b"referer")):
            if pages := values_of(scope, header):
                if not all(self._is_own_page(page, origin) for page in pages):
                    problem = f"a page of {quote_value(pages[0])} sent this request"
                    raise RequestRefused(403, problem, field=field, hint="a page of this host")
                return

    def _is_own_page(self, page: str, origin: RequestOrigin) -> bool:
        match = re.fullmatch(rf"(https?)://({HOST})(?:/.*)?", page, re.DOTALL)
        if match is None or (origin.is_tls and match[1] != "https"):
            return False
        name, port = _split(match[2])
        host = name, port or PORTS[match[1]]
        # Another port is another program: a name without one allows the default port only.
        is_named = name in self._names and host[1] == PORTS[match[1]]
        return host == origin.host or host in self._with_port or is_named

    def _is_own(self, host: HostPort, port: int) -> bool:
        name = host[0]
        is_local = name in self._with_own_port and host[1] == port
        return is_local or name in self._names or host in self._with_port

    def _requested_host(self, names: list[str], *, is_tls: bool) -> HostPort:
        if len(names) != 1 or not re.fullmatch(HOST, names[0]):
            raise RequestRefused(400, "exactly one valid host is required", field="Host")
        name, port = _split(names[0])
        return name, PORTS["https" if is_tls else "http"] if port is None else port

    def _forwarded_for(self, scope: Scope) -> str:
        """Return the last address that is not a trusted proxy: those before it can be forged."""
        addresses = ",".join(values_of(scope, b"x-forwarded-for")).split(",")
        for each in [part.strip() for part in addresses if part.strip()][:-MOST_PROXIES:-1]:
            try:
                ip_address(each)
            except ValueError:
                problem = f"{quote_value(each)} is not an address"
                raise RequestRefused(400, problem, field="X-Forwarded-For") from None
            if not self._is_proxy(each):
                return each
        return ""

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in each for each in self._proxies)


def without_forwarded(scope: Scope, origin: RequestOrigin) -> Scope:
    """Return a request with its trusted origin, and without the headers of proxies."""
    headers = [(name, value) for name, value in scope["headers"] if name not in FORWARDED]
    port = (scope.get("client") or ("", 0))[1]
    scheme = "https" if origin.is_tls else "http"
    return {**scope, "headers": headers, "client": (origin.client, port), "scheme": scheme}


def _split(host: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.*?)(?::([0-9]{1,5}))?", host.lower())
    assert match is not None, "the pattern matches every text"
    return match[1], None if match[2] is None else int(match[2])


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False

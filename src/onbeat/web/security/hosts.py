"""Under which names the API answers, for whom proxies speak, and whose pages may ask for changes.

A browser sends what a page tells it to, wherever that page is from. The name it asked for and the
page it was on are what tell such requests apart.
"""

import re
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from socket import gethostname
from urllib.parse import urlsplit

from onbeat.app.settings import HOST, Settings
from onbeat.errors import shown
from onbeat.web.security.asgi import Scope, is_unsafe, values_of
from onbeat.web.security.responses import RequestRefused

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
PORTS = {"http": 80, "https": 443}
FORWARDED = frozenset({
    b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port",
    b"x-forwarded-proto", b"x-real-ip",
})  # fmt: skip
MOST_PROXIES = 20

Place = tuple[str, int]  # a name and a port


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """What a request says of where it comes from and where it went, as far as it is believed."""

    client: str
    place: Place
    is_tls: bool


class Hosts:
    """Reads where requests come from and where they went, and refuses what is not for us."""

    def __init__(self, settings: Settings) -> None:
        self._proxies = [ip_network(each) for each in settings.trusted_proxies]
        host, self._port = settings.listen_at
        own = f"[{host}]" if ":" in host else host
        self._with_own_port = {*LOOPBACK, own, gethostname().lower()}  # so other nodes call it
        self._places: set[Place] = set()
        self._names: set[str] = set()
        for each in settings.hosts:
            name, port = _split(each)
            self._names.add(name) if port is None else self._places.add((name, port))
        if settings.public_url:
            url = urlsplit(settings.public_url)
            name, port = _split(url.netloc)
            self._places.add((name, port or PORTS[url.scheme]))

    def read(self, scope: Scope) -> RequestOrigin:
        """Return what is believed of a request, or refuse it."""
        peer = (scope.get("client") or ("",))[0]
        is_tls, names, client = scope["scheme"] == "https", values_of(scope, b"host"), peer
        if self._is_proxy(peer):
            client = self._forwarded_for(scope) or peer
            is_tls = is_tls or values_of(scope, b"x-forwarded-proto")[-1:] == ["https"]
            names = values_of(scope, b"x-forwarded-host") or names
        elif not is_tls and not _is_loopback(peer):
            hint = "https, or through the proxy"
            raise RequestRefused(403, "what comes from elsewhere has to be encrypted", hint=hint)
        place = self._place(names, is_tls=is_tls)
        port = (scope.get("server") or (None, None))[1] or self._port
        if not self._is_ours(place, port):
            told = f"this is not {shown(names[0])}"
            raise RequestRefused(421, told, field="Host", hint="the setting hosts names others")
        return RequestOrigin(client, place, is_tls)

    def check_origin(self, scope: Scope, asked: RequestOrigin) -> None:
        """Refuse a change that a page of another site asks for."""
        if not is_unsafe(scope):
            return
        if "cross-site" in values_of(scope, b"sec-fetch-site"):
            told = "a page of another site asked for this"
            raise RequestRefused(403, told, field="Sec-Fetch-Site")
        for field, header in (("Origin", b"origin"), ("Referer", b"referer")):
            if pages := values_of(scope, header):
                if not all(self._is_own_page(page, asked) for page in pages):
                    told = f"a page of {shown(pages[0])} asked for this"
                    raise RequestRefused(403, told, field=field, hint="a page of this host")
                return

    def _is_own_page(self, page: str, asked: RequestOrigin) -> bool:
        match = re.fullmatch(rf"(https?)://({HOST})(?:/.*)?", page, re.DOTALL)
        if match is None or (asked.is_tls and match[1] != "https"):
            return False
        name, port = _split(match[2])
        place = name, port or PORTS[match[1]]
        # Another port is another program's: of names that have none here, only the usual ones.
        is_named = name in self._names and place[1] == PORTS[match[1]]
        return place == asked.place or place in self._places or is_named

    def _is_ours(self, place: Place, port: int) -> bool:
        name = place[0]
        here = name in self._with_own_port and place[1] == port
        return here or name in self._names or place in self._places

    def _place(self, names: list[str], *, is_tls: bool) -> Place:
        if len(names) != 1 or not re.fullmatch(HOST, names[0]):
            raise RequestRefused(400, "there has to be one host", field="Host")
        name, port = _split(names[0])
        return name, PORTS["https" if is_tls else "http"] if port is None else port

    def _forwarded_for(self, scope: Scope) -> str:
        """Return the last address that no proxy of ours has: what is before it anybody may say."""
        told = ",".join(values_of(scope, b"x-forwarded-for")).split(",")
        for each in [part.strip() for part in told if part.strip()][:-MOST_PROXIES:-1]:
            try:
                ip_address(each)
            except ValueError:
                raise RequestRefused(400, "this is no address", field="X-Forwarded-For") from None
            if not self._is_proxy(each):
                return each
        return ""

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in each for each in self._proxies)


def without_forwarded(scope: Scope, asked: RequestOrigin) -> Scope:
    """Return a request as those behind the door see it: where it comes from is settled."""
    headers = [(name, value) for name, value in scope["headers"] if name not in FORWARDED]
    port = (scope.get("client") or ("", 0))[1]
    scheme = "https" if asked.is_tls else "http"
    return {**scope, "headers": headers, "client": (asked.client, port), "scheme": scheme}


def _split(host: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.*?)(?::([0-9]{1,5}))?", host.lower())
    assert match is not None, "every text is a name and perhaps a port"
    return match[1], None if match[2] is None else int(match[2])


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False

"""Channels: where notices go, as an operator writes it, strictly read.

Secrets are references, `${env:NAME}` or `secret://name`, which are looked up when a node starts and
neither kept nor shown. What may be shown of a channel is `Channel.shown`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from onbeat.core.notify.notifications import Rule
from onbeat.core.time.durations import parse_duration
from onbeat.errors import InvalidSchedule, meant, naming, shown

Way = Literal["webhook", "smtp", "apprise"]
WAYS: tuple[Way, ...] = get_args(Way)

KINDS = ("failure", "recovery", "success", "missed", "late", "parked", "stuck")
USUAL = frozenset({"failure", "recovery", "missed", "parked", "stuck"})
MOST_FAILURES = 1000
LONGEST = 8000  # characters of an address, a password or a header

Fill = Callable[[str], str]  # a text with references, to what they stand for

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
GLOB = re.compile(r"[A-Za-z0-9._/*?-]{1,200}")
FAILURES = re.compile(r"failures:([1-9][0-9]{0,3})")
# What names a secret, here and in targets: a variable anywhere in a text, or a file as all of it.
REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
SCHEME = "secret://"
SECRET_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
SECRET = re.compile(rf"{SCHEME}({SECRET_NAME.pattern})")
BEGINNING = re.compile(rf"\$\{{env:|{SCHEME}", re.IGNORECASE)  # no text without it names any
VISIBLE = re.compile(r"[ -~]*")
URL = re.compile(
    r"(?ai)(https?)://(?:[^/?#@\s]*@)?(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?(?:[/?].*)?"
)
SERVER = re.compile(
    r"(?ai)(smtps?)://(?:([^/?#\s]+)@)?(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?/?"
)
ADDRESS = re.compile(r"[!-~]+@[!-~]+")
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
OWN_HEADERS = frozenset({
    "host", "content-length", "content-type", "transfer-encoding", "connection", "idempotency-key",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Channel:
    """Where notices go, which ones, and how often at most."""

    name: str
    way: Way
    address: str = field(repr=False)  # it may hold references, or a secret
    rule: Rule
    every: int = 10_000  # milliseconds in which there is one message at most
    to: tuple[str, ...] = ()
    sender: str = ""
    password: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def shown(self) -> str:
        """Where it goes, as anybody may read it: what comes after a host may be a secret."""
        match self.way:
            case "webhook":
                found = URL.fullmatch(self.address)
                return f"{found[1].lower()}://{found[2]}{found[3] or ''}" if found else "webhook"
            case "smtp":
                return f"{', '.join(self.to)} by {MailServer.of(self.address).host}"
            case "apprise":
                scheme = re.match(r"([A-Za-z0-9]{1,20})://", self.address)
                return f"{scheme[1]}://" if scheme and scheme[1] != "secret" else "apprise"

    def filled(self, fill: Fill) -> "Channel":
        """Return the same with what its references stand for, or refuse what that comes to."""
        with naming(f"notify.{self.name}"):
            address, password = self.address, self.password
            with naming(self.way):
                if self.way != "smtp":
                    address = _visible(fill(address), "an address")
                if self.way == "webhook":
                    _check_url(address)
            with naming("password"):
                password = fill(password) if password else ""
            headers = []
            for name, value in self.headers:
                with naming(f"headers.{name}"):
                    headers.append((name, _visible(fill(value), "a header")))
        return Channel(
            self.name, self.way, address, self.rule, self.every, self.to, self.sender,
            password, tuple(headers),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MailServer:
    """A mail server, as its address says."""

    host: str
    port: int
    user: str
    is_encrypted: bool  # from the first byte on

    @classmethod
    def of(cls, text: str) -> "MailServer":
        found = SERVER.fullmatch(text)
        if found is None:
            raise InvalidSchedule("", "it is no mail server", hint="smtp://user@host:587")
        scheme, user, host, port = found.groups()
        if user and ":" in user:
            problem = "there is a password in it"
            raise InvalidSchedule("", problem, hint='password = "${env:NAME}" beside it')
        is_encrypted = scheme.lower() == "smtps"
        usual = 465 if is_encrypted else 587 if user else 25
        number = int(port or usual)
        if not 1 <= number <= 65_535:
            raise InvalidSchedule("", f"{number} is no port", hint="1 to 65535")
        return cls(host.strip("[]").lower(), number, user or "", is_encrypted)

    @property
    def is_here(self) -> bool:
        """Whether it is on this machine, so that nobody listens in between."""
        return re.fullmatch(r"localhost|::1|127[0-9.]+", self.host) is not None


def read_channels(given: object) -> tuple[Channel, ...]:
    """Return the channels of a table `notify`, or refuse it."""
    if not isinstance(given, Mapping):
        hint = '[notify.ops] with webhook = "https://..."'
        raise InvalidSchedule("", f"{shown(given)} is no table of channels", hint=hint)
    found = []
    for name, fields in given.items():
        if not NAME.fullmatch(name):
            hint = "letters, digits, dots, - and _"
            raise InvalidSchedule("", f"{shown(name)} is no name of a channel", hint=hint)
        with naming(name):
            if not isinstance(fields, Mapping):
                hint = f'[notify.{name}] with webhook = "https://..."'
                raise InvalidSchedule("", "it is no table", hint=hint)
            found.append(_channel(name, fields))
    return tuple(found)


def _channel(name: str, fields: Mapping[str, object]) -> Channel:
    ways = [way for way in WAYS if way in fields]
    if len(ways) != 1:
        problem = f"it has {' and '.join(ways)}" if ways else "it says not where to"
        raise InvalidSchedule("", problem, hint=f"one of {', '.join(WAYS)}")
    way = ways[0]
    known = {"on", "schedules", "late", "every", *_FIELDS[way]}
    for key in fields:
        if key not in known:
            told = shown(key).strip("'")
            raise InvalidSchedule(told, "no field has this name", hint=meant(key, known))
    address = _text(fields, way)
    rule = _rule(fields)
    every = _length(fields, "every", 10_000, most="1d")
    if way == "smtp":
        with naming(way):
            server = MailServer.of(address)
        password = _text(fields, "password", default="")
        if password and not server.user:
            raise InvalidSchedule("password", "nobody logs in with it", hint="smtp://user@host")
        to = _list(fields, "to", ADDRESS, "an address", hint='["you@example.org"]')
        sender = fields.get("from", "onbeat@localhost")
        if not isinstance(sender, str) or not _is_address(sender):
            problem = f"{shown(sender)} is no address"
            raise InvalidSchedule("from", problem, hint="onbeat@example.org")
        return Channel(name, way, address, rule, every, to, sender, password)
    if way == "webhook" and not _has_references(address):
        with naming(way):
            _check_url(address)
    return Channel(name, way, address, rule, every, headers=_headers(fields))


def _rule(fields: Mapping[str, object]) -> Rule:
    kinds, failures = set(USUAL), set()
    if "on" in fields:
        kinds = set()
        hint = '["failure", "recovery", "failures:3"]'
        for n, each in enumerate(_plain_list(fields["on"], "on", hint)):
            found = FAILURES.fullmatch(each) if isinstance(each, str) else None
            if found is not None and int(found[1]) <= MOST_FAILURES:
                failures.add(int(found[1]))
            elif isinstance(each, str) and each in KINDS:
                kinds.add(each)
            else:
                hint = meant(each, (*KINDS, "failures:3"))
                raise InvalidSchedule(f"on[{n}]", f"nothing is called {shown(each)}", hint=hint)
    schedules: tuple[str, ...] = ("*",)
    if "schedules" in fields:
        schedules = _list(fields, "schedules", GLOB, "an id", hint='["backup/*", "report"]')
    late = _length(fields, "late", 60_000, least=1_000, most="7d")
    return Rule(frozenset(kinds), frozenset(failures), schedules, late)


def _length(
    fields: Mapping[str, object], name: str, usual: int, *, least: int = 0, most: str
) -> int:
    if name not in fields:
        return usual
    with naming(name):
        found = parse_duration(fields[name]).elapsed * 1000
        if not least <= found <= parse_duration(most).elapsed * 1000:
            hint = f"{least // 1000}s to {most}"
            raise InvalidSchedule("", f"{shown(fields[name])} is out of bounds", hint=hint)
    return found


def _plain_list(value: object, name: str, hint: str) -> list[object]:
    if not isinstance(value, list) or not value:
        raise InvalidSchedule(name, f"{shown(value)} is no list of them", hint=hint)
    if len(value) > 100:
        raise InvalidSchedule(name, f"there are {len(value)} of them", hint="100 at most")
    return value


def _list(
    fields: Mapping[str, object], name: str, form: re.Pattern[str], what: str, *, hint: str
) -> tuple[str, ...]:
    found = []
    for n, each in enumerate(_plain_list(fields.get(name), name, hint)):
        fits = isinstance(each, str) and form.fullmatch(each) is not None
        if not fits or (form is ADDRESS and not _is_address(str(each))):
            raise InvalidSchedule(f"{name}[{n}]", f"{shown(each)} is not {what}", hint=hint)
        found.append(str(each))
    return tuple(dict.fromkeys(found))


def _is_address(text: str) -> bool:
    return ADDRESS.fullmatch(text) is not None and not set(text) & set('<>,;"()[]\\:')


def _headers(fields: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    given = fields.get("headers", {})
    if not isinstance(given, Mapping):
        raise InvalidSchedule("headers", f"{shown(given)} is no table", hint='{X-Team = "ops"}')
    found = []
    for name in given:
        if not HEADER.fullmatch(name) or name.lower() in OWN_HEADERS:
            raise InvalidSchedule("headers", f"{shown(name)} cannot be set", hint="such as X-Team")
        with naming("headers"):
            found.append((name, _text(given, name)))
    return tuple(found)


def _text(fields: Mapping[str, object], name: str, *, default: str | None = None) -> str:
    """Return a text that may be a secret: it is never quoted."""
    value = fields.get(name, default)
    with naming(name):
        if not isinstance(value, str) or (not value and default is None):
            raise InvalidSchedule("", "it is not a text", hint="a text in quotes")
        _visible(value, "a text")
        if "${" in REFERENCE.sub("", value):
            raise InvalidSchedule("", "no variable is named after ${", hint="${env:NAME}")
        if value.startswith(SCHEME) and not SECRET.fullmatch(value):
            raise InvalidSchedule("", "no secret has such a name", hint="secret://name")
    return value


def _visible(value: str, what: str) -> str:
    if not VISIBLE.fullmatch(value) or len(value) > LONGEST:
        problem = "it is too long, or holds what cannot be sent"
        raise InvalidSchedule("", problem, hint=f"{what} in ASCII, up to {LONGEST} characters")
    return value


def _check_url(text: str) -> None:
    if not URL.fullmatch(text):
        raise InvalidSchedule("", "it is no URL", hint="https://host/path")


def _has_references(text: str) -> bool:
    return "${" in text or text.startswith(SCHEME)


_FIELDS = {
    "webhook": ("webhook", "headers"),
    "smtp": ("smtp", "to", "from", "password"),
    "apprise": ("apprise",),
}

"""Notification channels, as read from the settings of an operator.

Secrets are references, `${env:NAME}` or `secret://name`, which are resolved when a node starts and
neither stored nor shown. The part of a channel that may be shown is `Channel.shown`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from onbeat.core.notify.notifications import Rule
from onbeat.core.time.durations import parse_duration
from onbeat.errors import InvalidSchedule, did_you_mean, in_field, quote_value

Way = Literal["webhook", "smtp", "apprise"]
WAYS: tuple[Way, ...] = get_args(Way)

KINDS = ("failure", "recovery", "success", "missed", "late", "parked", "stuck")
USUAL = frozenset({"failure", "recovery", "missed", "parked", "stuck"})
MOST_FAILURES = 1000
LONGEST = 8000  # characters of an address, a password or a header

Fill = Callable[[str], str]  # resolves the references in a text

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
GLOB = re.compile(r"[A-Za-z0-9._/*?-]{1,200}")
FAILURES = re.compile(r"failures:([1-9][0-9]{0,3})")
# References to secrets, also in targets: a variable anywhere in a text, or a file as all of it.
REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
SCHEME = "secret://"
SECRET_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
SECRET = re.compile(rf"{SCHEME}({SECRET_NAME.pattern})")
REFERENCE_START = re.compile(rf"\$\{{env:|{SCHEME}", re.IGNORECASE)  # every reference contains it
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
    """Where notices are sent, which ones, and how often at most."""

    name: str
    way: Way
    address: str = field(repr=False)  # it may hold references, or a secret
    rule: Rule
    every: int = 10_000  # milliseconds: at most one message in this period
    to: tuple[str, ...] = ()
    sender: str = ""
    password: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def shown(self) -> str:
        """The destination without secrets: the part after the host may be one."""
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
        """Return the channel with resolved references, or refuse invalid results."""
        with in_field(f"notify.{self.name}"):
            address, password = self.address, self.password
            with in_field(self.way):
                if self.way != "smtp":
                    address = _visible(fill(address), "an address")
                if self.way == "webhook":
                    _check_url(address)
            with in_field("password"):
                password = fill(password) if password else ""
            headers = []
            for name, value in self.headers:
                with in_field(f"headers.{name}"):
                    headers.append((name, _visible(fill(value), "a header")))
        return Channel(
            self.name, self.way, address, self.rule, self.every, self.to, self.sender,
            password, tuple(headers),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MailServer:
    """A mail server, read from its address."""

    host: str
    port: int
    user: str
    is_encrypted: bool  # TLS from the first byte

    @classmethod
    def of(cls, text: str) -> "MailServer":
        found = SERVER.fullmatch(text)
        if found is None:
            raise InvalidSchedule(
                "", "the value is not the URL of a mail server", hint="smtp://user@host:587"
            )
        scheme, user, host, port = found.groups()
        if user and ":" in user:
            problem = "the URL contains a password"
            raise InvalidSchedule("", problem, hint='set password = "${env:NAME}"')
        is_encrypted = scheme.lower() == "smtps"
        usual = 465 if is_encrypted else 587 if user else 25
        number = int(port or usual)
        if not 1 <= number <= 65_535:
            raise InvalidSchedule("", f"{number} is not a port", hint="1 to 65535")
        return cls(host.strip("[]").lower(), number, user or "", is_encrypted)

    @property
    def is_here(self) -> bool:
        """Whether it is on this machine, so that the connection cannot be intercepted."""
        return re.fullmatch(r"localhost|::1|127[0-9.]+", self.host) is not None


def read_channels(table: object) -> tuple[Channel, ...]:
    """Return the channels of a table `notify`, or refuse it."""
    if not isinstance(table, Mapping):
        hint = '[notify.ops] with webhook = "https://..."'
        raise InvalidSchedule(
            "",
            f"{quote_value(table)} is not a mapping of channel names to their settings",
            hint=hint,
        )
    found = []
    for name, fields in table.items():
        if not NAME.fullmatch(name):
            hint = "letters, digits, dots, - and _"
            raise InvalidSchedule("", f"{quote_value(name)} is not a valid channel name", hint=hint)
        with in_field(name):
            if not isinstance(fields, Mapping):
                hint = f'[notify.{name}] with webhook = "https://..."'
                raise InvalidSchedule("", "the channel is not a mapping", hint=hint)
            found.append(_channel(name, fields))
    return tuple(found)


def _channel(name: str, fields: Mapping[str, object]) -> Channel:
    ways = [way for way in WAYS if way in fields]
    if len(ways) != 1:
        problem = f"it has {' and '.join(ways)}" if ways else "the channel has no destination"
        raise InvalidSchedule("", problem, hint=f"one of {', '.join(WAYS)}")
    way = ways[0]
    known = {"on", "schedules", "late", "every", *_FIELDS[way]}
    for key in fields:
        if key not in known:
            name = quote_value(key).strip("'")
            raise InvalidSchedule(name, "no field has this name", hint=did_you_mean(key, known))
    address = _text(fields, way)
    rule = _rule(fields)
    every = _length(fields, "every", 10_000, most="1d")
    if way == "smtp":
        with in_field(way):
            server = MailServer.of(address)
        password = _text(fields, "password", default="")
        if password and not server.user:
            raise InvalidSchedule(
                "password", "a password requires a user in the URL", hint="smtp://user@host"
            )
        to = _list(fields, "to", ADDRESS, "an email address", hint='["you@example.org"]')
        sender = fields.get("from", "onbeat@localhost")
        if not isinstance(sender, str) or not _is_address(sender):
            problem = f"{quote_value(sender)} is not an email address"
            raise InvalidSchedule("from", problem, hint="onbeat@example.org")
        return Channel(name, way, address, rule, every, to, sender, password)
    if way == "webhook" and not _has_references(address):
        with in_field(way):
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
                hint = did_you_mean(each, (*KINDS, "failures:3"))
                raise InvalidSchedule(
                    f"on[{n}]", f"{quote_value(each)} is not a kind of notification", hint=hint
                )
    schedules: tuple[str, ...] = ("*",)
    if "schedules" in fields:
        schedules = _list(fields, "schedules", GLOB, "an id", hint='["backup/*", "report"]')
    late = _length(fields, "late", 60_000, least=1_000, most="7d")
    return Rule(frozenset(kinds), frozenset(failures), schedules, late)


def _length(
    fields: Mapping[str, object], name: str, default: int, *, least: int = 0, most: str
) -> int:
    if name not in fields:
        return default
    with in_field(name):
        found = parse_duration(fields[name]).elapsed * 1000
        if not least <= found <= parse_duration(most).elapsed * 1000:
            hint = f"{least // 1000}s to {most}"
            raise InvalidSchedule("", f"{quote_value(fields[name])} is out of bounds", hint=hint)
    return found


def _plain_list(value: object, name: str, hint: str) -> list[object]:
    if not isinstance(value, list) or not value:
        raise InvalidSchedule(
            name, f"{quote_value(value)} is not a list with at least one item", hint=hint
        )
    if len(value) > 100:
        raise InvalidSchedule(name, f"it has {len(value)} items", hint="100 at most")
    return value


def _list(
    fields: Mapping[str, object], name: str, form: re.Pattern[str], what: str, *, hint: str
) -> tuple[str, ...]:
    found = []
    for n, each in enumerate(_plain_list(fields.get(name), name, hint)):
        fits = isinstance(each, str) and form.fullmatch(each) is not None
        if not fits or (form is ADDRESS and not _is_address(str(each))):
            raise InvalidSchedule(f"{name}[{n}]", f"{quote_value(each)} is not {what}", hint=hint)
        found.append(str(each))
    return tuple(dict.fromkeys(found))


def _is_address(text: str) -> bool:
    return ADDRESS.fullmatch(text) is not None and not set(text) & set('<>,;"()[]\\:')


def _headers(fields: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    headers = fields.get("headers", {})
    if not isinstance(headers, Mapping):
        raise InvalidSchedule(
            "headers", f"{quote_value(headers)} is not a mapping", hint='{X-Team = "ops"}'
        )
    found = []
    for name in headers:
        if not HEADER.fullmatch(name) or name.lower() in OWN_HEADERS:
            raise InvalidSchedule(
                "headers", f"the header {quote_value(name)} cannot be set", hint="such as X-Team"
            )
        with in_field("headers"):
            found.append((name, _text(headers, name)))
    return tuple(found)


def _text(fields: Mapping[str, object], name: str, *, default: str | None = None) -> str:
    """Return a text that may be a secret: errors never quote it."""
    value = fields.get(name, default)
    with in_field(name):
        if not isinstance(value, str) or (not value and default is None):
            raise InvalidSchedule("", "it is not a string", hint="a string in quotes")
        _visible(value, "a string")
        if "${" in REFERENCE.sub("", value):
            raise InvalidSchedule("", "${ is not followed by a variable", hint="${env:NAME}")
        if value.startswith(SCHEME) and not SECRET.fullmatch(value):
            raise InvalidSchedule("", "it is not a valid name of a secret", hint="secret://name")
    return value


def _visible(value: str, what: str) -> str:
    if not VISIBLE.fullmatch(value) or len(value) > LONGEST:
        problem = "it is too long, or contains characters that cannot be sent"
        raise InvalidSchedule("", problem, hint=f"{what} in ASCII, up to {LONGEST} characters")
    return value


def _check_url(text: str) -> None:
    if not URL.fullmatch(text):
        raise InvalidSchedule("", "it is not a URL", hint="https://host/path")


def _has_references(text: str) -> bool:
    return "${" in text or text.startswith(SCHEME)


_FIELDS = {
    "webhook": ("webhook", "headers"),
    "smtp": ("smtp", "to", "from", "password"),
    "apprise": ("apprise",),
}

"""The values of settings that have a form of their own: how each is read, and what is refused."""

import re
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import get_args

from onbeat.core.fields import HOST, read_text
from onbeat.errors import InvalidSettings, did_you_mean, quote_value
from onbeat.ports.store import Role


def read_database(value: object) -> str:
    """Return the URL of a database, or refuse it."""
    # An address may contain a password: only its scheme is quoted.
    forms = "sqlite:///relative.db, sqlite:////absolute.db, or postgresql://user@host/name"
    text = read_text(value)
    address = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", text, re.DOTALL)
    if address is None:
        raise InvalidSettings("", "the URL has no scheme", hint=forms)
    scheme, rest = address.groups()
    if scheme in {"postgres", "postgresql"}:
        return text
    if scheme.startswith(("postgres+", "postgresql+")):
        raise InvalidSettings(
            "", "the URL must not name a driver", hint="write postgresql://user@host/name"
        )
    if scheme != "sqlite":
        raise InvalidSettings("", f"{quote_value(scheme)} is not a supported database", hint=forms)
    if rest and not rest.startswith("/"):
        raise InvalidSettings("", "a SQLite URL has no host: a slash is missing", hint=forms)
    if "?" in rest:
        raise InvalidSettings("", "the URL has options after '?'", hint=forms)
    if rest == "/:memory:" or (rest and rest[1:].rpartition("/")[2] in {"", ".", ".."}):
        raise InvalidSettings("", "the URL does not name a file", hint=forms)
    return text


def read_roles(value: object) -> tuple[str, ...]:
    """Return the roles of a node, each once."""
    known = get_args(Role)
    if not isinstance(value, (list, tuple)) or not value:
        raise InvalidSettings(
            "", f"{quote_value(value)} is not a list of roles", hint='["plan", "run"]'
        )
    for role in value:
        if role not in known:
            raise InvalidSettings(
                "", f"{quote_value(role)} is not a role", hint=did_you_mean(role, known)
            )
    return tuple(dict.fromkeys(value))


def read_variables(value: object) -> tuple[str, ...]:
    """Return names of environment variables, each once."""
    if not isinstance(value, (list, tuple)):
        raise InvalidSettings(
            "", f"{quote_value(value)} is not a list", hint='such as ["HOME", "LANG"]'
        )
    for name in value:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            quoted = name.partition("=")[0] if isinstance(name, str) else name
            problem = f"{quote_value(quoted)} is not the name of an environment variable"
            if quoted != name:
                problem = f"{quote_value(quoted)} includes a value"
            raise InvalidSettings("", problem, hint="names only, such as HOME")
    return tuple(dict.fromkeys(value))


def read_listen(value: object) -> str:
    """Return the address to listen on, or an empty text."""
    hint = "such as 127.0.0.1:8585, [::1]:8585 or 0.0.0.0:443"
    text = read_text(value)
    if not text:
        return text
    match = re.fullmatch(r"(localhost|[0-9.]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", text)
    if match is None or int(match[2]) > 65_535:
        raise InvalidSettings("", f"{quote_value(text)} is not an address with a port", hint=hint)
    with suppress(ValueError):
        if match[1] != "localhost":
            ip_address(match[1].strip("[]"))
        return text
    raise InvalidSettings("", f"{quote_value(match[1])} is not an IP address", hint=hint)


def read_hosts(value: object) -> tuple[str, ...]:
    """Return host names in lower case, each once."""
    hint = 'such as ["onbeat.example.com"]'
    if not isinstance(value, (list, tuple)):
        raise InvalidSettings("", f"{quote_value(value)} is not a list", hint=hint)
    for name in value:
        if not isinstance(name, str) or not re.fullmatch(HOST, name):
            raise InvalidSettings("", f"{quote_value(name)} is not a host name", hint=hint)
    return tuple(dict.fromkeys(name.lower() for name in value))


def read_networks(value: object) -> tuple[str, ...]:
    """Return addresses and networks, each once."""
    hint = 'such as ["10.0.0.7", "10.1.0.0/16"]'
    if not isinstance(value, (list, tuple)):
        raise InvalidSettings("", f"{quote_value(value)} is not a list", hint=hint)
    for name in value:
        try:
            ip_network(name if isinstance(name, str) else "")
        except ValueError:
            problem = f"{quote_value(name)} is neither an IP address nor a network"
            raise InvalidSettings("", problem, hint=hint) from None
    return tuple(dict.fromkeys(value))

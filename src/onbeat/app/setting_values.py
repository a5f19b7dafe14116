"""The values of settings: how each is read, and what is refused."""

import re
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Literal, get_args

from onbeat.core.notify.channels import read_channels
from onbeat.core.time.durations import parse_duration
from onbeat.core.web_origins import read_origins
from onbeat.errors import InvalidSettings, did_you_mean, quote_value
from onbeat.ports.store import Role

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]
HttpTargets = Literal["any", "public"]
OverlapPolicy = Literal["allow", "skip", "queue"]
CatchupPolicy = Literal["none", "fire_immediately", "spread"]
TimerLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
JwtAlgorithm = Literal["RS256", "ES256", "EdDSA", "HS256"]

Reader = Callable[[object], object]


def _database(value: object) -> str:
    # An address may contain a password: only its scheme is quoted.
    forms = "sqlite:///relative.db, sqlite:////absolute.db, or postgresql://user@host/name"
    text = _text(value)
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


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidSettings(
            "", f"{quote_value(value)} is not a string", hint="a string in quotes"
        )
    if "\0" in value:
        raise InvalidSettings("", "the value contains a NUL character", hint="a path")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidSettings(
            "", f"{quote_value(value)} is neither true nor false", hint="true or false"
        )
    return value


def _whole(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        hint = f"{least} to {most}"
        if type(value) is not int:
            raise InvalidSettings("", f"{quote_value(value)} is not a whole number", hint=hint)
        if not least <= value <= most:
            raise InvalidSettings("", f"{quote_value(value)} is out of bounds", hint=hint)
        return value

    return read


def _length(least: str, most: str) -> Callable[[object], int]:
    shortest, longest = parse_duration(least).elapsed, parse_duration(most).elapsed

    def read(value: object) -> int:
        seconds = parse_duration(value).elapsed
        if not shortest <= seconds <= longest:
            hint = f"{least} to {most}"
            raise InvalidSettings("", f"{quote_value(value)} is out of bounds", hint=hint)
        return seconds * 1000

    return read


def _choice(kind: object) -> Callable[[object], str]:
    known = get_args(kind)

    def read(value: object) -> str:
        if value not in known:
            raise InvalidSettings(
                "", f"{quote_value(value)} is not a valid value", hint=did_you_mean(value, known)
            )
        return str(value)

    return read


def _timer_level(value: object) -> str:
    return _choice(TimerLevel)(value.upper() if isinstance(value, str) else value)


def _seconds(value: object) -> int:
    return _whole(1, 86_400)(value) * 1000


def _name(value: object) -> str:
    text = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,100}", text):
        problem = f"{quote_value(text)} is not a user name"
        raise InvalidSettings("", problem, hint="letters, digits and . _ @ -, at most 100")
    return text


def _roles(value: object) -> tuple[str, ...]:
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


def _names(value: object) -> tuple[str, ...]:
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


def _listen(value: object) -> str:
    hint = "such as 127.0.0.1:8585, [::1]:8585 or 0.0.0.0:443"
    text = _text(value)
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


def _url(example: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = _text(value)
        if text and not re.fullmatch(rf"https?://{HOST}(/[A-Za-z0-9._~/-]*)?", text):
            problem = f"{quote_value(text.rpartition('@')[2])} is not the URL of a server"
            raise InvalidSettings("", problem, hint=f"such as {example}")
        return text.rstrip("/")

    return read


def _executor(value: object) -> str:
    return "ray" if value == "ray" else _url("http://127.0.0.1:8002, or ray")(value)


def _ray_address(value: object) -> str:
    text = _text(value)
    if text and text not in {"auto", "local"} and not re.fullmatch(rf"(ray://)?{HOST}", text):
        hint = "such as 10.0.0.7:6379, or auto for the one on this machine"
        raise InvalidSettings(
            "", f"{quote_value(text)} is not an address of a Ray cluster", hint=hint
        )
    return text


def _hosts(value: object) -> tuple[str, ...]:
    hint = 'such as ["onbeat.example.com"]'
    if not isinstance(value, (list, tuple)):
        raise InvalidSettings("", f"{quote_value(value)} is not a list", hint=hint)
    for name in value:
        if not isinstance(name, str) or not re.fullmatch(HOST, name):
            raise InvalidSettings("", f"{quote_value(name)} is not a host name", hint=hint)
    return tuple(dict.fromkeys(name.lower() for name in value))


def _networks(value: object) -> tuple[str, ...]:
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


# A name or an address, with or without a port.
HOST = r"(?:[A-Za-z0-9][A-Za-z0-9.-]{0,252}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"

READERS: dict[str, Reader] = {
    "database": _database,
    "output": _text,
    "roles": _roles,
    "concurrency": _whole(1, 100_000),
    "lease": _length("1s", "1h"),
    "stop_grace": _length("0s", "1d"),
    "catchup_per_second": _whole(1, 100_000),
    "keep": _length("1h", "36500d"),
    "log_level": _choice(LogLevel),
    "log_format": _choice(LogFormat),
    "http_targets": _choice(HttpTargets),
    "pass_env": _names,
    "secrets": _text,
    "listen": _listen,
    "public_url": _url("https://onbeat.example.com"),
    "hosts": _hosts,
    "cors_origins": read_origins,
    "trusted_proxies": _networks,
    "rate_limit": _whole(1, 1_000_000),
    "tls_cert": _text,
    "tls_key": _text,
    "tls_client_ca": _text,
    "jwt_key": _text,
    "jwt_algorithm": _choice(JwtAlgorithm),
    "jwt_issuer": _text,
    "jwt_audience": _text,
    "lookahead": _length("1s", "1h"),
    "services_file": _text,
    "sessions_url": _url("http://127.0.0.1:53000"),
    "sessions_folder": _text,
    "sessions_cwd": _text,
    "sessions_check": _length("1m", "1d"),
    "sessions_busy_delay": _length("1m", "7d"),
    "sessions_minimum": _length("1m", "1d"),
    "sessions_most": _whole(1, 100_000),
    "workflows_folder": _text,
    "workflows_executor": _executor,
    "workflows_token": _text,
    "workflows_feedback": _flag,
    "workflows_timeout": _length("1m", "30d"),
    "workflows_overlap_policy": _choice(OverlapPolicy),
    "workflows_catchup_policy": _choice(CatchupPolicy),
    "workflows_jitter_ms": _whole(0, 7 * 86_400_000),
    "ray_address": _ray_address,
    "ray_lease": _length("5s", "1h"),
    "ray_working_dir": _text,
    "flows_exposes": _text,
    "flows_panel": _url("http://127.0.0.1:3370"),
    "flows_user": _name,
    "flows_password": _text,
    "flows_interval": _length("1s", "1d"),
    "flows_log_file": _text,
    "flows_log_file_level": _timer_level,
    "flows_std_level": _timer_level,
    "notify": read_channels,
}
TABLES = {"notify"}  # set in the file only
FLAGS = {"workflows_feedback"}
NUMBERS = {
    "concurrency", "catchup_per_second", "rate_limit", "sessions_most", "workflows_jitter_ms",
}  # fmt: skip
SYSTEMS = ("flows", "services", "sessions", "workflows", "ray")
# Variables of the schedulers that Onbeat replaces.
WORKFLOWS_NAMES: dict[str, tuple[str, Reader]] = {
    "TICK_MS": ("tick_ms", _whole(1, 3_600_000)),
    "LOOKAHEAD_MS": ("lookahead", _whole(1000, 3_600_000)),
    "MAX_CATCHUP_PER_TICK": ("catchup_per_second", READERS["catchup_per_second"]),
    "DEFAULT_OVERLAP_POLICY": ("workflows_overlap_policy", _choice(OverlapPolicy)),
    "DEFAULT_CATCHUP_POLICY": ("workflows_catchup_policy", _choice(CatchupPolicy)),
    "DEFAULT_JITTER_MS": ("workflows_jitter_ms", READERS["workflows_jitter_ms"]),
}
FLOWS_NAMES: dict[str, tuple[str, Reader]] = {
    "KODO_TIMER_LOG_FILE": ("flows_log_file", _text),
    "KODO_TIMER_LOG_FILE_LEVEL": ("flows_log_file_level", _timer_level),
    "KODO_TIMER_STD_LEVEL": ("flows_std_level", _timer_level),
    "KODO_TIMER_INTERVAL": ("flows_interval", _seconds),
    "KODO_TIMER_USER": ("flows_user", _name),
}
LISTS = {"cors_origins", "hosts", "pass_env", "roles", "trusted_proxies"}

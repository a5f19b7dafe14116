"""Settings: defaults, overridden by a file, the environment and flags, in this order.

`Settings.load` is strict about each of them: an unknown name or an invalid value is refused where
it is written, even if a later source overrides it.
"""

import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Literal, get_args

from onbeat.core.notify.channels import Channel, read_channels
from onbeat.core.time.durations import parse_duration
from onbeat.core.web_origins import read_origins
from onbeat.errors import (
    InvalidSchedule,
    InvalidSettings,
    did_you_mean,
    quote_value,
    without_password,
)
from onbeat.host.regular_files import read_regular
from onbeat.ports.store import Role

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]
HttpTargets = Literal["any", "public"]
OverlapPolicy = Literal["allow", "skip", "queue"]
CatchupPolicy = Literal["none", "fire_immediately", "spread"]
TimerLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
JwtAlgorithm = Literal["RS256", "ES256", "EdDSA", "HS256"]

Reader = Callable[[object], object]

FILE = "onbeat.toml"
LISTEN = "127.0.0.1:8585"
PREFIX = "ONBEAT_"
CONFIG = "ONBEAT_CONFIG"  # names another file than FILE
# Variables that Onbeat sets for the commands it starts, which may call `onbeat` themselves.
SET_FOR_COMMANDS = frozenset({
    "ONBEAT_ATTEMPT", "ONBEAT_FAILPOINT", "ONBEAT_INPUTS", "ONBEAT_ITERATION", "ONBEAT_KEY",
    "ONBEAT_NODE", "ONBEAT_RUN_AT", "ONBEAT_RUN_ID", "ONBEAT_SCHEDULE", "ONBEAT_STORE",
    "ONBEAT_TRIGGERED_BY",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything an operator can change. Nothing else in the package reads the environment.

    Durations are milliseconds here, and texts such as `30s` in files, variables and flags.
    """

    database: str = "sqlite:///onbeat.db"
    output: str = ""  # the folder for the output of runs; empty: beside the database
    roles: tuple[Role, ...] = ("plan", "run", "api")  # of this node
    concurrency: int = 512  # runs at once on this node
    lease: int = 5_000  # how long a silent node keeps its runs
    stop_grace: int = 30_000  # how long runs may finish after `onbeat down`
    catchup_per_second: int = 100  # missed ticks that this node starts per second
    keep: int = 30 * 86_400_000  # how long finished runs and events are kept
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"  # text on a terminal, json otherwise
    http_targets: HttpTargets = "any"  # which addresses HTTP targets may have
    pass_env: tuple[str, ...] = ()  # variables passed to commands, besides the usual ones
    secrets: str = ""  # the folder of the files that `secret://name` refers to
    listen: str = ""  # the address of the API; empty: LISTEN, or the next free port on loopback
    public_url: str = ""  # the URL of the API for others; empty: where it listens
    hosts: tuple[str, ...] = ()  # accepted Host headers, besides those of this machine
    cors_origins: tuple[str, ...] = ()  # origins of pages that may use the API, with a token
    trusted_proxies: tuple[str, ...] = ()  # proxies whose X-Forwarded headers are believed
    rate_limit: int = 1000  # requests per second and caller
    tls_cert: str = ""  # a file with the certificate chain
    tls_key: str = ""
    tls_client_ca: str = ""  # if set, clients need a certificate of this authority
    jwt_key: str = ""  # the file of the key that verifies JSON Web Tokens
    jwt_algorithm: JwtAlgorithm = "RS256"
    jwt_issuer: str = ""
    jwt_audience: str = ""
    lookahead: int = 60_000  # the longest time over which missed ticks are spread
    services_file: str = ""  # the file of services and timers; empty: the system is off
    sessions_url: str = ""  # the chat server; empty: the system is off
    sessions_folder: str = "~/.caco/schedule"  # its definitions and last runs
    sessions_cwd: str = ""  # the working directory of new sessions; empty: that of Onbeat
    sessions_check: int = 30 * 60_000  # the delay before a prompt is sent again after an error
    sessions_busy_delay: int = 60 * 60_000  # the same after its session was busy
    sessions_minimum: int = 60 * 60_000  # the shortest time between two runs of a schedule
    sessions_most: int = 100  # the most sessions kept; the oldest are deleted
    workflows_folder: str = ""  # the folder of DAGs; empty: the database
    workflows_executor: str = ""  # a URL, or ray; empty: a function of the program
    workflows_token: str = ""  # the token sent to the executor, as a reference
    workflows_feedback: bool = False  # whether it reports the outcome of every run
    workflows_timeout: int = 3_600_000  # how long that report is awaited
    workflows_overlap_policy: OverlapPolicy = "skip"  # the defaults of schedules
    workflows_catchup_policy: CatchupPolicy = "none"
    workflows_jitter_ms: int = 0
    ray_address: str = ""  # the Ray cluster of targets with `on: ray`; empty: none
    ray_lease: int = 60_000  # how long a silent cluster keeps its runs
    ray_working_dir: str = ""  # the folder of code sent to the cluster; empty: none
    flows_exposes: str = ""  # expose.db, or a folder of exposes; empty: the system is off
    flows_panel: str = ""  # the URL of the panel that launches flows
    flows_user: str = "timer"  # the panel user that flows run as
    flows_password: str = ""  # a reference
    flows_interval: int = 60_000  # between two reads of the exposes
    flows_log_file: str = "./data/timer.log"  # the log of the timer; empty: none
    flows_log_file_level: TimerLevel = "DEBUG"
    flows_std_level: TimerLevel = "INFO"  # the level on the console
    notify: tuple[Channel, ...] = ()  # notification channels: a table of the file

    @classmethod
    def load(
        cls,
        *,
        flags: Mapping[str, object] = {},
        environment: Mapping[str, str],
        file: Path | None = None,
        folder: Path,
        for_workflows: bool = False,
    ) -> "Settings":
        """Merge defaults, file, environment and flags; the later source wins.

        The file is `file`, or the one that ONBEAT_CONFIG names, and must exist then; otherwise
        `onbeat.toml` in `folder`, if it exists. Relative paths start at `folder`. A flag that is
        None was not set. Variables of other workflow and flow schedulers are read `for_workflows`,
        or if a setting of that system is set; Onbeat's own names take precedence.
        """
        in_file = _from_file(environment, file, folder)
        later = {**_from_environment(environment), **_from_flags(flags)}
        if for_workflows or any(name.startswith("workflows_") for name in (*in_file, *later)):
            in_file |= _from_foreign_variables(environment, WORKFLOWS_NAMES)
        if any(name.startswith("flows_") for name in (*in_file, *later)):
            in_file |= _from_foreign_variables(environment, FLOWS_NAMES)
        values = {**in_file, **later}
        return cls(**values)  # type: ignore[arg-type]  # each reader returns the type of its field

    def at(self, database: str) -> "Settings":
        """Return the same settings for another database."""
        return replace(self, database=str(_read("database", database, at="address")))

    @property
    def listen_at(self) -> tuple[str, int]:
        """The host and the port on which the API listens."""
        host, _, port = (self.listen or LISTEN).rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach the API."""
        host, _ = self.listen_at
        return host != "localhost" and not ip_address(host).is_loopback

    @property
    def api_url(self) -> str:
        """The URL of the API in links, without a trailing slash."""
        if self.public_url:
            return self.public_url
        host, port = self.listen_at
        if host != "localhost" and ip_address(host).is_unspecified:
            host = self.hosts[0].partition(":")[0] if self.hosts else "localhost"
        netloc = f"[{host}]" if ":" in host else host
        return f"{'https' if self.tls_cert else 'http'}://{netloc}:{port}"

    @property
    def token_path(self) -> Path | None:
        """The file for the first token; None if the database is in memory."""
        if self.is_postgres:
            return Path("onbeat.token")
        path = self.database_path
        return path and path.with_name(f"{path.name}.token")

    @property
    def logs_json(self) -> bool:
        """Whether the log is JSON: by default, unless stderr is a terminal."""
        return self.log_format == "json" or (self.log_format == "auto" and not sys.stderr.isatty())

    @property
    def is_postgres(self) -> bool:
        """Whether the database is PostgreSQL rather than SQLite."""
        return not self.database.startswith("sqlite:")

    @property
    def is_in_memory(self) -> bool:
        """Whether the database is SQLite in memory."""
        return not self.is_postgres and self.database_path is None

    @property
    def database_path(self) -> Path | None:
        """The file of the database; None in memory or on PostgreSQL."""
        path = self.database.removeprefix("sqlite://").removeprefix("/")
        return Path(path) if path and not self.is_postgres else None

    @property
    def database_shown(self) -> str:
        """The address of the database without a password or options."""
        return without_password(self.database) if self.is_postgres else self.database

    @property
    def output_folder(self) -> Path | None:
        """The folder for the output of runs; None: a temporary one, for a database in memory."""
        if self.output or self.is_postgres:
            return Path(self.output or "onbeat.output")
        path = self.database_path
        return path and path.with_name(f"{path.name}.output")


def _from_file(
    environment: Mapping[str, str], file: Path | None, folder: Path
) -> dict[str, object]:
    hint = "a TOML file that can be read"
    if file is None and CONFIG in environment:
        if not environment[CONFIG]:
            raise InvalidSettings(CONFIG, "it is empty", hint="name a file, or unset the variable")
        file, hint = Path(environment[CONFIG]), f"{CONFIG} names it"
    name, path = (file, folder / file) if file else (folder / FILE, folder / FILE)
    try:
        given = _parse(str(name), read_regular(path).decode())
    except OSError as failed:
        if file is None and isinstance(failed, FileNotFoundError) and not path.is_symlink():
            return {}
        problem = f"it cannot be read: {failed.strerror}"
        raise InvalidSettings(str(name), problem, hint=hint) from None
    except UnicodeDecodeError:
        raise InvalidSettings(str(name), "it is not in UTF-8", hint="save it in UTF-8") from None
    except ValueError:  # a NUL in the name
        raise InvalidSettings(quote_value(str(name)), "it is not a file name", hint=hint) from None
    found = {}
    for key, value in _with_tables_flat(given, at=str(name)).items():
        at = f"{name}: {_spelled(key)}"
        if key not in _READERS:
            raise _unknown(at, _meant_in_file(key, value))
        found[key] = _read(key, value, at=at)
    return found


def _meant_in_file(key: str, value: object) -> str:
    """Return a hint for an unknown setting: where it belongs, or a similar name."""
    for system in SYSTEMS:
        name = key.removeprefix(f"{system}_")
        if name != key and name in _READERS:
            return f"{name} belongs above [{system}]"
    near = get_close_matches(key[:64], SYSTEMS, n=1) if isinstance(value, dict) else ()
    return f"did you mean [{near[0]}]?" if near else did_you_mean(key, _READERS)


def _with_tables_flat(given: Mapping[str, object], *, at: str) -> dict[str, object]:
    """Turn `[sessions] url` into `sessions_url`, for each system."""
    tables = {key: value for key, value in given.items() if key in SYSTEMS}
    found = {key: value for key, value in given.items() if key not in tables}
    for key, value in tables.items():
        if not isinstance(value, dict):
            found[key] = value  # reported as an unknown setting
            continue
        for name, each in value.items():
            if f"{key}_{name}" in found:
                problem, hint = "it is set twice", f"{name} in [{key}] is the same setting"
                raise InvalidSettings(f"{at}: {_spelled(f'{key}_{name}')}", problem, hint=hint)
            found[f"{key}_{name}"] = each
    return found


def _from_foreign_variables(
    environment: Mapping[str, str], names: Mapping[str, tuple[str, Reader]]
) -> dict[str, object]:
    """Read the variables that users of another scheduler have in their environment."""
    found = {}
    for variable, (name, reader) in names.items():
        if variable in environment:
            text = environment[variable]
            value = int(text) if re.fullmatch(r"[0-9]{1,18}", text.strip()) else text
            found[name] = _read_by(reader, value, at=variable)
    found.pop("tick_ms", None)  # accepted and ignored: nothing is polled
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    known = {PREFIX + name.upper(): name for name in _READERS.keys() - _TABLES}
    found = {}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable == CONFIG or variable in SET_FOR_COMMANDS:
            continue
        if variable not in known:
            # Compared without the prefix, which makes all names similar.
            ends = [name.removeprefix(PREFIX) for name in (*known, CONFIG)]
            hint = did_you_mean(variable.removeprefix(PREFIX).upper(), ends)
            raise _unknown(_spelled(variable), re.sub(r"[A-Z_]+", rf"{PREFIX}\g<0>", hint))
        name = known[variable]
        found[name] = _read(name, _as_in_a_file(name, environment[variable]), at=variable)
    return found


def _from_flags(flags: Mapping[str, object]) -> dict[str, object]:
    found = {}
    for name, value in flags.items():
        at = f"--{_spelled(name).replace('_', '-')}"
        if name not in _READERS.keys() - _TABLES:
            raise _unknown(at, did_you_mean(name, _READERS.keys() - _TABLES))
        if value is not None:
            plain = _as_in_a_file(name, value) if isinstance(value, str) else value
            found[name] = _read(name, plain, at=at)
    return found


def _parse(name: str, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as failed:  # ValueError: also a number of 5000 digits
        hint = 'such as concurrency = 64 or lease = "5s"'
        raise InvalidSettings(name, f"it is not TOML: {failed}", hint=hint) from None


def _as_in_a_file(name: str, text: str) -> object:
    """Convert a text to the type that a file has; an invalid one stays as it is, to be refused."""
    if name in _NUMBERS and re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
        return int(text)
    if name in _FLAGS and text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    if name in _LISTS:
        return [part.strip() for part in text.split(",")] if text.strip() else []
    return text


def _read(name: str, value: object, *, at: str) -> object:
    return _read_by(_READERS[name], value, at=at)


def _read_by(reader: Reader, value: object, *, at: str) -> object:
    try:
        return reader(value)
    except (InvalidSchedule, InvalidSettings) as refused:
        where = f"{at}.{refused.field}" if refused.field else at
        raise InvalidSettings(where, refused.problem, hint=refused.hint) from None


def _unknown(at: str, hint: str) -> InvalidSettings:
    return InvalidSettings(at, "unknown setting", hint=hint)


def _spelled(name: str) -> str:
    return name if re.fullmatch(r"[\w-]{1,64}", name) else quote_value(name)


def _database(value: object) -> str:
    # An address may contain a password: only its scheme is quoted.
    forms = "sqlite:///relative.db, sqlite:////absolute.db, or postgresql://user@host/name"
    text = _text(value)
    address = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", text, re.DOTALL)
    if address is None:
        raise InvalidSettings("", "it has no scheme", hint=forms)
    scheme, rest = address.groups()
    if scheme in {"postgres", "postgresql"}:
        return text
    if scheme.startswith(("postgres+", "postgresql+")):
        raise InvalidSettings("", "it names a driver", hint="postgresql://user@host/name")
    if scheme != "sqlite":
        raise InvalidSettings("", f"no database is called {quote_value(scheme)}", hint=forms)
    if rest and not rest.startswith("/"):
        raise InvalidSettings("", "SQLite has no host: a slash is missing", hint=forms)
    if "?" in rest:
        raise InvalidSettings("", "it has options after '?'", hint=forms)
    if rest == "/:memory:" or (rest and rest[1:].rpartition("/")[2] in {"", ".", ".."}):
        raise InvalidSettings("", "it does not name a file", hint=forms)
    return text


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidSettings("", f"{quote_value(value)} is not a text", hint="a text in quotes")
    if "\0" in value:
        raise InvalidSettings("", "it contains a NUL character", hint="a path")
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
            problem = f"{quote_value(quoted)} is not the name of a variable"
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
    raise InvalidSettings("", f"{quote_value(match[1])} is not an address", hint=hint)


def _url(example: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = _text(value)
        if text and not re.fullmatch(rf"https?://{HOST}(/[A-Za-z0-9._~/-]*)?", text):
            problem = f"{quote_value(text.rpartition('@')[2])} is not a URL that others can use"
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
            raise InvalidSettings("", f"{quote_value(name)} is not a host", hint=hint)
    return tuple(dict.fromkeys(name.lower() for name in value))


def _networks(value: object) -> tuple[str, ...]:
    hint = 'such as ["10.0.0.7", "10.1.0.0/16"]'
    if not isinstance(value, (list, tuple)):
        raise InvalidSettings("", f"{quote_value(value)} is not a list", hint=hint)
    for name in value:
        try:
            ip_network(name if isinstance(name, str) else "")
        except ValueError:
            problem = f"{quote_value(name)} is neither an address nor a network"
            raise InvalidSettings("", problem, hint=hint) from None
    return tuple(dict.fromkeys(value))


# A name or an address, with or without a port.
HOST = r"(?:[A-Za-z0-9][A-Za-z0-9.-]{0,252}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"

_READERS: dict[str, Reader] = {
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
_TABLES = {"notify"}  # set in the file only
_FLAGS = {"workflows_feedback"}
_NUMBERS = {
    "concurrency", "catchup_per_second", "rate_limit", "sessions_most", "workflows_jitter_ms",
}  # fmt: skip
SYSTEMS = ("flows", "services", "sessions", "workflows", "ray")
# Variables of the schedulers that Onbeat replaces.
WORKFLOWS_NAMES: dict[str, tuple[str, Reader]] = {
    "TICK_MS": ("tick_ms", _whole(1, 3_600_000)),
    "LOOKAHEAD_MS": ("lookahead", _whole(1000, 3_600_000)),
    "MAX_CATCHUP_PER_TICK": ("catchup_per_second", _READERS["catchup_per_second"]),
    "DEFAULT_OVERLAP_POLICY": ("workflows_overlap_policy", _choice(OverlapPolicy)),
    "DEFAULT_CATCHUP_POLICY": ("workflows_catchup_policy", _choice(CatchupPolicy)),
    "DEFAULT_JITTER_MS": ("workflows_jitter_ms", _READERS["workflows_jitter_ms"]),
}
FLOWS_NAMES: dict[str, tuple[str, Reader]] = {
    "KODO_TIMER_LOG_FILE": ("flows_log_file", _text),
    "KODO_TIMER_LOG_FILE_LEVEL": ("flows_log_file_level", _timer_level),
    "KODO_TIMER_STD_LEVEL": ("flows_std_level", _timer_level),
    "KODO_TIMER_INTERVAL": ("flows_interval", _seconds),
    "KODO_TIMER_USER": ("flows_user", _name),
}
_LISTS = {"cors_origins", "hosts", "pass_env", "roles", "trusted_proxies"}

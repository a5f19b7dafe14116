"""Settings: defaults, overridden by a file, the environment and flags, in this order.

`Settings.load` is strict about each of them: an unknown name or an invalid value is refused where
it is written, even if a later source overrides it.
"""

import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path

from onbeat.app.setting_values import (
    FLAGS,
    FLOWS_NAMES,
    LISTS,
    NUMBERS,
    READERS,
    SYSTEMS,
    TABLES,
    WORKFLOWS_NAMES,
    CatchupPolicy,
    HttpTargets,
    JwtAlgorithm,
    LogFormat,
    LogLevel,
    OverlapPolicy,
    Reader,
    TimerLevel,
)
from onbeat.core.notify.channels import Channel
from onbeat.errors import (
    InvalidSchedule,
    InvalidSettings,
    did_you_mean,
    quote_value,
    without_password,
)
from onbeat.host.regular_files import read_regular
from onbeat.ports.store import Role

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
        if key not in READERS:
            raise _unknown(at, _meant_in_file(key, value))
        found[key] = _read(key, value, at=at)
    return found


def _meant_in_file(key: str, value: object) -> str:
    """Return a hint for an unknown setting: where it belongs, or a similar name."""
    for system in SYSTEMS:
        name = key.removeprefix(f"{system}_")
        if name != key and name in READERS:
            return f"{name} belongs above [{system}]"
    near = get_close_matches(key[:64], SYSTEMS, n=1) if isinstance(value, dict) else ()
    return f"did you mean [{near[0]}]?" if near else did_you_mean(key, READERS)


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
    known = {PREFIX + name.upper(): name for name in READERS.keys() - TABLES}
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
        if name not in READERS.keys() - TABLES:
            raise _unknown(at, did_you_mean(name, READERS.keys() - TABLES))
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
    if name in NUMBERS and re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
        return int(text)
    if name in FLAGS and text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    if name in LISTS:
        return [part.strip() for part in text.split(",")] if text.strip() else []
    return text


def _read(name: str, value: object, *, at: str) -> object:
    return _read_by(READERS[name], value, at=at)


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

"""Settings: defaults, overridden by a file, the environment and flags, in this order.

A setting is declared once, in its annotation. `sessions_url` is the setting `url` of the plug
`sessions`.
"""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, TypeVar, cast

from onbeat.app.setting_sources import KnownSettings, read_setting, read_settings
from onbeat.app.setting_values import (
    read_database,
    read_hosts,
    read_listen,
    read_networks,
    read_roles,
    read_variables,
)
from onbeat.core.fields import (
    TEXT,
    TEXTS,
    Field,
    Option,
    annotations,
    choice,
    declared,
    length,
    number,
    server_url,
    text,
)
from onbeat.core.notify.channels import Channel, read_channels
from onbeat.core.web_origins import read_origins
from onbeat.errors import without_password
from onbeat.host.plugs import find_plugs, load, plugs
from onbeat.ports.store import Role

T = TypeVar("T")

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]
HttpTargets = Literal["any", "public"]
JwtAlgorithm = Literal["RS256", "ES256", "EdDSA", "HS256"]

LISTEN = "127.0.0.1:8585"
TABLES = frozenset({"notify"})  # set in the file only


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything an operator can change. Nothing else in the package reads the environment.

    Durations are milliseconds here, and texts such as `30s` in files, variables and flags.
    """

    database: Annotated[
        str,
        Field(
            (
                "the database: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://` in "
                "memory, or [`postgresql://user@host/name`](postgresql.md)"
            ),
            read_database,
            TEXT,
        ),
    ] = "sqlite:///onbeat.db"
    output: Annotated[
        str,
        text(
            "the folder for the output of runs. Empty: `onbeat.db.output` beside the database,"
            " a temporary folder for a database in memory, `onbeat.output` with PostgreSQL"
        ),
        Option("FOLDER", "Folder for the output of runs.", default="beside the database"),
    ] = ""
    roles: Annotated[
        tuple[Role, ...],
        Field(
            (
                "the roles of this node: `plan` decides ticks, `run` launches runs, `api` serves "
                "HTTP"
            ),
            read_roles,
            TEXTS,
            list,
        ),
        Option("ROLES", "Roles of this node."),
    ] = ("plan", "run", "api")
    concurrency: Annotated[
        int,
        number("the number of concurrent runs on this node, 1 to 100000", 1, 100_000),
        Option("N", "Concurrent runs."),
    ] = 512
    lease: Annotated[
        int,
        length(
            "how long a node that stops responding keeps its runs, 1s to 1h", least="1s", most="1h"
        ),
        Option("LENGTH", "How long a silent node keeps its runs."),
    ] = 5_000
    stop_grace: Annotated[
        int,
        length(
            (
                "how long a stopping node waits for its runs; after that programs get SIGTERM and "
                "10 s later SIGKILL: 0s to 1d"
            ),
            least="0s",
            most="1d",
        ),
        Option("LENGTH", "Time for runs to finish on stop."),
    ] = 30_000
    catchup_per_second: Annotated[
        int,
        number(
            "the maximum of missed ticks that this node starts per second, 1 to 100000", 1, 100_000
        ),
        Option("N", "Missed ticks to start per second."),
    ] = 100
    keep: Annotated[
        int,
        length(
            "how long finished runs and events are kept, 1h to 36500d", least="1h", most="36500d"
        ),
        Option("LENGTH", "How long history is kept."),
    ] = 30 * 86_400_000
    log_level: Annotated[
        LogLevel,
        choice("`debug`, `info`, `warning` or `error`", LogLevel),
        Option("LEVEL", "debug, info, warning or error."),
    ] = "info"
    log_format: Annotated[
        LogFormat,
        choice("`text`, `json`, or `auto`: text on a terminal, JSON otherwise", LogFormat),
        Option("FORMAT", "auto, text or json.", default="auto: text on a terminal"),
    ] = "auto"
    http_targets: Annotated[
        HttpTargets,
        choice(
            (
                "`any`, or `public`: requests never go to a private, local or otherwise non-public"
                " address, however the name is spelled or redirected"
            ),
            HttpTargets,
        ),
        Option("WHICH", "any, or public (no private addresses)."),
    ] = "any"
    pass_env: Annotated[
        tuple[str, ...],
        Field(
            "names of environment variables that commands get in addition to the usual ones",
            read_variables,
            TEXTS,
            list,
        ),
        Option("NAMES", "Environment variables passed to commands, comma-separated."),
    ] = ()
    secrets: Annotated[
        str,
        text("the folder with the files of `secret://name`, see [security](security.md#secrets)"),
        Option("FOLDER", "Folder of the files that secret://NAME refers to."),
    ] = ""
    listen: Annotated[
        str,
        Field(
            (
                "the address of the API, such as `127.0.0.1:8585` or `[::1]:8585`. If the port is "
                "in use, the start fails with exit code 69; port 0 takes any free port. Empty: "
                "`127.0.0.1:8585`, or the next free port if that is in use (with `public_url`, no "
                "other port). An address beyond loopback needs TLS or a proxy"
            ),
            read_listen,
            TEXT,
        ),
        Option("HOST:PORT", "Address of the API.", default="127.0.0.1:8585"),
    ] = ""
    public_url: Annotated[
        str,
        server_url(
            (
                "the public address of the API, such as `https://onbeat.example.com`, for links "
                "and callbacks. Empty: links, and callbacks of workflows and sessions, use the "
                "listening address; other callbacks have no address"
            ),
            "https://onbeat.example.com",
        ),
        Option("URL", "URL under which clients reach the API."),
    ] = ""
    hosts: Annotated[
        tuple[str, ...],
        Field(
            (
                "host names under which the API answers in addition to those of this machine; with"
                " a port if it matters: `example.com:8443`"
            ),
            read_hosts,
            TEXTS,
            list,
        ),
        Option("NAMES", "Host names the API answers to, comma-separated."),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Field(
            (
                "origins such as `https://chat.example.com` whose pages may use the API with a "
                "token, see [security](security.md#cross-origin-requests-cors)"
            ),
            read_origins,
            TEXTS,
            list,
        ),
        Option("ORIGINS", "Origins whose pages may use the API, comma-separated."),
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        Field(
            (
                "addresses and networks of proxies that may name the client (`X-Forwarded-For`, "
                "`-Proto`, `-Host`)"
            ),
            read_networks,
            TEXTS,
            list,
        ),
        Option("NETWORKS", "Proxies whose X-Forwarded-For is trusted."),
    ] = ()
    rate_limit: Annotated[
        int,
        number("requests of one caller per second, 1 to 1000000", 1, 1_000_000),
        Option("N", "API requests permitted per second and caller."),
    ] = 1000
    tls_cert: Annotated[
        str,
        text("a PEM file with the certificate and its chain"),
        Option("FILE", "The TLS certificate, with its chain."),
    ] = ""
    tls_key: Annotated[
        str,
        text("a PEM file with its key, not readable by other users of the machine"),
        Option("FILE", "The private key of the certificate."),
    ] = ""
    tls_client_ca: Annotated[
        str,
        text("a PEM file with authorities; if set, clients need a certificate of one of them"),
        Option("FILE", "The CA of client certificates, which are then required."),
    ] = ""
    jwt_key: Annotated[
        str,
        text(
            "a file with the public key, or the secret of at least 32 bytes, that verifies "
            "JSON Web Tokens. Empty: JSON Web Tokens are not accepted"
        ),
        Option("FILE", "The key that verifies JSON Web Tokens."),
    ] = ""
    jwt_algorithm: Annotated[
        JwtAlgorithm,
        choice(
            "`RS256`, `ES256`, `EdDSA` or `HS256`: the only algorithm that is accepted",
            JwtAlgorithm,
        ),
        Option("NAME", "RS256, ES256, EdDSA or HS256."),
    ] = "RS256"
    jwt_issuer: Annotated[
        str,
        text("the required `iss` of a token"),
        Option("TEXT", "The required iss of JSON Web Tokens."),
    ] = ""
    jwt_audience: Annotated[
        str,
        text("the required `aud` of a token"),
        Option("TEXT", "The required aud of JSON Web Tokens."),
    ] = ""
    lookahead: Annotated[
        int,
        length(
            "the longest time over which missed ticks are spread (`catchup: spread`), 1s to 1h",
            least="1s",
            most="1h",
        ),
    ] = 60_000
    notify: Annotated[
        tuple[Channel, ...], Field("notification channels: tables of the file", read_channels, {})
    ] = ()
    of_plugs: tuple[object, ...] = ()  # the settings of plugs that are not all at their default

    @classmethod
    def load(
        cls,
        *,
        flags: Mapping[str, object] = {},
        environment: Mapping[str, str],
        file: Path | None = None,
        folder: Path,
        systems: Collection[str] = (),
    ) -> "Settings":
        """Merge defaults, file, environment and flags; the later source wins.

        The file is `file`, or the one that ONBEAT_CONFIG names, and must exist then; otherwise
        `onbeat.toml` in `folder`, if it exists. Relative paths start at `folder`. A flag that is
        None was not set. Variables of a scheduler that a system replaces are read if that system
        is among `systems`, or one of its settings is set; Onbeat's own names take precedence.
        """
        values = read_settings(
            known_settings(),
            flags=flags,
            environment=environment,
            file=file,
            folder=folder,
            systems=systems,
        )
        return cls.of_values(values)

    @classmethod
    def of_values(cls, values: Mapping[str, object]) -> "Settings":
        """Return settings with these values, by full names such as `sessions_url`."""
        own = {name: value for name, value in values.items() if name in declared(cls)}
        of_plugs = []
        for prefix, record in plug_settings().items():
            given = {
                name: values[full]
                for name in declared(record)
                if (full := f"{prefix}_{name}") in values
            }
            if (found := record(**given)) != record():
                of_plugs.append(found)
        return cls(**own, of_plugs=tuple(of_plugs))  # type: ignore[arg-type]  # `read` returns the type

    def of(self, record: type[T]) -> T:
        """Return the settings of a plug, which are of this class."""
        return next((each for each in self.of_plugs if isinstance(each, record)), None) or record()

    def value(self, name: str) -> object:
        """Return a setting by its full name, such as `sessions_url`; None if there is none."""
        if name in declared(Settings):
            return cast("object", getattr(self, name))
        for prefix, record in plug_settings().items():
            own = name.removeprefix(f"{prefix}_")
            if own != name and own in declared(record):
                return cast("object", getattr(self.of(record), own))
        return None

    def at(self, database: str) -> "Settings":
        """Return the same settings for another database."""
        field = declared(Settings)["database"]
        return replace(self, database=str(read_setting(field, database, at="address")))

    @property
    def public_only(self) -> bool:
        """Whether requests may go to public addresses only."""
        return self.http_targets == "public"

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


def plug_settings() -> dict[str, type[object]]:
    """Return the settings of plugs: their class, by the name of the plug."""
    return {plug.name: load(plug.settings, type) for plug in plugs() if plug.settings}


@cache
def known_settings() -> KnownSettings:
    """Return every setting that a file, a variable or a flag may set."""
    found = dict(declared(Settings))
    tables = {name: found.pop(name) for name in TABLES}
    records = plug_settings()
    for prefix, record in records.items():
        found |= {f"{prefix}_{name}": field for name, field in declared(record).items()}
    variables = {p.name: load(p.variables, dict) for p in plugs() if p.variables}
    left_out = {each.name.replace("-", "_"): each.origin.package for each in find_plugs().left_out}
    return KnownSettings(found, tables, tuple(records), variables, left_out)


def default_of(name: str) -> object:
    """Return the default of a setting, by its full name."""
    return Settings().value(name)


def shown_default(name: str) -> str:
    """Return the default of a setting as an option takes it; empty if it is an empty value."""
    written = known_settings().fields[name].write(default_of(name))
    return ",".join(written) if isinstance(written, list) else str(written or "")


def setting_options() -> dict[str, Option]:
    """Return the options of `onbeat up` by the full names of their settings."""
    found = dict(annotations(Settings, Option))
    for prefix, record in plug_settings().items():
        found |= {f"{prefix}_{name}": each for name, each in annotations(record, Option).items()}
    return found

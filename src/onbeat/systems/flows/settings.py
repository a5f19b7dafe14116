"""The settings of flows: `flows_exposes` and so on."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from onbeat.core.fields import (
    TEXT,
    Field,
    Option,
    Variable,
    length,
    number,
    read_choice,
    read_text,
    server_url,
    text,
)
from onbeat.errors import InvalidSettings, quote_value

TimerLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


def _read_level(value: object) -> str:
    level = value.upper() if isinstance(value, str) else value
    return read_choice(level, choices=get_args(TimerLevel))


def _read_user(value: object) -> str:
    name = read_text(value)
    if not re.fullmatch(r"[A-Za-z0-9._@-]{1,100}", name):
        problem = f"{quote_value(name)} is not a user name"
        raise InvalidSettings("", problem, hint="letters, digits and . _ @ -, at most 100")
    return name


@dataclass(frozen=True, slots=True)
class FlowsSettings:
    """Where exposes are, the panel that launches their flows, and the log of the timer."""

    exposes: Annotated[
        str,
        text(
            "the exposes of [flows](flows.md): an `expose.db`, or a folder of YAML files. "
            "Empty: the flows system is off"
        ),
        Option("PATH", "Where Kodosumi exposes its flows: expose.db, or a folder."),
    ] = ""
    panel: Annotated[
        str,
        server_url(
            (
                "the panel that launches flows, such as `http://127.0.0.1:3370`. Empty: runs of "
                "flows wait for a node that has one"
            ),
            "http://127.0.0.1:3370",
        ),
        Option("URL", "URL of the Kodosumi panel, which launches flows."),
    ] = ""
    user: Annotated[
        str,
        Field(
            (
                "the user of the panel that logs in and that runs record. `KODO_TIMER_USER` sets "
                "it too"
            ),
            _read_user,
            TEXT,
        ),
    ] = "timer"
    password: Annotated[
        str, text("the password of that user: `secret://name` or `${env:NAME}`")
    ] = ""
    interval: Annotated[
        int,
        length(
            (
                "how often exposes are read, and the delay before an unreachable panel is tried "
                "again: 1s to 1d"
            ),
            least="1s",
            most="1d",
        ),
    ] = 60_000
    log_file: Annotated[
        str, text("the log of the timer, ten files of 1 MiB. Empty: no such log")
    ] = "./data/timer.log"
    log_file_level: Annotated[
        TimerLevel,
        Field(
            "the level of that file: `DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`",
            _read_level,
            TEXT,
        ),
    ] = "DEBUG"
    std_level: Annotated[
        TimerLevel, Field("the level of the same messages on the console", _read_level, TEXT)
    ] = "INFO"


# Variables of the scheduler that this system replaces.
VARIABLES = {
    "KODO_TIMER_LOG_FILE": Variable("flows_log_file"),
    "KODO_TIMER_LOG_FILE_LEVEL": Variable("flows_log_file_level"),
    "KODO_TIMER_STD_LEVEL": Variable("flows_std_level"),
    "KODO_TIMER_INTERVAL": Variable("flows_interval", number("", 1, 86_400), scale=1000),
    "KODO_TIMER_USER": Variable("flows_user"),
}

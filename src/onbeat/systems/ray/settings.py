"""The settings of Ray: `ray_address` and so on."""

import re
from dataclasses import dataclass
from typing import Annotated

from onbeat.core.fields import HOST, TEXT, Field, Option, length, read_text, text
from onbeat.errors import InvalidSettings, quote_value


def _read_address(value: object) -> str:
    address = read_text(value)
    known = address in {"", "auto", "local"}
    if not known and not re.fullmatch(rf"(ray://)?{HOST}", address):
        problem = f"{quote_value(address)} is not an address of a Ray cluster"
        hint = "such as 10.0.0.7:6379, or auto for the one on this machine"
        raise InvalidSettings("", problem, hint=hint)
    return address


@dataclass(frozen=True, slots=True)
class RaySettings:
    """The cluster, and what it needs of this machine."""

    address: Annotated[
        str,
        Field(
            (
                "the [Ray cluster](ray.md) for functions with `on: ray`: `10.0.0.7:6379`, or "
                "`auto` for the one on this machine. Empty: these runs wait"
            ),
            _read_address,
            TEXT,
        ),
        Option("HOST:PORT", "The Ray cluster that runs `on: ray` schedules."),
    ] = ""
    lease: Annotated[
        int,
        length(
            "how long a cluster that stops responding keeps its runs, 5s to 1h",
            least="5s",
            most="1h",
        ),
    ] = 60_000
    working_dir: Annotated[
        str, text("the folder whose code is sent to the cluster. Empty: the cluster has the code")
    ] = ""

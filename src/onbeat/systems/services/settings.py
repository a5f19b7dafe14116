"""The settings of services: `services_file`."""

from dataclasses import dataclass
from typing import Annotated

from onbeat.core.fields import Option, text


@dataclass(frozen=True, slots=True)
class ServicesSettings:
    """Where the services and their timers are."""

    file: Annotated[
        str,
        text("the file of [services and timers](services.md). Empty: the services system is off"),
        Option("FILE", "The file that defines services and their timers."),
    ] = ""

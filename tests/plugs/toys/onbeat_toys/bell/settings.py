"""The settings of bells: `bell_tower`."""

from dataclasses import dataclass
from typing import Annotated

from onbeat.core.fields import Option, text


@dataclass(frozen=True, slots=True)
class BellSettings:
    """Where the bell hangs."""

    tower: Annotated[
        str,
        text("the file to which each stroke adds a line. Empty: this node has no bell"),
        Option("FILE", "The file to which each stroke of a bell adds a line."),
    ] = ""

"""The settings of reminders: `reminders_file`."""

from dataclasses import dataclass
from typing import Annotated

from onbeat.core.fields import text


@dataclass(frozen=True, slots=True)
class RemindersSettings:
    """Where the reminders are."""

    file: Annotated[str, text("the file of reminders. Empty: the system is off")] = ""

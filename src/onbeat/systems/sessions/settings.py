"""The settings of chat sessions: `sessions_url` and so on."""

from dataclasses import dataclass
from typing import Annotated

from onbeat.core.fields import Option, length, number, server_url, text


@dataclass(frozen=True, slots=True)
class SessionsSettings:
    """The chat server, its definitions, and the limits of its sessions."""

    url: Annotated[
        str,
        server_url(
            (
                "the chat server of [sessions](sessions.md), such as `http://127.0.0.1:53000`. "
                "Empty: the sessions system is off"
            ),
            "http://127.0.0.1:53000",
        ),
        Option("URL", "URL of the chat server that scheduled prompts are sent to."),
    ] = ""
    folder: Annotated[str, text("the folder of its definitions and last runs")] = "~/.caco/schedule"
    cwd: Annotated[
        str, text("the working folder of new sessions. Empty: the working folder of Onbeat")
    ] = ""
    check: Annotated[
        int, length("the delay of a retry after an error, 1m to 1d", least="1m", most="1d")
    ] = 30 * 60_000
    busy_delay: Annotated[
        int, length("the delay of a retry after a busy session, 1m to 7d", least="1m", most="7d")
    ] = 60 * 60_000
    minimum: Annotated[
        int,
        length("the shortest interval that a schedule may have, 1m to 1d", least="1m", most="1d"),
    ] = 60 * 60_000
    most: Annotated[
        int,
        number(
            (
                "the number of sessions to keep; the least recently used are deleted first, 1 to "
                "100000"
            ),
            1,
            100_000,
        ),
    ] = 100

"""The first token of a database: made when there is none, and left where its operator looks."""

import os
from contextlib import suppress
from pathlib import Path

from onbeat.errors import InvalidSettings
from onbeat.settings import Settings
from onbeat.tokens import Tokens

FIRST = "first"


async def ensure_first_token(tokens: Tokens, settings: Settings) -> Path | None:
    """Make an admin token if there is none yet; return the file that has its secret, if so.

    Only its owner can read the file. What has no file to be written to, as its database is in
    memory, has no first token either.
    """
    path = settings.token_path
    if path is None or any(row.kind == "token" for row in await tokens.all()):
        return None
    # What is there from before is of another database, or of a start that was broken off.
    with suppress(FileNotFoundError):
        path.unlink()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        _, secret = await tokens.create(FIRST, "admin")
        os.write(file, f"{secret}\n".encode())
        os.fsync(file)
    except BaseException as failed:
        path.unlink()
        if isinstance(failed, InvalidSettings):  # another node was faster, and has written it
            return None
        raise
    finally:
        os.close(file)
    return path


def link_of(settings: Settings, code: str) -> str:
    """Return the address that opens the dashboard with a one-time code."""
    return f"{settings.api_url}/login?code={code}"

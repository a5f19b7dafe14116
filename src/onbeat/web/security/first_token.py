"""The first token of a database: made when there is none, and left where its operator looks."""

import os
import secrets
from pathlib import Path

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings
from onbeat.service.tokens import Tokens

FIRST = "first"


async def ensure_first_token(tokens: Tokens, settings: Settings) -> Path | None:
    """Make an admin token if there is none yet; return the file that has its secret, if so.

    Only its owner can read the file. What has no file to be written to, as its database is in
    memory, has no first token either.
    """
    path = settings.token_path
    if path is None or any(row.kind == "token" for row in await tokens.all()):
        return None
    # A file of one's own, so that nodes which start together never touch each other's: only the
    # one whose token is kept puts its file into place.
    own = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(8)}")
    file = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        _, secret = await tokens.create(FIRST, "admin")
        try:
            os.write(file, f"{secret}\n".encode())
            os.fsync(file)
            own.replace(path)  # what is there from before is of another database
        except BaseException:
            await tokens.revoke(FIRST)  # nobody has its secret: the next start makes another
            raise
    except InvalidSettings:  # another node was faster, and writes it
        return None
    finally:
        os.close(file)
        own.unlink(missing_ok=True)
    return path


def link_of(url: str, code: str) -> str:
    """Return what opens the dashboard of the API that is there, with a one-time code."""
    return f"{url}/login?code={code}"

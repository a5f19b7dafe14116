"""The first token of a database, created on the first start and written to a file."""

import os
import secrets
from pathlib import Path

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings
from onbeat.service.tokens import Tokens

FIRST = "first"


async def ensure_first_token(tokens: Tokens, settings: Settings) -> Path | None:
    """Create an admin token if there is none; return the file with its secret if it was created.

    Only the owner of the file can read it. A database in memory has no such file, and so no first
    token.
    """
    path = settings.token_path
    if path is None or any(row.kind == "token" for row in await tokens.all()):
        return None
    # Nodes that start concurrently write separate files: only the one that stored its token
    # moves its file into place.
    own = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(8)}")
    file = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        _, secret = await tokens.create(FIRST, "admin")
        try:
            os.write(file, f"{secret}\n".encode())
            os.fsync(file)
            own.replace(path)  # an existing file belongs to another database
        except BaseException:
            await tokens.revoke(FIRST)  # its secret is lost: the next start creates another
            raise
    except InvalidSettings:  # another node was faster, and writes the file
        return None
    finally:
        os.close(file)
        own.unlink(missing_ok=True)
    return path


def login_url(url: str, code: str) -> str:
    """Return the URL that opens the dashboard with a one-time code."""
    return f"{url}/login?code={code}"

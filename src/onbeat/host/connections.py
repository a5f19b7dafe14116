"""Connections to other programs, and why one failed, in words."""

import asyncio
import os
import ssl


async def connect(host: str, port: int, *, tls: bool = False) -> None:
    """Connect to an address and close the connection, or raise OSError."""
    context = ssl.create_default_context() if tls else None
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.close()


def reason_of(broken: OSError) -> str:
    """Return why a connection failed."""
    if isinstance(broken, ssl.SSLCertVerificationError):
        return f"certificate: {broken.verify_message}"
    if isinstance(broken, ssl.SSLError):
        return f"TLS: {broken.reason or broken}"
    if broken.errno is not None and broken.errno > 0:
        return os.strerror(broken.errno)  # without the text that asyncio adds
    return broken.strerror or str(broken)

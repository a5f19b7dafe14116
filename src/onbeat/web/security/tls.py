"""TLS, and the addresses that require it."""

import ssl
import stat
from pathlib import Path

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings, quote_value
from onbeat.host.regular_files import read_regular


def check_exposure(settings: Settings) -> None:
    """Refuse to listen on an address that other machines reach without TLS."""
    if settings.is_exposed and not settings.tls_cert and not settings.trusted_proxies:
        problem = f"{settings.listen} is reachable from other machines, and TLS is not configured"
        hint = "tls_cert and tls_key, or trusted_proxies behind a TLS proxy; or 127.0.0.1:8585"
        raise InvalidSettings("listen", problem, hint=hint)


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the server, or None without TLS."""
    for name, needs in REQUIRED_WITH:
        if getattr(settings, name) and not getattr(settings, needs):
            raise InvalidSettings(needs, f"{name} requires it", hint="a PEM file")
    if not settings.tls_cert:
        return None
    _check_key(settings.tls_key)
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        _check_regular(name, getattr(settings, name))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except OSError as broken:  # also an SSLError
        problem = f"it does not match tls_key, or cannot be read: {_reason(broken)}"
        raise InvalidSettings("tls_cert", problem, hint="two PEM files") from None
    if settings.tls_client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as broken:
            problem = f"it cannot be read: {_reason(broken)}"
            raise InvalidSettings("tls_client_ca", problem, hint="a PEM file") from None
    return context


REQUIRED_WITH = (("tls_key", "tls_cert"), ("tls_cert", "tls_key"), ("tls_client_ca", "tls_cert"))


def _check_key(name: str) -> None:
    try:
        mode = Path(name).stat().st_mode
    except OSError as broken:
        problem = f"{quote_value(name)} cannot be read: {broken.strerror}"
        raise InvalidSettings("tls_key", problem, hint="a PEM file") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        problem = f"every user of this machine can read or write {quote_value(name)}"
        raise InvalidSettings("tls_key", problem, hint="chmod 600")


def _check_regular(field: str, name: str) -> None:
    try:
        read_regular(name) if name else b""
    except OSError as broken:
        problem = f"{quote_value(name)} cannot be read: {_reason(broken)}"
        raise InvalidSettings(field, problem, hint="a PEM file") from None


def _no_password() -> str:
    raise InvalidSettings(
        "tls_key", "it has a passphrase", hint="a key without a passphrase, mode 600"
    )


def _reason(broken: OSError) -> str:
    return broken.strerror or type(broken).__name__

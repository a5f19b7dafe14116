"""Origins of web pages, as a browser sends them: a scheme, a host, and a port if it is unusual."""

import re

from onbeat.errors import InvalidSettings, quote_value

ORIGIN = re.compile(
    r"(https?)://([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?"
)
HINT = 'such as ["https://chat.example.com", "http://localhost:3000"]'
USUAL = {"http": "80", "https": "443"}


def read_origins(value: object) -> tuple[str, ...]:
    """Return origins as a browser writes them, or refuse an invalid one."""
    if not isinstance(value, (list, tuple)):
        raise InvalidSettings("", f"{quote_value(value)} is not a list", hint=HINT)
    return tuple(dict.fromkeys(_origin(each) for each in value))


def _origin(value: object) -> str:
    if value in ("*", "null"):
        problem = f"{quote_value(value)} would allow the pages of every site: name each origin"
        raise InvalidSettings("", problem, hint=HINT)
    match = ORIGIN.fullmatch(value.lower()) if isinstance(value, str) else None
    port = None if match is None or match[3] is None else int(match[3])
    if match is None or (port is not None and not 1 <= port <= 65_535):
        raise InvalidSettings("", f"{quote_value(value)} is not an origin", hint=HINT)
    scheme, host = match[1], match[2]
    return f"{scheme}://{host}" + ("" if port is None or str(port) == USUAL[scheme] else f":{port}")

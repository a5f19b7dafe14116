"""When a certificate runs out: as much of X.509 as that takes."""

import re
import ssl
from datetime import UTC, datetime

SEQUENCE, VERSION = 0x30, 0xA0
UTC_TIME, GENERAL_TIME = 0x17, 0x18
PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\s", re.DOTALL)


def expires_at(text: str) -> int:
    """Return until when the first certificate of a text in PEM is good, in milliseconds.

    What is no certificate is refused with ValueError.
    """
    found = PEM.search(f"{text}\n")
    if found is None:
        raise ValueError("there is no certificate in it")
    try:
        signed = _parts(ssl.PEM_cert_to_DER_cert(found[0]))[0][1]
        (tbs_kind, tbs), *_ = _parts(signed)
        fields = [each for each in _parts(tbs) if each[0] != VERSION]
        # serial number, algorithm, issuer, then from when until when
        kind, value = _parts(fields[3][1])[1]
    except IndexError:
        raise ValueError("it is no certificate") from None
    if tbs_kind != SEQUENCE or kind not in (UTC_TIME, GENERAL_TIME):
        raise ValueError("it is no certificate")
    told = value.decode("ascii", errors="replace")
    if kind == UTC_TIME:  # two digits for a year from 1950 on
        told = f"{'19' if told[:2] >= '50' else '20'}{told}"
    until = datetime.strptime(told, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    return int(until.timestamp()) * 1000


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Return the values that stand one after another, with their kinds."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(der):
        kind, long = der[at], der[at + 1]
        at += 2
        if long & 0x80:
            n = long & 0x7F
            long, at = int.from_bytes(der[at : at + n]), at + n
        found.append((kind, der[at : at + long]))
        at += long
    return found

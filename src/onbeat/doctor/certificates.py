"""The expiry date of a TLS certificate."""


def expires_at(pem: str) -> int:
    """Return when the first certificate of a PEM text expires, in milliseconds.

    Raise ValueError for a text without a certificate, and ModuleNotFoundError where `cryptography`
    is not installed.
    """
    from cryptography import x509  # noqa: PLC0415 - only in the extra `server`

    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        raise ValueError("not a PEM certificate") from None
    return int(certificate.not_valid_after_utc.timestamp()) * 1000

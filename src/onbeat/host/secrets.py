"""References to secrets: `${env:NAME}` for a variable, `secret://name` for the text of a file.

A definition contains the reference. The node that launches a run looks the secret up at that
moment, and never stores or logs it; in the output of a target it is redacted. Only the text of a
definition can contain a reference: those that templates produce are made inert before.
"""

import os
import re
from collections.abc import Mapping
from json import dumps
from pathlib import Path

from onbeat.core.notify.channels import REFERENCE, SCHEME, SECRET, SECRET_NAME
from onbeat.core.templates import Template
from onbeat.errors import InvalidSchedule, quote_value
from onbeat.host.regular_files import read_regular

LONGEST_SECRET = 64 * 1024  # bytes
MOST_READ = 2**20  # bytes of a file; more than LONGEST_SECRET, for a precise error message
SHORTEST_HIDDEN = 4  # redacting every "1" would spoil results and protect nothing


def check_reference(field: str, text: str) -> None:
    """Refuse a malformed reference to a secret, or one inside a template."""
    if "${" in REFERENCE.sub("", text):
        raise InvalidSchedule(field, "no variable is named after ${", hint="${env:NAME}")
    if len(REFERENCE.findall(text)) != sum(
        len(REFERENCE.findall(part)) for part in _outside_templates(text)
    ):
        problem = "a template cannot contain a secret"
        raise InvalidSchedule(field, problem, hint="${env:NAME} before or after {{ name }}")
    if SCHEME not in text.lower():
        return
    if not SECRET.fullmatch(text.removeprefix(BEARER)):
        hint = "secret://name as the whole text: letters, digits and . _ -, no dot first"
        raise InvalidSchedule(field, "this is not a valid reference to a secret", hint=hint)


def check_no_reference(field: str, text: str) -> None:
    """Refuse a reference to a secret where its value would be visible."""
    if SCHEME in text.lower() or REFERENCE.search(text):
        raise InvalidSchedule(field, VISIBLE, hint=WHERE)


def check_inputs(value: object, field: str = "inputs") -> None:
    """Refuse inputs that are references to secrets: inputs are stored and shown."""
    match value:
        case str():
            if value.lower().startswith(SCHEME) or REFERENCE.fullmatch(value):
                raise InvalidSchedule(field, VISIBLE, hint=WHERE)
        case Mapping():
            for name, each in value.items():
                check_inputs(each, f"{field}.{name}")
        case list() | tuple():
            for i, each in enumerate(value):
                check_inputs(each, f"{field}[{i}]")
        case _:
            return


def without_references(text: str) -> str:
    """Return a text with its references made inert by a space, whatever text it is inserted in."""
    return REFERENCE_START.sub(" ", text)


class SecretReferences:
    """Looks up secrets: variables that are passed on, and files in one folder."""

    def __init__(self, environment: Mapping[str, str], folder: str = "") -> None:
        self._environment, self._folder = environment, folder

    def fill(self, field: str, text: str, hidden: "Redactor") -> str:
        """Return a text with its references replaced, and add the secrets to `hidden`."""
        if match := SECRET.fullmatch(text.removeprefix(BEARER)):
            secret = read_secret(self._folder, match[1], field=field)
            hidden.keep(secret)
            return f"{BEARER}{secret}" if text.startswith(BEARER) else secret
        for variable in REFERENCE.findall(text) if "${" in text else ():
            if variable not in self._environment:
                problem = f"this node does not pass on the environment variable {variable}"
                raise InvalidSchedule(field, problem, hint="add it to the setting pass_env")
            hidden.keep(self._environment[variable])
        return REFERENCE.sub(lambda match: self._environment[match[1]], text)


class Redactor:
    """Redacts the secrets that are in use from texts."""

    def __init__(self) -> None:
        self._texts: list[str] = []  # longest first, as one may contain another

    def __bool__(self) -> bool:
        return bool(self._texts)

    def keep(self, value: str) -> None:
        """Redact a value from now on, also escaped as in JSON, and each of its lines."""
        lines = [line for line in value.splitlines() if line != value]
        for each in (value, *lines):
            if len(each) >= SHORTEST_HIDDEN:
                texts = {each, dumps(each)[1:-1], dumps(each, ensure_ascii=False)[1:-1]}
                texts |= {text.replace("/", r"\/") for text in texts}
                self._texts = sorted(texts.union(self._texts), key=len, reverse=True)

    def hide(self, text: str, *, is_cut: bool = False) -> str:
        """Return a text without secrets, also if it was truncated within one."""
        for secret in self._texts:
            text = text.replace(secret, HIDDEN)
        return text[: -len(self._texts[0])] if is_cut and self._texts else text

    def hide_bytes(self, text: bytes) -> bytes:
        """Return output without secrets."""
        for secret in self._texts:
            text = text.replace(secret.encode(errors="surrogateescape"), HIDDEN.encode())
        return text


def read_secret(folder: str, name: str, *, field: str = "") -> str:
    """Return the text of a file in a folder, without a final newline, or refuse it.

    Files outside the folder are not read, also through links. No error contains the content.
    """
    hint = f"a file {name} in the folder of the setting secrets"
    if not SECRET_NAME.fullmatch(name):
        problem = f"{quote_value(name)} is not a valid secret name"
        raise InvalidSchedule(field, problem, hint="secret://name")
    if not folder:
        problem = "this node has no folder of secrets"
        raise InvalidSchedule(field, problem, hint="the setting secrets")
    try:
        found = _read(Path(folder).resolve(strict=True), name)
    except (OSError, RuntimeError):  # RuntimeError: a link to itself
        raise InvalidSchedule(field, f"this node has no secret {name}", hint=hint) from None
    try:
        text = found.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidSchedule(field, f"the secret {name} is not in UTF-8", hint=hint) from None
    if not text or "\0" in text or len(found) > LONGEST_SECRET:
        problem = f"the secret {name} is empty, too long or contains NUL"
        raise InvalidSchedule(field, problem, hint=f"{LONGEST_SECRET // 1024} KiB at most")
    return text


def _read(folder: Path, name: str) -> bytes:
    path = (folder / name).resolve(strict=True)  # Kubernetes uses links within the folder
    if not path.is_relative_to(folder):
        raise FileNotFoundError
    return read_regular(path, most=MOST_READ, flags=os.O_NOFOLLOW)


def _outside_templates(text: str) -> list[str]:
    """Return the parts of a text that are outside template expressions."""
    try:
        return [part for part in Template.parse(text).parts if isinstance(part, str)]
    except InvalidSchedule:
        return [text]


HIDDEN = "***"
BEARER = "Bearer "  # of an Authorization header
VISIBLE, WHERE = (
    "a secret would be visible here",
    "in a header of a request, or in env of a command",
)
REFERENCE_START = re.compile(r"(?<=\$)(?=\{)|(?<=secret)(?=://)", re.IGNORECASE)

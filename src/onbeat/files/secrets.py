"""Texts that stand for secrets: `${env:NAME}` for a variable, `secret://name` for a file's text.

A definition names a secret; what it stands for is looked up by the node that launches, when it
does, and is not written, told or logged. What a target says again is hidden. Only what stands in
the definition names a secret: what templates make is made harmless before it comes here.
"""

import os
import re
from collections.abc import Mapping
from json import dumps
from pathlib import Path

from onbeat.core.notify.channels import REFERENCE, SCHEME, SECRET, SECRET_NAME
from onbeat.core.templates import Template
from onbeat.errors import InvalidSchedule, shown
from onbeat.files.regular import read_regular

LONGEST_SECRET = 64 * 1024  # bytes
MOST_READ = 2**20  # of a file: one that is longer than a secret may be is still named as such
SHORTEST_HIDDEN = 4  # hiding every "1" would spoil results and protect nothing


def check_reference(field: str, text: str) -> None:
    """Refuse a text that may stand for a secret and names none, or one within a template."""
    if "${" in REFERENCE.sub("", text):
        raise InvalidSchedule(field, "no variable is named after ${", hint="${env:NAME}")
    if len(REFERENCE.findall(text)) != sum(len(REFERENCE.findall(part)) for part in _plain(text)):
        problem = "no template has a secret in it"
        raise InvalidSchedule(field, problem, hint="${env:NAME} before or after {{ name }}")
    if SCHEME not in text.lower():
        return
    if not SECRET.fullmatch(text.removeprefix(BEARER)):
        hint = "secret://name as the whole text: letters, digits and . _ -, no dot first"
        raise InvalidSchedule(field, "this names no secret", hint=hint)


def check_no_reference(field: str, text: str) -> None:
    """Refuse a text that names a secret where one would be seen."""
    if SCHEME in text.lower() or REFERENCE.search(text):
        raise InvalidSchedule(field, "a secret would be seen here", hint=WHERE)


def check_inputs(value: object, field: str = "inputs") -> None:
    """Refuse inputs of which one is nothing but the name of a secret: they are kept and shown."""
    match value:
        case str():
            if value.lower().startswith(SCHEME) or REFERENCE.fullmatch(value):
                raise InvalidSchedule(field, "a secret would be seen here", hint=WHERE)
        case Mapping():
            for name, each in value.items():
                check_inputs(each, f"{field}.{name}")
        case list() | tuple():
            for i, each in enumerate(value):
                check_inputs(each, f"{field}[{i}]")
        case _:
            return


def without_references(text: str) -> str:
    """Return a text that names no secret, whatever it is put between; readers see what it was."""
    return LIKE_ONE.sub(" ", text)


class SecretReferences:
    """Looks up what texts stand for: variables that are passed on, and files of one folder."""

    def __init__(self, environment: Mapping[str, str], folder: str = "") -> None:
        self._environment, self._folder = environment, folder

    def fill(self, field: str, text: str, hidden: "Redactor") -> str:
        """Return what a text stands for, or refuse it; what was looked up is hidden from now on."""
        if match := SECRET.fullmatch(text.removeprefix(BEARER)):
            found = read_secret(self._folder, match[1], field=field)
            hidden.keep(found)
            return f"{BEARER}{found}" if text.startswith(BEARER) else found
        for variable in REFERENCE.findall(text) if "${" in text else ():
            if variable not in self._environment:
                problem = f"this node does not pass the variable {variable} on"
                raise InvalidSchedule(field, problem, hint="pass_env names it")
            hidden.keep(self._environment[variable])
        return REFERENCE.sub(lambda match: self._environment[match[1]], text)


class Redactor:
    """Secrets that are in use, and texts without them."""

    def __init__(self) -> None:
        self._texts: list[str] = []  # the longest first, as one may hold another

    def __bool__(self) -> bool:
        return bool(self._texts)

    def keep(self, value: str) -> None:
        """Hide a value from now on, also as JSON may spell it, and each line of it."""
        lines = [line for line in value.splitlines() if line != value]
        for each in (value, *lines):
            if len(each) >= SHORTEST_HIDDEN:
                texts = {each, dumps(each)[1:-1], dumps(each, ensure_ascii=False)[1:-1]}
                texts |= {text.replace("/", r"\/") for text in texts}
                self._texts = sorted(texts.union(self._texts), key=len, reverse=True)

    def hide(self, text: str, *, is_cut: bool = False) -> str:
        """Return a text without secrets, also if it was cut in the middle of one."""
        for secret in self._texts:
            text = text.replace(secret, HIDDEN)
        return text[: -len(self._texts[0])] if is_cut and self._texts else text

    def hide_bytes(self, text: bytes) -> bytes:
        """Return what was printed without secrets."""
        for secret in self._texts:
            text = text.replace(secret.encode(errors="surrogateescape"), HIDDEN.encode())
        return text


def read_secret(folder: str, name: str, *, field: str = "") -> str:
    """Return the text of a file in a folder, without the newline at its end, or refuse it.

    Nothing outside the folder is read, wherever a link in it leads to. No refusal tells what is in
    the file.
    """
    hint = f"a file {name} in the folder that the setting secrets names"
    if not SECRET_NAME.fullmatch(name):
        raise InvalidSchedule(field, f"{shown(name)} is no name of a secret", hint="secret://name")
    if not folder:
        problem = "this node has no folder of secrets"
        raise InvalidSchedule(field, problem, hint="the setting secrets")
    try:
        found = _read(Path(folder).resolve(strict=True), name)
    except (OSError, RuntimeError):  # a link that leads to itself
        raise InvalidSchedule(field, f"this node has no secret {name}", hint=hint) from None
    try:
        text = found.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidSchedule(field, f"the secret {name} is not in UTF-8", hint=hint) from None
    if not text or "\0" in text or len(found) > LONGEST_SECRET:
        problem = f"the secret {name} is empty, too long or holds NUL"
        raise InvalidSchedule(field, problem, hint=f"{LONGEST_SECRET // 1024} KiB at most")
    return text


def _read(folder: Path, name: str) -> bytes:
    path = (folder / name).resolve(strict=True)  # Kubernetes has links, to within the folder
    if not path.is_relative_to(folder):
        raise FileNotFoundError
    return read_regular(path, most=MOST_READ, flags=os.O_NOFOLLOW)


def _plain(text: str) -> list[str]:
    """Return what stands outside of templates: all of a text that is none."""
    try:
        return [part for part in Template.parse(text).parts if isinstance(part, str)]
    except InvalidSchedule:
        return [text]


HIDDEN = "***"
BEARER = "Bearer "  # what an Authorization header begins with
WHERE = "in a header of a request, or in env of a command"
LIKE_ONE = re.compile(r"(?<=\$)(?=\{)|(?<=secret)(?=://)", re.IGNORECASE)

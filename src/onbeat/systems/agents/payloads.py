"""Encode models as JSON that decodes to the same model, and refuse others.

A payload that cannot be decoded would be lost, which would be noticed only after a restart. So it
is decoded and compared when it is published.
"""

import re

import msgspec
from pydantic import BaseModel, ValidationError

from onbeat.errors import quote_value

LONGEST = 1024 * 1024 - 16 * 1024  # bytes; the rest of a document is its envelope


def encode(payload: BaseModel, *, name: str) -> object:
    """Return a model as JSON; refuse a model that would be different after decoding."""
    problems: list[str] = []
    for by_alias in (True, False):  # most models are validated by alias
        try:
            text = payload.model_dump_json(by_alias=by_alias, round_trip=True).encode()
            found = msgspec.json.decode(text)
            again = decode(type(payload), found)
        except (ValueError, msgspec.DecodeError) as broken:  # pydantic raises ValueError
            problems.append(error_text(broken))
            continue
        if len(text) > LONGEST:
            problem = f"it has {len(text)} bytes; the limit is {LONGEST}"
            raise ValueError(
                f"{name} cannot be stored: {problem} (publish a link to large contents)"
            )
        if not (changed := differing(payload, again)):
            return found
        problems.append(f"{changed} would be decoded as another value")
    hint = "a payload must be the same after model_dump_json and model_validate_json"
    raise ValueError(f"{name} cannot be stored: {problems[0]} ({hint})")


def decode(model: type[BaseModel], payload: object) -> BaseModel:
    """Return the model of a stored payload, or raise ValidationError."""
    return model.model_validate_json(msgspec.json.encode(payload))


def error_text(broken: Exception) -> str:
    """Return the text of an error in one line; of pydantic's errors the first, with its value."""
    if not isinstance(broken, ValidationError):
        return re.sub(r"\s+", " ", str(broken))
    first = broken.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"])) or "payload"
    state = (
        "is missing"
        if first["type"] == "missing"
        else f"has the value {quote_value(first['input'])}"
    )
    return f"{where} {state}: {first['msg']}"


def differing(before: BaseModel, after: BaseModel) -> str:
    """Return the names of fields that differ, without private ones."""
    names = type(before).model_fields
    changed = [each for each in names if getattr(before, each) != getattr(after, each)]
    if before.model_extra != after.model_extra:
        changed.append("extra fields")
    return ", ".join(changed)

"""Models as they are kept: JSON that is read again as the same model, or refused before.

What could not be read again would be lost to everybody, and found out only after a restart. So a
payload makes the whole way there and back when it is published, and is compared with what it was.
"""

import re

import msgspec
from pydantic import BaseModel, ValidationError

from onbeat.errors import shown

LONGEST = 1024 * 1024 - 16 * 1024  # bytes of a payload: the rest of a document is for its envelope


def encoded(payload: BaseModel, *, name: str) -> object:
    """Return a model as JSON has it; refuse one that would not be the same when it is read."""
    problems: list[str] = []
    for by_alias in (True, False):  # as it is validated, which is mostly by alias
        try:
            text = payload.model_dump_json(by_alias=by_alias, round_trip=True).encode()
            found = msgspec.json.decode(text)
            again = decoded(type(payload), found)
        except (ValueError, msgspec.DecodeError) as broken:  # those of pydantic are of the first
            problems.append(told(broken))
            continue
        if len(text) > LONGEST:
            problem = f"it is {len(text)} bytes long, and may be {LONGEST}"
            raise ValueError(f"{name} cannot be kept: {problem} (keep a link to what is large)")
        if not (changed := differing(payload, again)):
            return found
        problems.append(f"{changed} would be read as something else")
    hint = "what is published must be the same after model_dump_json and model_validate_json"
    raise ValueError(f"{name} cannot be kept: {problems[0]} ({hint})")


def decoded(model: type[BaseModel], payload: object) -> BaseModel:
    """Return the model that was kept, or raise ValidationError."""
    return model.model_validate_json(msgspec.json.encode(payload))


def told(broken: Exception) -> str:
    """Return what an error says, in a line: of pydantic's the first, with what JSON has there."""
    if not isinstance(broken, ValidationError):
        return re.sub(r"\s+", " ", str(broken))
    first = broken.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"])) or "all of it"
    kept = "is missing" if first["type"] == "missing" else f"is kept as {shown(first['input'])}"
    return f"{where} {kept}: {first['msg']}"


def differing(before: BaseModel, after: BaseModel) -> str:
    """Return the fields that differ: private ones are nobody else's, and do not count."""
    names = type(before).model_fields
    changed = [each for each in names if getattr(before, each) != getattr(after, each)]
    if before.model_extra != after.model_extra:
        changed.append("what is extra")
    return ", ".join(changed)

"""Parts of JSON Schemas (draft 2020-12), as plain values."""

from collections.abc import Iterable, Mapping

Schema = dict[str, object]


def described(schema: Mapping[str, object], description: str, *examples: object) -> Schema:
    """Return a schema with a description, and perhaps examples."""
    found = {**schema, "description": description}
    return found | {"examples": list(examples)} if examples else found


def text(description: str, *examples: str, **bounds: object) -> Schema:
    """Return the schema of a text."""
    return described({"type": "string", **bounds}, description, *examples)


def flag(description: str, *, default: bool) -> Schema:
    """Return the schema of a Boolean."""
    return described({"type": "boolean", "default": default}, description)


def record(fields: Mapping[str, object], *, required: Iterable[str] = ()) -> Schema:
    """Return the schema of an object that has these fields and no others."""
    found: Schema = {
        "type": "object",
        "properties": dict(fields),
        "additionalProperties": False,
    }
    names = list(required)
    return found | {"required": names} if names else found


def by_name(schema: Mapping[str, object]) -> Schema:
    """Return the schema of a mapping from any name to such a value."""
    return {"type": "object", "additionalProperties": schema}


def or_null(schema: Mapping[str, object]) -> Schema:
    """Return the schema of such a value, or null."""
    words = {name: schema[name] for name in ("description", "examples") if name in schema}
    rest = {name: value for name, value in schema.items() if name not in words}
    return {"anyOf": [rest, {"type": "null"}], **words}


def target_schema(
    name: str, fields: Mapping[str, object], *, required: Iterable[str] = (), inputs: bool = True
) -> Schema:
    """Return the schema of `run:` for a kind of target: its fields, `enabled` and `inputs`."""
    shared = {"inputs": INPUTS} if inputs else {}
    return record({**fields, **shared, "enabled": ENABLED}, required=(name, *required))


INPUTS: Schema = {"type": ["object", "null"], "description": "what is passed to it, by name"}
ENABLED: Schema = {"type": "boolean", "default": True}

_PLAIN = "".join(f"(?:[0-9]+{unit})? ?" for unit in ("y", "mo", "w", "d", "h", "m", "s"))
_ISO = "P(?:[0-9]+Y)?(?:[0-9]+M)?(?:[0-9]+W)?(?:[0-9]+D)?(?:T(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+S)?)?"
DURATION: Schema = {"type": "string", "pattern": rf"^(?=.*[0-9])\s*(?:{_PLAIN}|{_ISO})\s*$"}
LENGTH: Schema = {
    "type": "string",
    "pattern": rf"^(?=.*[0-9])\s*(?:[0-9]{{1,12}}ms|{_PLAIN}|{_ISO})\s*$",
}

"""The OpenAPI document: what the routes say of themselves, made complete and true."""

from collections.abc import Iterator
from typing import Any

from litestar import Litestar

from onbeat.core.schedule import ID
from onbeat.core.schema import schedule_and_parts
from onbeat.web.params import INSTANT
from onbeat.web.problems import PROBLEM_JSON
from onbeat.web.routes.sessions import SENT

Fields = dict[str, Any]

REFS = "#/components/schemas/"
EDITED_BY = {"get_schedule", "put_schedule", "patch_schedule", "create_schedule"}
DEFINED_BY = {"put_schedule", "preview"}  # routes whose body is a definition
SAFE = {"get"}
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"  # as the door has it


def complete(app: Litestar) -> Fields:
    """Return the document of an application, with what its routes cannot say by their types."""
    document: Fields = app.openapi_schema.to_schema()
    components = document["components"]
    definition, parts = schedule_and_parts(REFS)
    components["schemas"] |= {"Definition": definition, **parts, "Patch": _patch_of(definition)}
    components["schemas"] |= dict(SENT.values())
    components["responses"] = {name: _refusal(told) for name, (_, told) in BY_THE_DOOR.items()}
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token or a signed JWT."},
        "session": {"type": "apiKey", "in": "cookie", "name": "onbeat"},
    }
    document["security"] = [{"token": []}, {"session": []}]
    for method, operation in _operations(document):
        for parameter in operation.get("parameters", ()):
            parameter["schema"] = _of_parameter(parameter["schema"])
        _say_body(operation)
        _say_answers(operation, method)
    _say_what_is_sent(document)
    return document


def query_names(document: Fields) -> dict[tuple[str, str], dict[str, bool]]:
    """Return which names a query may have, by method and path, and whether each is of any text."""
    return {
        (method.upper(), path): {
            each["name"]: "pattern" in each["schema"]
            for each in operation.get("parameters", ())
            if each["in"] == "query"
        }
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if isinstance(operation, dict)
    }


def _operations(document: Fields) -> Iterator[tuple[str, Fields]]:
    for item in document["paths"].values():
        for method, operation in item.items():
            if isinstance(operation, dict) and "operationId" in operation:
                yield method, operation


def _of_parameter(schema: Fields) -> Fields:
    """Return the schema of a parameter: no null, as it is there or is not, and what can be read."""
    choices = [each for each in schema.get("oneOf", ()) if each != {"type": "null"}]
    if len(choices) == 1:
        rest = {name: value for name, value in schema.items() if name != "oneOf"}
        schema = {**choices[0], **rest}
    if schema.get("type") == ["null", "string"]:
        schema = {**schema, "type": "string", "enum": [*filter(None, schema["enum"])]}
    if schema.get("type") == "string" and "enum" not in schema:
        schema = {"pattern": PRINTABLE, **schema}
    bounds = {name: schema[name] for name in ("minimum", "maximum") if name in schema}
    return schema | {name: int(value) for name, value in bounds.items()}


def _say_body(operation: Fields) -> None:
    """Say which definitions a body has, and whether there has to be one."""
    name, body = operation["operationId"], operation.get("requestBody")
    if body is None:
        return
    content = body["content"]
    schema = content["application/json"]["schema"]
    if {"type": "null"} in schema.get("oneOf", ()):
        body["required"] = False
    if name in DEFINED_BY:
        content["application/json"] = {
            "schema": {"$ref": f"{REFS}Definition"},
            "examples": {"a command": {"value": EXAMPLE}},
        }
    if name in SENT:
        content["application/json"] = {"schema": {"$ref": f"{REFS}{SENT[name][0]}"}}
    if name == "patch_schedule":
        patch = {
            "schema": {"$ref": f"{REFS}Patch"},
            "examples": {"another time": {"value": {"cron": "0 10 * * MON-FRI", "jitter": None}}},
        }
        body["content"] = {"application/json": patch, "application/merge-patch+json": patch}


def _say_answers(operation: Fields, method: str) -> None:
    """Say what can be answered besides: by the door, and with which headers."""
    name, answers = operation["operationId"], operation["responses"]
    is_open = operation.get("security") == []
    for refusal, (status, _) in BY_THE_DOOR.items():
        if (refusal in OF_CALLERS and is_open) or (refusal in OF_BODIES and method in SAFE):
            continue
        answers[str(status)] = {"$ref": f"#/components/responses/{refusal}"}
    first = next(iter(answers.values()))
    if name in {"create_schedule", "put_schedule"}:
        answers["200"] = {**first, "description": "It is there, with this definition."}
        answers["201"] = {**first, "description": "It was made."}
        answers["201"]["headers"] = {"Location": LOCATION}
    if name in EDITED_BY:
        for status in {"200", "201"} & answers.keys():
            answers[status]["headers"] = {**answers[status].get("headers", {}), "ETag": ETAG}
    operation["responses"] = dict(sorted(answers.items()))


def _say_what_is_sent(document: Fields) -> None:
    """Say of what callers send what its types do not: no other names, and which texts."""
    schemas = document["components"]["schemas"]
    definitions = {
        "type": "object",
        "propertyNames": {"pattern": f"^{ID.pattern}$"},
        "additionalProperties": {"$ref": f"{REFS}Definition"},
    }
    schemas["NewSchedule"]["properties"]["definition"] = {"$ref": f"{REFS}Definition"}
    schemas["NewSchedule"]["examples"] = [{"schedule_id": "backup", "definition": EXAMPLE}]
    for name in ("Definitions", "Forecasting"):
        schemas[name]["properties"]["schedules"] = definitions
        schemas[name]["properties"]["timezone"] = {"$ref": f"{REFS}timezone", "default": "UTC"}
    for (name, field), pattern in TEXTS.items():
        schemas[name]["properties"][field]["pattern"] = pattern
    for name in _sent(document):
        if schemas[name].get("type") == "object":
            schemas[name].setdefault("additionalProperties", False)


def _sent(document: Fields) -> set[str]:
    """Return the names of the schemas that bodies are made of."""
    found: set[str] = set()
    ahead: list[object] = [each.get("requestBody") for _, each in _operations(document)]
    while ahead:
        match ahead.pop():
            case {"$ref": str(there)}:
                name = there.removeprefix(REFS)
                if name not in found:
                    found.add(name)
                    ahead.append(document["components"]["schemas"][name])
            case dict(fields):
                ahead += fields.values()
            case list(items):
                ahead += items
            case _:
                pass
    return found


def _patch_of(definition: Fields) -> Fields:
    return {
        "title": "A change of a definition",
        "description": "Fields in place of those that there are; null takes one away.",
        "type": "object",
        "propertyNames": {"enum": sorted(definition["properties"])},
        "additionalProperties": True,
    }


def _refusal(told: str) -> Fields:
    content: Fields = {PROBLEM_JSON: {"schema": {"$ref": f"{REFS}Problem"}}}
    if told == BY_THE_DOOR["Unreadable"][1]:  # what is not even HTTP the server itself refuses
        content["text/plain"] = {"schema": {"type": "string"}}
    return {"description": told, "content": content, "headers": HEADERS.get(told, {})}


EXAMPLE = {"cron": "0 9 * * MON-FRI", "run": {"command": ["./backup.sh", "--all"]}}
ETAG: Fields = {
    "description": "Its revision: what If-Match takes.",
    "required": True,
    "schema": {"type": "string", "pattern": '^"[0-9]{1,18}"$'},
}
LOCATION: Fields = {
    "description": "Where it is.",
    "required": True,
    "schema": {"type": "string", "pattern": "^/api/v1/schedules/.+$"},
}
TEXT: Fields = {"required": True, "schema": {"type": "string"}}
BY_THE_DOOR = {
    "Unreadable": (400, "The request cannot be read: `field` says where."),
    "Unknown": (401, "Nobody is known by what was sent."),
    "NotAllowed": (403, "The caller may not do this."),
    "TooSlow": (408, "The body took too long."),
    "TooLarge": (413, "The body is too large."),
    "TooLong": (414, "The URL is too long."),
    "NotJson": (415, "The body is not JSON."),
    "NotThisHost": (421, "This host is not asked for here."),
    "TooMany": (429, "There were too many requests, or too many wrong tokens."),
    "TooManyHeaders": (431, "The headers are too many or too long."),
}
OF_CALLERS = {"Unknown", "TooMany"}
OF_BODIES = {"TooSlow", "TooLarge", "NotJson"}
HEADERS = {
    BY_THE_DOOR["Unknown"][1]: {"WWW-Authenticate": TEXT},
    BY_THE_DOOR["TooMany"][1]: {"Retry-After": TEXT},
}
TEXTS = {
    ("Pausing", "until"): INSTANT,
    ("Backfilling", "from"): INSTANT,
    ("Backfilling", "to"): INSTANT,
}  # of fields that no type says more of than that they are texts

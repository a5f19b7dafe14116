"""The OpenAPI document: generated from the routes, and completed with what types cannot express."""

import re
from collections.abc import Iterator
from typing import Any

from litestar import Litestar

from onbeat.core.schedule import ID
from onbeat.core.schema import schedule_and_parts
from onbeat.host.plugs import PlugError, guard, load, plugs
from onbeat.web.params import INSTANT
from onbeat.web.problems import PROBLEM_JSON

Fields = dict[str, Any]
Bodies = dict[str, tuple[str, Fields]]

REFS = "#/components/schemas/"
WITH_ETAG = {"get_schedule", "put_schedule", "patch_schedule", "create_schedule"}
WITH_DEFINITION = {"put_schedule", "preview"}  # operations whose body is a definition
SAFE = {"get"}
SENTENCE_END = re.compile(r"\.\s|\.$|\n\n")
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"  # the security middleware refuses other characters


def complete(app: Litestar) -> Fields:
    """Return the complete document of an application."""
    document: Fields = app.openapi_schema.to_schema()
    components = document["components"]
    definition, parts = schedule_and_parts(REFS)
    components["schemas"] |= {"Definition": definition, **parts, "Patch": _patch_of(definition)}
    bodies = _bodies_of_plugs()
    components["schemas"] |= dict(bodies.values())
    components["responses"] = {name: _refusal(text) for name, (_, text) in REFUSALS.items()}
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token or a JWT."},
        "session": {"type": "apiKey", "in": "cookie", "name": "onbeat"},
    }
    document["security"] = [{"token": []}, {"session": []}]
    for method, operation in _operations(document):
        for parameter in operation.get("parameters", ()):
            parameter["schema"] = _parameter_schema(parameter["schema"])
        description = operation.get("description")
        if not description:
            raise PlugError(f"the handler of {operation['operationId']} has no docstring")
        operation["summary"] = SENTENCE_END.split(description)[0]
        _complete_body(operation, bodies)
        _complete_responses(operation, method)
    _complete_body_schemas(document)
    return document


def query_names(document: Fields) -> dict[tuple[str, str], dict[str, bool]]:
    """Return the query parameters by method and path, and whether each may have any text."""
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


def _parameter_schema(schema: Fields) -> Fields:
    """Return the schema of a parameter: without null, and with a pattern for its text."""
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


def _bodies_of_plugs() -> Bodies:
    """Return the names and schemas of bodies that plugs validate themselves, by operation."""
    found: Bodies = {}
    for plug in plugs():
        if plug.bodies:
            with guard(plug, "bodies"):
                bodies: dict[str, Any] = load(plug.bodies, dict)
                for each in bodies.values():
                    if not (isinstance(each, tuple) and len(each) == 2 and type(each[1]) is dict):
                        raise PlugError(f"{plug.bodies} is not of (name, schema) by operation")
                found |= bodies
    return found


def _complete_body(operation: Fields, bodies: Bodies) -> None:
    """Add the schema of a body that is a definition, and whether a body is required."""
    name, body = operation["operationId"], operation.get("requestBody")
    if body is None:
        return
    content = body["content"]
    schema = content["application/json"]["schema"]
    if {"type": "null"} in schema.get("oneOf", ()):
        body["required"] = False
    if name in WITH_DEFINITION:
        content["application/json"] = {
            "schema": {"$ref": f"{REFS}Definition"},
            "examples": {"a command": {"value": EXAMPLE}},
        }
    if name in bodies:
        content["application/json"] = {"schema": {"$ref": f"{REFS}{bodies[name][0]}"}}
    if name == "patch_schedule":
        patch = {
            "schema": {"$ref": f"{REFS}Patch"},
            "examples": {"another time": {"value": {"cron": "0 10 * * MON-FRI", "jitter": None}}},
        }
        body["content"] = {"application/json": patch, "application/merge-patch+json": patch}


def _complete_responses(operation: Fields, method: str) -> None:
    """Add the refusals of the security middleware, and the headers of responses."""
    name, responses = operation["operationId"], operation["responses"]
    is_open = operation.get("security") == []
    for refusal, (status, _) in REFUSALS.items():
        if (refusal in OF_CALLERS and is_open) or (refusal in OF_BODIES and method in SAFE):
            continue
        responses[str(status)] = {"$ref": f"#/components/responses/{refusal}"}
    first = next(iter(responses.values()))
    if name in {"create_schedule", "put_schedule"}:
        responses["200"] = {**first, "description": "The schedule exists with this definition."}
        responses["201"] = {**first, "description": "The schedule was created."}
        responses["201"]["headers"] = {"Location": LOCATION}
    if name in WITH_ETAG:
        for status in {"200", "201"} & responses.keys():
            responses[status]["headers"] = {**responses[status].get("headers", {}), "ETag": ETAG}
    operation["responses"] = dict(sorted(responses.items()))


def _complete_body_schemas(document: Fields) -> None:
    """Add the patterns of texts in bodies, and that bodies have no other fields."""
    schemas = document["components"]["schemas"]
    definitions = {
        "type": "object",
        "propertyNames": {"pattern": f"^{ID.pattern}$"},
        "additionalProperties": {"$ref": f"{REFS}Definition"},
    }
    schemas["NewSchedule"]["properties"]["definition"] = {"$ref": f"{REFS}Definition"}
    schemas["NewSchedule"]["examples"] = [{"schedule_id": "backup", "definition": EXAMPLE}]
    for name in ("Definitions", "SimulateRequest"):  # request bodies with definitions
        schemas[name]["properties"]["schedules"] = definitions
        schemas[name]["properties"]["timezone"] = {"$ref": f"{REFS}timezone", "default": "UTC"}
    for (name, field), pattern in TEXTS.items():
        schemas[name]["properties"][field]["pattern"] = pattern
    for name in _body_schemas(document):
        if schemas[name].get("type") == "object":
            schemas[name].setdefault("additionalProperties", False)


def _body_schemas(document: Fields) -> set[str]:
    """Return the names of all schemas used in request bodies."""
    found: set[str] = set()
    pending: list[object] = [each.get("requestBody") for _, each in _operations(document)]
    while pending:
        match pending.pop():
            case {"$ref": str(reference)}:
                name = reference.removeprefix(REFS)
                if name not in found:
                    found.add(name)
                    pending.append(document["components"]["schemas"][name])
            case dict(fields):
                pending += fields.values()
            case list(items):
                pending += items
            case _:
                pass
    return found


def _patch_of(definition: Fields) -> Fields:
    return {
        "title": "A change of a definition",
        "description": "Fields that replace those of the definition; null removes a field.",
        "type": "object",
        "propertyNames": {"enum": sorted(definition["properties"])},
        "additionalProperties": True,
    }


def _refusal(text: str) -> Fields:
    content: Fields = {PROBLEM_JSON: {"schema": {"$ref": f"{REFS}Problem"}}}
    if text == REFUSALS["Unreadable"][1]:  # the server itself refuses invalid HTTP, in plain text
        content["text/plain"] = {"schema": {"type": "string"}}
    return {"description": text, "content": content, "headers": HEADERS.get(text, {})}


EXAMPLE = {"cron": "0 9 * * MON-FRI", "run": {"command": ["./backup.sh", "--all"]}}
ETAG: Fields = {
    "description": "The revision of the schedule, for If-Match.",
    "required": True,
    "schema": {"type": "string", "pattern": '^"[0-9]{1,18}"$'},
}
LOCATION: Fields = {
    "description": "The path of the schedule.",
    "required": True,
    "schema": {"type": "string", "pattern": "^/api/v1/schedules/.+$"},
}
TEXT: Fields = {"required": True, "schema": {"type": "string"}}
REFUSALS = {  # of the security middleware
    "Unreadable": (400, "The request cannot be read: `field` names the invalid part."),
    "Unknown": (401, "The credentials are missing or invalid."),
    "NotAllowed": (403, "The caller may not do this."),
    "TooSlow": (408, "The body arrived too slowly."),
    "TooLarge": (413, "The body is too large."),
    "TooLong": (414, "The URL is too long."),
    "NotJson": (415, "The body is not JSON."),
    "NotThisHost": (421, "The API is not served under this host name."),
    "TooMany": (429, "Too many requests, or too many wrong credentials."),
    "TooManyHeaders": (431, "The headers are too many or too long."),
}
OF_CALLERS = {"Unknown", "TooMany"}
OF_BODIES = {"TooSlow", "TooLarge", "NotJson"}
HEADERS = {
    REFUSALS["Unknown"][1]: {"WWW-Authenticate": TEXT},
    REFUSALS["TooMany"][1]: {"Retry-After": TEXT},
}
TEXTS = {
    ("PauseRequest", "until"): INSTANT,
    ("BackfillRequest", "from"): INSTANT,
    ("BackfillRequest", "to"): INSTANT,
}  # of fields whose type is only text

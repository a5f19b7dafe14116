"""The OpenAPI document: what the routes say of themselves, made complete and true."""

from typing import Any

from litestar import Litestar

from onbeat.core.schema import schedule_and_parts

REFS = "#/components/schemas/"
DEFINED_BY = {"put_schedule", "preview"}  # routes whose body is a definition


def complete(app: Litestar) -> dict[str, Any]:
    """Return the document of an application, with what its routes cannot say by their types."""
    document = app.openapi_schema.to_schema()
    definition, parts = schedule_and_parts(REFS)
    schemas = document["components"]["schemas"]
    schemas |= {"Definition": definition, **parts}
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token or a signed JWT."},
        "session": {"type": "apiKey", "in": "cookie", "name": "onbeat"},
    }
    document["security"] = [{"token": []}, {"session": []}]
    body = {"application/json": {"schema": {"$ref": f"{REFS}Definition"}}}
    for item in document["paths"].values():
        for operation in item.values():
            if not isinstance(operation, dict) or "operationId" not in operation:
                continue
            if operation["operationId"] in DEFINED_BY:
                operation["requestBody"]["content"] = body
    schemas["NewSchedule"]["properties"]["definition"] = {"$ref": f"{REFS}Definition"}
    return document


def query_names(document: dict[str, Any]) -> dict[tuple[str, str], frozenset[str]]:
    """Return which names a query may have, by method and path."""
    return {
        (method.upper(), path): frozenset(
            each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"
        )
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if isinstance(operation, dict)
    }

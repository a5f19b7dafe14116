"""The reference has exactly the existing verbs, options and operations."""

import json
import re

import click
import pytest

from onbeat.cli.command import main
from onbeat.service.access import SCOPES
from tests.docs.examples import ROOT
from tests.web.serving import serving

CLI, REST = (ROOT / "docs" / "reference" / name for name in ("cli.md", "rest.md"))
OF_ALL = {"--json", "--database", "--config"}
WITHOUT_DATABASE = {"init", "next", "schema", "completion"}


def verbs(group=main, before=()):
    """Yield every verb with its name, those in groups of verbs as well."""
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        if isinstance(found, click.Group):
            if found.invoke_without_command:
                yield " ".join((*before, name)), found
            yield from verbs(found, (*before, name))
        else:
            yield " ".join((*before, name)), found


VERBS = dict(verbs())


def sections(page, heading):
    """Return the parts of a page by their headings."""
    parts = re.split(rf"^{heading} (.+)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.split("\n## ")[0] for part in parts[2::2]), strict=True))


def usage(name, verb):
    arguments = [each for each in verb.params if isinstance(each, click.Argument)]
    shown = (each.make_metavar(click.Context(verb)) for each in arguments)
    return " ".join(["onbeat", name, *shown])


def options(verb):
    found = [each for each in verb.params if isinstance(each, click.Option)]
    return {word for each in found for word in (*each.opts, *each.secondary_opts)}


def test_reference_has_exactly_the_verbs_with_their_arguments():
    there = [usage(name, verb) for name, verb in VERBS.items()]
    assert sorted(sections(CLI, "###")) == sorted(there)


@pytest.mark.parametrize("name", VERBS)
def test_reference_has_exactly_the_options_of_a_verb(name):
    verb = VERBS[name]
    rows = re.findall(r"^\| `(-[^`]+)` \|", sections(CLI, "###")[usage(name, verb)], re.MULTILINE)
    shown = {word for row in rows for word in re.findall(r"--?[a-z-]+", row)}
    assert shown == options(verb) - OF_ALL


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_the_common_options(name):
    wanted = {"--json"} if name in WITHOUT_DATABASE else OF_ALL
    assert options(VERBS[name]) & OF_ALL == wanted


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_an_example_in_its_section(name):
    part = sections(CLI, "###")[usage(name, VERBS[name])]
    assert re.search(rf"^\$ onbeat {name}\b", part, re.MULTILINE)


OPERATIONS = sections(REST, "###")
METHODS = {"get", "put", "post", "patch", "delete"}
IN_PLACE = {
    "{version}": "1",
    "{run_id}": "1",
    "{key}": "1",
    "{node_id}": "nobody",
}  # of the names in a path


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("reference")) as found:
        yield found


@pytest.fixture(scope="module")
def served(api):
    """The operations of the OpenAPI document, by their ids."""
    document = api.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    return {
        told["operationId"]: {"method": method.upper(), "path": path, **_sent(told, schemas)}
        for path, item in document["paths"].items()
        for method, told in item.items()
        if method in METHODS
    }


def _sent(told, schemas):
    """Return the names of what an operation is sent: query, headers, and the fields of a body."""
    names = {"query": set(), "header": set(), "path": set()}
    for each in told.get("parameters", ()):
        names[each["in"]].add(each["name"])
    body = told.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = body.get("schema", {})
    ref = next((each["$ref"] for each in [schema, *schema.get("oneOf", ())] if "$ref" in each), "")
    name = ref.rpartition("/")[2]
    is_definition = name in {"Definition", "Patch", ""}
    fields = set() if is_definition else set(schemas[name]["properties"])
    return {"query": names["query"], "headers": names["header"], "body": fields}


def shown(name):
    """Return the line below the heading of an operation."""
    line = OPERATIONS[name].strip().splitlines()[0]
    first, *rest = line.split(" · ")
    method, path = first.strip("`").split(" ")
    told = {part.partition(" ")[0]: set(re.findall(r"`([^`]+)`", part)) for part in rest}
    scope = next(iter(told.pop("scope")), None)
    empty = {"query": set(), "headers": set(), "body": set()}
    return scope, {"method": method, "path": path, **empty, **told}


def test_reference_has_exactly_the_operations_of_the_api(served):
    assert sorted(OPERATIONS) == sorted(served)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_documented_with_its_path_and_parameters(name, served):
    assert shown(name)[1] == served[name]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_has_an_example(name):
    _, told = shown(name)
    path = re.escape(told["path"].removeprefix("/api/v1"))
    path = re.sub(r"\\{\w+\\}", r"[^/ ?]+", path)
    asked = re.findall(
        rf"^\$ curl [^\n]*(?:\$API|:8585){path}[\"? \n][^\n]*", OPERATIONS[name], re.MULTILINE
    )
    explicit = {each: f"-X {told['method']}" in each for each in asked}
    usual = {each: "POST" if "--json" in each else "GET" for each in asked}
    assert [each for each in asked if explicit[each] or usual[each] == told["method"]]


@pytest.mark.parametrize("name", [name for name in OPERATIONS if shown(name)[0]])
def test_operation_requires_the_documented_scope(name, api):
    scope, told = shown(name)
    path, body = told["path"], example_body(name)
    path = path.removeprefix("/api/v1") if path.startswith("/api/v1/") else f"/{path}"
    for place, value in IN_PLACE.items():
        path = path.replace(place, value)
    path = re.sub(r"\{\w+\}", "nothing", path)
    if name == "follow_events":
        path += "?after=nothing"  # whoever may read is told at once that this is no event
    allowed = [
        each
        for each in SCOPES
        if api.ask(told["method"], path, body, token=api.token(each)).status_code != 403
    ]
    assert allowed == list(SCOPES[SCOPES.index(scope) :])


def example_body(name):
    """Return what the first example of an operation sends, such that only its scope decides."""
    found = re.search(r"--json '(\{.*\})'$", OPERATIONS[name], re.MULTILINE)
    if found is None:
        return None
    body = json.loads(found[1])
    if "run" in body:
        body["run"] = {"http": "https://example.com/", "public_only": True}  # others need more
    return {**body, "dry_run": False} if "dry_run" in body else body  # a look needs less

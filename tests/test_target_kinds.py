"""What every kind of target keeps to, also one of an installed package."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from msgspec.structs import replace

from onbeat.app.parts import check_target
from onbeat.core.json_schema import target_schema, text
from onbeat.core.notify.channels import REFERENCE_START
from onbeat.core.schedule import definition, from_definition
from onbeat.core.target import Target
from onbeat.core.target_kinds import KINDS, TargetKind
from onbeat.errors import InvalidSchedule, NotAllowed
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.service.access import Caller, as_allowed, check_change
from onbeat.service.service import Service
from onbeat.stores.sql.rendered_targets import render_target
from onbeat.testing import RecordingLauncher, a_schedule
from tests.core.test_templates import BEFORE, some_values
from tests.installed_kinds import installed
from tests.stores.conftest import Sqlite, StoreHarness

POST = TargetKind(
    name="post",
    schema=target_schema("post", {"post": text("a URL"), "token": text("of the server")}),
    for_definers=lambda target, _: target,
)
COMPOSED = ["{{ '$' }}{env:CANARY}", "{{ '${' }}env:CANARY}", "{{ 'secret:' }}//canary"]
INERT = ["$ {env:CANARY}", "$ {env:CANARY}", "secret ://canary"]


def texts_of(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from (name, *texts_of(each))
    elif isinstance(value, list):
        for each in value:
            yield from texts_of(each)


# -- results of templates


@pytest.mark.parametrize("kind", [*KINDS.all(), POST], ids=lambda kind: kind.name)
def test_template_results_are_inert_in_all_but_the_plain_fields(kind):
    with installed(kind):
        fields = dict.fromkeys(kind.schema["properties"], COMPOSED) | {
            "inputs": {"a": COMPOSED, "b": "{{ last.result }}"}
        }
        result = {"${env:CANARY}": ["secret://canary"]}
        values = some_values(last=replace(BEFORE, result=result))
        target = render_target(Target(kind.name, fields), values, fields["inputs"])
    for name, value in target.fields.items():
        found = [each for each in texts_of(value) if REFERENCE_START.search(each)]
        assert bool(found) == (name in kind.plain_fields), name


def test_plain_fields_are_none_in_which_a_launcher_looks_secrets_up():
    plain = {kind.name: kind.plain_fields for kind in KINDS.all()}
    assert not plain["http"] & {"http", "headers"}
    assert "env" not in plain["command"]


@pytest.mark.parametrize(("composed", "inert"), list(zip(COMPOSED, INERT, strict=True)))
def test_result_of_a_template_of_an_installed_kind_sends_no_secret(tmp_path, composed, inert):
    got = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(self.headers["X-Token"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    (tmp_path / "canary").write_text("a-secret")

    async def sent(url):
        world = StoreHarness(Sqlite(tmp_path))
        await world.open()
        await world.register(offers=frozenset({"post"}))
        requests = HttpLauncher(
            version="1", environment={"CANARY": "a-secret"}, secrets=str(tmp_path)
        )
        run = {"post": url, "token": composed}
        service = Service(world.store, {"post": RecordingLauncher(offers=["post"])}, new_id=str)
        await service.of(Caller("ann", "define")).define([a_schedule("report", run=run)])
        await world.tick()
        target = (await world.start_one()).target
        headers = {"X-Token": target.fields["token"]}
        await requests.ask("POST", target.fields["post"], headers=headers)
        await requests.close()
        await world.close()

    with HTTPServer(("127.0.0.1", 0), Server) as server, installed(POST):
        threading.Thread(target=server.serve_forever).start()
        asyncio.run(sent(f"http://127.0.0.1:{server.server_port}/"))
        server.shutdown()
    assert got == [inert]


# -- kinds that cannot be told apart


def a_kind(name="slack", *properties, field="", on="", **fields):
    properties = dict.fromkeys([field or name, *properties], text("a field"))
    if on:
        properties["on"] = {"const": on}
    schema = target_schema(field or name, properties)
    return TargetKind(name=name, field=field, on=on, schema=schema, **fields)


def refused(*kinds):
    before = KINDS.all()
    with pytest.raises(ValueError, match="kind") as problem, installed(*kinds):
        pass
    assert KINDS.all() == before
    return str(problem.value)


@pytest.mark.parametrize(
    ("field", "kind"),
    [("method", "http"), ("env", "command"), ("cwd", "command"), ("public_only", "http")],
)
def test_kind_called_as_a_field_of_another_is_refused(field, kind):
    problem = "the field {!r} names the kind {!r}, and is a field of the kind {!r}"
    assert refused(a_kind(field)) == problem.format(field, field, kind)
    assert refused(a_kind("slack", field=field)) == problem.format(field, "slack", kind)


def test_kind_with_a_field_that_is_the_name_of_another_is_refused():
    other = a_kind("remote-job", field="ray")  # `ray` is the name of `run: {python: ..., on: ray}`
    assert refused(other) == "the field 'ray' is the name of another kind of target"


def test_kind_with_a_field_that_names_another_is_refused():
    problem = "the field 'http' names the kind 'http', and is a field of the kind 'slack'"
    assert refused(a_kind("slack", "http")) == problem
    problem = "the field 'text' names the kind 'text', and is a field of the kind 'slack'"
    assert refused(a_kind("slack", "text"), a_kind("text")) == problem


@pytest.mark.parametrize("name", ["enabled", "inputs", "on", "kind", "a/b", "a:b", ""])
def test_kind_with_a_reserved_name_is_refused(name):
    assert f"cannot be called {name!r}" in refused(a_kind(name))


def test_kind_with_a_field_for_the_place_must_have_a_place():
    problem = "the kind 'slack' has a field 'on', which only names a place"
    assert refused(a_kind("slack", "on")) == problem


def test_kind_in_a_place_needs_the_same_field_without_one():
    problem = "the kind 'slack-eu' runs 'slack' on 'eu', and no kind runs it without `on`"
    assert refused(a_kind("slack-eu", field="slack", on="eu")) == problem
    with installed(a_kind("slack-eu", field="slack", on="eu"), a_kind("slack")):
        assert set(KINDS.places("slack")) == {"", "eu"}


def test_fields_of_a_kind_are_in_its_schema():
    problem = "the schema of the kind 'slack' has no field 'token'"
    assert refused(a_kind(plain_fields=frozenset({"token"}))) == problem


def test_kinds_may_share_other_fields():
    with installed(a_kind("slack", "public_only", "token"), a_kind("teams", "token")):
        assert KINDS.find("teams") is not None


# -- remote callers

DEFINER, ADMIN = Caller("ann", "define"), Caller("bob", "admin")


def small(target, _):
    return Target(target.kind, {**target.fields, "size": 1})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "it has fields that only an admin may define"),
        ({"beyond_definers": "it may be large"}, "it may be large"),
    ],
)
def test_kind_says_what_of_a_target_only_an_admin_may_change(fields, why):
    with installed(a_kind("post", "size", for_definers=small, **fields)):
        schedule = a_schedule("report", run={"post": "x", "size": 9})
        check_change(ADMIN, "report", schedule)
        with pytest.raises(NotAllowed) as refused:
            check_change(DEFINER, "report", schedule)
        check_change(DEFINER, "report", as_allowed(DEFINER, schedule))
    problem = f"schedule report cannot be changed: {why}, so only an admin may change it"
    assert refused.value.problem == problem


def test_request_that_may_be_private_is_named_so():
    schedule = a_schedule("report", run={"http": "https://example.com"})
    with pytest.raises(NotAllowed, match="it may send to private addresses, so only an admin"):
        check_change(DEFINER, "report", schedule)


@pytest.mark.parametrize("kind", [*KINDS.all(), POST], ids=lambda kind: kind.name)
def test_definer_may_write_no_reference_to_a_secret_in_any_field(kind):
    with installed(kind):
        for name in kind.schema["properties"].keys() - {"on"}:
            fields = {kind.key[0]: "x", name: ["${env:CANARY}"]}
            schedule = a_schedule("report")
            schedule = replace(schedule, target=Target(kind.name, fields))
            with pytest.raises(NotAllowed):
                as_allowed(DEFINER, schedule)


def test_code_to_import_is_for_admins_on_a_cluster_and_for_no_remote_caller_in_the_node():
    in_node = a_schedule("report", run={"python": "os:getcwd"})
    there = a_schedule("report", run={"python": "os:getcwd", "on": "ray"})
    assert as_allowed(ADMIN, there) == there
    for caller, schedule in ((ADMIN, in_node), (DEFINER, in_node), (DEFINER, there)):
        with pytest.raises(NotAllowed):
            as_allowed(caller, schedule)


def test_schedule_of_an_unknown_kind_is_for_admins():
    with installed(POST):
        text = definition(a_schedule("report", run={"post": "x"}))
    schedule = from_definition("report", text)
    check_change(ADMIN, "report", schedule)
    with pytest.raises(NotAllowed, match="only an admin may define a post target"):
        check_change(DEFINER, "report", schedule)
    with pytest.raises(InvalidSchedule, match="post: no launcher has this name"):
        a_schedule("report", run={"post": "x"})
    with pytest.raises(InvalidSchedule, match="post: no launcher for this kind of target"):
        check_target(schedule)

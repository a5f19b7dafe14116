"""Every operation by every kind of caller, for own schedules and those of other owners.

The scope of each operation is listed here: an operation without an entry fails.
"""

import itertools
from urllib.parse import unquote

import httpx
import pytest

from onbeat.core.schedule import read_schedule
from onbeat.errors import NotAllowed
from onbeat.service.access import Caller
from tests.web.serving import serving

SCOPES = ["read", "operate", "define", "admin"]
NEEDS = {
    "list_schedules": "read", "create_schedule": "define", "get_schedule": "read",
    "put_schedule": "define", "patch_schedule": "define", "delete_schedule": "define",
    "get_next": "read", "preview": "read", "list_runs_of": "read", "why": "read",
    "start_run": "operate", "pause_schedule": "operate", "resume_schedule": "operate",
    "backfill": "operate", "bulk": "operate",
    "list_runs": "read", "get_run": "read", "cancel_run": "operate", "report_run": "operate",
    "get_log": "read",
    "plan": "read", "apply": "define", "simulate": "read", "schema": "read",
    "overview": "read", "get_gate": "read", "put_gate": "admin", "list_groups": "read",
    "put_group": "admin", "list_nodes": "read", "stop_node": "admin", "audit": "read",
    "list_tokens": "admin", "create_token": "admin", "revoke_token": "admin",
    "follow_events": "read", "metrics": "read", "openapi": "read",
    "get_session": "read", "healthz": None, "readyz": None,
    "workflow_upsert": "define", "workflow_pause": "operate", "workflow_pause_by_id": "operate",
    "workflow_delete": "define", "workflow_get": "read", "workflow_list": "read",
    "workflow_runs": "read", "workflow_deploy": "define", "run_launcher_start": "operate",
    "report_run_shortly": "operate",
    "workflow_dags": "read", "workflow_versions": "read", "workflow_dag": "read",
    "workflow_delete_dag": "define", "workflow_delete_dags": "define",
    "session_schedules": "read", "session_schedule": "read", "session_schedule_put": "define",
    "session_schedule_patch": "operate", "session_schedule_delete": "define",
    "session_schedule_run": "operate",
    "timer_status": "read", "timer_schedules": "read", "timer_runs": "read",
    "timer_run": "operate", "timer_pause": "operate", "timer_resume": "operate",
    "publish_artifact": "operate",
}  # fmt: skip
OF_EVERYBODY = {
    "list_groups",
    "list_nodes",
    "metrics",
    "publish_artifact",
}  # not for callers with an owner
ABOUT_ONE = {
    "get_schedule", "put_schedule", "patch_schedule", "delete_schedule", "get_next", "list_runs_of",
    "why", "start_run", "pause_schedule", "resume_schedule", "backfill", "get_run", "cancel_run",
    "report_run", "get_log", "create_schedule", "apply",
    "workflow_upsert", "workflow_pause", "workflow_pause_by_id", "workflow_delete", "workflow_get",
    "workflow_runs", "workflow_deploy", "run_launcher_start", "report_run_shortly",
    "workflow_versions", "workflow_dag", "workflow_delete_dag", "workflow_delete_dags",
    "session_schedule", "session_schedule_put", "session_schedule_patch", "session_schedule_run",
    "timer_run", "timer_pause", "timer_resume",
}  # fmt: skip
REVEALS_EXISTENCE = {"create_schedule", "put_schedule", "apply"}  # a definer may not take its id
REVEALS_EXISTENCE |= {"workflow_upsert", "workflow_deploy"}  # nor act for another user
REVEALS_EXISTENCE |= {"session_schedule_put"}
DAILY = {"prompt": "Hello", "schedule": {"type": "cron", "expression": "0 9 * * *"}}
WORKFLOW = {"workflow_id": "report", "version": 1}
HOOK = {
    "at": "2999-01-01T00:00:00Z",
    "run": {"http": "https://example.com/hook", "public_only": True},
}
YEARLY = {"cron_expr": "0 0 1 1 *", "timezone": "UTC"}
BODIES = {
    "session_schedule_put": lambda there: DAILY | {"prompt": there["new"]},
    "session_schedule_patch": lambda there: {"enabled": False},
    "workflow_upsert": lambda there: WORKFLOW | YEARLY | {"schedule_id": there["workflow"], "user_id": there["owner"]},
    "workflow_pause": lambda there: {"schedule_id": there["workflow"], "paused": True},
    "workflow_pause_by_id": lambda there: {"paused": True},
    "workflow_deploy": lambda there: {
        "dag": {"triggers": [{"id": "t", "type": "schedule_based", "schedule": YEARLY}]},
        "workflow_id": there["workflow"], "version": 1, "user_id": there["owner"],
    },
    "run_launcher_start": lambda there: WORKFLOW | {
        "user_id": there["owner"], "scheduled_for": "2026-01-01T00:00:00Z", "idempotency_key": "k",
    },
    "report_run_shortly": lambda there: {"status": "SUCCESS"},
    "create_schedule": lambda there: {"schedule_id": there["schedule_id"], "definition": HOOK},
    "put_schedule": lambda there: HOOK | {"description": there["new"]},
    "patch_schedule": lambda there: {"description": there["new"]},
    "preview": lambda there: HOOK,
    "backfill": lambda there: {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
    "bulk": lambda there: {"action": "pause", "which": {"ids": [there["schedule_id"]]}},
    "report_run": lambda there: {"status": "SUCCESS"},
    "plan": lambda there: {"source": "s", "schedules": {there["schedule_id"]: HOOK}, "take_over": True},
    "apply": lambda there: {"source": "s", "schedules": {there["schedule_id"]: HOOK | {"description": there["new"]}}, "take_over": True},
    "publish_artifact": lambda there: {"type": "LogEntry", "payload": {"text": there["new"]}},
    "put_gate": lambda there: {"gate": "open"},
    "put_group": lambda there: {"places": 2},
    "create_token": lambda there: {"name": there["new"], "scope": "read"},
}  # fmt: skip
ROLES = ["none", "wrong", *SCOPES, "read@ann", "operate@ann", "define@ann"]


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    """An API whose runs never start, so that nothing changes on its own."""
    with serving(tmp_path_factory.mktemp("matrix"), roles=("plan", "api")) as found:
        for role in ROLES[2:]:
            scope, _, owner = role.partition("@")
            assert found.get("/gate", token=found.token(scope, owner)).status_code == 200
        yield found


@pytest.fixture(scope="module")
def operations(api):
    """All operations of the document, with method and path."""
    found = {}
    for path, item in api.get("/openapi.json").json()["paths"].items():
        for method, operation in item.items():
            found[operation["operationId"]] = (method.upper(), path)
    return found


def test_every_operation_is_in_the_matrix(operations):
    assert operations.keys() == NEEDS.keys()


new = (f"new-{n}" for n in itertools.count())


def give(api, owner):
    """Create a schedule of an owner with a run, and return the parameters of paths."""
    name = f"{owner}/{next(new)}"

    async def made():
        service = api.beat.service
        await service.define([read_schedule(name, HOOK)], source="s", user_id=owner)
        run = await service.start(name)
        await service.tokens.create(name.replace("/", "-"), "read", owner)
        workflow = WORKFLOW | YEARLY | {"schedule_id": f"{name}-w", "user_id": owner}
        await api.beat.systems["workflows"].registrar.upsert_schedule(workflow)
        await api.beat.systems["workflows"].store.save_dag(f"{name}-w", 1, {}, user_id=owner)
        mine = service.of(Caller(owner, "define", owner))
        flow = read_schedule(f"{name}-f", HOOK | {"run": {"flow": {"url": "/-/x"}}})
        await service.define([flow], source="flows", user_id=owner)
        await api.beat.systems["sessions"].put(mine, name.replace("/", "-"), DAILY)
        return run.run_id

    run_id = api.do(made())
    quoted = name.replace("/", "%2F")
    return {
        "schedule_id": name, "run_id": run_id, "key": run_id, "quoted": quoted,
        "name": name.replace("/", "-"), "node_id": "nobody", "new": next(new),
        "workflow": f"{name}-w", "id": f"{quoted}-w", "owner": owner,
        "slug": name.replace("/", "-"), "flow": f"{quoted}-f", "version": 1,
    }  # fmt: skip


def ask(api, operation, there, *, role, method, path):
    for name in ("run_id", "key", "name", "node_id", "id", "slug", "flow", "version"):
        path = path.replace(f"{{{name}}}", str(there[name]))
    path = path.replace("{schedule_id}", there["quoted"])
    body = BODIES.get(operation, lambda _: None)(there)
    scope, _, owner = role.partition("@")
    headers = {
        "Authorization": f"Bearer {api.token(scope, owner)}"
        if scope in SCOPES
        else "Bearer onbeat_wrong"
    }
    if role == "none":
        headers = {}
    with api.client.stream(method, path, json=body, headers=headers) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, ""
        answer.read()
        return answer.status_code, answer.text


def everything(api):
    """Return all stored data that a request could change."""

    async def read():
        service = api.beat.service
        return (
            await service.schedules(), await service.runs(limit=10_000), await service.groups(),
            await service.tokens.all(), (await service.overview()).gate_open,
            await service.newest_event(), await service.list_documents("workflow"),
        )  # fmt: skip

    return api.do(read())


def expected(operation, role, target_owner):
    """Return the expected statuses."""
    scope, _, owner = role.partition("@")
    needed = NEEDS[operation]
    if needed is None:
        return {200}
    if scope not in SCOPES:
        return {401} if role == "none" else {401, 429}
    if SCOPES.index(scope) < SCOPES.index(needed) or (owner and operation in OF_EVERYBODY):
        return {403, 404} if owner and target_owner != owner and operation in ABOUT_ONE else {403}
    if operation in ("report_run", "report_run_shortly"):
        return {404} if owner and target_owner != owner else {409}  # the run has not been accepted
    if operation == "publish_artifact":
        return {422}  # no program of agents has registered a type
    if operation == "run_launcher_start":
        return {403} if owner and target_owner != owner else {409}  # no executor is configured
    if operation == "create_schedule" and (not owner or target_owner == owner):
        return {200}  # it exists with the same definition
    if owner and target_owner != owner and operation in ABOUT_ONE:
        return {403, 404} if operation in REVEALS_EXISTENCE else {404}
    return {200, 201, 202, 204}


@pytest.mark.parametrize("role", ROLES)
def test_each_operation_is_refused_without_effect_to_callers_without_the_right(
    api, operations, role
):
    given = {}
    for (operation, (method, path)), target_owner in itertools.product(
        operations.items(), ("ann", "bob")
    ):
        there = given.setdefault(target_owner, None) or give(api, target_owner)
        right = expected(operation, role, target_owner)
        before = everything(api) if min(right) >= 400 else None
        status, text = ask(api, operation, there, role=role, method=method, path=path)
        assert status in right, (role, operation, target_owner, status, text)
        if status >= 400:
            assert everything(api) == before, (role, operation, target_owner)
        if role.endswith("@ann") and status == 404:
            assert "bob/" not in text.replace(there["schedule_id"], ""), text
        given[target_owner] = there if status >= 400 or method == "GET" else None


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """An API with schedules of ann and bob in one group, whose only place bob has."""
    with serving(tmp_path_factory.mktemp("shared")) as found:
        for owner in ("bob", "ann"):
            token = found.token("admin", owner)
            long = {"run": {"command": ["sleep", "60"]}, "group": "shared", "every": "1h"}
            assert found.put(f"/schedules/{owner}%2Flong", long, token=token).status_code == 201
            after = {
                "after": {"schedule": f"{owner}/long", "outcome": "success"},
                "run": {"command": ["true"]},
            }
            assert found.put(f"/schedules/{owner}%2Fafter", after, token=token).status_code == 201
            assert found.post(f"/schedules/{owner}%2Flong/run", token=token).status_code == 201
        yield found


def test_responses_contain_nothing_of_other_owners(shared):
    token = shared.token("read", "ann")
    asked = [
        "/schedules", "/schedules?limit=1", "/schedules?owner=bob", "/schedules?q=long", "/runs",
        "/runs?schedule_id=ann%2Flong", "/audit", "/overview", "/gate", "/schedules/ann%2Flong",
        "/schedules/ann%2Flong/runs", "/schedules/ann%2Flong/next", "/schedules/ann%2Fafter/why",
        "/schedules/ann%2Flong/why", "//",
    ]  # fmt: skip
    for path in asked:
        answer = shared.get(path, token=token)
        assert answer.status_code == 200, (path, answer.text)
        assert "bob" not in answer.text, path
    for path in (
        "/schedules/bob%2Flon",
        "/schedules/bob%2Flong/why",
        "/runs?schedule_id=bob%2Flong",
    ):
        answer = shared.get(path, token=token)
        assert answer.status_code == 404
        assert "bob/" not in answer.text.replace("bob/long", "").replace("bob/lon", ""), answer.text


def test_counts_include_only_schedules_of_the_owner(shared):
    found = shared.get("/overview", token=shared.token("read", "ann")).json()
    assert (found["schedules"], found["nodes"]) == (2, [])
    assert sum(found["runs"].values()) == 1
    assert shared.get("/overview").json()["schedules"] == 4


def test_forecast_and_plan_include_only_schedules_of_the_owner(shared):
    token = shared.token("define", "ann")
    forecast = shared.post("/simulate", {"until": "2h"}, token=token)
    assert forecast.status_code == 200
    assert "ann/long" in forecast.text
    assert "bob" not in forecast.text
    there = {"source": "s", "schedules": {"ann/new": HOOK}, "prune": True, "take_over": True}
    planned = shared.post("/plan", there, token=token)
    assert [each["schedule_id"] for each in planned.json()["changes"]] == ["ann/new"]


def test_why_does_not_name_schedules_of_other_owners_in_a_group(shared):
    (run,) = shared.get("/runs?schedule_id=ann%2Flong", token=shared.token("read", "ann")).json()[
        "runs"
    ]
    assert run["status"] == "ENQUEUED"

    async def facts(only_owner):
        store = shared.beat.service._all.as_caller("x", only_owner=only_owner)
        return (await store.facts("ann/long", None)).group

    own, all_of_them = shared.do(facts("ann")), shared.do(facts(None))
    assert [each.schedule_id for each in own.used_by] == [""]
    assert [each.schedule_id for each in all_of_them.used_by] == ["bob/long"]


def test_event_stream_contains_nothing_of_other_owners(shared):
    headers = {"Authorization": f"Bearer {shared.token('read', 'ann')}"}
    with httpx.stream("GET", f"{shared.url}/api/v1/events?after=0", headers=headers) as stream:
        lines = stream.iter_lines()
        shared.post("/schedules/bob%2Flong/pause")
        shared.post("/schedules/ann%2Flong/pause")
        heard = []
        for line in lines:
            heard.append(line)
            if "schedule.paused" in line and line.startswith("data"):
                break
    assert any("ann/long" in line for line in heard)
    assert not any("bob" in line for line in heard)


class TestDefining:
    """What remote callers may define, by scope."""

    @pytest.mark.parametrize("owner", ["", "ann"])
    @pytest.mark.parametrize(
        "fields",
        [
            {"run": {"command": ["true"]}},
            {"run": {"python": "os:getcwd"}},
            {"run": {"python": "registered"}},
            {"run": {"http": "https://example.com", "headers": {"A": "${env:HOME}"}}},
            {"run": {"http": "https://example.com", "headers": {"A": "secret://x"}}},
            {"run": {"http": "https://example.com", "inputs": {"a": ["secret://x"]}}},
            {"run": {"http": "https://example.com"}, "when": {"command": ["true"]}},
        ],
    )
    def test_definer_may_define_only_requests_without_secrets(self, api, owner, fields):
        token, before = api.token("define", owner), everything(api)
        asked = {"every": "1h", **fields}
        name = f"ann%2F{next(new)}"
        assert api.put(f"/schedules/{name}", asked, token=token).status_code == 403
        assert api.post("/schedules", {"definition": asked}, token=token).status_code == 403
        for path in ("/plan", "/apply"):
            sent = {"source": "s", "schedules": {"ann/x": asked}}
            assert api.post(path, sent, token=token).status_code == 403
        assert everything(api) == before

    @pytest.mark.parametrize("owner", ["", "ann"])
    def test_requests_of_definers_go_only_to_public_addresses(self, api, owner):
        token, path = api.token("define", owner), f"/schedules/ann%2F{next(new)}"
        private = {"every": "1h", "run": {"http": "https://example.com", "public_only": False}}
        made = api.put(path, private, token=token)
        assert made.json()["definition"]["run"]["public_only"] is True
        for patch in (
            {"run": {"public_only": False}},
            {"run": {"public_only": None}},
            {"every": "2h"},
        ):
            edited = api.patch(path, patch, token=token)
            assert edited.status_code == 200
            assert edited.json()["definition"]["run"]["public_only"] is True
        assert (
            api.patch(path, {"run": {"public_only": False}}).json()["definition"]["run"][
                "public_only"
            ]
            is False
        )

    def test_definer_cannot_edit_a_schedule_of_an_admin(self, api):
        secret = {"http": "https://example.com", "headers": {"A": "secret://x"}}
        for run in ({"command": ["true"]}, secret):
            path = f"/schedules/ann%2F{next(new)}"
            made = api.put(path, {"every": "1h", "run": run}, token=api.token("admin", "ann"))
            assert made.status_code == 201
            before, token = everything(api), api.token("define", "ann")
            for patch in (
                {"description": "x"},
                {"run": {"http": "https://evil.example"}},
                {"every": "1m"},
            ):
                assert api.patch(path, patch, token=token).status_code in {403, 422}
            assert everything(api) == before

    def test_remote_admin_may_name_only_registered_functions(self, api):
        path = f"/schedules/{next(new)}"
        for target in (
            {"run": {"python": "os:getcwd"}},
            {"run": {"command": ["a"]}, "when": {"python": "os:getcwd"}},
        ):
            refused = api.put(path, {"every": "1h", **target})
            assert refused.status_code == 403
            assert "registered" in refused.json()["hint"]
        assert api.put(path, {"every": "1h", "run": {"python": "registered"}}).status_code == 201

    def test_schedule_cannot_follow_one_of_another_owner(self, api):
        theirs = give(api, "bob")["schedule_id"]
        follow = {"after": {"schedule": theirs, "outcome": "success"}, "run": HOOK["run"]}
        refused = api.put(f"/schedules/ann%2F{next(new)}", follow, token=api.token("define", "ann"))
        assert refused.status_code == 404

    def test_defined_schedule_belongs_to_the_owner_of_the_caller(self, api):
        path = f"/schedules/{next(new)}"
        assert api.put(path, HOOK, token=api.token("define", "ann")).json()["user_id"] == "ann"
        assert api.get(path, token=api.token("read", "ann")).status_code == 200


# What an admin has defined and a token of scope define could not.
OF_AN_ADMIN = {
    "command": {"run": {"command": ["true"]}},
    "function": {"run": {"python": "registered"}},
    "secret header": {"run": {"http": "https://example.com", "headers": {"A": "secret://x"}}},
    "private address": {"run": {"http": "http://127.0.0.1:9/"}},
    "private agent": {"run": {"flock": {"url": "http://127.0.0.1:9", "agent": "a"}}},
    "private session": {"run": {"session": {"prompt": "p", "url": "http://127.0.0.1:9"}}},
    "command as condition": {"run": HOOK["run"], "when": {"command": ["true"]}},
    "unreadable": {"run": HOOK["run"]},
}
NO_TARGET = dict.fromkeys(("command", "python", "http", "flock", "session", "headers"))
SOURCES = {"ann/x/t": "workflows-deployed", "ann-x": "sessions"}
# Each way to change or remove a definition that is there, whichever system it belongs to.
CHANGES = {
    "put_schedule": lambda api, there, token: api.put(f"/schedules/{there}", HOOK, token=token),
    "create_schedule": lambda api, there, token: api.post("/schedules", {"schedule_id": unquote(there), "definition": HOOK}, token=token),
    "patch_schedule": lambda api, there, token: api.patch(f"/schedules/{there}", {"run": NO_TARGET | HOOK["run"]}, token=token),
    "patch_replacing_all": lambda api, there, token: api.patch(f"/schedules/{there}", HOOK | {"when": None, "every": None, "run": NO_TARGET | HOOK["run"]}, token=token),
    "delete_schedule": lambda api, there, token: api.delete(f"/schedules/{there}", token=token),
    "bulk_ids": lambda api, there, token: api.post("/bulk", {"action": "delete", "which": {"ids": [unquote(there)]}}, token=token),
    "bulk_all": lambda api, there, token: api.post("/bulk", {"action": "delete", "which": {"all": True}}, token=token),
    "bulk_dry_run": lambda api, there, token: api.post("/bulk", {"action": "delete", "which": {"ids": [unquote(there)]}, "dry_run": True}, token=token),
    "apply_replacing": lambda api, there, token: api.post("/apply", {"source": SOURCES[unquote(there)], "schedules": {unquote(there): HOOK}}, token=token),
    "apply_take_over": lambda api, there, token: api.post("/apply", {"source": "other", "schedules": {unquote(there): HOOK}, "take_over": True}, token=token),
    "apply_prune": lambda api, there, token: api.post("/apply", {"source": SOURCES[unquote(there)], "schedules": {}, "prune": True}, token=token),
    "plan_prune": lambda api, there, token: api.post("/plan", {"source": SOURCES[unquote(there)], "schedules": {}, "prune": True}, token=token),
    "workflow_upsert": lambda api, there, token: api.post("//schedules/upsert", WORKFLOW | YEARLY | {"schedule_id": unquote(there), "user_id": "ann"}, token=token),
    "workflow_delete": lambda api, there, token: api.delete(f"//schedules/{there}", token=token),
    "workflow_deploy": lambda api, there, token: api.post("//schedules/deploy", {"dag": {"triggers": [{"id": "t", "type": "schedule_based", "schedule": YEARLY}]}, "workflow_id": unquote(there).rpartition("/")[0], "version": 1, "user_id": "ann"}, token=token),
    "session_schedule_put": lambda api, there, token: api.put(f"//api/schedule/{there}", DAILY, token=token),
    "session_schedule_patch": lambda api, there, token: api.patch(f"//api/schedule/{there}", {"prompt": "Other"}, token=token),
    "session_schedule_delete": lambda api, there, token: api.delete(f"//api/schedule/{there}", token=token),
}  # fmt: skip


class TestSchedulesOfAnAdmin:
    """A caller that may not define a schedule may not change, replace, delete or take it over."""

    @pytest.mark.parametrize("kind", OF_AN_ADMIN)
    @pytest.mark.parametrize("owner", ["", "ann"])
    def test_no_operation_of_a_definer_changes_a_schedule_of_an_admin(self, tmp_path, owner, kind):
        with serving(tmp_path, roles=("plan", "api")) as api:
            self.define(api, kind)
            api.patch("//api/schedule/ann-x", {"enabled": True})  # its folder has been written
            token, before = api.token("define", owner), everything(api)
            for (change, ask_for), name in itertools.product(CHANGES.items(), SOURCES):
                answer = ask_for(api, name.replace("/", "%2F"), token)
                told = (change, name, answer.status_code, answer.text)
                assert answer.status_code in {400, 403, 404, 409, 422}, told
                assert "no route has this path" not in answer.text, told
                if not change.startswith(("workflow_", "session_", "patch_", "create_")):
                    assert answer.status_code == 403, told
                    assert "admin" in answer.text, told
                assert everything(api) == before, told
            admin = api.token("admin", owner)
            for name in SOURCES:
                there = f"/schedules/{name.replace('/', '%2F')}"
                assert api.delete(there, token=admin).status_code == 204

    def define(self, api, kind):
        """Create schedules of two systems, and edit them as an admin."""

        async def made():
            for name, source in SOURCES.items():
                found = read_schedule(name, {"every": "1h", **OF_AN_ADMIN[kind]})
                await api.beat.service.define([found], source=source, user_id="ann")
            if kind == "unreadable":
                spoiled = "UPDATE schedules SET definition = '{}'"
                await api.beat.service._all._write(lambda tx: tx.run(spoiled))

        api.do(made())

    def test_right_to_change_is_checked_in_the_transaction(self, api):
        """An admin replaces the definition after the service has read it."""
        name = f"race-{next(new)}"
        definer = Caller("token:d", "define")

        async def raced():
            service = api.beat.service
            await service.define([read_schedule(name, HOOK)])
            mine = service.of(definer)
            changes = await mine.plan_changes([], source="", prune=False)
            assert not changes.removed
            await service.define(
                [read_schedule(name, {"every": "1h", "run": {"command": ["true"]}})]
            )
            for call in (
                mine.define([read_schedule(name, HOOK)]),
                mine.define([], remove=[name]),
                mine.delete(name),
            ):
                with pytest.raises(NotAllowed, match="command"):
                    await call
            return await service.schedule(name)

        assert "command" in api.do(raced()).definition

    def test_definer_may_edit_and_delete_a_session_at_the_configured_address(self, api):
        slug = f"mine-{next(new)}"
        schedule = read_schedule(slug, {"every": "1h", "run": {"session": {"prompt": "p"}}})
        api.do(api.beat.service.define([schedule], source="s"))
        token = api.token("define")
        assert api.patch(f"/schedules/{slug}", {"every": "2h"}, token=token).status_code == 200
        assert api.delete(f"/schedules/{slug}", token=token).status_code == 204


def test_bulk_delete_requires_scope_define(api):
    there = give(api, "ann")
    asked = {"action": "delete", "which": {"ids": [there["schedule_id"]]}}
    assert api.post("/bulk", asked, token=api.token("operate", "ann")).status_code == 403
    theirs = {"action": "delete", "which": {"all": True, "owner": "bob"}}
    assert api.post("/bulk", theirs, token=api.token("define", "ann")).json()["changed"] == []


def test_backfill_dry_run_requires_only_scope_read(api):
    there = give(api, "ann")
    asked = BODIES["backfill"](there) | {"dry_run": True}
    path = f"/schedules/{there['quoted']}/backfill"
    assert api.post(path, asked, token=api.token("read", "ann")).status_code == 200

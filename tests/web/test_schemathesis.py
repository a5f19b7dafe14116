"""The OpenAPI document is correct: valid requests are answered as documented, others refused.

`make fuzz` generates more examples than the normal test run.
"""

import os

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import ignored_auth, positive_data_acceptance

from onbeat.core.schedule import read_schedule
from tests.web.serving import serving

EXAMPLES = int(os.environ.get("API_EXAMPLES", "6"))
NOT_HERE = {"follow_events", "stop_node"}  # the first never ends, the second stops the node
REFUSED_FOR_REASONS = {404, 409, 412, 422}  # a cron that never fires, an unknown id
HAS_400_FOR_THEM = {  # as clients of these routes expect
    "workflow_upsert", "workflow_pause", "workflow_pause_by_id", "workflow_delete", "workflow_get",
    "workflow_runs", "workflow_deploy", "run_launcher_start", "report_run_shortly",
    "workflow_dags", "workflow_versions", "workflow_dag", "workflow_delete_dag",
    "workflow_delete_dags",
    "session_schedule_put", "session_schedule_patch",
}  # fmt: skip
NO_HTTP = b"Invalid HTTP request received."  # of the server itself
METHODS = {"get", "put", "post", "patch", "delete", "trace", "query"}
WORKFLOW = {
    "schedule_id": "known/two", "workflow_id": "w", "version": 1, "user_id": "ada",
    "cron_expr": "0 * * * *", "timezone": "UTC",
}  # fmt: skip
DAILY = {"prompt": "Hello", "schedule": {"type": "cron", "expression": "0 9 * * *"}}
HOURLY = {"every": "1h", "run": {"command": ["true"]}, "group": "g/1"}


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """An API with some data, and path parameters for it."""
    with serving(tmp_path_factory.mktemp("api"), roles=("plan", "api")) as api:
        api.put("/schedules/known%2Fone", HOURLY)
        run = api.post("/schedules/known%2Fone/run").json()["run_id"]
        api.post("//schedules/upsert", WORKFLOW)
        api.put("/groups/g%2F1", {"places": 2})
        api.put("//api/schedule/known-three", DAILY)
        flow = read_schedule("known/four", {"every": "1h", "run": {"flow": {"url": "/-/x"}}})
        api.do(api.beat.service.define([flow], source="flows"))
        api.do(api.beat.systems["workflows"].store.save_dag("known/two", 1, {"nodes": []}))
        there = {"schedule_id": "known%2Fone", "run_id": run, "key": str(run), "name": "g%2F1"}
        there["version"] = 1
        yield api, there | {"id": "known%2Ftwo", "slug": "known-three", "flow": "known%2Ffour"}


@pytest.fixture(scope="module")
def described(known):
    api, _ = known
    schema = schemathesis.openapi.from_url(f"{api.url}/api/v1/openapi.json", headers=bearer(api))
    schema.config.generation.update(allow_x00=False)  # schemas do not exclude NUL in texts
    return schema


def bearer(api):
    return {"Authorization": f"Bearer {api.admin}"}


def operations(schema):
    found = [each.ok() for each in schema.get_all_operations()]
    assert len(found) > 35, "all of them are there"
    return [each for each in found if each.definition.raw["operationId"] not in NOT_HERE]


def is_beyond_openapi(answer):
    """Whether a body was refused for a rule that a schema cannot express."""
    told = answer.json().get("problem", "")
    return answer.status_code == 400 and any(
        part in told for part in ("more than 64 bits", "too deep", "not JSON", "got `float`")
    )


@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
def test_generated_requests_are_answered_as_documented(known, described, mode):
    api, parameters = known
    for operation in operations(described):
        ask_for(api, operation, parameters, mode)
    assert api.get("/schedules").status_code == 200, "it is alive"


def ask_for(api, operation, parameters, mode):
    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=operation.as_strategy(generation_mode=mode), of_known=st.booleans())
    def ask(case, of_known):
        if of_known and mode is GenerationMode.POSITIVE:
            there = {
                name: parameters.get(name, value) for name, value in case.path_parameters.items()
            }
            case.path_parameters.update(there)
        if "follow" in (case.query or {}):
            case.query["follow"] = "false"
        answer = case.call(headers=bearer(api), timeout=20)
        case.validate_response(
            answer, excluded_checks=[ignored_auth, positive_data_acceptance], headers=bearer(api)
        )
        if answer.status_code >= 400 and answer.content != NO_HTTP:
            assert answer.json()["problem"], "a refusal says why"
        if mode is GenerationMode.POSITIVE and answer.status_code >= 400:
            is_told = answer.status_code in REFUSED_FOR_REASONS or is_beyond_openapi(answer)
            is_told = is_told or "may not name code to import" in answer.text  # also for admins
            name = case.operation.definition.raw["operationId"]
            is_told = is_told or (
                name in HAS_400_FOR_THEM and answer.json().keys() & {"field", "error"}
            )
            assert is_told, (case.as_curl_command(), answer.status_code, answer.text)

    ask()


def test_unsupported_methods_are_refused_with_the_allowed_ones(known, described):
    api, _ = known
    paths = described.raw_schema["paths"]
    with httpx.Client(base_url=api.url, headers=bearer(api)) as client:
        for path, item in paths.items():
            there = path.replace("{run_id}", "1").replace("{", "").replace("}", "")
            for method in METHODS - item.keys():
                answer = client.request(method.upper(), there)
                assert answer.status_code == 405, (method, path, answer.status_code)
                assert answer.headers["content-type"] == "application/problem+json"
                allowed = {each.strip().lower() for each in answer.headers["allow"].split(",")}
                assert allowed - {"options"} == item.keys(), (method, path, allowed)


def test_every_operation_documents_the_refusals_of_the_middleware(described):
    for operation in operations(described):
        answers = operation.definition.raw["responses"]
        is_open = operation.definition.raw.get("security") == []
        wanted = {"400", "403", "414", "421", "431"} | (set() if is_open else {"401", "429"})
        wanted |= {"408", "413", "415"} if operation.method != "get" else set()
        assert wanted <= answers.keys(), operation.label


def test_document_is_the_same_at_every_start(known, tmp_path):
    api, _ = known
    with serving(tmp_path, node=False) as other:
        assert api.get("/openapi.json").content == other.get("/openapi.json").content

"""The six routes over HTTP, with the shapes, statuses and texts of the origin."""

import json
import re
import socket
import time

import pytest

from tests.systems.sessions.conftest import STANDUP, Server
from tests.web.serving import serving

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
ITEM = [
    "slug", "prompt", "enabled", "schedule", "sessionConfig", "lastRun", "lastResult", "lastError",
    "nextRun", "sessionId", "createdAt", "updatedAt", "timeoutMinutes", "rateLimit",
]  # fmt: skip
AT = "//api/schedule"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("routes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(folder / "sessions")
    url = f"http://127.0.0.1:{port}"
    with serving(folder, sessions_url=url, public_url="") as api:
        api.do(server.start(port))
        yield api, server, folder / "schedule"
        api.do(server.stop())


@pytest.fixture
def api(served):
    return served[0]


def refusal(answer):
    return answer.status_code, answer.json()["error"]


@pytest.mark.req("C24", "C47")
def test_put_creates_a_schedule_and_then_replaces_it(api):
    made = api.put(f"{AT}/put", STANDUP)
    assert made.status_code == 200
    assert made.json() == {"slug": "put", "nextRun": made.json()["nextRun"], "created": True}
    assert TIME.fullmatch(made.json()["nextRun"])
    first = api.get(f"{AT}/put").json()
    least = {"prompt": "Other", "schedule": {"type": "interval", "intervalMinutes": 90}}
    again = api.put(f"{AT}/put", least)
    assert (again.status_code, again.json()["created"]) == (200, False)
    item = api.get(f"{AT}/put").json()
    assert item["createdAt"] == first["createdAt"]
    assert item["sessionConfig"] == {"persistSession": True}, "all of it is replaced"
    assert (item["prompt"], item["enabled"]) == ("Other", True)


@pytest.mark.req("C6", "C22", "C46")
def test_list_has_all_fields_of_each_schedule(api):
    api.put(f"{AT}/listed", STANDUP)
    found = api.get(AT).json()
    assert list(found) == ["schedules"]
    (item,) = [each for each in found["schedules"] if each["slug"] == "listed"]
    assert list(item) == ITEM
    assert item["schedule"] == {"type": "cron", "expression": "0 9 * * 1-5"}
    assert item["sessionConfig"] == {"model": "claude-sonnet", "persistSession": True}
    assert [item[name] for name in ("lastRun", "lastResult", "lastError", "sessionId")] == [
        None
    ] * 4


@pytest.mark.req("C23")
def test_get_returns_a_schedule_by_its_slug(api):
    api.put(f"{AT}/one", STANDUP)
    assert api.get(f"{AT}/one").json()["slug"] == "one"
    assert refusal(api.get(f"{AT}/none")) == (404, "Schedule not found: none")


@pytest.mark.req("C25", "C48", "C58")
def test_patch_disables_and_enables_a_schedule(api):
    api.put(f"{AT}/patched", STANDUP)
    off = api.patch(f"{AT}/patched", {"enabled": False})
    assert off.status_code == 200
    assert off.json() == {"slug": "patched", "enabled": False, "nextRun": off.json()["nextRun"]}
    assert TIME.fullmatch(off.json()["nextRun"])
    assert api.get(f"{AT}/patched").json()["enabled"] is False
    assert api.patch(f"{AT}/patched", {"enabled": True}).json()["enabled"] is True
    assert refusal(api.patch(f"{AT}/none", {"enabled": True})) == (404, "Schedule not found: none")


@pytest.mark.req("C25")
def test_patch_changes_some_fields_and_keeps_the_others(api):
    api.put(f"{AT}/some", STANDUP | {"enabled": False})
    other = {"prompt": "Other", "sessionConfig": {"persistSession": False}}
    assert api.patch(f"{AT}/some", other).json()["enabled"] is False
    item = api.get(f"{AT}/some").json()
    assert item["prompt"] == "Other"
    assert item["sessionConfig"] == {"model": "claude-sonnet", "persistSession": False}
    assert item["schedule"] == STANDUP["schedule"]


@pytest.mark.req("C26")
def test_delete_removes_a_schedule_with_its_files_and_succeeds_for_an_unknown_one(served):
    api, _, folder = served
    api.put(f"{AT}/deleted", STANDUP)
    assert (folder / "deleted").is_dir()
    for _ in range(2):
        answer = api.delete(f"{AT}/deleted")
        assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert not (folder / "deleted").exists()
    assert api.get(f"{AT}/deleted").status_code == 404


@pytest.mark.req("C27", "C49", "C59", "C60")
def test_run_sends_the_prompt_now_and_returns_its_session(served):
    api, server, folder = served
    api.put(f"{AT}/now", STANDUP | {"enabled": False})
    first = api.post(f"{AT}/now/run")
    assert first.status_code == 200
    session = first.json()["sessionId"]
    assert first.json() == {"slug": "now", "status": "running", "sessionId": session}
    assert session in server.sessions
    eventually(lambda: len(server.messages_of(session)) == 1)
    assert api.post(f"{AT}/now/run").json()["sessionId"] == session
    eventually(lambda: len(server.messages_of(session)) == 2)
    eventually(lambda: api.get(f"{AT}/now").json()["lastResult"] == "success")
    eventually(lambda: read(folder / "now" / "last-run.json")["lastResult"] == "success")
    assert refusal(api.post(f"{AT}/none/run")) == (404, "Schedule not found: none")


def eventually(holds, patience=10.0):
    until = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.02)


def read(path):
    return json.loads(path.read_text())


@pytest.mark.req("C10", "C11", "C32", "C33")
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt": None}, "prompt is required"),
        ({"prompt": " "}, "prompt is required"),
        ({"prompt": 7}, "prompt is required"),
        ({"schedule": None}, "schedule with type and expression/intervalMinutes is required"),
        (
            {"schedule": {"type": "cron"}},
            "schedule with type and expression/intervalMinutes is required",
        ),
        (
            {"schedule": {"type": "interval", "expression": "0 9 * * *"}},
            "schedule with type and expression/intervalMinutes is required",
        ),
        ({"schedule": {"type": "cron", "expression": "60 9 * * *"}}, "Invalid cron expression"),
        ({"schedule": {"type": "cron", "expression": "0 0 9 * * *"}}, "Invalid cron expression"),
        ({"schedule": {"type": "cron", "expression": "every day"}}, "Invalid cron expression"),
        ({"schedule": {"type": "cron", "expression": "0 0 31 2 *"}}, "Invalid cron expression"),
        (
            {"schedule": {"type": "interval", "intervalMinutes": 30}},
            "Minimum interval is 60 minutes (1 hour)",
        ),
        (
            {"schedule": {"type": "interval", "intervalMinutes": 60.5}},
            "intervalMinutes is not a number of minutes",
        ),
        (
            {"schedule": {"type": "cron", "expression": "*/5 * * * *"}},
            "Cron expression runs every 5 minutes. Minimum interval is 60 minutes (1 hour)",
        ),
        (
            {"schedule": {"type": "cron", "expression": "0,20 9 * * 1"}},
            "Cron expression runs every 20 minutes. Minimum interval is 60 minutes (1 hour)",
        ),
        ({"enabled": "true"}, "enabled must be true or false"),
        (
            {"sessionConfig": {"persistSession": 1}},
            "sessionConfig.persistSession must be true or false",
        ),
        ({"sessionConfig": []}, "sessionConfig must have model and persistSession"),
        ({"sessionConfig": {"model": ""}}, "sessionConfig.model must be a string"),
    ],
)
def test_invalid_definition_is_refused_with_400_and_the_reason(api, fields, error):
    assert refusal(api.put(f"{AT}/refused", STANDUP | fields)) == (400, error)
    assert api.get(f"{AT}/refused").status_code == 404


@pytest.mark.req("C32")
@pytest.mark.parametrize("text", ["0 9 * * 1-5", "0 */2 * * *", "30 14 * * 0", "@daily"])
def test_cron_expressions_of_the_origin_are_accepted(api, text):
    schedule = {"type": "cron", "expression": text}
    assert api.put(f"{AT}/taken", STANDUP | {"schedule": schedule}).status_code == 200
    assert api.get(f"{AT}/taken").json()["schedule"] == schedule


@pytest.mark.parametrize(
    "slug", ["..%2Fx", "%2E%2E", ".hidden", "a%2Fb", "a%20b", "a" * 101, "%C3%BC", "..", "a%00b"]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "POST"])
def test_a_slug_such_as_dot_dot_slash_x_is_refused_everywhere(served, slug, method):
    api, _, folder = served
    outside = sorted(folder.parent.iterdir())
    path = f"{AT}/{slug}/run" if method == "POST" else f"{AT}/{slug}"
    body = {"PUT": STANDUP, "PATCH": {"enabled": False}}.get(method)
    answer = api.ask(method, path, body)
    assert answer.status_code in {400, 404, 405}, "the client takes '..' out itself"
    assert sorted(folder.parent.iterdir()) == outside


def test_a_corrupt_file_is_answered_with_409_and_put_replaces_it(served):
    api, _, folder = served
    for name, state, enabling in (
        ("definition.json", "definition", "refusing partial update"),
        ("last-run.json", "last-run state", "cannot re-enable"),
    ):
        api.put(f"{AT}/broken", STANDUP)
        (folder / "broken" / name).write_text("{")
        error = f"Schedule {state} is corrupt; {enabling}: broken"
        assert refusal(api.patch(f"{AT}/broken", {"enabled": True})) == (409, error)
        error = f"Schedule {state} is corrupt; refusing to run: broken"
        assert refusal(api.post(f"{AT}/broken/run")) == (409, error)
        assert (folder / "broken" / name).read_text() == "{"
        assert api.put(f"{AT}/broken", STANDUP).status_code == 200
        assert api.patch(f"{AT}/broken", {"enabled": True}).json()["enabled"] is True
        assert read(folder / "broken" / name)
    (folder / "broken" / "last-run.json").write_text("{")
    assert api.patch(f"{AT}/broken", {"enabled": False}).status_code == 200, "it may be disabled"


def test_schedule_of_another_source_is_neither_replaced_nor_deleted(api):
    hourly = {"every": "1h", "run": {"command": ["true"]}}
    assert api.put("/schedules/elsewhere", hourly).status_code == 201
    assert refusal(api.put(f"{AT}/elsewhere", STANDUP)) == (
        409,
        "Schedule exists elsewhere: elsewhere",
    )
    assert api.get(f"{AT}/elsewhere").status_code == 404
    assert api.post(f"{AT}/elsewhere/run").status_code == 404
    assert api.delete(f"{AT}/elsewhere").json() == {"success": True}
    assert api.get("/schedules/elsewhere").status_code == 200


def test_owner_sees_only_own_schedules(api):
    ann, bob = api.token("define", "ann"), api.token("define", "bob")
    assert api.put(f"{AT}/ann-s", STANDUP, token=ann).status_code == 200
    assert [each["slug"] for each in api.get(AT, token=ann).json()["schedules"]] == ["ann-s"]
    assert api.get(AT, token=bob).json() == {"schedules": []}
    assert api.get(f"{AT}/ann-s", token=bob).status_code == 404
    assert api.put(f"{AT}/ann-s", STANDUP, token=bob).status_code == 403
    assert api.patch(f"{AT}/ann-s", {"enabled": False}, token=bob).status_code == 404
    assert api.delete(f"{AT}/ann-s", token=bob).json() == {"success": True}
    assert api.get(f"{AT}/ann-s", token=ann).json()["enabled"] is True


def test_owner_does_not_see_corrupt_files_of_others(served):
    api, _, folder = served
    ann, bob = api.token("define", "ann"), api.token("define", "bob")
    api.put(f"{AT}/ann-broken", STANDUP, token=ann)
    (folder / "ann-broken" / "definition.json").write_text('{"prompt": "secret"')
    (folder / "nobody-s").mkdir()
    (folder / "nobody-s" / "definition.json").write_text("{")
    eventually(lambda: api.get(f"{AT}/nobody-s").status_code == 200)
    assert api.get(f"{AT}/nobody-s").json()["lastError"].startswith("definition.json is corrupt")
    listed = [each["slug"] for each in api.get(AT, token=bob).json()["schedules"]]
    assert not {"ann-broken", "nobody-s"} & set(listed)
    assert api.patch(f"{AT}/ann-broken", {"enabled": True}, token=ann).status_code == 409
    for slug in ("ann-broken", "nobody-s"):
        not_found = (404, f"Schedule not found: {slug}")
        assert refusal(api.get(f"{AT}/{slug}", token=bob)) == not_found
        assert refusal(api.patch(f"{AT}/{slug}", {"enabled": True}, token=bob)) == not_found
        assert refusal(api.post(f"{AT}/{slug}/run", token=bob)) == not_found
    api.put(f"{AT}/ann-broken", STANDUP, token=ann)
    api.delete(f"{AT}/nobody-s")


def test_read_only_token_changes_nothing(served):
    api, _, folder = served
    read_only, operating = api.token("read"), api.token("operate")
    api.put(f"{AT}/scoped", STANDUP)
    (folder / "left").mkdir()
    (folder / "left" / "last-run.json").write_text('{"sessionId": "abc"}')
    for slug in ("scoped", "left", "none"):
        for given in ({}, {"enabled": True}, {"prompt": "x"}, {"enabld": True}):
            assert api.patch(f"{AT}/{slug}", given, token=read_only).status_code == 403
        assert api.post(f"{AT}/{slug}/run", token=read_only).status_code == 403
        assert api.put(f"{AT}/{slug}", STANDUP, token=operating).status_code == 403
    assert api.patch(f"{AT}/left", {"enabled": True}, token=operating).status_code == 404
    assert (folder / "left" / "last-run.json").exists()


@pytest.mark.parametrize("given", [{}, {"enabld": False}])
def test_patch_without_known_fields_is_refused(api, given):
    api.put(f"{AT}/unchanged", STANDUP)
    assert refusal(api.patch(f"{AT}/unchanged", given)) == (400, "there is nothing to change")


def test_routes_are_missing_without_a_chat_server(tmp_path):
    with serving(tmp_path, sessions_url="") as api:
        off = (404, "the sessions system is off: set sessions_url")
        assert refusal(api.get(AT)) == off
        assert refusal(api.put(f"{AT}/a", STANDUP)) == off


@pytest.mark.parametrize("has_public_url", [True, False])
def test_run_with_feedback_has_the_reported_outcome(tmp_path, has_public_url):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ours = free.getsockname()[1]
    server, url = Server(tmp_path / "sessions"), f"http://127.0.0.1:{ours}"
    where = {"listen": f"127.0.0.1:{ours}", "public_url": url if has_public_url else ""}
    with serving(tmp_path, sessions_url=f"http://127.0.0.1:{port}", **where) as api:
        api.do(server.start(port))
        config = {"feedback": True, "persistSession": False}
        api.put(f"{AT}/told", STANDUP | {"sessionConfig": config})
        api.post(f"{AT}/told/run")
        eventually(lambda: api.get(f"{AT}/told").json()["lastResult"] == "success")
        (run,) = api.get("/schedules/told/runs").json()["runs"]
        assert run["status"] == "SUCCESS"
        eventually(lambda: server.sessions == [])
        api.do(server.stop())


def test_first_page_shows_every_scheduled_prompt_with_its_status(served):
    api, _, _ = served
    api.put(f"{AT}/on-the-page", STANDUP)
    api.put(f"{AT}/off-the-page", STANDUP | {"enabled": False})
    api.post(f"{AT}/on-the-page/run")
    eventually(lambda: api.get(f"{AT}/on-the-page").json()["lastResult"] == "success")
    page = api.get("//").text
    rows = {
        row[0]: row
        for row in (
            re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line)
            for line in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
        )
        if row
    }
    on, off = (" ".join(rows[f"{name}-the-page"]) for name in ("on", "off"))
    assert "at 09:00 on Monday to Friday" in on
    assert "sessions" in on
    assert "paused" in off
    assert "paused" not in on
    assert api.get(f"{AT}/on-the-page").json()["nextRun"][:16] in on


def test_listing_or_reading_schedules_changes_nothing(served):
    api, _, folder = served
    api.put(f"{AT}/read", STANDUP)

    def everything():
        texts = {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}
        return texts, api.do(api.beat.service.newest_event())

    api.do(api.beat.settle())
    api.do(api.beat.systems["sessions"].reconcile())
    api.do(api.beat.settle())
    before = everything()
    for path in (AT, f"{AT}/read", f"{AT}/none"):
        api.get(path)
    assert everything() == before


def test_every_refusal_of_these_routes_has_an_error_field(api):
    json_kind = {"Content-Type": "application/json"}
    answers = [
        api.get(AT, token="wrong"),
        api.put(f"{AT}/a", STANDUP, token=api.token("read")),
        api.ask("POST", AT),
        api.ask("PUT", f"{AT}/a", content=b"a", headers={"Content-Type": "text/plain"}),
        api.ask("PUT", f"{AT}/a", content=b"{", headers=json_kind),
        api.get(f"{AT}?odd=1"),
        api.get(f"{AT}/a/b/c"),
    ]
    assert [each.status_code for each in answers] == [401, 403, 405, 415, 400, 400, 404]
    assert all(each.json()["error"] == each.json()["problem"] for each in answers)
    assert "error" not in api.get("/schedules", token="wrong").json()

"""The dashboard."""

import httpx

from tests.web.serving import serving

HOURLY = {"every": "1h", "run": {"command": ["true"]}}


def test_login_link_opens_the_dashboard(tmp_path):
    with serving(tmp_path) as api:
        api.put("/schedules/<b>%2Fx".replace("<b>", "b"), HOURLY)
        code = api.do(api.beat.service.tokens.link("read"))
        with httpx.Client(base_url=api.url) as browser:
            assert browser.get("/login", params={"code": code}).status_code == 200
            page = browser.get("/")
            assert "<td>b/x</td><td>every hour</td>" in page.text
            assert browser.get("/static/onbeat.css").status_code == 200
        with httpx.Client(base_url=api.url) as other:
            assert other.get("/login", params={"code": code}).status_code == 403, "it was used"


def test_dashboard_without_a_session_explains_the_login(api):
    refused = httpx.get(f"{api.url}/", headers={"Accept": "text/html"})
    assert refused.status_code == 401
    assert "onbeat token link" in refused.text


def test_session_returns_its_caller_and_csrf_token(api):
    code = api.do(api.beat.service.tokens.link("operate"))
    with httpx.Client(base_url=api.url) as browser:
        browser.get("/login", params={"code": code})
        found = browser.get("/api/v1/session").json()
        assert (found["scope"], found["owner"]) == ("operate", "")
        refused = browser.post("/logout")
        assert (refused.status_code, refused.json()["field"]) == (403, "X-CSRF-Token")
        assert "/api/v1/session" in refused.json()["hint"]
        gone = browser.post("/logout", headers={"X-CSRF-Token": found["csrf_token"]})
        assert gone.status_code == 303
        assert browser.get("/api/v1/session").status_code == 401
    mine = api.get("/session").json()
    assert mine.pop("name").startswith("token:test-admin")
    assert mine == {"scope": "admin", "owner": "", "csrf_token": None}

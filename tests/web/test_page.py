"""The page that a link opens."""

import httpx

from tests.web.serving import serving

HOURLY = {"every": "1h", "run": {"command": ["true"]}}


def test_a_link_opens_a_session_that_shows_how_things_stand(tmp_path):
    with serving(tmp_path) as api:
        api.put("/schedules/<b>%2Fx".replace("<b>", "b"), HOURLY)
        code = api.do(api.beat.service.tokens.link("read"))
        with httpx.Client(base_url=api.url, follow_redirects=True) as browser:
            page = browser.get("/login", params={"code": code})
            assert page.status_code == 200
            assert "<td>b/x</td><td>every hour</td>" in page.text
            assert browser.get("/static/onbeat.css").status_code == 200
        with httpx.Client(base_url=api.url) as other:
            assert other.get("/login", params={"code": code}).status_code == 403, "it was used"


def test_whoever_is_not_known_is_told_how_to_come_in(api):
    refused = httpx.get(f"{api.url}/", headers={"Accept": "text/html"})
    assert refused.status_code == 401
    assert "onbeat token link" in refused.text

"""The page shows timers while their gate is open, else that it is closed."""

import json
import re

import httpx
import pytest

from tests.systems.services.conftest import HOURLY, a_file
from tests.web.serving import serving

HEADINGS = ["ID", "TARGET", "ENABLED", "LAST-RUN", "NEXT-RUN", "EXIT", "MISS"]


def page_of(api, *, owner=""):
    told = {"Authorization": f"Bearer {api.token('read', owner)}", "Accept": "text/html"}
    return httpx.get(f"{api.url}/", headers=told).text


def serving_with(folder, *timers, **around):
    path = folder / "services.json"
    path.write_text(json.dumps(a_file(*timers, **around)))
    return serving(folder, services_file=str(path))


@pytest.mark.req("S84", "S87")
def test_page_has_the_columns_of_the_command_line_while_the_gate_is_open(tmp_path):
    wrong = HOURLY | {"id": "<b>", "on_calendar": {"minute": 0}}
    with serving_with(tmp_path, HOURLY, wrong) as api:
        page = page_of(api)
    section = page.partition("<h2>Timers</h2>")[2].partition("<h2>Latest failures</h2>")[0]
    for heading in HEADINGS:
        assert f'<th scope="col">{heading}</th>' in section
    assert "<tr><td>hourly</td><td>backup</td><td>yes</td><td>-</td><td>in " in section
    assert "<h3>Invalid timers</h3>" in section
    assert "&lt;b&gt;" in section
    assert "<b>" not in page


@pytest.mark.parametrize("off", [{"timers_enabled": False}, {"enabled": False}])
@pytest.mark.req("S18", "S26")
def test_page_shows_the_closed_gate_and_no_timers(tmp_path, off):
    with serving_with(tmp_path, **off) as api:
        page = page_of(api)
    assert "Timer subsystem is disabled (experimental feature)." in page
    assert "hourly" not in page
    assert "NEXT-RUN" not in page


def test_page_has_no_timer_section_without_a_services_file(tmp_path):
    with serving(tmp_path) as api:
        assert "Timers" not in page_of(api)


def test_callers_with_an_owner_see_no_timers(tmp_path):
    with serving_with(tmp_path) as api:
        assert "hourly" not in page_of(api, owner="ann")


def test_unreadable_file_is_shown_without_its_contents(tmp_path):
    with serving_with(tmp_path) as api:
        (tmp_path / "services.json").write_text('{"secret": "hidden"')
        page = page_of(api)
    assert "The timer file cannot be read: see the log." in page
    assert "hidden" not in page


def test_page_shows_every_schedule_with_system_target_and_last_outcome(tmp_path):
    with serving_with(tmp_path) as api:
        api.put("/schedules/own", {"every": "1h", "run": {"http": "https://example.com/"}})
        page = page_of(api)
    assert re.search(r"<td>hourly</td><td>[^<]+</td><td>services</td><td>command</td>", page)
    assert "<td>own</td><td>every hour</td><td>-</td><td>http</td>" in page
    for heading in ("System", "Runs", "Last result"):
        assert f'<th scope="col">{heading}</th>' in page

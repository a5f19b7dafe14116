"""Files of plain fields, and the zone of a machine."""

import pytest

from onbeat.errors import InvalidFile
from onbeat.host.local_zone import local_zone
from onbeat.sources.plain_files import FieldsFile, read_fields

SAME = {
    "yaml": "timers: [{id: a, on_calendar: {hour: [3, 4]}}]\non: true\n",
    "yml": "timers:\n- id: a\n  on_calendar: {hour: [3, 4]}\non: true\n",
    "toml": 'on = true\n[[timers]]\nid = "a"\non_calendar = {hour = [3, 4]}\n',
    "json": '{"timers": [{"id": "a", "on_calendar": {"hour": [3, 4]}}], "on": true}',
}


@pytest.mark.parametrize("ending", SAME)
def test_yaml_toml_and_json_give_the_same_fields(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    path.write_text(SAME[ending])
    wanted = {"timers": [{"id": "a", "on_calendar": {"hour": [3, 4]}}], "on": True}
    assert read_fields(path) == wanted


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.yaml", "a: 1\na: 2\n", "the key 'a' appears twice"),
        ("a.yaml", "a: [", "flow"),
        ("a.json", '{"a": 1, "a": 2}', "it is not JSON: the key 'a' appears twice"),
        ("a.json", '{"a": NaN}', "it is not JSON: NaN is not a number"),
        ("a.json", "{", "it is not JSON: Expecting"),
        ("a.json", "[" * 100_000, "it is not JSON: "),
        ("a.toml", "a = 1\na = 2\n", "it is not TOML: "),
        ("a.yaml", "", "it is empty"),
        ("a.yaml", "# nothing\n", "it is empty"),
        ("a.toml", "", "it is empty"),
        ("a.json", "{}", "it is empty"),
        ("a.json", "", "it is not JSON: "),
        ("a.conf", "a = 1", "'.conf' is not a supported suffix (.yaml, .yml, .toml, .json)"),
    ],
)
def test_unreadable_file_is_refused_with_its_path_and_the_reason(tmp_path, name, text, problem):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidFile) as refused:
        read_fields(path)
    assert str(refused.value).startswith(str(path))
    assert problem in str(refused.value)


def test_missing_plain_file_is_refused(tmp_path):
    with pytest.raises(InvalidFile, match="cannot be read: No such file"):
        read_fields(tmp_path / "a.yaml")


def test_edited_file_has_changed_once_when_writing_stops(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("{}")
    file = FieldsFile(path)
    assert not file.has_changed()
    path.write_text('{"a": 1}')
    assert [file.has_changed() for _ in range(3)] == [False, True, False]
    file.put_back()
    assert file.has_changed()
    assert file.read() == {"a": 1}


class TestZoneOfTheMachine:
    @pytest.mark.parametrize(
        ("variable", "zone"),
        [
            ("Europe/Berlin", "Europe/Berlin"),
            (":Europe/Berlin", "Europe/Berlin"),
            (":/usr/share/zoneinfo/Asia/Tokyo", "Asia/Tokyo"),
            ("", "UTC"),
            ("CET-1CEST", "UTC"),
            ("../etc/passwd", "UTC"),
        ],
    )
    def test_zone_is_taken_from_the_variable_first(self, tmp_path, variable, zone):
        (tmp_path / "timezone").write_text("America/New_York\n")
        assert local_zone(variable, tmp_path) == zone

    def test_variable_that_is_not_a_zone_is_logged_once(self, tmp_path, caplog):
        for variable in ("EST5EDT4,M3.2.0", "EST5EDT4,M3.2.0", "", "Asia/Tokyo"):
            local_zone(variable, tmp_path)
        (record,) = caplog.records
        assert "TZ: 'EST5EDT4,M3.2.0' is not the name of a zone" in record.getMessage()

    def test_zone_is_taken_from_the_timezone_file_next(self, tmp_path):
        (tmp_path / "timezone").write_text("America/New_York\n")
        (tmp_path / "localtime").symlink_to("/usr/share/zoneinfo/Asia/Tokyo")
        assert local_zone(None, tmp_path) == "America/New_York"

    @pytest.mark.parametrize("text", [None, "", "no zone\n", "\xff"])
    def test_zone_is_taken_from_the_localtime_link_next(self, tmp_path, text):
        if text is not None:
            (tmp_path / "timezone").write_text(text)
        (tmp_path / "localtime").symlink_to("../usr/share/zoneinfo/Asia/Tokyo")
        assert local_zone(None, tmp_path) == "Asia/Tokyo"

    def test_zone_is_utc_without_any_source(self, tmp_path):
        assert local_zone(None, tmp_path) == "UTC"
        (tmp_path / "localtime").write_bytes(b"TZif2")
        assert local_zone(None, tmp_path) == "UTC"

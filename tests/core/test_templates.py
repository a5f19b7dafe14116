"""Texts with {{ names }} in them."""

import locale
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from time import perf_counter
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from onbeat import InvalidSchedule
from onbeat.core import templates
from onbeat.core.runs.phase import Status
from onbeat.core.templates import (
    FILTERS,
    LONGEST_TEXT,
    MOST_EXPRESSIONS,
    MOST_FILTERS,
    NAMES,
    PreviousRun,
    Template,
    check_templates,
    has_templates,
    render_all,
    values_of,
)
from onbeat.core.time.instants import parse_instant
from tests.core.strategies import ZONES, zones_and_instants

WINTER, SUMMER = 1_769_702_400, 1_785_340_800  # 2026-01-29 and 2026-07-29, 16:00 UTC
BEFORE = PreviousRun(
    Status.SUCCESS,
    run_at=WINTER - 86_400,
    finished_at=(WINTER - 86_390) * 1000 + 345,
    result={"rows": [{"id": 7}, {"id": 8}], "some id": "x", "ok": True, "share": 0.5, "none": None},
)


def some_values(*, run_at=WINTER, timezone="Europe/Berlin", last=BEFORE, **changes):
    given = {
        "schedule_id": "reports/daily",
        "timezone": timezone,
        "run_at": run_at,
        "due_at": run_at * 1000 + 12_500,
        "first_run_at": None,
        "key": "3fc9",
        "iteration": 12,
        "tick_count": 1,
        "triggered_by": "timer",
        "last": last,
    }
    return values_of(**given | changes)


def rendered(text, **changes):
    return Template.parse(text).render(some_values(**changes))


def filtered(value, filters):
    return Template.parse(f"{{{{ key | {filters} }}}}").value({"key": value, "timezone": "UTC"})


def refusal(text):
    with pytest.raises(InvalidSchedule) as refused:
        Template.parse(text)
    return refused.value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
PATHS = st.sampled_from(
    [*NAMES, "lastRun", "'{{'", "last.result.rows[0].id", "last.result['a b'][-1]"]
)
CALLS = st.sampled_from(
    ["default('none')", "default(0)", "date('%A %d. %B %Y, %H:%M:%S %z %%')", "shift('-1d')", "shift('36h')",
     "shift('+52w')", "upper", "lower", "trim()", "json", "first_line", "truncate(3)"]
)  # fmt: skip
EXPRESSIONS = st.builds(
    lambda path, calls: "{{ " + " | ".join([path, *calls]) + " }}",
    PATHS,
    st.lists(CALLS, max_size=4),
)
ACCEPTED = st.lists(
    EXPRESSIONS | st.sampled_from(["", " ", "}}", "{ ", "$", "Guten Tag"]), max_size=5
)
ALMOST = st.lists(
    st.sampled_from(
        ["{{", "}}", "{%", "{#", "$", "'", '"', "|", ".", "[", "]", "(", ")", ",", " ", "-", "1", "\n", "\ud800",
         "date", "shift", "last", "result", "lastRun", "default", "truncate", "null", "{", "}", "é", "\xa0", "0"]
    ) | st.characters()
).map("".join)  # fmt: skip
MOMENTS = st.datetimes() | st.datetimes(timezones=st.sampled_from([UTC, ZoneInfo("Europe/Berlin")]))
ANYTHING = JSON | MOMENTS.map(datetime.isoformat) | st.dates().map(str)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("date", "2026-01-29"),
            ("time", "17:00:00"),
            ("timezone", "Europe/Berlin"),
            ("run_at", "2026-01-29T17:00:00+01:00"),
            ("due_at", "2026-01-29T17:00:12+01:00"),
            ("first_run_at", "2026-01-29T17:00:00+01:00"),
            ("tick_count", "1"),
            ("schedule_id", "reports/daily"),
            ("key", "3fc9"),
            ("iteration", "12"),
            ("triggered_by", "timer"),
            ("last_run", "2026-01-28T17:00:10+01:00"),
            ("last.status", "SUCCESS"),
            ("last.error", ""),
            ("last.run_at", "2026-01-28T17:00:00+01:00"),
            ("last.finished_at", "2026-01-28T17:00:10+01:00"),
            ("last.result.rows", '[{"id":7},{"id":8}]'),
            ("last.result.rows[0].id", "7"),
            ("last.result . rows [ -1 ] . id", "8"),
            ("last.result['some id']", "x"),
            ("last.result.ok", "true"),
            ("last.result.share", "0.5"),
        ],
    )
    def test_template_name_gives_its_value(self, name, expected):
        assert rendered(f"<{{{{ {name} }}}}>") == f"<{expected}>"
        assert rendered(f"<{{{{{name}}}}}>") == f"<{expected}>"

    def test_every_name_and_no_other_has_a_value_and_is_in_the_docstring(self):
        values = some_values()
        expected = {f"last.{name}" for name in values.pop("last")} | values.keys()
        assert expected == NAMES.keys()
        assert all(name in templates.__doc__ for name in NAMES)

    def test_last_run_may_be_spelt_in_camel_case(self):
        assert rendered("{{lastRun}}") == rendered("{{ last_run }}") != ""

    def test_last_values_are_null_before_the_first_run(self):
        for name in NAMES:
            if name.startswith("last"):
                value = Template.parse(f"{{{{ {name} }}}}").value(some_values(last=None))
                assert value is None, name

    @pytest.mark.parametrize(
        "path", [".nothing", ".rows.id", ".rows[2]", ".rows[-3]", ".rows['0']", "[0]", ".ok.x", ".none.x[1]"]
    )  # fmt: skip
    def test_missing_path_of_a_result_is_null(self, path):
        assert Template.parse(f"{{{{ last.result{path} }}}}").value(some_values()) is None
        assert rendered(f"{{{{ last.result{path} | default('none') }}}}") == "none"

    def test_catch_up_run_has_first_run_at_and_tick_count(self):
        text = "{{ tick_count }} since {{ first_run_at }}"
        expected = rendered(text, first_run_at=WINTER - 7200, tick_count=3)
        assert expected == "3 since 2026-01-29T15:00:00+01:00"

    @pytest.mark.parametrize(
        ("run_at", "expected"),
        [(WINTER, "2026-01-29T17:00:00+01:00"), (SUMMER, "2026-07-29T18:00:00+02:00")],
    )
    def test_local_times_have_the_offset_of_their_day(self, run_at, expected):
        assert rendered("{{ run_at }}", run_at=run_at) == expected
        assert rendered("{{ date }}T{{ time }}", run_at=run_at) == expected[:19]

    @given(zones_and_instants())
    def test_rendered_instant_is_parsed_back_to_the_same(self, where):
        timezone, t = where
        expected = some_values(run_at=t, timezone=timezone)["run_at"]
        assume(len(expected) == 25)  # local mean times have seconds in their offsets
        assert parse_instant(expected) == t


class TestTexts:
    @given(st.text().filter(lambda text: not any(mark in text for mark in ("{{", "{%", "{#"))))
    @example("a }} b { % # }")
    @example("${#array} ${name%.txt} %{http_code}")
    def test_plain_text_is_unchanged(self, text):
        template = Template.parse(text)
        assert template.is_plain
        assert template.render({}) == template.value({}) == text
        assert not has_templates([text])

    def test_long_plain_text_is_not_cut(self):
        assert Template.parse("x" * 200_000).render({}) == "x" * 200_000

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("{{ '{{' }} {{ \"}}\" }}", "{{ }}"),
            ("{{ '{%' }}{{ '{#' }}", "{%{#"),
            ('{"on": "{{ date }}"}', '{"on": "2026-01-29"}'),
            ('{"n": {{ iteration }}}', '{"n": 12}'),
            ("{{date}}{{time}}", "2026-01-2917:00:00"),
            ("{{\n\tdate\n}}", "2026-01-29"),
            ("{{ '' }}", ""),
        ],
    )
    def test_braces_may_be_beside_and_within_expressions(self, text, expected):
        assert rendered(text) == expected

    def test_text_of_one_expression_keeps_the_type_of_its_value(self):
        values = some_values()
        assert Template.parse("{{ iteration }}").value(values) == 12
        assert Template.parse("{{ last.result.rows }}").value(values) == [{"id": 7}, {"id": 8}]
        assert Template.parse("{{ last.result.ok }}").value(values) is True
        assert Template.parse("{{ last.result.none }}").value(values) is None
        assert Template.parse(" {{ iteration }}").value(values) == " 12"
        assert Template.parse("{{ iteration }}{{ iteration }}").value(values) == "1212"

    def test_rendered_value_is_not_parsed_as_a_template(self):
        assert rendered("{{ key }}", key="{{ schedule_id }} {%") == "{{ schedule_id }} {%"

    def test_parsed_template_is_cached(self):
        assert Template.parse("{{ date }} once") is Template.parse("{{ date }} once")


class TestFilters:
    @pytest.mark.parametrize(
        ("value", "filters", "expected"),
        [
            (None, "default('none')", "none"),
            (None, "default(-3)", -3),
            (None, "default(null)", None),
            (None, "upper | trim | default(true)", True),
            (0, "default(1)", 0),
            ("", "default('x')", ""),
            (" straße\n", "upper", " STRASSE\n"),
            ("ÄB", "lower()", "äb"),
            (" a b\n", "trim", "a b"),
            ("one\ntwo", "first_line", "one"),
            ("abc", "truncate(2)", "ab"),
            ("abc", "truncate( 0 )", ""),
            ("abc", "truncate(-1)", ""),
            ({"a": [1]}, "truncate(5)", '{"a":'),
            ({"a": [1, None, "é"]}, "json", '{"a":[1,null,"é"]}'),
            ('say "x"', "json", '"say \\"x\\""'),
            (None, "json", "null"),
            ("2026-01-29", "date('%d.%m.%Y')", "29.01.2026"),
            ("2026-01-29T17:05:09.250+01:00", "date('%H:%M:%S %z')", "17:05:09 +0100"),
            ("2026-01-29T17:05Z", 'date("%H:%M %z")', "17:05 +0000"),
            ("2026-01-29 17:05", 'date("%H:%M%z")', "17:05"),
            (
                "2026-01-29",
                "date('%A %a %B %b %y %j 100%%')",
                "Thursday Thu January Jan 26 029 100%",
            ),
            ("2026-01-29", "shift('-1d')", "2026-01-28"),
            ("2026-01-29", "shift('1w')", "2026-02-05"),
            ("2026-01-29", "shift('-2h')", "2026-01-28T22:00:00"),
            ("2026-01-29T17:00:00", "shift('+90m')", "2026-01-29T18:30:00"),
            ("2026-01-29T17:00:00Z", "shift('1d')", "2026-01-30T17:00:00Z"),
            ("2026-01-29T17:00:00+05:30", "shift('-1d12h')", "2026-01-28T05:00:00+05:30"),
            ("2026-01-29", "shift('-1d') | date('%d.%m.') | json", '"28.01."'),
        ],
    )
    def test_filters_change_a_value(self, value, filters, expected):
        assert filtered(value, filters) == expected

    @pytest.mark.parametrize(
        "value", ["soon", "", "20260129", "2026-W05-4", "2026-02-30", "2026-01-29T25:00", "2026-01-29T17:00é", 5, True, None, ["2026-01-29"]]
    )  # fmt: skip
    def test_value_that_is_not_a_date_is_unchanged(self, value):
        assert filtered(value, "date('%Y')") == value
        assert filtered(value, "shift('1d')") == value

    def test_shift_beyond_the_calendar_is_ignored(self):
        for moment in ("9999-12-31", "9999-12-31T23:00:00Z", "9999-12-31T23:00:00+00:00"):
            assert filtered(moment, "shift('1d')") == moment
        assert filtered("0001-01-01", "shift('-1s')") == "0001-01-01"

    @pytest.mark.parametrize(
        ("moment", "by", "expected"),
        [
            ("2026-03-28T09:00:00+01:00", "1d", "2026-03-29T09:00:00+02:00"),
            ("2026-03-28T09:00:00+01:00", "24h", "2026-03-29T10:00:00+02:00"),
            ("2026-03-29T01:30:00+01:00", "1h", "2026-03-29T03:30:00+02:00"),
            ("2026-03-28T02:30:00+01:00", "1d", "2026-03-29T03:00:00+02:00"),  # there is no 02:30
            ("2026-10-26T09:00:00+01:00", "-1w", "2026-10-19T09:00:00+02:00"),
            ("2026-10-25T02:30:00+01:00", "0s", "2026-10-25T02:30:00+01:00"),  # the second 02:30
            ("2026-03-28T09:00:00.250+01:00", "1d", "2026-03-29T09:00:00.250000+02:00"),
            ("2026-03-28T09:00:00+05:30", "1d", "2026-03-29T09:00:00+05:30"),  # of another zone
            ("2026-03-28T08:00:00Z", "1d", "2026-03-29T08:00:00Z"),
        ],
    )
    def test_shift_by_days_is_in_the_zone_of_the_schedule(self, moment, by, expected):
        assert rendered(f"{{{{ key | shift('{by}') }}}}", key=moment) == expected

    @given(zones_and_instants(), st.integers(0, 10**7), st.booleans())
    def test_shift_by_hours_is_elapsed_time_in_every_zone(self, where, seconds, back):
        timezone, t = where
        values = some_values(run_at=t, timezone=timezone)
        sign = "-" if back else ""
        moved = Template.parse(f"{{{{ run_at | shift('{sign}{seconds}s') }}}}").render(values)
        expected = some_values(run_at=t - seconds if back else t + seconds, timezone=timezone)
        assert moved == expected["run_at"]

    @given(st.dates().filter(lambda day: day.year > 999), st.integers(-9999, 9999))
    def test_shift_of_a_date_is_in_whole_days(self, day, days):
        try:
            expected = str(day + timedelta(days))
        except OverflowError:
            expected = str(day)
        assert filtered(str(day), f"shift('{days}d')") == expected
        assert filtered(str(day), "date('%Y-%m-%d')") == str(day)

    def test_names_of_days_are_independent_of_the_locale(self):
        before = locale.setlocale(locale.LC_TIME)
        try:
            for name in ("de_DE.UTF-8", "fr_FR.UTF-8", ""):
                try:
                    locale.setlocale(locale.LC_TIME, name)
                except locale.Error:
                    continue
                assert filtered("2026-05-29", "date('%A %b')") == "Friday May"
        finally:
            locale.setlocale(locale.LC_TIME, before)


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "problem", "hint"),
        [
            ("{{ dat }}", "'dat' is not a known name", "did you mean 'date'?"),
            ("{{ runAt }}", "'runAt' is not a known name", "did you mean 'run_at'?"),
            ("{{ last.reslt }}", "'last.reslt' is not a known name", "did you mean 'last.result'?"),
            ("{{ last }}", "'last' is not a known name", "last"),
            ("{{ last[0] }}", "'last.0' is not a known name", "last"),
            ("{{ lastRun.x }}", "last_run has no fields", "last.result"),
            ("{{ last.status.x }}", "last.status has no fields", "last.result"),
            ("{{ date | uppr }}", "no filter is called 'uppr'", "did you mean 'upper'?"),
            ("{{ date | date }}", "the arguments of date are wrong", "date('%d.%m.%Y')"),
            ("{{ date | upper(1) }}", "the arguments of upper are wrong", "upper"),
            ("{{ date | truncate('1') }}", "the arguments of truncate are wrong", "truncate(100)"),
            ("{{ date | truncate(true) }}", "the arguments of truncate are wrong", "truncate(100)"),
            ("{{ date | default(1, 2) }}", "the arguments of default are wrong", "default('none')"),
            ("{{ date | date('%d.%Q') }}", "the date format has an unknown code: '%Q'", "known: %Y %m"),
            ("{{ date | date('%') }}", "the date format has an unknown code: '%'", "known: %Y %m"),
            ("{{ date | shift('1x') }}", "'1x' is not a duration", "such as 45s"),
            ("{{ date | shift('--1d') }}", "'-1d' is not a duration", "such as 45s"),
            ("{{ date | shift('1mo') }}", "'1mo' has no fixed length", "days"),
            ("{{ date", "'{{' without '}}'", "{{ name }}"),
            ("{{", "'{{' without '}}'", "{{ name }}"),
            ("{{ date }} {{ time }", "'{{' without '}}'", "{{ name }}"),
            ("{{ date | default('}}') ", "is not an expression", "{{ name }}"),
            ("{{ }}", "'{{ }}' is not an expression", "{{ name }}"),
            ("{{ date time }}", "'{{ date time }}' is not an expression", "{{ name }}"),
            ("{{{ date }}}", "'{{{ date }}' is not an expression", "{{ '{{' }} for the braces"),
            ("{{.Names}}", "'{{.Names}}' is not an expression", "{{ '{{' }} for the braces"),
            ("{{ date | default(1.5) }}", "is not an expression", "{{ name }}"),
            ("{{ date | default(1,) }}", "is not an expression", "{{ name }}"),
            ("{{ date | default(date) }}", "is not an expression", "{{ name }}"),
            ("{{ last.result[9999999999999999] }}", "is not an expression", "{{ name }}"),
            ("{% for x in y %}", "statements are not supported, only {{ name }}", "{{ '{%' }}"),
            ("{{ date }}{# no #}", "statements are not supported, only {{ name }}", "{{ '{#' }}"),
        ],
    )  # fmt: skip
    def test_invalid_template_is_refused_with_a_hint(self, text, problem, hint):
        refused = refusal(text)
        assert problem in refused.problem
        assert hint in refused.hint
        assert len(str(refused)) < 400

    @pytest.mark.parametrize(
        "text",
        ["{{ ''.__class__ }}", "{{ schedule_id.__class__ }}", "{{ config }}", "{{ 7*7 }}", "{{ range(10) }}",
         "{{ self }}", "{{ date.__init__.__globals__ }}", "{{ last.__class__ }}", "{{ date() }}", "{{ ().x }}",
         "{{ key | attr('x') }}", "{{ key | format('x') }}", "{{ __import__('os') }}", "{{ [1] }}", "{{ 1 }}",
         "{{ date if date else time }}", "{{ date ~ time }}", "{{ key|map(attribute='x') }}", "{{ true }}"],
    )  # fmt: skip
    def test_python_and_jinja_syntax_is_refused(self, text):
        refusal(text)

    @pytest.mark.parametrize(
        "path",
        [".__class__", "['__class__']", ".keys", ".rows.__len__", ".rows.append", ".ok.real"],
    )
    def test_path_cannot_reach_python_attributes(self, path):
        assert rendered(f"{{{{ last.result{path} }}}}") == ""

    @given(ALMOST)
    def test_any_text_is_accepted_or_refused_with_a_hint(self, text):
        try:
            template = Template.parse(text)
        except InvalidSchedule as refused:
            assert refused.problem
            assert refused.hint
        else:
            assert template.is_plain is not has_templates(text)
            template.render({})


class TestBounds:
    @pytest.mark.parametrize(
        "text",
        ["{{" * 32_768, "{{ " + " " * 65_000, "{{ date" + " " * 65_000 + "! }}", "{{ '" + "x" * 65_000 + "}}",
         "{{ last.result" + ".a" * 32_000 + " }}", "{{ last.result" + "[0] " * 16_000 + "! }}",
         "{{ date " + "|trim " * 10_000 + "! }}", "{{ date " + "| default(1) " * 5_000 + "}}",
         "{{ date | default(" + "1," * 32_000 + ") }}", "{{ date | default(" + "1 , " * 16_000 + "1 }}",
         "{{ " + "a" * 65_000 + " }}", "{{ date | date('" + "%d" * 32_000 + "') }}", "{{ date }}" * 6_500,
         "{{ '' }}" * 100 + "{" * 60_000, "{ " * 32_000, "{{ date | " + "'" * 65_000, "{{ last.result[" * 4_000,
         "{{ last.result['" + "]['" * 16_000],
    )  # fmt: skip
    def test_pathological_text_is_parsed_quickly(self, text):
        assert len(text) <= LONGEST_TEXT
        took = []
        for _ in range(3):
            begun = perf_counter()
            with suppress(InvalidSchedule):
                Template.parse(text)
            took.append(perf_counter() - begun)
        assert min(took) < 0.1

    def test_number_of_expressions_in_a_text_is_limited(self):
        assert rendered("{{ key }}" * MOST_EXPRESSIONS) == "3fc9" * MOST_EXPRESSIONS
        assert "too long" in refusal("{{ key }}" * (MOST_EXPRESSIONS + 1)).problem

    def test_number_of_filters_in_an_expression_is_limited(self):
        assert rendered("{{ key" + "|trim" * MOST_FILTERS + "}}") == "3fc9"
        assert refusal("{{ key" + "|trim" * (MOST_FILTERS + 1) + "}}").problem == "11 filters"

    def test_text_with_expressions_is_limited_in_bytes(self):
        fits = "é" * (LONGEST_TEXT // 2 - 5) + "{{ key }}"
        assert Template.parse(fits).render({}) == "é" * (LONGEST_TEXT // 2 - 5)
        assert "too long" in refusal(fits + "éé").problem

    def test_too_long_rendered_text_is_cut_between_characters(self):
        cut = rendered("x{{ key }}{{ key }}", key="é" * LONGEST_TEXT)
        assert cut == "x" + "é" * (LONGEST_TEXT // 2 - 1)

    def test_repeated_json_filters_stay_within_the_limit(self):
        text = "{{ key | json | json | json | json | json | json | json | json | json | json }}"
        begun = perf_counter()
        assert len(rendered(text * 100, key='"' * 60_000)) == LONGEST_TEXT
        assert perf_counter() - begun < 5

    @given(ACCEPTED, st.dictionaries(st.sampled_from([*NAMES, "last"]), ANYTHING), ANYTHING)
    def test_accepted_text_is_rendered_with_any_values(self, parts, values, result):
        template = Template.parse("".join(parts))
        for last in ({"result": result}, result):
            given = {"key": result, "run_at": result, "last_run": result} | values | {"last": last}
            assert isinstance(template.render(given), str)
            template.value(given)

    @pytest.mark.parametrize(
        "value", [object(), {1: {2}}, 2**80, float("nan"), "\ud800", ["\ud800"], b"x", {(): 1}]
    )
    @pytest.mark.parametrize("name", ["key", "last", "timezone", "last.result.x"])
    def test_value_that_is_not_json_is_rendered(self, value, name):
        values = {
            "key": value,
            "last": value,
            "timezone": value,
            "run_at": "2026-01-29T17:00:00+01:00",
        }
        text = "".join(
            f"{{{{ {name if name != 'last' else 'last.result'} | {call} }}}}"
            for call in ("json", "upper", "shift('1d')")
        )
        assert isinstance(Template.parse(text + "{{ run_at | shift('1d') }}").render(values), str)

    def test_endlessly_nested_value_is_rendered_as_null(self):
        value = []
        for _ in range(100_000):
            value = [value]
        assert (
            rendered("{{ last.result }}", last=PreviousRun(Status.SUCCESS, 0, 0, value)) == "null"
        )


TARGET = {
    "command": ["./report", "--day={{ date }}", "{{ iteration }}"],
    "inputs": {"{{ no name }}": 1, "rows": "{{ last.result.rows }}", "deep": [{"x": None}]},
}


class TestValues:
    def test_values_are_rendered_and_names_are_not(self):
        assert render_all(TARGET, some_values()) == {
            "command": ["./report", "--day=2026-01-29", "12"],
            "inputs": {"{{ no name }}": 1, "rows": '[{"id":7},{"id":8}]', "deep": [{"x": None}]},
        }

    def test_text_of_one_expression_becomes_its_value_with_native(self):
        expected = render_all(TARGET, some_values(), native=True)
        assert expected["command"] == ["./report", "--day=2026-01-29", 12]
        assert expected["inputs"]["rows"] == [{"id": 7}, {"id": 8}]

    @pytest.mark.parametrize(
        ("value", "field"),
        [
            ("{{ x }}", ""),
            ({"command": ["a", "{{ x }}"]}, "command[1]"),
            ({"inputs": {"fine": "{{ date }}", "prompt": "{{ x }}", "other": "{{ y }}"}}, "inputs.prompt"),
            ({"inputs": [[{"a b": "{{ x }}"}]]}, "inputs[0][0].a b"),
            ({"inputs": {"a\nb": "{{ x }}"}}, "inputs.a\\nb"),
        ],
    )  # fmt: skip
    def test_first_invalid_text_is_refused_with_its_field(self, value, field):
        with pytest.raises(InvalidSchedule, match="'x' is not a known name") as refused:
            check_templates(value)
        assert refused.value.field == field

    def test_valid_templates_are_accepted(self):
        check_templates(TARGET)
        check_templates([None, 1, True, {"a": ()}])

    def test_number_of_expressions_in_all_texts_is_limited(self):
        check_templates(["{{ date }}"] * MOST_EXPRESSIONS)
        with pytest.raises(InvalidSchedule, match="too many") as refused:
            check_templates({"command": ["{{ date }}"] * (MOST_EXPRESSIONS + 1)})
        assert refused.value.field == f"command[{MOST_EXPRESSIONS}]"

    @given(JSON)
    def test_value_without_expressions_is_unchanged(self, value):
        assume(not has_templates(value))
        assert render_all(value, {}) == render_all(value, {}, native=True) == value

    def test_expressions_are_found_in_values_and_not_in_names(self):
        assert has_templates(TARGET)
        assert has_templates([[{"a": ("{{ date }}",)}]])
        assert not has_templates({"{{ date }}": [1, None, "}} {"]})


@given(ZONES, st.sampled_from(sorted(FILTERS)))
def test_example_of_every_filter_hint_works(timezone, name):
    assert rendered(f"{{{{ run_at | {FILTERS[name][0]} }}}}", timezone=timezone)

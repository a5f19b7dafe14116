"""YAML 1.2 values, the line of each, and the refusal of harmful files."""

import time
import tracemalloc

import pytest
import yaml

from onbeat.sources import yaml_positions
from onbeat.sources.yaml_positions import MOST_MISTAKES, read_yaml

PARSERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if yaml.__with_libyaml__ else [])]


@pytest.fixture(params=PARSERS, ids=lambda parser: parser.__name__, autouse=True)
def parser(request, monkeypatch):
    """Both parsers: the values do not depend on which of them is installed."""
    monkeypatch.setattr(yaml_positions, "PARSER", request.param)


def value_of(text):
    found = read_yaml(text)
    assert found.mistakes == []
    return found.value


def mistakes_of(text):
    return [(each.line, each.field, each.problem) for each in read_yaml(text).mistakes]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("NO", "NO"), ("y", "y"),
        ("12:30", "12:30"), ("17:00", "17:00"), ("1:2:3", "1:2:3"), ("2026-12-01", "2026-12-01"),
        ("2026-12-01T09:00:00Z", "2026-12-01T09:00:00Z"), ("1_000", "1_000"), ("0b11", "0b11"),
        ("true", True), ("False", False), ("TRUE", True), ("tRUE", "tRUE"),
        ("~", None), ("", None), ("null", None), ("Null", None), ("nULL", "nULL"),
        ("010", 10), ("0o17", 15), ("0x1F", 31), ("-0", 0), ("+12", 12), ("-5", -5), ("0o8", "0o8"),
        ("1e3", 1000.0), ("-.5", -0.5), ("1.", 1.0), ("1.5e-3", 0.0015), (".", "."), ("-", [None]),
        ("18446744073709551615", 2**64 - 1), ("-9223372036854775808", -(2**63)),
        ("'1'", "1"), ('"~"', "~"), ("'on'", "on"), ('""', ""), ("|\n  a\n  b\n", "a\nb\n"),
        ("=", "="), ("\ufeffa: 1", {"a": 1}), ("é: ü😀", {"é": "ü😀"}), ('"\\u2028"', "\u2028"),
    ],
)  # fmt: skip
def test_values_are_those_of_yaml_1_2(text, expected):
    found = value_of(text)
    assert found == expected
    assert type(found) is type(expected)


def bomb(levels=9, width=10):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"b{i}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * width)}]"
        for i in range(levels - 1)
    ]
    return "\n".join(lines)


def mapping_bomb():
    lines = ["a: &a0 {x: 1}"]
    lines += [f"b{i}: &a{i + 1} {{l: *a{i}, r: *a{i}}}" for i in range(30)]
    return "\n".join(lines)


HARMFUL = {
    "an alias bomb": (bomb(), 6, "more than 1000000 values"),
    "an alias bomb of mappings": (mapping_bomb(), 18, "more than 1000000 values"),
    "a long text, many times": (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]", 2, "characters"),
    "an anchor in itself": ("a: &a\n  b: *a", 2, "the anchor 'a' contains itself"),
    "an unknown anchor": ("a: 1\nb: *c", 2, "no anchor is called 'c'"),
    "an anchor of another document": ("a: &a 1\n---\nb: *a", 2, "a second document begins"),
    "anchors that nest deep": ("\n".join(f"a{i}: &a{i} [{f'*a{i - 1}' if i else ''}]" for i in range(40)), 32, "nested too deep"),
    "lists that nest deep": ("\n" + "[" * 100_000, 2, "nested too deep"),
    "mappings that nest deep": ("{a: " * 100_000, 1, "nested too deep"),
    "blocks that nest deep": ("\n".join(" " * i + "a:" for i in range(500)), 33, "nested too deep"),
    "a tag of Python": ("a: !!python/object/apply:os.system [ls]", 1, "tags are not supported"),
    "a tag of a type": ("a: 1\nb: !!int '5'", 2, "tags are not supported"),
    "a tag of one's own": ("a: !mine {b: c}", 1, "tags are not supported"),
    "a tag without a name": ("a: ! 5", 1, "tags are not supported"),
    "a duplicate key": ("a: 1\nb: 2\na: 3", 3, "the key 'a' appears twice"),
    "a duplicate key, once in quotes": ("on: 1\n'on': 2", 2, "the key 'on' appears twice"),
    "a merge": ("a: &a {b: 1}\nc:\n  <<: *a", 3, "`<<` merges nothing"),
    "a merge of several": ("a: &a {b: 1}\nc: {<<: [*a, *a]}", 2, "`<<` merges nothing"),
    "NUL": ("a: 1\nb: \0", 2, "the character '\\x00' is not allowed"),
    "a bell": ("a: 1\n\nb: \x07", 3, "the character '\\x07' is not allowed"),
    "DEL": ("a: \x7f", 1, "the character '\\x7f' is not allowed"),
    "an end of line of other rules": ("a: 1\nb: x\u2028y: 2", 2, "the character '\\u2028' is not allowed"),
    "a byte order mark in the middle": ("a: 1\n\ufeffb: 2", 2, "the character '\\ufeff' is not allowed"),
    "half a character": ("a: \ud800", 1, "the character '\\ud800' is not allowed"),
    "half a character, escaped": ('a: 1\nb: "\\ud800"', 2, ""),
    "a character beyond all": ('"\\UFFFFFFFF"', 1, ""),
    "a number of many digits": ("a: " + "1" * 5_000, 1, "the number '111"),
    "a number of too many digits": ("a: 18446744073709551616", 1, "is out of range"),
    "a number in hexadecimal of many digits": ("a: 0x" + "f" * 5_000, 1, "is out of range"),
    "a number below all": ("a: -9223372036854775809", 1, "is out of range"),
    "a number beyond floats": ("a: 1e999", 1, "is out of range"),
    "no number at all": ("a: .nan", 1, "the number '.nan' is out of range"),
    "infinity": ("a: -.INF", 1, "the number '-.INF' is out of range"),
    "several documents": ("a: b\n---\nc: d", 2, "a second document begins"),
    "several documents with an end": ("a: b\n...\n---\nc: d", 3, "a second document begins"),
    "a key that is a number": ("a: 1\n80: x", 2, "the key 80 is not a string"),
    "a key that is a yes": ("true: x", 1, "the key True is not a string"),
    "a key that is nothing": ("a: {~: x}", 1, "the key None is not a string"),
    "a key that is a list": ("? [a, b]\n: c", 1, "the key ['a', 'b'] is not a string"),
    "a key that is a mapping": ("a:\n  {b: c}: d", 2, "the key {'b': 'c'} is not a string"),
    "another YAML": ("%YAML 1.1\n---\na: 1", 0, ""),
    "an end that is missing": ("a: [", 0, ""),
    "a tab before a name": ("a:\n\tb: 1", 2, ""),
    "a star without quotes": ("a: 1\ncron: * * * * *", 2, ""),
    "a name without a value": ("a: 1\nb\nc: 2", 0, ""),
    "an at sign": ("a: @daily", 1, ""),
}  # fmt: skip


@pytest.mark.parametrize("text", ["a:\n\tb: 1", "a:\n  b: 1\n\tc: 2", "a: 1\n\tb: 2"])
def test_tab_that_indents_is_refused_with_spaces_as_the_hint(text):
    (mistake,) = read_yaml(text).mistakes
    assert (mistake.line, mistake.hint) == (text.count("\n") + 1, "indent with spaces, not tabs")


@pytest.mark.parametrize("kind", HARMFUL)
def test_harmful_and_invalid_yaml_is_refused_quickly_with_its_line(kind):
    text, line, problem = HARMFUL[kind]
    started = time.process_time()
    found = read_yaml(text)
    took = time.process_time() - started
    tracemalloc.start()
    assert read_yaml(text).mistakes == found.mistakes
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.mistakes
    assert problem in found.mistakes[0].problem
    if line:
        assert found.mistakes[0].line == line
    # 50 ms on a quiet machine; PyYAML's own parser looks far ahead in what nests deep
    assert took < 0.5
    assert peak < 20 * 2**20


def test_unquoted_star_is_refused_with_quotes_as_the_hint():
    (found,) = read_yaml("cron: * * * * *").mistakes
    assert found.hint == 'put a string with * in quotes: "* * * * *"'


def test_every_mistake_has_its_line_and_the_rest_is_read():
    found = read_yaml("a: 1\na: 2\nb:\n- x\n- !!int 5\n- 1e999\n80: c\nd: {<<: e}\n")
    assert [(each.line, each.field) for each in found.mistakes] == [
        (2, "a"), (5, "b[1]"), (6, "b[2]"), (7, "80"), (8, "d.<<"),
    ]  # fmt: skip
    assert found.value["a"] == 1
    assert found.value["b"][0] == "x"
    assert found.value["d"] == {}


def test_reading_stops_after_the_largest_number_of_mistakes():
    found = read_yaml("[" + "!a b, " * 50_000 + "]")
    assert len(found.mistakes) == MOST_MISTAKES + 1


def test_aliases_have_the_value_of_their_anchor():
    assert value_of("a: &a {b: [1]}\nc: *a\nd: [*a, *a]\n&k e: *k") == {
        "a": {"b": [1]}, "c": {"b": [1]}, "d": [{"b": [1]}, {"b": [1]}], "e": "e",
    }  # fmt: skip


TEXT = """\
timezone: UTC
schedules:
  a.b:
    run:
      command:
      - ls
      - -l
      env: {A: x,
            B: y}
    any: [{every: 1h},
          {cron: "0 0 * * *"}]
  a: &a {every: 1h}
  c: *a
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 1), ("timezone", 1), ("schedules", 2), ("schedules.a.b", 3), ("schedules.a.b.run", 4),
        ("schedules.a.b.run.command[1]", 7), ("schedules.a.b.run.command[2]", 5),
        ("schedules.a.b.run.env.B", 9), ("schedules.a.b.any[1].cron.minute", 11),
        ("schedules.a.b.any[0].every", 10), ("schedules.a", 12), ("schedules.a.every", 12),
        ("schedules.c", 13), ("schedules.c.every", 12), ("schedules.d", 2), ("else", 1),
    ],
)  # fmt: skip
def test_path_has_the_line_of_its_innermost_existing_part(path, line):
    found = read_yaml(TEXT)
    assert found.mistakes == []
    assert found.position.line_of(path) == line

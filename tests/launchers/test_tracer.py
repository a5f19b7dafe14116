"""The tracer for Kodosumi's entry points on Ray: its output, and the functions that get one."""

import asyncio
import inspect
import json

import pytest

from onbeat.systems.ray.dag import NotCallable
from onbeat.systems.ray.tracer import Tracer, as_plain, with_tracer


class Text:
    def __init__(self, body):
        self.body = body

    def model_dump(self):
        return {"body": self.body}


class Odd:
    def __init__(self):
        self.when = {1, 2}


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("debug", ["a", "b"], "debug: a\nb\n"),
        ("result", ["a", {"b": 1}], 'result: a\nresult: {"b": 1}\n'),
        ("result", [Text("c")], 'result: {"Text": {"body": "c"}}\n'),
        ("result", [[Text("c"), 1]], 'result: [{"Text": {"body": "c"}}, 1]\n'),
        ("result", [Odd()], 'result: {"when": "{1, 2}"}\n'),
        ("action", [1, None], "action: 1\naction: null\n"),
        ("markdown", ["# a", "b"], "markdown: # a\n\nb\n"),
        ("html", ["<p>", "b"], "html: <p>\nb\n"),
        ("text", ["ä"], "text: ä\n"),
        ("warning", ["careful"], "warning: careful\n"),
    ],
)
def test_each_tracer_method_and_its_sync_variant_write_a_message_with_its_kind(
    capsys, method, given, said
):
    getattr(Tracer(), f"{method}_sync")(*given)
    assert capsys.readouterr().out == said
    asyncio.run(getattr(Tracer(), method)(*given))
    assert capsys.readouterr().out == said


def test_warning_has_the_traceback_if_requested(capsys):
    try:
        json.loads("{")
    except ValueError:
        Tracer().warning_sync("no JSON", exc_info=True)
    said = capsys.readouterr().out
    assert said.startswith("warning: no JSON\nTraceback")
    assert "JSONDecodeError" in said


def test_tracer_methods_that_need_a_panel_are_refused_with_a_hint():
    for asking in (Tracer().lock("approve", {"a": 1}, timeout=3), Tracer().fs()):
        with pytest.raises(NotCallable, match="remove entry_point"):
            asyncio.run(asking)


def given_to(function, **inputs):
    return with_tracer(inspect.signature(function).parameters, inputs)


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        (lambda inputs, tracer: None, {"a": 1}, {"inputs": {"a": 1}, "tracer": Tracer}),
        (lambda inputs, tracer: None, {"inputs": 1, "tracer": 2}, {"inputs": {"inputs": 1, "tracer": 2}, "tracer": Tracer}),
        (lambda tracer: None, {}, {"tracer": Tracer}),
        (lambda a, tracer: None, {"a": 1}, {"a": 1, "tracer": Tracer}),
        (lambda a, tracer: None, {"a": 1, "tracer": "mine"}, {"a": 1, "tracer": "mine"}),
        (lambda inputs: None, {"inputs": 1}, {"inputs": 1}),
        (lambda a: None, {"a": 1}, {"a": 1}),
        (lambda **rest: None, {"a": 1}, {"a": 1}),
    ],
)  # fmt: skip
def test_only_functions_with_a_parameter_tracer_are_called_as_kodosumi_does(
    function, inputs, expected
):
    found = given_to(function, **inputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert isinstance(found[name], Tracer) if value is Tracer else found[name] == value


def test_plain_results_stay_unchanged():
    for found in (None, 1, "a", {"a": [1]}):
        assert as_plain(found) == found
    assert as_plain(Text) is Text  # a class has the method, too, and is not a result

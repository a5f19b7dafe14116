"""The launcher of `run: {python: "reports:build"}`: functions, called in this process."""

import asyncio
import functools
import subprocess
import sys
import threading
import time

import msgspec
import pytest

from onbeat.core.runs.run import Failed, Succeeded
from onbeat.core.target import Target
from onbeat.errors import InvalidSchedule
from onbeat.launchers.python.launcher import FunctionLauncher
from onbeat.ports.store import Attempt
from tests.waiting import forever

NOON = 1_767_268_800  # 2026-01-01T12:00:00Z
SOON = 5  # seconds: far more than anything here takes
LONG = 60  # seconds, for functions that are to be ended


def a_target(name="report", **fields):
    return Target("python", {"python": name, **fields})


def an_attempt(name="report", *, timeout=None, **inputs):
    return Attempt(
        run_id=7,
        schedule_id="nightly/report",
        run_at=NOON,
        due_at=NOON * 1000,
        attempt=1,
        fence=1,
        target=a_target(name),
        inputs_text=msgspec.json.encode(inputs).decode(),
        timeout=timeout,
    )


def a_launcher(function=None, name="report"):
    launcher = FunctionLauncher(concurrency=4)
    if function is not None:
        launcher.register(name, function)
    return launcher


def run(function=None, name="report", **given):
    """Launch a function once; return the outcome and the output."""

    async def story():
        launcher = a_launcher(function)
        try:
            async with asyncio.timeout(SOON):
                return await launcher.launch(an_attempt(name, **given))
        except BaseException as broken:  # noqa: BLE001 - that is what is tested
            raise AssertionError(f"a launcher raises nothing of its own: {broken!r}") from None
        finally:
            await launcher.close()

    return asyncio.run(story())


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Put a module called `reports` where it can be imported."""

    def write(text):
        (tmp_path / "reports.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "reports", raising=False)

    yield write
    sys.modules.pop("reports", None)


# -- how a function is called


def test_function_gets_its_inputs_by_name():
    def report(limit, kind="all"):
        return [limit, kind]

    assert run(report, limit=3) == (Succeeded([3, "all"]), "")
    assert run(report, kind="one", limit=4) == (Succeeded([4, "one"]), "")


def test_async_function_gets_its_inputs_by_name():
    async def report(limit):
        await asyncio.sleep(0)
        return limit

    assert run(report, limit=3) == (Succeeded(3), "")


def test_function_with_a_parameter_run_gets_the_attempt():
    outcome, _ = run(lambda run, limit: (run.schedule_id, run.run_at, run.key, limit), limit=3)
    assert outcome == Succeeded(("nightly/report", NOON, an_attempt().key, 3))


def test_function_with_keyword_arguments_gets_inputs_but_no_attempt():
    assert run(lambda **given: given, a=1, b=2) == (Succeeded({"a": 1, "b": 2}), "")


def test_async_function_runs_in_the_event_loop_and_a_plain_one_in_a_thread():
    async def in_the_loop():
        return threading.current_thread() is threading.main_thread()

    def beside_it():
        return threading.current_thread() is threading.main_thread()

    assert run(in_the_loop) == (Succeeded(True), "")
    assert run(beside_it) == (Succeeded(False), "")


def test_plain_functions_run_at_the_same_time():
    meet = threading.Barrier(3, timeout=SOON)

    async def story():
        launcher = a_launcher(meet.wait)
        try:
            return await asyncio.gather(*(launcher.launch(an_attempt()) for _ in range(3)))
        finally:
            await launcher.close()

    assert {outcome.result for outcome, _ in asyncio.run(story())} == {0, 1, 2}


def test_awaitable_returned_by_a_plain_function_is_awaited():
    async def report(limit):
        return limit

    assert run(lambda limit: report(limit + 1), limit=3) == (Succeeded(4), "")


def test_any_callable_can_be_registered():
    class Report:
        async def __call__(self, limit):
            return limit

    assert run(functools.partial(lambda a, b: a + b, b=2), a=1) == (Succeeded(3), "")
    assert run(Report(), limit=3) == (Succeeded(3), "")


def test_call_cancelled_before_its_turn_is_never_made():
    called = []
    held = threading.Event()

    def work(which):
        called.append(which)
        held.wait(SOON)

    async def story():
        launcher = FunctionLauncher(concurrency=1)
        launcher.register("report", work)
        first = asyncio.create_task(launcher.launch(an_attempt(which="first")))
        await asyncio.sleep(0.01)
        outcome, _ = await launcher.launch(an_attempt(timeout=20, which="second"))
        held.set()
        await first
        await launcher.launch(an_attempt(which="third"))
        return outcome.reason

    assert asyncio.run(story()) == "timeout"
    assert called == ["first", "third"]


# -- functions that are imported


def test_a_function_of_a_module_is_imported(module):
    module("def build(limit):\n    return limit * 2\n")
    assert run(name="reports:build", limit=3) == (Succeeded(6), "")


def test_event_loop_runs_during_an_import(module):
    module("import time\ntime.sleep(0.2)\ndef build():\n    return 1\n")

    async def story():
        launching = asyncio.create_task(a_launcher().launch(an_attempt("reports:build")))
        turns = 0
        while not launching.done():
            await asyncio.sleep(0.001)
            turns += 1
        return launching.result(), turns

    outcome, turns = asyncio.run(story())
    assert outcome == (Succeeded(1), "")
    assert turns > 10


def test_nested_function_of_a_module_is_imported(module):
    module("class Weekly:\n    @staticmethod\n    def build():\n        return 'weekly'\n")
    assert run(name="reports:Weekly.build") == (Succeeded("weekly"), "")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("no_such_module:build", "", "No module named 'no_such_module'"),
        ("reports:bild", "def build(): ...", "has no attribute 'bild'"),
        ("reports:build", "build = 3", "reports:build is not a function"),
        ("reports:build", "raise RuntimeError('not today')", "not today"),
        ("reports:build", "def build(:", "invalid syntax"),
    ],
)
def test_function_that_cannot_be_imported_is_not_retried(module, name, text, problem):
    module(text)
    outcome, printed = run(name=name)
    assert (outcome.reason, outcome.retryable) == ("launch_failed", False)
    assert outcome.error.startswith(f"{name}: ")
    assert problem in outcome.error
    assert "Traceback" in printed


def test_unregistered_name_is_not_retried():
    outcome, _ = run(name="no_such_function")
    assert (outcome.reason, outcome.retryable) == ("launch_failed", False)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        (
            {"limit": 3, "limut": 4},
            "inputs.limut: the function has no such parameter (known: limit)",
        ),
        ({}, "inputs.limit: the function requires it (limit: ...)"),
    ],
)
def test_mismatched_inputs_call_nothing_and_are_not_retried(inputs, problem):
    called = []

    def report(limit, run):
        called.append(limit)

    outcome, _ = run(report, **inputs)
    assert outcome == Failed(f"report: {problem}", "launch_failed", retryable=False)
    assert called == []


# -- outcomes


def test_exception_is_a_retryable_failure_with_its_traceback():
    def report():
        raise ValueError("no data")

    outcome, printed = run(report)
    assert outcome == Failed("ValueError: no data", "error", retryable=True)
    assert printed.startswith("Traceback")
    assert 'raise ValueError("no data")' in printed


def test_result_that_is_not_json_is_passed_on():
    thing = object()
    outcome, _ = run(lambda: thing)
    assert outcome.result is thing


def test_async_function_is_ended_at_its_timeout():
    ended = []

    async def report():
        try:
            await forever()
        finally:
            ended.append(True)

    assert run(report, timeout=50) == (Failed("still running after 0.05 s", "timeout"), "")
    assert ended == [True]


def test_plain_function_is_abandoned_at_its_timeout():
    begun, end = threading.Event(), threading.Event()

    def report():
        begun.set()
        end.wait(SOON)

    began = time.monotonic()
    assert run(report, timeout=50) == (Failed("still running after 0.05 s", "timeout"), "")
    assert time.monotonic() - began < SOON / 2
    assert begun.is_set()
    end.set()


def test_function_that_ends_in_time_succeeds_with_a_timeout():
    assert run(lambda: "in time", timeout=SOON * 1000) == (Succeeded("in time"), "")


def test_timeout_error_raised_by_a_function_is_an_error():
    def report():
        raise TimeoutError("the panel does not answer")

    outcome, printed = run(report)
    assert outcome == Failed("TimeoutError: the panel does not answer", "error")
    assert "Traceback" in printed


def test_timeout_error_raised_by_a_function_is_an_error_within_its_timeout():
    def report():
        raise TimeoutError("the panel does not answer")

    outcome, printed = run(report, timeout=600_000)
    assert outcome == Failed("TimeoutError: the panel does not answer", "error")
    assert "Traceback" in printed


def test_cancelling_ends_an_async_function():
    begun, ended = asyncio.Event(), []

    async def report():
        begun.set()
        try:
            await forever()
        finally:
            ended.append(True)

    async def story():
        launching = asyncio.create_task(a_launcher(report).launch(an_attempt()))
        await asyncio.wait_for(begun.wait(), SOON)
        launching.cancel()
        await asyncio.wait([launching], timeout=SOON)
        return launching.cancelled()

    assert asyncio.run(story())
    assert ended == [True]


class Odd(BaseException):
    """An exception that `except Exception` does not catch."""


def raises(error):
    def report():
        raise error

    return report


def async_raises(error):
    async def report():
        raise error

    return report


@pytest.mark.parametrize("error", [ValueError("x"), Exception(), ExceptionGroup("x", [OSError()])])
@pytest.mark.parametrize("kind", [raises, async_raises])
def test_any_exception_of_a_function_fails_only_its_run(kind, error):
    outcome, _ = run(kind(error))
    assert isinstance(outcome, Failed)
    assert type(error).__name__ in outcome.error


@pytest.mark.parametrize("error", [SystemExit(1), Odd("x")], ids=["sys.exit(1)", "BaseException"])
@pytest.mark.parametrize("kind", [raises, async_raises])
def test_base_exception_of_a_function_fails_only_its_run(kind, error):
    outcome, _ = run(kind(error))
    assert isinstance(outcome, Failed)


def test_module_that_exits_on_import_fails_only_its_run(module):
    module("import sys\nsys.exit(1)\n")
    outcome, _ = run(name="reports:build")
    assert outcome.reason == "launch_failed"


def test_stop_iteration_of_a_plain_function_fails_only_its_run():
    async def story():
        async with asyncio.timeout(0.5):
            return await a_launcher(lambda: next(iter([]))).launch(an_attempt())

    outcome, _ = asyncio.run(story())
    assert isinstance(outcome, Failed)


def test_cancelled_error_raised_by_a_function_fails_only_its_run():
    outcome, _ = run(async_raises(asyncio.CancelledError()))
    assert isinstance(outcome, Failed)


# -- offers and checks


def test_launcher_offers_python_and_each_registered_name():
    launcher = a_launcher(print, "report")
    launcher.register("clean", len)
    assert set(launcher.offers()) == {"python", "python:report", "python:clean"}


def test_two_functions_under_one_name_are_refused():
    launcher = a_launcher(print)
    launcher.register("report", print)
    with pytest.raises(InvalidSchedule, match="another function is registered as 'report'"):
        launcher.register("report", len)


@pytest.mark.parametrize("name", ["reports:build", "a.b.c:D.e", "report", "nightly-report"])
def test_possible_function_name_is_accepted(name):
    a_launcher().check(a_target(name, inputs={"whatever": 1}))


@pytest.mark.parametrize(
    "name",
    ["", ":", ":build", "reports:build()", "a b", "reports:a:b", "../reports:build", 3, None,
     "reports:"],
)  # fmt: skip
def test_impossible_function_name_is_refused(name):
    with pytest.raises(InvalidSchedule, match="is not a function name"):
        a_launcher().check(a_target(name))


def test_unknown_field_is_refused():
    with pytest.raises(InvalidSchedule, match="did you mean 'inputs'"):
        a_launcher().check(a_target(input={"limit": 3}))


@pytest.mark.parametrize("inputs", [{}, {"limut": 3}, {"limit": 3, "more": 4}])
def test_mismatched_inputs_of_a_registered_function_are_refused(inputs):
    with pytest.raises(InvalidSchedule, match=r"^inputs\."):
        a_launcher(lambda limit, run: limit).check(a_target(inputs=inputs))


def test_matching_inputs_of_a_registered_function_are_accepted():
    a_launcher(lambda limit, run, name="all": limit).check(a_target(inputs={"limit": 3}))


# -- recovery and closing


def test_recover_finds_no_functions():
    assert asyncio.run(a_launcher().recover()) == 0


def test_closing_does_not_wait_for_a_plain_function():
    end = threading.Event()

    async def story():
        launcher = a_launcher(lambda: end.wait(SOON))
        launching = asyncio.create_task(launcher.launch(an_attempt()))
        await asyncio.sleep(0.05)
        launching.cancel()
        began = time.monotonic()
        await launcher.close()
        return time.monotonic() - began

    assert asyncio.run(story()) < SOON / 2
    end.set()


def test_process_exits_without_waiting_for_a_plain_function():
    script = f"""
import asyncio, time
from onbeat.host.plugs import plugs
from tests.launchers.test_function import a_launcher, an_attempt

async def story():
    launcher = a_launcher(lambda: time.sleep({LONG}))
    await launcher.launch(an_attempt(timeout=10))
    await launcher.close()

plugs()
asyncio.run(story())
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=1.5)

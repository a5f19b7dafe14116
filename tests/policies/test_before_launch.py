"""Before a launch: conditions are evaluated and templates are rendered."""

import os
import sys

import pytest

from onbeat import InvalidSchedule
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.core.schedule import read_schedule
from tests.policies.world import HOUR, PolicyHarness, awaited

HOURLY = {"every": "1h"}
PROBES = "tests.policies.probes"


# -- when


class Commands(PolicyHarness):
    """A world in which commands are really started."""

    def __init__(self):
        super().__init__()
        self.beat._own_launchers.pop("command")


@pytest.fixture
def real():
    return Commands()


async def outcome_of(world, when, *, policy=None, lengths=("1h",)):
    """Return what became of a schedule's runs, and when its target was started, under a condition."""
    async with world.beat:
        await world.define(report=HOURLY | (policy or {}) | {"when": when})
        await world.passes(*lengths)
        return await world.columns("status reason")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["true"], ("SUCCESS", None)),
        (["false"], ("SKIPPED", "condition")),
        (["sh", "-c", "exit 7"], ("SKIPPED", "condition")),
        (["sh", "-c", 'test "$ONBEAT_SCHEDULE" = report'], ("SUCCESS", None)),
    ],
    ids=str,
)
@awaited
async def test_exit_code_of_a_condition_decides_whether_a_run_starts(real, argv, expected):
    assert await outcome_of(real, {"command": argv}) == [expected]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"python": f"{PROBES}:holds"}, ("SUCCESS", None)),
        ({"python": f"{PROBES}:is_empty"}, ("SKIPPED", "condition")),
        ({"python": f"{PROBES}:returns_false"}, ("SKIPPED", "condition")),
        ({"python": f"{PROBES}:is_more_than", "inputs": {"count": 2, "limit": 1}}, ("SUCCESS", None)),
        ({"python": f"{PROBES}:is_more_than", "inputs": {"count": 1, "limit": 1}}, ("SKIPPED", "condition")),
    ],
    ids=str,
)  # fmt: skip
@awaited
async def test_result_of_a_condition_function_decides_whether_a_run_starts(fields, expected):
    world = PolicyHarness()
    assert await outcome_of(world, fields) == [expected]
    assert world.started() == (["report"] if expected[0] == "SUCCESS" else [])


@awaited
async def test_missing_condition_program_fails_the_attempt_and_is_retried(real, tmp_path):
    probe = tmp_path / "probe"
    async with real.beat:
        await real.define(
            report=HOURLY | {"when": {"command": [str(probe)]}, "retry": ["1m", "1m"]}
        )
        await real.passes("1h")
        (run,) = await real.runs()
        assert (run.status, run.reason, run.attempt) == ("ENQUEUED", "launch_failed", 1)
        assert run.error.startswith("its condition could not be checked: '/")
        assert run.error.endswith(" could not be started: No such file or directory")
        await real.passes("1m")
        probe.write_text("#!/bin/sh\n")
        os.chmod(probe, 0o700)  # noqa: PTH101 - in one step with the line above
        await real.passes("1m")
        assert await real.columns("status attempt") == [("SUCCESS", 3)]


@pytest.mark.parametrize(
    "when",
    [
        {"command": ["/no/such/program"]},
        {"python": "no.such.module:function"},
        {"python": f"{PROBES}:breaks"},
        {"command": ["sh", "-c", "kill -9 $$"]},
    ],
    ids=str,
)
@awaited
async def test_condition_without_an_answer_fails_the_run(real, when):
    policy = {"run": {"python": f"{PROBES}:holds"}}
    assert await outcome_of(real, when, policy=policy) == [("FAILED", "launch_failed")]


@awaited
async def test_condition_is_evaluated_for_each_run_and_attempt(real, tmp_path):
    asked = tmp_path / "asked"
    when = {"command": ["sh", "-c", f"echo $ONBEAT_ATTEMPT >> {asked}"]}
    policy = {"run": {"command": ["false"]}, "retry": ["1m"]}
    found = await outcome_of(real, when, policy=policy, lengths=("1h", "1m", "59m", "1m"))
    assert found == [("FAILED", "exit"), ("FAILED", "exit")]
    assert asked.read_text().split() == ["1", "2", "1", "2"]


@awaited
async def test_run_skipped_by_its_condition_releases_the_queue(real, tmp_path):
    async with real.beat:
        await real.define(
            report=HOURLY | {
                "when": {"command": ["test", "-e", str(tmp_path / "there")]},
                "overlap": "queue", "catchup": "all",
            }
        )  # fmt: skip
        await real.passes("3h")
        while "ENQUEUED" in await real.columns("status"):
            await real.beat.settle()
        assert await real.columns("status reason") == [("SKIPPED", "condition")] * 3
        (tmp_path / "there").touch()
        await real.passes("1h")
        assert (await real.columns("status"))[3:] == ["SUCCESS"]


@awaited
async def test_manual_run_must_meet_the_condition(real):
    async with real.beat:
        await real.define(report=HOURLY | {"when": {"command": ["false"]}})
        await real.beat.start("report")
        await real.beat.settle()
        assert await real.columns("status reason") == [("SKIPPED", "condition")]


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"python": "holds"}, "when.python: a condition cannot be a registered function: any node must be able to evaluate it (module:function)"),
        ({"command": ["test", "{{ date }}"]}, "when: a condition cannot contain templates (use them in `run`)"),
        ({"komand": ["true"]}, "when.komand: no launcher has this name (did you mean 'command'?)"),
    ],
    ids=str,
)  # fmt: skip
def test_condition_that_cannot_be_evaluated_is_refused(when, expected):
    fields = HOURLY | {"run": {"command": ["true"]}, "when": when}
    with pytest.raises(InvalidSchedule) as refused:
        read_schedule("report", fields)
    assert str(refused.value) == expected


# -- templates


def commands(world):
    return [attempt.target.fields["command"] for attempt in world.targets.attempts]


@awaited
async def test_template_date_is_that_of_the_tick_in_the_zone_of_the_schedule(world):
    await world.define(
        report={
            "cron": "30 0 * * *", "timezone": "Asia/Tokyo",
            "run": {"command": ["say", "Standup for {{ date }}", "{{date}}T{{ time }}"]},
        }
    )  # fmt: skip
    await world.is_now("15:30")
    assert commands(world) == [["say", "Standup for 2026-01-02", "2026-01-02T00:30:00"]]
    (run,) = await world.runs()
    assert run.rendered == {"command": ["say", "Standup for 2026-01-02", "2026-01-02T00:30:00"]}


@pytest.mark.parametrize("name", ["last_run", "lastRun"])
@awaited
async def test_template_last_run_is_the_end_of_the_previous_run(world, name):
    run = {"command": ["say", f"since {{{{ {name} | default('ever') }}}}"]}
    await world.define(report=HOURLY | {"run": run})
    await world.passes("1h", "1h")
    ended = "2026-01-01T13:00:00+00:00"
    assert [argv[1] for argv in commands(world)] == ["since ever", f"since {ended}"]


@awaited
async def test_result_of_the_last_run_is_available_to_the_next(world):
    world.answer_with("report", Succeeded({"rows": 41}), Succeeded({"rows": 42}), Succeeded())
    run = {"command": ["say", "{{ last.result.rows }}"], "inputs": {"rows": "{{ last.result.rows }}"}}  # fmt: skip
    await world.define(report=HOURLY | {"run": run})
    await world.passes("1h", "1h", "1h")
    assert [argv[1] for argv in commands(world)] == ["", "41", "42"]
    assert [attempt.inputs for attempt in world.targets.attempts] == [
        {"rows": None}, {"rows": 41}, {"rows": 42},
    ]  # fmt: skip
    assert [run.rendered["inputs"] for run in await world.runs()] == [
        {"rows": None}, {"rows": 41}, {"rows": 42},
    ]  # fmt: skip


@awaited
async def test_retry_has_the_rendered_values_of_the_first_attempt(world):
    world.answer_with("report", Failed("no"), Succeeded(7), Succeeded())
    run = {"command": ["say", "{{ last.result | default('none') }} {{ due_at }} {{ key }}"]}
    fields = {"every": "12h", "run": run, "retry": ["1h"]}
    await world.define(report=fields)
    await world.passes("12h")
    await world.beat.start("report", request_id="another")
    await world.beat.settle()
    await world.passes("1h")
    first, by_hand, again = commands(world)
    assert first == again
    assert first != by_hand
    planned, _ = await world.runs()
    assert (planned.attempt, planned.rendered) == (2, {"command": first})


@awaited
async def test_edit_does_not_change_the_rendered_values_of_a_run(world):
    world.answer_with("report", Failed("no"), Succeeded())
    fields = {"every": "12h", "retry": ["1h"]}
    await world.define(report=fields | {"run": {"command": ["say", "old {{ date }}"]}})
    await world.passes("12h")
    await world.define(report=fields | {"run": {"command": ["say", "new {{ date }}"]}})
    await world.passes("1h", "11h")
    assert [argv[1] for argv in commands(world)] == [
        "old 2026-01-02", "old 2026-01-02", "new 2026-01-02",
    ]  # fmt: skip


@awaited
async def test_inputs_of_a_manual_run_are_not_rendered(world):
    run = {"command": ["say"], "inputs": {"day": "{{ date }}", "text": "{{ schedule_id }}"}}
    await world.define(report=HOURLY | {"run": run})
    await world.beat.start("report", text="{{ date }}")
    await world.beat.settle()
    (attempt,) = world.targets.attempts
    assert attempt.inputs == {"day": "2026-01-01", "text": "{{ date }}"}


@awaited
async def test_target_without_templates_stores_nothing_rendered(world):
    await world.define(report=HOURLY)
    await world.passes("1h")
    assert await world.columns("rendered") == [None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ dat }}", "run.command[1]: 'dat' is not a known name (did you mean 'date'?)"),
        ("{{ date", "run.command[1]: '{{' without '}}' ({{ name }} or {{ name | filter }}; {{ '{{' }} for the braces themselves)"),
        ("{% if date %}", "run.command[1]: statements are not supported, only {{ name }} ({{ '{%' }} for the characters themselves)"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_template_is_refused_with_its_field(text, expected):
    with pytest.raises(InvalidSchedule) as refused:
        read_schedule("report", HOURLY | {"run": {"command": ["say", text]}})
    assert str(refused.value) == expected


@awaited
async def test_command_receives_rendered_values(real):
    script = "import sys; print(*sys.argv[1:])"
    run = {"command": [sys.executable, "-c", script, "{{ schedule_id }}", "{{ date | date('%d.%m.%Y') }}"]}  # fmt: skip
    async with real.beat:
        await real.define(report=HOURLY | {"run": run})
        await real.passes(HOUR)
        assert await real.columns("log_tail") == ["report 01.01.2026\n"]

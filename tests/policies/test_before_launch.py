"""What is done before a run is launched: its condition is asked, and its templates are rendered."""

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
        return await world.told("status reason")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["true"], ("SUCCESS", None)),
        (["false"], ("SKIPPED", "condition")),
        (["sh", "-c", "exit 7"], ("SKIPPED", "condition")),
        (["sh", "-c", 'test "$ONBEAT_SCHEDULE" = report'], ("SUCCESS", None)),
    ],
    ids=str,
)
@awaited
async def test_a_program_says_by_its_exit_code_whether_a_run_starts(real, argv, told):
    assert await outcome_of(real, {"command": argv}) == [told]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"python": f"{PROBES}:holds"}, ("SUCCESS", None)),
        ({"python": f"{PROBES}:is_empty"}, ("SKIPPED", "condition")),
        ({"python": f"{PROBES}:says_no"}, ("SKIPPED", "condition")),
        ({"python": f"{PROBES}:is_more_than", "inputs": {"count": 2, "limit": 1}}, ("SUCCESS", None)),
        ({"python": f"{PROBES}:is_more_than", "inputs": {"count": 1, "limit": 1}}, ("SKIPPED", "condition")),
    ],
    ids=str,
)  # fmt: skip
@awaited
async def test_a_function_says_by_what_it_returns_whether_a_run_starts(fields, told):
    world = PolicyHarness()
    assert await outcome_of(world, fields) == [told]
    assert world.started() == (["report"] if told[0] == "SUCCESS" else [])


@awaited
async def test_a_program_that_is_not_there_fails_the_attempt_and_it_is_asked_again(real, tmp_path):
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
        assert await real.told("status attempt") == [("SUCCESS", 3)]


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
async def test_a_condition_that_nobody_could_tell_is_a_failure_and_no_skip(real, when):
    policy = {"run": {"python": f"{PROBES}:holds"}}
    assert await outcome_of(real, when, policy=policy) == [("FAILED", "launch_failed")]


@awaited
async def test_a_condition_is_asked_for_each_run_and_each_attempt(real, tmp_path):
    asked = tmp_path / "asked"
    when = {"command": ["sh", "-c", f"echo $ONBEAT_ATTEMPT >> {asked}"]}
    policy = {"run": {"command": ["false"]}, "retry": ["1m"]}
    found = await outcome_of(real, when, policy=policy, lengths=("1h", "1m", "59m", "1m"))
    assert found == [("FAILED", "exit"), ("FAILED", "exit")]
    assert asked.read_text().split() == ["1", "2", "1", "2"]


@awaited
async def test_what_is_skipped_for_its_condition_lets_the_next_in_the_queue_start(real, tmp_path):
    async with real.beat:
        await real.define(
            report=HOURLY | {
                "when": {"command": ["test", "-e", str(tmp_path / "there")]},
                "overlap": "queue", "catchup": "all",
            }
        )  # fmt: skip
        await real.passes("3h")
        while "ENQUEUED" in await real.told("status"):
            await real.beat.settle()
        assert await real.told("status reason") == [("SKIPPED", "condition")] * 3
        (tmp_path / "there").touch()
        await real.passes("1h")
        assert (await real.told("status"))[3:] == ["SUCCESS"]


@awaited
async def test_a_run_by_hand_has_to_meet_the_condition_too(real):
    async with real.beat:
        await real.define(report=HOURLY | {"when": {"command": ["false"]}})
        await real.beat.start("report")
        await real.beat.settle()
        assert await real.told("status reason") == [("SKIPPED", "condition")]


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ({"python": "holds"}, "when.python: a condition cannot be a registered function: any node may have to ask it (module:function)"),
        ({"command": ["test", "{{ date }}"]}, "when: a condition has no templates (put them in `run`)"),
        ({"komand": ["true"]}, "when.komand: no launcher has this name (did you mean 'command'?)"),
    ],
    ids=str,
)  # fmt: skip
def test_a_condition_that_could_not_be_asked_is_refused(when, told):
    fields = HOURLY | {"run": {"command": ["true"]}, "when": when}
    with pytest.raises(InvalidSchedule) as refused:
        read_schedule("report", fields)
    assert str(refused.value) == told


# -- templates


def commands(world):
    return [attempt.target.fields["command"] for attempt in world.targets.attempts]


@awaited
async def test_the_date_is_that_of_the_tick_in_the_zone_of_the_schedule(world):
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
async def test_the_last_run_is_when_the_previous_one_ended(world, name):
    run = {"command": ["say", f"since {{{{ {name} | default('ever') }}}}"]}
    await world.define(report=HOURLY | {"run": run})
    await world.passes("1h", "1h")
    ended = "2026-01-01T13:00:00+00:00"
    assert [argv[1] for argv in commands(world)] == ["since ever", f"since {ended}"]


@awaited
async def test_what_the_last_run_gave_is_there_for_the_next(world):
    world.tell("report", Succeeded({"rows": 41}), Succeeded({"rows": 42}), Succeeded())
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
async def test_a_retry_is_rendered_as_the_first_attempt_was(world):
    world.tell("report", Failed("no"), Succeeded(7), Succeeded())
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
async def test_an_edit_does_not_change_what_a_run_was_rendered_to(world):
    world.tell("report", Failed("no"), Succeeded())
    fields = {"every": "12h", "retry": ["1h"]}
    await world.define(report=fields | {"run": {"command": ["say", "old {{ date }}"]}})
    await world.passes("12h")
    await world.define(report=fields | {"run": {"command": ["say", "new {{ date }}"]}})
    await world.passes("1h", "11h")
    assert [argv[1] for argv in commands(world)] == [
        "old 2026-01-02", "old 2026-01-02", "new 2026-01-02",
    ]  # fmt: skip


@awaited
async def test_inputs_that_are_given_by_hand_are_taken_as_they_are(world):
    run = {"command": ["say"], "inputs": {"day": "{{ date }}", "text": "{{ schedule_id }}"}}
    await world.define(report=HOURLY | {"run": run})
    await world.beat.start("report", text="{{ date }}")
    await world.beat.settle()
    (attempt,) = world.targets.attempts
    assert attempt.inputs == {"day": "2026-01-01", "text": "{{ date }}"}


@awaited
async def test_what_has_no_templates_keeps_nothing_rendered(world):
    await world.define(report=HOURLY)
    await world.passes("1h")
    assert await world.told("rendered") == [None]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{{ dat }}", "run.command[1]: no name is called 'dat' (did you mean 'date'?)"),
        ("{{ date", "run.command[1]: '{{' without '}}' ({{ name }} or {{ name | filter }}; {{ '{{' }} for the braces themselves)"),
        ("{% if date %}", "run.command[1]: there are no statements here, only {{ name }} ({{ '{%' }} for the characters themselves)"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_template_is_refused_where_it_stands(text, told):
    with pytest.raises(InvalidSchedule) as refused:
        read_schedule("report", HOURLY | {"run": {"command": ["say", text]}})
    assert str(refused.value) == told


@awaited
async def test_a_program_gets_what_was_rendered(real):
    script = "import sys; print(*sys.argv[1:])"
    run = {"command": [sys.executable, "-c", script, "{{ schedule_id }}", "{{ date | date('%d.%m.%Y') }}"]}  # fmt: skip
    async with real.beat:
        await real.define(report=HOURLY | {"run": run})
        await real.passes(HOUR)
        assert await real.told("log_tail") == ["report 01.01.2026\n"]

"""Dependencies, rates and timeouts can be written in definition.json and sent to the routes."""

import pytest

from onbeat.core.schedule import read_schedule
from onbeat.errors import InvalidSchedule
from onbeat.systems.sessions.definitions import PromptRefused
from tests.systems.sessions.conftest import STANDUP, until

HOURLY = {"type": "interval", "intervalMinutes": 60}


def after(slug, **own):
    return {"type": "after", "slug": slug} | own


@pytest.mark.req("C65")
@pytest.mark.parametrize(
    ("outcome", "sent"),
    [
        (None, ["base", "next", "base", "next"]),
        ("completion", ["base", "next", "base", "next"]),
        ("success", ["base", "base", "next"]),
        ("failure", ["base", "next", "base"]),
    ],
)
def test_prompt_is_sent_when_the_prompt_it_follows_has_its_outcome(world, outcome, sent):
    world.define("base", schedule=HOURLY, timeoutMinutes=5)
    world.write("base", "last-run.json", {"nextRun": "2026-01-29T09:00:00.000Z"})
    own = {} if outcome is None else {"outcome": outcome}
    world.define("next", schedule=after("base", **own))
    server = world.server

    async def story(world):
        server.works = True  # the first exceeds its timeout
        world.clock.advance("1h")
        world.beat.wake()
        await until(lambda: server.busy)
        server.works = False
        world.clock.advance("5m")
        await world.settled()
        await world.let_pass("55m")
        return await world.item("next")

    item = world.play(story)
    assert world.messages == sent
    assert item.schedule == after("base", **own)


@pytest.mark.req("C65")
def test_dependent_prompt_waits_for_its_delay_and_is_not_due_at_first_sight(world):
    world.define("base", enabled=False)
    world.define("aa-next", schedule=after("base", delayMinutes=10))

    async def story(world):
        await world.let_pass("2h")
        before = list(world.messages)
        await world.run("base")
        soon = (await world.item("aa-next")).next_run, world.last_run("aa-next")["nextRun"]
        await world.let_pass("9m")
        during = list(world.messages)
        await world.let_pass("1m")
        return before, soon, during

    assert world.play(story) == ([], ("2026-01-29T10:10:00.000Z",) * 2, ["base"])
    assert world.messages == ["base", "aa-next"]


def test_chain_of_definitions_is_adopted_in_any_order_without_a_warning(world, logged):
    world.define("a", schedule=after("b"))
    world.define("b", schedule=after("c"))
    world.define("c", enabled=False)

    async def story(world):
        await world.run("c")
        await world.let_pass("1s", "1s")
        return [item.last_error for item in await world.sessions.items(world.service)]

    assert world.play(story) == [None] * 3
    assert world.messages == ["c", "b", "a"]
    assert logged() == []


def test_definition_that_follows_a_missing_slug_waits_for_it(world, logged):
    world.define("next", schedule=after("base"))

    async def story(world):
        broken = (await world.item("next")).last_error
        fields = {"every": "1d", "run": {"session": {"prompt": "Native"}}}
        await world.service.define([read_schedule("base", fields)])
        await world.settled()
        await world.service.start("base")
        await world.settled()
        await world.let_pass("1s")
        return broken, (await world.item("next")).last_error

    broken, repaired = world.play(story)
    problem = (
        "schedule next follows 'base', which does not exist (define it first, or both together)"
    )
    assert broken == f"definition.json is refused: after.schedule: {problem}"
    assert repaired is None
    assert world.messages == ["base", "next"]
    assert len(logged()) == 1


def test_edit_that_follows_a_missing_slug_is_applied_once_it_exists(world):
    async def story(world):
        await world.put("next")
        world.edit("next", "definition.json", schedule=after("base"))
        await world.settled()
        broken = (await world.item("next")).last_error
        await world.put("base")
        await world.settled()
        return broken, await world.item("next")

    broken, item = world.play(story)
    assert broken.startswith("definition.json is refused: after.schedule: ")
    assert (item.last_error, item.enabled, item.schedule) == (None, True, after("base"))


def test_circle_is_refused_by_the_routes_and_in_files(world):
    async def story(world):
        await world.put("a", schedule=HOURLY)
        await world.put("b", schedule=after("a"))
        with pytest.raises(InvalidSchedule) as refused:
            await world.put("a", schedule=after("b"))
        world.edit("a", "definition.json", schedule=after("b"))
        await world.settled()
        return str(refused.value), (await world.item("a")).last_error

    problem = "after.schedule: a follows b follows a: this is a cycle (remove one of these)"
    assert world.play(story) == (problem, f"definition.json is refused: {problem}")


def test_schedule_that_follows_itself_is_refused_by_the_routes_and_in_files(world):
    """Its first run would trigger another, and so on, whatever the minimum interval."""
    world.define("again", schedule=after("again"))

    async def story(world):
        with pytest.raises(PromptRefused) as refused:
            await world.put("more", schedule=after("more"))
        return refused.value.status, str(refused.value), (await world.item("again")).last_error

    problem = (
        "schedule.slug: a schedule cannot follow itself "
        "(the slug of another schedule, or type: interval to repeat)"
    )
    assert world.play(story) == (400, problem, f"definition.json is refused: {problem}")


@pytest.mark.parametrize("minutes", [1e300, 0, 30.5, "30", True])
def test_timeout_that_is_refused_is_not_shown_as_one(world, minutes):
    world.define("wrong", timeoutMinutes=minutes)

    async def story(world):
        return await world.item("wrong")

    item = world.play(story)
    assert (item.enabled, item.timeout_minutes) == (False, None)
    assert "timeoutMinutes is not a number of minutes" in item.last_error


@pytest.mark.req("C66")
def test_no_more_prompts_are_sent_than_the_rate_limit_of_a_definition(world):
    world.define("often", schedule=HOURLY, rateLimit={"maxRuns": 3, "per": "day"})
    world.write("often", "last-run.json", {"nextRun": "2026-01-29T09:00:00.000Z"})

    async def story(world):
        sent = []
        for _ in range(26):
            await world.let_pass("1h")
            sent.append(len(world.messages))
        runs = await world.service.runs()
        return sent, {run.reason for run in runs if run.status == "SKIPPED"}

    sent, skipped = world.play(story)
    assert sent[:4] == [1, 2, 3, 3]
    assert sent[23:] == [3, 4, 5] or sent[24:] == [4, 5]
    assert skipped == {"rate"}


def test_session_is_stopped_after_the_timeout_of_its_definition(world):
    world.define("long", schedule=HOURLY, timeoutMinutes=2, enabled=False)
    world.server.works = True

    async def story(world):
        await world.sessions.run(world.service, "long")
        world.clock.advance("119s")
        await world.state_is_looked_up()
        busy = bool(world.server.busy)
        world.clock.advance("1s")
        await until(lambda: not world.server.busy)
        await world.settled()
        return busy, world.last_run("long")["lastError"]

    assert world.play(story) == (True, "still working after 120 s: the session was stopped")


LIMITED = {
    "schedule": after("base", outcome="success", delayMinutes=5),
    "timeoutMinutes": 45,
    "rateLimit": {"maxRuns": 2, "per": "hour"},
}


def shown(item):
    return {
        "schedule": item.schedule,
        "timeoutMinutes": item.timeout_minutes,
        "rateLimit": item.rate_limit,
    }


@pytest.mark.parametrize("how", ["file", "put", "patch"])
def test_limits_are_the_same_in_files_routes_and_after_a_restart(world, how):
    async def first(world):
        await world.put("base")
        if how == "file":
            world.define("limited", **LIMITED, own="field")
        elif how == "put":
            await world.put("limited", **LIMITED)
        else:
            await world.put("limited")
            await world.sessions.patch(world.service, "limited", LIMITED)
        await world.settled()
        return shown(await world.item("limited"))

    async def again(world):
        await world.sessions.patch(world.service, "limited", {"enabled": False})
        await world.settled()
        said = world.definition("limited")
        written = {name: said[name] for name in LIMITED}
        row = await world.service.schedule("limited")
        return shown(await world.item("limited")), written, row.definition, said.get("own")

    assert world.play(first) == LIMITED
    item, written, definition, own = world.play(again)
    assert item == written == LIMITED
    assert '"timeout":"45m"' in definition
    assert '"rate":"2/hour"' in definition
    assert own == ("field" if how == "file" else None)


def test_put_without_limits_removes_them_and_keeps_unknown_fields(world):
    async def story(world):
        world.define("limited", rateLimit={"maxRuns": 1, "per": "day"}, timeoutMinutes=5, own=[1])
        await world.settled()
        await world.put("limited")
        item = await world.item("limited")
        return item.rate_limit, item.timeout_minutes, world.definition("limited")

    rate, timeout, said = world.play(story)
    assert (rate, timeout) == (None, 30)
    assert said["own"] == [1]
    assert not {"rateLimit", "timeoutMinutes"} & said.keys()


def test_limits_edited_through_the_api_are_written_to_the_file(world):
    async def story(world):
        await world.put("daily")
        row = await world.service.schedule("daily")
        fields = {"cron": "0 9 * * 1-5", "timeout": "2h", "rate": "5/day", "group": "sessions"}
        schedule = read_schedule("daily", fields | {"run": {"session": {"prompt": "Hi"}}})
        await world.service.define([schedule], source=row.source)
        await world.settled()
        return shown(await world.item("daily")), world.definition("daily")

    item, said = world.play(story)
    assert (item["timeoutMinutes"], item["rateLimit"]) == (120, {"maxRuns": 5, "per": "day"})
    assert (said["timeoutMinutes"], said["rateLimit"]) == (120, {"maxRuns": 5, "per": "day"})


@pytest.mark.parametrize(
    ("given", "error", "hint"),
    [
        ({"timeoutMinutes": 0}, "timeoutMinutes is not a number of minutes", "1 to 10080"),
        ({"timeoutMinutes": True}, "timeoutMinutes is not a number of minutes", "1 to 10080"),
        ({"timeoutMinutes": "30"}, "timeoutMinutes is not a number of minutes", "1 to 10080"),
        ({"timeoutMinutes": 1.5}, "timeoutMinutes is not a number of minutes", "1 to 10080"),
        ({"rateLimit": 3}, "rateLimit must have maxRuns and per", '{"maxRuns": 3, "per": "day"}'),
        ({"rateLimit": {"maxRuns": 3}}, "rateLimit must have maxRuns and per", "per hour"),
        ({"rateLimit": {"maxRuns": 3, "per": "week"}}, "rateLimit must have maxRuns and per", ""),
        (
            {"rateLimit": {"maxRuns": 3, "per": "day", "x": 1}},
            "rateLimit must have maxRuns and per",
            "",
        ),
        (
            {"rateLimit": {"maxRuns": 0, "per": "day"}},
            "rateLimit.maxRuns is not a number of runs",
            "1 to 1000",
        ),
        (
            {"schedule": {"type": "after"}},
            "schedule with type and expression/intervalMinutes is required",
            "slug: the schedule that it follows",
        ),
        (
            {"schedule": after("a", outcome="done")},
            "schedule.outcome is not an outcome",
            "completion, success, failure",
        ),
        (
            {"schedule": after("a", delayMinutes=-1)},
            "schedule.delayMinutes is not a number of minutes",
            "0 to 525600",
        ),
    ],
)
def test_invalid_limit_is_refused_with_a_hint(world, given, error, hint):
    async def story(world):
        with pytest.raises(PromptRefused) as refused:
            await world.sessions.put(world.service, "wrong", STANDUP | given)
        return refused.value

    refused = world.play(story)
    assert (refused.status, refused.error) == (400, error)
    assert hint in refused.hint


def test_dependent_of_a_deleted_schedule_stays_and_shows_when_it_runs(world):
    async def story(world):
        await world.put("base")
        await world.put("next", schedule=after("base"))
        await world.sessions.delete(world.service, "base")
        await world.settled()
        alone = await world.item("next")
        await world.put("base")
        await world.run("base")
        await world.let_pass("1s")
        return alone.last_error, alone.next_run

    assert world.play(story) == (None, None)
    assert world.messages == ["base", "next"]

"""The cause of a prompt's run: every surface names it, and `manual` is only for requests."""

import asyncio
import json

from onbeat.app.metrics import scrape
from onbeat.core.runs.run import Succeeded
from onbeat.service.serialize import event_fields, run_fields, why_fields
from onbeat.testing import RecordingLauncher


def given(world, slug, next_run):
    """Create a folder of another scheduler."""
    folder = world.folder / slug
    folder.mkdir(parents=True)
    schedule = {"type": "cron", "expression": "0 9 * * *"}
    definition = {"slug": slug, "prompt": "hello", "enabled": True, "schedule": schedule}
    (folder / "definition.json").write_text(json.dumps(definition))
    last = {"lastRun": None, "lastResult": None, "lastError": None, "nextRun": next_run}
    (folder / "last-run.json").write_text(json.dumps(last))


async def causes_of(its, slug):
    """Return the cause of the latest run of a slug on each surface."""
    (run,) = await its.beat.runs(slug, limit=1)
    why = await its.beat.why(slug, run.run_at)
    events = [event_fields(each) for each in await its.beat.service.events(after=0, limit=1000)]
    made = [each for each in events if each.fields.get("run_id") == run.run_id]
    metrics = await scrape(its.beat.metrics, its.beat.service, version="1")
    causes = {each.fields["triggered_by"] for each in made if "triggered_by" in each.fields}
    return run, run_fields(run).triggered_by, why_fields(why), causes, metrics


def test_overdue_prompt_is_reported_as_overdue_everywhere(world):
    given(world, "standup", "2026-01-29T05:00:00Z")

    async def story(its):
        return await causes_of(its, "standup")

    run, in_json, why, causes, metrics = world.play(story)
    assert (run.triggered_by, in_json, why.triggered_by, causes) == ("overdue",) * 3 + (
        {"overdue"},
    )
    assert why.sentences[-1] == (
        "it had been overdue since 2026-01-29T05:00:00.000Z when its folder was adopted at "
        "2026-01-29T08:00:00.000Z"
    )
    assert 'onbeat_runs_started_total{triggered_by="overdue"} 1' in metrics


def test_run_at_an_edited_next_run_has_that_cause(world):
    async def story(its):
        await its.put("standup")
        path = its.folder / "standup" / "last-run.json"
        last = json.loads(path.read_text()) | {"nextRun": "2026-01-29T08:10:00Z"}
        await asyncio.to_thread(path.write_text, json.dumps(last))
        await its.settled()
        await its.let_pass("11m")
        return await causes_of(its, "standup")

    run, in_json, why, causes, _ = world.play(story)
    assert (run.triggered_by, in_json, causes) == ("next_run", "next_run", {"next_run"})
    assert why.sentences[-1] == "nextRun in last-run.json was set to 2026-01-29T08:10:00Z"


def test_run_requested_by_a_caller_is_manual(world):
    async def story(its):
        await its.put("standup")
        await its.run("standup")
        return await causes_of(its, "standup")

    run, _, why, _, _ = world.play(story)
    assert run.triggered_by == "manual"
    assert why.sentences[-1].startswith("it was started manually")


def test_launcher_receives_the_cause(world):
    given(world, "standup", "2026-01-29T05:00:00Z")
    launcher = RecordingLauncher(Succeeded())

    async def story(its):
        return [(each.triggered_by, each.cause) for each in launcher.attempts]

    world.launchers = {"session": launcher}
    assert world.play(story) == [("overdue", "overdue")]

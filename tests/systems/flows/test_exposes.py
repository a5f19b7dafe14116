"""Exposes, their flows, and `schedule:` blocks."""

import asyncio
import json
from datetime import UTC, datetime

import msgspec
import pytest
from cronsim import CronSim

from onbeat.core.time.instants import parse_instant
from onbeat.errors import InvalidSchedule
from onbeat.sources.yaml_positions import read_yaml
from onbeat.systems.flows import expose_files as sources
from onbeat.systems.flows.config import (
    ScheduleConfig,
    ScheduleStatus,
    TimerStatus,
    read_config,
    schedule_id_of,
    schedule_key,
    schedule_of,
    target_of,
)
from onbeat.systems.flows.expose_files import Exposes
from onbeat.systems.flows.exposes import read_exposes
from onbeat.systems.flows.template import META_TEMPLATE
from tests.systems.flows.conftest import HOURLY, KEY, URL

NOON = parse_instant("2026-01-01T12:00:00Z")


def next_run(world, **block):
    world.hourly(**block)

    async def story(its):
        return (await its.listed())[KEY].next_run

    return world.play(story)


def invalid(world):
    async def story(its):
        status = await its.timer.status(its.service)
        return status.invalid, sorted(
            key for key, each in (await its.listed()).items() if not each.invalid
        )

    return world.play(story)


@pytest.mark.req("K3", "K4", "K5", "K7")
@pytest.mark.parametrize(
    ("cron", "at"),
    [
        ("0 9 * * MON-FRI", "2026-01-02T09:00:00Z"),
        ("*/15 * * * *", "2026-01-01T12:15:00Z"),
        ("0 0 1 * *", "2026-02-01T00:00:00Z"),
        ("30 6 * * SUN", "2026-01-04T06:30:00Z"),
        ("@daily", "2026-01-02T00:00:00Z"),
    ],
)
def test_cron_expressions_of_five_fields_are_read_in_utc(world, cron, at):
    assert next_run(world, cron=cron) == at


@pytest.mark.req("K6")
@pytest.mark.parametrize(
    "cron", ["0 9 * * MON-FRI", "*/7 3-5 * * *", "15 0 29 2 *", "5,10 */6 1-7 * 0"]
)
def test_next_times_are_those_that_another_parser_computes(cron):
    trigger = schedule_of(ScheduleConfig(cron), url=URL, key=KEY).trigger
    theirs, ours, at = CronSim(cron, datetime.fromtimestamp(NOON, UTC)), [], NOON
    for _ in range(20):
        at = trigger.next_after(at)
        ours.append(at)
    assert ours == [int(next(theirs).timestamp()) for _ in range(20)]


@pytest.mark.req("K66")
def test_timezone_of_a_block_is_used(world):
    assert next_run(world, cron="0 9 * * *", timezone="America/New_York") == "2026-01-01T14:00:00Z"


@pytest.mark.req("K2")
@pytest.mark.parametrize(
    "other", [{"every": "1h"}, {"at": "2027-01-01T00:00"}, {"daily": "17:00"}, {"startup": "1s"}]
)
def test_other_triggers_than_cron_are_refused_by_name(other):
    (name,) = other
    for block in (other, other | {"cron": "0 * * * *"}):
        with pytest.raises(
            InvalidSchedule, match=rf"^schedule\.{name}: flows are scheduled by cron only"
        ):
            read_config(block)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({}, "schedule.cron: it is missing"),
        (5, "schedule: 5 is not a mapping"),
        ({"cron": 5}, "schedule.cron: 5 is not a string"),
        (
            {"cron": "* * * *"},
            "schedule.cron: 4 fields in '* * * *' (five: minute hour day month weekday)",
        ),
        ({"cron": "0 0 9 * * *"}, "schedule.cron: 6 fields in"),
        ({"cron": "61 * * * *"}, "schedule.cron.minute: '61' is not a minute"),
        ({"cron": "0 0 31 2 *"}, "schedule.cron"),
        (
            {"cron": "0 * * * *", "inputs": [1]},
            "schedule.inputs: [1] is not a mapping of names to values",
        ),
        ({"cron": "0 * * * *", "enabled": "yes"}, "schedule.enabled: 'yes' is neither"),
        ({"cron": "0 * * * *", "timezone": "Berlin"}, "schedule.timezone: "),
        (
            {"cron": "0 * * * *", "retry_count": -1},
            "schedule.retry_count: -1 is out of bounds",
        ),
        ({"cron": "0 * * * *", "retry_delay": "soon"}, "schedule.retry_delay: "),
        (
            {"cron": "0 * * * *", "entry_point": "x"},
            "schedule.entry_point: 'x' is not of the form module:function",
        ),
        (
            {"cron": "0 * * * *", "input": {}},
            "schedule.input: no field has this name (did you mean 'inputs'?)",
        ),
    ],
)
def test_invalid_block_is_refused_by_its_field(block, told):
    with pytest.raises(InvalidSchedule) as refused:
        schedule_of(read_config(block), url=URL, key=KEY)
    assert str(refused.value).startswith(told)


def test_blocks_and_statuses_are_typed():
    found = read_config({"cron": "0 * * * *", "inputs": {"a": 1}, "retry_delay": "5m"})
    assert found == ScheduleConfig("0 * * * *", {"a": 1}, retry_delay=300)
    assert (found.enabled, found.timezone, found.retry_count) == (True, "UTC", 0)
    standing = {"key": KEY, "schedule_id": KEY, "cron": "0 * * * *", "running": [7]}
    assert msgspec.convert(standing, ScheduleStatus).running == [7]
    timer = TimerStatus("Timer", 5, True, 60.0, "timer", "x", 0, 1, {})
    told = msgspec.json.encode(timer)
    assert msgspec.json.decode(told, type=TimerStatus) == timer
    wrong = [
        (standing | {"running": ["seven"]}, ScheduleStatus),
        (standing | {"enabled": "yes"}, ScheduleStatus),
        (msgspec.to_builtins(timer) | {"pid": "five"}, TimerStatus),
        ({"cron": "0 * * * *", "inputs": [1]}, ScheduleConfig),
        ({"cron": 5}, ScheduleConfig),
    ]
    for fields, model in wrong:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(fields, model)


@pytest.mark.req("K39")
def test_meta_template_has_a_commented_out_schedule():
    assert "schedule" not in read_yaml(META_TEMPLATE).value
    lines = META_TEMPLATE[META_TEMPLATE.index("# schedule:") :].splitlines()
    block = read_yaml("\n".join(line.removeprefix("#")[1:] for line in lines))
    assert block.mistakes == []
    found = read_config(block.value["schedule"])
    assert (found.cron, found.inputs) == (
        "0 9 * * MON-FRI",
        {"query": "daily report", "limit": 100},
    )
    assert (found.retry_count, found.timezone, found.enabled) == (0, "UTC", True)


@pytest.mark.req("K60")
@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("/-/127.0.0.1/8125/-/", "reports/-/127.0.0.1/8125/-"),
        ("flow", "reports/flow"),
        ("/flow", "reports/flow"),
        ("//flow//a/", "reports/flow/a"),
        ("/", "reports"),
    ],
)
def test_schedule_key_is_the_expose_name_and_the_url(url, key):
    assert schedule_key("reports", url) == key
    assert schedule_id_of(key) == key


def test_keys_that_are_not_ids_get_unique_ids():
    keys = [
        "a/x y",
        "a/x_y",
        "a/x+y",
        "a/x%20y",
        "a/é",
        "a/.",
        "a/..",
        "a/" + "x" * 300,
        "a/" + "x" * 301,
    ]
    ids = [schedule_id_of(key) for key in keys]
    assert len(set(ids)) == len(keys)
    assert ids[1] == "a/x_y"
    assert all(each.startswith("a/") and len(each) <= 200 for each in ids)
    for schedule_id, key in zip(ids, keys, strict=True):
        assert (
            schedule_of(ScheduleConfig("0 * * * *"), url="/x", key=key).schedule_id == schedule_id
        )


def test_entry_point_runs_on_a_cluster_instead_of_the_panel():
    config = read_config(
        {"cron": "0 * * * *", "entry_point": "agents.report:run", "inputs": {"a": 1}}
    )
    assert target_of(config, url=URL, key=KEY) == {
        "python": "agents.report:run", "on": "ray", "inputs": {"a": 1},
    }  # fmt: skip
    assert target_of(ScheduleConfig("0 * * * *"), url=URL, key=KEY) == {
        "flow": {"url": URL, "key": KEY}
    }


@pytest.mark.req("K55")
def test_flow_with_an_invalid_cron_is_ignored_with_a_warning_and_affects_no_other(world, logged):
    world.expose(
        "reports",
        (URL, 'schedule: {cron: "61 * * * *"}'),
        (f"{URL}clean", 'schedule: {cron: "0 * * * *"}'),
        (f"{URL}odd", "schedule: {cron: ["),
        {"data": HOURLY},
    )
    world.expose("other", (URL, HOURLY), (URL, HOURLY))
    found, right = invalid(world)
    assert right == ["other/-/127.0.0.1/8125/-", f"{KEY}/clean"]
    assert found.keys() == {
        KEY,
        f"{KEY}/odd",
        "reports/meta[3]",
        "other/-/127.0.0.1/8125/- (meta[1])",
    }
    assert found[KEY] == "schedule.cron.minute: '61' is not a minute (0 to 59)"
    assert "url: it is missing" in found["reports/meta[3]"]
    warned = [line for level, line in logged() if level == "WARNING"]
    assert f"flow {KEY} is ignored: {found[KEY]}" in warned
    assert len(warned) == 4


def test_invalid_flow_is_logged_once_for_each_change(world, logged):
    world.hourly(cron="61 * * * *")

    async def story(its):
        await its.timer.reconcile()
        await its.timer.reconcile()
        its.hourly(cron="62 * * * *")
        await its.timer.reconcile()
        its.hourly()
        await its.timer.reconcile()
        its.hourly(cron="62 * * * *")
        await its.timer.reconcile()

    world.play(story)
    warned = [line for level, line in logged() if level == "WARNING"]
    assert [line.count("'61'") for line in warned] == [1, 0, 0]


@pytest.mark.req("K15")
@pytest.mark.parametrize("switch", ["expose", "flow"])
def test_disabled_flow_is_not_scheduled(world, switch):
    flow = {"url": URL, "data": HOURLY, "enabled": switch != "flow"}
    world.expose("reports", flow, enabled=int(switch != "expose"))
    assert invalid(world) == ({}, [])


@pytest.mark.req("K27")
def test_timer_reads_only_enabled_exposes(world, logged):
    world.settings = {"flows_interval": 50}
    world.hourly()
    world.expose("broken", meta="{", enabled=0)  # which is not read

    async def story(its):
        async def until_there_are(*names):
            while True:
                found = {key.partition("/")[0] for key in await its.listed()}
                if found == set(names):
                    return
                await asyncio.sleep(0.01)

        await until_there_are("reports")
        its.hourly("other")
        await until_there_are("reports", "other")
        its.expose("reports", enabled=0)  # after two more intervals
        await until_there_are("other")
        its.expose("reports", enabled=1)
        await until_there_are("reports", "other")
        its.expose("broken", meta="{", enabled=1)
        await its.until(lambda: any("broken is ignored" in line for _, line in logged()))
        return [line for _, line in logged()]

    lines = world.play(story)
    assert sum("broken is ignored" in line for line in lines) == 1
    assert lines.index(f"flow {KEY} is no longer scheduled") < len(lines) - 1


@pytest.mark.parametrize("switch", [[1], {}, "yes", 2, 0.5, {"on": True}])
@pytest.mark.parametrize("of", ["expose", "flow"])
def test_invalid_enabled_is_reported_and_affects_no_other(switch, of):
    flow = {"url": URL, "data": {"schedule": {"cron": "0 * * * *"}}}
    wrong = {"meta": [flow | {"enabled": switch}]}
    if of == "expose":
        wrong = {"meta": [flow], "enabled": switch}
    found = read_exposes([("a", wrong), ("b", {"meta": [flow], "enabled": 1})], str)
    assert list(found.valid) == ["b/-/127.0.0.1/8125/-"]
    (why,) = found.invalid.values()
    assert why.startswith("enabled: ")
    assert why.endswith(" is neither true nor false (true or false)")


def test_any_error_in_an_expose_affects_no_other():
    class Odd(dict):
        def get(self, name, default=None):
            raise RuntimeError("no such luck")

    flow = {"url": URL, "data": {"schedule": {"cron": "0 * * * *"}}}
    both = {"meta": [flow, Odd(), flow | {"url": f"{URL}clean"}]}
    found = read_exposes([("a", Odd()), ("b", both), ("c", {"meta": [flow]})], str)
    assert list(found.valid) == [f"{each}/-/127.0.0.1/8125/-" for each in ("b", "c")]
    assert found.unread == {"a", "b"}
    assert "it cannot be read: RuntimeError: no such luck" in found.invalid["a"]


@pytest.mark.req("K15", "K29")
def test_disabled_flow_skips_its_ticks_and_can_be_started_manually(world):
    world.hourly(enabled=False)

    async def story(its):
        await its.let_pass("1h")
        listed = (await its.listed())[KEY]
        await its.timer.run(its.service, KEY)
        await its.beat.settle()
        its.hourly(enabled=True)
        await its.timer.reconcile()
        await its.let_pass("30m", "30m")
        return listed.enabled, await its.statuses()

    enabled, statuses = world.play(story)
    assert not enabled
    assert statuses == [("SKIPPED", "disabled"), ("SUCCESS", None), ("SUCCESS", None)]


@pytest.mark.req("K16", "K28")
def test_other_keys_beside_the_schedule_are_allowed_and_untouched(world):
    data = f"display: Reports\ntags: [a, b]\nauthor: {{name: Ada}}\n{HOURLY}"
    world.expose("reports", {"url": URL, "data": data, "state": "alive", "heartbeat": 1.5})
    before = world.exposes.read_bytes()
    assert invalid(world) == ({}, [KEY])
    assert world.exposes.read_bytes() == before


def test_flows_without_a_schedule_are_ignored(world):
    world.expose(
        "reports", (URL, "display: x"), (f"{URL}a", "schedule:\n"), (f"{URL}b", ""), {"url": "/c"}
    )
    world.expose("empty", meta="")
    assert invalid(world) == ({}, [])


@pytest.mark.req("K28")
def test_folder_of_yaml_files_is_read_like_the_table(world):
    folder = world.folder / "exposes"
    folder.mkdir()
    text = f"name: reports\nenabled: true\nmeta:\n  - url: {URL}\n    data: |\n      {HOURLY.replace(chr(10), chr(10) + '      ')}\n"
    (folder / "reports.yaml").write_text(text)
    (folder / "plain.yml").write_text(
        json.dumps({"meta": [{"url": "/-/x", "data": {"schedule": {"cron": "0 9 * * *"}}}]})
    )
    (folder / "other.yaml").write_text("name: another\nmeta: []\n")
    (folder / "broken.yaml").write_text("meta: [")
    (folder / "Odd.yaml").write_text("meta: []")
    (folder / "notes.txt").write_text("nothing")
    world.exposes = folder
    found, right = invalid(world)
    assert right == ["plain/-/x", KEY]
    assert found.keys() == {"other", "broken", "Odd"}
    assert found["other"].startswith("name: other.yaml contains another name: 'another'")
    assert "is not a valid name of an expose" in found["Odd"]


def test_exposes_database_is_opened_read_only(tmp_path):
    with pytest.raises(InvalidSchedule, match=r"nowhere\.db does not exist"):
        Exposes(tmp_path / "nowhere.db").read()
    assert not (tmp_path / "nowhere.db").exists()
    (tmp_path / "odd.db").write_text("this is no database, whatever it is called " * 20)
    with pytest.raises(InvalidSchedule, match=r"odd\.db cannot be read"):
        Exposes(tmp_path / "odd.db").read()


@pytest.mark.parametrize("kept_in", ["table", "folder"])
def test_more_exposes_than_are_read_remove_nothing(world, logged, monkeypatch, kept_in):
    monkeypatch.setattr(sources, "MOST_EXPOSES", 2)
    if kept_in == "folder":
        world.exposes = world.folder / "exposes"
        world.exposes.mkdir()

    def expose(name):
        if kept_in == "table":
            world.hourly(name)
        else:
            flow = {"url": URL, "data": HOURLY}
            (world.exposes / f"{name}.yaml").write_text(json.dumps({"meta": [flow]}))

    async def story(its):
        expose("x")
        expose("y")
        await its.timer.reconcile()
        expose("a")  # it comes before them
        await its.timer.reconcile()
        return sorted(await its.listed())

    assert world.play(story) == [f"{each}/-/127.0.0.1/8125/-" for each in "xy"]
    (warned,) = [line for level, line in logged() if level == "WARNING"]
    assert warned.endswith("has more than 2 exposes (2 at most)")


@pytest.mark.parametrize("harm", ["unmounted", "emptied"])
def test_missing_folder_removes_nothing_and_an_emptied_one_does(world, harm):
    world.exposes = world.folder / "disk" / "exposes"
    world.exposes.mkdir(parents=True)
    file = world.exposes / "reports.yaml"
    file.write_text(json.dumps({"meta": [{"url": URL, "data": HOURLY}]}))

    async def story(its):
        if harm == "unmounted":
            its.exposes.rename(its.folder / "elsewhere")
        else:
            file.unlink()
        await its.timer.reconcile()
        return list(await its.listed())

    assert world.play(story) == ([KEY] if harm == "unmounted" else [])

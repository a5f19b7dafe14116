"""A short run of chaos on each change; `python -m tests.chaos --kills 200` is the long one."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace

import pytest
from msgspec import structs

from onbeat.cli.exit_codes import UNAVAILABLE
from onbeat.events import (
    NodeLost,
    NodeStopped,
    RunClaimed,
    RunHandedBack,
    RunReportedLate,
    RunStuck,
    SchedulePaused,
)
from tests.chaos.broken import WAYS
from tests.chaos.checker import judge
from tests.chaos.databases import PostgresDatabase, SqliteFile
from tests.chaos.driver import Driver
from tests.chaos.harm import OF_SERVER
from tests.chaos.node import POINTS
from tests.postgres import Server, new_folder

KILLS, SHARED_KILLS = 25, 7
PATIENCE = 5  # seconds that a broken node has to settle, which some never do
FEW = ("launch:after", "finish:before", "plan_due:after")  # points where a broken node shows itself
WHERE = {"leave_orphans": ("heartbeat:after",)}  # or where else: by then a slow run is going
OFTEN_PASSED = (
    "plan_due:before", "plan_due:after", "launch:before", "launch:after", "finish:before",
    "heartbeat:after", "commit:before", "commit:after", "statement", "register:after",
)  # fmt: skip
QUICK_FAULTS = tuple(each for each in OF_SERVER if each != "server paused long")
SERVER_FAULTS = len(QUICK_FAULTS)
HARMS = ("halt before launches", "cut off", "server crashed")
SHARED_WAYS = {  # how others are hurt when a node is broken
    "free_the_started": (),
    "ignore_the_lease": ("halt before launches",),
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What is left of a node that was killed at each point, and who killed it."""
    driver = on_a_file(tmp_path_factory.mktemp("killed"), seed=1)
    return driver, driver.run(KILLS)


@pytest.fixture(scope="module")
def server():
    with Server(new_folder(), durable=True) as server:
        yield server


def on_a_file(folder, **options):
    return Driver(folder, SqliteFile(folder / "onbeat.db"), **options)


def test_node_killed_at_every_point_leaves_no_run_doubled_silent_or_stuck(killed):
    driver, history = killed
    verdict = judge(history)
    assert dict(verdict.wrong) == {}
    assert set(POINTS) - driver.kills.keys() == set()
    assert verdict.lost > 0
    assert verdict.attempts > 2 * KILLS


def test_harmed_nodes_on_one_server_leave_no_run_doubled_silent_or_stuck(tmp_path, server):
    driver = Driver(tmp_path, PostgresDatabase(server), seed=1, calm=0.5, harms=HARMS)
    verdict = judge(driver.run(SHARED_KILLS, OFTEN_PASSED))
    assert dict(verdict.wrong) == {}
    assert driver.kills.total() >= SHARED_KILLS
    assert verdict.lost > 0
    assert verdict.attempts > SHARED_KILLS


def test_nodes_survive_a_server_that_restarts_crashes_pauses_and_disconnects(tmp_path, server):
    """`python -m tests.chaos --server-faults 60` is the long one."""
    driver = Driver(tmp_path, PostgresDatabase(server), seed=1, calm=0.5, harms=QUICK_FAULTS)
    verdict = judge(driver.endure(SERVER_FAULTS))
    assert dict(verdict.wrong) == {}
    assert driver.harm.total() == SERVER_FAULTS
    assert verdict.attempts > SERVER_FAULTS


def test_node_stopped_during_an_announcement_leaves_no_run_behind(tmp_path):
    assert dict(judge(on_a_file(tmp_path, seed=1).stop_at("stop")).wrong) == {}


def test_node_that_cannot_record_outcomes_exits_and_launches_no_run_twice(tmp_path):
    history = on_a_file(tmp_path, seed=1).stop_at("refuse", code=UNAVAILABLE)
    assert dict(judge(history).wrong) == {}


def test_checker_detects_a_broken_node(tmp_path):
    def kill(way, folder, seed):
        driver = on_a_file(folder, seed=seed, broken=way, patience=PATIENCE)
        return judge(driver.run(3, WHERE.get(way, FEW))).wrong

    check_each([way for way, each in WAYS.items() if not each.needs_others], kill, tmp_path)


def test_checker_detects_a_broken_node_among_others(tmp_path, server):
    def kill(way, folder, seed):
        driver = Driver(
            folder, PostgresDatabase(server), seed=seed, broken=way, patience=PATIENCE, calm=0.5,
            harms=SHARED_WAYS[way], often=1,
        )  # fmt: skip
        return judge(driver.run(3, FEW)).wrong

    check_each(list(SHARED_WAYS), kill, tmp_path)


def check_each(ways, kill, folder):
    """See that each is called what it is; what shows by chance only is given another life, or two."""

    def wrong(way):
        for seed in (2, 3, 4):
            own = folder / f"{way}-{seed}"
            own.mkdir()
            found = kill(way, own, seed)
            if WAYS[way].kind in found:
                break
        return dict(found)

    with ThreadPoolExecutor(len(ways)) as pool:
        for way, found in zip(ways, pool.map(wrong, ways), strict=True):
            assert WAYS[way].kind in found, f"{way}: {found}"


# -- the checker: each case takes away, adds or changes one thing of a history in which nothing is wrong


def without_a_row(history):
    del history.rows[_a_success(history).run_id]


def with_a_row_twice(history):
    row, new = _a_success(history), max(history.rows) + 1
    history.rows[new] = replace(row, run_id=new)


def with_a_row_for_no_tick(history):
    row, new = _a_success(history), max(history.rows) + 1
    history.rows[new] = replace(row, run_id=new, run_at=4_000_000_000)


def with_a_wrong_count(history):
    row = _a_success(history)
    history.rows[row.run_id] = replace(row, tick_count=row.tick_count + 1)


def with_a_launch_twice(history):
    history.witness.append(history.witness[0])


def without_a_launch(history):
    row = _a_success(history)
    history.witness = [seen for seen in history.witness if seen.run_id != row.run_id]


def without_an_announcement(history):
    row = _a_success(history)
    _drop(history, "run.started", row.run_id)


def with_a_run_decided_twice(history):
    """Have a run that was decided before start as if it were decided only then."""
    at, (moment, event) = next(
        (i, told)
        for i, told in enumerate(history.events)
        if told[1].name == "run.started" and not told[1].is_first_event
    )
    history.events[at] = (moment, structs.replace(event, due_at=event.run_at * 1000))


def with_a_start_of_what_was_never_decided(history):
    row = _a_success(history)
    at = next(i for i, (_, e) in enumerate(history.events) if _is(e, "run.started", row.run_id))
    moment, event = history.events[at]
    history.events[at] = (moment, structs.replace(event, due_at=None))
    _drop(history, "run.enqueued", row.run_id)


def with_an_attempt_announced_twice(history):
    """Have a run handed back, and announced under the same number, as it once was."""
    row = _a_success(history)
    at = next(i for i, (_, e) in enumerate(history.events) if _is(e, "run.started", row.run_id))
    moment, event = history.events[at]
    back = RunHandedBack(row.schedule_id, row.run_id, row.run_at, event.fence + 1, event.attempt)
    claim = RunClaimed(row.schedule_id, row.run_id, row.run_at, event.node_id, event.fence + 2)
    again = structs.replace(event, due_at=None, fence=event.fence + 2)
    history.events[at + 1 : at + 1] = [(moment, each) for each in (back, claim, again)]


def with_a_change_decided_before_the_one_before_it(history):
    instants = next(each for each in history.changed_at.values() if len(each) > 1)
    instants[1] = instants[0] - 1


def without_the_instant_of_a_change(history):
    next(iter(history.changed_at.values())).pop()


def with_a_report_that_no_target_here_makes(history):
    row = _a_success(history)
    late = RunReportedLate(row.schedule_id, row.run_id, row.run_at, "SUCCESS")
    history.events.append((history.events[-1][0], late))


def with_an_ended_run_that_is_stuck(history):
    row = _a_success(history)
    stuck = RunStuck(row.schedule_id, row.run_id, row.run_at, 1, 9_000, 1_000, "p99")
    history.events.append((history.events[-1][0], stuck))


def with_another_key(history):
    history.witness[0] = replace(history.witness[0], key="0" * 64)


def with_a_run_that_never_ends(history):
    row = _a_success(history)
    history.rows[row.run_id] = replace(row, phase="RUNNING")


def without_a_due_row(history):
    history.due = Counter()


def with_an_early_start(history):
    row = _a_success(history)
    at = next(i for i, (_, e) in enumerate(history.events) if _is(e, "run.started", row.run_id))
    history.events[at] = (row.run_at * 1000 - 1, history.events[at][1])


def with_a_start_during_a_pause(history):
    row = _a_success(history)
    at = next(i for i, (_, e) in enumerate(history.events) if _is(e, "run.started", row.run_id))
    paused = SchedulePaused(row.schedule_id)
    history.events.insert(at, (history.events[at][0], paused))


def with_a_skip_that_nothing_caused(history):
    at = next(i for i, (_, e) in enumerate(history.events) if getattr(e, "reason", "") == "overlap")
    moment, event = history.events[at]
    history.events[at] = (moment, structs.replace(event, blocked_by=None))


def with_a_stop_that_leaves_a_run_behind(history):
    at = next(i for i, (_, e) in enumerate(history.events) if e.name == "run.started")
    history.events.insert(
        at + 1, (history.events[at][0], NodeStopped(history.events[at][1].node_id))
    )


def with_two_at_a_time(history):
    """Forget that a run of a queue ended before the next one of it began."""
    ended = next(e for _, e in history.events if _ended_before_another(history, e))
    _drop(history, "run.succeeded", ended.run_id)


def with_a_node_that_is_gone_and_goes_on(history):
    at, event = next((i, e) for i, (_, e) in enumerate(history.events) if e.name == "run.started")
    history.events.insert(at, (history.events[at][0], NodeLost(event.node_id, "a-node")))


def with_a_run_that_nobody_keeps(history):
    row = _a_success(history)
    at = next(i for i, (_, e) in enumerate(history.events) if _is(e, "run.succeeded", row.run_id))
    back = RunHandedBack(row.schedule_id, row.run_id, row.run_at, 99)
    history.events[at:at] = [(history.events[at][0], back)] * 20


def with_a_node_that_never_left(history):
    history.nodes.append("a-node")


def with_a_launch_before_its_tick(history):
    _launch_at(history, _a_success(history).run_id, 0)


def with_a_launch_before_its_announcement(history):
    row = _a_success(history)
    moment = next(at for at, e in history.events if _is(e, "run.started", row.run_id))
    _launch_at(history, row.run_id, moment - 1000)


def with_a_launch_of_what_was_lost(history):
    """Have a run launched that others had decided to be lost."""
    for moment, event in history.events:
        if getattr(event, "reason", "") == "lost" and event.attempt == 1:
            _launch_at(history, event.run_id, moment + 1000)


def with_an_acknowledged_run_gone(history):
    history.manual.add(("plain", "never-there"))


def with_an_acknowledged_pause_gone(history):
    history.tokens.add("never-there")


CASES = {
    without_a_row: "silent",
    with_a_row_twice: "doubled",
    with_a_row_for_no_tick: "uncalled for",
    with_a_wrong_count: "miscounted",
    with_a_launch_twice: "doubled",
    without_a_launch: "unlaunched",
    without_an_announcement: "unannounced",
    with_an_attempt_announced_twice: "announced twice",
    with_a_change_decided_before_the_one_before_it: "unrecorded",
    without_the_instant_of_a_change: "unrecorded",
    with_a_report_that_no_target_here_makes: "illegal",
    with_an_ended_run_that_is_stuck: "illegal",
    with_another_key: "wrong key",
    with_a_run_decided_twice: "illegal",
    with_a_start_of_what_was_never_decided: "illegal",
    with_a_run_that_never_ends: "stuck",
    without_a_due_row: "stuck",
    with_an_early_start: "early",
    with_a_start_during_a_pause: "started while held",
    with_a_skip_that_nothing_caused: "no blocker",
    with_a_stop_that_leaves_a_run_behind: "left behind",
    with_two_at_a_time: "overlap",
    with_a_node_that_is_gone_and_goes_on: "illegal",
    with_a_run_that_nobody_keeps: "tossed about",
    with_a_node_that_never_left: "left behind",
    with_a_launch_before_its_tick: "early",
    with_a_launch_before_its_announcement: "unannounced",
    with_a_launch_of_what_was_lost: "late",
    with_an_acknowledged_run_gone: "gone",
    with_an_acknowledged_pause_gone: "gone",
}


@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
def test_checker_detects_a_wrong_history(killed, change):
    history = deepcopy(killed[1])
    change(history)
    assert CASES[change] in judge(history).wrong


def _a_success(history):
    return next(
        row for row in history.rows.values()
        if (row.status, row.request_id, row.first_run_at, row.attempt) == ("SUCCESS", "", None, 1)
    )  # fmt: skip


def _launch_at(history, run_id, at):
    history.witness = [
        replace(seen, at=at) if (seen.run_id, seen.attempt) == (run_id, 1) else seen
        for seen in history.witness
    ]


def _ended_before_another(history, event):
    if event.name != "run.succeeded" or event.schedule_id != "queued":
        return False
    later = [row for row in history.rows.values() if row.schedule_id == "queued" and row.attempt]
    return any(row.run_id > event.run_id for row in later)


def _is(event, name, run_id):
    return event.name == name and event.run_id == run_id


def _drop(history, name, run_id):
    history.events = [
        (at, event) for at, event in history.events if not _is(event, name, run_id)
    ]  # fmt: skip

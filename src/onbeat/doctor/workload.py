"""Checks of the workload: planning, definitions, waiting and failing runs, history, notices."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from onbeat.core.schedule import Schedule, from_definition
from onbeat.core.target_kinds import is_offered, missing_kind
from onbeat.doctor.database import is_up
from onbeat.doctor.findings import (
    Check,
    Finding,
    InstallationFacts,
    fail,
    length,
    names,
    ok,
    size,
    warn,
)
from onbeat.errors import InvalidSchedule
from onbeat.service.wait_reasons import setting_of

BEHIND, FAR_BEHIND = 10_000, 60_000  # milliseconds
WAITS_LONG = 3_600_000
PRUNE_MARGIN = 2 * 3_600_000  # a node prunes every hour, and that takes a while


def planner(facts: InstallationFacts) -> Finding | None:
    """Check how far the planner is behind."""
    store = facts.store
    if store is None or not store.overview.gate_open or not _has_planner(facts):
        return None
    now, due = store.overview.now, store.overview.next_due_at
    behind = 0 if due is None else max(0, now - due)
    n = store.overview.due
    state = f"{n} tick{'s are' if n != 1 else ' is'} due, the first for {length(behind)}"
    state = state if n else "no tick is due and undecided"
    hint = "look at the log of the node, and at the load of the machine, its disk and the database"
    if behind >= FAR_BEHIND:
        return fail("planner", state, hint)
    return warn("planner", state, hint) if behind >= BEHIND else ok("planner", state)


def gate(facts: InstallationFacts) -> Finding | None:
    """Check whether the gate is open."""
    store = facts.store
    if store is None:
        return None
    if not store.overview.gate_open:
        return warn("gate", "closed: nothing is decided and nothing starts", "onbeat gate open")
    return ok("gate", "open")


def definitions(facts: InstallationFacts) -> Finding | None:
    """Check whether every definition can be read and planned."""
    store = facts.store
    if store is None:
        return None
    broken = [name for name, text in store.definitions if _read(name, text) is None]
    if unplannable := sorted({*broken, *store.parked}):
        hint = f"onbeat show {unplannable[0]}, then define it again (onbeat apply)"
        return fail("definitions", f"{names(unplannable)} cannot be planned", hint)
    return ok("definitions", f"all can be planned: {store.overview.schedules}")


def offers(facts: InstallationFacts) -> Finding | None:
    """Check whether a node can run each schedule."""
    store = facts.store
    up = [row for row in store.overview.nodes if is_up(facts, row)] if store else []
    if not up:
        return None
    offered = {name for row in up for name in row.offers}
    unoffered = [each for each in _schedules(facts) if not is_offered(each.needs, offered)]
    if unoffered:
        need, schedule_id = unoffered[0].needs, unoffered[0].schedule_id
        problem = f"no node offers {need!r}, which {schedule_id} needs"
        more = f" ({len(unoffered)} schedules)" if len(unoffered) > 1 else ""
        if missing := missing_kind(need):
            problem = f"no package here provides {missing!r}, which {schedule_id} needs"
            hint = "install the package where a node runs, and start that node again"
            return warn("offers", f"{problem}{more}", hint)
        hint = "start a node that registers it, or change `run` of the schedule"
        if setting := setting_of(need):
            hint = f"start a node with the setting {setting}"
        return warn("offers", f"{problem}{more}", hint)
    return ok("offers", "a node can run each schedule")


def programs(facts: InstallationFacts) -> Finding | None:
    """Check whether this machine has the programs of all commands."""
    missing = [
        f"{schedule.schedule_id} ({program})"
        for schedule in _schedules(facts)
        if (program := _missing_program(schedule, facts)) is not None
    ]
    if missing:
        hint = "install it, or write its full path; ignore this if another node has it"
        return warn("programs", f"not found on this machine: {names(missing)}", hint)
    return None if facts.store is None else ok("programs", "all are on this machine")


def over(facts: InstallationFacts) -> Finding | None:
    """Check for schedules that have ended."""
    store = facts.store
    if store is None or not store.over:
        return None
    first = store.over[0]
    hint = f"onbeat delete {first}; if it follows itself, onbeat run {first} starts it again"
    return warn("over", f"{names(store.over)} will never tick again", hint)


def failing(facts: InstallationFacts) -> Finding | None:
    """Check for schedules that fail repeatedly."""
    store = facts.store
    if store is None:
        return None
    if store.failing:
        hint = f"onbeat why {store.failing[0]}; onbeat logs {store.failing[0]}"
        return warn("failing", f"{names(store.failing)} failed five times in a row or more", hint)
    return ok("failing", "none failed five times in a row")


def stuck(facts: InstallationFacts) -> Finding | None:
    """Check for runs that take too long."""
    store = facts.store
    if store is None:
        return None
    if store.stuck:
        first = store.stuck[0]
        hint = f"onbeat runs --stuck; onbeat logs {first}; onbeat cancel {first}, or set `timeout`"
        return warn("stuck", f"{names(store.stuck)} take longer than they should", hint)
    return ok("stuck", "no run takes longer than it should")


def waiting(facts: InstallationFacts) -> Finding | None:
    """Check how long runs wait."""
    store = facts.store
    if store is None:
        return None
    since, now = store.figures.waiting_since, store.overview.now
    waited = 0 if since is None else max(0, now - since)
    if waited >= WAITS_LONG:
        hint = "onbeat runs --status enqueued; onbeat why NAME shows what it waits for"
        return warn("waiting", f"a run has waited for {length(waited)}", hint)
    none = "no run waits" if since is None else f"no run has waited for more than {length(waited)}"
    return ok("waiting", none)


def history(facts: InstallationFacts) -> Finding | None:
    """Check whether runs older than `keep` are pruned."""
    store = facts.store
    if store is None:
        return None
    oldest, keep = store.first_ended, facts.usable_settings.keep
    age = 0 if oldest is None else store.overview.now - oldest
    stored = f"{store.runs} runs" + ("" if oldest is None else f", the oldest {length(age)} ago")
    if age > keep + PRUNE_MARGIN:
        problem = f"{stored}: `keep` is {length(keep)}"
        return warn("history", problem, "onbeat up: a node that is up prunes them every hour")
    return ok("history", f"{stored}, {size(store.figures.size)}")


def notices(facts: InstallationFacts) -> Finding | None:
    """Check whether notices were delivered."""
    store = facts.store
    if store is None:
        return None
    failed, in_doubt = (store.figures.outbox.get(state, 0) for state in ("failed", "in_doubt"))
    if failed or in_doubt:
        problem = f"{failed} notices failed, {in_doubt} are in doubt"
        hint = "onbeat notify list; onbeat notify test CHANNEL; check [notify.CHANNEL]"
        return warn("notices", problem, hint)
    return ok("notices", "none failed")


def _has_planner(facts: InstallationFacts) -> bool:
    rows = facts.store.overview.nodes if facts.store is not None else ()
    return any("plan" in row.roles and is_up(facts, row) for row in rows)


def _schedules(facts: InstallationFacts) -> Iterator[Schedule]:
    for name, text in facts.store.definitions if facts.store is not None else ():
        if (schedule := _read(name, text)) is not None:
            yield schedule


def _read(name: str, text: str) -> Schedule | None:
    try:
        return from_definition(name, text)
    except InvalidSchedule:
        return None


def _missing_program(schedule: Schedule, facts: InstallationFacts) -> str | None:
    target = schedule.target
    command, cwd = target.fields.get("command"), target.fields.get("cwd")
    if target.kind != "command" or target.has_templates or not isinstance(command, list | tuple):
        return None
    program = str(command[0])
    if "/" in program:
        return None if (Path(str(cwd or ".")) / program).is_file() else program
    return None if shutil.which(program, path=facts.program_path) else program


CHECKS: tuple[Check, ...] = (
    planner, gate, definitions, offers, programs, over, failing, stuck, waiting, history, notices,
)  # fmt: skip

"""Checks of how things stand: what is planned, what waits, what fails, what is kept."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from onbeat.core.schedule import Schedule, from_definition
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
from onbeat.service.wait_reasons import SETTING_OF

BEHIND, FAR_BEHIND = 10_000, 60_000  # milliseconds
WAITS_LONG = 3_600_000
PRUNED_EVERY = 2 * 3_600_000  # it is every hour, and takes its time


def planner(seen: InstallationFacts) -> Finding | None:
    """Judge how far the planner is behind."""
    standing = seen.looked.standing
    if standing is None or not standing.overview.gate_open or not _is_planned(seen):
        return None
    now, due = standing.overview.now, standing.overview.next_due_at
    behind = 0 if due is None else max(0, now - due)
    n = standing.overview.due
    told = f"{n} tick{'s are' if n != 1 else ' is'} due, the first for {length(behind)}"
    told = told if n else "no tick is due and undecided"
    hint = "look at the node's log; is the machine busy, or the disk slow?"
    if behind >= FAR_BEHIND:
        return fail("planner", told, hint)
    return warn("planner", told, hint) if behind >= BEHIND else ok("planner", told)


def gate(seen: InstallationFacts) -> Finding | None:
    """Judge whether anything may start."""
    standing = seen.looked.standing
    if standing is None:
        return None
    if not standing.overview.gate_open:
        return warn(
            "gate", "it is closed: nothing is decided and nothing starts", "onbeat gate open"
        )
    return ok("gate", "open")


def definitions(seen: InstallationFacts) -> Finding | None:
    """Judge whether every definition can be read and planned."""
    standing = seen.looked.standing
    if standing is None:
        return None
    broken = [name for name, text in standing.definitions if _read(name, text) is None]
    if wrong := sorted({*broken, *standing.parked}):
        hint = f"onbeat show {wrong[0]}; define it again"
        return fail("definitions", f"{names(wrong)} cannot be planned", hint)
    return ok("definitions", f"all can be planned: {standing.overview.schedules}")


def offers(seen: InstallationFacts) -> Finding | None:
    """Judge whether for each schedule there is a node that can run it."""
    standing = seen.looked.standing
    up = [row for row in standing.overview.nodes if is_up(seen, row)] if standing else []
    if not up:
        return None
    offered = {name for row in up for name in row.offers}
    without = [each for each in _schedules(seen) if each.target.needs not in offered]
    if without:
        need = without[0].target.needs
        told = f"no node offers {need!r}, which {without[0].schedule_id} needs"
        more = f" ({len(without)} schedules)" if len(without) > 1 else ""
        hint = "start a node that registers it, or change `run`"
        if need in SETTING_OF:
            hint = f"start a node with the setting {SETTING_OF[need]}"
        return warn("offers", f"{told}{more}", hint)
    return ok("offers", "for each schedule there is a node that can run it")


def programs(seen: InstallationFacts) -> Finding | None:
    """Judge whether the programs of commands are on this machine."""
    missing = [
        f"{schedule.schedule_id} ({program})"
        for schedule in _schedules(seen)
        if (program := _missing_program(schedule, seen)) is not None
    ]
    if missing:
        hint = "install it, or give its full path; other nodes may have it"
        return warn("programs", f"not found on this machine: {names(missing)}", hint)
    return None if seen.looked.standing is None else ok("programs", "all are on this machine")


def over(seen: InstallationFacts) -> Finding | None:
    """Judge whether there are schedules that are over."""
    standing = seen.looked.standing
    if standing is None or not standing.over:
        return None
    hint = f"onbeat delete {standing.over[0]}; one that follows itself goes on after `onbeat run`"
    return warn("over", f"{names(standing.over)} will never tick again", hint)


def failing(seen: InstallationFacts) -> Finding | None:
    """Judge which schedules fail again and again."""
    standing = seen.looked.standing
    if standing is None:
        return None
    if standing.failing:
        hint = f"onbeat logs {standing.failing[0]}"
        told = f"{names(standing.failing)} failed five times in a row or more"
        return warn("failing", told, hint)
    return ok("failing", "none failed five times in a row")


def stuck(seen: InstallationFacts) -> Finding | None:
    """Judge whether runs take too long."""
    standing = seen.looked.standing
    if standing is None:
        return None
    if standing.stuck:
        hint = f"onbeat runs --stuck; onbeat logs {standing.stuck[0]}; the field timeout ends runs"
        return warn("stuck", f"{names(standing.stuck)} take longer than they should", hint)
    return ok("stuck", "no run takes longer than it should")


def waiting(seen: InstallationFacts) -> Finding | None:
    """Judge how long runs wait."""
    standing = seen.looked.standing
    if standing is None:
        return None
    since, now = standing.figures.waiting_since, standing.overview.now
    waited = 0 if since is None else max(0, now - since)
    if waited >= WAITS_LONG:
        hint = "onbeat runs --status enqueued; onbeat why NAME says what it waits for"
        return warn("waiting", f"a run has waited for {length(waited)}", hint)
    none = "no run waits" if since is None else f"no run has waited for more than {length(waited)}"
    return ok("waiting", none)


def history(seen: InstallationFacts) -> Finding | None:
    """Judge whether what is older than `keep` is removed."""
    standing = seen.looked.standing
    if standing is None:
        return None
    oldest, keep = standing.first_ended, seen.known.keep
    age = 0 if oldest is None else standing.overview.now - oldest
    told = f"{standing.runs} runs" + ("" if oldest is None else f", the oldest {length(age)} ago")
    if age > keep + PRUNED_EVERY:
        return warn(
            "history", f"{told}: `keep` is {length(keep)}", "a node that is up removes them"
        )
    return ok("history", f"{told}, {size(standing.figures.size)}")


def notices(seen: InstallationFacts) -> Finding | None:
    """Judge whether notices arrived."""
    standing = seen.looked.standing
    if standing is None:
        return None
    failed, doubtful = (standing.figures.outbox.get(state, 0) for state in ("failed", "in_doubt"))
    if failed or doubtful:
        told = f"{failed} notices failed, {doubtful} are in doubt"
        return warn("notices", told, "is the channel's address right, and does its server answer?")
    return ok("notices", "none failed")


def _is_planned(seen: InstallationFacts) -> bool:
    standing = seen.looked.standing
    rows = standing.overview.nodes if standing is not None else ()
    return any("plan" in row.roles and is_up(seen, row) for row in rows)


def _schedules(seen: InstallationFacts) -> Iterator[Schedule]:
    standing = seen.looked.standing
    for name, text in standing.definitions if standing is not None else ():
        if (found := _read(name, text)) is not None:
            yield found


def _read(name: str, text: str) -> Schedule | None:
    try:
        return from_definition(name, text)
    except InvalidSchedule:
        return None


def _missing_program(schedule: Schedule, seen: InstallationFacts) -> str | None:
    target = schedule.target
    command, cwd = target.fields.get("command"), target.fields.get("cwd")
    if target.kind != "command" or target.has_templates or not isinstance(command, list | tuple):
        return None
    program = str(command[0])
    if "/" in program:
        return None if (Path(str(cwd or ".")) / program).is_file() else program
    return None if shutil.which(program, path=seen.search) else program


CHECKS: tuple[Check, ...] = (
    planner, gate, definitions, offers, programs, over, failing, stuck, waiting, history, notices,
)  # fmt: skip

"""How the attempts at a run went, in words: when each was made, and what came of it."""

import msgspec

from onbeat.core.explain.facts import RunFacts
from onbeat.core.runs.run import Reason, Status, WaitedFor
from onbeat.core.time.instants import rfc3339, rfc3339_ms

MOST_TRIED = 20  # attempts at a run of which the times are kept: the latest
# The error that is stored with a run whose cancellation was requested between its announcement and
# its launch: nothing of it ran.
UNLAUNCHED = "asked to end before it was launched"
SHOWN = 5  # attempts that are listed one by one: the latest
# Reasons for which a run ends while it waits, of rows from before that was kept.
WHILE_WAITING: frozenset[Reason] = frozenset({
    "superseded", "deadline", "group_full", "queue_full", "overlap", "missed", "paused", "gate_off",
    "disabled", "disabled_target", "condition",
})  # fmt: skip

# What a node has to have for the kinds that not every node offers.
HINTS = {
    "session": "a node with the setting sessions_url",
    "ray": "a node with the setting ray_address and Ray installed: docs/ray.md",
    "flow": "a node with the setting flows_panel",
    "workflow": "a node with an executor: the setting workflows_executor",
}


class AttemptSpan(msgspec.Struct, frozen=True):
    """One attempt: from its announcement until its outcome was recorded, or None if it runs."""

    attempt: int
    started_at: int | None
    ended_at: int | None
    reason: Reason | None = None  # None: it succeeded, or it runs
    exit_code: int | None = None
    error: str = ""


def ended_waiting(run: RunFacts) -> bool:
    """Return whether a run was ended while it waited to start, or to be attempted again."""
    if run.finished_at is None or run.status is Status.SUCCESS:
        return False
    if run.detail.waited_for is not None or not run.attempt:
        return True
    return run.status is not Status.CANCELED and run.reason in WHILE_WAITING


def stretches(run: RunFacts) -> list[AttemptSpan]:
    """Return the attempts at a run of which the times are known, in order."""
    found = [
        AttemptSpan(
            each.attempt, each.started_at, each.ended_at, each.reason, each.exit_code, each.error
        )
        for each in run.tried
    ]
    is_going = run.status is Status.STARTED
    if run.attempt and (is_going or (run.finished_at is not None and not ended_waiting(run))):
        reason = None if is_going else run.reason  # of one that is asked to end it is why
        last = AttemptSpan(
            run.attempt, run.started_at, run.finished_at, reason, run.exit_code,
            (run.error or "").partition("\n")[0],
        )  # fmt: skip
        found.append(last)
    return found


def describe_attempts(run: RunFacts) -> list[str]:
    """Return a sentence for each attempt at a run that has ended, the latest of them.

    Attempts in a row at which the target could not take it, and said the same, are one sentence.
    """
    found = [each for each in stretches(run) if each.ended_at is not None]
    if len(found) == 1 and not run.tried and run.attempt == 1:
        return [_how(found[0], "it")]
    alike: list[list[AttemptSpan]] = []
    for each in found:
        if alike and each.reason == "busy" and _is_like(alike[-1][-1], each):
            alike[-1].append(each)
        else:
            alike.append([each])
    sentences = [_of_all(each) for each in alike[-SHOWN:]]
    left_out = run.attempt - _handed_back(run) - sum(len(each) for each in alike[-SHOWN:])
    if found and left_out > (run.status is Status.STARTED):
        sentences.insert(0, f"{left_out} attempts before that are not listed")
    return sentences


def _handed_back(run: RunFacts) -> int:
    """Return how many attempts were announced and not launched, as far as that is known."""
    busy = sum(each.reason == "busy" for each in run.tried)
    return max(run.deferrals - busy, 0) if len(run.tried) < MOST_TRIED else 0


def _is_like(one: AttemptSpan, other: AttemptSpan) -> bool:
    return (one.reason, one.error) == (other.reason, other.error)


def _of_all(alike: list[AttemptSpan]) -> str:
    first, last = alike[0], alike[-1]
    if len(alike) == 1 or first.started_at is None or last.ended_at is None:
        return _how(last, f"attempt {last.attempt}", with_reason=True)
    when = f"from {rfc3339_ms(first.started_at)} to {rfc3339_ms(last.ended_at)}"
    return f"attempts {first.attempt} to {last.attempt} were made {when}{_outcome(last)}"


def _how(one: AttemptSpan, who: str, *, with_reason: bool = False) -> str:
    began = "" if one.started_at is None else rfc3339_ms(one.started_at)
    ended = "" if one.ended_at is None else rfc3339_ms(one.ended_at)
    match one.reason:
        case "lost":
            began = f"was announced at {began}, and " if began else "was "
            return f"{who} {began}recorded as lost at {ended}"
        case _ if one.error == UNLAUNCHED:
            announced = f"was announced at {began}, and " if began else ""
            return f"{who} {announced}ended at {ended} without being launched"
        case "launch_failed" | "invalid_target" | "busy":
            verb = f"was made at {began}, and ended at {ended}" if began else f"ended at {ended}"
        case _:
            verb = f"ran from {began} to {ended}" if began else f"ended at {ended}"
    if not with_reason:
        return f"{who} {verb}"
    return f"{who} {verb}{_outcome(one)}"


def _outcome(one: AttemptSpan) -> str:
    match one.reason:
        case None:
            return ": it succeeded"
        case "exit":
            return f": exit code {one.exit_code}"
        case "canceled" | "superseded":
            return f": {one.reason}"
        case "launch_failed":
            return f": it was not launched: {one.error}"
        case "busy":
            return f": its target could not take it: {one.error}"
        case _:
            return f": {one.reason}: {one.error}" if one.error else f": {one.reason}"


def waited(run: RunFacts) -> str:
    """Return what a run waited for that was ended before it started, and when that was."""
    if not ended_waiting(run) or run.finished_at is None or run.finished_at == run.created_at:
        return ""
    ended, due = rfc3339_ms(run.finished_at), rfc3339_ms(run.due_at)
    match run.detail.waited_for:
        case "retry":
            return f"attempt {run.attempt + 1} was due at {due}, and was dropped at {ended}"
        case None:
            return f"it was ended at {ended}, before it started"
        case kind:
            return f"it was ended at {ended}: until then it {_waits(kind, run, due)}"


def _waits(kind: WaitedFor, run: RunFacts, due: str) -> str:
    match kind:
        case "queue":
            return f"waited in the queue behind run {run.detail.behind}"
        case "due":
            return f"waited for its time to start, {due}"
        case "pause":
            return "waited for the end of a pause"
        case "node":
            hint = HINTS.get(run.needs)
            start = f" (start {hint})" if hint else ""
            return f"waited for a node that offers {run.needs}, and none was up{start}"
        case "group":
            return "waited for a place in its group"
        case "retry" | "place":
            return "waited for a free place on a node"


def standing(blocker: RunFacts, at: int) -> str:
    """Return what a run was doing at an instant at which it was in the way of another."""
    who = f"run {blocker.run_id} ({cause(blocker)})"
    found = [each for each in stretches(blocker) if each.started_at is not None]
    going = [each for each in found if _covers(each, at) and each.error != UNLAUNCHED]
    if going:
        began = rfc3339_ms(going[-1].started_at or 0)
        return f"{who} was running since {began}"
    before = [each for each in found if each.ended_at is not None and each.ended_at <= at]
    if before and before[-1].reason == "lost":
        return f"{who} was lost with its node, and not found again yet"
    return f"{who} was waiting to start"


def _covers(one: AttemptSpan, at: int) -> bool:
    return (one.started_at or 0) <= at and (one.ended_at is None or at <= one.ended_at)


def cause(run: RunFacts) -> str:
    """Return what a run is of: a tick, or what started it beside the ticks."""
    when = rfc3339(run.run_at)
    return f"tick of {when}" if not run.request_id else f"{run.triggered_by} start of {when}"


def outcome_of(blocker: RunFacts) -> str:
    """Return what became of a run that was in the way."""
    who = f"run {blocker.run_id}"
    if blocker.finished_at is None:
        if blocker.status is Status.STARTED and blocker.leased_by is None and blocker.deadline_at:
            until = f"{who} is accepted by its target, and in flight until it is reported, or until"
            free = f"onbeat cancel {blocker.run_id} frees the schedule at once"
            return f"{until} {rfc3339_ms(blocker.deadline_at)} ({free})"
        if blocker.status is Status.STARTED:
            return f"{who} is still running"
        return f"{who} has not started yet: ask why of {rfc3339(blocker.run_at)}"
    reason = f" ({blocker.reason})" if blocker.reason else ""
    without = " without starting" if not blocker.attempt else ""
    return (
        f"{who} ended at {rfc3339_ms(blocker.finished_at)}{without}: {blocker.status.value}{reason}"
    )

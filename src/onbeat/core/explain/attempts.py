"""The attempts at a run, as sentences: when each was made, and its outcome."""

import msgspec

from onbeat.core.explain.facts import RunFacts
from onbeat.core.runs.phase import AWAITS_REPORT, Status
from onbeat.core.runs.run import Reason, WaitedFor
from onbeat.core.target_kinds import KINDS, UNRESOLVED, missing_kind
from onbeat.core.time.instants import rfc3339, rfc3339_ms

MOST_TRIED = 20  # the latest attempts at a run, whose times are stored
MOST_LISTED = 5  # the latest attempts, which are listed
# The errors of runs that were canceled between their announcement and their launch: the one that is
# stored, and the one of rows from earlier versions.
UNLAUNCHED = "canceled before it was launched"
UNLAUNCHED_ERRORS = frozenset({UNLAUNCHED, "asked to end before it was launched"})
# Reasons for which a run ends while it waits, for rows written before `waited_for` was stored.
WHILE_WAITING: frozenset[Reason] = frozenset({
    "superseded", "deadline", "group_full", "queue_full", "overlap", "missed", "paused", "gate_off",
    "disabled", "disabled_target", "condition",
})  # fmt: skip

NEVER_RAN: frozenset[Reason | None] = frozenset({"launch_failed", "invalid_target", "busy"})


class AttemptSpan(msgspec.Struct, frozen=True):
    """One attempt: from its announcement until its outcome was recorded, or None if it runs."""

    attempt: int
    started_at: int | None
    ended_at: int | None
    reason: Reason | None = None  # None: it succeeded, or it runs
    exit_code: int | None = None
    error: str = ""


def ended_waiting(run: RunFacts) -> bool:
    """Return whether a run was ended while it waited to start, or for another attempt."""
    if run.finished_at is None or run.status is Status.SUCCESS:
        return False
    if run.detail.waited_for is not None or not run.attempt:
        return True
    return run.status is not Status.CANCELED and run.reason in WHILE_WAITING


def attempt_spans(run: RunFacts) -> list[AttemptSpan]:
    """Return the attempts at a run whose times are known, in order."""
    spans = [
        AttemptSpan(
            each.attempt, each.started_at, each.ended_at, each.reason, each.exit_code, each.error
        )
        for each in run.tried
    ]
    is_running = run.status is Status.STARTED
    if run.attempt and (is_running or (run.finished_at is not None and not ended_waiting(run))):
        reason = None if is_running else run.reason  # while it runs: why it is to be canceled
        last = AttemptSpan(
            run.attempt, run.started_at, run.finished_at, reason, run.exit_code,
            (run.error or "").partition("\n")[0],
        )  # fmt: skip
        spans.append(last)
    return spans


def describe_attempts(run: RunFacts) -> list[str]:
    """Return a sentence for each of the latest attempts at a run that have ended.

    Consecutive attempts that found the target busy with the same error share one sentence.
    """
    ended = [each for each in attempt_spans(run) if each.ended_at is not None]
    if len(ended) == 1 and not run.tried and run.attempt == 1:
        return [_only_attempt(ended[0])]
    alike: list[list[AttemptSpan]] = []
    for each in ended:
        if alike and each.reason == "busy" and _is_like(alike[-1][-1], each):
            alike[-1].append(each)
        else:
            alike.append([each])
    sentences = [_describe_alike(each) for each in alike[-MOST_LISTED:]]
    left_out = run.attempt - _handed_back(run) - sum(len(each) for each in alike[-MOST_LISTED:])
    if ended and left_out > (run.status is Status.STARTED):
        were = "1 earlier attempt is" if left_out == 1 else f"{left_out} earlier attempts are"
        sentences.insert(0, f"{were} not listed")
    return sentences


def _handed_back(run: RunFacts) -> int:
    """Return how many attempts were announced and then handed back, as far as is known."""
    busy = sum(each.reason == "busy" for each in run.tried)
    return max(run.deferrals - busy, 0) if len(run.tried) < MOST_TRIED else 0


def _is_like(one: AttemptSpan, other: AttemptSpan) -> bool:
    return (one.reason, one.error) == (other.reason, other.error)


def _describe_alike(alike: list[AttemptSpan]) -> str:
    first, last = alike[0], alike[-1]
    if len(alike) == 1 or first.started_at is None or last.ended_at is None:
        return f"attempt {last.attempt} {_when(last)}{_outcome(last)}"
    when = f"from {rfc3339_ms(first.started_at)} to {rfc3339_ms(last.ended_at)}"
    return f"attempts {first.attempt} to {last.attempt} were made {when}{_outcome(last)}"


def _only_attempt(one: AttemptSpan) -> str:
    """Return the sentence of a single attempt. Its reason has another sentence."""
    subject = "the attempt" if one.reason in NEVER_RAN else "it"
    return f"{subject} {_when(one)}"


def _when(one: AttemptSpan) -> str:
    began = "" if one.started_at is None else rfc3339_ms(one.started_at)
    ended = "" if one.ended_at is None else rfc3339_ms(one.ended_at)
    if one.reason == "lost":
        announced = f"was announced at {began} and " if began else "was "
        return f"{announced}recorded as lost at {ended}"
    if one.error in UNLAUNCHED_ERRORS:
        announced = f"was announced at {began} and " if began else ""
        return f"{announced}ended at {ended} without being launched"
    if not began:
        return f"ended at {ended}"
    if one.reason in NEVER_RAN:
        return f"was made at {began} and ended at {ended}"
    return f"ran from {began} to {ended}"


def _outcome(one: AttemptSpan) -> str:
    match one.reason:
        case "lost":  # it has been stated
            return f": {one.error}" if one.error else ""
        case None:
            return ": it succeeded"
        case "exit":
            return f": exit code {one.exit_code}"
        case "canceled" | "superseded":
            return f": {one.reason}"
        case "launch_failed":
            return f": it could not be launched: {one.error}"
        case "busy":
            return f": its target was busy: {one.error}"
        case _:
            return f": {one.reason}: {one.error}" if one.error else f": {one.reason}"


def waited(run: RunFacts) -> str:
    """Return what a run waited for if it was ended before it started, and when that was."""
    if not ended_waiting(run) or run.finished_at is None or run.finished_at == run.created_at:
        return ""
    ended, due = rfc3339_ms(run.finished_at), rfc3339_ms(run.due_at)
    match run.detail.waited_for:
        case "retry":
            return f"attempt {run.attempt + 1} was due at {due} and was dropped at {ended}"
        case None:
            return f"it was ended at {ended} before it started"
        case kind:
            return f"it was ended at {ended} while it waited {_waited_for(kind, run, due)}"


def _waited_for(kind: WaitedFor, run: RunFacts, due: str) -> str:
    match kind:
        case "queue":
            return f"in the queue behind run {run.detail.behind}"
        case "due":
            return f"for its due time, {due}"
        case "pause":
            return "for the end of a pause"
        case "node":
            offer = offer_words(run.needs)
            return f"for a node that offers {offer}; no such node was up{start_hint(run.needs)}"
        case "group":
            return "for a place in its group"
        case "retry" | "place":
            return "for a free place on a node"


def offer_words(needs: str) -> str:
    """Return what a node must offer for a run."""
    return needs.removeprefix(UNRESOLVED)


def start_hint(needs: str) -> str:
    """Return which node to start for what a run needs, in parentheses, if that is known."""
    if missing := missing_kind(needs):
        return f" (no package on this node provides {missing!r})"
    kind = KINDS.find(needs)
    return f" (start {kind.node_needs})" if kind is not None and kind.node_needs else ""


def blocker_state(blocker: RunFacts, at: int) -> str:
    """Return what a run was doing at the instant at which it blocked another."""
    name = f"run {blocker.run_id} ({cause(blocker)})"
    spans = [each for each in attempt_spans(blocker) if each.started_at is not None]
    running = [each for each in spans if _covers(each, at) and each.error not in UNLAUNCHED_ERRORS]
    if running:
        began = rfc3339_ms(running[-1].started_at or 0)
        return f"{name} had been running since {began}"
    before = [each for each in spans if each.ended_at is not None and each.ended_at <= at]
    if before and before[-1].reason == "lost":
        return f"{name} had lost its node and was not reattached yet"
    return f"{name} was waiting to start"


def _covers(one: AttemptSpan, at: int) -> bool:
    return (one.started_at or 0) <= at and (one.ended_at is None or at <= one.ended_at)


def cause(run: RunFacts) -> str:
    """Return what caused a run: a tick, or another kind of start."""
    when = rfc3339(run.run_at)
    return f"tick of {when}" if not run.request_id else f"{run.triggered_by} start of {when}"


def blocker_outcome(blocker: RunFacts) -> str:
    """Return the outcome of a run that blocked another."""
    name = f"run {blocker.run_id}"
    if blocker.finished_at is None:
        if blocker.phase in AWAITS_REPORT and blocker.deadline_at is not None:
            until = f"{name} was accepted by its target and is in flight until its report, or until"
            free = f"onbeat cancel {blocker.run_id} frees the schedule now"
            return f"{until} {rfc3339_ms(blocker.deadline_at)} ({free})"
        if blocker.status is Status.STARTED:
            return f"{name} is still running"
        return f"{name} has not started yet (see why at {rfc3339(blocker.run_at)})"
    reason = f" ({blocker.reason})" if blocker.reason else ""
    without = " without starting" if not blocker.attempt else ""
    ended = rfc3339_ms(blocker.finished_at)
    return f"{name} ended at {ended}{without}: {blocker.status.value}{reason}"

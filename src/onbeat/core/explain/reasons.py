"""The sentences that explain the reasons of runs, with the instants and values of the row.

Every reason has a sentence in SENTENCES. Its placeholders are filled from the run, from the policy
under which it was decided, and from the details of the decision. If a policy decided, `instead`
describes what another policy would have done.
"""

from collections.abc import Mapping, Sequence

from onbeat.core.decide.outcomes import UNREPORTED
from onbeat.core.explain.attempts import UNLAUNCHED_ERRORS, blocker_state, ended_waiting
from onbeat.core.explain.facts import Facts, RunFacts, UpFacts
from onbeat.core.policy import Policy
from onbeat.core.runs.phase import Status
from onbeat.core.runs.run import Reason
from onbeat.core.time.instants import rfc3339, rfc3339_ms

# The error of runs that a restored backup left unfinished. It is stored: do not change it.
RESTORED = "a backup was put back that was made before it ended: it may have run since"
SILENT = "its node fell silent"  # the start of the stored error of lost runs

SENTENCES: Mapping[Reason, str] = {
    "overlap": "{blocker} (overlap {overlap})",
    "queue_full": "the queue was full (queue_limit {queue_limit}, queue_keep {queue_keep}){newer}",
    "group_full": "no place in group {group} was free by its start_deadline, {deadline}",
    "missed": "missed: {missed} ({policy})",
    "coalesced": "{count} due ticks were decided together at {decided}: {run} covers them",
    "condition": "its condition (when) did not hold at {decided}",
    "rate": "the rate of {rate} was used up at {decided}",
    "gate_off": "the gate was closed{since}",
    "paused": "the schedule was paused{since}",
    "disabled": "the schedule was disabled (enabled: false)",
    "disabled_target": "its target was disabled (run.enabled: false)",
    "deadline": "it had not started by its start_deadline, {deadline}",
    "superseded": "it was replaced by a newer tick{newer}",
    "canceled": "it was canceled: {error}",
    "timeout": "it timed out: {error}",
    "lost": "it was lost: {error}",
    "exit": "the program ended with exit code {exit_code}",
    "signal": "the program was ended by a signal: {error}",
    "error": "it failed: {error}",
    "launch_failed": "it could not be launched: {error}",
    "busy": "its target was busy: {error}",
    "invalid_target": "its target cannot be started: {error}",
    "edited": "the schedule was edited at {decided} (revision {revision} to {next_revision}) "
    "while {owed} owed; an edit does not start past ticks",
}

# `edited`, of a run: an edit decided its tick as on time while no node was up.
UNSTARTED = (
    "an edit at {created} decided it as on time under revision {revision} while no node was up; "
    "it had not started when its grace ended at {deadline}"
)


def reason_sentence(reason: Reason, facts: Facts, run: RunFacts, policy: Policy) -> str:
    """Return the sentence of a reason with its values."""
    if run.error == RESTORED:
        return RESTORED
    if run.error in UNLAUNCHED_ERRORS and reason == "canceled":
        return "it was canceled before it was launched"
    decided = _decided(run)
    values = {
        "blocker": _blocker(facts, decided),
        "run": f"run {run.run_id} (tick of {rfc3339(run.run_at)})",
        "count": run.tick_count,
        "decided": rfc3339_ms(run.created_at if reason == "coalesced" else decided),
        "newer": _newer(reason, run),
        "overlap": _overlap(policy),
        "queue_limit": policy.queue_limit,
        "queue_keep": policy.queue_keep,
        "group": policy.group or "",
        "deadline": rfc3339_ms(run.deadline_at or decided),
        "created": rfc3339_ms(run.created_at),
        "missed": _missed(facts, run, policy) if reason == "missed" else "",
        "policy": _policy(run, policy),
        "rate": policy.rate,
        "since": _since(reason, run, decided),
        "exit_code": run.exit_code,
        "revision": run.revision,
        "next_revision": run.revision + 1,
        "owed": "1 tick was" if run.tick_count == 1 else f"{run.tick_count} ticks were",
        "error": (run.error or "details are not known").splitlines()[0],
    }
    is_unstarted = reason == "edited" and run.detail.start_by is not None
    return (UNSTARTED if is_unstarted else SENTENCES[reason]).format(**values)


def instead(facts: Facts, run: RunFacts, policy: Policy) -> str | None:
    """Return what another policy would have done, if a policy decided."""
    match run.reason:
        case _ if run.error == RESTORED:
            return None
        case "overlap":
            return _instead_of_skipping(facts, run, policy)
        case "queue_full" if run.detail.newer is not None:
            return "with queue_keep=first the newer tick would have been skipped instead"
        case "queue_full":
            longest = "and the run that had waited longest would have been dropped"
            return f"with queue_keep=latest it would have waited, {longest}"
        case "missed":
            return _instead_of_missing(facts, run, policy)
        case "rate":
            return "with a higher rate it could have started"
        case "group_full" | "deadline" | "busy" if run.deadline_at is not None:
            late = (run.finished_at or 0) >= run.deadline_at and run.detail.start_by is None
            return "without a start_deadline it would have kept waiting" if late else None
        case "superseded" if policy.overlap == "replace" and run.status is Status.SKIPPED:
            return "with overlap=queue it would have started in its turn"
        case "lost" if policy.on_lost == "fail" and (run.error or "").startswith(SILENT):
            return "with on_lost=retry it would have been started again, under the same key"
        case "timeout" if (run.error or "").startswith(UNREPORTED):
            return "with a longer timeout it would have stayed in flight until its report"
        case "exit" | "timeout":
            return _instead_of_failing(facts, run, policy)
        case _:
            return None


def span(ms: int) -> str:
    """Return a duration in its one or two largest units: `60 s`, `3 h 20 min`."""
    if ms < 1000:
        return f"{ms} ms"
    seconds = ms // 1000
    if seconds < 120:
        return f"{seconds} s"
    units = (("s", 1), ("min", 60), ("h", 3600), ("d", 86_400))
    large = 1 if seconds < 7200 else 2 if seconds < 172_800 else 3
    (small, size), (big, whole) = units[large - 1], units[large]
    rest = seconds % whole // size
    return f"{seconds // whole} {big}" + (f" {rest} {small}" if rest else "")


def _decided(run: RunFacts) -> int:
    """Return when the status of a row was decided."""
    return run.finished_at if run.finished_at is not None else run.created_at


def _blocker(facts: Facts, decided: int) -> str:
    if facts.blocker is None:
        return "another run, which has been pruned since, was in flight"
    return blocker_state(facts.blocker, decided)


def _overlap(policy: Policy) -> str:
    if policy.overlap == "allow" and policy.max_active is not None:
        return f"allow, max_active {policy.max_active}"
    return policy.overlap


def _newer(reason: Reason, run: RunFacts) -> str:
    if run.detail.newer is None:
        return ""
    tick = rfc3339(run.detail.newer)
    return f", {tick}" if reason == "superseded" else f": the tick of {tick} took its place"


def _policy(run: RunFacts, policy: Policy) -> str:
    """Return the policy by which a tick is missed. At its definition only the grace counts."""
    grace, window = f"grace {span(policy.grace)}", f"catchup_window {span(policy.catchup_window)}"
    if run.detail.rule == "at_definition":
        return grace
    limit = "" if policy.catchup == "none" else f", {window}"
    return f"{grace}, catchup {policy.catchup}{limit}"


def _due(facts: Facts, run: RunFacts) -> int:
    """Return when the explained tick was due; in a range, only the last has a stored due time."""
    return run.due_at if facts.at == run.run_at else facts.at * 1000


def _missed(facts: Facts, run: RunFacts, policy: Policy) -> str:
    due, decided = _due(facts, run), _decided(run)
    late = span(max(decided - due, 0))
    if run.detail.rule == "at_definition":
        return f"the schedule was defined at {rfc3339_ms(decided)}, {late} after it was due"
    down = _down(facts.up, due, lateness=policy.lateness)
    return down or f"it was decided at {rfc3339_ms(decided)}, {late} after it was due"


def _down(up: Sequence[UpFacts], due: int, *, lateness: int) -> str:
    """Return when no node was up, if that explains why a tick was not decided in time."""
    planners = [each for each in up if each.plans]
    if any(e.started_at <= due and (e.ended_at is None or due < e.ended_at) for e in planners):
        return ""
    since = max(
        (e.ended_at for e in planners if e.ended_at is not None and e.ended_at <= due), default=0
    )
    until = min((e.started_at for e in planners if e.started_at > due), default=None)
    if until is None or until <= due + lateness:
        return ""
    others = [e for e in up if not e.plans and e.started_at < until]
    subject = "no node"
    if any(e.ended_at is None or e.ended_at > since for e in others):
        subject = "no node with the role plan"
    begins = f"from {rfc3339_ms(since)} to" if since else "before"
    return f"{subject} was up {begins} {rfc3339_ms(until)}"


def _since(reason: Reason, run: RunFacts, decided: int) -> str:
    """Return when a pause or a closed gate held a tick, and the caller and note of the pause."""
    detail = run.detail
    if detail.since is None or reason not in ("paused", "gate_off"):
        return ""
    by = f", by {detail.by}" if detail.by and reason == "paused" else ""
    note = f" ({detail.note})" if detail.note and reason == "paused" else ""
    since = rfc3339_ms(detail.since)
    if detail.until is None:  # it had not ended: an edit decided the tick
        return f" since {since}{by}{note}, when an edit at {rfc3339_ms(decided)} decided it"
    return f" from {since} to {rfc3339_ms(detail.until)}{by}{note}"


def _instead_of_missing(facts: Facts, run: RunFacts, policy: Policy) -> str | None:
    late = max(_decided(run) - _due(facts, run), 0)
    match run.detail.rule:
        case "at_definition":
            return f"with a grace of at least {_at_least(late)} it would have started"
        case "catchup" if late <= policy.catchup_window:
            return "with catchup=once the latest due tick would have run and covered it"
        case "catchup":
            window = f"a catchup_window of at least {_at_least(late)}"
            return f"with catchup=once and {window} the latest due tick would have covered it"
        case "window":
            return (
                f"with a catchup_window of at least {_at_least(late)} it would have been caught up"
            )
        case _:
            return None


def _at_least(ms: int) -> str:
    """Return this duration rounded up to whole seconds."""
    return f"{-(-ms // 1000)} s"


def _instead_of_failing(facts: Facts, run: RunFacts, policy: Policy) -> str | None:
    """Return how another attempt would have followed; None if a newer tick may have waited."""
    is_last = run.end_asked_at is not None or ended_waiting(run)
    kind = None if facts.schedule is None else facts.schedule.target.facts
    is_final = run.reason == "timeout" and (kind is None or not kind.retries_timeouts)
    if is_last or is_final or (policy.overlap == "queue" and not run.request_id):
        return None
    if not policy.retry.delays:
        return "with retry=[30s] it would have been tried again"
    if policy.retry.on and run.reason not in policy.retry.on:
        return f"with {run.reason} in retry.on it would have been tried again"
    return None


def _instead_of_skipping(facts: Facts, run: RunFacts, policy: Policy) -> str | None:
    if policy.overlap == "allow":
        return "without max_active it would have started immediately"
    if run.triggered_by == "backfill" or run.attempt:
        return None
    blocker = facts.blocker
    if blocker is None:
        return "with overlap=queue it would have waited for that run"
    if blocker.finished_at is None:
        return "with overlap=queue it would start when that run ends"
    at, wait = rfc3339_ms(blocker.finished_at), policy.start_deadline
    if wait is not None and run.due_at + wait <= blocker.finished_at:
        deadline = rfc3339_ms(run.due_at + wait)
        return f"with overlap=queue it would have waited until its start_deadline, {deadline}"
    if facts.is_first_blocked:
        return f"with overlap=queue it would have started at {at}"
    return f"with overlap=queue it would have started after the ticks before it, from {at} on"

"""Why something happened at an instant, or did not: as sentences and as fields.

`explain` uses only the facts that it is passed. The sentences of reasons are in `reasons.py`, those
of attempts in `attempts.py`, those of instants that are not ticks in `why_no_tick.py`.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from onbeat.core.explain.attempts import (
    blocker_outcome,
    describe_attempts,
    offer_words,
    start_hint,
    waited,
)
from onbeat.core.explain.dst_notes import clock_change_notes
from onbeat.core.explain.facts import (
    DefinitionSpan,
    Facts,
    GroupFacts,
    NodeFacts,
    RunFacts,
    UpFacts,
)
from onbeat.core.explain.reasons import RESTORED, SENTENCES, instead, reason_sentence, span
from onbeat.core.explain.why_no_tick import why_no_tick
from onbeat.core.policy import Policy
from onbeat.core.runs.phase import AWAITS_REPORT, Status
from onbeat.core.runs.run import Reason
from onbeat.core.schedule import Schedule
from onbeat.core.target_kinds import is_offered
from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.core.time.zones import DAY
from onbeat.core.triggers.base import Trigger

__all__ = [
    "RESTORED",
    "SENTENCES",
    "DefinitionSpan",
    "Facts",
    "GroupFacts",
    "Kind",
    "NodeFacts",
    "RunFacts",
    "UpFacts",
    "Why",
    "explain",
]

LOOK_BACK = 400 * DAY  # how far back the previous tick is searched

Kind = Literal[
    "ran", "failed", "canceled", "skipped", "coalesced", "running", "waiting", "undecided",
    "to_come", "no_tick", "not_there", "forgotten",
]  # fmt: skip


NOT_A_TICK = "it is not a tick"


class Why(msgspec.Struct, frozen=True):
    """The answer: what happened and why, what another policy would do, and the nearest ticks."""

    schedule_id: str
    at: int
    kind: Kind
    headline: str
    sentences: Sequence[str]
    reason: Reason | None = None
    instead: str | None = None  # what another policy would have done
    run: RunFacts | None = None
    previous: int | None = None
    following: int | None = None
    timezone: str = "UTC"
    note: str = ""  # how a typed time was interpreted, if that is not obvious
    also: Sequence[int] = ()  # the other instant at which the clocks show the typed time

    @property
    def is_tick(self) -> bool:
        """Whether there is, was or will be a tick, or a run, at the instant."""
        return self.kind not in ("no_tick", "not_there")


def explain(facts: Facts) -> Why:
    """Explain why something happened at an instant, or did not."""
    if facts.run is not None:
        return _explain_run(facts, facts.run)
    schedule, at = facts.schedule, facts.at
    if schedule is None:
        return _explain_absence(facts)
    # How many runs there were at a past instant is not known; the number limits only later ticks.
    past = facts.past if at > facts.decided_until else replace(facts.past, runs_used=0)
    if not schedule.trigger.has(at, past):
        no_tick = why_no_tick(schedule.trigger, at, past)
        return _answer(facts, "no_tick", NOT_A_TICK, [no_tick, *_dst_notes(schedule, at)])
    if at > facts.decided_until:
        return _explain_undecided(facts, schedule)
    if at * 1000 < facts.history_from:
        headline = f"history before {rfc3339_ms(facts.history_from)} was pruned"
        return _answer(facts, "forgotten", headline, [])
    decided = f"the ticks up to {rfc3339(facts.decided_until)} are decided, and this one has no row"
    other = "another definition or other time zone data was in effect then"
    return _answer(facts, "no_tick", NOT_A_TICK, [f"{decided}: {other}"])


def _answer(
    facts: Facts,
    kind: Kind,
    headline: str,
    sentences: Sequence[str],
    *,
    reason: Reason | None = None,
    instead: str | None = None,
) -> Why:
    previous, following = _neighbours(facts)
    return Why(
        facts.schedule_id, facts.at, kind, headline, [each for each in sentences if each],
        reason, instead, facts.run, previous, following,
        _zone(facts),
    )  # fmt: skip


def _zone(facts: Facts) -> str:
    """Return the zone of the schedule at that time, or a later one."""
    definitions = [facts.schedule, *(span.schedule for span in reversed(facts.definition_spans))]
    return next((each.timezone for each in definitions if each is not None), "UTC")


def _explain_absence(facts: Facts) -> Why:
    """Explain an instant at which the schedule did not exist."""
    for number, definition in enumerate(facts.definition_spans):
        after, until = definition.after, definition.until
        if after < facts.at and (until is None or facts.at <= until):
            since = "" if definition.after == 0 else f" of {rfc3339(definition.after)}"
            if definition.is_unreadable:
                return _answer(facts, "not_there", f"its definition{since} cannot be read", [])
            again = ""
            if definition.until is not None:
                again = f" and defined again at {rfc3339(definition.until)}"
            if any(earlier.schedule is not None for earlier in facts.definition_spans[:number]):
                headline = f"the schedule was deleted at {rfc3339(definition.after)}{again}"
                return _answer(facts, "not_there", headline, [])
    first = facts.definition_spans[0] if facts.definition_spans else None
    since = rfc3339_ms(facts.created_at)
    if first is not None and first.schedule is None and first.until is not None:
        since = rfc3339(first.until)  # it was deleted and defined again since then
    headline = f"the schedule has existed since {since}"
    sentence = "earlier instants are not ticks, except in a backfill"
    return _answer(facts, "not_there", headline, [sentence])


def _neighbours(facts: Facts) -> tuple[int | None, int | None]:
    """Return the ticks before and after an instant, each by the definition of its time."""
    at, previous, following = facts.at, facts.row_before, facts.row_after
    every_run = replace(facts.past, runs_used=0)  # how many there were at that time is not known
    for definition in facts.definition_spans:
        if definition.schedule is None:
            continue
        trigger, last = definition.schedule.trigger, definition.until
        if definition.after < at - 1:
            before = at if last is None else min(at, last + 1)
            since = max(definition.after + 1, before - LOOK_BACK)
            found = _last_before(trigger, since, before, facts, is_current=last is None)
            previous = found if previous is None or (found or 0) > previous else previous
        if following is None and (last is None or last > at):
            found = trigger.look(max(at, definition.after), every_run)[0]
            if last is None and found is not None and found > facts.decided_until:
                found = trigger.look(max(at, definition.after, facts.decided_until), facts.past)[0]
            following = None if found is None or (last is not None and found > last) else found
    return previous, following


def _last_before(
    trigger: Trigger, since: int, before: int, facts: Facts, *, is_current: bool
) -> int | None:
    """Return the latest tick in `since <= tick < before`; `max_runs` limits undecided ticks."""
    every_run, decided = replace(facts.past, runs_used=0), before
    if is_current and trigger.counts_runs:
        decided = min(before, max(since, facts.decided_until + 1))
        if (found := trigger.between(decided, before, facts.past).last) is not None:
            return found
    return trigger.between(since, decided, every_run).last


def _explain_undecided(facts: Facts, schedule: Schedule) -> Why:
    """Explain a tick that has no row yet."""
    due, now = facts.due, facts.now
    is_next = due is not None and due.run_at == facts.at
    when = due.due_at if is_next and due is not None else facts.at * 1000
    sentences = [*_held(facts), *_dst_notes(schedule, facts.at)]
    if when > now:
        if is_next and when != facts.at * 1000:
            moved = f"it is due at {rfc3339_ms(when)}, moved by jitter or by hours (within)"
            sentences.insert(0, moved)
        sentences += _disabled(schedule)
        return _answer(facts, "to_come", f"it is due in {span(when - now)}", sentences)
    sentences = sentences if _held(facts) else [_not_planned(facts), *sentences]
    return _answer(facts, "undecided", "it is due and not decided yet", sentences)


def _disabled(schedule: Schedule) -> list[str]:
    """Return why a future tick will be skipped, if its definition disables it."""
    if not schedule.policy.enabled:
        return ["the schedule is disabled (enabled: false): it will be skipped"]
    if not schedule.target.is_enabled:
        return ["its target is disabled (run.enabled: false): it will be skipped"]
    return []


def _explain_run(facts: Facts, run: RunFacts) -> Why:
    policy = facts.schedule.policy if facts.schedule is not None else Policy()
    is_other = run.first_run_at is not None and facts.at != run.run_at
    match run.status:
        case Status.ENQUEUED:
            return _answer(
                facts, "waiting", f"run {run.run_id} is waiting", _waiting_sentences(facts, run)
            )
        case Status.STARTED:
            return _answer(
                facts, "running", f"run {run.run_id} is running", _running_sentences(facts, run)
            )
        case Status.SKIPPED if run.reason is not None:
            headline = f"SKIPPED ({run.reason})"
            sentences = [
                reason_sentence(run.reason, facts, run, policy),
                *_definition_sentences(run),
            ]
            sentences += [
                *describe_attempts(run),
                waited(run),
                _range(run),
                *_blocked(facts),
                _by(run),
            ]
            would = instead(facts, run, policy)
            return _answer(facts, "skipped", headline, sentences, reason=run.reason, instead=would)
        case _ if is_other:
            sentences = [
                reason_sentence("coalesced", facts, run, policy),
                _range(run),
                *describe_attempts(run),
            ]
            is_policy = run.detail.rule is None and policy.catchup == "once"
            would = "with catchup=all it would have had a separate run" if is_policy else None
            headline = f"it is covered by run {run.run_id}"
            return _answer(
                facts, "coalesced", headline, sentences, reason="coalesced", instead=would
            )
        case _:
            return _explain_ended(facts, run, policy)


def _explain_ended(facts: Facts, run: RunFacts, policy: Policy) -> Why:
    kinds: dict[Status, Kind] = {Status.SUCCESS: "ran", Status.CANCELED: "canceled"}
    sentences = [*describe_attempts(run), waited(run), _range(run), _by(run)]
    if facts.was_moved:
        sentences += _by_revision(facts, run)
    if run.reason is not None:
        sentences.insert(0, reason_sentence(run.reason, facts, run, policy))
    headline = run.status.value + (f" ({run.reason})" if run.reason else "")
    kind, would = kinds.get(run.status, "failed"), instead(facts, run, policy)
    return _answer(facts, kind, headline, sentences, reason=run.reason, instead=would)


def _definition_sentences(run: RunFacts) -> list[str]:
    if run.reason == "missed" and run.detail.rule == "at_definition":
        return ["times before the definition are not caught up"]
    return []


def _waiting_sentences(facts: Facts, run: RunFacts) -> list[str]:
    """Return what a run waits for."""
    detached = run.phase.facts.is_detached
    is_tick = not run.request_id and run.triggered_by != "backfill"
    found = _held(facts) if is_tick and not detached else _gate(facts)
    is_held = bool(found)
    found += describe_attempts(run)
    if (
        run.attempt and not run.tried and run.reason is not None
    ):  # a row written before times were stored
        found.append(f"attempt {run.attempt} ended: {run.reason}")
    if detached:
        found.append(DETACHED_RUN)
    if run.blocked_by is not None:
        found.append(f"it waits in the queue behind run {run.blocked_by}")
    elif run.due_at > facts.now:
        what = f"attempt {run.attempt + 1}" if run.attempt else "it"
        wait = span(run.due_at - facts.now)
        found.append(f"{what} is due at {rfc3339_ms(run.due_at)}, in {wait}")
    elif not is_held:
        found += _unclaimed_sentences(facts, run)
    if run.deadline_at is not None:
        found += _deadline_sentences(run, run.deadline_at)
    return [*found, _by(run), *_by_revision(facts, run)]


DETACHED_RUN = "it may still run without its node: the next node that claims it reattaches to it"


def _deadline_sentences(run: RunFacts, deadline: int) -> list[str]:
    """Return by when a run must start, and what set the limit if not its start_deadline."""
    is_limited = run.detail.start_by == deadline
    who = "the run before it" if is_limited and run.blocked_by is not None else "it"
    found = [f"it is dropped if {who} has not started by {rfc3339_ms(deadline)}"]
    if is_limited:
        edit = rfc3339_ms(run.created_at)
        found.append(f"an edit at {edit} decided it while no node was up: its grace ends then")
    return found


def _by_revision(facts: Facts, run: RunFacts) -> list[str]:
    """Return the revision by which a run starts, if it is not the current one."""
    if facts.was_moved:
        return [f"it was decided under an earlier revision and moved to revision {run.revision}"]
    if run.revision == facts.revision:
        return []
    by = f"it starts by revision {run.revision}; the schedule is at revision {facts.revision}"
    return [f"{by} (apply --update-waiting moves it)"]


def _unclaimed_sentences(facts: Facts, run: RunFacts) -> list[str]:
    """Return why a run that may start is not running yet."""
    if run.phase.facts.is_leased:
        return ["a node has claimed it: it starts immediately, or when its condition holds"]
    schedule = facts.schedule
    needs = run.needs if schedule is None or run.phase.facts.is_detached else schedule.needs
    offering = [node.name for node in facts.nodes if is_offered(needs, node.offers)]
    if not facts.nodes:
        return ["it waits for a node: no node is up (start one: onbeat up)"]
    if not offering:
        up = ", ".join(node.name for node in facts.nodes)
        offer = f"{offer_words(needs)}{start_hint(needs)}"
        return [f"it waits for a node that offers {offer}; nodes up: {up}"]
    group = facts.group
    if group is not None and len(group.used_by) >= group.places:
        used = ", ".join(
            f"run {each.run_id} of {each.schedule_id}"
            if each.schedule_id
            else "a run of another owner"
            for each in group.used_by[:5]
        )
        places = f"{group.places} place{'s' * (group.places != 1)}"
        return [f"it waits for a place in group {group.name} ({places}, used by {used})"]
    return [f"it waits for a free place on a node that offers it: {', '.join(offering)}"]


def _running_sentences(facts: Facts, run: RunFacts) -> list[str]:
    state = "is running"
    if run.started_at is not None:
        state = f"has been running since {rfc3339_ms(run.started_at)}"
    found = [*describe_attempts(run), f"attempt {run.attempt} {state}", _range(run), _by(run)]
    alive = {each.node_id for each in facts.nodes}
    if run.phase.facts.is_leased and run.leased_by not in alive:
        who = "the next node that starts" if not facts.nodes else "another node"
        found.append(f"its node is silent: whether it still runs is unknown; {who} will decide it")
    if run.stuck_at is not None:
        limit = facts.schedule.policy.warn_after if facts.schedule is not None else None
        usual = "three times its usual p99" if limit is None else f"its warn_after of {span(limit)}"
        is_this = run.started_at is None or run.started_at <= run.stuck_at
        what = "it takes" if is_this else "an earlier attempt took"
        found.append(f"{what} longer than {usual}: reported as stuck at {rfc3339_ms(run.stuck_at)}")
    if run.phase in AWAITS_REPORT and run.deadline_at is not None:
        name = f" as {run.external_id}" if run.external_id else ""
        until = rfc3339_ms(run.deadline_at)
        found.append(f"its target accepted it{name} and has until {until} to report its outcome")
    if run.phase.facts.is_to_end and run.end_asked_at is not None:
        requested = rfc3339_ms(run.end_asked_at)
        found.append(f"its cancellation was requested at {requested}: {run.reason}")
    return found


def _blocked(facts: Facts) -> list[str]:
    return [] if facts.blocker is None else [blocker_outcome(facts.blocker)]


def _range(run: RunFacts) -> str:
    if run.first_run_at is None:
        return f"it follows {run.tick_count} events" if run.tick_count > 1 else ""
    first, last = rfc3339(run.first_run_at), rfc3339(run.run_at)
    return f"one row covers {run.tick_count} ticks, from {first} to {last}"


def _by(run: RunFacts) -> str:
    """Return the cause of a run, unless it is a tick that was decided in time."""
    detail = run.detail
    by = f" by {detail.by}" if detail.by else ""
    match run.triggered_by:
        case "catchup" if detail.rule == "resumed":
            return "it was caught up when its schedule was resumed"
        case "catchup":
            late = span(max(run.created_at - run.due_at, 0))
            return f"it was caught up: it was decided at {rfc3339_ms(run.created_at)}, {late} late"
        case "backfill":
            return f"it was backfilled{by}"
        case "manual":
            return f"it was started manually{by} at {rfc3339_ms(run.created_at)}"
        case "artifact":
            kind = f" ({detail.note})" if detail.note else ""
            return f"artifact {run.request_id}{kind} triggered it at {rfc3339_ms(run.created_at)}"
        case "overdue":
            adopted = rfc3339_ms(run.created_at)
            return (
                f"it had been overdue since {detail.note} when its folder was adopted at {adopted}"
            )
        case "next_run":
            return f"nextRun in last-run.json was set to {detail.note}"
        case _:
            return ""


def _held(facts: Facts) -> list[str]:
    """Return what keeps all runs of a schedule from starting."""
    found = _gate(facts)
    if facts.is_paused:
        note = f" ({facts.pause_note})" if facts.pause_note else ""
        state = "is paused"
        if facts.paused_at:
            state = f"has been paused since {rfc3339_ms(facts.paused_at)}"
        until = f" until {rfc3339_ms(facts.paused_until)}" if facts.paused_until else ""
        by = f", by {facts.paused_by}" if facts.paused_by else ""
        found.append(f"the schedule {state}{until}{by}{note}")
    return found


def _gate(facts: Facts) -> list[str]:
    if facts.gate_closed_at is None:
        return []
    return [f"the gate has been closed since {rfc3339_ms(facts.gate_closed_at)}: nothing starts"]


def _not_planned(facts: Facts) -> str:
    if not facts.nodes:
        return "it will be decided when a node is up (start one: onbeat up)"
    return "it will be decided shortly, after any missed ticks before it"


def _dst_notes(schedule: Schedule, at: int) -> list[str]:
    """Return notes about clock changes near this instant."""
    return clock_change_notes(schedule.trigger, at - DAY, at + DAY)

"""Why something happened at an instant, or did not: in words, and as fields.

`explain` is given what is known and makes nothing up. `core/explain/reasons.py` has the sentence of each
reason, `core/explain/attempts.py` those of attempts, `core/explain/why_no_tick.py` those of instants that are not ticks.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from onbeat.core.explain.attempts import HINTS, describe_attempts, outcome_of, waited
from onbeat.core.explain.dst_notes import night_notes
from onbeat.core.explain.facts import (
    DefinitionSpan,
    Facts,
    GroupFacts,
    NodeFacts,
    RunFacts,
    UpFacts,
)
from onbeat.core.explain.reasons import RESTORED, SENTENCES, because, instead, span
from onbeat.core.explain.why_no_tick import why_no_tick
from onbeat.core.policy import Policy
from onbeat.core.runs.run import Reason, Status
from onbeat.core.schedule import Schedule
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

LOOK_BACK = 400 * DAY  # how far the tick before an instant is looked for

Kind = Literal[
    "ran", "failed", "canceled", "skipped", "coalesced", "running", "waiting", "undecided",
    "to_come", "no_tick", "not_there", "forgotten",
]  # fmt: skip


NOT_A_TICK = "it is not a tick"


class Why(msgspec.Struct, frozen=True):
    """The answer: what, why, what else would have done, and the ticks before and after."""

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
    note: str = ""  # what a time that was typed stands for, where that is not plain
    also: Sequence[int] = ()  # the other instant at which the clocks show that time

    @property
    def is_tick(self) -> bool:
        """Whether there is, was or will be a tick, or a run, at the instant."""
        return self.kind not in ("no_tick", "not_there")


def explain(facts: Facts) -> Why:
    """Say why something happened at an instant, or did not."""
    if facts.run is not None:
        return _of_run(facts, facts.run)
    schedule, at = facts.schedule, facts.at
    if schedule is None:
        return _of_nothing(facts)
    # How many runs there were by a past instant is not known; those to come are limited by it.
    past = facts.past if at > facts.decided_until else replace(facts.past, runs_used=0)
    if not schedule.trigger.has(at, past):
        ruled_out = why_no_tick(schedule.trigger, at, past)
        return _answer(facts, "no_tick", NOT_A_TICK, [ruled_out, *_nights(schedule, at)])
    if at > facts.decided_until:
        return _of_undecided(facts, schedule)
    if at * 1000 < facts.history_from:
        headline = f"history before {rfc3339_ms(facts.history_from)} is not kept any more"
        return _answer(facts, "forgotten", headline, [])
    decided = f"the ticks up to {rfc3339(facts.decided_until)} are decided, and this has no row"
    other = "when they were, another definition or other time zone data was in effect"
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
    """Return the zone of the schedule as it was then, or as it is."""
    said = [facts.schedule, *(spell.schedule for spell in reversed(facts.spells))]
    return next((each.timezone for each in said if each is not None), "UTC")


def _of_nothing(facts: Facts) -> Why:
    """Tell of an instant at which there was no such schedule."""
    for number, spell in enumerate(facts.spells):
        if spell.after < facts.at and (spell.until is None or facts.at <= spell.until):
            since = "" if spell.after == 0 else f" of {rfc3339(spell.after)}"
            if spell.is_unreadable:
                return _answer(facts, "not_there", f"its definition{since} cannot be read", [])
            again = "" if spell.until is None else f" and defined again at {rfc3339(spell.until)}"
            if any(earlier.schedule is not None for earlier in facts.spells[:number]):
                headline = f"the schedule was deleted at {rfc3339(spell.after)}{again}"
                return _answer(facts, "not_there", headline, [])
    first = facts.spells[0] if facts.spells else None
    since = rfc3339_ms(facts.created_at)
    if first is not None and first.schedule is None and first.until is not None:
        since = rfc3339(first.until)  # it was deleted since, and defined again
    headline = f"the schedule exists since {since}"
    sentence = "an instant before that is not a tick, unless a backfill asks for it"
    return _answer(facts, "not_there", headline, [sentence])


def _neighbours(facts: Facts) -> tuple[int | None, int | None]:
    """Return the ticks before and after an instant, each by what the schedule said then."""
    at, previous, following = facts.at, facts.row_before, facts.row_after
    every_run = replace(facts.past, runs_used=0)  # how many there were by then is not known
    for spell in facts.spells:
        if spell.schedule is None:
            continue
        trigger, last = spell.schedule.trigger, spell.until
        if spell.after < at - 1:
            before = at if last is None else min(at, last + 1)
            since = max(spell.after + 1, before - LOOK_BACK)
            found = _last_before(trigger, since, before, facts, is_current=last is None)
            previous = found if previous is None or (found or 0) > previous else previous
        if following is None and (last is None or last > at):
            found = trigger.look(max(at, spell.after), every_run)[0]
            if last is None and found is not None and found > facts.decided_until:
                found = trigger.look(max(at, spell.after, facts.decided_until), facts.past)[0]
            following = None if found is None or (last is not None and found > last) else found
    return previous, following


def _last_before(
    trigger: Trigger, since: int, before: int, facts: Facts, *, is_current: bool
) -> int | None:
    """Return the latest tick in `since <= tick < before`: undecided ones as `max_runs` leaves."""
    every_run, decided = replace(facts.past, runs_used=0), before
    if is_current and trigger.counts_runs:
        decided = min(before, max(since, facts.decided_until + 1))
        if (found := trigger.between(decided, before, facts.past).last) is not None:
            return found
    return trigger.between(since, decided, every_run).last


def _of_undecided(facts: Facts, schedule: Schedule) -> Why:
    """Tell of a tick that has no row yet."""
    due, now = facts.due, facts.now
    is_next = due is not None and due.run_at == facts.at
    when = due.due_at if is_next and due is not None else facts.at * 1000
    sentences = [*_held(facts), *_nights(schedule, facts.at)]
    if when > now:
        if is_next and when != facts.at * 1000:
            moved = f"it is due at {rfc3339_ms(when)}: jitter or hours (within) moved it"
            sentences.insert(0, moved)
        sentences += _disabled(schedule)
        return _answer(facts, "to_come", f"it is to come, in {span(when - now)}", sentences)
    sentences = sentences if _held(facts) else [_not_planned(facts), *sentences]
    return _answer(facts, "undecided", "it is due and not decided yet", sentences)


def _disabled(schedule: Schedule) -> list[str]:
    """Say which switch will skip a tick to come."""
    if not schedule.policy.enabled:
        return ["the schedule is disabled (enabled: false): it will be skipped"]
    if not schedule.target.is_enabled:
        return ["what it starts is disabled (run.enabled: false): it will be skipped"]
    return []


def _of_run(facts: Facts, run: RunFacts) -> Why:
    policy = facts.schedule.policy if facts.schedule is not None else Policy()
    is_other = run.first_run_at is not None and facts.at != run.run_at
    match run.status:
        case Status.ENQUEUED:
            return _answer(facts, "waiting", f"run {run.run_id} waits", _waits_for(facts, run))
        case Status.STARTED:
            return _answer(facts, "running", f"run {run.run_id} is running", _runs(facts, run))
        case Status.SKIPPED if run.reason is not None:
            headline = f"SKIPPED ({run.reason})"
            sentences = [because(run.reason, facts, run, policy), *_about_missing(run)]
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
                because("coalesced", facts, run, policy),
                _range(run),
                *describe_attempts(run),
            ]
            is_policy = run.detail.rule is None and policy.catchup == "once"
            would = "with catchup=all it would have had a run of its own" if is_policy else None
            headline = f"run {run.run_id} stands for it"
            return _answer(
                facts, "coalesced", headline, sentences, reason="coalesced", instead=would
            )
        case _:
            return _of_ended(facts, run, policy)


def _of_ended(facts: Facts, run: RunFacts, policy: Policy) -> Why:
    kinds: dict[Status, Kind] = {Status.SUCCESS: "ran", Status.CANCELED: "canceled"}
    sentences = [*describe_attempts(run), waited(run), _range(run), _by(run)]
    if facts.was_moved:
        sentences += _by_revision(facts, run)
    if run.reason is not None:
        sentences.insert(0, because(run.reason, facts, run, policy))
    headline = run.status.value + (f" ({run.reason})" if run.reason else "")
    kind, would = kinds.get(run.status, "failed"), instead(facts, run, policy)
    return _answer(facts, kind, headline, sentences, reason=run.reason, instead=would)


def _about_missing(run: RunFacts) -> list[str]:
    if run.reason == "missed" and run.detail.rule == "at_definition":
        return ["times before the definition are not caught up"]
    return []


def _waits_for(facts: Facts, run: RunFacts) -> list[str]:
    """Say what a run waits for, and who could help."""
    is_tick = not run.request_id and run.triggered_by != "backfill"
    found = _held(facts) if is_tick else _gate(facts)
    is_held = bool(found)
    found += describe_attempts(run)
    if run.attempt and not run.tried and run.reason is not None:  # kept before there were times
        found.append(f"attempt {run.attempt} ended: {run.reason}")
    if run.blocked_by is not None:
        found.append(f"it waits in the queue, behind run {run.blocked_by}")
    elif run.due_at > facts.now:
        what = f"attempt {run.attempt + 1}" if run.attempt else "it"
        wait = span(run.due_at - facts.now)
        found.append(f"{what} is due at {rfc3339_ms(run.due_at)}, in {wait}")
    elif not is_held:
        found += _who_could(facts, run)
    if run.deadline_at is not None:
        found += _given_up(run, run.deadline_at)
    return [*found, _by(run), *_by_revision(facts, run)]


def _given_up(run: RunFacts, deadline: int) -> list[str]:
    """Say by when a run has to start, and what set that limit if its start_deadline did not."""
    is_limited = run.detail.start_by == deadline
    who = "the run before it" if is_limited and run.blocked_by is not None else "it"
    found = [f"it is given up if {who} has not started by {rfc3339_ms(deadline)}"]
    if is_limited:
        edit = rfc3339_ms(run.created_at)
        found.append(f"an edit at {edit} decided it while no node was up: its grace ends then")
    return found


def _by_revision(facts: Facts, run: RunFacts) -> list[str]:
    """Say which revision a run starts by, if that is not plain."""
    if facts.was_moved:
        return [f"it was decided under an earlier revision, and moved to revision {run.revision}"]
    if run.revision == facts.revision:
        return []
    by = f"it starts as revision {run.revision} says; the schedule is at {facts.revision}"
    return [f"{by} (apply with --update-waiting moves it)"]


def _who_could(facts: Facts, run: RunFacts) -> list[str]:
    """Say why a run that may start is not claimed yet."""
    if run.leased_by is not None:
        return ["a node has claimed it: it starts at once, or when its condition holds"]
    needs = facts.schedule.target.needs if facts.schedule is not None else run.needs
    offering = [node.name for node in facts.nodes if needs in node.offers]
    if not facts.nodes:
        return ["no node is up: it waits for one (onbeat up)"]
    if not offering:
        up = ", ".join(node.name for node in facts.nodes)
        hint = f" (start {HINTS[needs]})" if needs in HINTS else ""
        return [f"it waits for a node that offers {needs}{hint}; up are {up}"]
    group = facts.group
    if group is not None and len(group.used_by) >= group.places:
        used = ", ".join(
            f"run {each.run_id} of {each.schedule_id}"
            if each.schedule_id
            else "one of another owner"
            for each in group.used_by[:5]
        )
        return [f"it waits for a place in group {group.name}, which has {group.places}: {used}"]
    return [f"it waits for a free place: {', '.join(offering)} could start it"]


def _runs(facts: Facts, run: RunFacts) -> list[str]:
    since = "" if run.started_at is None else f", since {rfc3339_ms(run.started_at)}"
    found = [*describe_attempts(run), f"attempt {run.attempt}{since}", _range(run), _by(run)]
    if run.leased_by is not None and run.leased_by not in {each.node_id for each in facts.nodes}:
        who = "the next node that starts" if not facts.nodes else "another node"
        found.append(f"its node is silent: whether it still runs is not known; {who} decides it")
    if run.stuck_at is not None:
        limit = facts.schedule.policy.warn_after if facts.schedule is not None else None
        usual = "three times its usual p99" if limit is None else f"its warn_after of {span(limit)}"
        is_this = run.started_at is None or run.started_at <= run.stuck_at
        who = "it takes" if is_this else "an earlier attempt took"
        found.append(f"{who} longer than {usual}: reported at {rfc3339_ms(run.stuck_at)}")
    if run.leased_by is None and run.deadline_at is not None:
        name = f" as {run.external_id}" if run.external_id else ""
        until = rfc3339_ms(run.deadline_at)
        found.append(f"its target has accepted it{name}, and has until {until}")
    if run.end_asked_at is not None:
        asked = rfc3339_ms(run.end_asked_at)
        found.append(f"its end was requested at {asked}: {run.reason}")
    return found


def _blocked(facts: Facts) -> list[str]:
    return [] if facts.blocker is None else [outcome_of(facts.blocker)]


def _range(run: RunFacts) -> str:
    if run.first_run_at is None:
        return f"it follows {run.tick_count} events" if run.tick_count > 1 else ""
    first, last = rfc3339(run.first_run_at), rfc3339(run.run_at)
    return f"one row stands for {run.tick_count} ticks, from {first} to {last}"


def _by(run: RunFacts) -> str:
    """Say what caused a run that is not of a tick decided in time."""
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
            return f"it was overdue since {detail.note} when its folder was adopted: {adopted}"
        case "next_run":
            return f"nextRun in last-run.json was set to {detail.note}"
        case _:
            return ""


def _held(facts: Facts) -> list[str]:
    """Say what keeps all of a schedule from starting."""
    found = _gate(facts)
    if facts.is_paused:
        note = f" ({facts.pause_note})" if facts.pause_note else ""
        since = f" since {rfc3339_ms(facts.paused_at)}" if facts.paused_at else ""
        until = f" until {rfc3339_ms(facts.paused_until)}" if facts.paused_until else ""
        by = f", by {facts.paused_by}" if facts.paused_by else ""
        found.append(f"the schedule is paused{since}{until}{by}{note}")
    return found


def _gate(facts: Facts) -> list[str]:
    if facts.gate_closed_at is None:
        return []
    return [f"the gate is closed since {rfc3339_ms(facts.gate_closed_at)}: nothing starts"]


def _not_planned(facts: Facts) -> str:
    if not facts.nodes:
        return "no node is up: it is decided when one is (onbeat up)"
    return "it is decided within moments, or when missed ticks before it have had their turn"


def _nights(schedule: Schedule, at: int) -> list[str]:
    """Return what a change of the clocks on this day has to do with it."""
    return night_notes(schedule.trigger, at - DAY, at + DAY)

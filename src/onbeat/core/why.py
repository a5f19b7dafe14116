"""Why something happened at an instant, or did not: in words, and as fields.

`explain` is given what is known and makes nothing up. Every reason that a run can have has its
sentence in SENTENCES; where a policy decided, it is said what another would have done.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from onbeat.core.decisions import Due
from onbeat.core.endings import UNREPORTED
from onbeat.core.instants import rfc3339, rfc3339_ms
from onbeat.core.misses import why_no_tick
from onbeat.core.model import NO_PAST, Past
from onbeat.core.nights import night_notes
from onbeat.core.policies import Policy, length_text
from onbeat.core.runs import Reason, Status
from onbeat.core.schedules import Schedule
from onbeat.core.zones import DAY

LOOK_BACK = 400 * DAY  # how far the tick before an instant is looked for

# What is kept with runs that a restored backup leaves behind, instead of what a policy did.
RESTORED = "a backup was put back that was made before it ended: it may have run since"

SENTENCES: Mapping[Reason, str] = {
    "overlap": "{blocker} was in flight, and overlap is {overlap}",
    "queue_full": "{queue_limit} runs were waiting already, and queue_keep is {queue_keep}",
    "group_full": "group {group} had no place until its start_deadline ({start_deadline}) ended",
    "missed": "nothing decided it within its grace ({grace}), and catchup is {catchup}",
    "coalesced": "nothing decided it in time, and {run} stands for it: catchup is {catchup}",
    "condition": "its condition (when) did not hold",
    "rate": "the rate of {rate} was used up",
    "gate_off": "the gate was closed",
    "paused": "the schedule was paused",
    "disabled": "the schedule was disabled (enabled: false)",
    "disabled_target": "what it starts was disabled (run.enabled: false)",
    "deadline": "it could not start before its start_deadline ({start_deadline}) was over",
    "superseded": "a newer tick took its place",
    "canceled": "it was canceled: {error}",
    "timeout": "it had not ended after its time was over: {error}",
    "lost": "its node fell silent after announcing it: it was started zero or one times",
    "exit": "the program ended with exit code {exit_code}",
    "signal": "the program was ended by a signal: {error}",
    "error": "it failed: {error}",
    "launch_failed": "it was not launched: {error}",
    "busy": "its target was busy whenever it was asked",
    "invalid_target": "what it starts is not there any more, or cannot be read: {error}",
    "edited": "the schedule was edited at {edited_at} (revision {revision} to {next_revision}) "
    "while {owed} owed; nothing of the past is started by an edit",
}

Kind = Literal[
    "ran", "failed", "canceled", "skipped", "coalesced", "running", "waiting", "undecided",
    "to_come", "no_tick", "not_there", "forgotten",
]  # fmt: skip


class RunFacts(msgspec.Struct, frozen=True):
    """A run, as far as it is told of."""

    run_id: int
    run_at: int
    status: Status
    due_at: int
    attempt: int = 0
    reason: Reason | None = None
    triggered_by: str = "timer"
    request_id: str = ""
    first_run_at: int | None = None
    tick_count: int = 1
    blocked_by: int | None = None
    leased_by: str | None = None
    started_at: int | None = None
    finished_at: int | None = None
    exit_code: int | None = None
    error: str | None = None
    deadline_at: int | None = None
    end_asked_at: int | None = None
    external_id: str | None = None
    schedule_id: str = ""
    created_at: int = 0
    revision: int = 0  # of the schedule: the one that it starts by
    stuck_at: int | None = None
    deferrals: int = 0  # attempts that do not count: the target was busy, or it was handed back


class NodeFacts(msgspec.Struct, frozen=True):
    """A node that is alive."""

    name: str
    offers: frozenset[str]
    node_id: str = ""


class GroupFacts(msgspec.Struct, frozen=True):
    """A group, and the runs that have its places."""

    name: str
    places: int
    used_by: Sequence[RunFacts] = ()


class Spell(msgspec.Struct, frozen=True):
    """What a schedule said for some time: it has the ticks of `after < t <= until`, in seconds."""

    schedule: Schedule | None  # None: it was not there, or cannot be read
    after: int
    until: int | None = None  # None: it still says so


class Facts(msgspec.Struct, frozen=True):
    """What is known of a schedule and an instant. Instants are milliseconds, but `at`: seconds."""

    schedule_id: str
    at: int
    now: int
    schedule: Schedule | None  # as it was then; None: it was not there, or cannot be read
    created_at: int = 0
    decided_until: int = 0  # seconds
    due: Due | None = None
    is_paused: bool = False
    pause_note: str = ""
    paused_until: int | None = None
    gate_closed_at: int | None = None
    history_from: int = 0
    past: Past = NO_PAST
    run: RunFacts | None = None  # that stands for this instant
    blocker: RunFacts | None = None
    is_first_behind: bool = True  # of those that the blocker kept from starting
    group: GroupFacts | None = None
    nodes: Sequence[NodeFacts] = ()
    spells: Sequence[Spell] = ()  # all that it ever said, as far as that is kept, in order
    revision: int = 0  # of the schedule now
    was_moved: bool = False  # the run has a later revision than it was decided under


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


def explain(facts: Facts) -> Why:
    """Say why something happened at an instant, or did not."""
    if facts.run is not None:
        return _of_run(facts, facts.run)
    schedule, at = facts.schedule, facts.at
    if schedule is None:
        return _of_nothing(facts)
    if not schedule.trigger.has(at, facts.past):
        told = why_no_tick(schedule.trigger, at, facts.past)
        return _answer(facts, "no_tick", "it is no tick", [told, *_nights(schedule, at)])
    if at > facts.decided_until:
        return _of_undecided(facts, schedule)
    if at * 1000 < facts.history_from:
        told = f"what was before {rfc3339_ms(facts.history_from)} is not kept any more"
        return _answer(facts, "forgotten", told, [])
    told = "the schedule was given this trigger later: it was no tick then"
    return _answer(facts, "no_tick", told, [])


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
        "UTC" if facts.schedule is None else facts.schedule.timezone,
    )  # fmt: skip


def _of_nothing(facts: Facts) -> Why:
    """Tell of an instant at which there was no such schedule."""
    if facts.created_at // 1000 < facts.at:
        told = "there was no such schedule then, or what it said cannot be read any more"
        return _answer(facts, "not_there", told, [])
    told = f"the schedule is there since {rfc3339_ms(facts.created_at)} only"
    sentence = "a tick before that is none, unless it is asked for by a backfill"
    return _answer(facts, "not_there", told, [sentence])


def _neighbours(facts: Facts) -> tuple[int | None, int | None]:
    """Return the ticks before and after an instant, each by what the schedule said then."""
    at, previous, following = facts.at, None, None
    every_run = replace(facts.past, runs_used=0)  # how many there were by then nobody knows
    for spell in facts.spells:
        if spell.schedule is None:
            continue
        trigger, last = spell.schedule.trigger, spell.until
        if spell.after < at - 1:
            before = at if last is None else min(at, last + 1)
            since = max(spell.after + 1, before - LOOK_BACK)
            found = trigger.between(since, before, every_run).last
            previous = previous if found is None else found
        if following is None and (last is None or last > at):
            past = facts.past if last is None else every_run
            found = trigger.look(max(at, spell.after), past)[0]
            following = None if found is None or (last is not None and found > last) else found
    return previous, following


def _of_undecided(facts: Facts, schedule: Schedule) -> Why:
    """Tell of a tick that has no row yet."""
    due, now = facts.due, facts.now
    is_next = due is not None and due.run_at == facts.at
    when = due.due_at if is_next and due is not None else facts.at * 1000
    sentences = [*_held(facts), *_nights(schedule, facts.at)]
    if when > now:
        if is_next and when != facts.at * 1000:
            sentences.insert(0, f"it is due at {rfc3339_ms(when)}: jitter, or hours, moved it")
        return _answer(facts, "to_come", f"it is to come, in {_length(when - now)}", sentences)
    sentences = sentences or [_nobody_plans(facts)]
    return _answer(facts, "undecided", "it is due and not decided yet", sentences)


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
            told = [_sentence(run.reason, facts, run, policy), _range(run), _lasted(facts.blocker)]
            instead = _instead(facts, run, policy)
            return _answer(facts, "skipped", headline, told, reason=run.reason, instead=instead)
        case _ if is_other:
            told = [_sentence("coalesced", facts, run, policy), _ended(run, policy)]
            instead = "with catchup=all it would have had a run of its own"
            headline = f"run {run.run_id} stands for it"
            return _answer(facts, "coalesced", headline, told, reason="coalesced", instead=instead)
        case _:
            return _of_ended(facts, run, policy)


def _of_ended(facts: Facts, run: RunFacts, policy: Policy) -> Why:
    kinds: dict[Status, Kind] = {Status.SUCCESS: "ran", Status.CANCELED: "canceled"}
    told = [_ended(run, policy), _range(run), _by(run)]
    if facts.was_moved:
        told += _by_revision(facts, run)
    if run.reason is not None:
        told.insert(0, _sentence(run.reason, facts, run, policy))
    headline = run.status.value + (f" ({run.reason})" if run.reason else "")
    kind = kinds.get(run.status, "failed")
    instead = _instead(facts, run, policy)
    return _answer(facts, kind, headline, told, reason=run.reason, instead=instead)


def _sentence(reason: Reason, facts: Facts, run: RunFacts, policy: Policy) -> str:
    """Return the sentence of a reason, with what it speaks of."""
    if run.error == RESTORED:
        return RESTORED
    text = SENTENCES[reason]
    if reason == "missed" and policy.catchup != "none":
        text = "it was older than the catchup_window ({catchup_window}) when it could be decided"
    if reason == "paused" and facts.pause_note and facts.is_paused:
        text = f"{text} ({facts.pause_note})"
    blocker = facts.blocker
    told = {
        "blocker": "another run" if blocker is None else f"run {blocker.run_id}",
        "run": f"run {run.run_id}",
        "overlap": policy.overlap,
        "queue_limit": policy.queue_limit,
        "queue_keep": policy.queue_keep,
        "group": policy.group or "",
        "start_deadline": _length(policy.start_deadline or 0),
        "grace": length_text(policy.grace),
        "catchup": policy.catchup,
        "catchup_window": length_text(policy.catchup_window),
        "rate": policy.rate,
        "exit_code": run.exit_code,
        "error": (run.error or "nobody said why").splitlines()[0],
        "edited_at": rfc3339_ms(run.finished_at or 0),
        "revision": run.revision,
        "next_revision": run.revision + 1,
        "owed": "1 tick was" if run.tick_count == 1 else f"{run.tick_count} ticks were",
    }
    return text.format(**told)


def _instead(facts: Facts, run: RunFacts, policy: Policy) -> str | None:
    """Return what another policy would have done, where a policy decided."""
    match run.reason:
        case _ if run.error == RESTORED:
            return None
        case "overlap":
            return _instead_of_skipping(facts, run, policy)
        case "queue_full":
            other = "latest" if policy.queue_keep == "first" else "first"
            return f"with queue_keep={other} it would have waited, and another would not"
        case "missed" if policy.catchup == "none":
            return "with catchup=once the latest of those missed would have run"
        case "missed":
            return "with a longer catchup_window it would have been caught up"
        case "rate":
            return "without a rate it would have started at once"
        case "group_full" | "deadline" | "busy":
            return "without a start_deadline it would have waited on"
        case "superseded" if policy.overlap == "replace":
            return "with overlap=queue it would have had its turn"
        case "lost":
            return "with on_lost=retry it would have been started again, under the same key"
        case "timeout" if (run.error or "").startswith(UNREPORTED):
            return "with a longer timeout its report would have been waited for"
        case "exit" | "timeout" if not policy.retry.delays:
            return "with retry=[30s] it would have been tried again"
        case "exit" | "timeout" if policy.retry.on and run.reason not in policy.retry.on:
            return f"with {run.reason} among retry.on it would have been tried again"
        case _:
            return None


def _instead_of_skipping(facts: Facts, run: RunFacts, policy: Policy) -> str:
    if policy.overlap == "allow":
        return "without max_active it would have started at once"
    blocker = facts.blocker
    if blocker is None or blocker.finished_at is None:
        return "with overlap=queue it would start when that one ends"
    at, wait = rfc3339_ms(blocker.finished_at), policy.start_deadline
    if wait is not None and run.due_at + wait <= blocker.finished_at:
        over = rfc3339_ms(run.due_at + wait)
        return (
            f"with overlap=queue it would have waited until its start_deadline was over, at {over}"
        )
    if facts.is_first_behind:
        return f"with overlap=queue it would have started at {at}"
    return f"with overlap=queue it would have started after those before it, from {at} on"


def _waits_for(facts: Facts, run: RunFacts) -> list[str]:
    """Say what a run waits for, and who could help."""
    told = _held(facts) if not run.request_id and run.triggered_by != "backfill" else _gate(facts)
    if run.attempt and run.reason is not None:
        told.append(f"attempt {run.attempt} ended: {run.reason}")
    if run.blocked_by is not None:
        told.append(f"it waits in the queue, behind run {run.blocked_by}")
    elif run.due_at > facts.now:
        told.append(f"it is due at {rfc3339_ms(run.due_at)}, in {_length(run.due_at - facts.now)}")
    elif not told:
        told += _who_could(facts, run)
    if run.deadline_at is not None:
        told.append(f"it is skipped if it has not started by {rfc3339_ms(run.deadline_at)}")
    return [*told, *_by_revision(facts, run)]


def _by_revision(facts: Facts, run: RunFacts) -> list[str]:
    """Say which revision a run starts by, if that is not plain."""
    if facts.was_moved:
        return [f"it was decided under an earlier revision, and moved to revision {run.revision}"]
    if run.revision == facts.revision:
        return []
    told = f"it starts as revision {run.revision} says; the schedule is at {facts.revision}"
    return [f"{told} (apply with --update-waiting moves it)"]


def _who_could(facts: Facts, run: RunFacts) -> list[str]:
    """Say why nobody has claimed a run yet that may start."""
    if run.leased_by is not None:
        return ["a node has claimed it: it starts at once, or when its condition holds"]
    needs = facts.schedule.target.needs if facts.schedule is not None else ""
    offering = [node.name for node in facts.nodes if needs in node.offers]
    if not facts.nodes:
        return ["no node is up: it waits for one (onbeat up)"]
    if not offering:
        up = ", ".join(node.name for node in facts.nodes)
        hint = " (one with the setting sessions_url)" if needs == "session" else ""
        return [f"it waits for a node that offers {needs}{hint}; up are {up}"]
    group = facts.group
    if group is not None and len(group.used_by) >= group.places:
        used = ", ".join(
            f"run {each.run_id} of {each.schedule_id}" if each.schedule_id else "somebody else's"
            for each in group.used_by[:5]
        )
        return [f"it waits for a place in group {group.name}, which has {group.places}: {used}"]
    return [f"it waits for a free place: {', '.join(offering)} could start it"]


def _runs(facts: Facts, run: RunFacts) -> list[str]:
    since = "" if run.started_at is None else f", since {rfc3339_ms(run.started_at)}"
    told = [f"attempt {run.attempt}{since}", _range(run), _by(run)]
    if run.leased_by is not None and run.leased_by not in {each.node_id for each in facts.nodes}:
        told.append("its node has fallen silent: whether it still runs is not known, and decided")
        told[-1] += " by the next that starts" if not facts.nodes else " by another in moments"
    if run.stuck_at is not None:
        told.append(f"it takes longer than it should: reported at {rfc3339_ms(run.stuck_at)}")
    if run.leased_by is None and run.deadline_at is not None:
        name = f" as {run.external_id}" if run.external_id else ""
        told.append(
            f"its target has accepted it{name}, and has until {rfc3339_ms(run.deadline_at)}"
        )
    if run.end_asked_at is not None:
        told.append(f"it was asked to end at {rfc3339_ms(run.end_asked_at)}: {run.reason}")
    return told


def _ended(run: RunFacts, policy: Policy) -> str:
    if run.finished_at is None or not run.attempt:
        return ""
    n, most = run.attempt - run.deferrals, len(policy.retry.delays) + 1
    tries = f" at attempt {n} of {most}" if n > 1 else ""
    if run.started_at is None:
        return f"it ended at {rfc3339_ms(run.finished_at)}{tries}"
    return f"it ran from {rfc3339_ms(run.started_at)} to {rfc3339_ms(run.finished_at)}{tries}"


def _lasted(blocker: RunFacts | None) -> str:
    if blocker is None:
        return ""
    if blocker.started_at is None:
        when = rfc3339(blocker.run_at)
        return f"run {blocker.run_id} has not started yet: ask why of {when}"
    until = "it is still going" if blocker.finished_at is None else rfc3339_ms(blocker.finished_at)
    if (
        blocker.finished_at is None
        and blocker.leased_by is None
        and blocker.deadline_at is not None
    ):
        until = f"its target has accepted it, and has until {rfc3339_ms(blocker.deadline_at)} "
        until += f"to report it (onbeat cancel {blocker.run_id} frees the schedule at once)"
    return f"run {blocker.run_id} started at {rfc3339_ms(blocker.started_at)}; its end: {until}"


def _range(run: RunFacts) -> str:
    if run.first_run_at is None:
        return f"it follows {run.tick_count} events" if run.tick_count > 1 else ""
    first, last = rfc3339(run.first_run_at), rfc3339(run.run_at)
    return f"one row stands for {run.tick_count} ticks, from {first} to {last}"


def _by(run: RunFacts) -> str:
    told = {
        "catchup": "it was missed, and caught up",
        "backfill": "somebody asked for it afterwards",
        "manual": "somebody started it by hand",
    }
    return told.get(run.triggered_by, "")


def _held(facts: Facts) -> list[str]:
    """Say what keeps all of a schedule from starting."""
    told = _gate(facts)
    if facts.is_paused:
        note = f" ({facts.pause_note})" if facts.pause_note else ""
        until = f" until {rfc3339_ms(facts.paused_until)}" if facts.paused_until else ""
        told.append(f"the schedule is paused{until}{note}")
    return told


def _gate(facts: Facts) -> list[str]:
    if facts.gate_closed_at is None:
        return []
    return [f"the gate is closed since {rfc3339_ms(facts.gate_closed_at)}: nothing starts"]


def _nobody_plans(facts: Facts) -> str:
    if not facts.nodes:
        return "no node is up: it is decided when one is (onbeat up)"
    return "it is decided within moments, or when missed ticks before it have had their turn"


def _nights(schedule: Schedule, at: int) -> list[str]:
    """Return what a change of the clocks on this day has to do with it."""
    return night_notes(schedule.trigger, at - DAY, at + DAY)


def _length(ms: int) -> str:
    """Return a length in its two largest units."""
    seconds, parts = ms // 1000, []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if seconds >= size:
            parts.append(f"{seconds // size}{unit}")
            seconds %= size
    return " ".join(parts[:2]) or "less than a second"

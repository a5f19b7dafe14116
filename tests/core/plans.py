"""A short notation of plans, for tests of decisions.

It is New Year's Day. Existing runs were planned for noon, and the first undecided tick is at 13:00
by default. Decisions are written as text: `launch 13:00`,
`catchup 13:00..17:00 (5)`, `skip 14:00 overlap 13:00`.
"""

from msgspec.structs import replace

from onbeat.core.decide.plan import plan
from onbeat.core.runs.apply import idle_phase
from onbeat.core.runs.decisions import Launch, Plan, Queue, Release, RequestCancel, Skip, Supersede
from onbeat.core.runs.phase import STARTED, Phase
from onbeat.core.runs.run import Run
from onbeat.core.time.instants import parse_instant, rfc3339
from onbeat.core.triggers.past import NO_PAST

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
NOON = parse_instant("2026-01-01T12:00:00Z")


def at(text):
    """Return an instant of the day in the seconds of a `run_at`: `13:00`, or `13:00:05`."""
    return parse_instant(f"2026-01-01T{text if len(text) > 5 else text + ':00'}Z")


def ms(text):
    """Return an instant of the day in milliseconds."""
    return at(text) * 1000


def clock(run_at):
    """Return an instant as tests write it, with its date if it is not New Year's Day."""
    text = rfc3339(run_at).removesuffix("Z").removesuffix(":00")
    return text.removeprefix("2026-01-01T")


def words(decision):
    """Return one decision as text."""
    if isinstance(decision, Supersede):
        how = "supersede" if decision.reason == "superseded" else f"drop ({decision.reason})"
        return f"{how} {clock(decision.run.run_at)}"
    if isinstance(decision, RequestCancel):
        return f"end {clock(decision.run.run_at)}"
    if isinstance(decision, Release):
        return f"release {clock(decision.run.run_at)}"
    tick = decision.tick
    ticks = clock(tick.run_at)
    if tick.first_run_at is not None:
        ticks = f"{clock(tick.first_run_at)}..{ticks} ({tick.count})"
    match decision:
        case Launch(triggered_by=by):
            return f"{'launch' if by == 'timer' else by} {ticks}"
        case Queue():
            return f"queue {ticks} behind {clock(decision.behind)}"
        case Skip(blocked_by=None):
            return f"skip {ticks} {decision.reason}"
        case Skip():
            return f"skip {ticks} {decision.reason} {clock(decision.blocked_by)}"


def lines(decisions):
    """Return decisions as text."""
    return list(map(words, decisions.decisions if isinstance(decisions, Plan) else decisions))


def decided(schedule, *unfinished, now, first="13:00", past=NO_PAST, **options):
    """Plan a schedule whose first undecided tick is `first`; an instant is a text or a number."""
    run_at, now = (at(first), ms(now) if isinstance(now, str) else now)
    return plan(schedule, run_at, unfinished, past, now=now, **options)


def a_run(when="12:00", phase=Phase.RUNNING, **fields):
    """Return an unfinished run of the tick at `when`: started by default."""
    run_at = at(when) if isinstance(when, str) else when
    if fields.get("ending") and phase is Phase.RUNNING:
        phase = Phase.CANCELING
    attempt = 1 if phase in STARTED else 0
    given = {"due_at": run_at * 1000, "created_at": run_at * 1000, "attempt": attempt} | fields
    return Run(run_at % 86_400, run_at, phase, **given)


def waiting(when="12:00", **fields):
    """Return a run that waits to be claimed."""
    run = a_run(when, Phase.WAITING, **fields)
    return replace(run, phase=idle_phase(run))


def claimed(when="12:00", **fields):
    """Return a run that a node has claimed and will announce."""
    return a_run(when, Phase.CLAIMED, **fields)


def accepted(when="12:00", **fields):
    """Return a run that its target has accepted and is to report."""
    return a_run(when, Phase.ACCEPTED, **fields)


def retrying(when="12:00", *, due="14:30", **fields):
    """Return a run that failed once and is to be attempted again."""
    return waiting(when, attempt=1, due_at=ms(due), **fields)


def queued(when="12:00", *, behind=1, **fields):
    """Return a run that waits for another to end."""
    return a_run(when, Phase.QUEUED, blocked_by=behind, **fields)

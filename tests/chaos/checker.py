"""The judge: what the rows, the events and the witness of the targets say about each other.

It knows the rules of DESIGN 2, 4 and 5 by itself: ticks are counted here by plain arithmetic, and
of the product only the key of a run and the form of its events are used.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from onbeat.core.runs.run import run_key
from onbeat.events import AnyEvent
from tests.chaos.history import UNFINISHED, History

CHANGES = ("schedule.created", "schedule.changed", "schedule.deleted")  # of what one says
LAUNCHED_FOR_SURE = ("success", "exit")  # an attempt that ended so did run
SURELY_NOT = ("handed back", "launch_failed")
TICK = 50  # milliseconds by which the clock of the witness may seem to be behind
LATE = 500  # milliseconds from when a process is begun until it has left its line
MOST_HANDED_BACK = 10  # times that a run may be: more often, somebody takes what it cannot start


@dataclass(slots=True)
class Verdict:
    """What is wrong, by kind, and what was counted on the way."""

    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    runs: int = 0
    ticks: int = 0  # that were to have a row
    ranges: int = 0  # rows that stand for several ticks
    attempts: int = 0  # announced
    nodes: int = 0  # that joined, some of them more than once
    handed_back: int = 0
    lost: int = 0  # attempts announced, and then silence
    lost_launched: int = 0  # of those, how many did run

    def say(self, kind: str, text: str) -> None:
        self.wrong[kind].append(text)


def judge(history: History) -> Verdict:
    """Hold a history against every rule."""
    verdict = Verdict(runs=len(history.rows))
    lives = _walk(history, verdict)
    _check_launches(history, lives, verdict)
    _check_times(history, lives, verdict)
    _check_keys(history, verdict)
    _check_ticks(history, verdict)
    _check_ends(history, lives, verdict)
    return verdict


# -- the way of each run, by the events


@dataclass(slots=True)
class _Life:
    """A run, as its events tell it."""

    run_id: int
    schedule_id: str
    run_at: int
    due_at: int = 0
    manual: bool = False
    status: str = ""
    attempt: int = 0
    fence: int = 0
    claimed_by: str = ""
    started_by: str = ""
    handed_back: int = 0  # how often it was
    tried: int = 0  # attempts that were announced and not handed back
    announced: dict[int, int] = field(default_factory=dict)  # when each attempt was
    ends: dict[int, str] = field(default_factory=dict)  # how each attempt that was announced ended
    ended: dict[int, int] = field(default_factory=dict)  # and when
    birth: int = 0  # how often its schedule had been created by then

    @property
    def in_the_way(self) -> bool:
        """Whether it may stand in the way of a fresh tick: a retry does from when it is claimed."""
        waits = self.status == "ENQUEUED" and (not self.tried or bool(self.claimed_by))
        return not self.manual and (waits or self.status == "STARTED")


class _World:
    """What was true at a commit."""

    def __init__(self) -> None:
        self.lives: dict[int, _Life] = {}
        self.started: dict[str, set[int]] = defaultdict(set)  # tick runs, by schedule
        self.last_first: dict[str, int] = {}  # the latest tick that was started first, by schedule
        self.policy: dict[str, dict[str, object]] = {}
        self.births: Counter[str] = Counter()
        self.paused: set[str] = set()
        self.nodes: set[str] = set()  # those that may start runs
        self.is_open = True


def _walk(history: History, verdict: Verdict) -> dict[int, _Life]:
    """Follow the events, and hold each against what was true when it was committed."""
    world = _World()
    for at, event in history.events:
        if event.name.startswith("run."):
            life = _life(world, history, event, at, verdict)
            _step(world, life, event, at, verdict)
        elif event.name.startswith("node."):
            _count_node(world, event, verdict)
        else:
            _change(world, event, verdict)
    return world.lives


def _change(world: _World, event: AnyEvent, verdict: Verdict) -> None:
    """Take note of what a person did."""
    match event.name:
        case "schedule.created" | "schedule.changed":
            world.policy[event.schedule_id] = json.loads(event.definition)
            if event.name == "schedule.created":
                world.births[event.schedule_id] += 1
                world.paused.discard(event.schedule_id)
        case "schedule.paused":
            world.paused.add(event.schedule_id)
        case "schedule.resumed":
            world.paused.discard(event.schedule_id)
        case "schedule.parked":
            verdict.say("illegal", f"{event.schedule_id} was parked: {event.error}")
        case "gate.changed":
            world.is_open = event.open


def _count_node(world: _World, event: AnyEvent, verdict: Verdict) -> None:
    """Take note of who joined and who is gone; whoever leaves in good order leaves nothing behind."""
    if event.name == "node.started":
        verdict.nodes += 1
        world.nodes.add(event.node_id)
        return
    world.nodes.discard(event.node_id)
    left = [
        life.run_id
        for life in world.lives.values()
        if life.status == "STARTED" and life.started_by == event.node_id
    ]
    if left:
        how = "stopped in good order" if event.name == "node.stopped" else "was given up"
        verdict.say("left behind", f"{event.node_id} {how} with {left} started")


def _life(world: _World, history: History, event: AnyEvent, at: int, verdict: Verdict) -> _Life:
    life = world.lives.get(event.run_id)
    if life is None:
        if "" not in _legal(event):
            verdict.say("illegal", f"run {event.run_id} begins with {event.name}")
        row = history.rows.get(event.run_id)
        due_at = getattr(event, "due_at", None) or at
        life = _Life(event.run_id, event.schedule_id, event.run_at, due_at)
        life.manual = row is not None and row.request_id != ""
        life.birth = world.births[event.schedule_id]
        world.lives[event.run_id] = life
    return life


LEGAL = {  # from which states an event may come
    "run.enqueued": ("", "ENQUEUED"),
    "run.skipped": ("", "ENQUEUED"),
    "run.released": ("ENQUEUED",),
    "run.claimed": ("ENQUEUED",),
    "run.started": ("ENQUEUED",),
    "run.handed_back": ("ENQUEUED", "STARTED"),
    "run.moved": ("ENQUEUED",),
    "run.stuck": ("STARTED",),
    "run.succeeded": ("STARTED",),
    "run.retrying": ("STARTED",),
    "run.failed": ("ENQUEUED", "STARTED"),
    "run.canceled": ("ENQUEUED", "STARTED"),
}


def _legal(event: AnyEvent) -> tuple[str, ...]:
    just_decided = event.name == "run.started" and event.is_first_event
    return ("",) if just_decided else LEGAL.get(event.name, ())


def _step(world: _World, life: _Life, event: AnyEvent, at: int, verdict: Verdict) -> None:
    name, was = event.name, life.status
    if was not in _legal(event):
        verdict.say("illegal", f"run {life.run_id}: {name} when it was {was or 'not there'}")
    fence = getattr(event, "fence", None)
    if fence is not None:
        if fence < life.fence:
            verdict.say("illegal", f"run {life.run_id}: fence {fence} after {life.fence}")
        life.fence = fence
    match name:
        case "run.enqueued":
            life.status = "ENQUEUED"
        case "run.skipped":
            life.status = "SKIPPED"
            _check_blocker(world, event, verdict)
        case "run.claimed":
            life.claimed_by = event.node_id
            _check_node(world, life, event, verdict)
        case "run.started":
            _check_start(world, life, event, at, verdict)
            life.status, life.attempt, life.tried = "STARTED", event.attempt, life.tried + 1
            life.started_by, life.announced[event.attempt] = event.node_id, at
            if not life.manual:
                world.started[life.schedule_id].add(life.run_id)
        case "run.succeeded" | "run.failed" | "run.canceled" | "run.retrying":
            if was == "STARTED":
                reason = getattr(event, "reason", "canceled")
                life.ends[life.attempt] = "success" if name == "run.succeeded" else reason
                life.ended[life.attempt] = at
            life.status = "ENQUEUED" if name == "run.retrying" else name
            life.due_at = getattr(event, "due_at", life.due_at)
        case "run.handed_back":
            verdict.handed_back += 1
            life.handed_back += 1
            if life.handed_back == MOST_HANDED_BACK + 1:
                verdict.say("tossed about", f"run {life.run_id} was handed back again and again")
            if was == "STARTED":
                life.ends[life.attempt] = "handed back"
                life.tried -= 1
            if event.attempt != (life.attempt if was == "STARTED" else 0):
                verdict.say("illegal", f"run {life.run_id}: attempt {event.attempt} handed back")
            life.status, life.claimed_by = "ENQUEUED", ""
    if life.status != "STARTED":
        world.started[life.schedule_id].discard(life.run_id)


def _check_start(world: _World, life: _Life, event: AnyEvent, at: int, verdict: Verdict) -> None:
    """Nothing starts early, unasked, unclaimed, beside another, or out of turn."""
    verdict.attempts += 1
    told = f"attempt {event.attempt} at run {life.run_id} of {life.schedule_id}"
    if event.attempt in life.announced:
        verdict.say("announced twice", told)
    if event.attempt != life.attempt + 1:
        verdict.say("illegal", f"{told} follows attempt {life.attempt}")
    if at < max(life.due_at, life.run_at * 1000):
        verdict.say("early", f"{told} was announced before it was due")
    if life.claimed_by not in ("", event.node_id):
        verdict.say("illegal", f"{told} was announced by another node than claimed it")
    life.claimed_by = ""
    _check_node(world, life, event, verdict)
    if not world.is_open:
        verdict.say("started while held", f"{told}: the gate was closed")
    if life.manual:
        return
    if life.schedule_id in world.paused:
        verdict.say("started while held", f"{told}: it was paused")
    overlap = world.policy[life.schedule_id].get("overlap", "skip")
    others = world.started[life.schedule_id] - {life.run_id}
    if overlap != "allow" and others:
        verdict.say("overlap", f"{told} was started beside {sorted(others)}")
    first = life.tried == 0
    if overlap == "queue" and first:
        if life.run_at < world.last_first.get(life.schedule_id, 0):
            verdict.say("out of turn", f"{told} was started after a later tick")
        world.last_first[life.schedule_id] = life.run_at


def _check_node(world: _World, life: _Life, event: AnyEvent, verdict: Verdict) -> None:
    """Whoever is not on the list, or not any more, takes nothing."""
    if event.node_id not in world.nodes:
        verdict.say("illegal", f"run {life.run_id}: {event.name} by {event.node_id}, which is gone")


def _check_blocker(world: _World, event: AnyEvent, verdict: Verdict) -> None:
    """A tick that was skipped because of another run has one that was in the way."""
    if event.reason != "overlap":
        return
    blocker = world.lives.get(event.blocked_by)
    if blocker is None or not blocker.in_the_way:
        state = "not there" if blocker is None else f"{blocker.status}, attempt {blocker.attempt}"
        verdict.say("no blocker", f"run {event.run_id} names {event.blocked_by}, which was {state}")


# -- the launches, by the witness


def _check_launches(history: History, lives: dict[int, _Life], verdict: Verdict) -> None:
    """Every attempt that was announced was launched once; a lost one at most once."""
    launched = Counter((seen.run_id, seen.attempt) for seen in history.witness)
    announced = {(life.run_id, attempt) for life in lives.values() for attempt in life.ends}
    for run_id, attempt in sorted(launched.keys() | announced):
        times = launched[run_id, attempt]
        life = lives.get(run_id)
        end = life.ends.get(attempt) if life is not None else None
        if life is not None and end is None and (life.status, life.attempt) == ("STARTED", attempt):
            end = "not ended"
        told = f"attempt {attempt} at run {run_id} ({life and life.schedule_id}, {end})"
        if end is None:
            verdict.say("unannounced", f"{told} was launched {times} times")
        if times > 1 or (times and end in SURELY_NOT):
            verdict.say("doubled", f"{told} was launched {times} times")
        if not times and end in LAUNCHED_FOR_SURE:
            verdict.say("unlaunched", f"{told} was not launched")
        if end == "lost":
            verdict.lost += 1
            verdict.lost_launched += times


def _check_times(history: History, lives: dict[int, _Life], verdict: Verdict) -> None:
    """Nothing is launched before its tick, before it is announced, or when it was decided to be lost.

    A node that is halted between its last look at the clock and the launch cannot know.
    """
    for seen in history.witness:
        life = lives.get(seen.run_id)
        if life is None or seen.attempt not in life.announced:
            continue  # it is unannounced
        told = f"attempt {seen.attempt} at run {seen.run_id} ({life.schedule_id}) was launched"
        if seen.at < life.run_at * 1000 - TICK:
            verdict.say("early", f"{told} {life.run_at * 1000 - seen.at} ms before its tick")
        if seen.at < life.announced[seen.attempt] - TICK:
            before = life.announced[seen.attempt] - seen.at
            verdict.say("unannounced", f"{told} {before} ms before it was announced")
        if (seen.run_id, seen.attempt) in history.halted or life.ends.get(seen.attempt) != "lost":
            continue
        if seen.at > life.ended[seen.attempt] + LATE:
            after = seen.at - life.ended[seen.attempt]
            verdict.say("late", f"{told} {after} ms after it was told to be lost")


def _check_keys(history: History, verdict: Verdict) -> None:
    """A run has one key, on each of its attempts: the one that can be computed from its row."""
    for seen in history.witness:
        row = history.rows.get(seen.run_id)
        if row is None:
            continue  # it is unannounced
        key = run_key(row.schedule_id, row.run_at, row.request_id)
        if (seen.key, seen.schedule_id) != (key, row.schedule_id):
            verdict.say("wrong key", f"attempt {seen.attempt} at run {seen.run_id} had {seen.key}")


# -- the ticks, by arithmetic


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A definition, from after one second up to another."""

    every: int  # seconds; 0: no ticks before the end
    after: int
    until: int

    def ticks(self, first: int, last: int) -> Iterator[int]:
        first, last = max(first, self.after + 1), min(last, self.until)
        if self.every:
            yield from range(-(-first // self.every) * self.every, last + 1, self.every)


def _check_ticks(history: History, verdict: Verdict) -> None:
    """Each tick of each definition, from its creation on, is covered by exactly one row."""
    for schedule_id, stretches in _stretches(history, verdict).items():
        needed = {tick for each in stretches for tick in each.ticks(0, each.until)}
        covered: Counter[int] = Counter()
        verdict.ticks += len(needed)
        for row in history.rows.values():
            if row.schedule_id != schedule_id or row.request_id:
                continue
            first = row.run_at if row.first_run_at is None else row.first_run_at
            ticks = [tick for each in stretches for tick in each.ticks(first, row.run_at)]
            verdict.ranges += row.first_run_at is not None
            covered.update(ticks or [row.run_at])
            if len(ticks) != row.tick_count and row.run_at in needed:
                told = f"run {row.run_id} of {schedule_id} says {row.tick_count} ticks"
                verdict.say("miscounted", f"{told}, but there are {len(ticks)}")
        for tick in sorted(needed - covered.keys()):
            verdict.say("silent", f"{schedule_id} has no row for its tick {tick}")
        for tick, times in sorted(covered.items()):
            if tick not in needed:
                verdict.say("uncalled for", f"{schedule_id} has a row for {tick}, which is no tick")
            elif times > 1:
                verdict.say("doubled", f"{schedule_id} has {times} rows for its tick {tick}")


def _stretches(history: History, verdict: Verdict) -> dict[str, list[_Stretch]]:
    """Return by which definition the ticks of each schedule are to be counted, and when."""
    found: dict[str, list[_Stretch]] = defaultdict(list)
    current: dict[str, tuple[int, int]] = {}
    end = max((at for at, _ in history.events), default=0) // 1000
    for at, event in _changes(history, verdict):
        now = at // 1000
        if event.name == "schedule.deleted":
            found[event.schedule_id].append(_Stretch(*current.pop(event.schedule_id), now))
            continue
        every = _seconds(event.definition)
        if event.schedule_id in current and current[event.schedule_id][0] != every:
            found[event.schedule_id].append(_Stretch(*current.pop(event.schedule_id), now))
        current.setdefault(event.schedule_id, (every, now))
    for schedule_id, (every, after) in current.items():
        # The last definition has no ticks of its own, so nothing is undecided in the end.
        found[schedule_id].append(_Stretch(every, after, end))
    return found


def _changes(history: History, verdict: Verdict) -> Iterator[tuple[int, AnyEvent]]:
    """Yield the changes of what schedules say, each with the instant that the store decided by.

    That instant lies between two events: after the change before it was written, since one holds
    the schedule until it is committed; and not after its own.
    """
    left = {name: iter(instants) for name, instants in history.changed_at.items()}
    written: dict[str, int] = {}
    for at, event in history.events:
        if event.name not in CHANGES:
            continue
        schedule_id = event.schedule_id
        decided = next(left.get(schedule_id, iter(())), None)
        if decided is None or not written.get(schedule_id, 0) <= decided <= at:
            told = f"{event.name} of {schedule_id} at {at} has the instant {decided}"
            verdict.say("unrecorded", told)
            decided = at
        written[schedule_id] = at
        yield decided, event
    for schedule_id, instants in left.items():
        for decided in instants:
            verdict.say("unrecorded", f"{schedule_id} changed at {decided} without an event")


def _seconds(definition: str) -> int:
    every = json.loads(definition).get("every")
    return 0 if every is None else int(every.removesuffix("s"))


# -- the end


def _check_ends(history: History, lives: dict[int, _Life], verdict: Verdict) -> None:
    """Nothing is stuck, nothing acknowledged is gone, rows and events agree, and the database is whole."""
    iterations = Counter()
    for row in history.rows.values():
        life = lives.get(row.run_id)
        if row.status in UNFINISHED:
            told = f"run {row.run_id} of {row.schedule_id} is {row.status}, attempt {row.attempt}"
            verdict.say("stuck", told)
        if life is None or life.attempt != row.attempt:
            verdict.say("illegal", f"run {row.run_id} has attempt {row.attempt} without its event")
        elif row.attempt:
            iterations[row.schedule_id, life.birth, row.iteration] += 1
    for run_id in lives.keys() - history.rows.keys():
        verdict.say("gone", f"run {run_id} has events, but no row")
    for (schedule_id, _, iteration), times in iterations.items():
        if times > 1:
            verdict.say("illegal", f"{times} runs of {schedule_id} are its {iteration}th")
    for schedule_id in sorted(history.live):
        if history.due[schedule_id] != 1:
            verdict.say("stuck", f"{schedule_id} has {history.due[schedule_id]} due rows")
    requested = Counter(
        (r.schedule_id, r.request_id) for r in history.rows.values() if r.request_id
    )
    for request in sorted(history.manual - requested.keys()):
        verdict.say("gone", f"the run {request} was acknowledged")
    told = {getattr(event, "note", "") for _, event in history.events}
    for _, event in history.events:
        if event.name in ("schedule.created", "schedule.changed"):
            told.add(json.loads(event.definition).get("description", ""))
    for token in sorted(history.tokens - told):
        verdict.say("gone", f"the pause or edit {token} was acknowledged")
    for name in history.nodes:
        verdict.say("left behind", f"the node {name} is still on the list")
    for kind, texts in (
        ("damaged", history.damage),
        ("orphaned", history.orphans),
        ("broken off", history.broken_off),
    ):
        if texts:
            verdict.wrong[kind] = list(texts)

"""The facts in each sentence of `why`, compared with what a reader of rows and events finds.

A sentence that no pattern knows is a disagreement, and so is one whose facts are others.
"""

import re
from collections import Counter
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from tests.why_reader.ticks import instant, is_tick, length, milliseconds

LEASE = 5_000
NEAR = 26 * 3600  # seconds in which the ticks before and after are looked for
STATUS_OF = {"ran": "SUCCESS", "failed": "FAILED", "canceled": "CANCELED", "skipped": "SKIPPED"}
T = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
S = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
W = r"(?:tick|\w+ start) of "
PATTERNS = []
UNLAUNCHED = "asked to end before it was launched"  # the error that is stored with such a run
NOT_LAUNCHED = re.compile(r"not launched|without being launched|before it was launched")


def says(pattern):
    """Have a function check the sentences of a pattern, in which T and S are instants."""
    for name, text in (("<T>", T), ("<S>", S), ("<W>", W)):
        pattern = pattern.replace(name, text)

    def keep(function):
        PATTERNS.append((re.compile(pattern), function))
        return function

    return keep


class Asked:
    """One answer, with what the reader knows of it."""

    def __init__(self, reader, week, why):
        self.reader, self.week, self.why = reader, week, why
        self.schedule_id, self.at = why["schedule_id"], instant(why["at"])
        self.story = reader.run_at(self.schedule_id, self.at)
        self.row = None if self.story is None else self.story.row
        self.blocker = None
        if self.story is not None and self.story.blocked_by is not None:
            self.blocker = reader.runs.get(self.story.blocked_by)
        revision = None if self.row is None else self.row["revision"]
        self.definition = reader.definition_at(self.schedule_id, self.at)
        if revision is not None:
            self.definition = reader.of_revision(self.schedule_id, revision)

    @property
    def due(self):
        """When the tick was due: a row's own tick has it, of others the plan."""
        return self.row["due_at"] if self.at == self.row["run_at"] else self.at * 1000

    def of(self, name, default):
        return self.definition.get(name, default)


class Checker:
    """Counts what was asked and said, and lists what is not so."""

    def __init__(self):
        self.instants = self.sentences = 0
        self.kinds, self.used = Counter(), Counter()
        self.wrong = []

    def check(self, reader, week, why):
        self.instants += 1
        asked = Asked(reader, week, why)
        self.kinds[why["kind"], why["reason"]] += 1
        for problem in self._answer(asked):
            self._say(asked, problem)
        told = list(why["sentences"]) + ([why["instead"]] if why["instead"] else [])
        for sentence in told:
            self.sentences += 1
            self._sentence(asked, sentence)
        launched = [s for s in told if s.startswith("it ran from")]
        if launched and any(NOT_LAUNCHED.search(s) for s in told):
            self._say(asked, "it was not launched, and ran")

    def _say(self, asked, problem):
        when = f"{asked.schedule_id} {asked.why['at']} ({asked.why['headline']})"
        self.wrong.append(f"{when}: {problem}")

    def _sentence(self, asked, sentence):
        found = [(p, m, f) for p, f in PATTERNS if (m := p.fullmatch(sentence))]
        if not found:
            self._say(asked, f"unknown sentence {sentence!r}")
            return
        pattern, match, function = found[0]
        self.used[pattern.pattern] += 1
        try:
            holds = function(asked, *match.groups())
        except (LookupError, TypeError, ValueError, AttributeError) as missing:
            holds, sentence = False, f"{sentence} [{type(missing).__name__}: {missing}]"
        if not holds:
            self._say(asked, f"not so: {sentence!r}")

    def _answer(self, asked):
        """Yield what is wrong with the fields of an answer."""
        why, story, kind = asked.why, asked.story, asked.why["kind"]
        yield from self._neighbours(asked)
        if (None if story is None else story.run_id) != why["run_id"]:
            yield f"it is run {story and story.run_id}, not {why['run_id']}"
            return
        if story is None:
            yield from self._without_row(asked)
            return
        row = asked.row
        if story.status != row["status"] or (story.is_over and story.reason != row["reason"]):
            yield f"its events say {story.status} ({story.reason}), its row {row['status']} ({row['reason']})"
        if story.triggered_by != row["triggered_by"] or why["triggered_by"] != row["triggered_by"]:
            yield f"it is by {story.triggered_by}, and {why['triggered_by']} is said"
        is_other = row["first_run_at"] is not None and asked.at != row["run_at"]
        expected = {"ENQUEUED": "waiting", "STARTED": "running", "SKIPPED": "skipped"}.get(
            story.status
        )
        if expected is None:
            ends = {"SUCCESS": "ran", "FAILED": "failed", "CANCELED": "canceled"}
            expected = "coalesced" if is_other else ends[story.status]
        if kind != expected:
            yield f"it is {expected}, not {kind}"
        if kind in STATUS_OF and why["reason"] != story.reason:
            yield f"the reason is {story.reason}, not {why['reason']}"
        if kind in STATUS_OF:
            headline = story.status + (f" ({story.reason})" if story.reason else "")
            if why["headline"] != headline:
                yield f"the headline would be {headline}"
        yield from self._attempts(asked)

    def _neighbours(self, asked):
        """Yield what is wrong with the ticks before and after, where one definition has both."""
        changes = [at // 1000 for at, *_ in asked.reader.definitions[asked.schedule_id]]
        definition = asked.reader.definition_at(asked.schedule_id, asked.at)
        is_sample = self.instants % 8 == 0 and definition is not None
        if not is_sample or not {"cron", "calendar"} & definition.keys():
            return
        if any(abs(at - asked.at) < NEAR for at in changes):
            return
        minute = asked.at - asked.at % 60
        for name, around in (
            ("previous", range(minute - 60 * (asked.at == minute), asked.at - NEAR, -60)),
            ("next", range(minute + 60, asked.at + NEAR, 60)),
        ):
            right = next((t for t in around if is_tick(definition, t)), None)
            said = asked.why[name] and instant(asked.why[name])
            if right is not None and said != right:
                yield f"the {name} tick is {right}, not {said}"

    def _attempts(self, asked):
        found = [
            (a["attempt"], a["started_at"] and milliseconds(a["started_at"]),
             a["ended_at"] and milliseconds(a["ended_at"]), a["reason"])
            for a in asked.why["attempts"]
        ]  # fmt: skip
        right = [(a.number, a.started_at, a.ended_at, a.reason) for a in asked.story.attempts]
        if found != right[-len(found) :] or (len(right) <= 20 and len(found) != len(right)):
            yield f"the attempts are {right}, not {found}"

    def _without_row(self, asked):
        why, definition = asked.why, asked.reader.definition_at(asked.schedule_id, asked.at)
        ticks = None if definition is None else is_tick(definition, asked.at)
        kind = why["kind"]
        if kind == "not_there":
            yield from _of_nothing(asked)
        if definition is None and kind != "not_there":
            yield f"there was no definition, and it is said to be {kind}"
        if ticks is False and kind not in ("no_tick", "not_there"):
            yield f"it is not a tick, and it is said to be {kind}"
        if ticks and kind == "no_tick":
            yield "it is a tick, and it is said to be none"
        if kind in ("to_come", "undecided"):
            decided = asked.reader.decided_until[asked.schedule_id]
            if not ticks or asked.at <= decided:
                yield f"it is not to come: the ticks up to {decided} are decided"


def _of_nothing(asked):
    """Yield what is wrong with the headline of an instant at which there was no schedule."""
    found = asked.reader.definitions[asked.schedule_id]
    before = [each for each in found if each[0] // 1000 < asked.at]
    after = [each for each in found if each[0] // 1000 >= asked.at]
    if before:
        right = f"the schedule was deleted at {_second(before[-1][0])}"
        right += f" and defined again at {_second(after[0][0])}" if after else ""
    else:
        # One that is kept elsewhere before it is defined here begins where it was.
        right = f"the schedule exists since {_second(found[0][0])[:-1]}"
    if not asked.why["headline"].startswith(right):
        yield f"the headline would be {right}"


def _second(ms):
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(text):
    """Return the lengths that a text such as `3 h 20 min` stands for: from, and below."""
    units = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    parts = re.findall(r"(\d+) (ms|s|min|h|d)", text)
    low = sum(int(n) * units[unit] for n, unit in parts)
    smaller = {"ms": 1, "s": 1000, "min": 1000, "h": 60_000, "d": 3_600_000}
    smallest = smaller[parts[-1][1]] if len(parts) == 1 else units[parts[-1][1]]
    return low, low + smallest


def is_span(text, ms):
    low, high = span(text)
    return low <= max(ms, 0) < high


# -- overlap


@says(r"run (\d+) \(<W>(<S>)\) was running since (<T>), and overlap is (.+)")
def running(asked, run_id, tick, since, overlap):
    other = asked.blocker
    going = other.during(asked.story.decided_at)
    same = (other.run_id, other.row["run_at"]) == (int(run_id), instant(tick))
    return same and going.started_at == milliseconds(since) and overlap == policy(asked)


@says(
    r"run (\d+) \(<W>(<S>)\) was (?:waiting to start|lost with its node, and not found again yet), and overlap is (.+)"
)
def not_running(asked, run_id, tick, overlap):
    other = asked.blocker
    same = (other.run_id, other.row["run_at"]) == (int(run_id), instant(tick))
    return same and other.during(asked.story.decided_at) is None and overlap == policy(asked)


@says(r"another run, which is not kept any more, was in flight, and overlap is (.+)")
def gone(asked, overlap):
    return asked.blocker is None and overlap == policy(asked)


def policy(asked):
    overlap, most = asked.of("overlap", "skip"), asked.of("max_active", None)
    return f"allow with max_active {most}" if overlap == "allow" and most else overlap


@says(r"run (\d+) ended at (<T>)( without starting)?: (\w+)(?: \((\w+)\))?")
def blocker_ended(asked, run_id, at, without, *ended):
    other = asked.blocker
    what = (other.run_id, other.decided_at, other.status, other.reason)
    return what == (int(run_id), milliseconds(at), *ended) and bool(without) == (not other.attempts)


@says(r"run (\d+) is still running")
def blocker_runs(asked, run_id):
    return (asked.blocker.run_id, asked.blocker.status) == (int(run_id), "STARTED")


@says(
    r"run (\d+) is accepted by its target, and in flight until it is reported, or until (<T>) \(onbeat cancel (\d+) frees the schedule at once\)"
)
def blocker_is_accepted(asked, run_id, until, canceled):
    other = asked.blocker
    what = (other.run_id, other.status, other.accepted_until)
    return what == (int(run_id), "STARTED", milliseconds(until)) and run_id == canceled


@says(r"run (\d+) has not started yet: ask why of (<S>)")
def blocker_waits(asked, run_id, tick):
    other = asked.blocker
    what = (other.run_id, other.status, other.row["run_at"])
    return what == (int(run_id), "ENQUEUED", instant(tick))


@says(r"with overlap=queue it would have started (?:at|after those before it, from) (<T>)(?: on)?")
def would_have_started(asked, at):
    return asked.blocker.decided_at == milliseconds(at)


@says(r"with overlap=queue it would have waited until its start_deadline was over, at (<T>)")
def would_have_waited(asked, at):
    over = asked.row["due_at"] + length(asked.of("start_deadline", "0s"))
    return over == milliseconds(at) and over <= asked.blocker.decided_at


@says(
    r"with overlap=queue it would (?:start when that one ends|have had its turn|have waited for that run)"
)
def would_wait(asked):
    return asked.story.reason in ("overlap", "superseded")


@says(r"without max_active it would have started at once")
def without_most(asked):
    return asked.story.reason == "overlap" and asked.of("max_active", None) is not None


# -- queues, groups, rates, deadlines


@says(
    r"the queue was full \(queue_limit (\d+), queue_keep (first|latest)\)(?:: the tick of (<S>) took its place)?"
)
def queue_full(asked, limit, keep, newer):
    same = (asked.of("queue_limit", 100), asked.of("queue_keep", "first")) == (int(limit), keep)
    return same and (newer is None or instant(newer) in asked.story.newer)


@says(r"with queue_keep=\w+ .+")
def other_queue(asked):
    return asked.story.reason == "queue_full"


@says(r"group (\S+) had no free place until its start_deadline ended at (<T>)")
def group_full(asked, group, at):
    same = (asked.of("group", None), asked.row["deadline_at"]) == (group, milliseconds(at))
    return same and asked.story.decided_at >= asked.row["deadline_at"]


@says(
    r"an edit at (<T>) decided it as on time by revision (\d+) while no node was up; "
    r"its grace ended at (<T>) before it had started"
)
def unstarted(asked, edited, revision, ended):
    at, over = milliseconds(edited), milliseconds(ended)
    same = is_by_edit(asked, at) and over == asked.row["deadline_at"] <= asked.story.decided_at
    around = length(asked.of("jitter", "0s")) if asked.of("jitter_around", False) else 0
    grace = asked.row["due_at"] + length(asked.of("grace", "60s")) + around == over
    return same and grace and asked.row["revision"] == int(revision) and not asked.reader.up_at(at)


@says(r"an edit at (<T>) decided it while no node was up: its grace ends then")
def limited(asked, edited):
    return is_by_edit(asked, milliseconds(edited)) and not asked.reader.up_at(milliseconds(edited))


def is_by_edit(asked, at):
    """Return whether a run was made by an edit at this instant."""
    edits = [begins for begins, *_ in asked.reader.definitions[asked.schedule_id]]
    return asked.row["created_at"] == at and at in edits


@says(r"it had not started when its start_deadline ended at (<T>)")
def deadline(asked, at):
    return asked.row["deadline_at"] == milliseconds(at) <= asked.story.decided_at


@says(r"without a start_deadline it would have waited on")
def no_deadline(asked):
    return asked.row["deadline_at"] is not None and asked.story.was_waiting


@says(r"the rate of (\S+) was used up at (<T>)")
def rate(asked, given, at):
    return asked.of("rate", None) == given and asked.story.decided_at == milliseconds(at)


@says(r"its condition \(when\) did not hold at (<T>)")
def condition(asked, at):
    return "when" in asked.definition and asked.story.decided_at == milliseconds(at)


# -- missed, caught up


@says(r"missed: no node was up from (<T>) to (<T>) \(grace (.+?), catchup (.+)\)")
def outage(asked, since, until, grace, catchup):
    began, ended, how = asked.reader.outage_around(asked.due)
    if how == "lost":
        began = next(at for at in reversed(asked.week.crashes) if at <= asked.due)
        begins = began <= milliseconds(since) <= began + LEASE
    else:
        begins = began == milliseconds(since)
    same = begins and ended == milliseconds(until) <= asked.story.decided_at
    same = same and ended > asked.due + length(asked.of("grace", "60s"))
    return same and is_missed(asked, grace, catchup)


@says(r"missed: it was decided at (<T>), (.+) after it was due \(grace (.+?), catchup (.+)\)")
def decided_late(asked, at, late, grace, catchup):
    same = asked.story.decided_at == milliseconds(at) and is_span(
        late, milliseconds(at) - asked.due
    )
    back = asked.reader.outage_around(asked.due)[1]
    was_up = asked.reader.up_at(asked.due) or back <= asked.due + length(asked.of("grace", "60s"))
    return same and was_up and is_missed(asked, grace, catchup)


@says(r"missed: it was (.+) past when the schedule was defined at (<T>) \(grace (.+)\)")
def defined_late(asked, late, at, grace):
    behind, allowed = milliseconds(at) - asked.due, length(asked.of("grace", "60s"))
    same = asked.story.is_defined and asked.story.decided_at == milliseconds(at)
    return same and is_span(late, behind) and is_span(grace, allowed) and behind > allowed


def is_missed(asked, grace, catchup):
    """Return whether a tick was beyond its grace, and the policy says what is said."""
    lateness, kind = length(asked.of("grace", "60s")), asked.of("catchup", "once")
    late = asked.story.decided_at - asked.due
    if asked.of("jitter", None) is None and late <= lateness:
        return False
    if not is_span(grace, lateness):
        return False
    if kind == "none":
        return catchup == "none"
    window = length(asked.of("catchup_window", "24h"))
    said, _, its = catchup.partition(", catchup_window ")
    return said == kind and is_span(its, window) and late > window


@says(r"times before the definition are not caught up")
def not_caught_up(asked):
    return asked.story.is_defined


@says(r"with a grace of at least (\d+) s it would have started then")
def longer_grace(asked, seconds):
    late = asked.story.decided_at - asked.due
    return asked.story.is_defined and late <= int(seconds) * 1000 < late + 1000


@says(r"with catchup=once the latest due tick would have run, and stood for it")
def once(asked):
    late = asked.story.decided_at - asked.due
    return asked.of("catchup", "once") == "none" and late <= length(
        asked.of("catchup_window", "24h")
    )


@says(r"with (?:catchup=once and )?a catchup_window of at least (\d+) s .+")
def longer_window(asked, seconds):
    late = asked.story.decided_at - asked.due
    return length(asked.of("catchup_window", "24h")) < late <= int(seconds) * 1000 < late + 1000


@says(
    r"(\d+) due ticks were decided together at (<T>): run (\d+) \(tick of (<S>)\) stands for them"
)
def coalesced(asked, count, at, run_id, tick):
    row = asked.row
    same = (row["tick_count"], row["run_id"], row["run_at"]) == (
        int(count),
        int(run_id),
        instant(tick),
    )
    return same and asked.story.made_at == milliseconds(at)


@says(r"with catchup=all it would have had a run of its own")
def all_of_them(asked):
    return asked.of("catchup", "once") == "once" and not asked.story.is_resumed


@says(r"it was caught up: it was decided at (<T>), (.+) late")
def caught_up(asked, at, late):
    same = asked.story.triggered_by == "catchup" and asked.story.made_at == milliseconds(at)
    is_late = asked.row["created_at"] - asked.row["due_at"]
    return same and not asked.story.is_resumed and is_span(late, is_late)


@says(r"it was caught up when its schedule was resumed")
def resumed(asked):
    return asked.story.triggered_by == "catchup" and asked.story.is_resumed


@says(r"one row stands for (\d+) ticks, from (<S>) to (<S>)")
def stands_for(asked, count, first, last):
    row = asked.row
    what = (row["tick_count"], row["first_run_at"], row["run_at"])
    return what == (int(count), instant(first), instant(last)) and row["first_run_at"] <= asked.at


@says(r"it follows (\d+) events")
def follows(asked, count):
    return asked.row["tick_count"] == int(count)


# -- edits


@says(
    r"it starts as revision (\d+) says; the schedule is at (\d+) \(apply with --update-waiting moves it\)"
)
def of_revision(asked, own, current):
    revisions = [each[1] for each in asked.reader.definitions[asked.schedule_id] if each[1]]
    return (asked.row["revision"], max(revisions)) == (int(own), int(current))


@says(r"it was decided under an earlier revision, and moved to revision (\d+)")
def moved_to(asked, revision):
    edits = asked.reader.definitions[asked.schedule_id]
    began = next(begins for begins, number, *_ in edits if number == int(revision))
    return asked.row["revision"] == int(revision) and asked.story.made_at < began


# -- pauses, the gate, switches


@says(r"the gate was closed from (<T>) to (<T>)")
def gate(asked, since, until):
    return [milliseconds(since), milliseconds(until)] in asked.reader.gates


@says(r"the schedule was paused from (<T>) to (<T>)(?:, by (\S+?))?(?: \((.+)\))?")
def paused(asked, since, until, by, note):
    pause = asked.reader.pause_over(asked.schedule_id, milliseconds(since))
    is_over = pause.until is not None and milliseconds(until) == pause.until
    return (
        (pause.by, pause.note) == (by or "", note or "")
        and is_over
        and milliseconds(since) <= asked.story.decided_at
    )


@says(
    r"the (gate was closed|schedule was paused) since (<T>)(?:, by (\S+?))?(?: \((.+)\))?, "
    r"when an edit at (<T>) decided it"
)
def decided_by_an_edit(asked, what, since, by, *told):
    note, at = told
    edits = [begins for begins, *_ in asked.reader.definitions[asked.schedule_id]]
    if asked.story.decided_at != milliseconds(at) or milliseconds(at) not in edits:
        return False
    if what == "gate was closed":
        closed = [each for each in asked.reader.gates if each[0] == milliseconds(since)]
        return closed[0][1] is None or closed[0][1] > milliseconds(at)
    pause = asked.reader.pause_over(asked.schedule_id, milliseconds(since))
    is_over = pause.until is not None and pause.until <= milliseconds(at)
    return (pause.by, pause.note) == (by or "", note or "") and not is_over


@says(
    r"the schedule was edited at (<T>) \(revision (\d+) to (\d+)\) while (?:(\d+) ticks were|1 tick was) owed; nothing of the past is started by an edit"
)
def edited(asked, at, before, after, count):
    found = [
        (begins, revision) for begins, revision, *_ in asked.reader.definitions[asked.schedule_id]
    ]
    place = found.index((milliseconds(at), int(after)))
    same = found[place - 1][1] == int(before) and asked.story.decided_at == milliseconds(at)
    return same and asked.row["tick_count"] == int(count or 1) and asked.story.reason == "edited"


@says(r"the schedule was disabled \(enabled: false\)")
def disabled(asked):
    return asked.of("enabled", True) is False


@says(r"what it starts was disabled \(run.enabled: false\)")
def disabled_target(asked):
    return asked.definition["run"].get("enabled") is False


@says(r"the schedule is paused since (<T>)(?:, by (\S+?))?(?: \((.+)\))?")
def is_paused(asked, since, by, note):
    pause = asked.reader.pause_over(asked.schedule_id, milliseconds(since))
    return pause.until is None and (pause.by, pause.note) == (by or "", note or "")


# -- what became of it


@says(r"a newer tick(?:, (<S>),)? took its place")
def superseded(asked, newer):
    story = asked.story
    if story.status == "CANCELED":
        return story.end_asked_at is not None
    return newer is None or (instant(newer) in story.newer and instant(newer) > asked.row["run_at"])


@says(
    r"(it was canceled|it exceeded its time|it is lost|a signal ended the program|it failed|it was not launched|its target could not take it|its target cannot be started): (.*)"
)
def error(asked, what, text):
    reasons = {
        "it was canceled": "canceled", "it exceeded its time": "timeout", "it is lost": "lost",
        "a signal ended the program": "signal", "it failed": "error",
        "it was not launched": "launch_failed", "its target could not take it": "busy",
        "its target cannot be started": "invalid_target",
    }  # fmt: skip
    told = (asked.story.error or asked.row["error"] or "the reason is not known").splitlines()[0]
    return asked.story.reason == reasons[what] and told == text


@says(r"it was canceled before it was launched")
def canceled_unlaunched(asked):
    error = asked.story.error or asked.row["error"]
    return asked.story.reason == "canceled" and error == UNLAUNCHED


@says(r"the program ended with exit code (\d+)")
def exit_code(asked, code):
    return asked.story.reason == "exit" and asked.row["exit_code"] == int(code)


@says(r"with retry=\[30s\] it would have been tried again")
def with_retry(asked):
    return "retry" not in asked.definition and asked.story.reason in ("exit", "timeout")


@says(r"with (\w+) among retry.on it would have been tried again")
def with_reason(asked, reason):
    given = asked.definition["retry"]
    return asked.story.reason == reason and reason not in given["on"]


@says(r"with a longer timeout its report would have been waited for")
def longer_timeout(asked):
    until = asked.story.accepted_until
    return asked.story.reason == "timeout" and until is not None and until <= asked.story.decided_at


@says(r"with on_lost=retry it would have been started again, under the same key")
def with_on_lost(asked):
    return asked.of("on_lost", "fail") == "fail" and asked.story.reason == "lost"


# -- attempts


@says(r"it (?:ran from|was made at) (<T>)(?: to |, and ended at )(<T>)")
def ran(asked, since, until):
    (only,) = asked.story.attempts
    return (only.started_at, only.ended_at) == (milliseconds(since), milliseconds(until))


@says(r"(?:it|attempt (\d+)) was announced at (<T>), and ended at (<T>) without being launched")
def unlaunched(asked, number, since, until):
    found = attempt(asked, number)
    what = (found.started_at, found.ended_at, found.error or asked.story.error)
    return what == (milliseconds(since), milliseconds(until), UNLAUNCHED)


@says(r"(?:it|attempt (\d+)) was announced at (<T>), and recorded as lost at (<T>)")
def lost(asked, number, since, until):
    found = attempt(asked, number)
    what = (found.started_at, found.ended_at, found.reason)
    return what == (milliseconds(since), milliseconds(until), "lost")


@says(r"attempt (\d+) (?:ran from|was made at) (<T>)(?: to |, and ended at )(<T>): (.+)")
def attempted(asked, number, since, until, outcome):
    found = attempt(asked, number)
    same = (found.started_at, found.ended_at) == (milliseconds(since), milliseconds(until))
    words = {
        None: "it succeeded", "exit": "exit code ", "canceled": "canceled", "superseded": "superseded",
        "launch_failed": f"it was not launched: {found.error}",
        "busy": f"its target could not take it: {found.error}",
    }  # fmt: skip
    return same and outcome.startswith(words.get(found.reason, f"{found.reason}"))


@says(r"attempts (\d+) to (\d+) were made from (<T>) to (<T>): its target could not take it: (.+)")
def attempted_often(asked, first, last, since, *told):
    until, error = told
    found = [each for each in asked.story.attempts if int(first) <= each.number <= int(last)]
    what = (found[0].started_at, found[-1].ended_at)
    same = {(each.reason, each.error) for each in found} == {("busy", error)}
    return same and what == (milliseconds(since), milliseconds(until))


def attempt(asked, number):
    number = 1 if number is None else int(number)
    return next(each for each in asked.story.attempts if each.number == number)


@says(r"(\d+) attempts before that are not listed")
def left_out(asked, count):
    return 0 < int(count) < asked.row["attempt"]


@says(r"attempt (\d+), since (<T>)")
def going(asked, number, since):
    last = asked.story.attempts[-1]
    return (last.number, last.started_at, last.ended_at) == (int(number), milliseconds(since), None)


@says(r"attempt (\d+) was due at (<T>), and was dropped at (<T>)")
def dropped(asked, number, due, at):
    last = asked.story.attempts[-1]
    what = (last.number + 1, asked.story.due_at, asked.story.decided_at)
    return asked.story.was_waiting and what == (int(number), milliseconds(due), milliseconds(at))


@says(r"it was ended at (<T>), before it started")
def before(asked, at):
    return asked.story.was_waiting and asked.story.decided_at == milliseconds(at)


@says(r"it was ended at (<T>): until then it waited in the queue behind run (\d+)")
def queued(asked, at, run_id):
    same = asked.story.was_waiting and asked.story.decided_at == milliseconds(at)
    return same and asked.story.waits_behind == int(run_id)


@says(
    r"it was ended at (<T>): until then it waited for a node that offers (\S+), and none was up(?: \(.+\))?"
)
def no_node(asked, at, needs):
    same = asked.story.was_waiting and asked.story.decided_at == milliseconds(at)
    return same and asked.row["needs"] == needs and needs not in asked.week.offers()


@says(
    r"it was ended at (<T>): until then it waited for (a place in its group|a free place on a node|the end of a pause|its time to start, .+)"
)
def waited(asked, at, what):
    same = asked.story.was_waiting and asked.story.decided_at == milliseconds(at)
    if what.startswith("its time"):
        return same and asked.row["due_at"] > asked.story.decided_at
    return same and (not what.startswith("a place") or asked.of("group", None) is not None)


# -- causes


@says(r"it was backfilled(?: by (\S+))?")
def backfilled(asked, by):
    return asked.story.triggered_by == "backfill" and asked.story.by == (by or "")


@says(r"it was started manually(?: by (\S+))? at (<T>)")
def manual(asked, by, at):
    story = asked.story
    return (story.triggered_by, story.by, story.made_at) == ("manual", by or "", milliseconds(at))


@says(r"artifact (\S+) \((\w+)\) triggered it at (<T>)")
def artifact(asked, name, kind, at):
    what = (asked.story.triggered_by, asked.row["request_id"], asked.story.made_at)
    return what == ("artifact", name, milliseconds(at)) and kind == "LogEntry"


@says(r"it was overdue since (\S+) when its folder was adopted: (<T>)")
def overdue(asked, since, at):
    due = asked.week.script.first - 3 * 3600
    is_right = instant(since[:19] + "Z") == due and asked.story.made_at == milliseconds(at)
    return is_right and asked.story.triggered_by == "overdue"


@says(r"nextRun in last-run.json was set to (\S+)")
def next_run(asked, at):
    late = asked.story.made_at - instant(at[:19] + "Z") * 1000
    return asked.story.triggered_by == "next_run" and late >= 0


# -- what waits, runs, is to come


@says(r"its target has accepted it(?: as \S+)?, and has until (<T>)")
def accepted(asked, until):
    return asked.story.status == "STARTED" and asked.row["deadline_at"] == milliseconds(until)


@says(r"its end was requested at (<T>): (\w+)")
def end_asked(asked, at, reason):
    return asked.story.end_asked_at == milliseconds(at)


@says(r"it waits in the queue, behind run (\d+)")
def waits_behind(asked, run_id):
    return asked.story.waits_behind == int(run_id)


@says(r"(?:it|attempt (\d+)) is due at (<T>), in (.+)")
def is_due(asked, number, at, wait):
    due = milliseconds(at)
    same = asked.story.due_at == due and is_span(wait, due - asked.week.clock.now())
    return same and (number is None or int(number) == len(asked.story.attempts) + 1)


@says(r"it waits for a node that offers (\S+)(?: \(.+\))?; up are \S+")
def waits_for_node(asked, needs):
    return asked.row["needs"] == needs and needs not in asked.week.offers()


@says(
    r"it waits for a (?:free place: \S+ could start it|place in group (\S+), which has (\d+): .+)"
)
def waits_for_place(asked, group, places):
    return asked.story.status == "ENQUEUED" and (group is None or asked.of("group", None) == group)


@says(r"it is given up if (?:it|the run before it) has not started by (<T>)")
def given_up(asked, at):
    return asked.row["deadline_at"] == milliseconds(at)


@says(r"it is due at (<T>): jitter or hours \(within\) moved it")
def moved(asked, at):
    return milliseconds(at) != asked.at * 1000


@says(r"it is decided within moments, or when missed ticks before it have had their turn")
def soon(asked):
    return asked.why["kind"] == "undecided"


# -- instants that are not ticks


@says(r"(\S+) in (\S+): (.+ is .+, not .+)")
def fields(asked, when, zone, failing):
    wall = datetime.fromtimestamp(asked.at, ZoneInfo(zone))
    if datetime.fromisoformat(when).timestamp() != asked.at or is_tick(asked.definition, asked.at):
        return False
    days = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
    values = {
        "second": str(wall.second), "minute": str(wall.minute), "hour": str(wall.hour),
        "day of month": str(wall.day), "day of week": days[wall.isoweekday() % 7],
    }  # fmt: skip
    found = re.findall(r"(second|minute|hour|day of month|day of week) is (\S+?), not", failing)
    return bool(found) and all(values[name] == value for name, value in found)


@says(r"(\S+) in (\S+): the clocks show this time twice that night, and the first one counts")
def second_pass(asked, when, zone):
    return datetime.fromtimestamp(asked.at, ZoneInfo(zone)).fold == 1


@says(
    r"it is (?:not on the grid of .+|not one of the times that are given|before the first, .+|before its start_at, .+)"
)
def not_on_the_grid(asked):
    return is_tick(asked.definition, asked.at) is False


@says(
    r"(?:no tick follows a .+|it has no ticks: it runs only when it is started)(?:; no tick follows .+)?"
)
def follows_events(asked):
    return is_tick(asked.definition, asked.at) is None


@says(r"(\d{4}-\d\d-\d\d): .+ (?:twice|not exist) in (\S+) \(clocks go from .+\): .+")
def night(asked, day, zone):
    noon = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo(zone))
    before = noon.replace(hour=0)
    return noon.utcoffset() != before.utcoffset() and abs(noon.timestamp() - asked.at) < 3 * 86_400


@says(r"an instant before that is not a tick, unless a backfill asks for it")
def before_it(asked):
    since = asked.reader.definitions[asked.schedule_id][0][0]
    return asked.at <= since // 1000


@says(
    r"the ticks up to (<S>) are decided, and this has no row: when they were, another definition or other time zone data was in effect"
)
def without_row(asked, until):
    changes = [at // 1000 for at, *_ in asked.reader.definitions[asked.schedule_id]]
    return asked.at <= instant(until) and any(abs(asked.at - at) <= 1 for at in changes)

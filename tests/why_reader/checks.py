"""The facts in each sentence of `why`, compared with rows and events.

A sentence without a pattern is a disagreement, and so is a sentence with wrong facts.
"""

import re
from collections import Counter
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from onbeat.core.runs.phase import Phase
from tests.why_reader.ticks import instant, is_tick, length, milliseconds

LEASE = 5_000
NEAR = 26 * 3600  # seconds in which the ticks before and after are looked for
STATUS_OF = {"ran": "SUCCESS", "failed": "FAILED", "canceled": "CANCELED", "skipped": "SKIPPED"}
T = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
S = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
W = r"(?:tick|\w+ start) of "
PATTERNS = []
UNLAUNCHED = "canceled before it was launched"  # the error that is stored with such a run
NOT_LAUNCHED = re.compile(r"not launched|without being launched|before it was launched")


def sentence(pattern):
    """Register a function that checks the sentences of a pattern. T and S are instants."""
    for name, text in (("<T>", T), ("<S>", S), ("<W>", W)):
        pattern = pattern.replace(name, text)

    def keep(function):
        PATTERNS.append((re.compile(pattern), function))
        return function

    return keep


class Answer:
    """One answer of `why`, with the facts of the reader."""

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
    """Counts the checked instants and sentences, and lists what is wrong."""

    def __init__(self):
        self.instants = self.sentences = 0
        self.kinds, self.used = Counter(), Counter()
        self.wrong = []

    def check(self, reader, week, why):
        self.instants += 1
        answer = Answer(reader, week, why)
        self.kinds[why["kind"], why["reason"]] += 1
        for problem in self._answer(answer):
            self._say(answer, problem)
        texts = list(why["sentences"]) + ([why["instead"]] if why["instead"] else [])
        for sentence in texts:
            self.sentences += 1
            self._sentence(answer, sentence)
        launched = [s for s in texts if s.startswith("it ran from")]
        if launched and any(NOT_LAUNCHED.search(s) for s in texts):
            self._say(answer, "it was not launched, and ran")

    def _say(self, answer, problem):
        when = f"{answer.schedule_id} {answer.why['at']} ({answer.why['headline']})"
        self.wrong.append(f"{when}: {problem}")

    def _sentence(self, answer, sentence):
        found = [(p, m, f) for p, f in PATTERNS if (m := p.fullmatch(sentence))]
        if not found:
            self._say(answer, f"unknown sentence {sentence!r}")
            return
        pattern, match, function = found[0]
        self.used[pattern.pattern] += 1
        try:
            holds = function(answer, *match.groups())
        except (LookupError, TypeError, ValueError, AttributeError) as missing:
            holds, sentence = False, f"{sentence} [{type(missing).__name__}: {missing}]"
        if not holds:
            self._say(answer, f"not so: {sentence!r}")

    def _answer(self, answer):
        """Yield what is wrong with the fields of an answer."""
        why, story, kind = answer.why, answer.story, answer.why["kind"]
        yield from self._neighbours(answer)
        if (None if story is None else story.run_id) != why["run_id"]:
            yield f"it is run {story and story.run_id}, not {why['run_id']}"
            return
        if story is None:
            yield from self._without_row(answer)
            return
        row = answer.row
        status = Phase(row["phase"]).facts.status
        if story.status != status or (story.is_over and story.reason != row["reason"]):
            yield f"its events say {story.status} ({story.reason}), its row {status} ({row['reason']})"
        if story.triggered_by != row["triggered_by"] or why["triggered_by"] != row["triggered_by"]:
            yield f"it is by {story.triggered_by}, and {why['triggered_by']} is said"
        is_other = row["first_run_at"] is not None and answer.at != row["run_at"]
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
        yield from self._attempts(answer)

    def _neighbours(self, answer):
        """Yield what is wrong with the ticks before and after, where one definition has both."""
        changes = [at // 1000 for at, *_ in answer.reader.definitions[answer.schedule_id]]
        definition = answer.reader.definition_at(answer.schedule_id, answer.at)
        is_sample = self.instants % 8 == 0 and definition is not None
        if not is_sample or not {"cron", "calendar"} & definition.keys():
            return
        if any(abs(at - answer.at) < NEAR for at in changes):
            return
        minute = answer.at - answer.at % 60
        for name, around in (
            ("previous", range(minute - 60 * (answer.at == minute), answer.at - NEAR, -60)),
            ("next", range(minute + 60, answer.at + NEAR, 60)),
        ):
            right = next((t for t in around if is_tick(definition, t)), None)
            said = answer.why[name] and instant(answer.why[name])
            if right is not None and said != right:
                yield f"the {name} tick is {right}, not {said}"

    def _attempts(self, answer):
        found = [
            (a["attempt"], a["started_at"] and milliseconds(a["started_at"]),
             a["ended_at"] and milliseconds(a["ended_at"]), a["reason"])
            for a in answer.why["attempts"]
        ]  # fmt: skip
        right = [(a.number, a.started_at, a.ended_at, a.reason) for a in answer.story.attempts]
        if found != right[-len(found) :] or (len(right) <= 20 and len(found) != len(right)):
            yield f"the attempts are {right}, not {found}"

    def _without_row(self, answer):
        why, definition = answer.why, answer.reader.definition_at(answer.schedule_id, answer.at)
        ticks = None if definition is None else is_tick(definition, answer.at)
        kind = why["kind"]
        if kind == "not_there":
            yield from _absence(answer)
        if definition is None and kind != "not_there":
            yield f"there was no definition, and it is said to be {kind}"
        if ticks is False and kind not in ("no_tick", "not_there"):
            yield f"it is not a tick, and it is said to be {kind}"
        if ticks and kind == "no_tick":
            yield "it is a tick, and it is said to be none"
        if kind in ("to_come", "undecided"):
            decided = answer.reader.decided_until[answer.schedule_id]
            if not ticks or answer.at <= decided:
                yield f"it is not to come: the ticks up to {decided} are decided"


def _absence(answer):
    """Yield what is wrong with the headline of an instant at which there was no schedule."""
    found = answer.reader.definitions[answer.schedule_id]
    before = [each for each in found if each[0] // 1000 < answer.at]
    after = [each for each in found if each[0] // 1000 >= answer.at]
    if before:
        right = f"the schedule was deleted at {_second(before[-1][0])}"
        right += f" and defined again at {_second(after[0][0])}" if after else ""
    else:
        # A schedule that another system had before begins at that time.
        right = f"the schedule has existed since {_second(found[0][0])[:-1]}"
    if not answer.why["headline"].startswith(right):
        yield f"the headline would be {right}"


def _second(ms):
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(text):
    """Return the range of lengths of a text such as `3 h 20 min`: from, and below."""
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


@sentence(r"run (\d+) \(<W>(<S>)\) had been running since (<T>) \(overlap (.+)\)")
def running(answer, run_id, tick, since, overlap):
    other = answer.blocker
    going = other.during(answer.story.decided_at)
    same = (other.run_id, other.row["run_at"]) == (int(run_id), instant(tick))
    return same and going.started_at == milliseconds(since) and overlap == policy(answer)


@sentence(
    r"run (\d+) \(<W>(<S>)\) (?:was waiting to start|had lost its node and was not reattached yet) \(overlap (.+)\)"
)
def not_running(answer, run_id, tick, overlap):
    other = answer.blocker
    same = (other.run_id, other.row["run_at"]) == (int(run_id), instant(tick))
    return same and other.during(answer.story.decided_at) is None and overlap == policy(answer)


@sentence(r"another run, which has been pruned since, was in flight \(overlap (.+)\)")
def gone(answer, overlap):
    return answer.blocker is None and overlap == policy(answer)


def policy(answer):
    overlap, most = answer.of("overlap", "skip"), answer.of("max_active", None)
    return f"allow, max_active {most}" if overlap == "allow" and most else overlap


@sentence(r"run (\d+) ended at (<T>)( without starting)?: (\w+)(?: \((\w+)\))?")
def blocker_ended(answer, run_id, at, without, *ended):
    other = answer.blocker
    what = (other.run_id, other.decided_at, other.status, other.reason)
    return what == (int(run_id), milliseconds(at), *ended) and bool(without) == (not other.attempts)


@sentence(r"run (\d+) is still running")
def blocker_runs(answer, run_id):
    return (answer.blocker.run_id, answer.blocker.status) == (int(run_id), "STARTED")


@sentence(
    r"run (\d+) was accepted by its target and is in flight until its report, or until (<T>) \(onbeat cancel (\d+) frees the schedule now\)"
)
def blocker_is_accepted(answer, run_id, until, canceled):
    other = answer.blocker
    what = (other.run_id, other.status, other.accepted_until)
    return what == (int(run_id), "STARTED", milliseconds(until)) and run_id == canceled


@sentence(r"run (\d+) has not started yet \(see why at (<S>)\)")
def blocker_waits(answer, run_id, tick):
    other = answer.blocker
    what = (other.run_id, other.status, other.row["run_at"])
    return what == (int(run_id), "ENQUEUED", instant(tick))


@sentence(
    r"with overlap=queue it would have started (?:at|after the ticks before it, from) (<T>)(?: on)?"
)
def would_have_started(answer, at):
    return answer.blocker.decided_at == milliseconds(at)


@sentence(r"with overlap=queue it would have waited until its start_deadline, (<T>)")
def would_have_waited(answer, at):
    over = answer.row["due_at"] + length(answer.of("start_deadline", "0s"))
    return over == milliseconds(at) and over <= answer.blocker.decided_at


@sentence(
    r"with overlap=queue it would (?:start when that run ends|have started in its turn|have waited for that run)"
)
def would_wait(answer):
    return answer.story.reason in ("overlap", "superseded")


@sentence(r"without max_active it would have started immediately")
def without_most(answer):
    return answer.story.reason == "overlap" and answer.of("max_active", None) is not None


# -- queues, groups, rates, deadlines


@sentence(
    r"the queue was full \(queue_limit (\d+), queue_keep (first|latest)\)(?:: the tick of (<S>) took its place)?"
)
def queue_full(answer, limit, keep, newer):
    same = (answer.of("queue_limit", 100), answer.of("queue_keep", "first")) == (int(limit), keep)
    return same and (newer is None or instant(newer) in answer.story.newer)


@sentence(r"with queue_keep=\w+ .+")
def other_queue(answer):
    return answer.story.reason == "queue_full"


@sentence(r"no place in group (\S+) was free by its start_deadline, (<T>)")
def group_full(answer, group, at):
    same = (answer.of("group", None), answer.row["deadline_at"]) == (group, milliseconds(at))
    return same and answer.story.decided_at >= answer.row["deadline_at"]


@sentence(
    r"an edit at (<T>) decided it as on time under revision (\d+) while no node was up; "
    r"it had not started when its grace ended at (<T>)"
)
def unstarted(answer, edited, revision, ended):
    at, over = milliseconds(edited), milliseconds(ended)
    same = is_by_edit(answer, at) and over == answer.row["deadline_at"] <= answer.story.decided_at
    around = length(answer.of("jitter", "0s")) if answer.of("jitter_around", False) else 0
    grace = answer.row["due_at"] + length(answer.of("grace", "60s")) + around == over
    return (
        same and grace and answer.row["revision"] == int(revision) and not answer.reader.up_at(at)
    )


@sentence(r"an edit at (<T>) decided it while no node was up: its grace ends then")
def limited(answer, edited):
    return is_by_edit(answer, milliseconds(edited)) and not answer.reader.up_at(
        milliseconds(edited)
    )


def is_by_edit(answer, at):
    """Return whether a run was made by an edit at this instant."""
    edits = [begins for begins, *_ in answer.reader.definitions[answer.schedule_id]]
    return answer.row["created_at"] == at and at in edits


@sentence(r"it had not started by its start_deadline, (<T>)")
def deadline(answer, at):
    return answer.row["deadline_at"] == milliseconds(at) <= answer.story.decided_at


@sentence(r"without a start_deadline it would have kept waiting")
def no_deadline(answer):
    return answer.row["deadline_at"] is not None and answer.story.was_waiting


@sentence(r"the rate of (\S+) was used up at (<T>)")
def rate(answer, given, at):
    return answer.of("rate", None) == given and answer.story.decided_at == milliseconds(at)


@sentence(r"its condition \(when\) did not hold at (<T>)")
def condition(answer, at):
    return "when" in answer.definition and answer.story.decided_at == milliseconds(at)


# -- missed, caught up


@sentence(r"missed: no node was up from (<T>) to (<T>) \(grace (.+?), catchup (.+)\)")
def outage(answer, since, until, grace, catchup):
    began, ended, how = answer.reader.outage_around(answer.due)
    if how == "lost":
        began = next(at for at in reversed(answer.week.crashes) if at <= answer.due)
        begins = began <= milliseconds(since) <= began + LEASE
    else:
        begins = began == milliseconds(since)
    same = begins and ended == milliseconds(until) <= answer.story.decided_at
    same = same and ended > answer.due + length(answer.of("grace", "60s"))
    return same and is_missed(answer, grace, catchup)


@sentence(r"missed: it was decided at (<T>), (.+) after it was due \(grace (.+?), catchup (.+)\)")
def decided_late(answer, at, late, grace, catchup):
    same = answer.story.decided_at == milliseconds(at) and is_span(
        late, milliseconds(at) - answer.due
    )
    back = answer.reader.outage_around(answer.due)[1]
    was_up = answer.reader.up_at(answer.due) or back <= answer.due + length(
        answer.of("grace", "60s")
    )
    return same and was_up and is_missed(answer, grace, catchup)


@sentence(r"missed: the schedule was defined at (<T>), (.+) after it was due \(grace (.+)\)")
def defined_late(answer, at, late, grace):
    behind, allowed = milliseconds(at) - answer.due, length(answer.of("grace", "60s"))
    same = answer.story.is_defined and answer.story.decided_at == milliseconds(at)
    return same and is_span(late, behind) and is_span(grace, allowed) and behind > allowed


def is_missed(answer, grace, catchup):
    """Return whether a tick was beyond its grace, and whether the policy is quoted correctly."""
    lateness, kind = length(answer.of("grace", "60s")), answer.of("catchup", "once")
    late = answer.story.decided_at - answer.due
    if answer.of("jitter", None) is None and late <= lateness:
        return False
    if not is_span(grace, lateness):
        return False
    if kind == "none":
        return catchup == "none"
    window = length(answer.of("catchup_window", "24h"))
    said, _, its = catchup.partition(", catchup_window ")
    return said == kind and is_span(its, window) and late > window


@sentence(r"times before the definition are not caught up")
def not_caught_up(answer):
    return answer.story.is_defined


@sentence(r"with a grace of at least (\d+) s it would have started")
def longer_grace(answer, seconds):
    late = answer.story.decided_at - answer.due
    return answer.story.is_defined and late <= int(seconds) * 1000 < late + 1000


@sentence(r"with catchup=once the latest due tick would have run and covered it")
def once(answer):
    late = answer.story.decided_at - answer.due
    return answer.of("catchup", "once") == "none" and late <= length(
        answer.of("catchup_window", "24h")
    )


@sentence(r"with (?:catchup=once and )?a catchup_window of at least (\d+) s .+")
def longer_window(answer, seconds):
    late = answer.story.decided_at - answer.due
    return length(answer.of("catchup_window", "24h")) < late <= int(seconds) * 1000 < late + 1000


@sentence(
    r"(\d+) due ticks were decided together at (<T>): run (\d+) \(tick of (<S>)\) covers them"
)
def coalesced(answer, count, at, run_id, tick):
    row = answer.row
    same = (row["tick_count"], row["run_id"], row["run_at"]) == (
        int(count),
        int(run_id),
        instant(tick),
    )
    return same and answer.story.made_at == milliseconds(at)


@sentence(r"with catchup=all it would have had a separate run")
def all_of_them(answer):
    return answer.of("catchup", "once") == "once" and not answer.story.is_resumed


@sentence(r"it was caught up: it was decided at (<T>), (.+) late")
def caught_up(answer, at, late):
    same = answer.story.triggered_by == "catchup" and answer.story.made_at == milliseconds(at)
    is_late = answer.row["created_at"] - answer.row["due_at"]
    return same and not answer.story.is_resumed and is_span(late, is_late)


@sentence(r"it was caught up when its schedule was resumed")
def resumed(answer):
    return answer.story.triggered_by == "catchup" and answer.story.is_resumed


@sentence(r"one row covers (\d+) ticks, from (<S>) to (<S>)")
def stands_for(answer, count, first, last):
    row = answer.row
    what = (row["tick_count"], row["first_run_at"], row["run_at"])
    return what == (int(count), instant(first), instant(last)) and row["first_run_at"] <= answer.at


@sentence(r"it follows (\d+) events")
def follows(answer, count):
    return answer.row["tick_count"] == int(count)


# -- edits


@sentence(
    r"it starts by revision (\d+); the schedule is at revision (\d+) \(apply --update-waiting moves it\)"
)
def of_revision(answer, own, current):
    revisions = [each[1] for each in answer.reader.definitions[answer.schedule_id] if each[1]]
    return (answer.row["revision"], max(revisions)) == (int(own), int(current))


@sentence(r"it was decided under an earlier revision and moved to revision (\d+)")
def moved_to(answer, revision):
    edits = answer.reader.definitions[answer.schedule_id]
    began = next(begins for begins, number, *_ in edits if number == int(revision))
    return answer.row["revision"] == int(revision) and answer.story.made_at < began


# -- pauses, the gate, switches


@sentence(r"the gate was closed from (<T>) to (<T>)")
def gate(answer, since, until):
    return [milliseconds(since), milliseconds(until)] in answer.reader.gates


@sentence(r"the schedule was paused from (<T>) to (<T>)(?:, by (\S+?))?(?: \((.+)\))?")
def paused(answer, since, until, by, note):
    pause = answer.reader.pause_over(answer.schedule_id, milliseconds(since))
    is_over = pause.until is not None and milliseconds(until) == pause.until
    return (
        (pause.by, pause.note) == (by or "", note or "")
        and is_over
        and milliseconds(since) <= answer.story.decided_at
    )


@sentence(
    r"the (gate was closed|schedule was paused) since (<T>)(?:, by (\S+?))?(?: \((.+)\))?, "
    r"when an edit at (<T>) decided it"
)
def decided_by_an_edit(answer, what, since, by, *texts):
    note, at = texts
    edits = [begins for begins, *_ in answer.reader.definitions[answer.schedule_id]]
    if answer.story.decided_at != milliseconds(at) or milliseconds(at) not in edits:
        return False
    if what == "gate was closed":
        closed = [each for each in answer.reader.gates if each[0] == milliseconds(since)]
        return closed[0][1] is None or closed[0][1] > milliseconds(at)
    pause = answer.reader.pause_over(answer.schedule_id, milliseconds(since))
    is_over = pause.until is not None and pause.until <= milliseconds(at)
    return (pause.by, pause.note) == (by or "", note or "") and not is_over


@sentence(
    r"the schedule was edited at (<T>) \(revision (\d+) to (\d+)\) while (?:(\d+) ticks were|1 tick was) owed; an edit does not start past ticks"
)
def edited(answer, at, before, after, count):
    found = [
        (begins, revision) for begins, revision, *_ in answer.reader.definitions[answer.schedule_id]
    ]
    place = found.index((milliseconds(at), int(after)))
    same = found[place - 1][1] == int(before) and answer.story.decided_at == milliseconds(at)
    return same and answer.row["tick_count"] == int(count or 1) and answer.story.reason == "edited"


@sentence(r"the schedule was disabled \(enabled: false\)")
def disabled(answer):
    return answer.of("enabled", True) is False


@sentence(r"what it starts was disabled \(run.enabled: false\)")
def disabled_target(answer):
    return answer.definition["run"].get("enabled") is False


@sentence(r"the schedule has been paused since (<T>)(?:, by (\S+?))?(?: \((.+)\))?")
def is_paused(answer, since, by, note):
    pause = answer.reader.pause_over(answer.schedule_id, milliseconds(since))
    return pause.until is None and (pause.by, pause.note) == (by or "", note or "")


# -- outcomes


@sentence(r"it was replaced by a newer tick(?:, (<S>))?")
def superseded(answer, newer):
    story = answer.story
    if story.status == "CANCELED":
        return story.end_asked_at is not None
    return newer is None or (
        instant(newer) in story.newer and instant(newer) > answer.row["run_at"]
    )


@sentence(
    r"(it was canceled|it timed out|it was lost|the program was ended by a signal|it failed|it could not be launched|its target was busy|its target cannot be started): (.*)"
)
def error(answer, what, text):
    reasons = {
        "it was canceled": "canceled", "it timed out": "timeout", "it was lost": "lost",
        "the program was ended by a signal": "signal", "it failed": "error",
        "it could not be launched": "launch_failed", "its target was busy": "busy",
        "its target cannot be started": "invalid_target",
    }  # fmt: skip
    texts = (answer.story.error or answer.row["error"] or "details are not known").splitlines()[0]
    return answer.story.reason == reasons[what] and texts == text


@sentence(r"it was canceled before it was launched")
def canceled_unlaunched(answer):
    error = answer.story.error or answer.row["error"]
    return answer.story.reason == "canceled" and error == UNLAUNCHED


@sentence(r"the program ended with exit code (\d+)")
def exit_code(answer, code):
    return answer.story.reason == "exit" and answer.row["exit_code"] == int(code)


@sentence(r"with retry=\[30s\] it would have been tried again")
def with_retry(answer):
    return "retry" not in answer.definition and answer.story.reason in ("exit", "timeout")


@sentence(r"with (\w+) in retry.on it would have been tried again")
def with_reason(answer, reason):
    given = answer.definition["retry"]
    return answer.story.reason == reason and reason not in given["on"]


@sentence(r"with a longer timeout it would have stayed in flight until its report")
def longer_timeout(answer):
    until = answer.story.accepted_until
    return (
        answer.story.reason == "timeout" and until is not None and until <= answer.story.decided_at
    )


@sentence(r"with on_lost=retry it would have been started again, under the same key")
def with_on_lost(answer):
    return answer.of("on_lost", "fail") == "fail" and answer.story.reason == "lost"


# -- attempts


@sentence(r"(?:it ran from|the attempt was made at) (<T>)(?: to | and ended at )(<T>)")
def ran(answer, since, until):
    (only,) = answer.story.attempts
    return (only.started_at, only.ended_at) == (milliseconds(since), milliseconds(until))


@sentence(r"(?:it|attempt (\d+)) was announced at (<T>) and ended at (<T>) without being launched")
def unlaunched(answer, number, since, until):
    found = attempt(answer, number)
    what = (found.started_at, found.ended_at, found.error or answer.story.error)
    return what == (milliseconds(since), milliseconds(until), UNLAUNCHED)


@sentence(r"(?:it|attempt (\d+)) was announced at (<T>) and recorded as lost at (<T>)(?:: .+)?")
def lost(answer, number, since, until):
    found = attempt(answer, number)
    what = (found.started_at, found.ended_at, found.reason)
    return what == (milliseconds(since), milliseconds(until), "lost")


@sentence(r"attempt (\d+) (?:ran from|was made at) (<T>)(?: to | and ended at )(<T>): (.+)")
def attempted(answer, number, since, until, outcome):
    found = attempt(answer, number)
    same = (found.started_at, found.ended_at) == (milliseconds(since), milliseconds(until))
    words = {
        None: "it succeeded", "exit": "exit code ", "canceled": "canceled", "superseded": "superseded",
        "launch_failed": f"it could not be launched: {found.error}",
        "busy": f"its target was busy: {found.error}",
    }  # fmt: skip
    return same and outcome.startswith(words.get(found.reason, f"{found.reason}"))


@sentence(r"attempts (\d+) to (\d+) were made from (<T>) to (<T>): its target was busy: (.+)")
def attempted_often(answer, first, last, since, *texts):
    until, error = texts
    found = [each for each in answer.story.attempts if int(first) <= each.number <= int(last)]
    what = (found[0].started_at, found[-1].ended_at)
    same = {(each.reason, each.error) for each in found} == {("busy", error)}
    return same and what == (milliseconds(since), milliseconds(until))


def attempt(answer, number):
    number = 1 if number is None else int(number)
    return next(each for each in answer.story.attempts if each.number == number)


@sentence(r"(\d+) earlier attempts? (?:is|are) not listed")
def left_out(answer, count):
    return 0 < int(count) < answer.row["attempt"]


@sentence(r"attempt (\d+) has been running since (<T>)")
def going(answer, number, since):
    last = answer.story.attempts[-1]
    return (last.number, last.started_at, last.ended_at) == (int(number), milliseconds(since), None)


@sentence(r"attempt (\d+) was due at (<T>) and was dropped at (<T>)")
def dropped(answer, number, due, at):
    last = answer.story.attempts[-1]
    what = (last.number + 1, answer.story.due_at, answer.story.decided_at)
    return answer.story.was_waiting and what == (int(number), milliseconds(due), milliseconds(at))


@sentence(r"it was ended at (<T>) before it started")
def before(answer, at):
    return answer.story.was_waiting and answer.story.decided_at == milliseconds(at)


@sentence(r"it was ended at (<T>) while it waited in the queue behind run (\d+)")
def queued(answer, at, run_id):
    same = answer.story.was_waiting and answer.story.decided_at == milliseconds(at)
    return same and answer.story.waits_behind == int(run_id)


@sentence(
    r"it was ended at (<T>) while it waited for a node that offers (\S+); no such node was up(?: \(.+\))?"
)
def no_node(answer, at, needs):
    same = answer.story.was_waiting and answer.story.decided_at == milliseconds(at)
    return same and answer.row["needs"] == needs and needs not in answer.week.offers()


@sentence(
    r"it was ended at (<T>) while it waited for (a place in its group|a free place on a node|the end of a pause|its due time, .+)"
)
def waited(answer, at, what):
    same = answer.story.was_waiting and answer.story.decided_at == milliseconds(at)
    if what.startswith("its due time"):
        return same and answer.row["due_at"] > answer.story.decided_at
    return same and (not what.startswith("a place") or answer.of("group", None) is not None)


# -- causes


@sentence(r"it was backfilled(?: by (\S+))?")
def backfilled(answer, by):
    return answer.story.triggered_by == "backfill" and answer.story.by == (by or "")


@sentence(r"it was started manually(?: by (\S+))? at (<T>)")
def manual(answer, by, at):
    story = answer.story
    return (story.triggered_by, story.by, story.made_at) == ("manual", by or "", milliseconds(at))


@sentence(r"artifact (\S+) \((\w+)\) triggered it at (<T>)")
def artifact(answer, name, kind, at):
    what = (answer.story.triggered_by, answer.row["request_id"], answer.story.made_at)
    return what == ("artifact", name, milliseconds(at)) and kind == "LogEntry"


@sentence(r"it had been overdue since (\S+) when its folder was adopted at (<T>)")
def overdue(answer, since, at):
    due = answer.week.script.first - 3 * 3600
    is_right = instant(since[:19] + "Z") == due and answer.story.made_at == milliseconds(at)
    return is_right and answer.story.triggered_by == "overdue"


@sentence(r"nextRun in last-run.json was set to (\S+)")
def next_run(answer, at):
    late = answer.story.made_at - instant(at[:19] + "Z") * 1000
    return answer.story.triggered_by == "next_run" and late >= 0


# -- waiting and running runs, future ticks


@sentence(r"its target accepted it(?: as \S+)? and has until (<T>) to report its outcome")
def accepted(answer, until):
    return answer.story.status == "STARTED" and answer.row["deadline_at"] == milliseconds(until)


@sentence(r"its cancellation was requested at (<T>): (\w+)")
def end_asked(answer, at, reason):
    return answer.story.end_asked_at == milliseconds(at)


@sentence(r"it waits in the queue behind run (\d+)")
def waits_behind(answer, run_id):
    return answer.story.waits_behind == int(run_id)


@sentence(r"(?:it|attempt (\d+)) is due at (<T>), in (.+)")
def is_due(answer, number, at, wait):
    due = milliseconds(at)
    same = answer.story.due_at == due and is_span(wait, due - answer.week.clock.now())
    return same and (number is None or int(number) == len(answer.story.attempts) + 1)


@sentence(r"it waits for a node that offers (\S+)(?: \(.+\))?; nodes up: \S+")
def waits_for_node(answer, needs):
    return answer.row["needs"] == needs and needs not in answer.week.offers()


@sentence(
    r"it waits for a (?:free place on a node that offers it: \S+|place in group (\S+) \((\d+) places?, used by .+\))"
)
def waits_for_place(answer, group, places):
    return answer.story.status == "ENQUEUED" and (
        group is None or answer.of("group", None) == group
    )


@sentence(r"it is dropped if (?:it|the run before it) has not started by (<T>)")
def given_up(answer, at):
    return answer.row["deadline_at"] == milliseconds(at)


@sentence(r"it is due at (<T>), moved by jitter or by hours \(within\)")
def moved(answer, at):
    return milliseconds(at) != answer.at * 1000


@sentence(r"it will be decided shortly, after any missed ticks before it")
def soon(answer):
    return answer.why["kind"] == "undecided"


# -- instants that are not ticks


@sentence(r"(\S+) in (\S+): (.+ is .+, not .+)")
def fields(answer, when, zone, failing):
    wall = datetime.fromtimestamp(answer.at, ZoneInfo(zone))
    if datetime.fromisoformat(when).timestamp() != answer.at or is_tick(
        answer.definition, answer.at
    ):
        return False
    days = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
    values = {
        "second": str(wall.second), "minute": str(wall.minute), "hour": str(wall.hour),
        "day of month": str(wall.day), "day of week": days[wall.isoweekday() % 7],
    }  # fmt: skip
    found = re.findall(r"(second|minute|hour|day of month|day of week) is (\S+?), not", failing)
    return bool(found) and all(values[name] == value for name, value in found)


@sentence(
    r"(\S+) in (\S+): the clocks show this time twice that night, and only the first is a tick"
)
def second_pass(answer, when, zone):
    return datetime.fromtimestamp(answer.at, ZoneInfo(zone)).fold == 1


@sentence(
    r"it is (?:not on the grid of .+|not one of the listed times|before the first tick, .+|before its start_at, .+)"
)
def not_on_the_grid(answer):
    return is_tick(answer.definition, answer.at) is False


@sentence(
    r"(?:no (?:run|start) of .+ caused a tick|it has no ticks: its trigger is manual)(?:; no (?:run|start) of .+)?"
)
def follows_events(answer):
    return is_tick(answer.definition, answer.at) is None


@sentence(r"(\d{4}-\d\d-\d\d): .+ (?:twice|not exist) in (\S+) \(clocks go from .+\): .+")
def night(answer, day, zone):
    noon = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo(zone))
    before = noon.replace(hour=0)
    return noon.utcoffset() != before.utcoffset() and abs(noon.timestamp() - answer.at) < 3 * 86_400


@sentence(r"earlier instants are not ticks, except in a backfill")
def before_it(answer):
    since = answer.reader.definitions[answer.schedule_id][0][0]
    return answer.at <= since // 1000


@sentence(
    r"the ticks up to (<S>) are decided, and this one has no row: another definition or other time zone data was in effect then"
)
def without_row(answer, until):
    changes = [at // 1000 for at, *_ in answer.reader.definitions[answer.schedule_id]]
    return answer.at <= instant(until) and any(abs(answer.at - at) <= 1 for at in changes)

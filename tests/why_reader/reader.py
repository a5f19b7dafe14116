"""The facts of a schedule and an instant, read from rows and events without the product's code.

Runs are replayed from their events: decisions, attempts, outcomes, blocking runs and newer ticks. So
are definitions, pauses, the gate and nodes. Rows are read only for what no event contains (`created_at`, `due_at`, `deadline_at`, `request_id`), and compared.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field

from tests.why_reader.ticks import is_tick

COLUMNS = (
    "run_id",
    "schedule_id",
    "run_at",
    "request_id",
    "due_at",
    "phase",
    "reason",
    "triggered_by",
    "attempt",
    "revision",
    "tick_count",
    "first_run_at",
    "blocked_by",
    "started_at",
    "finished_at",
    "exit_code",
    "error",
    "deadline_at",
    "created_at",
    "needs",
)
RUNS = f"SELECT {', '.join(COLUMNS)} FROM schedule_runs ORDER BY run_id"


@dataclass
class Attempt:
    """One attempt: announced, and its outcome recorded."""

    number: int
    started_at: int
    ended_at: int | None = None
    reason: str | None = None
    error: str = ""


@dataclass
class Story:
    """A run, replayed from its events."""

    schedule_id: str
    run_id: int
    status: str = ""
    reason: str | None = None
    error: str = ""
    decided_at: int = 0  # when the last thing was recorded that ended it, or made it
    made_at: int = 0
    triggered_by: str = "timer"
    blocked_by: int | None = None
    was_waiting: bool = False  # when it ended
    waits_behind: int | None = None  # in a queue, when it ended
    newer: frozenset = frozenset()  # ticks that were decided in the transaction that ended it
    attempts: list = field(default_factory=list)
    row: dict = field(default_factory=dict)
    by: str = ""
    due_at: int | None = None
    is_resumed: bool = False  # it was made in a transaction that resumed its schedule
    is_defined: bool = False  # it was made in the transaction that defined the schedule
    end_asked_at: int | None = None
    accepted_until: int | None = None  # when its target was to report by, of the last attempt

    @property
    def is_over(self):
        return self.status in ("SUCCESS", "FAILED", "CANCELED", "SKIPPED")

    def during(self, at):
        """Return the attempt that was going at an instant."""
        found = [each for each in self.attempts if each.started_at <= at]
        return next((e for e in reversed(found) if e.ended_at is None or at <= e.ended_at), None)


@dataclass
class Pause:
    """A pause, until it was resumed, or its time was over."""

    since: int
    note: str
    by: str
    until: int | None = None


class Reader:
    """All facts of a database. `query` runs a statement and returns its rows."""

    def __init__(self, query):
        self.runs, self.definitions = {}, defaultdict(list)
        self.pauses, self.gates, self.nodes = defaultdict(list), [], defaultdict(list)
        for at, body in query("SELECT at, body FROM events ORDER BY event_id"):
            events = json.loads(body)
            for event in events:
                self._replay(at, event, events)
        self.rows = defaultdict(list)
        for row in query(RUNS):
            fields = dict(zip(COLUMNS, row, strict=True))
            self.rows[fields["schedule_id"]].append(fields)
            self._story(fields["schedule_id"], fields["run_id"]).row = fields
        self.decided_until = dict(query("SELECT schedule_id, decided_until FROM schedule_state"))

    # -- events

    def _story(self, schedule_id, run_id):
        return self.runs.setdefault(run_id, Story(schedule_id, run_id))

    def _replay(self, at, event, together):
        name, schedule_id = event["name"], event.get("schedule_id")
        match name.split("."):
            case ["schedule", "created" | "changed"]:
                definition = json.loads(event["definition"])
                since = event.get("since")
                begins = at if since is None else min(at, since * 1000)
                self.definitions[schedule_id].append((begins, event["revision"], definition, name))
                self._end_pause(schedule_id, at) if name == "schedule.created" else None
            case ["schedule", "deleted"]:
                self.definitions[schedule_id].append((at, None, None, name))
            case ["schedule", "paused"]:
                self._pause(schedule_id, at, event)
            case ["schedule", "resumed"]:
                self._end_pause(schedule_id, at)
            case ["gate", "changed"]:
                if event["open"]:
                    self.gates[-1][1] = at
                else:
                    self.gates.append([at, None])
            case ["node", "started"]:
                self.nodes[event["node_id"]].append([at, None, ""])
            case ["node", "stopped" | "lost" as how]:
                for each in self.nodes[event["node_id"]]:
                    if each[1] is None:
                        each[1:] = [at, how]
            case ["run" | "range", verb]:
                story = self._story(schedule_id, event["run_id"])
                getattr(self, f"_{verb}", self._nothing)(story, at, event, together)

    def _pause(self, schedule_id, at, event):
        going = [each for each in self.pauses[schedule_id] if each.until is None]
        if going:
            going[0].note = event.get("note", "")
        else:
            pause = Pause(at, event.get("note", ""), event.get("by", ""))
            self.pauses[schedule_id].append(pause)

    def _end_pause(self, schedule_id, at):
        for each in self.pauses[schedule_id]:
            each.until = at if each.until is None else each.until

    def _nothing(self, story, at, event, together):
        """Ignore an event without effect on `why`."""

    def _made(self, story, at, event, together):
        if not story.made_at:
            story.made_at = at
            story.by = event.get("by", "")
            names = [
                each["name"] for each in together if each.get("schedule_id") == story.schedule_id
            ]
            story.is_resumed = "schedule.resumed" in names
            story.is_defined = "schedule.created" in names

    def _enqueued(self, story, at, event, together):
        self._made(story, at, event, together)
        story.status, story.reason, story.due_at = "ENQUEUED", None, event.get("due_at")
        if event.get("triggered_by", "timer") != "timer" or not story.attempts:
            story.triggered_by = event.get("triggered_by", story.triggered_by)
        story.waits_behind = event.get("blocked_by")

    def _backfilled(self, story, at, event, together):
        story.status, story.reason, story.triggered_by = "ENQUEUED", None, "backfill"
        story.waits_behind, story.blocked_by, story.by = None, None, event.get("by", "")
        story.error, story.due_at = "", event["due_at"]

    def _released(self, story, at, event, together):
        story.waits_behind = None

    def _started(self, story, at, event, together):
        self._made(story, at, event, together)
        if event.get("due_at") is not None:  # it was decided in this transaction, too
            story.triggered_by, story.due_at = event.get("triggered_by", "timer"), event["due_at"]
        story.status, story.accepted_until = "STARTED", None
        story.attempts.append(Attempt(event["attempt"], at))

    def _accepted(self, story, at, event, together):
        story.accepted_until = event["deadline_at"]

    def _handed_back(self, story, at, event, together):
        if story.status == "STARTED":
            story.attempts.pop()  # it was not launched
        story.status = "ENQUEUED"

    def _end_asked(self, story, at, event, together):
        story.end_asked_at = at

    def _end_attempt(self, story, at, reason, error=""):
        if story.status == "STARTED":
            last = story.attempts[-1]
            last.ended_at, last.reason, last.error = at, reason, error

    def _retrying(self, story, at, event, together):
        self._end_attempt(story, at, event["reason"], event.get("error", ""))
        story.status, story.reason, story.due_at = "ENQUEUED", event["reason"], event["due_at"]
        story.error = event.get("error", "")

    def _ended(self, story, at, status, event, together):
        self._made(story, at, event, together)
        story.was_waiting = story.status != "STARTED"
        reason = event.get("reason", "canceled" if status == "CANCELED" else None)
        self._end_attempt(story, at, reason, event.get("error", ""))
        story.status, story.reason, story.decided_at = status, reason, at
        story.error = event.get("error", "") or (story.error if story.was_waiting else "")
        story.newer = frozenset(
            each["run_at"] for each in together
            if each.get("schedule_id") == story.schedule_id and "run_at" in each
        )  # fmt: skip

    def _succeeded(self, story, at, event, together):
        self._ended(story, at, "SUCCESS", event, together)

    def _failed(self, story, at, event, together):
        self._ended(story, at, "FAILED", event, together)

    def _canceled(self, story, at, event, together):
        self._ended(story, at, "CANCELED", event, together)

    def _skipped(self, story, at, event, together):
        self._ended(story, at, "SKIPPED", event, together)
        story.blocked_by = event.get("blocked_by")

    def _shortened(self, story, at, event, together):
        if event.get("reason"):  # a row of its own, for what is left of a range
            story.status, story.reason = "SKIPPED", event["reason"]
            story.made_at = story.decided_at = at

    # -- queries

    def definition_at(self, schedule_id, t):
        """Return the definition whose ticks hold at a second, or None."""
        found = None
        for at, _, definition, name in self.definitions[schedule_id]:
            alone = name == "schedule.created" and definition is not None and "at" in definition
            if at // 1000 < t or (alone and len(self.definitions[schedule_id]) == 1):
                found = definition
        return found

    def of_revision(self, schedule_id, revision):
        """Return the definition of a revision."""
        return next((d for _, n, d, _ in self.definitions[schedule_id] if n == revision), None)

    def run_at(self, schedule_id, t):
        """Return the run of a second, or of a range that contains it, or None."""
        rows = self.rows[schedule_id]
        own = [row for row in rows if row["run_at"] == t and not row["request_id"]]
        if own:
            return self.runs[own[0]["run_id"]]
        definition = self.definition_at(schedule_id, t)
        ticks = None if definition is None else is_tick(definition, t)
        if ticks:
            covering = [
                row for row in rows
                if not row["request_id"] and row["first_run_at"] is not None
                and row["first_run_at"] <= t < row["run_at"]
            ]  # fmt: skip
            first = min(covering, key=lambda row: row["run_at"], default=None)
            return None if first is None else self.runs[first["run_id"]]
        asked = [row for row in rows if row["run_at"] == t and row["request_id"]]
        return self.runs[asked[-1]["run_id"]] if asked else None

    def pause_over(self, schedule_id, since):
        """Return the pause that began at an instant."""
        return next((each for each in self.pauses[schedule_id] if each.since == since), None)

    def up_at(self, at):
        """Return whether a node was up at an instant."""
        stretches = [each for node in self.nodes.values() for each in node]
        return any(began <= at and (ended is None or at < ended) for began, ended, _ in stretches)

    def outage_around(self, at):
        """Return from when to when no node was up around an instant, and how the last one left."""
        stretches = sorted(each for node in self.nodes.values() for each in node)
        before = [each for each in stretches if each[0] <= at]
        after = [each for each in stretches if each[0] > at]
        since, how = (before[-1][1], before[-1][2]) if before else (None, "")
        return since, (after[0][0] if after else None), how

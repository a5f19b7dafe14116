"""The decision about a slug, as a table: what is known of it, and what is done in which order."""

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from onbeat.core.schedule import definition as text_of
from onbeat.core.time.instants import parse_instant_ms
from onbeat.ports.rows import ScheduleRow
from onbeat.ports.store import InitialPosition
from onbeat.systems.sessions.definitions import SOURCE, PromptDefaults, read_definition
from onbeat.systems.sessions.files import DEFINITION, LAST_RUN, Corrupt, Folder
from onbeat.systems.sessions.reconcile_slug import (
    STAGES,
    SlugState,
    reconcile,
    refuse,
    start_requested_run,
    switch,
)
from onbeat.systems.sessions.slug_actions import (
    AwaitChange,
    CancelOvertaken,
    CancelRetries,
    CancelWaiting,
    CheckName,
    Define,
    Delete,
    ForgetRecord,
    ForgetRequest,
    ForgetSession,
    Hold,
    Log,
    Pause,
    ReadAgain,
    ReconcileAgain,
    RemoveFiles,
    Resume,
    SaveRecord,
    SetSession,
    Solve,
    StartRun,
    WriteFiles,
)
from onbeat.systems.sessions.status import SlugRecord, digest_of

NOW = parse_instant_ms("2026-01-29T08:00:00Z")
NINE = parse_instant_ms("2026-01-29T09:00:00Z")
CREATED = parse_instant_ms("2026-01-28T07:00:00Z")

D = {
    "slug": "daily",
    "prompt": "Standup",
    "enabled": True,
    "schedule": {"type": "cron", "expression": "0 9 * * *"},
    "sessionConfig": {"persistSession": True},
}
OFF, BOLD = D | {"enabled": False}, D | {"prompt": "Bolder"}
L = {
    "lastRun": None,
    "lastResult": None,
    "lastError": None,
    "sessionId": "abc",
    "nextRun": "2026-01-29T09:00:00.000Z",
}
RAN = {"lastRun": "2026-01-29T07:00:00.000Z", "lastResult": "success", "lastError": None}
WRITTEN = {"sessionId": "abc", "nextRun": "2026-01-29T09:00:00.000Z"}
EARLY, LATE = "2026-01-29T08:30:00.000Z", "2026-01-29T10:00:00.000Z"

R = SlugRecord(D, written=WRITTEN, is_written=True)
BROKEN, REFUSED = Corrupt(DEFINITION, "invalid JSON"), "definition.json: prompt is required"
HELD = replace(R, held="definition.json: invalid JSON")
OFTEN = "Minimum interval is 1440 minutes (24 hours)"
DROP = [RemoveFiles(), ForgetRecord(), ForgetSession(), Solve()]
NAME, FILES = CheckName("daily"), ReadAgain("files")


def a_slug(fields=D):
    """Return the schedule of a definition."""
    return read_definition("daily", fields, PromptDefaults(), begins_at=NOW // 1000, now=NOW)


def a_row(fields=D, **changed):
    given = {
        "schedule_id": "daily",
        "definition": text_of(a_slug(fields)),
        "revision": 1,
        "source": SOURCE,
        "user_id": "ann",
        "paused": False,
        "pause_note": "",
        "paused_until": None,
        "created_at": CREATED,
        "updated_at": CREATED,
        "next_run_at": NINE // 1000,
        "next_due_at": NINE,
        "runs_used": 0,
        "iteration": 0,
        **dict.fromkeys(("last_run_at", "last_success_at", "last_failure_at", "last_exit")),
        **dict.fromkeys(("last_missed_at", "last_miss_reason")),
        "consecutive_failures": 0,
    }
    return ScheduleRow(**given | changed)


def paused(note="", **changed):
    return a_row(paused=True, pause_note=note, next_run_at=None, next_due_at=None, **changed)


@dataclass
class Case:
    """What is known of a slug, and the actions that are decided."""

    name: str
    expected: list
    definition: object = field(default_factory=lambda: D)
    last_run: object = None
    stage: str = "definition"
    row: object = None
    record: object = None
    also: dict = field(default_factory=dict)

    def decide(self):
        folder = Folder(self.definition, self.last_run)
        given = {"row": self.row, "record": self.record, **self.also}
        return reconcile(SlugState(slug="daily", now=NOW, folder=folder, **given), self.stage)


NEW = InitialPosition()
AFTER = D | {"schedule": {"type": "after", "slug": "other"}}

NEW_FOLDERS = [
    Case("a new folder is defined first", [Define(a_slug(), position=NEW), ReadAgain("adoption")]),
    Case(
        "a new disabled folder is defined paused",
        [Define(a_slug(OFF), position=InitialPosition(paused=True)), ReadAgain("adoption")],
        OFF,
    ),
    Case(
        "a new folder continues from its last run",
        [
            Define(
                a_slug(),
                position=InitialPosition(
                    last_run_at=NOW - 3_600_000, last_success_at=NOW - 3_600_000
                ),
            ),
            ReadAgain("adoption"),
        ],
        last_run=L | RAN,
    ),
    Case(
        "a new folder without a last run is due now",
        [
            SaveRecord(SlugRecord(D).awaiting("2026-01-29T08:00:00.000Z", NOW, "overdue")),
            NAME,
            FILES,
        ],
        stage="adoption",
        row=a_row(),
    ),
    Case(
        "a new folder that follows another schedule is not due",
        [SaveRecord(SlugRecord(AFTER)), NAME, FILES],
        AFTER,
        stage="adoption",
        row=a_row(AFTER, next_run_at=None, next_due_at=None),
    ),
    Case(
        "a new disabled folder is not due",
        [SaveRecord(SlugRecord(OFF)), NAME, FILES],
        OFF,
        stage="adoption",
        row=paused(),
    ),
    Case(
        "the session of a new folder is set before its record is stored",
        [
            SetSession("abc", CREATED),
            SaveRecord(replace(SlugRecord(D), written=WRITTEN, ran=RAN)),
            NAME,
            ReadAgain("other scheduler"),
        ],
        last_run=L | RAN,
        stage="adoption",
        row=a_row(),
    ),
    Case(
        "an early next run of a new folder is awaited",
        [
            SaveRecord(
                replace(SlugRecord(D), written={"sessionId": None, "nextRun": EARLY}).awaiting(
                    EARLY, NOW, "next_run"
                )
            ),
            NAME,
            ReadAgain("other scheduler"),
        ],
        last_run=L | {"sessionId": None, "nextRun": EARLY},
        stage="adoption",
        row=a_row(),
    ),
    Case(
        "a schedule whose record was lost in a crash is adopted again",
        [Define(a_slug(), position=NEW), ReadAgain("adoption")],
        row=a_row(),
    ),
    Case(
        "a slug whose id is taken is held",
        [
            Hold(
                Corrupt(
                    DEFINITION,
                    "another schedule is called daily (choose another slug)",
                    is_refused=True,
                )
            ),
            AwaitChange(),
        ],
        also={"is_taken": True},
    ),
]

EDITS = [
    Case("nothing changed", [NAME, FILES], row=a_row(), record=R),
    Case("nothing changed in both files", [NAME, FILES], last_run=L, row=a_row(), record=R),
    Case(
        "a definition that is still being written is not an edit",
        [NAME, FILES],
        row=a_row(BOLD),
        record=replace(R, definition=BOLD, before=(digest_of(D),)),
    ),
    Case(
        "an edited definition is defined before its record is stored",
        [Define(a_slug(BOLD), user_id="ann"), SaveRecord(replace(R, definition=BOLD)), NAME, FILES],
        BOLD,
        row=a_row(),
        record=R,
    ),
    Case(
        "an edit disables a schedule",
        [
            Define(a_slug(OFF), user_id="ann"),
            Pause("disabled"),
            SaveRecord(replace(R, definition=OFF)),
            NAME,
            FILES,
        ],
        OFF,
        row=a_row(),
        record=R,
    ),
    Case(
        "an edit enables a schedule",
        [
            Define(a_slug(), user_id="ann"),
            Resume(),
            SaveRecord(R),
            NAME,
            FILES,
        ],
        row=paused("disabled"),
        record=replace(R, definition=OFF),
    ),
    Case(
        "both files are edited: the definition is applied first",
        [
            Define(a_slug(BOLD), user_id="ann"),
            SaveRecord(replace(R, definition=BOLD)),
            NAME,
            ReadAgain("other scheduler"),
        ],
        BOLD,
        last_run=L | {"nextRun": EARLY},
        row=a_row(),
        record=R,
    ),
    Case(
        "both files are edited: then the next run",
        [
            SaveRecord(
                replace(R, definition=BOLD, written=WRITTEN | {"nextRun": EARLY}).awaiting(
                    EARLY, NOW
                )
            ),
            FILES,
        ],
        BOLD,
        last_run=L | {"nextRun": EARLY},
        stage="other scheduler",
        row=a_row(BOLD),
        record=replace(R, definition=BOLD),
    ),
    Case(
        "a name that differs from the folder is reported after the edit",
        [
            Define(a_slug(BOLD), user_id="ann"),
            SaveRecord(replace(R, definition=BOLD | {"slug": "weekly"})),
            CheckName("weekly"),
            FILES,
        ],
        BOLD | {"slug": "weekly"},
        row=a_row(),
        record=R,
    ),
    Case(
        "an edit of a schedule that was deleted elsewhere is adopted",
        [Define(a_slug(BOLD), position=NEW), ReadAgain("adoption")],
        BOLD,
        record=R,
    ),
    Case("the files of a schedule that was deleted elsewhere are removed", DROP, record=R),
]

LAST_RUNS = [
    Case(
        "a tick that another scheduler ran is skipped here",
        [
            SaveRecord(replace(R, ran=RAN)),
            Log("another scheduler ran it at 2026-01-29T07:00:00.000Z"),
            Pause("another scheduler ran it at 2026-01-29T07:00:00.000Z"),
            Resume(),
            ReadAgain("last run"),
        ],
        last_run=L | RAN,
        stage="other scheduler",
        row=a_row(next_due_at=NOW - 7_200_000),
        record=R,
    ),
    Case(
        "a later last run without an owed tick is only recorded",
        [NAME, SaveRecord(replace(R, ran=RAN)), ReadAgain("last run")],
        last_run=L | RAN,
        row=a_row(),
        record=R,
    ),
    Case(
        "a last run in the future is ignored",
        [FILES],
        last_run=L | RAN | {"lastRun": LATE},
        stage="other scheduler",
        row=a_row(),
        record=R,
    ),
    Case(
        "an edited next run that is earlier than the next tick is awaited",
        [
            NAME,
            SaveRecord(replace(R, written=WRITTEN | {"nextRun": EARLY}).awaiting(EARLY, NOW)),
            FILES,
        ],
        last_run=L | {"nextRun": EARLY},
        row=a_row(),
        record=R,
    ),
    Case(
        "an edited next run that is later than the next tick has no effect",
        [SaveRecord(replace(R, written=WRITTEN | {"nextRun": LATE}).awaiting(None, NOW)), FILES],
        last_run=L | {"nextRun": LATE},
        stage="last run",
        row=a_row(),
        record=R,
    ),
    Case(
        "a next run that is still being written is not an edit",
        [FILES],
        last_run=L,
        stage="last run",
        row=a_row(),
        record=replace(R, written=WRITTEN | {"nextRun": LATE}, written_before=(WRITTEN,)),
    ),
    Case(
        "an edited session is set before the record is stored",
        [
            SetSession("mine", CREATED),
            SaveRecord(replace(R, written=WRITTEN | {"sessionId": "mine"})),
            FILES,
        ],
        last_run=L | {"sessionId": "mine"},
        stage="last run",
        row=a_row(),
        record=R,
    ),
    Case(
        "a session set to null is forgotten",
        [ForgetSession(), SaveRecord(replace(R, written=WRITTEN | {"sessionId": None})), FILES],
        last_run=L | {"sessionId": None},
        stage="last run",
        row=a_row(),
        record=R,
    ),
]


def held(why, note, record, *, paused_now):
    pause = [SaveRecord(replace(record, held=note)), Pause(note)] if paused_now else []
    return [Hold(why), *pause, AwaitChange(), ReadAgain("runs")]


NO_PROMPT = Corrupt(DEFINITION, "prompt is required", is_refused=True)
NO_JSON = Corrupt(LAST_RUN, "nextRun: it is not a string (a string, or null)")
PROBLEMS = [
    Case("a broken definition without a schedule", [Hold(BROKEN), AwaitChange()], BROKEN),
    Case(
        "a broken definition pauses its schedule, and the note is stored before",
        held(BROKEN, "definition.json: invalid JSON", R, paused_now=True),
        BROKEN,
        row=a_row(),
        record=R,
    ),
    Case(
        "a broken definition of a paused schedule changes nothing",
        held(BROKEN, "", R, paused_now=False),
        BROKEN,
        row=paused("until Monday"),
        record=R,
    ),
    Case(
        "a broken last run pauses its schedule",
        held(NO_JSON, f"{LAST_RUN}: {NO_JSON.why}", R, paused_now=True),
        last_run={"nextRun": 5},
        row=a_row(),
        record=R,
    ),
    Case(
        "a refused edit pauses its schedule",
        held(NO_PROMPT, REFUSED, R, paused_now=True),
        D | {"prompt": ""},
        row=a_row(),
        record=R,
    ),
    Case(
        "repaired files resume their schedule",
        [Resume(), SaveRecord(R), NAME, FILES],
        row=paused(HELD.held),
        record=HELD,
    ),
    Case(
        "repaired files leave a manual pause",
        [SaveRecord(R), NAME, FILES],
        row=paused("until Monday"),
        record=HELD,
    ),
    Case(
        "repaired files of a schedule that is too frequent by now stay held",
        [NAME, FILES],
        row=paused(HELD.held),
        record=HELD,
        also={"too_often": OFTEN},
    ),
    Case(
        "a schedule that is too frequent by now is held",
        held(
            Corrupt(DEFINITION, OFTEN, is_refused=True),
            f"definition.json: {OFTEN}",
            R,
            paused_now=True,
        ),
        stage="checks",
        row=a_row(),
        record=R,
        also={"too_often": OFTEN},
    ),
    Case(
        "a schedule that is broken already is not held again",
        [CancelOvertaken()],
        stage="checks",
        row=paused(HELD.held),
        record=HELD,
        also={"too_often": OFTEN, "is_broken": True},
    ),
]

REMOVED = [
    Case("nothing is left", [Solve()], None),
    Case("a folder that was removed after its schedule", DROP, None, record=R),
    Case(
        "a removed folder deletes its schedule",
        [
            Log("the schedule is deleted, because its folder was removed"),
            Delete(),
            *DROP,
        ],
        None,
        row=a_row(),
        record=R,
        also={"is_removed": True},
    ),
    Case("a missing definition is written again", [FILES], None, row=a_row(), record=R),
    Case(
        "a folder to be filled is overwritten",
        [FILES],
        BOLD,
        row=a_row(),
        record=R,
        also={"is_to_fill": True},
    ),
    Case(
        "a broken folder to be filled is overwritten",
        [FILES],
        BROKEN,
        last_run=BROKEN,
        row=a_row(),
        record=R,
        also={"is_to_fill": True},
    ),
    Case(
        "a folder to be filled keeps a later last run",
        [SaveRecord(replace(R, ran=RAN)), FILES],
        BOLD,
        last_run=L | RAN | {"nextRun": EARLY},
        row=a_row(),
        record=R,
        also={"is_to_fill": True},
    ),
    Case(
        "an unknown folder is adopted while others are filled",
        [Define(a_slug(), position=NEW), ReadAgain("adoption")],
        also={"is_to_fill": True},
    ),
]

DISABLED = paused("disabled", updated_at=NOW)
RUNS = [
    Case("an enabled schedule", [CancelOvertaken()], stage="runs", row=a_row(), record=R),
    Case(
        "a disabled schedule loses its waiting runs once",
        [
            CancelOvertaken(),
            CancelWaiting(NOW),
            SaveRecord(replace(R, disabled_at=NOW)),
            ReconcileAgain(),
        ],
        stage="runs",
        row=DISABLED,
        record=R,
    ),
    Case(
        "a schedule that was disabled before keeps its manual runs",
        [CancelOvertaken()],
        stage="runs",
        row=DISABLED,
        record=replace(R, disabled_at=NOW),
    ),
    Case(
        "an enabled schedule forgets when it was disabled",
        [CancelOvertaken(), SaveRecord(R)],
        stage="runs",
        row=a_row(),
        record=replace(R, disabled_at=NOW),
    ),
    Case(
        "a held schedule is not disabled",
        [CancelOvertaken()],
        stage="runs",
        row=paused(HELD.held),
        record=HELD,
    ),
    Case("a deleted schedule", [], stage="runs", record=R),
    Case("a schedule without a record", [], stage="checks", row=a_row()),
]


def file_case(name, row, record, records, definition=D, **also):
    """Return a case of the stage that writes files: the records stored before and after that."""
    (before, after), last_run = records, L | {"sessionId": "abc"}
    solves = also.get("too_often") is None
    overwrites = also.get("overwrites", False)
    expected = None if overwrites else Folder(D, L)
    write = WriteFiles(row, definition, last_run, expected, written=after, solves=solves)
    return Case(
        name,
        [SaveRecord(before), write, ReadAgain("checks")],
        last_run=L,
        stage="files",
        row=row,
        record=record,
        also={"session_id": "abc", **also},
    )


EDITED_HERE = BOLD | {"updatedAt": "2026-01-29T08:00:00.000Z"}
BOTH = replace(R, definition=EDITED_HERE, before=(digest_of(D),))
WRITES = [
    file_case("files that are up to date", a_row(), R, (R, R)),
    file_case("files of any content", a_row(), R, (R, R), overwrites=True),
    file_case("files of a schedule that stays too frequent", a_row(), R, (R, R), too_often=OFTEN),
    file_case(
        "the record recognizes the old definition while the new one is written",
        a_row(BOLD),
        R,
        (BOTH, replace(BOTH, before=())),
        EDITED_HERE,
    ),
    file_case(
        "the record recognizes the old last run while the new one is written",
        a_row(),
        replace(R, written={"sessionId": None, "nextRun": EARLY}),
        (replace(R, written_before=({"sessionId": None, "nextRun": EARLY},)), R),
    ),
    file_case(
        "the files are known to exist only once they are written",
        a_row(),
        replace(R, is_written=False),
        (replace(R, is_written=False), R),
    ),
]

CASES = [*NEW_FOLDERS, *EDITS, *LAST_RUNS, *PROBLEMS, *REMOVED, *RUNS, *WRITES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_decision_about_a_slug(case):
    assert case.decide() == case.expected


def places(actions, *kinds):
    return [n for n, action in enumerate(actions) if isinstance(action, kinds)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_actions_are_in_an_order_that_survives_a_crash(case):
    actions = case.decide()
    records, writes = places(actions, SaveRecord), places(actions, WriteFiles)
    assert places(actions, Define) in ([], [0]), "without its record a folder is adopted again"
    assert all(min(records) < n for n in writes), "files that were not written are recognized"
    assert places(actions, RemoveFiles) <= places(actions, ForgetRecord)
    assert places(actions, ReadAgain) in ([], [len(actions) - 1])
    if places(actions, Hold):
        assert all(min(records) < n for n in places(actions, Pause)), "the pause ends by repair"


def test_table_has_every_stage():
    assert {case.stage for case in CASES} == STAGES.keys()


def test_definition_that_the_store_refuses_holds_its_slug():
    state = SlugState(slug="daily", now=NOW, folder=Folder(BOLD, None), row=a_row(), record=R)
    why = Corrupt(DEFINITION, "a cycle", is_refused=True)
    assert refuse(state, "a cycle") == held(why, "definition.json: a cycle", R, paused_now=True)


AWAITED = R.awaiting(EARLY, NOW)


class TestRequestedRun:
    def decide(self, row, record, **also):
        return start_requested_run(SlugState(slug="daily", now=NOW, row=row, record=record, **also))

    def test_is_started_before_the_request_is_forgotten(self):
        retries, start, *rest = self.decide(a_row(), AWAITED)
        assert isinstance(start, StartRun)
        assert start.request_id.startswith("next-run-")
        assert (start.cause, start.note) == ("next_run", EARLY)
        assert retries == CancelRetries(but=start.request_id)
        assert rest == [SaveRecord(replace(AWAITED, awaited=None)), ReconcileAgain()]

    def test_has_the_same_key_after_a_crash_and_another_for_the_next_edit(self):
        again = replace(AWAITED, awaited=None).awaiting(EARLY, NOW)
        keys = [self.decide(a_row(), each)[1].request_id for each in (AWAITED, AWAITED, again)]
        assert keys[0] == keys[1] != keys[2]

    def test_of_a_disabled_schedule_is_not_started(self):
        forgotten = [SaveRecord(replace(AWAITED, awaited=None)), ReconcileAgain()]
        assert self.decide(paused("disabled"), AWAITED) == forgotten

    def test_of_broken_files_waits_for_their_repair(self):
        assert self.decide(a_row(), AWAITED, is_broken=True) == []

    @pytest.mark.parametrize(("row", "record"), [(None, AWAITED), (a_row(), R), (a_row(), None)])
    def test_that_does_not_exist_is_forgotten(self, row, record):
        assert self.decide(row, record) == [ForgetRequest()]


@pytest.mark.parametrize(
    ("row", "record", "enabled", "expected"),
    [
        (a_row(), R, True, []),
        (a_row(), R, False, [Pause("disabled")]),
        (paused("until Monday"), R, True, [Resume()]),
        (paused("until Monday"), R, False, []),
        (paused(HELD.held), HELD, False, [Pause("disabled")]),
        (paused("until Monday"), None, False, []),
    ],
)
def test_schedule_is_enabled_and_disabled(row, record, enabled, expected):
    assert switch(row, record, enabled=enabled) == expected

"""What can be done about a slug, as values. `reconcile_slug` decides them, `carry_out` acts."""

from dataclasses import dataclass
from typing import Literal

from onbeat.core.runs.run import StartedBy
from onbeat.core.schedule import Schedule
from onbeat.ports.rows import ScheduleRow
from onbeat.ports.store import InitialPosition
from onbeat.systems.sessions.definitions import Fields
from onbeat.systems.sessions.files import Corrupt, Folder
from onbeat.systems.sessions.status import SlugRecord

Stage = Literal["definition", "adoption", "other scheduler", "last run", "files", "checks", "runs"]
"""A decision about a slug that needs the outcome of the one before."""


@dataclass(frozen=True, slots=True)
class Define:
    """Define the schedule; `position` is for a new one."""

    schedule: Schedule
    user_id: str = ""
    position: InitialPosition | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause the schedule, with a note."""

    note: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume the schedule from now on."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the schedule."""


@dataclass(frozen=True, slots=True)
class SaveRecord:
    """Store the record of the slug."""

    record: SlugRecord


@dataclass(frozen=True, slots=True)
class ForgetRecord:
    """Delete the record of the slug, and what is known of its schedule."""


@dataclass(frozen=True, slots=True)
class SetSession:
    """Send the next runs to a session that was not created here.

    `since` is when the schedule was created, to recognize a recreated one.
    """

    session_id: object
    since: int


@dataclass(frozen=True, slots=True)
class ForgetSession:
    """Send the next run to a new session."""


@dataclass(frozen=True, slots=True)
class StartRun:
    """Start a run. The same request starts it once, even after a crash."""

    request_id: str
    cause: StartedBy
    note: str


@dataclass(frozen=True, slots=True)
class CancelRetries:
    """Cancel runs that wait for a retry, except that of a request."""

    but: str


@dataclass(frozen=True, slots=True)
class CancelOvertaken:
    """Cancel runs that wait for a retry although a later run has replaced them."""


@dataclass(frozen=True, slots=True)
class CancelWaiting:
    """Cancel waiting runs that were created up to an instant, in milliseconds."""

    before: int


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """Write the state of a schedule to the files, unless they differ from `expected` by now.

    `written` is the record to store when both files are written; `solves` is whether the slug has
    no problem then. Files that were edited meanwhile are left to be reconciled again.
    """

    row: ScheduleRow
    definition: Fields
    last_run: Fields
    expected: Folder | None  # None: whatever they contain
    written: SlugRecord
    solves: bool


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Remove the files."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Show the slug as broken, and log the reason once."""

    why: Corrupt


@dataclass(frozen=True, slots=True)
class AwaitChange:
    """Leave the slug alone until its files or its schedule change."""


@dataclass(frozen=True, slots=True)
class Solve:
    """Forget the problem of the slug."""


@dataclass(frozen=True, slots=True)
class Log:
    """Log what is done, and why."""

    message: str


@dataclass(frozen=True, slots=True)
class CheckName:
    """Warn once of a definition whose `slug` differs from the name of its folder."""

    name: object


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """Forget the run that an edit of `nextRun` requested: there is none any more."""


@dataclass(frozen=True, slots=True)
class ReconcileAgain:
    """Reconcile the slug again with the next step."""


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """Read the schedule and the record again, and decide the next stage. It is the last action."""

    stage: Stage


SlugAction = (
    Define | Pause | Resume | Delete
    | SaveRecord | ForgetRecord | SetSession | ForgetSession
    | StartRun | CancelRetries | CancelOvertaken | CancelWaiting
    | WriteFiles | RemoveFiles
    | Hold | AwaitChange | Solve | Log | CheckName
    | ForgetRequest | ReconcileAgain | ReadAgain
)  # fmt: skip

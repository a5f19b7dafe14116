"""The exceptions that Onbeat raises.

    OnbeatError
    ├── InvalidSchedule    a definition, or a part of one, is refused: the author corrects it
    ├── InvalidFile        a file of definitions is refused: every mistake is listed with its line
    ├── InvalidSettings    a setting is refused: the operator corrects it
    ├── NoSuchSchedule     no schedule has this id: the caller uses another id
    ├── NoSuchRun          no run has this number or key
    ├── NoSuchToken        no token or session has this name or id
    ├── NoSuchWorkflow     no DAG is stored for this workflow or version
    ├── WorkflowIsUsed     schedules use the workflow: delete them first, or with it
    ├── RunIsOver          the run has ended and cannot be changed any more
    ├── RunIsHeld          a node holds the run and reports its outcome itself
    ├── RevisionConflict   the schedule has another revision than expected: read it again
    ├── ScheduleExists     a schedule with this id differs: use another id, or edit it
    ├── SourceConflict     a schedule belongs to another source: take it over, or leave it
    ├── NotAllowed         the caller lacks the permission
    ├── ApiUnavailable     the API is not available at an address: choose another, or start a node
    ├── StoreHeld          another node uses this store: stop that node, or connect as a client
    ├── StoreUnusable      the store cannot be used: an operator must repair or replace it
    ├── NodeDeclaredLost   other nodes declared this node lost: it ends its runs and registers again
    └── StoreFailed        a call failed and changed nothing: it may be retried later
        └── StoreInDoubt   no answer came: whether it took effect is unknown, so check

Classes are split by what the caller does next, never by where they were raised.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from reprlib import Repr
from types import TracebackType
from typing import NamedTuple


class OnbeatError(Exception):
    """The base class of all exceptions that Onbeat raises."""


class _Refused(OnbeatError):  # noqa: N818 - it names what is wrong
    """Invalid input: `field` is where, `problem` what is wrong, `hint` what would be right."""

    def __init__(self, field: str, problem: str, *, hint: str = "") -> None:
        self.field = field
        self.problem = problem
        self.hint = hint
        super().__init__(field, problem, hint)

    def __str__(self) -> str:
        problem = f"{self.field}: {self.problem}" if self.field else self.problem
        return f"{problem} ({self.hint})" if self.hint else problem

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), hint=self.hint), (self.field, self.problem)


class InvalidSchedule(_Refused):
    """A definition is refused: `field` is where, `problem` what is wrong, `hint` what is right."""

    def under(self, path: str) -> "InvalidSchedule":
        """Return the same error with `path` put before its field."""
        dot = "" if not self.field or self.field.startswith("[") else "."
        return InvalidSchedule(f"{path}{dot}{self.field}", self.problem, hint=self.hint)


class Mistake(NamedTuple):
    """One mistake in a file; without a line if the file could not be read at all."""

    line: int | None
    field: str
    problem: str
    hint: str = ""

    def __str__(self) -> str:
        problem = f"{self.field}: {self.problem}" if self.field else self.problem
        return f"{problem} ({self.hint})" if self.hint else problem


class InvalidFile(OnbeatError):  # noqa: N818 - it names what is wrong
    """A file of definitions is refused as a whole: `mistakes` are sorted by line."""

    def __init__(self, path: str, mistakes: Iterable[Mistake]) -> None:
        self.path = path
        self.mistakes = tuple(sorted(mistakes, key=lambda each: each.line or 0))
        super().__init__(path, self.mistakes)

    def __str__(self) -> str:
        """Return one line for each mistake, in the format of compilers."""
        return "\n".join(
            f"{self.path}: {each}" if each.line is None else f"{self.path}:{each.line}: {each}"
            for each in self.mistakes
        )


class InvalidSettings(_Refused):
    """A setting is refused: `field` is where, `problem` what is wrong, `hint` what is right."""


class NoSuchSchedule(OnbeatError):  # noqa: N818 - it names what is wrong
    """No schedule has this id. `why` is what is wrong with its definition, if it has one."""

    def __init__(self, schedule_id: str, known: Iterable[str] = (), *, why: str = "") -> None:
        self.schedule_id = schedule_id
        near = [] if why else get_close_matches(schedule_id, list(known), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        broken = f"{quote_value(schedule_id)} is not scheduled: {why}" if why else ""
        super().__init__(broken or f"no schedule is called {quote_value(schedule_id)}{hint}")


class NoSuchWorkflow(OnbeatError):  # noqa: N818 - it names what is wrong
    """No DAG is stored for this workflow, or for this version of it."""

    def __init__(self, workflow_id: str, version: int | None = None) -> None:
        which = (
            quote_value(workflow_id)
            if version is None
            else f"{quote_value(workflow_id)} v{version}"
        )
        super().__init__(f"there is no workflow {which}")


class WorkflowIsUsed(OnbeatError):  # noqa: N818 - it names what is wrong
    """A workflow cannot be deleted because schedules use it."""

    def __init__(self, workflow_id: str, schedules: Sequence[str], *, cascade: bool) -> None:
        names = ", ".join(map(quote_value, schedules[:10])) + (
            ", ..." if len(schedules) > 10 else ""
        )
        self.schedules = tuple(schedules)
        self.problem = f"{quote_value(workflow_id)} is used by {names}"
        self.hint = "delete them first, or delete with cascade"
        if cascade:
            self.hint = "these are defined elsewhere: delete them there first"
        super().__init__(f"{self.problem} ({self.hint})")


class NoSuchRun(OnbeatError):  # noqa: N818 - it names what is wrong
    """No run has this number or key: it never existed, or its history was pruned."""

    def __init__(self, which: int | str, *, is_key: bool = False) -> None:
        problem = f"there is no run {which}"
        if isinstance(which, str):
            problem = (
                f"no run has the key {quote_value(which)}" if is_key else f"{which} has no run"
            )
        super().__init__(problem)


class NoSuchToken(OnbeatError):  # noqa: N818 - it names what is wrong
    """No token and no session has this name or id."""

    def __init__(self, which: str, known: Iterable[str] = ()) -> None:
        near = get_close_matches(which, list(known), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        super().__init__(f"no token is called {quote_value(which)}{hint}")


RAISE_TIMEOUT = "for runs that take longer, raise the timeout of the schedule or workflows_timeout"


class RunIsOver(OnbeatError):  # noqa: N818 - it names what is wrong
    """A run has already ended, with another outcome than the one reported."""

    def __init__(self, run_id: int, status: str, *, is_late: bool = False) -> None:
        self.run_id, self.status, self.is_late = run_id, status, is_late
        self.hint = RAISE_TIMEOUT if is_late else ""
        why = " since its deadline, and the report was added to its error" if is_late else ""
        self.problem = f"run {run_id} is {status}{why}: nothing was changed"
        super().__init__(f"{self.problem} ({self.hint})" if is_late else self.problem)


class RunIsHeld(OnbeatError):  # noqa: N818 - it names what is wrong
    """A run was not accepted by its target: the node that holds it reports its outcome."""

    def __init__(self, run_id: int) -> None:
        super().__init__(
            f"run {run_id} is held by a node, which reports its outcome (onbeat cancel ends it)"
        )


class RevisionConflict(OnbeatError):  # noqa: N818 - it names what is wrong
    """A schedule has another revision than the caller expected."""

    def __init__(self, schedule_id: str, expected: int | None, found: int | None) -> None:
        self.schedule_id, self.found = schedule_id, found
        actual = "does not exist" if found is None else f"has revision {found}"
        wanted = "no schedule" if expected is None else f"revision {expected}"
        problem = f"schedule {schedule_id} {actual}, but {wanted} was expected: nothing was changed"
        super().__init__(f"{problem} (read it again)")


class ScheduleExists(OnbeatError):  # noqa: N818 - it names what is wrong
    """A schedule with this id exists, with another definition."""

    def __init__(self, schedule_id: str) -> None:
        super().__init__(f"{schedule_id} already exists, with another definition")


class SourceConflict(OnbeatError):  # noqa: N818 - it names what is wrong
    """Schedules belong to another source than the one that would define them."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        hint = "--take-over assigns them to this source; --source names the source they belong to"
        super().__init__(f"{problem} ({hint})")


class NotAllowed(OnbeatError):  # noqa: N818 - it names what is wrong
    """The caller lacks the permission for a request."""

    def __init__(self, problem: str, *, hint: str = "") -> None:
        self.problem, self.hint = problem, hint
        super().__init__(f"{problem} ({hint})" if hint else problem)


class ApiUnavailable(OnbeatError):  # noqa: N818 - it names what is wrong
    """The address of the API is in use by another process, or no node of the database serves it."""


class StoreHeld(OnbeatError):  # noqa: N818 - it names what is wrong
    """Another node uses this store. Two nodes on one SQLite file would start runs twice."""


class StoreUnusable(OnbeatError):  # noqa: N818 - it names what is wrong
    """The store is damaged, newer than this program, of another kind, unreachable, or closed."""


class StoreFailed(OnbeatError):  # noqa: N818 - it names what is wrong
    """A call of the store failed and changed nothing."""


class NodeDeclaredLost(OnbeatError):  # noqa: N818 - it names what is wrong
    """A node was silent past its lease: other nodes declared it lost and decided its runs."""


class StoreInDoubt(StoreFailed):
    """The store did not answer: whether the call took effect is unknown."""


def without_password(url: str) -> str:
    """Return an address that can be shown: without user, password or options."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


class in_field:  # noqa: N801 - used as a verb: `with naming("cron"):`
    """A context that puts `path` before the field of an `InvalidSchedule` raised in it."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, InvalidSchedule):
            raise error.under(self.path) from None


def quote_value(value: object) -> str:
    """Return `value` for quoting in an error: escaped, on one line, at most 60 characters."""
    try:
        text = repr(value[:80]) if isinstance(value, str) else _SHORT.repr(value)
    except Exception:  # noqa: BLE001 - a repr may raise anything, and formatting an error must not
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the most similar known name, or all known names."""
    names = sorted(known)
    near = get_close_matches(name[:64] if isinstance(name, str) else quote_value(name), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"


_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxlong = 2, 24

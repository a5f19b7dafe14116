"""Everything Onbeat raises on purpose.

    OnbeatError
    ├── InvalidSchedule    a definition, or a text in one, is refused: the author corrects it
    ├── InvalidFile        a file of definitions is refused, with every mistake in it and its line
    ├── InvalidSettings    a setting is refused: the operator corrects it
    ├── NoSuchSchedule     nothing has this id: the caller asks for another
    ├── NoSuchRun          nothing has this number
    ├── NoSuchToken        nothing that lets anybody in has this name
    ├── NoSuchWorkflow     no DAG is kept of this workflow, or of this version
    ├── WorkflowIsUsed     schedules use it: delete them first, or with it
    ├── RunIsOver          it has ended: nothing can be done about it any more
    ├── RunIsHeld          a node has it, and will tell of its end itself
    ├── ChangedSince       it is not as the caller last saw it: look again
    ├── AlreadyThere       a schedule of this id says something else: take another, or edit it
    ├── OfAnotherSource    a schedule is another source's: take it over, or let it be
    ├── NotAllowed         the caller may not do this: somebody else can
    ├── ApiUnavailable     the API cannot be had at an address: choose another, or start a node
    ├── StoreHeld          another node has this store: stop that one, or join as a client
    ├── StoreUnusable      the store cannot be opened as it is: an operator has to look
    ├── NodeForgotten      others took this node for dead: it ends what it runs and joins anew
    └── StoreFailed        a call failed and changed nothing: it may work later
        └── StoreInDoubt   the answer did not come: it happened or it did not, so look

Classes are split by what the caller does next, never by where they were raised.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from reprlib import Repr
from types import TracebackType
from typing import NamedTuple


class OnbeatError(Exception):
    """The root of the tree: catch this to catch whatever Onbeat refuses or reports."""


class _Refused(OnbeatError):  # noqa: N818 - it names what is wrong
    """Something a person wrote: `field` says where, `problem` what, `hint` what would be right."""

    def __init__(self, field: str, problem: str, *, hint: str = "") -> None:
        self.field = field
        self.problem = problem
        self.hint = hint
        super().__init__(field, problem, hint)

    def __str__(self) -> str:
        told = f"{self.field}: {self.problem}" if self.field else self.problem
        return f"{told} ({self.hint})" if self.hint else told

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), hint=self.hint), (self.field, self.problem)


class InvalidSchedule(_Refused):
    """A definition is refused: `field` says where, `problem` what, `hint` what would be right."""

    def under(self, path: str) -> "InvalidSchedule":
        """Return the same error as seen from further out: `path` is put before the field."""
        dot = "" if not self.field or self.field.startswith("[") else "."
        return InvalidSchedule(f"{path}{dot}{self.field}", self.problem, hint=self.hint)


class Mistake(NamedTuple):
    """One thing that is wrong in a file; it has no line if the file could not be read at all."""

    line: int | None
    field: str
    problem: str
    hint: str = ""

    def __str__(self) -> str:
        told = f"{self.field}: {self.problem}" if self.field else self.problem
        return f"{told} ({self.hint})" if self.hint else told


class InvalidFile(OnbeatError):  # noqa: N818 - it names what is wrong
    """A file of definitions is refused, and nothing of it holds: `mistakes` are by their lines."""

    def __init__(self, path: str, mistakes: Iterable[Mistake]) -> None:
        self.path = path
        self.mistakes = tuple(sorted(mistakes, key=lambda each: each.line or 0))
        super().__init__(path, self.mistakes)

    def __str__(self) -> str:
        """Return each mistake on a line of its own, as editors and compilers write them."""
        return "\n".join(
            f"{self.path}: {each}" if each.line is None else f"{self.path}:{each.line}: {each}"
            for each in self.mistakes
        )


class InvalidSettings(_Refused):
    """A setting is refused: `field` says where, `problem` what, `hint` what would be right."""


class NoSuchSchedule(OnbeatError):  # noqa: N818 - it names what is wrong
    """No schedule has this id. `why` is what is wrong with its definition, if there is one."""

    def __init__(self, schedule_id: str, known: Iterable[str] = (), *, why: str = "") -> None:
        self.schedule_id = schedule_id
        near = [] if why else get_close_matches(schedule_id, list(known), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        broken = f"{shown(schedule_id)} is not scheduled: {why}" if why else ""
        super().__init__(broken or f"no schedule is called {shown(schedule_id)}{hint}")


class NoSuchWorkflow(OnbeatError):  # noqa: N818 - it names what is wrong
    """No DAG is kept of this workflow, or of this version."""

    def __init__(self, workflow_id: str, version: int | None = None) -> None:
        which = shown(workflow_id) if version is None else f"{shown(workflow_id)} v{version}"
        super().__init__(f"there is no workflow {which}")


class WorkflowIsUsed(OnbeatError):  # noqa: N818 - it names what is wrong
    """A workflow is not deleted, as schedules use it."""

    def __init__(self, workflow_id: str, schedules: Sequence[str], *, cascade: bool) -> None:
        names = ", ".join(map(shown, schedules[:10])) + (", ..." if len(schedules) > 10 else "")
        self.schedules = tuple(schedules)
        self.problem = f"{shown(workflow_id)} is used by {names}"
        self.hint = "delete them first, or delete with cascade"
        if cascade:
            self.hint = "these are defined elsewhere, and are to be deleted there first"
        super().__init__(f"{self.problem} ({self.hint})")


class NoSuchRun(OnbeatError):  # noqa: N818 - it names what is wrong
    """No run has this number: it never was, or it is older than what is kept."""

    def __init__(self, which: int | str, *, is_key: bool = False) -> None:
        told = f"there is no run {which}"
        if isinstance(which, str):
            told = f"no run has the key {shown(which)}" if is_key else f"no run of {which} is there"
        super().__init__(told)


class NoSuchToken(OnbeatError):  # noqa: N818 - it names what is wrong
    """No token and no session has this name or id."""

    def __init__(self, which: str, known: Iterable[str] = ()) -> None:
        near = get_close_matches(which, list(known), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        super().__init__(f"no token is called {shown(which)}{hint}")


RAISE_TIMEOUT = "for runs that take longer, raise the timeout of the schedule or workflows_timeout"


class RunIsOver(OnbeatError):  # noqa: N818 - it names what is wrong
    """A run has ended already, and not as the caller takes it."""

    def __init__(self, run_id: int, status: str, *, is_late: bool = False) -> None:
        self.run_id, self.status, self.is_late = run_id, status, is_late
        self.hint = RAISE_TIMEOUT if is_late else ""
        why = " since its deadline, and the report is noted with its error" if is_late else ""
        self.problem = f"run {run_id} is {status}{why}: nothing was changed"
        super().__init__(f"{self.problem} ({self.hint})" if is_late else self.problem)


class RunIsHeld(OnbeatError):  # noqa: N818 - it names what is wrong
    """A run was not accepted by a target: the node that has it will tell of its end."""

    def __init__(self, run_id: int) -> None:
        super().__init__(
            f"run {run_id} is on a node, which tells of its end (onbeat cancel ends it)"
        )


class ChangedSince(OnbeatError):  # noqa: N818 - it names what is wrong
    """A schedule has another revision than the one that was to be changed."""

    def __init__(self, schedule_id: str, expected: int | None, found: int | None) -> None:
        self.schedule_id, self.found = schedule_id, found
        there = "is not there" if found is None else f"has revision {found}"
        wanted = "none was expected" if expected is None else f"{expected} was expected"
        super().__init__(f"{schedule_id} {there}, {wanted}: nothing was changed (look again)")


class AlreadyThere(OnbeatError):  # noqa: N818 - it names what is wrong
    """A schedule of this id is there, and says something else."""

    def __init__(self, schedule_id: str) -> None:
        super().__init__(f"{schedule_id} is there already, and says something else")


class OfAnotherSource(OnbeatError):  # noqa: N818 - it names what is wrong
    """Schedules are of another source than the one that would define them."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        hint = "--take-over makes them this source's; --source names the one they are of"
        super().__init__(f"{problem} ({hint})")


class NotAllowed(OnbeatError):  # noqa: N818 - it names what is wrong
    """The caller may not do what they ask for."""

    def __init__(self, problem: str, *, hint: str = "") -> None:
        self.problem, self.hint = problem, hint
        super().__init__(f"{problem} ({hint})" if hint else problem)


class ApiUnavailable(OnbeatError):  # noqa: N818 - it names what is wrong
    """The address of the API is in use by another process, or no node of the database serves it."""


class StoreHeld(OnbeatError):  # noqa: N818 - it names what is wrong
    """Another node plans and runs on this store; two on one SQLite file would double runs."""


class StoreUnusable(OnbeatError):  # noqa: N818 - it names what is wrong
    """The store is damaged, newer than this program, of another kind, or out of reach."""


class StoreFailed(OnbeatError):  # noqa: N818 - it names what is wrong
    """The store could not do what was asked, and nothing was changed."""


class NodeForgotten(OnbeatError):  # noqa: N818 - it names what is wrong
    """A node was silent for so long that others took it for dead and decided its runs."""


class StoreInDoubt(StoreFailed):
    """The store did not answer whether it did what was asked."""


def without_password(url: str) -> str:
    """Return an address as anybody may read it: without a user, a password or options."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


class naming:  # noqa: N801 - it is read as a word: `with naming("cron"):`
    """Let a refusal from within say that it happened under `path`."""

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


def shown(value: object) -> str:
    """Return `value` as an error may quote it: escaped, on one line, never long."""
    try:
        text = repr(value[:80]) if isinstance(value, str) else _SHORT.repr(value)
    except Exception:  # noqa: BLE001 - a repr may fail in any way, and an error must not
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."


def meant(name: object, known: Iterable[str]) -> str:
    """Return a hint for a name that is not known: the one it is near to, or all there are."""
    names = sorted(known)
    near = get_close_matches(name[:64] if isinstance(name, str) else shown(name), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"


_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxlong = 2, 24

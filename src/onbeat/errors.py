"""Everything Onbeat raises on purpose.

    OnbeatError
    └── InvalidSchedule    a definition, or a text in one, is refused: the author corrects it

Classes are split by what the caller does next, never by where they were raised.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import partial
from reprlib import Repr
from types import TracebackType


class OnbeatError(Exception):
    """The root of the tree: catch this to catch whatever Onbeat refuses or reports."""


class InvalidSchedule(OnbeatError):  # noqa: N818 - it names what is wrong
    """A definition is refused: `field` says where, `problem` what, `hint` what would be right."""

    def __init__(self, field: str, problem: str, *, hint: str = "") -> None:
        self.field = field
        self.problem = problem
        self.hint = hint
        super().__init__(field, problem, hint)

    def __str__(self) -> str:
        told = f"{self.field}: {self.problem}" if self.field else self.problem
        return f"{told} ({self.hint})" if self.hint else told

    def __reduce__(self) -> tuple[object, ...]:
        return partial(InvalidSchedule, hint=self.hint), (self.field, self.problem)

    def under(self, path: str) -> "InvalidSchedule":
        """Return the same error as seen from further out: `path` is put before the field."""
        field = f"{path}.{self.field}" if self.field else path
        return InvalidSchedule(field, self.problem, hint=self.hint)


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

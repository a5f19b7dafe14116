"""Refusals, told in the words of a system."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, shown


def check_fields(given: object, known: AbstractSet[str]) -> None:
    """Refuse what is no set of fields, and names that are not known."""
    if not isinstance(given, Mapping):
        hint = f"fields by name: {', '.join(sorted(known))}"
        raise InvalidSchedule("", f"{shown(given)} is no set of fields", hint=hint)
    check_names(given, known)


@contextmanager
def renamed_errors(words: Mapping[str, str]) -> Iterator[None]:
    """Let a refusal from within name its field as the system does: `{"cron": "cron_expr"}`."""
    try:
        yield
    except InvalidSchedule as refused:
        for ours, theirs in words.items():
            rest = refused.field.removeprefix(ours)
            if refused.field.startswith(ours) and rest[:1] in ("", ".", "["):
                field = theirs + rest
                raise InvalidSchedule(field, refused.problem, hint=refused.hint) from None
        raise

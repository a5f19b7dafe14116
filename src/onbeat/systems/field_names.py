"""Errors that name fields as a system does."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, quote_value


def check_fields(value: object, known: AbstractSet[str]) -> None:
    """Refuse a value that is not a mapping, and unknown field names."""
    if not isinstance(value, Mapping):
        hint = f"fields by name: {', '.join(sorted(known))}"
        raise InvalidSchedule("", f"{quote_value(value)} is not a mapping", hint=hint)
    check_names(value, known)


@contextmanager
def renamed_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Rename the fields of errors raised within: `{"cron": "cron_expr"}` names the system's."""
    try:
        yield
    except InvalidSchedule as refused:
        for ours, theirs in names.items():
            rest = refused.field.removeprefix(ours)
            if refused.field.startswith(ours) and rest[:1] in ("", ".", "["):
                field = theirs + rest
                raise InvalidSchedule(field, refused.problem, hint=refused.hint) from None
        raise

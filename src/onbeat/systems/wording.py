"""Refusals of the core, told in the words of a system."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from onbeat.errors import InvalidSchedule


@contextmanager
def told_in(words: Mapping[str, str]) -> Iterator[None]:
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

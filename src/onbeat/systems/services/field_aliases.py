"""Spellings of field names: `on_calendar`, `on-calendar` and `:on-calendar` are the same field.

Errors use the spelling of the file.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onbeat.errors import InvalidSchedule, did_you_mean, quote_value

PREFIXES = ("supervisor_", "elinit_")  # of variables that apply to all timers
OLD_NAMES = {
    "mode": "enabled",
    "timer_subsystem_mode": "timers_enabled",
    "timer_state_file": "state_file",
    "timer_retry_intervals": "retry",
    "timer_catch_up_limit": "catchup_window",
    "programs": "services",
}


@dataclass(frozen=True, slots=True)
class AliasedFields:
    """Fields by canonical name, with the spelling of each in their source."""

    fields: Mapping[str, object]
    names: Mapping[str, str]

    def name(self, canonical: str) -> str:
        """Return the spelling of a field, or the one it would have beside the others."""
        if canonical in self.names:
            return self.names[canonical]
        spellings = list(self.names.values())
        if any(name.startswith(":") for name in spellings):
            return f":{canonical.replace('_', '-')}"
        has_dashes = any("-" in name for name in spellings)
        return canonical.replace("_", "-") if has_dashes else canonical

    def unknown(self, known: Iterable[str]) -> str | None:
        """Return the spelling of a field that is not among the known ones, or None."""
        return next((self.names[name] for name in self.fields if name not in known), None)

    def meant(self, unknown: str, known: Iterable[str]) -> str:
        """Return a hint for an unknown field, in the spelling of the fields beside it."""
        return did_you_mean(unknown, [self.name(name) for name in known])


def read_aliases(source: Mapping[str, object], *, is_top_level: bool = False) -> AliasedFields:
    """Return fields by canonical name; refuse two spellings of one. The top level has prefixes."""
    fields: dict[str, object] = {}
    names: dict[str, str] = {}
    for name, value in source.items():
        if not isinstance(name, str):
            raise InvalidSchedule("", f"{quote_value(name)} is not a field name", hint="a string")
        canonical = name.removeprefix(":").replace("-", "_")
        if is_top_level:
            canonical = _without_prefix(canonical)
        if canonical in fields:
            problem = f"{quote_value(names[canonical])} and {quote_value(name)} are the same field"
            raise InvalidSchedule("", problem, hint="one of them")
        fields[canonical], names[canonical] = value, name
    return AliasedFields(fields, names)


def check_known(source: AliasedFields, known: Iterable[str]) -> None:
    """Refuse unknown fields."""
    known = list(known)
    unknown = source.unknown(known)
    if unknown is not None:
        raise InvalidSchedule(unknown, "no field has this name", hint=did_you_mean(unknown, known))


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            return OLD_NAMES.get(name, name)
    return name

"""Names of fields as people spell them: `on_calendar`, `on-calendar` and `:on-calendar` are one.

What is refused is told in the spelling of the file.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onbeat.errors import InvalidSchedule, meant, shown

PREFIXES = ("supervisor_", "elinit_")  # of variables that are for all timers
OLD_NAMES = {
    "mode": "enabled",
    "timer_subsystem_mode": "timers_enabled",
    "timer_state_file": "state_file",
    "timer_retry_intervals": "retry",
    "timer_catch_up_limit": "catchup_window",
    "programs": "services",
}


@dataclass(frozen=True, slots=True)
class Spelled:
    """Fields by our names, and how each is spelled where they come from."""

    fields: Mapping[str, object]
    names: Mapping[str, str]

    def name(self, ours: str) -> str:
        """Return how a field is spelled there, or would be."""
        if ours in self.names:
            return self.names[ours]
        spelled = list(self.names.values())
        if any(name.startswith(":") for name in spelled):
            return f":{ours.replace('_', '-')}"
        return ours.replace("_", "-") if any("-" in name for name in spelled) else ours

    def unknown(self, known: Iterable[str]) -> str | None:
        """Return how a field is spelled that is not among those known, if there is one."""
        return next((self.names[name] for name in self.fields if name not in known), None)

    def meant(self, unknown: str, known: Iterable[str]) -> str:
        """Return a hint for a field that is not known: in the spelling of those beside it."""
        return meant(unknown, [self.name(name) for name in known])


def spelled(given: Mapping[str, object], *, of_all: bool = False) -> Spelled:
    """Return fields by our names; two spellings of one are refused. `of_all` has variables."""
    fields: dict[str, object] = {}
    names: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise InvalidSchedule("", f"{shown(name)} is no name of a field", hint="a text")
        ours = name.removeprefix(":").replace("-", "_")
        if of_all:
            ours = _of_all(ours)
        if ours in fields:
            problem = f"{shown(names[ours])} and {shown(name)} are the same"
            raise InvalidSchedule("", problem, hint="one of them")
        fields[ours], names[ours] = value, name
    return Spelled(fields, names)


def check_known(given: Spelled, known: Iterable[str]) -> None:
    """Refuse fields of the whole that nobody knows."""
    known = list(known)
    unknown = given.unknown(known)
    if unknown is not None:
        raise InvalidSchedule(unknown, "no field has this name", hint=meant(unknown, known))


def _of_all(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            return OLD_NAMES.get(name, name)
    return name

"""Checks of plugs of installed packages. Each error says what is wrong, and what is right."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass

from onbeat.host.own_names import ALIASES, CONFIG, SECTIONS, SET_FOR_COMMANDS, SETTINGS
from onbeat.host.plugs import PlugError, load, load_all, problem_of
from onbeat.ports.plug import Plug, VerbReference

NAME = re.compile(r"[a-z][a-z0-9_]*")
REFERENCE = re.compile(r"[\w.]+:\w+")
OF_NAMES = "lower-case letters, digits and _, such as chat"
VERBS = {name for section in SECTIONS.values() for name in section} | ALIASES.keys()
# Names that no setting of a plug may have: variables, and options of `onbeat up`.
RESERVED = {
    *SETTINGS, "as_json", "take_over",
    *(each.removeprefix("ONBEAT_").lower() for each in (*SET_FOR_COMMANDS, CONFIG)),
}  # fmt: skip


def check_declaration(plug: Plug, others: Sequence[Plug]) -> None:
    """Check what a plug declares, without importing any of it."""
    _check_name(plug, others)
    _check_verbs(plug, others)
    if not isinstance(plug.error_paths, tuple):
        raise PlugError("error_paths: it is not a tuple of paths (write a comma after the path)")
    references: Mapping[str, object] = plug.references()
    for field, reference in references.items():
        if not isinstance(reference, str) or not REFERENCE.fullmatch(reference):
            right = "write package.module:NAME"
            raise PlugError(f"{field}: {reference!r} is not a reference ({right})")


def check_plug(plug: Plug, others: Sequence[Plug]) -> None:
    """Check the kinds, the settings and the variables of a plug, without installing any of them."""
    for field, check in (
        ("kinds", _check_kinds),
        ("settings", _check_settings),
        ("variables", _check_variables),
    ):
        if getattr(plug, field):
            try:
                check(plug, others)
            except Exception as error:  # a package may fail in any way
                raise PlugError(f"{field}: {problem_of(error)}") from error


def _check_name(plug: Plug, others: Sequence[Plug]) -> None:
    name: object = plug.name
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise PlugError(f"name: {name!r} is not a name of a plug ({OF_NAMES})")
    if any(name == other.name for other in others):
        raise PlugError(f"name: another plug is called {name!r} (choose another name)")
    for own in sorted(SETTINGS):
        if own == name or own.startswith(f"{name}_"):
            problem = f"its settings would be mixed up with Onbeat's own {own!r}"
            raise PlugError(f"name: {name!r}: {problem} (choose another name)")


def _check_verbs(plug: Plug, others: Sequence[Plug]) -> None:
    if not isinstance(plug.verbs, Mapping):
        kind = type(plug.verbs).__name__
        raise PlugError(f"verbs: it is a {kind}, not a mapping of names to VerbReference")
    for name, verb in plug.verbs.items():
        if not isinstance(verb, VerbReference):
            kind = type(verb).__name__
            raise PlugError(f"verbs: {name!r} is a {kind}, not a VerbReference")
        if name in VERBS:
            raise PlugError(f"verbs: Onbeat has the verb {name!r} (choose another name)")
        for other in others:
            if name in other.verbs:
                problem = f"the plug {other.name} has the verb {name!r}"
                raise PlugError(f"verbs: {problem} (choose another name)")


def _check_kinds(plug: Plug, _others: Sequence[Plug]) -> None:
    """Check the kinds by installing them in a copy."""
    from onbeat.core.target_kinds import KINDS, TargetKind, TargetKinds  # noqa: PLC0415

    copied = TargetKinds()
    copied.install(KINDS.all())
    try:
        copied.install(load_all(plug.kinds, TargetKind))
    except ValueError as clash:
        raise PlugError(str(clash)) from None


def _check_settings(plug: Plug, others: Sequence[Plug]) -> None:
    from onbeat.core.fields import declared  # noqa: PLC0415

    record = load(plug.settings, type)
    if not is_dataclass(record):
        raise PlugError(f"{record.__name__} is not a dataclass (add @dataclass(frozen=True))")
    known, taken = declared(record), _settings_of(others)
    for each in fields(record):
        if not NAME.fullmatch(each.name):
            raise PlugError(f"{each.name!r} is not a name of a setting ({OF_NAMES})")
        if each.name not in known:
            right = "write Annotated[int, number(...)], or another Field of onbeat.core.fields"
            raise PlugError(f"{each.name} does not declare a Field ({right})")
        if each.default is MISSING and each.default_factory is MISSING:
            raise PlugError(f"{each.name} has no default (every setting has one)")
        if (full := f"{plug.name}_{each.name}") in RESERVED:
            raise PlugError(f"Onbeat itself uses the name {full} (choose another name)")
        if full in taken:
            raise PlugError(f"another plug has the setting {full} (choose another name)")
    defaults = record()
    for name, field in known.items():
        value = getattr(defaults, name)
        try:
            field.read(field.write(value))
        except Exception as error:  # the field may have a reader of its own
            problem = f"its Field refuses its default {value!r}"
            raise PlugError(f"{name}: {problem}: {problem_of(error)}") from error


def _check_variables(plug: Plug, others: Sequence[Plug]) -> None:
    from onbeat.core.fields import Variable  # noqa: PLC0415

    known = {*SETTINGS, *_settings_of([*others, plug])}
    for name, variable in load(plug.variables, dict).items():
        if not isinstance(variable, Variable):
            raise PlugError(f"{name} is a {type(variable).__name__}, not a Variable")
        if variable.setting and variable.setting not in known:
            right = f"the full name, such as {plug.name}_url"
            raise PlugError(f"{name}: there is no setting {variable.setting!r} ({right})")


def _settings_of(others: Sequence[Plug]) -> set[str]:
    """Return the full names of the settings of plugs."""
    from onbeat.core.fields import declared  # noqa: PLC0415

    return {
        f"{plug.name}_{name}"
        for plug in others
        if plug.settings
        for name in declared(load(plug.settings, type))
    }

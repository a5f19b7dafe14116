"""Where settings are read from: a file, the environment, and flags.

Each is read strictly: an unknown name or an invalid value is refused where it is written, even if a
later source overrides it.
"""

import logging
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from onbeat.core.fields import Field, Variable
from onbeat.errors import InvalidSchedule, InvalidSettings, did_you_mean, quote_value
from onbeat.host.own_names import CONFIG, SET_FOR_COMMANDS
from onbeat.host.regular_files import read_regular

log = logging.getLogger("onbeat.plugs")

FILE = "onbeat.toml"
PREFIX = "ONBEAT_"
NO_PACKAGE = "no installed package has settings"
SIMILAR = 0.75  # the similarity of a name that was probably meant


@dataclass(frozen=True, slots=True)
class KnownSettings:
    """The settings that may be set, by their full names."""

    fields: Mapping[str, Field]
    tables: Mapping[str, Field]  # only a file can set these
    systems: tuple[str, ...]  # whose settings may be in a table of the file
    variables: Mapping[str, Mapping[str, Variable]]  # of replaced schedulers, by system
    left_out: Mapping[str, str]  # plugs that are left out, with their packages

    def is_left_out(self, name: str) -> bool:
        """Return whether a setting is of a plug that is left out, and log that it is ignored."""
        for plug, package in self.left_out.items():
            if name == plug or name.startswith(f"{plug}_"):
                _log_ignored(name, plug, package)
                return True
        return False

    def suggestion(self, name: str) -> str:
        """Return a hint for an unknown name: a similar one, or that no package has it."""
        settable, first = (*self.fields, *self.tables), name[:64].partition("_")[0]
        similar = get_close_matches(name[:64], settable, n=1, cutoff=SIMILAR)
        prefixes = {each.partition("_")[0] for each in (*settable, *self.systems)}
        if similar or "_" not in name or get_close_matches(first, prefixes, n=1, cutoff=SIMILAR):
            return did_you_mean(name, settable)
        return _no_package(first)


def read_settings(
    known: KnownSettings,
    *,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: Path | None,
    folder: Path,
    systems: Collection[str],
) -> dict[str, object]:
    """Return the values of the settings that are set: see `Settings.load`."""
    in_file = _from_file(known, environment, file, folder)
    later = {**_from_environment(known, environment), **_from_flags(known, flags)}
    names = (*in_file, *later)
    for system, variables in known.variables.items():
        if system in systems or any(name.startswith(f"{system}_") for name in names):
            in_file |= _from_foreign_variables(known, environment, variables)
    return {**in_file, **later}


def read_setting(field: Field, value: object, *, at: str) -> object:
    """Return the value of a setting, or refuse it with InvalidSettings that says where it is."""
    try:
        return field.read(value)
    except (InvalidSchedule, InvalidSettings) as refused:
        where = f"{at}.{refused.field}" if refused.field else at
        raise InvalidSettings(where, refused.problem, hint=refused.hint) from None
    except Exception as error:  # the field of a plug may have a reader of its own
        problem = f"the value cannot be read: {type(error).__name__}: {error}"
        raise InvalidSettings(
            at, problem, hint="a bug of the plug that has this setting"
        ) from error


def _from_file(
    known: KnownSettings, environment: Mapping[str, str], file: Path | None, folder: Path
) -> dict[str, object]:
    hint = "a TOML file that can be read"
    if file is None and CONFIG in environment:
        if not environment[CONFIG]:
            raise InvalidSettings(CONFIG, "it is empty", hint="name a file, or unset the variable")
        file, hint = Path(environment[CONFIG]), f"{CONFIG} names it"
    name, path = (file, folder / file) if file else (folder / FILE, folder / FILE)
    try:
        given = _parse(str(name), read_regular(path).decode())
    except OSError as failed:
        if file is None and isinstance(failed, FileNotFoundError) and not path.is_symlink():
            return {}
        problem = f"it cannot be read: {failed.strerror}"
        raise InvalidSettings(str(name), problem, hint=hint) from None
    except UnicodeDecodeError:
        raise InvalidSettings(str(name), "it is not in UTF-8", hint="save it in UTF-8") from None
    except ValueError:  # a NUL in the name
        raise InvalidSettings(quote_value(str(name)), "it is not a file name", hint=hint) from None
    found, settable = {}, {**known.fields, **known.tables}
    for key, value in _with_tables_flat(known, given, at=str(name)).items():
        at = f"{name}: {_spelled(key)}"
        if key not in settable:
            if known.is_left_out(key):
                continue
            raise _unknown(at, _meant_in_file(known, key, value))
        found[key] = read_setting(settable[key], value, at=at)
    return found


def _meant_in_file(known: KnownSettings, key: str, value: object) -> str:
    """Return a hint for an unknown setting: where it belongs, or a similar name."""
    settable = (*known.fields, *known.tables)
    for system in known.systems:
        name = key.removeprefix(f"{system}_")
        if name != key and name in settable:
            return f"{name} belongs above [{system}]"
    if isinstance(value, dict):
        if near := get_close_matches(key[:64], known.systems, n=1):
            return f"did you mean [{near[0]}]?"
        if not get_close_matches(key[:64], settable, n=1, cutoff=SIMILAR):
            return _no_package(key)
    return known.suggestion(key)


def _with_tables_flat(
    known: KnownSettings, given: Mapping[str, object], *, at: str
) -> dict[str, object]:
    """Turn `[sessions] url` into `sessions_url`, for each system."""
    tables = {key: value for key, value in given.items() if key in known.systems}
    found = {key: value for key, value in given.items() if key not in tables}
    for key, value in tables.items():
        if not isinstance(value, dict):
            found[key] = value  # reported as an unknown setting
            continue
        for name, each in value.items():
            if f"{key}_{name}" in found:
                problem, hint = "it is set twice", f"{name} in [{key}] is the same setting"
                raise InvalidSettings(f"{at}: {_spelled(f'{key}_{name}')}", problem, hint=hint)
            found[f"{key}_{name}"] = each
    return found


def _from_foreign_variables(
    known: KnownSettings, environment: Mapping[str, str], variables: Mapping[str, Variable]
) -> dict[str, object]:
    """Read the variables that users of another scheduler have in their environment."""
    found = {}
    for name in variables.keys() & environment.keys():
        variable = variables[name]
        field = variable.field or known.fields[variable.setting]
        value = read_setting(field, field.from_text(environment[name]), at=name)
        if variable.scale is not None and isinstance(value, int):
            value *= variable.scale
        if variable.setting:
            found[variable.setting] = value
    return found


def _from_environment(known: KnownSettings, environment: Mapping[str, str]) -> dict[str, object]:
    by_variable = {PREFIX + name.upper(): name for name in known.fields}
    found = {}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable == CONFIG or variable in SET_FOR_COMMANDS:
            continue
        if variable not in by_variable:
            # Compared without the prefix, which makes all names similar.
            name = variable.removeprefix(PREFIX)
            if known.is_left_out(name.lower()):
                continue
            ends = [each.removeprefix(PREFIX) for each in (*by_variable, CONFIG)]
            hint = did_you_mean(name.upper(), ends)
            hint = re.sub(r"[A-Z_]+", rf"{PREFIX}\g<0>", hint)
            suggested = known.suggestion(name.lower())
            raise _unknown(
                _spelled(variable), suggested if suggested.startswith(NO_PACKAGE) else hint
            )
        name = by_variable[variable]
        field = known.fields[name]
        found[name] = read_setting(field, field.from_text(environment[variable]), at=variable)
    return found


def _from_flags(known: KnownSettings, flags: Mapping[str, object]) -> dict[str, object]:
    found = {}
    for name, value in flags.items():
        at = f"--{_spelled(name).replace('_', '-')}"
        if name not in known.fields:
            raise _unknown(at, did_you_mean(name, known.fields))
        if value is not None:
            field = known.fields[name]
            plain = field.from_text(value) if isinstance(value, str) else value
            found[name] = read_setting(field, plain, at=at)
    return found


def _parse(name: str, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as failed:  # ValueError: also a number of 5000 digits
        hint = 'such as concurrency = 64 or lease = "5s"'
        raise InvalidSettings(name, f"it is not TOML: {failed}", hint=hint) from None


def _unknown(at: str, hint: str) -> InvalidSettings:
    return InvalidSettings(at, "unknown setting", hint=hint)


def _no_package(prefix: str) -> str:
    return f"{NO_PACKAGE} {_spelled(prefix)}_*"


@cache
def _log_ignored(name: str, plug: str, package: str) -> None:
    """Log once in a process that a setting is ignored."""
    reason = f"the plug {plug} of the package {package} is left out"
    log.warning("the setting %s is ignored: %s", _spelled(name), reason)


def _spelled(name: str) -> str:
    return name if re.fullmatch(r"[\w-]{1,64}", name) else quote_value(name)

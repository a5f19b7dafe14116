"""What is read of `run: {python: "reports:build", on: ray, resources: {cpus: 2}}`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from onbeat.core.target import Target
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, naming, shown
from onbeat.files.secrets import check_inputs, check_no_reference

FIELDS = {"python", "inputs", "on", "resources", "runtime_env"}
OURS = {"cpus": "num_cpus", "gpus": "num_gpus"}  # as Ray calls them
SIZE = re.compile(r" *([0-9]{1,12}(?:\.[0-9]{1,3})?) *(B|KiB|MiB|GiB|TiB) *")
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
MOST = 1_000_000  # of any resource
DEFAULT_CPUS = 1


@dataclass(frozen=True, slots=True)
class OnRay:
    """A function on a cluster, and what a worker needs to have for it."""

    python: str
    options: Mapping[str, object]  # as Ray takes them


def read_target(target: Target) -> OnRay:
    """Return what a target asks for, or refuse it."""
    fields = target.fields
    check_names(fields, FIELDS)
    python = fields["python"]
    module, colon, path = python.partition(":") if isinstance(python, str) else ("", "", "")
    names = (*module.split("."), *path.split("."))
    if not (colon and all(name.isidentifier() for name in names)):
        problem = f"{shown(python)} names no function that could be imported on a cluster"
        raise InvalidSchedule("python", problem, hint="module:function")
    check_inputs(target.inputs)
    with naming("resources"):
        options = _read_resources(fields.get("resources"))
    if fields.get("runtime_env") is not None:
        with naming("runtime_env"):
            options["runtime_env"] = _read_environment(fields["runtime_env"])
    return OnRay(str(python), options)


def _read_resources(given: object) -> dict[str, object]:
    if given is None:
        return {"num_cpus": DEFAULT_CPUS}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        hint = "{cpus: 2, gpus: 0.5, memory: 2GiB}, and the names that your cluster has"
        raise InvalidSchedule("", f"{shown(given)} is no set of resources", hint=hint)
    found: dict[str, object] = {"num_cpus": DEFAULT_CPUS}
    named: dict[str, float] = {}
    for name, value in given.items():
        if name in {"num_cpus", "num_gpus", "CPU", "GPU", "cpu", "gpu"}:
            short = "gpus" if "g" in name.lower() else "cpus"
            raise InvalidSchedule(name, "no resource has this name", hint=f"write {short}")
        if name == "memory":
            found["memory"] = _read_size(value)
        elif name in OURS:
            found[OURS[name]] = _read_number(name, value)
        else:
            named[name] = _read_number(name, value)
    return found | ({"resources": named} if named else {})


def _read_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST:
        raise InvalidSchedule(name, f"{shown(value)} is no number", hint="such as 1 or 0.5")
    if value > 1 and value != int(value):
        problem = f"{shown(value)} is neither whole nor a part of one"
        raise InvalidSchedule(name, problem, hint="such as 2 or 0.5")
    return value


def _read_size(value: object) -> int:
    if type(value) is int and 0 < value < 2**60:
        return value
    match = SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidSchedule("memory", f"{shown(value)} is no size", hint="such as 512MiB or 2GiB")
    return int(float(match[1]) * UNITS[match[2]])


def _read_environment(given: object) -> Mapping[str, object]:
    """Return what Ray calls a runtime environment: it reads it, apart from what is wrong here."""
    if not isinstance(given, Mapping):
        hint = "{env_vars: {NAME: value}, pip: [...]}, as Ray has it"
        raise InvalidSchedule("", f"{shown(given)} is no environment", hint=hint)
    variables = given.get("env_vars", {})
    if not isinstance(variables, Mapping) or not all(
        isinstance(value, str) for value in variables.values()
    ):
        raise InvalidSchedule("env_vars", "values are texts", hint='{LIMIT: "100"}')
    for name, value in variables.items():
        check_no_reference(f"env_vars.{name}", str(value))  # anybody on the cluster can list them
    return given

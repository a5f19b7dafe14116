"""Read the target `run: {python: "reports:build", on: ray, resources: {cpus: 2}}`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from onbeat.core.target import Target
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, in_field, quote_value
from onbeat.host.secrets import check_inputs, check_no_reference

FIELDS = {"python", "inputs", "on", "resources", "runtime_env"}
RAY_NAMES = {"cpus": "num_cpus", "gpus": "num_gpus"}
SIZE = re.compile(r" *([0-9]{1,12}(?:\.[0-9]{1,3})?) *(B|KiB|MiB|GiB|TiB) *")
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
MOST = 1_000_000  # of any resource
DEFAULT_CPUS = 1


@dataclass(frozen=True, slots=True)
class OnRay:
    """A function on a cluster, and the options of its worker."""

    python: str
    options: Mapping[str, object]  # of a Ray actor


def read_target(target: Target) -> OnRay:
    """Return the function of a target, or refuse it."""
    fields = target.fields
    check_names(fields, FIELDS)
    python = fields["python"]
    module, colon, path = python.partition(":") if isinstance(python, str) else ("", "", "")
    names = (*module.split("."), *path.split("."))
    if not (colon and all(name.isidentifier() for name in names)):
        problem = f"{quote_value(python)} is not a function that a cluster can import"
        raise InvalidSchedule("python", problem, hint="module:function")
    check_inputs(target.inputs)
    with in_field("resources"):
        options = _read_resources(fields.get("resources"))
    if fields.get("runtime_env") is not None:
        with in_field("runtime_env"):
            options["runtime_env"] = _read_environment(fields["runtime_env"])
    return OnRay(str(python), options)


def _read_resources(resources: object) -> dict[str, object]:
    if resources is None:
        return {"num_cpus": DEFAULT_CPUS}
    if not isinstance(resources, Mapping) or not all(isinstance(name, str) for name in resources):
        hint = "{cpus: 2, gpus: 0.5, memory: 2GiB}, and resource names of your cluster"
        raise InvalidSchedule(
            "", f"{quote_value(resources)} is not a mapping of resource names to numbers", hint=hint
        )
    found: dict[str, object] = {"num_cpus": DEFAULT_CPUS}
    named: dict[str, float] = {}
    for name, value in resources.items():
        if name in {"num_cpus", "num_gpus", "CPU", "GPU", "cpu", "gpu"}:
            short = "gpus" if "g" in name.lower() else "cpus"
            raise InvalidSchedule(name, "no resource has this name", hint=f"write {short}")
        if name == "memory":
            found["memory"] = _read_size(value)
        elif name in RAY_NAMES:
            found[RAY_NAMES[name]] = _read_number(name, value)
        else:
            named[name] = _read_number(name, value)
    return found | ({"resources": named} if named else {})


def _read_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST:
        raise InvalidSchedule(
            name, f"{quote_value(value)} is not a number", hint="such as 1 or 0.5"
        )
    if value > 1 and value != int(value):
        problem = f"{quote_value(value)} is neither a whole number nor below 1"
        raise InvalidSchedule(name, problem, hint="such as 2 or 0.5")
    return value


def _read_size(value: object) -> int:
    if type(value) is int and 0 < value < 2**60:
        return value
    match = SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidSchedule(
            "memory", f"{quote_value(value)} is not a size", hint="such as 512MiB or 2GiB"
        )
    return int(float(match[1]) * UNITS[match[2]])


def _read_environment(environment: object) -> Mapping[str, object]:
    """Return a runtime environment of Ray; only what is checked here is refused."""
    if not isinstance(environment, Mapping):
        hint = "{env_vars: {NAME: value}, pip: [...]}, as documented by Ray"
        raise InvalidSchedule("", f"{quote_value(environment)} is not a mapping", hint=hint)
    variables = environment.get("env_vars", {})
    if not isinstance(variables, Mapping) or not all(
        isinstance(value, str) for value in variables.values()
    ):
        raise InvalidSchedule("env_vars", "values must be strings", hint='{LIMIT: "100"}')
    for name, value in variables.items():
        check_no_reference(f"env_vars.{name}", str(value))  # visible to all users of the cluster
    return environment

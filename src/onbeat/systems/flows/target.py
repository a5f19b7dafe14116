"""What a flow is: read from a target, or refused. Nothing here asks anybody."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from onbeat.core.target import Target
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, naming, shown
from onbeat.files.secrets import check_inputs

LONGEST_KEY = 500
# A flow of the panel and nothing else, as whatever is asked there is asked with the timer's key: no
# other page of it, and nothing that is encoded, which would be another path once it is read.
PATH = re.compile(r"/-(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+/?")
LONGEST_URL = 1000


@dataclass(frozen=True, slots=True)
class Flow:
    """What is launched on the panel, and what that is told of it."""

    url: str
    key: str  # empty: the id of the schedule


def read_flow(target: Target) -> Flow:
    """Return what `run: {flow: {url: /-/host/port/-/}}` asks for, or refuse it."""
    check_names(target.fields, {"flow", "inputs"})
    given = target.fields.get("flow")
    if target.has_templates and "{{" in f"{given}":
        raise InvalidSchedule("flow", "a flow has no templates", hint="its inputs may have some")
    with naming("flow"):
        if not isinstance(given, Mapping):
            problem = f"{shown(given)} is no set of fields"
            raise InvalidSchedule("", problem, hint="{url: /-/127.0.0.1/8125/-/}")
        check_names(given, {"url", "key"})
        key = given.get("key", "")
        if not isinstance(key, str) or ("key" in given and not 0 < len(key) <= LONGEST_KEY):
            raise InvalidSchedule("key", f"{shown(key)} is no key", hint="such as reports/-/flow")
        return Flow(check_url(given.get("url")), key)


def check_url(url: object) -> str:
    """Return the path of a flow on its panel, `/-/...`, or refuse what is none."""
    known = isinstance(url, str) and len(url) <= LONGEST_URL and PATH.fullmatch(url) is not None
    if not known or {".", ".."} & set(str(url).split("/")):
        problem = "it is missing" if url is None else f"{shown(url)} is no path of a flow"
        raise InvalidSchedule("url", problem, hint="such as /-/127.0.0.1/8125/-/")
    return str(url)


def check_flow(target: Target) -> None:
    """Refuse a target that is no flow, or whose inputs would show a secret."""
    read_flow(target)
    check_inputs(target.inputs)

"""Read the target of a flow, `run: {flow: {...}}`, or refuse it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from onbeat.core.target import Target
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, in_field, quote_value
from onbeat.host.secrets import check_inputs

LONGEST_KEY = 500
# Only the path of a flow: requests carry the timer's key. Nothing encoded, since it would be
# another path once decoded.
PATH = re.compile(r"/-(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+/?")
LONGEST_URL = 1000


@dataclass(frozen=True, slots=True)
class Flow:
    """What is launched on the panel, and the key that the panel is given."""

    url: str
    key: str  # empty: the id of the schedule


def read_flow(target: Target) -> Flow:
    """Return the flow of `run: {flow: {url: /-/host/port/-/}}`, or refuse it."""
    check_names(target.fields, {"flow", "inputs"})
    fields = target.fields.get("flow")
    if target.has_templates and "{{" in f"{fields}":
        raise InvalidSchedule("flow", "a flow cannot contain templates", hint="its inputs can")
    with in_field("flow"):
        if not isinstance(fields, Mapping):
            problem = f"{quote_value(fields)} is not a mapping"
            raise InvalidSchedule("", problem, hint="{url: /-/127.0.0.1/8125/-/}")
        check_names(fields, {"url", "key"})
        key = fields.get("key", "")
        if not isinstance(key, str) or ("key" in fields and not 0 < len(key) <= LONGEST_KEY):
            raise InvalidSchedule(
                "key", f"{quote_value(key)} is not a key", hint="such as reports/-/flow"
            )
        return Flow(check_url(fields.get("url")), key)


def check_url(url: object) -> str:
    """Return the path of a flow on its panel, `/-/...`, or refuse it."""
    is_path = isinstance(url, str) and len(url) <= LONGEST_URL and PATH.fullmatch(url) is not None
    if not is_path or {".", ".."} & set(str(url).split("/")):
        problem = (
            "it is missing" if url is None else f"{quote_value(url)} is not the path of a flow"
        )
        raise InvalidSchedule("url", problem, hint="such as /-/127.0.0.1/8125/-/")
    return str(url)


def check_flow(target: Target) -> None:
    """Refuse a target that is not a flow, or whose inputs would reveal a secret."""
    read_flow(target)
    check_inputs(target.inputs)

"""Who asks, and what they may: every surface says who, the service says whether."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from msgspec.structs import replace

from onbeat.core.notify.channels import BEGINNING
from onbeat.core.schedule import Schedule
from onbeat.core.target import Target
from onbeat.errors import NotAllowed

Scope = Literal["read", "operate", "define", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)  # each may what those before it may


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever asks for something.

    One with an `owner` sees and touches nothing but the schedules of that owner, and what they
    define is that owner's; an admin's `owner` is only whose the things are that they define.
    """

    name: str  # as events tell of it
    scope: Scope = "read"
    owner: str = ""  # empty: everybody's
    is_local: bool = False  # they have the database itself: nothing could be kept from them

    def may(self, scope: Scope) -> bool:
        """Return whether they may do what needs this scope."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)

    @property
    def only_of(self) -> str | None:
        """Whose schedules they are shown, or None for all."""
        return self.owner if self.owner and self.scope != "admin" else None


LOCAL = Caller("program", "admin", is_local=True)  # one that has the database


def as_allowed(caller: Caller, schedule: Schedule) -> Schedule:
    """Return a schedule as this caller may define it, or refuse it with NotAllowed.

    What comes from outside names no code to import here. Without the scope admin it starts
    requests, sessions, agents of Flock, workflows and flows only, at public addresses or an
    operator's own, and without secrets. What is written is all that is looked at: no template
    makes a name.
    """
    if caller.is_local:
        return schedule
    target = _as_allowed(caller, schedule.target)
    when = None if schedule.when is None else _as_allowed(caller, schedule.when)
    return replace(schedule, target=target, when=when)


def check_change(caller: Caller, schedule_id: str, there: Schedule | None) -> None:
    """Refuse a caller that may not define what is there with NotAllowed.

    A caller without the scope admin that may not define a schedule may not change, replace, delete
    or take it over either. `there` is None if the kept definition cannot be read: what it starts
    is then unknown.
    """
    if caller.is_local or caller.may("admin"):
        return
    if there is None:
        problem = f"{schedule_id} cannot be read, so only an admin may change or delete it"
        raise NotAllowed(problem, hint=OF_AN_ADMIN)
    for target in (there.target, *((there.when,) if there.when is not None else ())):
        try:
            allowed = _as_allowed(caller, target)
        except NotAllowed as refused:
            problem = f"{schedule_id} may not be changed or deleted by {caller.name}"
            raise NotAllowed(f"{problem}: {refused.problem}", hint=OF_AN_ADMIN) from None
        if allowed.fields != target.fields and _has_own_address(target):
            problem = f"{schedule_id} may send to private addresses, so only an admin may change it"
            raise NotAllowed(problem, hint=OF_AN_ADMIN)


def _has_own_address(target: Target) -> bool:
    """Return whether a target says where its requests go: a session has the operator's address."""
    session = target.fields.get("session")
    return target.kind != "session" or (isinstance(session, Mapping) and "url" in session)


def _as_allowed(caller: Caller, target: Target) -> Target:
    if target.kind == "python" and target.needs == target.kind:
        problem = "what comes from outside names no code to import"
        raise NotAllowed(problem, hint="a registered name, or a file on the machine")
    if caller.may("admin"):
        return target
    if target.kind not in FOR_DEFINERS:
        problem = f"a {target.kind} target can be defined by admins only"
        raise NotAllowed(
            problem, hint="http, session, flock, workflow or flow, or a token of an admin"
        )
    if any(map(BEGINNING.search, _texts(target.fields))):
        problem = "a reference to a secret can be defined by admins only"
        raise NotAllowed(problem, hint="leave it out, or a token with scope admin")
    if target.kind == "flow":  # where it goes is nobody's to say but the operator's
        return target
    if target.kind == "workflow":  # and here, too
        if caller.only_of not in (None, target.fields.get("user_id")):
            problem = f"a workflow of another user is not {caller.only_of}'s to define"
            raise NotAllowed(problem, hint=f"user_id: {caller.only_of}")
        return target
    return Target(target.kind, {**target.fields, "public_only": True}, target.is_enabled)


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for name, each in value.items():
                yield from (name, *_texts(each))
        case list() | tuple():
            for each in value:
                yield from _texts(each)
        case _:
            return


OF_AN_ADMIN = "a token with scope admin"
# The kinds of target that need no admin.
FOR_DEFINERS = frozenset({"http", "session", "flock", "workflow", "flow"})

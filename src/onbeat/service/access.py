"""Access control: callers, scopes, and which definitions a caller may create or change."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from msgspec.structs import replace

from onbeat.core.notify.channels import REFERENCE_START
from onbeat.core.schedule import Schedule
from onbeat.core.target import Target
from onbeat.core.target_kinds import KINDS
from onbeat.errors import NotAllowed

Scope = Literal["read", "operate", "define", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)  # each includes those before it


@dataclass(frozen=True, slots=True)
class Caller:
    """The user or program that makes a request.

    A caller with an `owner` sees and changes only the schedules of that owner, and what it defines
    belongs to that owner. An admin with an `owner` sees all; only what it defines has that owner.
    """

    name: str  # as recorded in events
    scope: Scope = "read"
    owner: str = ""  # empty: of all owners
    is_local: bool = False  # it has direct access to the database, so limits would be pointless

    def may(self, scope: Scope) -> bool:
        """Return whether the caller has this scope."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)

    @property
    def only_owner(self) -> str | None:
        """The owner whose schedules the caller sees, or None for all."""
        return self.owner if self.owner and self.scope != "admin" else None


LOCAL = Caller("program", "admin", is_local=True)


def as_allowed(caller: Caller, schedule: Schedule) -> Schedule:
    """Return a schedule as this caller may define it, or refuse it with NotAllowed.

    No remote caller may define what a kind refuses with `TargetKind.check_remote`, such as code for
    the node to import. Code for a cluster to import is for admins. Without the scope admin, only
    kinds of target are allowed that declare what of them is safe (`TargetKind.for_definers`), and
    no secrets in any field. Checking the written text is sufficient: a template never produces the
    name of a secret.
    """
    if caller.is_local:
        return schedule
    target = _allowed_target(caller, schedule.target)
    when = None if schedule.when is None else _allowed_target(caller, schedule.when)
    return replace(schedule, target=target, when=when)


def check_change(caller: Caller, schedule_id: str, current: Schedule | None) -> None:
    """Refuse a caller that may not change a schedule with NotAllowed.

    A caller that may not define a schedule may not change, replace, delete or take it over either.
    `current` is None if the stored definition cannot be read: its target is then unknown.
    """
    if caller.is_local or caller.may("admin"):
        return
    if current is None:
        problem = f"schedule {schedule_id} cannot be read, so only an admin may change or delete it"
        raise NotAllowed(problem, hint=ADMIN_TOKEN)
    for target in (current.target, *((current.when,) if current.when is not None else ())):
        try:
            allowed = _allowed_target(caller, target)
        except NotAllowed as refused:
            problem = f"schedule {schedule_id} may not be changed or deleted by {caller.name}"
            raise NotAllowed(f"{problem}: {refused.problem}", hint=ADMIN_TOKEN) from None
        if allowed.fields != target.fields:
            why = f"{target.facts.beyond_definers}, so only an admin may change it"
            problem = f"schedule {schedule_id} cannot be changed: {why}"
            raise NotAllowed(problem, hint=ADMIN_TOKEN)


def _allowed_target(caller: Caller, target: Target) -> Target:
    kind = target.facts
    if kind.check_remote is not None:
        kind.check_remote(target)
    if caller.may("admin"):
        return target
    if kind.for_definers is None:
        problem = f"only an admin may define a {target.kind} target"
        names = [each.name for each in KINDS.all() if each.for_definers is not None]
        hint = f"{', '.join(names[:-1])} or {names[-1]}; or a token with scope admin"
        raise NotAllowed(problem, hint=hint)
    if any(map(REFERENCE_START.search, _texts(target.fields))):
        problem = "only an admin may define a reference to a secret"
        raise NotAllowed(problem, hint="leave it out, or a token with scope admin")
    return kind.for_definers(target, caller.only_owner)


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


ADMIN_TOKEN = "a token with scope admin"  # noqa: S105 - a hint

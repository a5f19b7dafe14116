"""The kinds of target that a process knows: what decisions and use cases need to know of each.

Kinds are declared by plugs (`ports/plug.py`) and installed when a process starts, before any
definition is read. Their launchers are found by the same names.

A stored schedule may have a target of a kind that this process does not know, as another node has
the package. It is planned, listed and explained all the same, with the facts of an unknown kind.
Its runs need `kind:NAME` until a node that knows the kind resolves that: see `stores/sql/claim.py`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onbeat.core.target import Target

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetKind:
    """One kind of target, by the field of `run:` that names it."""

    name: str
    schema: Fields  # the JSON Schema of `run:`
    field: str = ""  # the field of `run:`; by default the name of the kind
    on: str = ""  # where it runs, if `field` can run in several places: the value of `on:`
    reports: bool = False  # it may accept a run, and report the outcome by the run's key
    reattaches: bool = False  # it continues without its node, and is reattached by the run's key
    retries_timeouts: bool = False  # an attempt that timed out may be followed by another
    answers_by_result: bool = False  # as a condition: it holds if its result is true
    # What a node must offer to launch a target, by default the name of the kind.
    needs: Callable[[Fields], str] | None = None
    is_known: bool = True  # False: no plug of this process declares it
    # Whether its stored fields are in alphabetical order, as in definitions of earlier versions. Of
    # other kinds `field` comes first: so a process that does not know the kind can name it.
    is_stored_sorted: bool = False
    setting: str = ""  # the setting with which a node offers it; empty: every node does
    requires: str = ""  # what a node needs to offer it, if that is more than the setting
    # Fields in which the launcher looks no secret up, neither itself nor in a request that it
    # sends: results of templates stay as they are. In all other fields they are made inert.
    plain_fields: frozenset[str] = frozenset()
    # Refuses a target that cannot be a condition (`when`), with InvalidSchedule.
    check_condition: "Callable[[Target], None] | None" = None
    # Refuses, with NotAllowed, what no remote caller may define.
    check_remote: "Callable[[Target], None] | None" = None
    # Returns a target as a remote caller without the scope admin may define it, given the owner
    # that the caller is limited to; or refuses it with NotAllowed. None: only admins may define it.
    for_definers: "Callable[[Target, str | None], Target] | None" = None
    # Why such a caller may not change a target that `for_definers` would return otherwise.
    beyond_definers: str = "it has fields that only an admin may define"

    @property
    def key(self) -> tuple[str, str]:
        """The field of `run:` that names it, and the place where it runs."""
        return self.field or self.name, self.on

    @property
    def node_needs(self) -> str:
        """What a node needs to offer it, or an empty text."""
        return self.requires or (f"a node with the setting {self.setting}" if self.setting else "")


class TargetKinds:
    """The kinds of target of this process, in the order of installation."""

    def __init__(self) -> None:
        self._by_name: dict[str, TargetKind] = {}
        self._by_key: dict[tuple[str, str], TargetKind] = {}
        self._unresolved_needs: tuple[str, ...] = ()
        # Installs the kinds of all plugs, and is removed then: called when a kind is looked up.
        self.loader: Callable[[], object] | None = None

    def install(self, kinds: Iterable[TargetKind]) -> None:
        """Add kinds, all or none; raise ValueError if one could be taken for another.

        A target has the field of one kind, among other fields: none of these may name a kind.
        The same kind may be added again.
        """
        by_name, by_key = dict(self._by_name), dict(self._by_key)
        for kind in kinds:
            same = by_name.get(kind.name) or by_key.get(kind.key)
            if same is kind:
                continue
            if same is not None:
                raise ValueError(f"two kinds of target are called {kind.name!r}")
            _check_own(kind)
            for other in by_name.values():
                _check_apart(kind, other)
            by_name[kind.name] = by_key[kind.key] = kind
        for (field, on), kind in by_key.items():
            if (field, "") not in by_key:
                problem = f"the kind {kind.name!r} runs {field!r} on {on!r}"
                raise ValueError(f"{problem}, and no kind runs it without `on`")
        self._by_name, self._by_key = by_name, by_key
        self._unresolved_needs = tuple(_unresolved(*key) for key in by_key)

    @property
    def unresolved_needs(self) -> tuple[str, ...]:
        """What runs of these kinds need that were decided by nodes that do not know them."""
        self._load()
        return self._unresolved_needs

    def all(self) -> tuple[TargetKind, ...]:
        """Return every kind."""
        self._load()
        return tuple(self._by_name.values())

    def find(self, name: str) -> TargetKind | None:
        """Return the kind with this name."""
        self._load()
        return self._by_name.get(name)

    def fields(self) -> tuple[str, ...]:
        """Return the fields of `run:` that name a kind."""
        self._load()
        return tuple(dict.fromkeys(field for field, _ in self._by_key))

    def places(self, field: str) -> dict[str, TargetKind]:
        """Return the kinds that a field can name, by the value of `on`."""
        self._load()
        return {kind.on: kind for (own, _), kind in self._by_key.items() if own == field}

    def _load(self) -> None:
        if self.loader is not None:
            self.loader()


def _not_installed() -> None:
    raise AssertionError("no kinds of target are installed: import onbeat.host.kinds")


KINDS = TargetKinds()
KINDS.loader = _not_installed

UNRESOLVED = "kind:"  # the start of what a run needs whose kind was not known when it was decided


@lru_cache(maxsize=256)
def unknown_kind(field: str, on: str = "") -> TargetKind:
    """Return the facts of a kind that no plug of this process declares: the safest ones."""
    needs = _unresolved(field, on)
    name = needs.removeprefix(UNRESOLVED)
    return TargetKind(
        name=name, schema={}, field=field, on=on, needs=lambda _: needs, is_known=False
    )


def missing_kind(needs: str) -> str:
    """Return the kind that no plug of this process declares, if a run needs one, or an empty text.

    The kind is named as in `run:`, such as `slack`, or `python/ray` if `on` names its place.
    """
    is_missing = needs.startswith(UNRESOLVED) and needs not in KINDS.unresolved_needs
    return needs.removeprefix(UNRESOLVED) if is_missing else ""


def is_offered(needs: str, offers: Collection[str]) -> bool:
    """Return whether a node with these offers can launch what needs this, or may be able to.

    The exact need of a kind that was not known is not known either: a node that offers something
    of the kind is taken to be able to.
    """
    if needs in offers or not needs.startswith(UNRESOLVED):
        return needs in offers
    field, _, on = needs.removeprefix(UNRESOLVED).partition("/")
    kind = KINDS.places(field).get(on)
    name = needs.removeprefix(UNRESOLVED) if kind is None else kind.name
    return any(each.partition(":")[0] == name for each in offers)


def _check_own(kind: TargetKind) -> None:
    """Refuse a kind with a reserved name, or with fields that its own schema lacks."""
    field, properties = kind.key[0], _properties(kind)
    for name in (kind.name, field):
        if name in RESERVED or not NAME.fullmatch(name):
            raise ValueError(f"the kind of target {kind.name!r} cannot be called {name!r}")
    if field not in properties or not kind.plain_fields <= properties:
        missing = min({field, *kind.plain_fields} - properties)
        raise ValueError(f"the schema of the kind {kind.name!r} has no field {missing!r}")
    if "on" in properties and not kind.on:
        raise ValueError(f"the kind {kind.name!r} has a field 'on', which only names a place")


def _check_apart(kind: TargetKind, other: TargetKind) -> None:
    """Refuse a kind if a target of it, or of the other kind, could be taken for the other."""
    for named, having in ((kind, other), (other, kind)):
        field = named.key[0]
        if field != having.key[0] and field in _properties(having):
            problem = f"the field {field!r} names the kind {named.name!r}"
            raise ValueError(f"{problem}, and is a field of the kind {having.name!r}")
        if field == having.name != having.key[0]:
            raise ValueError(f"the field {field!r} is the name of another kind of target")


def _properties(kind: TargetKind) -> frozenset[str]:
    """Return the fields of `run:` that a target of a kind can have."""
    found = kind.schema.get("properties")
    return frozenset(found) if isinstance(found, Mapping) else frozenset()


RESERVED = frozenset({"enabled", "inputs", "kind", "on"})  # fields of any target, and UNRESOLVED
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def _unresolved(field: str, on: str) -> str:
    return f"{UNRESOLVED}{field}/{on}" if on else f"{UNRESOLVED}{field}"

"""`Plug`: what a launcher or a system adds to Onbeat, declared in its folder.

Every plug is found by the same table, `host/plugs.py`: those of Onbeat, and those of installed
packages. A declaration imports nothing: it names everything by references, such as
`package.module:name`, which are imported when they are needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

Reference = str


@dataclass(frozen=True, slots=True)
class VerbReference:
    """A verb of the command line: the reference of its click command, and a line of help."""

    command: Reference
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plug:
    """What a launcher or a system adds. Everything but the name may be left out.

    `make` is called once in each process, as `make(process: Process) -> Part`, in the order of the
    table. `checkers` returns launchers that check targets and launch nothing, by kind; it is called
    as `checkers(check_url)`, with a function that refuses an invalid `http` target.
    """

    name: str
    kinds: Reference = ""  # a tuple of `TargetKind`
    settings: Reference = ""  # a dataclass, its group of settings: see `core/fields.py`
    variables: Reference = ""  # of a replaced scheduler: a mapping of names to `Variable`
    make: Reference = ""
    checkers: Reference = ""
    routes: Reference = ""  # a list of Litestar handlers, below the prefix of the API
    root_routes: Reference = ""  # the same, outside the prefix: for clients of another scheduler
    # Paths of root routes whose problems have the text as `error` too, as such clients expect it.
    error_paths: tuple[str, ...] = ()
    bodies: Reference = ""  # JSON Schemas of request bodies: (name, schema) by operation id
    # Of the dashboard: `async (service, surface) -> HTML`. It is not called in a process in which
    # `make` returned no surface: the system is off there.
    sections: Reference = ""
    verbs: Mapping[str, VerbReference] = field(default_factory=dict)
    checks: Reference = ""  # of `onbeat doctor`: a tuple of functions
    # Files that define something: `(Groups) -> Iterator[SourceFile]`, for `onbeat doctor`.
    source_files: Reference = ""
    peers: Reference = ""  # programs that it depends on: `(PeerContext) -> Sequence[Peer]`

    def references(self) -> dict[str, Reference]:
        """Return every reference, by what it is."""
        others = {"name", "error_paths", "verbs"}
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        verbs = {f"verb {name}": each.command for name, each in self.verbs.items()}
        return {n: each for n, each in found.items() if each and n not in others} | verbs

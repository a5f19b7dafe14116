"""`Process`: what a plug makes its part of a process with."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onbeat.core.target import Target
from onbeat.ports.http import CallbackHeaders, SendRequest
from onbeat.ports.launcher import Launcher
from onbeat.ports.store import Store
from onbeat.ports.system import NO_PART, Groups, Part
from onbeat.service.service import Service
from onbeat.service.tokens import Tokens


class ProcessSettings(Groups, Protocol):
    """The settings that plugs may read: their own group, and some of the process."""

    @property
    def concurrency(self) -> int:
        """How many runs a node may have at once."""

    @property
    def public_only(self) -> bool:
        """Whether requests may go to public addresses only."""

    @property
    def public_url(self) -> str:
        """The URL of the API for others; empty: the address of the process."""

    @property
    def pass_env(self) -> tuple[str, ...]:
        """The variables that are passed to commands, besides the usual ones."""

    @property
    def secrets(self) -> str:
        """The folder of secrets."""


class Requests(Launcher, Protocol):
    """The launcher of HTTP requests, which sends requests of other launchers too."""

    @property
    def ask(self) -> SendRequest:
        """What sends one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process on one store, as far as plugs depend on it."""

    service: Service
    store: Store
    store_id: str  # of the database
    file_id: str  # of the database on this machine: a copied file has another
    settings: ProcessSettings
    environment: Mapping[str, str]
    requests: Requests
    functions: Launcher  # of registered and importable Python functions
    output: Path  # the folder for the output of runs
    address: str = ""  # where this process serves the API, if it does
    call_in_thread: Callable[[Callable[[], object]], Awaitable[object]]
    execute: Callable[..., object] | None = None  # runs DAGs in this program
    parts: Mapping[str, Part]  # what the plugs before this one in the table have made

    def part(self, name: str) -> Part:
        """Return the part of another plug, which is before this one in the table."""
        return self.parts.get(name, NO_PART)

    def callback(self) -> CallbackHeaders:
        """Return what makes the headers with which a target reports the outcome of a run."""
        return Tokens(self.store).callback(self.settings.public_url or self.address)


CheckUrl = Callable[[Target], None]

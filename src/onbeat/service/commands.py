"""The base of all use cases that change something."""

from collections.abc import Callable

from onbeat.ports.launcher import Launchers
from onbeat.ports.store import Store
from onbeat.service.access import LOCAL, Caller
from onbeat.service.queries import Queries
from onbeat.service.tokens import Tokens


class Commands(Queries):
    """The use cases on one store, for one caller. `wake` notifies a node in this process."""

    def __init__(
        self,
        store: Store,
        launchers: Launchers,
        *,
        new_id: Callable[[], str],
        wake: Callable[[], None] = lambda: None,
        caller: Caller = LOCAL,
        tokens: Tokens | None = None,
    ) -> None:
        self._all, self._launchers, self._new_id, self._wake = store, launchers, new_id, wake
        super().__init__(store, caller)
        self.tokens = (tokens or Tokens(store)).of(caller)

    def new_id(self) -> str:
        """Return a new unique id."""
        return self._new_id()

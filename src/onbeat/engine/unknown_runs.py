"""`UnknownRuns`: runs that a failed call may have given to this node, which does not know them."""

import logging
from collections.abc import Iterable

from onbeat.errors import StoreFailed, StoreInDoubt
from onbeat.ports.clock import Clock
from onbeat.ports.store import Attempt, Node, Store

log = logging.getLogger("onbeat.engine")


class UnknownRuns:
    """Notes calls that were not answered, and frees the runs that they may have claimed."""

    def __init__(self, store: Store, clock: Clock, node: Node) -> None:
        self._store, self._clock, self._node = store, clock, node
        # Since when a failed call may have given this node runs that it does not know.
        self.in_doubt_since: float | None = None

    def note(self, broken: StoreFailed) -> None:
        """Note a failed call that may have given this node runs nevertheless."""
        if isinstance(broken, StoreInDoubt):
            self.in_doubt_since = self._clock.monotonic()

    async def release(self, known: Iterable[Attempt]) -> None:
        """Free runs that this node holds in the store, other than those of `known` attempts.

        Only runs that were claimed more than two thirds of a lease ago: a younger one may be on its
        way into a list of this node.
        """
        since, before = self.in_doubt_since, self._clock.now() - self._node.lease * 2 // 3
        held = {(attempt.run_id, attempt.fence) for attempt in known}
        freed = await self._store.release_unknown(self._node, held, before=before)
        if freed:
            log.warning(
                "released %d runs: the database did not answer the calls that claimed them", freed
            )
        if self.in_doubt_since == since:
            self.in_doubt_since = None

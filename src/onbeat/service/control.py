"""Control the installation: groups, the gate, nodes, and documents of systems."""

from collections.abc import Collection

from onbeat.core.policy_values import GROUP_FORM
from onbeat.errors import InvalidSchedule, quote_value
from onbeat.service.commands import Commands

MOST_PLACES = 10_000  # of a group


class ControlCommands(Commands):
    """The use cases that change the installation as a whole."""

    async def set_group(self, name: str, *, places: int) -> bool:
        """Set the concurrency limit of a group; return whether it changed."""
        self._needs("admin")
        if not GROUP_FORM.fullmatch(name):
            hint = "letters, digits and . _ / -, at most 100"
            raise InvalidSchedule(
                "group", f"{quote_value(name)} is not a valid group name", hint=hint
            )
        if not 1 <= places <= MOST_PLACES:
            hint = f"1 to {MOST_PLACES}"
            raise InvalidSchedule("places", f"{places} is out of bounds", hint=hint)
        changed = await self._store.set_group(name, places=places)
        self._wake()
        return changed

    async def keep(self, kind: str, name: str, body: object, *, user_id: str = "") -> None:
        """Store a document of a system, which only that system reads."""
        self._needs("define")
        await self._store.keep(kind, name, body, user_id=self.caller.owner or user_id)

    async def forget(self, kind: str, name: str) -> bool:
        """Delete a document of a system; return whether it existed."""
        self._needs("define")
        return await self._store.forget(kind, name)

    async def set_gate(self, *, is_open: bool) -> bool:
        """Open or close the gate; return whether that is a change."""
        self._needs("admin")
        changed = await self._store.set_gate(is_open=is_open)
        self._wake()
        return changed

    async def request_stop(self, node_ids: Collection[str]) -> int:
        """Request nodes to stop gracefully; return how many of them are registered."""
        self._needs("admin")
        return await self._store.request_stop(node_ids)

    async def record_gap(self) -> None:
        """Record all ticks up to now as missed, after a backup was restored. No node is up."""
        self._needs("admin")
        self._needs_all()
        after: str | None = ""
        while after is not None:
            after = await self._store.record_gap(after=after)

"""Which folder is kept in step with the store.

A document in the store names the one folder that is kept in step. Any other folder is filled from
the store first: its unknown slugs are adopted, its files of known slugs are overwritten.
"""

import asyncio
import logging
from collections.abc import Collection
from uuid import uuid4

from onbeat.service.service import Service
from onbeat.systems.sessions.files import Files

log = logging.getLogger("onbeat.sessions")

MIRROR = "sessions-folder"  # document kind: the folder that is kept in step


class KeptFolder:
    """Whether this process keeps its folder in step, and which slugs it has yet to write."""

    def __init__(self, service: Service, files: Files, *, store_id: str) -> None:
        self._service, self._files, self._store_id = service, files, store_id
        self.is_on = False  # whether this process writes the files
        self._folder_id: str | None = None
        self._filled: set[str] | None = None  # slugs written so far; None: it is kept in step

    @property
    def is_filling(self) -> bool:
        """Whether the folder is being filled from the store."""
        return self._filled is not None

    def start(self) -> None:
        """Start writing the files, until another node takes over."""
        self.is_on, self._folder_id, self._filled = True, None, None

    def is_to_fill(self, slug: str) -> bool:
        """Return whether a schedule has yet to be written to a folder that is being filled."""
        return self._filled is not None and slug not in self._filled

    def add(self, slug: str) -> None:
        """Note that a slug has been written."""
        if self._filled is not None:
            self._filled.add(slug)

    async def is_in_use(self) -> bool:
        """Return whether this process keeps the folder in step, and no other node took over."""
        if not self.is_on:
            return False
        stored = await self._service.kept(MIRROR, "folder")
        named = (
            stored.body.get("id") if stored is not None and isinstance(stored.body, dict) else None
        )
        if self._folder_id is not None and named != self._folder_id:
            self.is_on = False
            message = (
                "[SCHEDULER] the folder %s is not updated any more: another folder is in use now"
            )
            log.warning(message, self._files.folder)
            return False
        mark = await asyncio.to_thread(self._files.mark)
        if named is not None and mark == f"{self._store_id} {named}":
            self._folder_id, self._filled = str(named), None
        elif self._filled is None:
            self._filled = set()
        return True

    async def claim(self, slugs: Collection[str]) -> None:
        """Keep this folder in step from now on, if all these slugs have been written to it."""
        if self._filled is None or not self._filled.issuperset(slugs):
            return
        if not await self.is_in_use() or self._filled is None:
            return  # another process has, for the same folder
        folder_id = self._folder_id or uuid4().hex
        await asyncio.to_thread(self._files.set_mark, f"{self._store_id} {folder_id}")
        await self._service.keep(MIRROR, "folder", {"id": folder_id})
        self._folder_id, self._filled = folder_id, None

"""Problems of slugs: shown until they are solved, and logged once each."""

import logging
from collections.abc import Collection, Iterable

from onbeat.core.schedule import from_definition
from onbeat.errors import quote_value
from onbeat.ports.rows import ScheduleRow
from onbeat.systems.reconcile import Problems
from onbeat.systems.sessions.broken_files import BrokenFiles
from onbeat.systems.sessions.definitions import SLUGS, PromptDefaults, PromptRefused, check_minimum
from onbeat.systems.sessions.files import Corrupt

log = logging.getLogger("onbeat.sessions")


class SlugProblems:
    """The slugs whose files are broken, and what was logged of slugs."""

    def __init__(self, broken: BrokenFiles) -> None:
        self.corrupt: dict[str, Corrupt] = {}  # broken files, by slug
        self._broken = broken
        self._stored: dict[str, Corrupt] | None = None  # problems of slugs without a schedule
        self._logged, self._names = Problems(), Problems()

    def hold(self, slug: str, why: Corrupt) -> None:
        """Show a slug as broken."""
        self.corrupt[slug] = why
        if self._logged.record(slug, str(why)):
            message = "[SCHEDULER] %s: the file %s is %s, skipped: %s"
            log.warning(message, slug, why.name, why.kind, why.why)

    def retry(self, slug: str, failed: Exception) -> None:
        """Log why a slug could not be reconciled."""
        if self._logged.record(slug, str(failed)):
            log.warning(
                "[SCHEDULER] %s: not synchronized with its files: %s (will be retried)",
                slug,
                failed,
            )

    def solve(self, slug: str) -> None:
        """Forget the problem of a slug."""
        self.corrupt.pop(slug, None)
        self._logged.clear(slug)

    def check_name(self, slug: str, name: object) -> None:
        """Log once a definition whose `slug` differs from the name of its folder."""
        if name == slug:
            self._names.clear(slug)
        elif self._names.record(slug, quote_value(name)):
            message = "[SCHEDULER] %s: its definition has the slug %s; the folder's name is used"
            log.warning(message, slug, quote_value(name))

    def check_folders(self, misnamed: Iterable[str]) -> None:
        """Log once each folder that is ignored because its name is not a slug."""
        for name in misnamed:
            if self._names.record(name, "not a slug"):
                log.warning(
                    "[SCHEDULER] the folder %s is ignored: its name is not a slug (%s)",
                    quote_value(name),
                    SLUGS,
                )

    async def store(self, scheduled: Collection[str]) -> None:
        """Store the problems of slugs that have no schedule."""
        found = {slug: why for slug, why in self.corrupt.items() if slug not in scheduled}
        if found != self._stored:
            await self._broken.replace_all(found)
            self._stored = found


class IntervalLimit:
    """Which schedules are more frequent than the operator allows by now."""

    def __init__(self, defaults: PromptDefaults) -> None:
        self._defaults = defaults
        self._checked: dict[str, tuple[str, str | None]] = {}  # definitions and errors, by slug

    def error_of(self, row: ScheduleRow, *, now: int) -> str | None:
        """Return the error of a schedule, or None; each definition is checked once."""
        slug, text = row.schedule_id, row.definition
        checked = self._checked.get(slug)
        if checked is None or checked[0] != text:
            found, error = from_definition(slug, text), None
            try:
                check_minimum(found, self._defaults, now)
            except PromptRefused as refused:
                error = str(refused)
            checked = self._checked[slug] = (text, error)
        return checked[1]

    def forget(self, slug: str) -> None:
        """Forget a schedule that was deleted."""
        self._checked.pop(slug, None)

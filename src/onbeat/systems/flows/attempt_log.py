"""The lines that one attempt at a flow writes: to the output of its run, and to the timer's log."""

import logging

from onbeat.core.runs.run import Busy

log = logging.getLogger("onbeat.timer")


class AttemptLog:
    """The output of one attempt, and its messages in the log."""

    def __init__(self, key: str, *, interval: int) -> None:
        """`interval`: after how many milliseconds a deferred run is retried."""
        self.key, self._interval = key, interval
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        """Add a line to the output."""
        self.lines.append(line)

    def warn(self, warning: str) -> None:
        """Log a warning, and add it to the output."""
        self.add(f"warning: {warning}")
        log.warning("flow %s: %s", self.key, warning)

    def busy(self, error: str, *, what: str = "the panel") -> Busy:
        """Log that the run is deferred because something is unavailable; return that outcome."""
        retry = f"retried in {self._interval / 1000:g} s"
        log.error("flow %s: %s is unavailable, %s: %s", self.key, what, retry, error)
        return Busy(error, self._interval)

"""The log of the timer: a separate file, and the console."""

import logging
import logging.handlers
from pathlib import Path

NAME = "onbeat.timer"
LARGEST = 1024 * 1024  # bytes of one file
FILES = 10
LINE = "%(asctime)s %(levelname)s %(message)s"


def timer_logger() -> logging.Logger:
    """Return the logger of the timer."""
    return logging.getLogger(NAME)


class TimerLog:
    """Writes the timer's log to a file and to the console, each from its own level."""

    def __init__(self, path: Path | None, *, file_level: str, std_level: str) -> None:
        self._path, self._file_level, self._std_level = path, file_level, std_level
        self._handlers: list[logging.Handler] = []

    def open(self) -> None:
        """Start writing; raise OSError if the file cannot be written."""
        logger = timer_logger()
        for left in logger.handlers:  # there is one timer in a process
            left.close()
        console = _Console(level=self._std_level)
        self._handlers = [console]
        try:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                file = logging.handlers.RotatingFileHandler(
                    self._path,
                    maxBytes=LARGEST,
                    backupCount=FILES - 1,
                    encoding="utf-8",
                    delay=True,
                )
                file.setLevel(self._file_level)
                file.setFormatter(logging.Formatter(LINE))
                self._handlers.append(file)
        finally:
            logger.handlers = list(self._handlers)
            logger.setLevel(min(handler.level for handler in self._handlers))
            logger.propagate = False

    def close(self) -> None:
        """Stop writing, and restore the logger."""
        logger = timer_logger()
        for handler in self._handlers:
            logger.removeHandler(handler)
            handler.close()
        self._handlers = []
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


class _Console(logging.Handler):
    """Passes records to the handlers of the parent logger."""

    def emit(self, record: logging.LogRecord) -> None:
        parent = timer_logger().parent
        if parent is not None:
            parent.callHandlers(record)

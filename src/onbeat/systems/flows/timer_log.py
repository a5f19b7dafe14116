"""The log of the timer: a file of its own, beside what is written to the console."""

import logging
import logging.handlers
from pathlib import Path

NAME = "onbeat.timer"
LARGEST = 1024 * 1024  # bytes of one file
FILES = 10
LINE = "%(asctime)s %(levelname)s %(message)s"


def timer_logger() -> logging.Logger:
    """Return what the timer writes to; whoever uses it need not know where that goes."""
    return logging.getLogger(NAME)


class TimerLog:
    """Has what the timer says written to a file, and as much of it as is wanted to the console."""

    def __init__(self, path: Path | None, *, file_level: str, std_level: str) -> None:
        self._path, self._file_level, self._std_level = path, file_level, std_level
        self._handlers: list[logging.Handler] = []

    def open(self) -> None:
        """Write from now on; a file that cannot be written is told, and done without."""
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
        """Write no more, but for what others have set up."""
        logger = timer_logger()
        for handler in self._handlers:
            logger.removeHandler(handler)
            handler.close()
        self._handlers = []
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


class _Console(logging.Handler):
    """Gives what is important enough to wherever all else is written."""

    def emit(self, record: logging.LogRecord) -> None:
        parent = timer_logger().parent
        if parent is not None:
            parent.callHandlers(record)

"""Warnings about plugs, on stderr: they are logged before a verb has set up the log."""

import logging

import click

written: set[str] = set()  # the lines, so that a node in the background does not repeat them


def show_warnings() -> None:
    """Write one line for each warning about plugs, until the log of a node is set up."""
    log = logging.getLogger("onbeat.plugs")
    if not any(isinstance(each, _WarningsOnStderr) for each in log.handlers):
        log.addHandler(_WarningsOnStderr())


class _WarningsOnStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        handlers = logging.getLogger("onbeat").handlers
        if all(isinstance(each, logging.NullHandler) for each in handlers):
            line = f"onbeat: {record.getMessage()}"
            written.add(line)
            click.echo(line, err=True)

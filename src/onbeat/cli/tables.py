"""Tables: as wide as their cells for a program, no wider than the terminal for a person."""

from collections.abc import Sequence
from typing import NamedTuple

import click

from onbeat.cli.format import Cell, Times
from onbeat.cli.terminal import has_colours, table_width

GAP = 2  # spaces between two columns
LEAST = 4  # characters that a column keeps whatever the width of the terminal
ELLIPSIS = "…"

WIDE = click.option("--wide", is_flag=True, help="Show all columns, with nothing shortened.")

STATUS_COLOURS = {
    "SUCCESS": "green",
    "STARTED": "cyan",
    "ENQUEUED": "blue",
    "FAILED": "red",
    "CANCELED": "yellow",
    "SKIPPED": "bright_black",
}


class Column(NamedTuple):
    """A column of a table, and how it yields if the terminal is too narrow."""

    heading: str
    least: int = 0  # it may be cut down to so many characters; 0: it is never cut
    drop: int = 0  # it may be left out, those with the highest number first; 0: it never is


class Table:
    """Rows under a heading, written as they come. The first rows set the widths."""

    def __init__(
        self, *columns: Column | str, wide: bool = False, width: int | None = None
    ) -> None:
        """`width` is that of the terminal, if it is not the one of stdout."""
        self._columns = [Column(each) if isinstance(each, str) else each for each in columns]
        self._limit = None if wide else width or table_width()
        self._level = 0
        self._widths: list[int] = []
        self.is_empty = True

    def write(self, rows: Sequence[Sequence[Cell | str]]) -> None:
        """Write more rows; the heading comes before the first."""
        if not rows:
            return
        cells = [[Cell((each,)) if isinstance(each, str) else each for each in row] for row in rows]
        lines = [self._line(row) for row in cells] if not self.is_empty else self._first(cells)
        click.echo("\n".join(lines))

    def end(self, times: Times | None = None, empty: str = "") -> None:
        """Write the zone of the times below the rows, or `empty` if the table has no rows."""
        if self.is_empty and empty:
            click.echo(empty)
        elif not self.is_empty and times is not None:
            write_zone(times)

    def write_heading(self) -> None:
        """Write the heading of a table without rows."""
        click.echo("  ".join(each.heading for each in self._columns))

    def _first(self, rows: list[list[Cell]]) -> list[str]:
        self._level, self._widths = fit(self._columns, rows, self._limit)
        self.is_empty = False
        heading = [Cell((each.heading,)) for each in self._columns]
        return [self._line(row) for row in (heading, *rows)]

    def _line(self, row: list[Cell]) -> str:
        shown = [
            (cut(cell.form(self._level), width if self._limit else None), width, cell.colour)
            for cell, width in zip(row, self._widths, strict=True)
            if width
        ]
        last = len(shown) - 1
        padded = [
            paint(text, colour) + " " * ((width - len(text) + GAP) if n < last else 0)
            for n, (text, width, colour) in enumerate(shown)
        ]
        return "".join(padded).rstrip()


def write_table(
    columns: Sequence[Column | str],
    rows: Sequence[Sequence[Cell | str]],
    *,
    times: Times | None = None,
    wide: bool = False,
) -> None:
    """Write a whole table, and the zone of its times."""
    table = Table(*columns, wide=wide)
    table.write(rows)
    if table.is_empty:
        table.write_heading()
    table.end(times)


def write_zone(times: Times) -> None:
    """Name the zone of the times above, unless each of them does."""
    if times.note:
        click.echo(paint(times.note, "bright_black"))


def status_cell(status: str, reason: str | None = None) -> Cell:
    """Return the status of a run for a table, with its reason, in its colour."""
    text = f"{status} ({reason})" if reason else status
    return Cell((text,), STATUS_COLOURS.get(status))


def paint(text: str, colour: str | None) -> str:
    """Return a text in a colour, if stdout shows colours."""
    return click.style(text, fg=colour) if colour and text and has_colours() else text


def cut(text: str, width: int | None) -> str:
    """Return a text of at most `width` characters; the last of a longer one is an ellipsis."""
    if width is None or len(text) <= width:
        return text
    return f"{text[: width - 1].rstrip()}{ELLIPSIS}"


def fit(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], limit: int | None
) -> tuple[int, list[int]]:
    """Return the form of the cells and the widths of the columns; width 0 leaves a column out.

    In this order, until the table fits: leave out today's date, cut long columns, show distances
    instead of times, leave columns out, and at last cut every column.
    """
    widths = _natural(columns, rows, 0)
    if limit is None or _total(widths) <= limit:
        return 0, widths
    for level in (1, 2):
        widths = _shrunk(_natural(columns, rows, level), [each.least for each in columns], limit)
        if _total(widths) <= limit:
            return level, widths
    natural = _natural(columns, rows, 2)
    for _, n in sorted(
        ((each.drop, n) for n, each in enumerate(columns) if each.drop), reverse=True
    ):
        natural[n] = 0
        widths = _shrunk(natural, [each.least for each in columns], limit)
        if _total(widths) <= limit:
            return 2, widths
    return 2, _shrunk(widths, [LEAST] * len(columns), limit)


def _natural(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], level: int) -> list[int]:
    return [
        max(len(column.heading), *(len(row[n].form(level)) for row in rows))
        for n, column in enumerate(columns)
    ]


def _total(widths: Sequence[int]) -> int:
    shown = [width for width in widths if width]
    return sum(shown) + GAP * max(len(shown) - 1, 0)


def _shrunk(widths: Sequence[int], least: Sequence[int], limit: int) -> list[int]:
    """Return widths that are cut as far as they may be: always the widest, by one character."""
    found = list(widths)
    while _total(found) > limit:
        able = [n for n, width in enumerate(found) if least[n] and width > least[n]]
        if not able:
            break
        found[max(able, key=found.__getitem__)] -= 1
    return found

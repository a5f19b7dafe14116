"""Exposes, where a panel of flows keeps them: a table of an `expose.db`, or a folder of YAML files.

Both are somebody else's: they are only read, and what cannot be read just now is not gone.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import apsw

from onbeat.errors import InvalidSchedule, Mistake, shown
from onbeat.sources.text_files import read_text
from onbeat.sources.yaml_positions import read_yaml

BUSY_LIMIT = 500  # milliseconds that a reader waits for whoever writes
MOST = 10_000  # exposes: of more than these nobody could say which are gone
SUFFIXES = (".yaml", ".yml")
ROWS = "SELECT name, enabled, meta FROM expose ORDER BY name LIMIT ?"

Row = Mapping[str, object]


class Exposes:
    """The exposes of a panel, each as its fields: `name`, `enabled`, `meta`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[tuple[str, Row | InvalidSchedule]]:
        """Return every expose by name, or why that one cannot be read; refuse all if none can."""
        if self.path.is_dir():
            return self._of_folder()
        if not self.path.exists():
            problem = f"{self.path} does not exist"
            raise InvalidSchedule("", problem, hint="an expose.db, or a folder of YAML files")
        if not self.path.is_file():
            problem = f"{self.path} is not a regular file"
            raise InvalidSchedule("", problem, hint="an expose.db, or a folder of YAML files")
        return self._of_database()

    def parse(self, text: str) -> object:
        """Return what a YAML text says, or refuse it with its first mistake."""
        return _parsed(text)

    def _of_folder(self) -> list[tuple[str, Row | InvalidSchedule]]:
        try:
            files = [each for each in sorted(self.path.iterdir()) if each.suffix in SUFFIXES]
        except OSError as broken:
            problem = f"{self.path} cannot be read: {broken.strerror}"
            raise InvalidSchedule("", problem, hint="a folder of YAML files") from None
        files = [each for each in files if not each.name.startswith(".")]
        self._check_number(len(files))
        return [(each.stem, _of_file(each)) for each in files]

    def _of_database(self) -> list[tuple[str, Row | InvalidSchedule]]:
        hint = "an expose.db with its table expose"
        try:
            flags = apsw.SQLITE_OPEN_READONLY
            with closing(apsw.Connection(str(self.path), flags=flags)) as connection:
                connection.set_busy_timeout(BUSY_LIMIT)
                rows = connection.execute(ROWS, (MOST + 1,)).fetchall()
        except apsw.Error as broken:
            problem = f"{self.path} cannot be read: {broken}"
            raise InvalidSchedule("", problem, hint=hint) from None
        self._check_number(len(rows))
        return [
            (str(row[0]), dict(zip(("name", "enabled", "meta"), row, strict=True))) for row in rows
        ]

    def _check_number(self, n: int) -> None:
        if n > MOST:
            problem = f"{self.path} has more than {MOST} exposes"
            raise InvalidSchedule("", problem, hint=f"{MOST} at most")


def _of_file(path: Path) -> Row | InvalidSchedule:
    try:
        found = _parsed(read_text(path))
    except InvalidSchedule as refused:
        return refused
    if not isinstance(found, Mapping):
        hint = "name, enabled, and meta: [{url, data}]"
        return InvalidSchedule("", f"{path.name} has no fields in it", hint=hint)
    if found.get("name", path.stem) != path.stem:
        problem = f"{path.name} calls itself {shown(found['name'])}"
        return InvalidSchedule("name", problem, hint=f"{path.stem}, as the file is called")
    return {"name": path.stem, **found}


def _parsed(text: str) -> object:
    given, _, mistakes = read_yaml(text)
    for mistake in mistakes:
        raise InvalidSchedule(mistake.field, _told(mistake), hint=mistake.hint)
    return given


def _told(mistake: Mistake) -> str:
    return mistake.problem if mistake.line is None else f"line {mistake.line}: {mistake.problem}"

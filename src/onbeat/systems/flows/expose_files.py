"""Read the exposes of a Kodosumi panel: a table in `expose.db`, or a folder of YAML files.

Both belong to the panel and are only read. An expose that cannot be read is not treated as deleted.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import apsw

from onbeat.errors import InvalidSchedule, Mistake, quote_value
from onbeat.sources.text_files import read_text
from onbeat.sources.yaml_positions import read_yaml

BUSY_TIMEOUT = 500  # milliseconds
MOST_EXPOSES = 10_000  # more are refused: reading only some would look like deletions
SUFFIXES = (".yaml", ".yml")
ROWS = "SELECT name, enabled, meta FROM expose ORDER BY name LIMIT ?"

Row = Mapping[str, object]


class Exposes:
    """The exposes of a panel, each as its fields: `name`, `enabled`, `meta`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[tuple[str, Row | InvalidSchedule]]:
        """Return every expose by name, or why it cannot be read; raise if the source fails."""
        if self.path.is_dir():
            return self._read_folder()
        if not self.path.exists():
            problem = f"{self.path} does not exist"
            raise InvalidSchedule("", problem, hint="an expose.db, or a folder of YAML files")
        if not self.path.is_file():
            problem = f"{self.path} is not a regular file"
            raise InvalidSchedule("", problem, hint="an expose.db, or a folder of YAML files")
        return self._read_database()

    def parse(self, text: str) -> object:
        """Return the value of a YAML text, or refuse it with its first mistake."""
        return _parse(text)

    def _read_folder(self) -> list[tuple[str, Row | InvalidSchedule]]:
        try:
            files = [each for each in sorted(self.path.iterdir()) if each.suffix in SUFFIXES]
        except OSError as error:
            problem = f"{self.path} cannot be read: {error.strerror}"
            raise InvalidSchedule("", problem, hint="a folder of YAML files") from None
        files = [each for each in files if not each.name.startswith(".")]
        self._check_number(len(files))
        return [(each.stem, _read_file(each)) for each in files]

    def _read_database(self) -> list[tuple[str, Row | InvalidSchedule]]:
        hint = "an expose.db with the table `expose`"
        try:
            flags = apsw.SQLITE_OPEN_READONLY
            with closing(apsw.Connection(str(self.path), flags=flags)) as connection:
                connection.set_busy_timeout(BUSY_TIMEOUT)
                rows = connection.execute(ROWS, (MOST_EXPOSES + 1,)).fetchall()
        except apsw.Error as error:
            problem = f"{self.path} cannot be read: {error}"
            raise InvalidSchedule("", problem, hint=hint) from None
        self._check_number(len(rows))
        return [
            (str(row[0]), dict(zip(("name", "enabled", "meta"), row, strict=True))) for row in rows
        ]

    def _check_number(self, n: int) -> None:
        if n > MOST_EXPOSES:
            problem = f"{self.path} has more than {MOST_EXPOSES} exposes"
            raise InvalidSchedule("", problem, hint=f"{MOST_EXPOSES} at most")


def _read_file(path: Path) -> Row | InvalidSchedule:
    try:
        fields = _parse(read_text(path))
    except InvalidSchedule as refused:
        return refused
    if not isinstance(fields, Mapping):
        hint = "name, enabled, and meta: [{url, data}]"
        return InvalidSchedule("", f"{path.name} has no fields", hint=hint)
    if fields.get("name", path.stem) != path.stem:
        problem = f"{path.name} contains another name: {quote_value(fields['name'])}"
        return InvalidSchedule("name", problem, hint=f"{path.stem}, like the file")
    return {"name": path.stem, **fields}


def _parse(text: str) -> object:
    value, _, mistakes = read_yaml(text)
    for mistake in mistakes:
        raise InvalidSchedule(mistake.field, _with_line(mistake), hint=mistake.hint)
    return value


def _with_line(mistake: Mistake) -> str:
    return mistake.problem if mistake.line is None else f"line {mistake.line}: {mistake.problem}"

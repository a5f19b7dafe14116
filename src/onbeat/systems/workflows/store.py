"""Where the DAGs of workflows are: as files of a folder, or in the database.

A DAG is JSON that nobody here looks into. What was saved is there, whole, or what was there before.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import msgspec

from onbeat.core.schedules import json_can_say
from onbeat.errors import InvalidSchedule, shown
from onbeat.records import DocumentRow

KIND = "workflow"  # of documents in the database
LONGEST_NAME = 240  # of a file: most systems allow 255
LONGEST_ID = 200
HIGHEST_VERSION = 2**53 - 1  # what every reader of JSON takes for a whole number

Dag = Mapping[str, object]


class WorkflowStore(Protocol):
    """Keeps the DAGs of workflows, by id and version."""

    async def load_dag(self, workflow_id: str, version: int) -> Dag | None:
        """Return a DAG, or None if there is none; one that is no JSON is refused."""

    async def save_dag(self, workflow_id: str, version: int, dag: Dag) -> None:
        """Keep a DAG, durably, in place of what has this id and version by now."""


class Documents(Protocol):
    """What keeps JSON by name: a store has it, and so do the use cases."""

    async def keep(self, kind: str, name: str, body: object) -> None:
        """Keep it in place of what has this name."""

    async def kept(self, kind: str, name: str) -> DocumentRow | None:
        """Return what has this name."""


class DatabaseStore:
    """DAGs beside schedules, in the same database; each is its first owner's."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def load_dag(self, workflow_id: str, version: int) -> Dag | None:
        found = await self._documents.kept(KIND, name_of(workflow_id, version))
        return None if found is None else check_dag(found.body)

    async def save_dag(self, workflow_id: str, version: int, dag: Dag) -> None:
        await self._documents.keep(KIND, name_of(workflow_id, version), check_dag(dag))


class DirectoryStore:
    """DAGs as files: `{workflow_id}_v{version}.json`. Others may put files there, too."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).expanduser()

    async def load_dag(self, workflow_id: str, version: int) -> Dag | None:
        return await asyncio.to_thread(self._read, self.path_of(workflow_id, version))

    async def save_dag(self, workflow_id: str, version: int, dag: Dag) -> None:
        text = msgspec.json.format(msgspec.json.encode(check_dag(dag)), indent=2)
        await asyncio.to_thread(self._write, self.path_of(workflow_id, version), text + b"\n")

    def path_of(self, workflow_id: str, version: int) -> Path:
        """Return the file of a DAG, in this folder whatever the id is."""
        name = quote(name_of(workflow_id, version), safe="")
        if len(name) > LONGEST_NAME:
            problem = f"{shown(workflow_id)} is too long for the name of a file"
            raise InvalidSchedule("workflow_id", problem, hint="a shorter one")
        return self._folder / f"{name}.json"

    def _read(self, path: Path) -> Dag | None:
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as broken:
            problem = f"{path.name} cannot be read: {broken.strerror}"
            raise InvalidSchedule("dag", problem, hint="a file that can be read") from None
        try:
            return check_dag(msgspec.json.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
            problem = f"{path.name} is not JSON: {broken}"
            raise InvalidSchedule("dag", problem, hint='{"nodes": [...]}') from None

    def _write(self, path: Path, text: bytes) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as broken:
            problem = f"{path} cannot be written: {broken.strerror}"
            raise InvalidSchedule("workflow_id", problem, hint="workflows_folder") from None


def name_of(workflow_id: str, version: int) -> str:
    """Return what a DAG is called: no two have one name, as a version is a number."""
    check_workflow(workflow_id, version)
    return f"{workflow_id}_v{version}"


def check_workflow(workflow_id: object, version: object) -> None:
    """Refuse what cannot be the id and the version of a workflow."""
    check_text("workflow_id", workflow_id)
    if type(version) is not int or not 0 <= version <= HIGHEST_VERSION:
        hint = "a whole number is needed" if type(version) is not int else "0 or more"
        raise InvalidSchedule("version", f"{shown(version)} is not a whole number", hint=hint)


def check_text(name: str, value: object) -> None:
    """Refuse what is no text, or none that could be an id."""
    if not isinstance(value, str) or not value or not json_can_say(value):
        raise InvalidSchedule(name, f"{shown(value)} is not a text", hint="a text is needed")
    if len(value) > LONGEST_ID or not value.isprintable():
        hint = f"{LONGEST_ID} characters at most, on one line"
        raise InvalidSchedule(name, f"{shown(value)} is no such text", hint=hint)


def check_dag(dag: object) -> Dag:
    """Return a DAG, of which nothing is known but that it is an object of JSON; or refuse it."""
    if not isinstance(dag, Mapping):
        raise InvalidSchedule("dag", f"{shown(dag)} is no DAG", hint='{"nodes": [...]}')
    if not json_can_say(dag):
        hint = "texts, finite numbers, lists, and names that are texts"
        raise InvalidSchedule("dag", "it holds more than JSON can say", hint=hint)
    return dag


def write_whole(path: Path, text: bytes) -> None:
    """Write a file that is there whole or as it was before, also if the power fails."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else the name may still be of what was there before
    finally:
        os.close(folder)

"""Stores for the DAGs of workflows: files of a folder, or documents in the database.

A DAG is JSON that is not interpreted here. It is replaced atomically.
"""

import asyncio
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from errno import EFBIG, EINVAL
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

import msgspec

from onbeat.core.target import is_json_value
from onbeat.errors import InvalidSchedule, quote_value
from onbeat.host.atomic_files import replace_file, sync_folder
from onbeat.host.regular_files import read_regular
from onbeat.ports.rows import DocumentRow
from onbeat.systems.workflows.settings import WorkflowsSettings

KIND = "workflow"  # document kind
LONGEST_NAME = 240  # bytes of the name of a file: most systems allow 255
LONGEST_ID = 200
PAGE = 100  # documents that are read together
LONGEST_FILE = 1024 * 1024  # bytes, as in the database
MOST_CHECKED = 10_000  # files of a folder
FOR_ALL = 0o644  # the mode of a new file, so that executors can read it
HIGHEST_VERSION = 2**53 - 1  # the largest integer that all JSON parsers read exactly
UNFIT = re.compile(r"[/%\0]|^\.")  # characters that are escaped in file names

Dag = Mapping[str, object]


class DagRow(NamedTuple):
    """A stored version of a workflow, without its DAG."""

    workflow_id: str
    version: int
    user_id: str  # the owner; empty: all users
    updated_at: int  # milliseconds
    name: str  # where the next page of a list begins


class WorkflowStore(Protocol):
    """Stores the DAGs of workflows, by id and version."""

    async def load_dag(
        self, workflow_id: str, version: int, *, users: Iterable[str] | None = None
    ) -> Dag | None:
        """Return a DAG, or None if it does not exist; raise InvalidSchedule if it is not JSON.

        With `users`, return the DAG of the first user who has one, else the one without an owner.
        """

    async def save_dag(
        self, workflow_id: str, version: int, dag: Dag, *, user_id: str = ""
    ) -> None:
        """Store a DAG durably, replacing one with this id and version.

        It is stored for `user_id`, if given and if the store has owners.
        """

    async def list_dags(
        self, *, workflow_id: str | None = None, after: str = "", limit: int = PAGE
    ) -> list[DagRow]:
        """Return the stored versions by name, of one workflow or of all, after `after`."""

    async def delete_dag(self, workflow_id: str, version: int, *, user_id: str = "") -> bool:
        """Delete the DAG of this owner durably; return whether it existed."""


class Documents(Protocol):
    """Documents by kind and name, as a store and the service have them."""

    async def keep(self, kind: str, name: str, body: object, *, user_id: str = "") -> None:
        """Store a document, replacing its predecessor; a new one belongs to `user_id`."""

    async def kept(self, kind: str, name: str) -> DocumentRow | None:
        """Return the document of this name."""

    async def list_documents(
        self, kind: str, *, after: str = "", limit: int | None = None
    ) -> list[DocumentRow]:
        """Return the documents of a kind by name, after `after`, up to `limit`."""

    async def forget(self, kind: str, name: str) -> bool:
        """Delete the document of this name; return whether it existed."""


class DatabaseStore:
    """DAGs in the database, beside the schedules. Each owner has separate DAGs.

    `owner` is the owner of all DAGs that the caller saves.
    """

    def __init__(self, documents: Documents, *, owner: str = "") -> None:
        self._documents, self._owner = documents, owner

    async def load_dag(
        self, workflow_id: str, version: int, *, users: Iterable[str] | None = None
    ) -> Dag | None:
        name = name_of(workflow_id, version)
        if users is None:
            found = await self._of_any_owner(name, workflow_id)
        else:
            found = await self._of_first(name, [*dict.fromkeys(users), ""])
        return None if found is None else check_dag(found.body)

    async def save_dag(
        self, workflow_id: str, version: int, dag: Dag, *, user_id: str = ""
    ) -> None:
        owner, name = self._owner or user_id, name_of(workflow_id, version)
        await self._documents.keep(KIND, owned_name(name, owner), check_dag(dag), user_id=owner)

    async def list_dags(
        self, *, workflow_id: str | None = None, after: str = "", limit: int = PAGE
    ) -> list[DagRow]:
        prefix = "" if workflow_id is None else quote(f"{workflow_id}_v", safe="/ ")
        found: list[DagRow] = []
        after = max(after, prefix)
        while rows := await self._documents.list_documents(KIND, after=after, limit=PAGE):
            for row in rows:
                name, _, _ = row.name.partition(OWNER_MARK)
                which = _version_of(unquote(name))
                if which is not None and workflow_id in (None, which[0]):
                    found.append(DagRow(*which, row.user_id, row.updated_at, row.name))
                if len(found) == limit:
                    return found
            after = rows[-1].name
            if not after.startswith(prefix):
                break
        return found

    async def delete_dag(self, workflow_id: str, version: int, *, user_id: str = "") -> bool:
        return await self._documents.forget(
            KIND, owned_name(name_of(workflow_id, version), user_id)
        )

    async def _of_first(self, name: str, users: list[str]) -> DocumentRow | None:
        for user_id in users:
            found = await self._documents.kept(KIND, owned_name(name, user_id))
            if found is not None and found.user_id in users:
                return found
        return None

    async def _of_any_owner(self, name: str, workflow_id: str) -> DocumentRow | None:
        """Return the caller's DAG, else the one without an owner, else the only other one."""
        found = await self._of_first(name, [self._owner, ""])
        if found is not None:
            return found
        prefix, after = owned_name(name, "") + OWNER_MARK, ""
        own: list[DocumentRow] = []
        while rows := await self._documents.list_documents(KIND, after=after, limit=PAGE):
            own += [row for row in rows if row.name.startswith(prefix)]
            after = rows[-1].name
        if len(own) > 1:
            problem = f"several users have a workflow {quote_value(workflow_id)}"
            raise InvalidSchedule("users", problem, hint=f"users=[{own[0].user_id!r}]")
        return own[0] if own else None


class DirectoryStore:
    """DAGs as files: `{workflow_id}_v{version}.json`. Other programs may add files.

    Files have no owner.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()

    def exists(self) -> bool:
        """Return whether the folder exists."""
        return self.folder.is_dir()

    async def load_dag(
        self,
        workflow_id: str,
        version: int,
        *,
        users: Iterable[str] | None = None,  # noqa: ARG002 - a file has no owner
    ) -> Dag | None:
        return await asyncio.to_thread(self._read, self.path_of(workflow_id, version))

    async def save_dag(
        self,
        workflow_id: str,
        version: int,
        dag: Dag,
        *,
        user_id: str = "",  # noqa: ARG002 - a file has no owner
    ) -> None:
        text = msgspec.json.format(msgspec.json.encode(check_dag(dag)), indent=2)
        if len(text) >= LONGEST_FILE:
            raise InvalidSchedule("dag", "the DAG is too long", hint="1 MiB at most")
        await asyncio.to_thread(self._write, self.path_of(workflow_id, version), text + b"\n")

    async def list_dags(
        self, *, workflow_id: str | None = None, after: str = "", limit: int = PAGE
    ) -> list[DagRow]:
        return await asyncio.to_thread(self._list, workflow_id, after, limit)

    async def delete_dag(
        self,
        workflow_id: str,
        version: int,
        *,
        user_id: str = "",  # noqa: ARG002 - a file has no owner
    ) -> bool:
        return await asyncio.to_thread(self._delete, self.path_of(workflow_id, version))

    def path_of(self, workflow_id: str, version: int) -> Path:
        """Return the file of a DAG, which is in this folder for any id."""
        name = UNFIT.sub(lambda found: f"%{ord(found[0]):02X}", name_of(workflow_id, version))
        if len(name.encode()) > LONGEST_NAME:
            problem = f"{quote_value(workflow_id)} is too long for the name of a file"
            raise InvalidSchedule("workflow_id", problem, hint="a shorter one")
        return self.folder / f"{name}.json"

    def _read(self, path: Path) -> Dag | None:
        try:
            text = _read_regular(path)
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

    def _list(self, workflow_id: str | None, after: str, limit: int) -> list[DagRow]:
        """Return the files that are DAGs by their names; other files are ignored."""
        found: list[DagRow] = []
        try:
            names = [each.name for each in os.scandir(self.folder) if each.is_file()]
        except FileNotFoundError:
            return []
        except OSError as broken:
            problem = f"{self.folder} cannot be read: {broken.strerror}"
            raise InvalidSchedule("workflows_folder", problem, hint="a folder") from None
        stems = sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))
        for stem in stems[bisect_right(stems, after) :]:
            which = _version_of(unquote(stem))
            if which is None or workflow_id not in (None, which[0]):
                continue
            path = self.folder / f"{stem}.json"
            with suppress(OSError, InvalidSchedule):  # deleted since, or not a valid name
                if self.path_of(*which) == path:
                    at = path.stat().st_mtime_ns // 1_000_000
                    found.append(DagRow(*which, "", at, stem))
            if len(found) == limit:
                break
        return found

    def _delete(self, path: Path) -> bool:
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as broken:
            problem = f"{path.name} cannot be deleted: {broken.strerror}"
            raise InvalidSchedule("workflow_id", problem, hint="workflows_folder") from None
        sync_folder(self.folder)
        return True

    def _write(self, path: Path, text: bytes) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, text, mode=FOR_ALL)
        except OSError as broken:
            problem = f"{path} cannot be written: {broken.strerror}"
            raise InvalidSchedule("workflow_id", problem, hint="workflows_folder") from None


def configured_store(settings: WorkflowsSettings, in_database: DatabaseStore) -> WorkflowStore:
    """Return where DAGs are stored: in the folder of the settings, or in the database."""
    return DirectoryStore(settings.folder) if settings.folder else in_database


def problems_in(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the DAGs in a folder."""
    for n, path in enumerate(sorted(folder.glob("*.json")) if folder.is_dir() else ()):
        if n == MOST_CHECKED:
            return
        try:
            if not path.is_file() or path.stat().st_size > LONGEST_FILE:
                yield f"{path.name} is not a regular file of at most 1 MiB"
            else:
                check_dag(msgspec.json.decode(path.read_bytes()))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            yield f"{path.name} is not JSON: {error}"
        except InvalidSchedule as error:
            yield f"{path.name}: {error}"
        except OSError as error:
            yield f"{path.name} cannot be read: {error.strerror}"


def _read_regular(path: Path) -> bytes:
    """Return the content of a file; refuse a file that is too long or not regular."""
    try:
        return read_regular(path, most=LONGEST_FILE)
    except OSError as broken:
        if broken.errno == EFBIG:
            problem = f"{path.name} is too long"
            raise InvalidSchedule("dag", problem, hint="1 MiB at most") from None
        if broken.errno == EINVAL:
            problem = f"{path.name} is not a regular file"
            raise InvalidSchedule("dag", problem, hint="a file with JSON") from None
        raise


OWNER_MARK = ":"  # between the name of a document and its owner; neither contains it


def owned_name(name: str, owner: str) -> str:
    """Return the name of the document of an owner; without an owner, the plain name."""
    plain = quote(name, safe="/ ")
    return f"{plain}{OWNER_MARK}{quote(owner, safe='')}" if owner else plain


def _version_of(name: str) -> tuple[str, int] | None:
    """Return the workflow and the version of a name; None if it is not the name of a DAG."""
    workflow_id, _, version = name.rpartition("_v")
    if not (workflow_id and version.isascii() and version.isdigit() and len(version) < 17):
        return None
    return (workflow_id, int(version)) if str(int(version)) == version else None


def name_of(workflow_id: str, version: int) -> str:
    """Return the unique name of a version of a workflow."""
    check_workflow(workflow_id, version)
    return f"{workflow_id}_v{version}"


def check_workflow(workflow_id: object, version: object) -> None:
    """Refuse an invalid id or version of a workflow."""
    check_text("workflow_id", workflow_id)
    if type(version) is not int or not 0 <= version <= HIGHEST_VERSION:
        hint = "a whole number is needed" if type(version) is not int else "0 or more"
        raise InvalidSchedule("version", f"{quote_value(version)} is not a whole number", hint=hint)


def check_text(name: str, value: object) -> None:
    """Refuse a value that is not a string, or not a valid id."""
    if not isinstance(value, str) or not value or not is_json_value(value):
        raise InvalidSchedule(
            name, f"{quote_value(value)} is not a string", hint="a string is needed"
        )
    if len(value) > LONGEST_ID or not value.isprintable():
        hint = f"{LONGEST_ID} characters at most, on one line"
        raise InvalidSchedule(name, f"{quote_value(value)} is too long or not printable", hint=hint)


def check_dag(dag: object) -> Dag:
    """Return a DAG, which must be a JSON object, or refuse it."""
    if not isinstance(dag, Mapping):
        raise InvalidSchedule("dag", f"{quote_value(dag)} is not a DAG", hint='{"nodes": [...]}')
    if not is_json_value(dag):
        hint = "strings, finite numbers, lists, and objects"
        raise InvalidSchedule("dag", "it contains values that JSON cannot represent", hint=hint)
    return dag

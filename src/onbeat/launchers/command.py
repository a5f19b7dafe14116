"""The launcher of `run: {command: [...]}`: a program, all that it starts, and one output file.

The program leads a session of its own and carries `ONBEAT_RUN_ID`, `ONBEAT_STORE` and
`ONBEAT_NODE`, which its descendants inherit: they are found in /proc even where they left the
session, and even after this process was killed. Only one that leaves the group and drops its
environment is out of reach. Ends are learned from a pidfd and output goes to a file, so nothing
left behind holds up the answer.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from errno import EAGAIN, EMFILE, ENFILE, ENOMEM, ENOSPC, ETXTBSY
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import NamedTuple
from uuid import uuid4

from onbeat.core.runs.run import Canceled, Failed, Outcome, Succeeded
from onbeat.core.target import Target
from onbeat.core.time.durations import Duration
from onbeat.core.time.instants import rfc3339
from onbeat.core.triggers.codec import check_names
from onbeat.engine.concurrency import finish_despite_cancel
from onbeat.errors import InvalidSchedule, shown
from onbeat.files.secrets import (
    Redactor,
    SecretReferences,
    check_inputs,
    check_no_reference,
    check_reference,
)
from onbeat.ports.store import Attempt

Marks = frozenset[bytes]  # entries of an environment

PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SHELL")
LOOK, LOOK_SOON = 0.5, 0.05  # seconds to the next look at an output; soon, if it was too long
PAUSE = 0.02  # seconds between two looks for what is to end
LEFTOVER_GRACE = 0.5  # seconds for what outlives its main process
KILL_TIME = 2  # seconds of SIGKILL, after which what hangs in the kernel is left to it
ROUNDS = 50  # of one look at /proc, at most: a process may fork and exit faster than it is read
EXITING, KERNEL = 0x4, 0x20_0000  # flags of a process in /proc
DROPPED = b"[onbeat: earlier output was dropped]\n"
PASSING = {EAGAIN, EMFILE, ENFILE, ENOMEM, ENOSPC, ETXTBSY}  # it may start at the next attempt


def output_path(output: Path, run_id: int, attempt: int) -> Path:
    """Return the file that an attempt prints to."""
    return output / f"{run_id // 1000:06}" / f"{run_id}-{attempt}.log"


def forget_output(output: Path, before: int) -> int:
    """Remove what was printed before an instant in milliseconds; return how many files went."""
    removed = 0
    for folder in output.glob("[0-9]*"):
        for file in folder.glob("*.log"):
            with suppress(OSError):  # another run, or a person, may be at it
                if file.stat().st_mtime * 1000 < before:
                    file.unlink()
                    removed += 1
        with suppress(OSError):  # unless it is empty
            folder.rmdir()
    return removed


def end_leftovers(store_id: str) -> int:
    """Kill what the runs of a store left running when their node was killed; return how many.

    It takes two seconds at most, and spares what a living node has, this process, its parents and
    other users' processes.
    """
    marks = frozenset({os.fsencode(f"ONBEAT_STORE={store_id}")})
    ended: set[int] = set()
    for _ in range(int(KILL_TIME / PAUSE) if store_id else 0):
        found = _marked(marks, user=os.geteuid())
        if not (left := {pid: seen for pid, seen in found.items() if not _has_node(seen.entries)}):
            break
        ended.update(left)
        _kill_all(left, marks)
        time.sleep(PAUSE)
    return len(ended)


class ProcessLauncher:
    """Starts programs by their argv, never through a shell, and ends all that they start.

    Of `environment` only the names in `passed` reach a program; a value of its own `env` may name
    those that are not the usual ones as `${env:NAME}`, and files of the folder `secrets` as
    `secret://name`. Its output is kept to about `cap` bytes, without those secrets once it has
    ended, and the last `tail` are returned. A tree that is to end has the attempt's `cancel_grace`
    from SIGTERM to SIGKILL.
    """

    def __init__(
        self,
        output: Path,
        *,
        store_id: str = "",
        environment: Mapping[str, str],
        passed: Sequence[str] = PASSED,
        secrets: str = "",
        cap: int = 10 * 1024 * 1024,
        tail: int = 64 * 1024,
    ) -> None:
        self._output, self._cap, self._tail = output, cap, tail
        # Run 1 of another store without an id must not be taken for ours.
        self._store_id = store_id or uuid4().hex
        self._node = _identity(os.getpid())
        self._marks = frozenset({
            os.fsencode(f"ONBEAT_STORE={self._store_id}"), os.fsencode(f"ONBEAT_NODE={self._node}"),
        })  # fmt: skip
        self._environment = {name: environment[name] for name in passed if name in environment}
        named = {n: value for n, value in self._environment.items() if n not in PASSED}
        self._references = SecretReferences(named, secrets)
        self._running: set[_Child] = set()
        self._shortener = ThreadPoolExecutor(1, "onbeat-output")
        self._finder = ThreadPoolExecutor(1, "onbeat-proc")
        self._finding = asyncio.Lock()
        self._next_find: asyncio.Future[dict[int, _Seen]] | None = None
        self._is_used = False  # by a node: a client has nothing to end

    def check(self, target: Target) -> None:
        command, cwd, env = _read(target)
        for i, part in enumerate((*command, cwd or "")):  # anybody can list them
            check_no_reference(f"command[{i}]" if i < len(command) else "cwd", part)
        for name, value in env.items():
            check_reference(f"env.{name}", value)
        check_inputs(target.inputs)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - it is so for all of them
        """Whatever it starts, and what that starts, can be ended."""
        return True

    def offers(self) -> tuple[str, ...]:
        return ("command",)

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        self._is_used = True
        try:
            child = self._start(attempt)
        except InvalidSchedule as refused:
            return Failed(str(refused), reason="invalid_target", retryable=False), ""
        except (OSError, TypeError, ValueError) as error:
            return _not_started(attempt.target, error), ""
        self._running.add(child)
        shortening = asyncio.ensure_future(self._keep_short(child.output))
        try:
            try:
                cut_short = await _until_over(child, attempt.timeout)
            finally:
                await finish_despite_cancel(self._end(child))
        finally:
            shortening.cancel()
            code = child.reap()
            self._running.discard(child)
        return cut_short or _outcome(code), _last(child.output, self._tail)

    def kill(self, run_ids: Collection[int]) -> None:
        for child in self._running:
            if child.run_id in run_ids:
                child.signal_group(SIGKILL)
                self._finder.submit(_kill_marked, child.marks)  # what has left the group

    async def recover(self) -> int:
        self._is_used = True
        return await asyncio.to_thread(end_leftovers, self._store_id)

    async def close(self) -> None:
        while self._running:
            for child in self._running:
                if not child.stopped.done():
                    child.stopped.set_result(None)
            await asyncio.sleep(PAUSE)
        if self._is_used:  # what a killed node has begun may only have come to light since
            await self.recover()

    def _start(self, attempt: Attempt) -> "_Child":
        command, cwd, named = _read(attempt.target)
        hidden = Redactor()
        env = {n: self._references.fill(f"env.{n}", v, hidden) for n, v in named.items()}
        path = output_path(self._output, attempt.run_id, attempt.attempt)
        for folder in (self._output, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What the file holds already is of a store that was since replaced by another.
        output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            process = subprocess.Popen(  # noqa: S603 - what the operator defined, without a shell
                command,
                cwd=cwd,
                env=self._environment | env | self._own_names(attempt),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        finally:
            os.close(output)
        return _Child(process, path, self._marks, attempt, hidden)

    def _own_names(self, attempt: Attempt) -> dict[str, str]:
        names = {
            "ONBEAT_RUN_ID": str(attempt.run_id),
            "ONBEAT_STORE": self._store_id,
            "ONBEAT_NODE": self._node,
            "ONBEAT_SCHEDULE": attempt.schedule_id,
            "ONBEAT_RUN_AT": rfc3339(attempt.run_at),
            "ONBEAT_ATTEMPT": str(attempt.attempt),
            "ONBEAT_KEY": attempt.key,
            "ONBEAT_TRIGGERED_BY": attempt.triggered_by,
            "ONBEAT_ITERATION": str(attempt.iteration),
        }
        if attempt.inputs_text is not None:
            names["ONBEAT_INPUTS"] = attempt.inputs_text
        return names

    async def _end(self, child: "_Child") -> None:
        """End the tree, but keep its main process a zombie: so the group's number stays its own."""
        now, grace = asyncio.get_running_loop().time, child.cancel_grace
        until = now() + (min(grace, LEFTOVER_GRACE) if child.ended.done() else grace)
        try:
            child.signal_group(SIGTERM)
            left = await self._find(child)
            _signal_all(left, SIGTERM, child.marks, but_group=child.pid)
            while (left or not child.ended.done()) and now() < until + KILL_TIME:
                await child.pause(PAUSE if child.ended.done() else max(PAUSE, until - now()))
                left = await self._find(child)
                if now() >= until:
                    child.signal_group(SIGKILL)
                    _kill_all(left, child.marks)
            child.signal_group(SIGKILL)  # a member without the marks
            await self._shorten(child.output)
            if child.hidden:
                run = asyncio.get_running_loop().run_in_executor
                await run(self._shortener, _hide, child.output, child.hidden)
        except asyncio.CancelledError:
            # Only a loop that is taken down cancels this, so there is no later: act, and block.
            child.signal_group(SIGKILL)
            _kill_all(_marked(child.marks), child.marks)
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(KILL_TIME)
            _hide(child.output, child.hidden)
            raise

    async def _find(self, child: "_Child") -> dict[int, "_Seen"]:
        """Return what runs of it, by a look begun after the call that serves all who wait."""
        if self._next_find is None or self._next_find.done():
            self._next_find = asyncio.ensure_future(self._find_all())
        found = await asyncio.shield(self._next_find)
        return {pid: seen for pid, seen in found.items() if child.marks <= seen.entries}

    async def _find_all(self) -> dict[int, "_Seen"]:
        async with self._finding:
            self._next_find = None  # from here on it is too old for whoever asks
            # In a thread, because reading of a process that hangs in the kernel can hang as well.
            run = asyncio.get_running_loop().run_in_executor
            return await run(self._finder, _marked, self._marks)

    async def _keep_short(self, path: Path) -> None:
        pause = LOOK
        while True:
            await asyncio.sleep(pause)
            pause = LOOK_SOON if await self._shorten(path) else LOOK

    async def _shorten(self, path: Path) -> bool:
        """Drop the first part of an output that is over the cap; return whether it was."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # it was taken away, or the disk is full: the run goes on
            if path.stat().st_size > self._cap:  # noqa: ASYNC240 - it takes a microsecond
                await loop.run_in_executor(self._shortener, _keep_last, path, self._cap)
                return True
        return False


class _Child:
    """A started process, which leads its group, and the futures that tell of it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        output: Path,
        marks: Marks,
        attempt: Attempt,
        hidden: Redactor,
    ) -> None:
        self.pid, self.output, self.run_id = process.pid, output, attempt.run_id
        self.hidden = hidden  # the secrets that it was given
        self.cancel_grace = attempt.cancel_grace / 1000
        self.marks = marks | {b"ONBEAT_RUN_ID=%d" % attempt.run_id}
        self.process, self._loop = process, asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.stopped: asyncio.Future[None] = self._loop.create_future()  # by `close`
        try:
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, self._on_end)
        except OSError:  # what cannot be watched must not run
            self.signal_group(SIGKILL)
            process.wait()
            raise

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self.ended.set_result(None)

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the process ends."""
        if self.ended.done():
            await asyncio.sleep(seconds)
        else:
            await asyncio.wait([self.ended], timeout=seconds)

    def signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def reap(self) -> int | None:
        """Take the exit code, negative for a signal; None if it cannot be known."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with suppress(ChildProcessError):  # another took it; Popen would call that a success
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
        return self.process.returncode


async def _until_over(child: _Child, longest: int | None) -> Outcome | None:
    """Wait for the end of the main process: return None, or what it is to be cut short for."""
    await asyncio.wait(
        [child.ended, child.stopped],
        timeout=None if longest is None else longest / 1000,
        return_when=asyncio.FIRST_COMPLETED,
    )
    if child.ended.done():
        return None
    if longest is None or child.stopped.done():
        return Canceled("ended because its node was stopped")
    length = f"{longest}ms" if longest % 1000 else str(Duration(seconds=longest // 1000))
    return Failed(f"still running after {length}", reason="timeout")


def _outcome(code: int | None) -> Outcome:
    if code is None:
        return Failed("its exit code was taken by another part of this process", retryable=False)
    if code == 0:
        return Succeeded()
    if code > 0:
        return Failed(f"exit code {code}", reason="exit", exit_code=code)
    name = {s.value: s.name for s in Signals}.get(-code, f"signal {-code}")
    return Failed(f"ended by {name}", reason="signal", retryable=False, exit_code=code)


def _not_started(target: Target, error: Exception) -> Failed:
    command, cwd, _ = _read(target)
    told, number = str(error), error.errno if isinstance(error, OSError) else None
    where = error.filename if isinstance(error, OSError) else None
    if number and where and where in {command[0], cwd}:
        told = f"{'' if where == command[0] else f'cwd {shown(cwd)}: '}{os.strerror(number)}"
    problem = f"{shown(command[0])} could not be started: {told}"
    return Failed(problem, reason="launch_failed", retryable=number in PASSING)


def _read(target: Target) -> tuple[list[str], str | None, dict[str, str]]:
    """Return the argv, folder and environment of a target, or refuse it."""
    given = target.fields
    check_names(given, {"command", "cwd", "env", "inputs"})
    command, cwd, env = given.get("command"), given.get("cwd"), given.get("env", {})
    if not isinstance(command, (list, tuple)) or not command:
        hint = "such as [./backup.sh, --all]; no shell reads it"
        raise InvalidSchedule("command", f"{shown(command)} is no list of texts", hint=hint)
    if not isinstance(env, Mapping):
        raise InvalidSchedule("env", f"{shown(env)} is no set of names", hint="{NAME: value}")
    for name in env:
        if "=" in _text("env", name):
            raise InvalidSchedule("env", f"{shown(name)} is no name", hint="NAME: value")
    return (
        [_text(f"command[{i}]", part) for i, part in enumerate(command)],
        None if cwd is None else _text("cwd", cwd),
        {name: _text(f"env.{name}", value, least=0) for name, value in env.items()},
    )


EXAMPLES = {
    "command": 'command: ["./backup.sh", "--all"]',
    "cwd": 'cwd: "/srv/app"',
    "env": 'env: {NAME: "value"}',
}  # of fields that are texts


def _text(field: str, value: object, *, least: int = 1) -> str:
    if not isinstance(value, str):
        name = field.partition("[")[0].partition(".")[0]
        hint = "put it in quotes" if isinstance(value, (int, float)) else EXAMPLES[name]
        raise InvalidSchedule(field, f"{shown(value)} is not a text", hint=hint)
    if len(value) < least or "\0" in value:
        raise InvalidSchedule(field, "it holds NUL" if value else "it is empty", hint="a text")
    return value


def _keep_last(path: Path, cap: int) -> None:
    """Drop all but the last half of a file over the cap; its writers go on at the new end."""
    with path.open("r+b", buffering=0) as file:
        log, keep = file.fileno(), cap // 2
        size = os.fstat(log).st_size
        if size <= cap:
            return
        written = os.pwrite(log, DROPPED + os.pread(log, keep, size - keep), 0)
        # What was printed meanwhile comes along, unless it comes faster than this.
        while written < cap and (more := os.pread(log, keep, size)):
            size += len(more)
            written += os.pwrite(log, more, written)
        os.ftruncate(log, written)


def _hide(path: Path, hidden: Redactor) -> None:
    """Take secrets out of an output that nobody writes to any more."""
    with suppress(OSError), path.open("r+b", buffering=0) as file:  # it may have been taken away
        told = file.readall()
        if (plain := hidden.hide_bytes(told)) != told:
            os.pwrite(file.fileno(), plain, 0)
            os.ftruncate(file.fileno(), len(plain))


def _last(path: Path, length: int) -> str:
    with suppress(OSError), path.open("rb") as file:  # it may have been taken away
        file.seek(max(0, os.fstat(file.fileno()).st_size - length))
        return file.read(length).decode(errors="replace")
    return ""


class _Seen(NamedTuple):
    """A process, as it was when it was looked at."""

    entries: Marks  # its environment
    group: int  # its process group, if all of that is of the same run; else 0


def _marked(marks: Marks, *, user: int | None = None) -> dict[int, _Seen]:
    """Return the processes whose environment has these entries, but for us and our parents.

    A process may begin while others are read, and be gone before its turn comes: the newest are
    read first, and what came since is looked at again until nothing is new. One that is just being
    executed has no environment yet, and is read again, too.
    """
    own = frozenset(_line(os.getpid()))
    found: dict[int, _Seen] = {}
    read = set(own)
    for _ in range(ROUNDS):
        new = sorted(_pids() - read, reverse=True)
        if not new:
            break
        for pid in new:
            entries = _entries(pid, user)
            if marks <= entries:
                found[pid] = _Seen(entries, _group_of(pid, own))
            if entries or not _is_being_executed(pid):
                read.add(pid)
    return found


def _pids() -> set[int]:
    try:
        return {int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()}
    except FileNotFoundError:  # this is no Linux
        return set()


def _is_being_executed(pid: int) -> bool:
    """Return whether a process without an environment is about to get one."""
    with suppress(OSError):
        told = _stat(pid)
        is_thread_of_kernel = int(told[6]) & KERNEL
        if told[0] not in (b"Z", b"X") and not is_thread_of_kernel:
            return not Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _group_of(pid: int, own: Collection[int]) -> int:
    """Return the group of a process of a run; 0 if it is in the session of one of our own.

    A run begins with a session: what else is in it descends from the run.
    """
    with suppress(OSError):
        if os.getsid(pid) not in {os.getsid(each) for each in own}:
            return os.getpgid(pid)
    return 0


def _kill_marked(marks: Marks) -> None:
    _kill_all(_marked(marks), marks)


def _kill_all(found: Mapping[int, _Seen], marks: Marks) -> None:
    """Kill processes, with their whole groups: one may have forked since it was looked at."""
    for group in {seen.group for seen in found.values()} - {0}:
        with suppress(OSError):  # it is gone
            os.killpg(group, SIGKILL)
    _signal_all(found, SIGKILL, marks)


def _entries(pid: int, user: int | None = None) -> Marks:
    """Return what a process was started with: nothing if it has ended, or is not ours to read."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - twice as fast
        if user is None or user == os.fstat(file.fileno()).st_uid:
            return frozenset(file.read().split(b"\0")) - {b""}
    return frozenset()


def _line(pid: int) -> Iterator[int]:
    """Yield a process and its parents."""
    with suppress(OSError):
        while pid > 0:
            yield pid
            pid = int(_stat(pid)[1])


def _has_node(entries: Marks) -> bool:
    """Return whether the node that started a process is still there, or may be."""
    for entry in entries:
        name, _, node = entry.partition(b"=")
        if name == b"ONBEAT_NODE" and node.partition(b"-")[0].isdigit():
            try:
                return _identity(int(node.partition(b"-")[0])) == os.fsdecode(node)
            except OSError:  # it cannot be read now, such as for too many open files
                return True
    return False


def _identity(pid: int) -> str:
    """Return what tells a process from any other that had, or will have, its number."""
    with suppress(FileNotFoundError, ProcessLookupError):
        told = _stat(pid)
        # With the time of its start. One that is dead or exits is none any more: it may have let go
        # of its lock, which another node has by then.
        is_gone = told[0] in (b"Z", b"X") or int(told[6]) & EXITING
        return "" if is_gone else f"{pid}-{int(told[19])}"
    return f"{pid}-0" if pid == os.getpid() else ""


def _stat(pid: int) -> list[bytes]:
    """Return what /proc tells of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _signal_all(pids: Iterable[int], number: int, marks: Marks, *, but_group: int = 0) -> None:
    """Signal those that have the marks. A number may be another's by now, but a pidfd not."""
    for pid in pids:
        with suppress(OSError):  # it is gone, or another user's
            process = os.pidfd_open(pid)
            try:
                if os.getpgid(pid) != but_group and marks <= _entries(pid):
                    signal.pidfd_send_signal(process, number)
            finally:
                os.close(process)

"""Launch programs: `run: {command: [...]}`, with all their descendants and one output file.

The program leads a new session and has `ONBEAT_RUN_ID`, `ONBEAT_STORE` and `ONBEAT_NODE` in its
environment, which its descendants inherit. They are found in /proc by these marks, even if they
left the session and even after this process was killed. Only a descendant that both leaves the
group and drops its environment cannot be ended. The exit is observed by a pidfd and the output goes
to a file, so a process that is left behind does not delay the outcome.
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
from onbeat.errors import InvalidSchedule, quote_value
from onbeat.host.output_files import output_path
from onbeat.host.secrets import (
    Redactor,
    SecretReferences,
    check_inputs,
    check_no_reference,
    check_reference,
)
from onbeat.ports.store import Attempt

Marks = frozenset[bytes]  # entries of an environment

PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SHELL")
SIZE_CHECK, SIZE_CHECK_SOON = 0.5, 0.05  # seconds between checks of an output; soon after a cut
PAUSE = 0.02  # seconds between two scans for processes that are to end
LEFTOVER_GRACE = 0.5  # seconds for processes that outlive the main process
KILL_TIME = 2  # seconds of SIGKILL, after which processes that hang in the kernel are left alone
ROUNDS = 50  # of one scan of /proc, at most: processes may fork faster than they are read
EXITING, KERNEL = 0x4, 0x20_0000  # flags of a process in /proc
DROPPED = b"[onbeat: earlier output was dropped]\n"
# Errors of a start that may succeed at the next attempt.
TEMPORARY = {EAGAIN, EMFILE, ENFILE, ENOMEM, ENOSPC, ETXTBSY}


def end_leftovers(store_id: str) -> int:
    """Kill the processes that runs of a store left behind when their node was killed.

    Return how many. It takes at most two seconds. Processes of a living node, this process, its
    parents and processes of other users are spared.
    """
    marks = frozenset({os.fsencode(f"ONBEAT_STORE={store_id}")})
    ended: set[int] = set()
    for _ in range(int(KILL_TIME / PAUSE) if store_id else 0):
        marked = _find_marked(marks, user=os.geteuid())
        left = {pid: each for pid, each in marked.items() if not _node_lives(each.entries)}
        if not left:
            break
        ended.update(left)
        _kill_all(left, marks)
        time.sleep(PAUSE)
    return len(ended)


class ProcessLauncher:
    """Starts programs by their argv, never through a shell, and ends all that they start.

    Programs get only the names in `passed` of `environment`. A value in the `env` of a target may
    refer to names beyond the default ones as `${env:NAME}`, and to files of the folder `secrets` as
    `secret://name`. An output file is limited to about `cap` bytes; secrets are removed from it
    when the program has ended, and its last `tail` bytes are returned. A process tree that is ended
    has the `cancel_grace` of the attempt between SIGTERM and SIGKILL.
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
        # A random id, lest run 1 of another store without an id is taken for ours.
        self._store_id = store_id or uuid4().hex
        self._node = _identity(os.getpid())
        self._marks = frozenset({
            os.fsencode(f"ONBEAT_STORE={self._store_id}"), os.fsencode(f"ONBEAT_NODE={self._node}"),
        })  # fmt: skip
        self._environment = {name: environment[name] for name in passed if name in environment}
        named = {n: value for n, value in self._environment.items() if n not in PASSED}
        self._references = SecretReferences(named, secrets)
        self._running: set[_Child] = set()
        self._output_thread = ThreadPoolExecutor(1, "onbeat-output")
        self._scan_thread = ThreadPoolExecutor(1, "onbeat-proc")
        self._scanning = asyncio.Lock()
        self._next_scan: asyncio.Future[dict[int, _Process]] | None = None
        self._is_used = False  # by a node; a client launches nothing

    def check(self, target: Target) -> None:
        command, cwd, env = _read(target)
        for i, part in enumerate((*command, cwd or "")):  # visible to all users of the machine
            check_no_reference(f"command[{i}]" if i < len(command) else "cwd", part)
        for name, value in env.items():
            check_reference(f"env.{name}", value)
        check_inputs(target.inputs)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - for every target
        """Return True: a program and its descendants can be ended."""
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
        limiting = asyncio.ensure_future(self._limit_output(child.output))
        try:
            try:
                interrupted = await _wait_for_exit(child, attempt.timeout)
            finally:
                await finish_despite_cancel(self._end(child))
        finally:
            limiting.cancel()
            code = child.reap()
            self._running.discard(child)
        return interrupted or _outcome(code), _last(child.output, self._tail)

    def kill(self, run_ids: Collection[int]) -> None:
        for child in self._running:
            if child.run_id in run_ids:
                child.signal_group(SIGKILL)
                self._scan_thread.submit(_kill_marked, child.marks)  # those that left the group

    async def recover(self) -> int:
        self._is_used = True
        return await asyncio.to_thread(end_leftovers, self._store_id)

    async def close(self) -> None:
        while self._running:
            for child in self._running:
                if not child.stopped.done():
                    child.stopped.set_result(None)
            await asyncio.sleep(PAUSE)
        if self._is_used:  # leftovers of a killed node may have been missed by the first scan
            await self.recover()

    def _start(self, attempt: Attempt) -> "_Child":
        command, cwd, values = _read(attempt.target)
        hidden = Redactor()
        env = {n: self._references.fill(f"env.{n}", v, hidden) for n, v in values.items()}
        path = output_path(self._output, attempt.run_id, attempt.attempt)
        for folder in (self._output, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # An existing file belongs to a store that was replaced: truncate it.
        output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            process = subprocess.Popen(  # noqa: S603 - defined by the operator, without a shell
                command,
                cwd=cwd,
                env=self._environment | env | self._own_variables(attempt),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        finally:
            os.close(output)
        return _Child(process, path, self._marks, attempt, hidden)

    def _own_variables(self, attempt: Attempt) -> dict[str, str]:
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
        """End the process tree, but do not reap its leader: its group id then stays reserved."""
        now, grace = asyncio.get_running_loop().time, child.cancel_grace
        until = now() + (min(grace, LEFTOVER_GRACE) if child.ended.done() else grace)
        try:
            child.signal_group(SIGTERM)
            left = await self._find_processes(child)
            _signal_all(left, SIGTERM, child.marks, but_group=child.pid)
            while (left or not child.ended.done()) and now() < until + KILL_TIME:
                await child.pause(PAUSE if child.ended.done() else max(PAUSE, until - now()))
                left = await self._find_processes(child)
                if now() >= until:
                    child.signal_group(SIGKILL)
                    _kill_all(left, child.marks)
            child.signal_group(SIGKILL)  # members without the marks
            await self._cut_output(child.output)
            if child.hidden:
                run = asyncio.get_running_loop().run_in_executor
                await run(self._output_thread, _redact, child.output, child.hidden)
        except asyncio.CancelledError:
            # Only a closing loop cancels this, so nothing can be awaited any more: block instead.
            child.signal_group(SIGKILL)
            _kill_all(_find_marked(child.marks), child.marks)
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(KILL_TIME)
            _redact(child.output, child.hidden)
            raise

    async def _find_processes(self, child: "_Child") -> dict[int, "_Process"]:
        """Return the processes of a run, by a scan that starts after this call.

        All callers that wait share one scan.
        """
        if self._next_scan is None or self._next_scan.done():
            self._next_scan = asyncio.ensure_future(self._scan())
        found = await asyncio.shield(self._next_scan)
        return {pid: each for pid, each in found.items() if child.marks <= each.entries}

    async def _scan(self) -> dict[int, "_Process"]:
        async with self._scanning:
            self._next_scan = None  # later callers need a newer scan
            # In a thread: reading /proc of a process that hangs in the kernel can hang as well.
            run = asyncio.get_running_loop().run_in_executor
            return await run(self._scan_thread, _find_marked, self._marks)

    async def _limit_output(self, path: Path) -> None:
        pause = SIZE_CHECK
        while True:
            await asyncio.sleep(pause)
            pause = SIZE_CHECK_SOON if await self._cut_output(path) else SIZE_CHECK

    async def _cut_output(self, path: Path) -> bool:
        """Drop the first part of an output that is over the cap; return whether it was."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # it was deleted, or the disk is full: the run continues
            if path.stat().st_size > self._cap:  # noqa: ASYNC240 - it takes a microsecond
                await loop.run_in_executor(self._output_thread, _keep_last, path, self._cap)
                return True
        return False


class _Child:
    """A started program, which leads its process group, and the futures of its end."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        output: Path,
        marks: Marks,
        attempt: Attempt,
        hidden: Redactor,
    ) -> None:
        self.pid, self.output, self.run_id = process.pid, output, attempt.run_id
        self.hidden = hidden  # the secrets in its environment
        self.cancel_grace = attempt.cancel_grace / 1000
        self.marks = marks | {b"ONBEAT_RUN_ID=%d" % attempt.run_id}
        self.process, self._loop = process, asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.stopped: asyncio.Future[None] = self._loop.create_future()  # by `close`
        try:
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, self._on_end)
        except OSError:  # a process that cannot be watched must not run
            self.signal_group(SIGKILL)
            process.wait()
            raise

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self.ended.set_result(None)

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the process ends."""
        if self.ended.done():
            await asyncio.sleep(seconds)
        else:
            await asyncio.wait([self.ended], timeout=seconds)

    def signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def reap(self) -> int | None:
        """Return the exit code, negative for a signal; None if it is unknown."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with suppress(ChildProcessError):  # reaped elsewhere, which Popen reports as exit code 0
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
        return self.process.returncode


async def _wait_for_exit(child: _Child, timeout: int | None) -> Outcome | None:  # noqa: ASYNC109 - in ms
    """Wait until the main process exits; return the outcome if it must be interrupted first."""
    await asyncio.wait(
        [child.ended, child.stopped],
        timeout=None if timeout is None else timeout / 1000,
        return_when=asyncio.FIRST_COMPLETED,
    )
    if child.ended.done():
        return None
    if timeout is None or child.stopped.done():
        return Canceled("ended because its node was stopped")
    length = f"{timeout}ms" if timeout % 1000 else str(Duration(seconds=timeout // 1000))
    return Failed(f"still running after {length}", reason="timeout")


def _outcome(code: int | None) -> Outcome:
    if code is None:
        problem = "exit code unknown: another part of this process reaped it"
        return Failed(problem, retryable=False)
    if code == 0:
        return Succeeded()
    if code > 0:
        return Failed(f"exit code {code}", reason="exit", exit_code=code)
    name = {s.value: s.name for s in Signals}.get(-code, f"signal {-code}")
    return Failed(f"ended by {name}", reason="signal", retryable=False, exit_code=code)


def _not_started(target: Target, error: Exception) -> Failed:
    command, cwd, _ = _read(target)
    reason, number = str(error), error.errno if isinstance(error, OSError) else None
    path = error.filename if isinstance(error, OSError) else None
    if number and path and path in {command[0], cwd}:
        reason = f"{'' if path == command[0] else f'cwd {quote_value(cwd)}: '}{os.strerror(number)}"
    problem = f"{quote_value(command[0])} could not be started: {reason}"
    return Failed(problem, reason="launch_failed", retryable=number in TEMPORARY)


def _read(target: Target) -> tuple[list[str], str | None, dict[str, str]]:
    """Return the argv, folder and environment of a target, or refuse it."""
    fields = target.fields
    check_names(fields, {"command", "cwd", "env", "inputs"})
    command, cwd, env = fields.get("command"), fields.get("cwd"), fields.get("env", {})
    if not isinstance(command, (list, tuple)) or not command:
        hint = "such as [./backup.sh, --all]; it does not run in a shell"
        is_list = isinstance(command, (list, tuple))
        problem = (
            "the list is empty" if is_list else f"{quote_value(command)} is not a list of strings"
        )
        raise InvalidSchedule("command", problem, hint=hint)
    if not isinstance(env, Mapping):
        raise InvalidSchedule("env", f"{quote_value(env)} is not a mapping", hint="{NAME: value}")
    for name in env:
        if "=" in _text("env", name):
            raise InvalidSchedule(
                "env",
                f'{quote_value(name)} contains "=", which is not allowed in a name',
                hint="NAME: value",
            )
    return (
        [_text(f"command[{i}]", part) for i, part in enumerate(command)],
        None if cwd is None else _text("cwd", cwd),
        {name: _text(f"env.{name}", value, least=0) for name, value in env.items()},
    )


EXAMPLES = {
    "command": 'command: ["./backup.sh", "--all"]',
    "cwd": 'cwd: "/srv/app"',
    "env": 'env: {NAME: "value"}',
}


def _text(field: str, value: object, *, least: int = 1) -> str:
    if not isinstance(value, str):
        name = field.partition("[")[0].partition(".")[0]
        hint = "put it in quotes" if isinstance(value, (int, float)) else EXAMPLES[name]
        raise InvalidSchedule(field, f"{quote_value(value)} is not a string", hint=hint)
    if len(value) < least or "\0" in value:
        problem = "it contains NUL" if value else "it is empty"
        raise InvalidSchedule(field, problem, hint="a string")
    return value


def _keep_last(path: Path, cap: int) -> None:
    """Keep only the last half of a file over the cap; its writers append to the new end."""
    with path.open("r+b", buffering=0) as file:
        log, keep = file.fileno(), cap // 2
        size = os.fstat(log).st_size
        if size <= cap:
            return
        written = os.pwrite(log, DROPPED + os.pread(log, keep, size - keep), 0)
        # Copy what was printed meanwhile as well, unless it grows faster than this.
        while written < cap and (more := os.pread(log, keep, size)):
            size += len(more)
            written += os.pwrite(log, more, written)
        os.ftruncate(log, written)


def _redact(path: Path, hidden: Redactor) -> None:
    """Remove secrets from an output that is no longer written to."""
    with suppress(OSError), path.open("r+b", buffering=0) as file:  # it may have been deleted
        printed = file.readall()
        if (redacted := hidden.hide_bytes(printed)) != printed:
            os.pwrite(file.fileno(), redacted, 0)
            os.ftruncate(file.fileno(), len(redacted))


def _last(path: Path, length: int) -> str:
    with suppress(OSError), path.open("rb") as file:  # it may have been deleted
        file.seek(max(0, os.fstat(file.fileno()).st_size - length))
        return file.read(length).decode(errors="replace")
    return ""


class _Process(NamedTuple):
    """A process, at the time of the scan."""

    entries: Marks  # its environment
    group: int  # its process group, if all of the group belongs to the run; else 0


def _find_marked(marks: Marks, *, user: int | None = None) -> dict[int, _Process]:
    """Return the processes whose environment has these entries, except ours and our parents.

    Processes may start and exit during the scan: the newest are read first, and the scan repeats
    until no process is new. A process in the middle of an exec has no environment yet, and is read
    again as well.
    """
    own = frozenset(_with_parents(os.getpid()))
    found: dict[int, _Process] = {}
    read = set(own)
    for _ in range(ROUNDS):
        new = sorted(_pids() - read, reverse=True)
        if not new:
            break
        for pid in new:
            entries = _entries(pid, user)
            if marks <= entries:
                found[pid] = _Process(entries, _group_of(pid, own))
            if entries or not _is_in_exec(pid):
                read.add(pid)
    return found


def _pids() -> set[int]:
    try:
        return {int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()}
    except FileNotFoundError:  # not Linux
        return set()


def _is_in_exec(pid: int) -> bool:
    """Return whether a process without an environment is about to get one."""
    with suppress(OSError):
        stat = _stat(pid)
        is_kernel_thread = int(stat[6]) & KERNEL
        if stat[0] not in (b"Z", b"X") and not is_kernel_thread:
            return not Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _group_of(pid: int, own: Collection[int]) -> int:
    """Return the group of a process of a run; 0 if it is in a session of our own processes.

    A run starts a session, so every other process in that session descends from the run.
    """
    with suppress(OSError):
        if os.getsid(pid) not in {os.getsid(each) for each in own}:
            return os.getpgid(pid)
    return 0


def _kill_marked(marks: Marks) -> None:
    _kill_all(_find_marked(marks), marks)


def _kill_all(found: Mapping[int, _Process], marks: Marks) -> None:
    """Kill processes with their groups: a process may have forked since the scan."""
    for group in {each.group for each in found.values()} - {0}:
        with suppress(OSError):  # it has ended
            os.killpg(group, SIGKILL)
    _signal_all(found, SIGKILL, marks)


def _entries(pid: int, user: int | None = None) -> Marks:
    """Return the environment of a process; empty if it has ended or may not be read."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - twice as fast
        if user is None or user == os.fstat(file.fileno()).st_uid:
            return frozenset(file.read().split(b"\0")) - {b""}
    return frozenset()


def _with_parents(pid: int) -> Iterator[int]:
    """Yield a process and its ancestors."""
    with suppress(OSError):
        while pid > 0:
            yield pid
            pid = int(_stat(pid)[1])


def _node_lives(entries: Marks) -> bool:
    """Return whether the node that started a process is alive, or may be."""
    for entry in entries:
        name, _, node = entry.partition(b"=")
        if name == b"ONBEAT_NODE" and node.partition(b"-")[0].isdigit():
            try:
                return _identity(int(node.partition(b"-")[0])) == os.fsdecode(node)
            except OSError:  # unknown, such as with too many open files
                return True
    return False


def _identity(pid: int) -> str:
    """Return an id of a process that no other process with the same pid has; empty if it ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        stat = _stat(pid)
        # The pid and the start time. A process that is exiting counts as ended: it may have
        # released its lock, which another node then holds.
        has_ended = stat[0] in (b"Z", b"X") or int(stat[6]) & EXITING
        return "" if has_ended else f"{pid}-{int(stat[19])}"
    return f"{pid}-0" if pid == os.getpid() else ""


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat, starting with the state."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _signal_all(pids: Iterable[int], number: int, marks: Marks, *, but_group: int = 0) -> None:
    """Signal the processes that have the marks, by pidfd: a pid may have been reused."""
    for pid in pids:
        with suppress(OSError):  # it has ended, or belongs to another user
            process = os.pidfd_open(pid)
            try:
                if os.getpgid(pid) != but_group and marks <= _entries(pid):
                    signal.pidfd_send_signal(process, number)
            finally:
                os.close(process)

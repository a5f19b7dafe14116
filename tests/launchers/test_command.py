"""The launcher of commands: outcomes, environment, output, process trees and leftovers."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from onbeat.core.runs.run import Canceled, Failed, Succeeded
from onbeat.core.target import Target
from onbeat.errors import InvalidSchedule
from onbeat.host.output_files import delete_old_output, output_path
from onbeat.launchers.command import launcher as process
from onbeat.launchers.command.launcher import ProcessLauncher, end_leftovers
from onbeat.ports.store import Attempt

NOON = 1_767_268_800  # 2026-01-01T12:00:00Z
LONG = 60  # seconds, for programs that are to be ended: a test that waits for one fails
SOON = 5  # seconds: far more than anything here takes, far less than `LONG`


def an_attempt(
    *command, run_id=7, attempt=1, timeout=None, cancel_grace=10_000, inputs=None, **fields
):
    return Attempt(
        run_id=run_id,
        schedule_id="nightly/backup",
        run_at=NOON,
        due_at=NOON * 1000,
        attempt=attempt,
        fence=1,
        target=Target("command", {"command": list(command), **fields}),
        timeout=timeout,
        cancel_grace=cancel_grace,
        inputs_text=msgspec.json.encode(inputs).decode() if inputs else None,
    )


def a_script(text, **given):
    return an_attempt("/bin/sh", "-c", text, **given)


def a_launcher(folder, **given):
    given = {"environment": dict(os.environ), "store_id": uuid4().hex, **given}
    return ProcessLauncher(folder / "output", **given)


@pytest.fixture
def run(tmp_path):
    """Launch one attempt; return the outcome and the output."""

    def run(attempt, **given):
        return asyncio.run(a_launcher(tmp_path, **given).launch(attempt))

    return run


def pids_in(path, count=1):
    """Return the process ids that a script wrote to a file, or None until all are there."""
    pids = [int(line) for line in path.read_text().split()] if path.exists() else []
    return pids if len(pids) >= count else None


def lives(pid):
    """Return whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


async def until(question):
    async with asyncio.timeout(SOON):
        while not (answer := question()):  # noqa: ASYNC110 - it depends on another process
            await asyncio.sleep(0.005)
        return answer


@asynccontextmanager
async def started(launcher, attempt, pids, count=1):
    """Launch, continue when the script has written its process ids, and end it afterwards."""
    task = asyncio.create_task(launcher.launch(attempt))
    try:
        await until(lambda: pids_in(pids, count) or task.done())
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# -- outcomes


def test_exit_code_zero_is_a_success(run):
    assert run(a_script("echo out; echo err >&2")) == (Succeeded(None), "out\nerr\n")


@pytest.mark.parametrize("code", [1, 2, 127, 137, 255])
def test_a_positive_exit_code_is_a_failure_that_may_be_retried(run, code):
    failed = Failed(f"exit code {code}", reason="exit", retryable=True, exit_code=code)
    assert run(a_script(f"echo why; exit {code}")) == (failed, "why\n")


@pytest.mark.parametrize(
    ("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (11, "SIGSEGV"), (40, "signal 40")]
)
def test_a_death_by_signal_is_a_failure_that_is_not_retried(run, number, name):
    outcome, _ = run(a_script(f"kill -{number} $$; sleep {LONG}"))
    assert outcome == Failed(f"ended by {name}", "signal", retryable=False, exit_code=-number)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Popen warns as well
def test_exit_code_reaped_elsewhere_is_a_failure(run):
    before = signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG))
    try:
        outcome, _ = run(an_attempt("sleep", "0.1"))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert outcome.error == "exit code unknown: another part of this process reaped it"
    assert not outcome.retryable


def not_executable(tmp_path):
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    return str(tmp_path / "plain")


def without_a_first_line(tmp_path):
    (tmp_path / "script").write_text("echo hello\n")
    (tmp_path / "script").chmod(0o700)
    return str(tmp_path / "script")


@pytest.mark.parametrize(
    ("program", "fields", "problem"),
    [
        ("no-such-program", {}, "'no-such-program' could not be started: No such file"),
        (not_executable, {}, "could not be started: Permission denied"),
        (without_a_first_line, {}, "could not be started: Exec format error"),
        ("true", {"cwd": "/no/Such"}, "'true' could not be started: cwd '/no/Such': No such file"),
        ("true", {"cwd": "/bin/sh"}, "'true' could not be started: cwd '/bin/sh': Not a directory"),
        ("true", {"env": {"A": "a" * 200_000}}, "'true' could not be started: Argument list too"),
        ("true", {"env": {"A": "\ud800"}}, "'true' could not be started: 'utf-8' codec"),
    ],
)
def test_program_that_cannot_be_started_fails_with_the_reason(
    run, tmp_path, program, fields, problem
):
    program = program if isinstance(program, str) else program(tmp_path)
    outcome, tail = run(an_attempt(program, **fields))
    assert problem in outcome.error
    assert (outcome.reason, outcome.retryable, tail) == ("launch_failed", False, "")


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_start_that_fails_for_lack_of_resources_is_retried(run, monkeypatch, number):
    def popen(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(process.subprocess, "Popen", popen)
    outcome, _ = run(an_attempt("true"))
    assert (outcome.reason, outcome.retryable) == ("launch_failed", True)
    assert os.strerror(number) in outcome.error


def test_program_that_cannot_be_watched_is_killed(run, tmp_path, monkeypatch):
    def pidfd_open(pid):
        (tmp_path / "pids").write_text(str(pid))
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(process.os, "pidfd_open", pidfd_open)
    outcome, _ = run(an_attempt("sleep", str(LONG)))
    assert (outcome.reason, outcome.retryable) == ("launch_failed", True)
    assert not any(map(lives, pids_in(tmp_path / "pids")))


def test_program_is_not_started_without_an_output_file(run, tmp_path):
    (tmp_path / "output").write_text("in the way")
    outcome, _ = run(an_attempt("touch", str(tmp_path / "ran")))
    assert outcome.reason == "launch_failed"
    assert str(tmp_path / "output") in outcome.error
    assert not (tmp_path / "ran").exists()


def test_invalid_stored_command_fails_and_starts_nothing(run):
    outcome, _ = run(an_attempt("true", cdw="/"))
    assert outcome.error == "cdw: no field has this name (did you mean 'cwd'?)"
    assert (outcome.reason, outcome.retryable) == ("invalid_target", False)


# -- the environment of a program


def environment_of(tail):
    return dict(line.split("=", 1) for line in tail.splitlines())


def test_program_gets_the_passed_variables_and_those_of_onbeat(run):
    operator = {"PATH": os.environ["PATH"], "TZ": "UTC", "AWS_SECRET": "hush", "LD_PRELOAD": "x"}
    _, tail = run(an_attempt("env"), environment=operator, store_id="store-1")
    given = environment_of(tail)
    assert given.pop("ONBEAT_NODE").startswith(f"{os.getpid()}-")
    assert given == {
        "PATH": os.environ["PATH"],
        "TZ": "UTC",
        "ONBEAT_RUN_ID": "7",
        "ONBEAT_STORE": "store-1",
        "ONBEAT_SCHEDULE": "nightly/backup",
        "ONBEAT_RUN_AT": "2026-01-01T12:00:00Z",
        "ONBEAT_ATTEMPT": "1",
        "ONBEAT_KEY": an_attempt("env").key,
        "ONBEAT_TRIGGERED_BY": "timer",
        "ONBEAT_ITERATION": "1",
    }


def test_passed_variables_can_be_chosen(run):
    _, tail = run(an_attempt("/usr/bin/env"), environment={"A": "1", "B": "2"}, passed=["B"])
    assert environment_of(tail).keys() & {"A", "B"} == {"B"}


def test_target_overrides_passed_variables_but_not_those_of_onbeat(run):
    env = {"TZ": "Asia/Tokyo", "EMPTY": "", "ONBEAT_RUN_ID": "8"}
    operator = {"TZ": "UTC", "PATH": os.environ["PATH"]}
    found = environment_of(run(an_attempt("env", env=env), environment=operator)[1])
    assert (found["TZ"], found["EMPTY"], found["ONBEAT_RUN_ID"]) == ("Asia/Tokyo", "", "7")


def test_program_is_searched_on_the_path_of_its_target(run, tmp_path):
    (tmp_path / "tool").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "tool").chmod(0o700)
    assert run(an_attempt("tool", env={"PATH": str(tmp_path)})) == (Succeeded(), "found\n")


def test_a_program_runs_in_its_folder(run, tmp_path):
    (tmp_path / "tool").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "tool").chmod(0o700)
    assert run(an_attempt("./tool", cwd=str(tmp_path))) == (Succeeded(), f"{tmp_path}\n")


def test_inputs_are_passed_as_json(run):
    inputs = {"limit": 100, "names": ["ä", None]}
    _, tail = run(a_script('printf %s "$ONBEAT_INPUTS"', inputs=inputs))
    assert json.loads(tail) == inputs


def test_inputs_too_long_for_the_environment_fail_with_the_reason(run):
    outcome, _ = run(an_attempt("true", inputs={"text": "x" * 200_000}))
    assert (outcome.reason, outcome.retryable) == ("launch_failed", False)
    assert "Argument list too long" in outcome.error


def test_arguments_are_passed_as_they_are(run):
    arguments = ["$HOME", "a b", "*", "`id`", ";", "ä"]
    assert run(an_attempt("printf", "%s\n", *arguments))[1].splitlines() == arguments


def test_standard_input_is_empty(run):
    assert run(an_attempt("cat")) == (Succeeded(), "")


def test_program_inherits_no_open_file(run, tmp_path):
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        _, tail = run(a_script("ls -l /proc/self/fd"))
    assert "secret" not in tail


# -- output


def test_attempt_has_a_private_output_file(run, tmp_path):
    run(a_script("echo hello", run_id=12_345, attempt=2))
    path = output_path(tmp_path / "output", 12_345, 2)
    assert path == tmp_path / "output" / "000012" / "12345-2.log"
    assert path.read_text() == "hello\n"
    modes = [part.stat().st_mode & 0o777 for part in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


def test_output_file_of_an_attempt_starts_empty(run):
    run(a_script("echo of a store that was replaced"))
    assert run(a_script("echo new"))[1] == "new\n"


def test_end_of_the_output_is_returned_with_invalid_bytes_replaced(run):
    _, tail = run(a_script("echo first; printf '\\303\\244\\377\\n'"), tail=3)
    assert tail == "\N{REPLACEMENT CHARACTER}" * 2 + "\n"


def test_an_output_over_the_cap_keeps_its_last_half(run, tmp_path):
    _, tail = run(a_script("seq 100000"), cap=2000, tail=100)
    kept = output_path(tmp_path / "output", 7, 1).read_bytes()
    assert kept.startswith(process.DROPPED)
    assert len(kept) == 1000 + len(process.DROPPED)
    assert kept.endswith(b"\n99999\n100000\n")
    assert tail.encode() == kept[-100:]


def test_output_at_the_cap_is_not_cut(run):
    assert run(a_script("printf %1000d 1"), cap=1000)[1] == f"{1:1000}"


def test_large_output_is_cut_while_the_program_runs(run, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "SIZE_CHECK", 0.05)
    # It waits for its file to become short whenever that has grown by 20 MB.
    script = """
import os, time
for written in range(100):
    os.write(1, b"x" * 1_000_000)
    while os.fstat(1).st_size > 20_000_000:
        time.sleep(0.001)
os.write(1, b"the end")
"""
    outcome, tail = run(an_attempt(sys.executable, "-c", script, timeout=20_000), cap=2_000_000)
    assert outcome == Succeeded()
    assert tail.endswith("xthe end")
    kept = output_path(tmp_path / "output", 7, 1).read_bytes()
    assert len(kept) <= 2_000_000
    assert kept.startswith(process.DROPPED)


def test_output_is_cut_while_the_tree_is_being_ended(run, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "SIZE_CHECK", 0.05)
    script = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(0.3)
os.write(1, b"x" * 10_000_000)
while os.fstat(1).st_size > 5_000_000:
    time.sleep(0.001)
print("was shortened", flush=True)
"""
    attempt = an_attempt(sys.executable, "-c", script, timeout=200)
    outcome, tail = run(attempt, cap=2_000_000)
    assert outcome.reason == "timeout"
    assert tail.endswith("was shortened\n")


def test_deleted_output_does_not_affect_the_outcome(run, tmp_path):
    path = output_path(tmp_path / "output", 7, 1)
    assert run(a_script(f"echo lost; rm {path}")) == (Succeeded(), "")


def test_text_printed_during_a_cut_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_bytes(b"." * 3000)
    pread, late = os.pread, [b"late\n"]

    def pread_while_it_prints(*arguments):
        found = pread(*arguments)
        if late:
            with path.open("ab") as log:
                log.write(late.pop())
        return found

    monkeypatch.setattr(process.os, "pread", pread_while_it_prints)
    process._keep_last(path, 2000)
    assert path.read_bytes() == process.DROPPED + b"." * 1000 + b"late\n"


# -- ending a tree

# A child in the group, one in another session, and one in another session without its parent.
TREE = f"""
echo $$ >> $PIDS
sleep {LONG} & echo $! >> $PIDS
setsid sh -c 'echo $$ >> $PIDS; exec sleep {LONG}' &
(setsid sh -c 'echo $$ >> $PIDS; exec sleep {LONG}' </dev/null >/dev/null 2>&1 &)
"""
TREE_SIZE = 4


def a_tree(then, tmp_path, **given):
    return a_script(TREE + then, env={"PIDS": str(tmp_path / "pids")}, **given)


def test_timeout_ends_the_whole_tree(run, tmp_path):
    outcome, _ = run(a_tree("wait", tmp_path, timeout=1000))
    assert outcome == Failed("still running after 1s", reason="timeout", retryable=True)
    assert not any(map(lives, pids_in(tmp_path / "pids", TREE_SIZE)))


def test_timeout_in_milliseconds_is_reported_in_milliseconds(run):
    outcome, _ = run(an_attempt("sleep", str(LONG), timeout=50))
    assert outcome.error == "still running after 50ms"


@pytest.mark.parametrize("code", [0, 3])
def test_processes_that_outlive_the_program_are_ended(run, tmp_path, code):
    wait_for_all = f"while [ $(wc -l < $PIDS) -lt {TREE_SIZE} ]; do sleep 0.01; done"
    began = time.monotonic()
    outcome, _ = run(a_tree(f"{wait_for_all}; exit {code}", tmp_path, timeout=20_000))
    assert time.monotonic() - began < SOON
    assert getattr(outcome, "exit_code", 0) == code
    assert not any(map(lives, pids_in(tmp_path / "pids", TREE_SIZE)))


@pytest.mark.parametrize("session", ["", "setsid "])
def test_leftover_that_ignores_sigterm_does_not_delay_the_outcome(run, tmp_path, session):
    deaf = f'trap "" TERM; echo $$ > {tmp_path / "pids"}; while :; do sleep 0.05; done'
    script = f"{session}sh -c '{deaf}' & while [ ! -s {tmp_path / 'pids'} ]; do sleep 0.01; done"
    began = time.monotonic()
    assert run(a_script(script))[0] == Succeeded()
    assert time.monotonic() - began < SOON  # its grace would be ten seconds
    assert not any(map(lives, pids_in(tmp_path / "pids")))


def test_a_leftover_without_the_marks_is_ended_with_its_group(run, tmp_path):
    pids = tmp_path / "pids"
    deaf = f'trap "" TERM; echo $$ > {pids}; while :; do /bin/sleep 0.05; done'
    run(a_script(f"env -i /bin/sh -c '{deaf}' & while [ ! -s {pids} ]; do sleep 0.01; done"))
    time.sleep(0.05)  # nothing waits for what cannot be found
    assert not any(map(lives, pids_in(pids)))


def test_ended_run_does_not_affect_processes_of_another(tmp_path):
    async def main():
        launcher = a_launcher(tmp_path)
        script = a_script(f"echo $$ > {tmp_path / 'pids'}; exec sleep {LONG}", run_id=70)
        async with started(launcher, script, tmp_path / "pids") as other:
            await launcher.launch(a_script("exit 0", run_id=7))
            return other.done(), lives(*pids_in(tmp_path / "pids"))

    assert asyncio.run(main()) == (False, True)


def test_launchers_without_a_store_id_do_not_end_each_other_s_runs(tmp_path):
    async def main():
        one, two = (a_launcher(tmp_path / name, store_id="") for name in "ab")
        script = a_script(f"echo $$ > {tmp_path / 'pids'}; exec sleep {LONG}")
        async with started(one, script, tmp_path / "pids") as other:
            await two.launch(a_script("exit 0"))
            return other.done(), lives(*pids_in(tmp_path / "pids"))

    assert asyncio.run(main()) == (False, True)


# -- cancelling


def test_cancelling_ends_the_whole_tree(tmp_path):
    async def main():
        attempt = a_tree("wait", tmp_path)
        async with started(a_launcher(tmp_path), attempt, tmp_path / "pids", TREE_SIZE) as task:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return [lives(pid) for pid in pids_in(tmp_path / "pids", TREE_SIZE)]

    assert asyncio.run(main()) == [False] * TREE_SIZE


# It needs a moment after SIGTERM, and prints a line for each.
SAYING_GOODBYE = """
import os, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: (asked.append(1), print("asked", flush=True)))
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
while not asked:
    time.sleep(0.01)
time.sleep(0.3)
print("goodbye")
"""


def saying_goodbye(tmp_path):
    return an_attempt(sys.executable, "-c", SAYING_GOODBYE, str(tmp_path / "pids"))


@pytest.mark.parametrize("times", [1, 3])
def test_repeated_cancelling_sends_sigterm_once_and_keeps_the_grace(tmp_path, times):
    async def main():
        launcher = a_launcher(tmp_path)
        async with started(launcher, saying_goodbye(tmp_path), tmp_path / "pids") as task:
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0.03)
            assert not task.done()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not lives(*pids_in(tmp_path / "pids"))

    asyncio.run(main())
    assert output_path(tmp_path / "output", 7, 1).read_text() == "asked\ngoodbye\n"


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace(tmp_path):
    async def main():
        launcher = a_launcher(tmp_path)
        script = f"trap '' TERM; echo $$ > {tmp_path / 'pids'}; while :; do sleep 0.01; done"
        deaf = a_script(script, cancel_grace=200)
        async with started(launcher, deaf, tmp_path / "pids") as task:
            began = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return time.monotonic() - began, lives(*pids_in(tmp_path / "pids"))

    took, alive = asyncio.run(main())
    assert 0.2 <= took < SOON
    assert not alive


def test_program_that_exits_during_its_cancellation_is_cancelled(tmp_path):
    async def main():
        task = asyncio.create_task(a_launcher(tmp_path).launch(an_attempt("true")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


@pytest.mark.parametrize("cancelled_before", [False, True])
def test_closing_event_loop_kills_the_tree(tmp_path, cancelled_before):
    async def main():
        script = "trap '' TERM; echo $$ >> $PIDS; while :; do sleep 0.01; done"
        deaf = a_tree(script, tmp_path, cancel_grace=60_000 if cancelled_before else 100)
        task = asyncio.create_task(a_launcher(tmp_path).launch(deaf))
        await until(lambda: pids_in(tmp_path / "pids", TREE_SIZE + 1))
        if cancelled_before:  # then even the ending is cancelled
            task.cancel()
            await asyncio.sleep(0.05)

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < SOON
    time.sleep(0.05)  # there was no time left to see them go
    assert not any(map(lives, pids_in(tmp_path / "pids")))


def test_closing_ends_running_programs_as_canceled(tmp_path):
    async def main():
        launcher = a_launcher(tmp_path)
        async with started(launcher, saying_goodbye(tmp_path), tmp_path / "pids") as task:
            await launcher.close()
            assert not lives(*pids_in(tmp_path / "pids"))
            return await task

    outcome, tail = asyncio.run(main())
    assert isinstance(outcome, Canceled)
    assert tail == "asked\ngoodbye\n"


def test_closing_twice_or_without_programs_is_harmless(tmp_path):
    async def main():
        launcher = a_launcher(tmp_path)
        await launcher.launch(an_attempt("true"))
        await launcher.close()
        await launcher.close()

    asyncio.run(main())


# -- many, and long


def open_files():
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_many_concurrent_programs_leave_no_file_or_task_open(tmp_path):
    async def main():
        launcher = a_launcher(tmp_path)
        await launcher.launch(an_attempt("true"))  # what stays open, such as the loop, is open now
        before = open_files()
        attempts = [a_script(f"echo {i}; exit {i % 3}", run_id=i) for i in range(60)]
        found = await asyncio.gather(*map(launcher.launch, attempts))
        assert open_files() == before
        assert len(asyncio.all_tasks()) <= 1 + len(attempts)
        return found

    for i, (outcome, tail) in enumerate(asyncio.run(main())):
        assert (getattr(outcome, "exit_code", 0), tail) == (i % 3, f"{i}\n")


def test_one_scan_serves_all_callers_that_waited_before_it(tmp_path, monkeypatch):
    looks, go_on = [], threading.Event()

    def look(marks):
        looks.append(marks)
        go_on.wait(SOON)
        return {}

    async def main():
        launcher = a_launcher(tmp_path)
        tasks = [asyncio.create_task(launcher.launch(an_attempt("true", run_id=1)))]
        await until(lambda: looks)  # the others end while it looks, which may have missed them
        tasks += [
            asyncio.create_task(launcher.launch(an_attempt("true", run_id=i))) for i in (2, 3, 4)
        ]
        await until(lambda: len(launcher._running) == 4)
        await until(lambda: all(child.ended.done() for child in launcher._running))
        await asyncio.sleep(0.05)
        go_on.set()
        await asyncio.gather(*tasks)

    monkeypatch.setattr(process, "_find_marked", look)
    asyncio.run(main())
    assert len(looks) == 2


# -- leftovers of a killed scheduler

SCHEDULER = """
import asyncio, os, sys
from pathlib import Path
from onbeat.core.target import Target
from onbeat.host.plugs import plugs
from onbeat.launchers.command.launcher import ProcessLauncher
from onbeat.ports.store import Attempt

plugs()
folder, store_id, script = sys.argv[1:]
target = Target("command", {"command": ["/bin/sh", "-c", script], "env": {"PIDS": folder + "/pids"}})
launcher = ProcessLauncher(Path(folder), store_id=store_id, environment=dict(os.environ))
asyncio.run(launcher.launch(Attempt(7, "s", 0, 0, 1, 1, target)))
"""


def test_leftovers_of_a_killed_scheduler_are_ended(tmp_path):
    store_id, pids = uuid4().hex, tmp_path / "pids"
    script = f"trap '' TERM; {TREE} wait"
    arguments = [sys.executable, "-c", SCHEDULER, str(tmp_path), store_id, script]
    with subprocess.Popen(arguments) as scheduler:
        asyncio.run(until(lambda: pids_in(pids, TREE_SIZE) or scheduler.poll() is not None))
        scheduler.kill()
    assert all(map(lives, pids_in(pids, TREE_SIZE)))
    assert end_leftovers(store_id) == TREE_SIZE
    assert not any(map(lives, pids_in(pids, TREE_SIZE)))
    assert end_leftovers(store_id) == 0


@pytest.fixture
def a_bystander():
    """Start a process that sleeps, with this environment only; end it afterwards."""
    started = []

    def start(environment):
        started.append(subprocess.Popen(["/bin/sleep", str(LONG)], env=environment))
        return started[-1]

    yield start
    for bystander in started:
        bystander.kill()
        bystander.wait()


def test_node_whose_process_cannot_be_read_counts_as_alive(a_bystander, monkeypatch):
    """A node that has no free file descriptor must not end the runs of living nodes."""

    def short(_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    store_id, node = uuid4().hex, process._identity(os.getpid())
    own = a_bystander({"ONBEAT_STORE": store_id, "ONBEAT_NODE": node})
    monkeypatch.setattr(process, "_stat", short)
    assert end_leftovers(store_id) == 0
    assert own.poll() is None


def test_only_leftovers_of_the_same_store_are_ended(a_bystander):
    store_id = uuid4().hex
    others = [
        {"ONBEAT_STORE": f"{store_id}0"},
        {"ONBEAT_STORE": store_id[:-1]},
        {"XONBEAT_STORE": store_id},
        {"NOTE": f"ONBEAT_STORE={store_id}"},
        {"ONBEAT_STORE": ""},
        {},
    ]
    spared = [a_bystander(environment) for environment in others]
    own = a_bystander({"ONBEAT_STORE": store_id})
    assert end_leftovers("") == 0
    assert end_leftovers(store_id) == 1
    assert own.wait(SOON) == -signal.SIGKILL
    assert [bystander.poll() for bystander in spared] == [None] * len(others)


def test_processes_of_a_living_node_are_spared_and_of_a_dead_one_ended(a_bystander):
    """Several nodes of one store may be on one machine. A zombie counts as dead."""
    store_id = uuid4().hex
    other, dead = a_bystander({}), a_bystander({})
    nodes = [os.getpid(), other.pid, dead.pid]
    own, theirs, left = (
        a_bystander({"ONBEAT_STORE": store_id, "ONBEAT_NODE": process._identity(pid)})
        for pid in nodes
    )
    reused = a_bystander({"ONBEAT_STORE": store_id, "ONBEAT_NODE": f"{other.pid}-1"})
    dead.kill()
    asyncio.run(until(lambda: process._identity(dead.pid) == ""))
    assert end_leftovers(store_id) == 2
    assert (left.wait(SOON), reused.wait(SOON)) == (-signal.SIGKILL, -signal.SIGKILL)
    assert (own.poll(), theirs.poll()) == (None, None)


def test_leftover_that_ends_late_is_signaled_again(a_bystander, monkeypatch):
    store_id, rounds, signal_all = uuid4().hex, [], process._signal_all

    def signal_all_at_the_third_round(*arguments):
        rounds.append(arguments)
        if len(rounds) == 3:
            signal_all(*arguments)

    own = a_bystander({"ONBEAT_STORE": store_id})
    monkeypatch.setattr(process, "_signal_all", signal_all_at_the_third_round)
    assert end_leftovers(store_id) == 1
    assert own.wait(SOON) == -signal.SIGKILL


def is_in_group(group):
    """Return whether a process other than a zombie is in a group."""
    for pid in process._pids():
        with suppress(OSError):
            stat = process._stat(pid)
            if int(stat[2]) == group and stat[0] != b"Z":
                return True
    return False


HOPPING = "import os\nwhile True:\n    if os.fork(): os._exit(0)"  # a new pid every moment


def test_leftover_that_forks_and_exits_faster_than_it_is_read_is_ended():
    store_id = uuid4().hex
    leftover = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", HOPPING],
        env={"ONBEAT_STORE": store_id, "ONBEAT_NODE": "1-1"},
        start_new_session=True,
    )
    try:
        leftover.wait(SOON)  # the first of them has exited: the others live
        assert end_leftovers(store_id) > 0
        assert not any(is_in_group(leftover.pid) for _ in range(20))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(leftover.pid, signal.SIGKILL)


def test_leftover_in_the_middle_of_an_exec_is_read_again(a_bystander, monkeypatch):
    """Between two programs a process has neither an environment nor a command line."""
    store_id, entries, is_in_exec = uuid4().hex, process._entries, process._is_in_exec
    own, looks = a_bystander({"ONBEAT_STORE": store_id}), []

    def not_yet(pid, user=None):
        if pid == own.pid:
            looks.append(pid)
        return frozenset() if pid == own.pid and len(looks) == 1 else entries(pid, user)

    monkeypatch.setattr(process, "_entries", not_yet)
    monkeypatch.setattr(
        process,
        "_is_in_exec",
        lambda pid: len(looks) == 1 if pid == own.pid else is_in_exec(pid),
    )
    assert end_leftovers(store_id) == 1
    assert own.wait(SOON) == -signal.SIGKILL


def test_process_without_an_environment_is_read_once(a_bystander):
    bystander = a_bystander({})
    asyncio.run(until(lambda: not process._is_in_exec(bystander.pid)))
    assert process._entries(bystander.pid) == frozenset()
    assert process._find_marked(frozenset({b"ONBEAT_STORE=none"})) == {}


def test_leftovers_of_an_exiting_node_are_ended(a_bystander, monkeypatch):
    """Its lock is free, and held by the next node, a moment before it is a zombie."""
    store_id, stat = uuid4().hex, process._stat
    node = a_bystander({})
    own = a_bystander({"ONBEAT_STORE": store_id, "ONBEAT_NODE": process._identity(node.pid)})

    def exiting(pid):
        fields = stat(pid)
        if pid == node.pid:
            fields[6] = b"%d" % (int(fields[6]) | process.EXITING)
        return fields

    assert end_leftovers(store_id) == 0
    monkeypatch.setattr(process, "_stat", exiting)
    assert end_leftovers(store_id) == 1
    assert own.wait(SOON) == -signal.SIGKILL


def test_leftover_found_after_the_start_is_ended_when_the_node_closes(tmp_path, a_bystander):
    store_id = uuid4().hex

    async def main():
        launcher = a_launcher(tmp_path, store_id=store_id)
        assert await launcher.recover() == 0
        own = a_bystander({"ONBEAT_STORE": store_id, "ONBEAT_NODE": "1-1"})
        await launcher.close()
        return own

    assert asyncio.run(main()).wait(SOON) == -signal.SIGKILL


def test_client_that_closes_ends_nothing(tmp_path, a_bystander):
    store_id = uuid4().hex
    own = a_bystander({"ONBEAT_STORE": store_id, "ONBEAT_NODE": "1-1"})
    asyncio.run(a_launcher(tmp_path, store_id=store_id).close())
    assert own.poll() is None


def test_scheduler_started_by_a_run_spares_itself_and_its_parents(a_bystander):
    store_id = uuid4().hex
    script = (
        "import os; from onbeat.launchers.command.launcher import end_leftovers;"
        f"print(end_leftovers({store_id!r}))"
    )
    # the shell waits for the scheduler: it is its parent
    command = ["/bin/sh", "-c", '"$@"; echo alive', "sh", sys.executable, "-c", script]
    own = a_bystander({"ONBEAT_STORE": store_id})
    found = subprocess.run(
        command,
        env={**os.environ, "ONBEAT_STORE": store_id},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "1\nalive\n"
    assert own.wait(SOON) == -signal.SIGKILL


def test_processes_of_other_users_are_spared(a_bystander, monkeypatch):
    store_id = uuid4().hex
    own = a_bystander({"ONBEAT_STORE": store_id})
    monkeypatch.setattr(process.os, "geteuid", lambda: os.getuid() + 1)
    assert end_leftovers(store_id) == 0
    assert own.poll() is None


def test_without_proc_there_are_no_leftovers(monkeypatch):
    def scandir(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(process.os, "scandir", scandir)
    assert end_leftovers("any") == 0


# -- definitions


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        (
            {"command": "./backup.sh --all"},
            "command: './backup.sh --all' is not a list of strings (such as [./backup.sh, --all]; it does not run in a shell)",
        ),
        (
            {"command": []},
            "command: the list is empty (such as [./backup.sh, --all]; it does not run in a shell)",
        ),
        (
            {"cwd": "/"},
            "command: None is not a list of strings (such as [./backup.sh, --all]; it does not run in a shell)",
        ),
        ({"command": ["nice", 19]}, "command[1]: 19 is not a string (put it in quotes)"),
        ({"command": ["sleep", 0.5]}, "command[1]: 0.5 is not a string (put it in quotes)"),
        ({"command": ["echo", True]}, "command[1]: True is not a string (put it in quotes)"),
        (
            {"command": ["echo", ["a"]]},
            """command[1]: ['a'] is not a string (command: ["./backup.sh", "--all"])""",
        ),
        ({"command": [""]}, "command[0]: it is empty (a string)"),
        (
            {"command": ["echo", "a\0b"]},
            "command[1]: it contains NUL (a string)",
        ),
        ({"command": ["a"], "cwd": 7}, "cwd: 7 is not a string (put it in quotes)"),
        ({"command": ["a"], "cwd": ""}, "cwd: it is empty (a string)"),
        ({"command": ["a"], "env": ["A=1"]}, "env: ['A=1'] is not a mapping ({NAME: value})"),
        (
            {"command": ["a"], "env": {"A=B": "1"}},
            "env: 'A=B' contains \"=\", which is not allowed in a name (NAME: value)",
        ),
        ({"command": ["a"], "env": {"": "1"}}, "env: it is empty (a string)"),
        (
            {"command": ["a"], "env": {"PORT": 80}},
            "env.PORT: 80 is not a string (put it in quotes)",
        ),
        ({"command": ["a"], "evn": {}}, "evn: no field has this name (did you mean 'env'?)"),
    ],
)
def test_invalid_command_target_is_refused(tmp_path, fields, refusal):
    with pytest.raises(InvalidSchedule) as refused:
        a_launcher(tmp_path).check(Target("command", fields))
    assert str(refused.value) == refusal


def test_valid_command_target_is_accepted(tmp_path):
    fields = {"command": ["a", "b"], "cwd": "/srv", "env": {"A": ""}, "inputs": {"limit": 1}}
    launcher = a_launcher(tmp_path)
    launcher.check(Target("command", fields))
    assert list(launcher.offers()) == ["command"]


def test_old_output_is_deleted(tmp_path):
    old, new = output_path(tmp_path, 1, 1), output_path(tmp_path, 2001, 1)
    for file in (old, new):
        file.parent.mkdir(parents=True)
        file.write_text("printed")
    os.utime(old, (1_000, 1_000))
    assert delete_old_output(tmp_path, before=2_000_000) == 1
    assert not old.parent.exists()
    assert new.exists()

"""The real `onbeat`, started by forking a process that has imported it already.

A page has dozens of commands, and importing takes most of the time of each. What runs is the same
program with the same arguments, folder, environment and streams, in a process of its own.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent

CLIENT = """\
#!{python} -SE
import json, os, socket, sys
there = socket.socket(socket.AF_UNIX)
there.connect({at!r})
said = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(there, [len(said).to_bytes(8, "big")], [0, 1, 2])
there.sendall(said)
code = there.recv(1)
sys.exit(code[0] if code else 70)
"""


@contextmanager
def forked_onbeat(folder):
    """Put a program called onbeat into a folder, which works until the end of this."""
    at = str(folder / "socket")
    program = folder / "onbeat"
    program.write_text(CLIENT.format(python=sys.executable, at=at))
    program.chmod(0o755)
    serving = subprocess.Popen([sys.executable, "-m", "tests.docs.forks", at], cwd=ROOT)
    try:
        until = time.monotonic() + 30
        while not Path(at).exists():
            assert serving.poll() is None, "it serves"
            assert time.monotonic() < until, "it is up"
            time.sleep(0.02)
        yield program
    finally:
        serving.terminate()
        serving.wait(10)


def serve(at):
    """Fork a process for every command that comes, for ever."""
    from onbeat.cli.command import main, verbs  # noqa: PLC0415 - only the child needs it

    for place, _ in verbs().values():
        importlib.import_module(place.split(":")[0])
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(at + ".new")
    listening.listen()
    Path(at + ".new").rename(at)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    while True:
        asked, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _run(main, asked)
        asked.close()


def _run(main, asked):
    """Run the requested command in this process, and report its exit code."""
    length, streams, _, _ = socket.recv_fds(asked, 8, 3)
    said = b""
    while len(said) < int.from_bytes(length, "big"):
        said += asked.recv(65_536)
    arguments, folder, environment = json.loads(said)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = [str(BIN / "onbeat"), *arguments], str(BIN)
    code = 70
    try:
        main(prog_name="onbeat")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        asked.sendall(bytes([code]))
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])

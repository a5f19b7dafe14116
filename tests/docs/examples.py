"""Runs the commands of a page in a fresh folder and compares their output with the page.

    ```yaml title=onbeat.yaml      is written to that file, in any language
    ```console                     is run, line by line, by one shell for the whole page
    $ onbeat run hello --wait      a command; `> ` continues the line before
    run <n> of hello: SUCCESS      its whole output: `...` is anything, `<n>` a number
    [exit 1]                       how it ended, unless that was well
    ```

Answers in JSON are compared as values, so that a page may break their lines. `127.0.0.1:8585` and
`127.0.0.1:9000` are replaced by free ports, `db.example/onbeat` for a database on a PostgreSQL
server of the tests. Commands that only look are repeated for a few
seconds until they show what the page does: a reader is not as quick as a program.

`python -m tests.docs.examples PAGE` prints the blocks of a page as they would be now.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.docs.forks import BIN, ROOT, forked_onbeat
from tests.postgres import shared_server

PATIENCE = 15.0  # seconds for what has to happen by itself
LONGEST = 60.0  # seconds of one command
ONE_SERVER = threading.Lock()  # is started by whichever page comes first
DATABASE = "db.example/onbeat"
README = "README.md"
PORTS = ("127.0.0.1:8585", "127.0.0.1:9000")  # what pages call the API, and a server beside it
LENGTH = r"(?:\d+(?:d|h|m|s)(?: \d+(?:h|m|s))?)"
PLACEHOLDERS = {
    "time": r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)",
    "day": r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d",
    "clock": r"\d\d:\d\d:\d\d [+-]\d\d:\d\d",
    "date": r"\d{4}-\d\d-\d\d",
    "away": rf"(?:in {LENGTH}|{LENGTH} ago)",
    "took": rf"(?:\d+ms|\d+\.\d+s|{LENGTH})",
    "secret": r"onbeat_[A-Za-z0-9_-]+",
    "node": r"[\w.-]+:\d+",
    "uuid": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "hex": r"[0-9a-f]{12,64}",
    "version": r"\d+\.\d+\.\d+\w*",
    "n": r"\d+",
    "x": r"[\d.e-]+",
    "user": r"[\w.-]+",
    "...": r".*?",
}
# What varies from run to run. The README shows concrete values, other pages placeholders.
VARYING = (
    (PLACEHOLDERS["time"], "<time>"),
    (PLACEHOLDERS["away"], "<away>"),
    (PLACEHOLDERS["secret"] + r"(?=\s+\(opens once)", "<secret>"),
    (r"(?<=process )\d+", "<n>"),
    (r"^\d+(?= {2,}\S)", "<n>"),
    (r"\b\d+ms$", "<took>"),
    (r"^stopped \S+:\d+$", "stopped <node>"),
)
LOOKING = re.compile(
    r"onbeat (list|show|runs|why|logs|status|nodes|groups|notify list|audit|timers(?! \w))\b|curl |cat |tail "
)
BACKGROUND = re.compile(r"(?:is up in the background: process |timer started \(pid=)(\d+)")
CHANGING = re.compile(r" (--json|-X|-d|--data\S*|-o|-N) ")  # of curl; `-N` is a stream


@dataclass
class Command:
    """A command of a page, what it is to print, and how it is to end."""

    text: str
    line: int
    shown: list = field(default_factory=list)
    code: int = 0

    @property
    def only_looks(self):
        if self.text.startswith("curl "):
            return not CHANGING.search(f"{self.text} ")
        return bool(LOOKING.match(self.text)) and " -f" not in self.text


@dataclass
class File:
    """A file that a page has its reader write."""

    name: str
    text: str


class Differs(AssertionError):  # noqa: N818 - it names what is wrong
    """What is printed is not what the page shows."""


def steps_of(page):
    """Yield the files and the commands of a page, in order."""
    language, title, first, body = None, "", 0, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if language is None:
            if opened := re.fullmatch(r"```(\w+)(?: title=(\S+))?", line):
                language, title, first, body = opened[1], opened[2], number, []
            continue
        if line != "```":
            body.append(line)
            continue
        if title:
            yield File(title, "\n".join([*body, ""]))
        elif language == "console":
            yield from _commands(body, first, page)
        language = None
    assert language is None, f"{page}: a block that begins in line {first} has no end"


def _commands(lines, first, page):
    command = None
    for number, line in enumerate(lines, first + 1):
        if line.startswith("$ "):
            if command:
                yield command
            command = Command(line[2:], number)
            continue
        assert command, f"{page}:{number}: there is no command before this"
        if line.startswith("> ") and not command.shown:
            command.text += f"\n{line[2:]}"
        elif ended := re.fullmatch(r"\[exit (\d+)\]", line):
            command.code = int(ended[1])
        else:
            command.shown.append(line)
    if command:
        yield command


class Shell:
    """One bash for a page, in a folder of its own, and the nodes that are started from it."""

    def __init__(self, folder, program, places=()):
        self.folder = folder
        self.places = {each: f"127.0.0.1:{free_port()}" for each in PORTS} | dict(places)
        self.beside = self.places[PORTS[1]].rpartition(":")[2]
        self.places['"127.0.0.1", 9000'] = f'"127.0.0.1", {self.beside}'
        path = os.pathsep.join([str(program.parent), str(BIN), os.defpath])
        environment = {
            "HOME": str(folder), "PATH": path, "TZ": "UTC", "LANG": "C.UTF-8", "USER": "you",
            "ONBEAT_LISTEN": self.places[PORTS[0]], "ONBEAT_STOP_GRACE": "1s",
            "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        self._bash = subprocess.Popen(
            ["bash", "--norc"], cwd=folder, env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._number, self._nodes = 0, set()

    def write(self, file):
        path = self.folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._there(file.text))

    def run(self, command):
        """Return what a command prints, and how it ends."""
        self._number += 1
        told, done = (self.folder.parent / f"{self._number}.{end}" for end in ("told", "done"))
        text = self._there(command.text)
        self._bash.stdin.write(f"{{ {text}\n}} >{told} 2>&1 </dev/null\necho $? >{done}\n")
        self._bash.stdin.flush()
        until = time.monotonic() + LONGEST
        while not (done.exists() and done.read_text().endswith("\n")):
            if self._bash.poll() is not None or time.monotonic() > until:
                raise Differs(f"it does not end:\n{told.read_text()}")
            time.sleep(0.01)
        if text.endswith("&"):
            await_port(int(self.beside))
        self._nodes |= set(map(int, BACKGROUND.findall(told.read_text())))
        return self._here(told.read_text()), int(done.read_text())

    def close(self):
        """Stop the shell, what it has in the background, and every node of its folder."""
        for pid in self._nodes:
            end(pid, self.folder)
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()

    def _there(self, text):
        for shown, real in self.places.items():
            text = text.replace(shown, real)
        return text

    def _here(self, text):
        for shown, real in self.places.items():
            text = text.replace(real, shown)
        return text.replace(str(self.folder), "/home/you")


def end(pid, folder):
    """Stop a node that was started in a folder, whatever it takes."""
    for sign, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        until = time.monotonic() + patience
        while _is_node(pid, folder) and time.monotonic() < until:
            with suppress(ProcessLookupError):
                os.kill(pid, sign)
            time.sleep(0.05)


def _is_node(pid, folder):
    """Return whether a process was started in this folder."""
    try:
        return Path(f"/proc/{pid}/cwd").resolve() == folder.resolve()
    except OSError:
        return False


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def await_port(port):
    """Wait until what was put into the background listens."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise Differs("it does not listen")


def check(shell, command, *, patience=PATIENCE):
    """Run a command as often as it may be, until it prints what the page shows; or raise."""
    until = time.monotonic() + (patience if command.only_looks else 0)
    while True:
        told, code = shell.run(command)
        problem = difference(command, told, code)
        if problem is None:
            return
        if time.monotonic() > until:
            raise Differs(problem)
        time.sleep(0.05)


def expected(page, command):
    """Return a command of a page with the output that is to be compared."""
    return with_placeholders(command) if page.name == README else command


def with_placeholders(command):
    """Return a command whose output has placeholders, unless the command names a fixed time."""
    if re.search(r"\b20\d\d-", command.text):
        return command
    shown = "\n".join(command.shown)
    for concrete, placeholder in VARYING:
        shown = re.sub(concrete, placeholder, shown, flags=re.MULTILINE)
    return replace(command, shown=shown.splitlines())


def difference(command, told, code):
    """Return what is not as the page has it, or None."""
    shown = "\n".join(command.shown)
    if code != command.code:
        return f"it ends with {code}, not with {command.code}:\n{told}"
    if is_same(shown, told):
        return None
    return f"the page shows:\n{shown}\n\nit prints:\n{told}"


def is_same(shown, told):
    """Return whether what is printed is what is shown, as lines or as JSON."""
    if lines(shown).fullmatch(columns(told)):
        return True
    try:
        return is_alike(shown_json(shown), json.loads(told))
    except ValueError:
        return False


def columns(text):
    """Return a text with columns as narrow as can be: they are as wide as what varies in them."""
    found = [re.sub(r"(?<=\S) {2,}", "  ", line).rstrip() for line in text.rstrip().splitlines()]
    return "".join(f"{line}\n" for line in found)


def lines(shown):
    """Return what matches lines with placeholders: a line that is only `...` is any number."""
    found = columns(shown).splitlines()
    return re.compile(
        "".join(r"(?:.*\n)*?" if line.strip() == "..." else f"{_regex(line)}\n" for line in found)
    )


def _regex(text):
    """Return the pattern of a text with placeholders."""
    literal = iter(re.split(r"<\w+>|\.\.\.", text))
    parts = [re.escape(next(literal))]
    for place in re.findall(r"<\w+>|\.\.\.", text):
        name = place.strip("<>")
        assert name in PLACEHOLDERS, f"no placeholder is called {place}"
        parts += [PLACEHOLDERS[name], re.escape(next(literal))]
    return "".join(parts)


def shown_json(text):
    """Return JSON as pages show it: `...` is more of the same, `<n>` need no quotes."""
    parts, closing = [], []
    for part in re.findall(r'"(?:[^"\\]|\\.)*"|\.\.\.|<\w+>|[^"<.]+|.', text):
        if part == "..." and closing:
            parts.append('"...": 0' if closing[-1] == "}" else '"..."')
        elif part.startswith("<"):
            parts.append(f'"{part}"')
        else:
            parts.append(part)
        if not part.startswith('"'):
            for letter in part:
                if letter in "{[":
                    closing.append("}" if letter == "{" else "]")
                elif letter in "}]" and closing:
                    closing.pop()
    return json.loads("".join(parts))


def is_alike(shown, told):
    """Return whether a value equals the shown one."""
    match shown:
        case dict():
            rest = told.keys() - shown.keys() if isinstance(told, dict) else {"no object"}
            return (
                (not rest or (isinstance(told, dict) and "..." in shown))
                and all(name in told for name in shown if name != "...")
                and all(is_alike(shown[name], told[name]) for name in shown if name != "...")
            )
        case [*first, "..."]:
            return isinstance(told, list) and all(
                map(is_alike, first, told[: len(first)])
            ) and len(told) >= len(first)  # fmt: skip
        case list():
            return isinstance(told, list) and len(told) == len(shown) and all(
                map(is_alike, shown, told)
            )  # fmt: skip
        case str() if re.fullmatch(r"<\w+>", shown):
            return bool(re.fullmatch(_regex(shown), str(told)))
        case str():
            return isinstance(told, str) and bool(re.fullmatch(_regex(shown), told))
        case _:
            return shown == told and type(shown) is type(told)


@contextmanager
def shell_of(page, program):
    """Give a shell in a fresh folder, with what a page needs, and leave nothing of it behind."""
    with tempfile.TemporaryDirectory() as above, ExitStack() as after:
        folder, places = Path(above) / "you", {}
        folder.mkdir()
        if " examples/" in page.read_text():  # its reader has a clone
            (folder / "examples").symlink_to(ROOT / "examples")
        if DATABASE in page.read_text():
            with ONE_SERVER:
                url = shared_server().new_database()
            after.callback(shared_server().drop_database, url)
            places[DATABASE] = url.partition("@")[2]
        shell = Shell(folder, program, places)
        after.callback(shell.close)
        yield shell


def run_page(page, program):
    """Run a page; return how many examples it has, or raise at the first that is not true."""
    done = 0
    with shell_of(page, program) as shell:
        for step in steps_of(page):
            if isinstance(step, File):
                shell.write(step)
                continue
            try:
                check(shell, expected(page, step))
            except Differs as wrong:
                where = f"{page.relative_to(ROOT)}:{step.line}"
                raise Differs(f"{where}: $ {step.text}\n{wrong}") from None
            done += 1
    return done


def missing():
    """Return what is not on this machine that pages need."""
    return [name for name in ("bash", "curl") if shutil.which(name) is None]


def show(page):
    """Print the blocks of a page as they would be now, where they differ."""
    with (
        tempfile.TemporaryDirectory() as folder,
        forked_onbeat(Path(folder)) as program,
        shell_of(page, program) as shell,
    ):
        for step in steps_of(page):
            if isinstance(step, File):
                shell.write(step)
                continue
            begun = time.monotonic()
            try:
                check(shell, expected(page, step), patience=3)
                print(f"ok {step.line} {time.monotonic() - begun:.1f}s $ {step.text}")
            except Differs as wrong:
                print(f"-- {step.line} $ {step.text}\n{wrong}\n")


if __name__ == "__main__":
    show(Path(sys.argv[1]).resolve())

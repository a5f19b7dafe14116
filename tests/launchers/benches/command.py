"""The bench of commands: shell scripts that write a line to a file when they start."""

import os
from typing import ClassVar

from onbeat.core.runs.run import Failed
from onbeat.core.target import Target
from onbeat.core.time.instants import parse_instant
from onbeat.host.output_files import output_path
from onbeat.launchers.command.launcher import ProcessLauncher
from tests.launchers.bench import Bench, Start, working_pids

WITNESS = 'echo "$ONBEAT_KEY $ONBEAT_ATTEMPT $ONBEAT_RUN_AT" >> "$0/starts"'
UNTIL_RELEASED = 'touch "$0/works.$$"; while [ ! -e "$0/release" ]; do sleep 0.02; done'


class CommandBench(Bench):
    kind = "command"
    lacks: ClassVar = {
        "result": "a program has an exit code and output",
        "apart": "the processes of a run are found by its id, and end with its first program",
        "once": "a program is started by every launch; the key is in its environment",
    }
    after_crash = "is left"
    error = "exit code 3"
    longest_file = 150_000  # bytes: the cap, and what is printed between two looks at the size

    async def make(self):
        return self._launcher(self.folder / "output")

    def _launcher(self, output):
        return ProcessLauncher(
            output, store_id=f"contract-{self.folder}", environment=os.environ, cap=100_000
        )

    def _script(self, text):
        return {"command": ["/bin/sh", "-c", f"{WITNESS}\n{text}", str(self.folder)]}

    def succeeds(self):
        return self._script("")

    def fails(self):
        return self._script("exit 3")

    def fails_for_good(self):
        return self._script("kill -9 $$")

    def works(self):
        return self._script(UNTIL_RELEASED)

    def is_stubborn(self):
        return self._script(f"trap '' TERM\n{UNTIL_RELEASED}")

    def release(self):
        (self.folder / "release").touch()

    def prints(self, text):
        (self.folder / "text").write_text(text)
        return self._script('cat "$0/text"')

    def invalid(self):
        return [
            Target("command", {"command": ["true"], "cdw": "/"}),
            Target("command", {"command": "true"}),
            Target("command", {"command": []}),
            Target("command", {"command": ["true"], "env": ["A"]}),
        ]

    async def make_cut_off(self):
        (self.folder / "blocked").write_text("a file, where a folder should be")
        return self._launcher(self.folder / "blocked"), Failed

    def odd(self):
        return {
            "bytes": self._script(r"printf '\377\000\355\240\200'"),
            "error": self._script("head -c 300000 /dev/zero >&2; exit 1"),
        }

    def starts(self):
        path = self.folder / "starts"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [
            Start(key, int(number), parse_instant(run_at))
            for key, number, run_at in map(str.split, lines)
        ]

    def working(self):
        return working_pids(self.folder)

    def output_file(self, attempt):
        return output_path(self.folder / "output", attempt.run_id, attempt.attempt)

"""The launcher of bells passes the contract of launchers: run by a test of the project."""

from typing import ClassVar

from onbeat_toys.bell.launcher import BellLauncher

from onbeat.core.runs.run import Failed
from onbeat.core.target import Target
from tests.launchers.bench import Bench, Start
from tests.launchers.contract import LauncherContract

NO_KEY = "a stroke is a line with the reason, the schedule and the attempt"
SHORT = "a stroke is a line that is written at once"


class BellBench(Bench):
    kind = "bell"
    lacks: ClassVar = {
        "key": NO_KEY,
        "run_at": NO_KEY,
        "final failure": "a tower that is missing may be built",
        "output": "a bell rings the same for every reason",
        "work": SHORT,
        "once": "each launch rings the bell",
    }
    result: ClassVar = {"strokes": 2}
    error = "the bell cannot be rung"

    @property
    def _tower(self):
        return self.folder / "tower"

    async def make(self):
        return BellLauncher(self._tower)

    def succeeds(self):
        return {"bell": "dinner", "times": 2}

    def retried(self):
        return self.succeeds()  # a stroke that fails is not heard

    def fails(self):
        self._tower.mkdir()
        return self.succeeds()

    def fails_for_good(self):
        return self.fails()

    def works(self):
        return self.succeeds()

    def release(self):
        """Do nothing: no launch waits."""

    def prints(self, text):
        return self.succeeds()

    def invalid(self):
        return [
            Target("bell", {"bell": "dinner", "volume": 11}),
            Target("bell", {"bell": ""}),
            Target("bell", {"bell": "dinner", "times": 13}),
        ]

    async def make_cut_off(self):
        return BellLauncher(self.folder / "no-town" / "tower"), Failed

    def odd(self):
        return {"quote": {"bell": "\N{BELL}\n\0", "times": 12}}

    def starts(self):
        lines = self._tower.read_text().splitlines() if self._tower.is_file() else []
        attempts = [int(line.split()[-1]) for line in lines]
        return [Start(attempt=each) for each in attempts[::2]]

    def working(self):
        return 0


class TestBell(LauncherContract):
    bench_type = BellBench

"""`Bench`: what the launcher contract has to know of a kind of target.

A bench makes launchers, has targets that succeed, fail or run until they are released, and counts
what the targets themselves saw. `contract.py` has the cases. A package with a launcher of its own
adds a bench, and a class for pytest:

    class TestBell(LauncherContract):
        bench_type = BellBench
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from onbeat.core.runs.run import run_key
from onbeat.core.target import Target, read_target
from onbeat.core.target_kinds import KINDS
from onbeat.ports.store import Attempt
from tests.waiting import SOON, until

NOON = 1_767_268_800  # 2026-01-01T12:00:00Z
LONGEST_TAIL = 64 * 1024  # characters of a tail that are stored

# What a kind promises, unless `lacks` has the reason why it does not. The case of each promise
# then asserts the alternative that is in parentheses.
PROMISES = {
    "key": "the target receives the key of its run (nothing in its place)",
    "attempt": "the target receives the number of the attempt (nothing in its place)",
    "run_at": "the target receives the planned time (nothing in its place)",
    "result": "a success has the result of the target (no result)",
    "retryable failure": "a failure of the target may be retried (it is final)",
    "final failure": "a failure of the target may be final (it may be retried)",
    "output": "the tail has what the target prints (only lines of the launcher)",
    "work": "a target may run for long (a launch never waits)",
    "cancel": "a started target can be cancelled (`can_cancel` is False)",
    "end": "a cancelled launch, or one at its timeout, ends its target (the target continues)",
    "close": "closing ends what was launched (the launch continues, and can be cancelled)",
    "once": "launches with one key at the same time start once (each passes the same key)",
    "apart": "launches of one run at the same time are independent (the first to end ends the other)",
    "report": "a kind that reports may accept a run (it waits for the outcome itself)",
    "unbegun": "a launch that was not begun is made after a crash (it is lost)",
}


class Start(NamedTuple):
    """A start as the target saw it. None: it receives nothing of this."""

    key: str | None = None
    attempt: int | None = None
    run_at: int | None = None


class Bench:
    """The launcher, the targets and the witnesses of one kind. `folder` has the state of its nodes.

    Another process makes a launcher on the same state: it gets the `folder`, and the `address` of
    what its targets talk to.
    """

    kind = ""
    lacks: Mapping[str, str] = {}  # promises that the kind does not make, each with the reason
    # A target that runs when its node is killed "ends" with it, "is left" until a node recovers,
    # or "continues".
    after_crash = "continues"
    longest_file = LONGEST_TAIL  # bytes of the file of a run that prints much more
    timeout = 400  # milliseconds of an attempt that is to exceed them, after its target has started
    patience = SOON  # seconds that a target may take to start or to end

    def __init__(self, folder, address=""):
        self.folder, self.address = Path(folder), address
        self._made = []

    # -- what a bench implements

    async def open(self):
        """Start what the targets talk to, and set `address`."""

    async def close(self):
        """Stop what `open` and `make` have started."""

    async def make(self):
        """Return a launcher as a node has it, on the state of this bench."""
        raise NotImplementedError

    def succeeds(self):
        """Return the fields of a target that succeeds with `result`."""
        raise NotImplementedError

    result: object = None  # of `succeeds`

    def fails(self):
        """Return a target that fails with `error` in its error; another attempt may succeed."""
        raise NotImplementedError

    error = ""  # of `fails`

    def fails_for_good(self):
        """Return a target that fails, and would fail again."""
        raise NotImplementedError

    def works(self):
        """Return a target that runs until `release`, and then succeeds."""
        raise NotImplementedError

    def release(self):
        """Let all that works succeed."""

    def retried(self):
        """Return a target whose attempt fails after its start, if such a failure is retried."""
        return self.fails()

    def is_stubborn(self):
        """Return a target that works, and ignores requests to end as far as it can."""
        return self.works()

    def prints(self, text):
        """Return a target that succeeds and prints a text."""
        raise NotImplementedError

    def accepts(self):
        """Return a target that accepts a run as `external_id`, and would report its outcome."""
        raise NotImplementedError

    external_id = ""  # of `accepts`

    def callbacks(self):
        """Return the keys for which a target received an address to report to."""
        raise NotImplementedError

    def invalid(self):
        """Return targets that only another version could have defined."""
        raise NotImplementedError

    async def make_cut_off(self):
        """Return a launcher that cannot start `unreachable`, and the types of its outcome."""
        raise NotImplementedError

    def unreachable(self):
        """Return the target of `make_cut_off`."""
        return self.succeeds()

    def odd(self):
        """Return targets with results, errors or output that are too long or not JSON, by name."""
        raise NotImplementedError

    longest_result_is_cut = (
        True  # a target of `odd` named "large" succeeds; else its result fails it
    )

    def starts(self):
        """Return the starts that targets saw, in order."""
        raise NotImplementedError

    def working(self):
        """Return how many targets of `works` run."""
        raise NotImplementedError

    def output_file(self, attempt):
        """Return the file with the output of an attempt, or None if there is none."""

    async def is_recorded(self, attempt):
        """Return whether a node that is killed now leaves what another needs to reattach."""
        return True

    def record(self, launcher, attempt, outcome):
        """Let the launcher know that an outcome was recorded, as the events of a store do."""

    # -- what the cases use

    @property
    def facts(self):
        return KINDS.find(self.kind)

    async def new(self):
        """Return a new launcher, which is closed with the bench."""
        launcher = await self.make()
        self._made.append(launcher)
        return launcher

    def promises(self, name):
        assert name in PROMISES
        return name not in self.lacks

    def attempt(self, fields, *, run_id=1, **given):
        """Return an attempt at a target, given by its fields or as it is."""
        target = fields if isinstance(fields, Target) else read_target(fields)
        known = {
            "schedule_id": f"contract/{run_id}", "run_at": NOON + run_id, "due_at": NOON * 1000,
            "attempt": 1, "fence": 1, "inputs_text": target.inputs_text,
        }  # fmt: skip
        return Attempt(run_id=run_id, target=target, **known | given)

    def expected_start(self, attempt):
        """Return the start that a target sees of an attempt."""
        seen = {"key": attempt.key, "attempt": attempt.attempt, "run_at": attempt.run_at}
        return Start(**{name: value for name, value in seen.items() if self.promises(name)})

    async def __aenter__(self):
        await self.open()
        return self

    async def __aexit__(self, *_):
        self.release()
        for launcher in self._made:
            await launcher.close()
        await self.close()


def key_of(run_id):
    """Return the key of the attempts with this run id."""
    return run_key(f"contract/{run_id}", NOON + run_id)


async def end(*tasks):
    """End launches, whatever their outcome."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


async def until_working(bench, count, *tasks):
    """Wait until as many targets run; a launch that ended early fails the test."""

    def holds():
        for task in tasks:
            assert not task.done(), task
        return bench.working() == count

    await until(holds, longest=bench.patience)


def working_pids(folder):
    """Return how many processes run that have left a file `works.PID` in a folder."""
    return sum(is_running(int(each.suffix[1:])) for each in folder.glob("works.*"))


def is_running(pid):
    """Return whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False

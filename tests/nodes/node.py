"""A node that fails on purpose: `python -m tests.nodes.node URL FOLDER GRIEF`.

It is ready when FOLDER/ready exists, and begins when FOLDER/go exists. Where it fails, it writes
FOLDER/grief with the time, and fails in the way that GRIEF names.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path

from onbeat import Onbeat
from onbeat.engine.attempts import RunningAttempts
from onbeat.stores.postgres.store import PostgresStore

HOUR = 3600 * 10**9
real_time_ns = time.time_ns


def come_to_grief(folder, number):
    """Write the time to a file, and be killed or stopped."""
    (folder / "grief").write_text(str(real_time_ns() // 1_000_000))
    os.kill(os.getpid(), number)


def in_the_middle_of_a_batch(folder, number):
    plan_due = PostgresStore.plan_due

    async def wrapped(self, plan, **given):
        def grieve(*about):
            come_to_grief(folder, number)
            return plan(*about)

        return await plan_due(self, grieve, **given)

    PostgresStore.plan_due = wrapped


def before_the_launch(folder, number):
    launch = RunningAttempts.launch

    def wrapped(self, announced, sent):
        if announced and not (folder / "grief").exists():
            come_to_grief(folder, number)
        return launch(self, announced, sent)

    RunningAttempts.launch = wrapped


GRIEFS = {
    "none": lambda folder: None,
    "killed in a batch": lambda folder: in_the_middle_of_a_batch(folder, signal.SIGKILL),
    "stopped in a batch": lambda folder: in_the_middle_of_a_batch(folder, signal.SIGSTOP),
    "stopped before the launch": lambda folder: before_the_launch(folder, signal.SIGSTOP),
    "an hour ahead": lambda folder: set_clock(HOUR),
    "an hour behind": lambda folder: set_clock(-HOUR),
}


def set_clock(ahead):
    time.time_ns = lambda: real_time_ns() + ahead
    time.time = lambda: (real_time_ns() + ahead) / 10**9


async def main(url, folder, grief):
    logging.basicConfig(level=logging.WARNING)
    GRIEFS[grief](folder)
    beat = Onbeat(url)
    stopped = beat.catch_signals()
    await beat.open()
    (folder / "ready").touch()
    while not (folder / "go").exists():  # noqa: ASYNC110 - it is a file
        await asyncio.sleep(0.005)
    await beat.begin()
    await beat.until(stopped)
    await beat.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))

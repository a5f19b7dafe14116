"""Lets several pytest processes share one run: each takes the next module that nobody has taken.

A process is started with `-p tests.sharing --taken FOLDER`, where the folder is the same for all of
them and empty at first. A module is taken as a whole, since its tests share what it has set up.
"""

from itertools import groupby
from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--taken", type=Path, required=True, help="where modules are taken")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Do as pytest does, with those tests only that this process takes."""
    if session.testsfailed:
        raise session.Interrupted("not everything can be collected")
    mine = taken(session.items, session.config.getoption("--taken"))
    item = next(mine, None)
    while item is not None:
        following = next(mine, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def taken(items, folder):
    """Yield the tests of one module after the other, unless another process was faster to take it."""
    for path, tests in groupby(items, key=lambda item: item.path):
        name = str(path.relative_to(items[0].config.rootpath)).replace("/", ".")
        try:
            (folder / name).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield from tests

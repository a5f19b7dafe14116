"""A watched file is applied once it has changed and is no longer being written."""

import asyncio
import os
from pathlib import Path

import pytest

from onbeat.sources.watch import WatchedFile, watch


class ScriptEnded(Exception):  # noqa: N818 - it is not an error
    """The script has no more steps."""


def play(watched, *steps, fails=0):
    """Do a step before each poll; return after which of them the file was applied."""
    applied, left = [], iter(enumerate(steps))
    n = -1

    async def pause():
        nonlocal n
        step = next(left, None)
        if step is None:
            raise ScriptEnded
        n = step[0]
        if step[1] is not None:
            step[1]()

    async def apply():
        applied.append(n)
        return len(applied) > fails

    with pytest.raises(ScriptEnded):
        asyncio.run(watch(watched, apply, pause=pause))
    return applied


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "onbeat.yaml"
    path.write_text("one")
    return path


def test_unchanged_file_is_not_applied(file):
    assert play(WatchedFile(file), None, None, None) == []


def test_changed_file_is_applied_once_when_writing_stops(file):
    def longer():
        file.write_text(f"{file.read_text()} more")

    assert play(WatchedFile(file), longer, longer, longer, None, None, None) == [3]


def test_file_replaced_with_same_time_and_size_is_applied(file):
    times = file.stat()

    def put():
        new = file.with_name("new")
        new.write_text("two")
        os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
        new.replace(file)

    assert play(WatchedFile(file), put, None, None) == [1]


def test_file_that_is_deleted_and_created_again_is_applied_each_time(file):
    steps = [file.unlink, None, None, lambda: file.write_text("again"), None, None]
    assert play(WatchedFile(file), *steps) == [1, 4]


def test_file_created_later_is_applied(tmp_path):
    file = tmp_path / "later.yaml"
    assert play(WatchedFile(file), None, lambda: file.write_text("now"), None, None) == [2]


def test_file_that_could_not_be_applied_is_retried(file):
    assert play(WatchedFile(file), lambda: file.write_text("two"), None, None, None, None, fails=2) == [1, 2, 3]  # fmt: skip


def test_invalid_file_name_counts_as_a_missing_file():
    assert play(WatchedFile(Path("a\0b")), None, None) == []

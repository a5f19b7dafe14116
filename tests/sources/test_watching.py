"""A file that is watched: it is taken up once it has changed and come to rest."""

import asyncio
import os
from pathlib import Path

import pytest

from onbeat.sources.watch import Watched, watch


class Over(Exception):  # noqa: N818 - it is none
    """The script has no more steps."""


def play(watched, *steps, fails=0):
    """Do a step before each look; return after which of them the file was taken up."""
    taken_up, left = [], iter(enumerate(steps))
    n = -1

    async def pause():
        nonlocal n
        step = next(left, None)
        if step is None:
            raise Over
        n = step[0]
        if step[1] is not None:
            step[1]()

    async def take_up():
        taken_up.append(n)
        return len(taken_up) > fails

    with pytest.raises(Over):
        asyncio.run(watch(watched, take_up, pause=pause))
    return taken_up


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "onbeat.yaml"
    path.write_text("one")
    return path


def test_a_file_that_stays_as_it_is_is_left_alone(file):
    assert play(Watched(file), None, None, None) == []


def test_a_file_that_changed_is_taken_up_once_it_has_come_to_rest(file):
    def longer():
        file.write_text(f"{file.read_text()} more")

    assert play(Watched(file), longer, longer, longer, None, None, None) == [3]


def test_a_file_that_is_put_in_place_of_another_is_seen_even_if_it_is_as_old_and_as_long(file):
    times = file.stat()

    def put():
        new = file.with_name("new")
        new.write_text("two")
        os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
        new.replace(file)

    assert play(Watched(file), put, None, None) == [1]


def test_a_file_that_goes_and_comes_back_is_taken_up_each_time(file):
    steps = [file.unlink, None, None, lambda: file.write_text("again"), None, None]
    assert play(Watched(file), *steps) == [1, 4]


def test_a_file_that_was_not_there_is_taken_up_when_it_is(tmp_path):
    file = tmp_path / "later.yaml"
    assert play(Watched(file), None, lambda: file.write_text("now"), None, None) == [2]


def test_what_could_not_be_taken_up_is_tried_again(file):
    assert play(Watched(file), lambda: file.write_text("two"), None, None, None, None, fails=2) == [1, 2, 3]  # fmt: skip


def test_a_name_that_cannot_be_one_is_no_file():
    assert play(Watched(Path("a\0b")), None, None) == []

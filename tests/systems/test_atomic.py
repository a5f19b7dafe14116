"""Atomic replacement of files: crashes, errors, links and modes."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from onbeat.host.atomic_files import replace_file

STEPS = [
    (tempfile, "mkstemp"), (os, "fchmod"), (os, "fsync"), (Path, "replace"), (os, "open"), (os, "close"),
]  # fmt: skip
OLD, NEW = b"old " * 50_000, b"new " * 60_000


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "state.json"
    path.write_bytes(OLD)
    return path


def gone_at(step, work):
    """Run something in a process that dies before a step; return whether it reached that."""
    child = os.fork()
    if child == 0:
        left = [step]

        def counted(real):
            def call(*given, **named):
                left[0] -= 1
                if left[0] == 0:
                    os._exit(7)
                return real(*given, **named)

            return call

        for module, name in STEPS:
            setattr(module, name, counted(getattr(module, name)))
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_crash_at_any_step_leaves_the_old_content_or_the_new(path):
    found = []
    for step in range(1, 20):
        path.write_bytes(OLD)
        is_gone = gone_at(step, lambda: replace_file(path, NEW))
        found.append("new" if path.read_bytes() == NEW else "old")
        assert path.read_bytes() in (OLD, NEW)
        if not is_gone:
            break
    assert found[:4] == ["old"] * 4, "nothing of it is seen before the rename"
    assert found[-1] == "new"
    assert len(found) > 6, "every step was one to be gone at"
    replace_file(path, NEW)
    assert path.read_bytes() == NEW


def test_new_file_is_synced_before_it_replaces_the_old_one(path, monkeypatch):
    done = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(number):
        is_folder = stat.S_ISDIR(os.fstat(number).st_mode)
        done.append("fsync of the folder" if is_folder else "fsync")
        real_fsync(number)

    def replace(new, other):
        done.append("rename")
        return real_replace(new, other)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    replace_file(path, NEW)
    assert done == ["fsync", "rename", "fsync of the folder"]
    assert names(path.parent) == ["state.json"]


@pytest.mark.parametrize(("module", "name"), [(os, "fchmod"), (os, "fsync"), (Path, "replace")])
@pytest.mark.parametrize("problem", [OSError(28, "No space left"), KeyboardInterrupt()], ids=repr)
def test_failed_replacement_leaves_the_old_file_and_no_other(
    path, monkeypatch, module, name, problem
):
    def fail(*given):
        raise problem

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(type(problem)):
        replace_file(path, NEW)
    assert (names(path.parent), path.read_bytes()) == (["state.json"], OLD)


def test_replaced_file_keeps_its_mode_and_a_new_one_is_for_its_owner(path):
    path.chmod(0o640)
    replace_file(path, NEW)
    replace_file(path, OLD, mode=0o604)
    assert mode_of(path) == 0o640
    for mode, found in ((None, 0o600), (0o644, 0o644)):
        other = path.with_name(f"other-{mode}")
        replace_file(other, NEW, mode=mode)
        assert mode_of(other) == found


@pytest.mark.parametrize("is_there", [True, False])
def test_link_stays_a_link_and_its_target_is_replaced(tmp_path, is_there):
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real.json", tmp_path / "state.json"
    if is_there:
        real.write_bytes(OLD)
    link.symlink_to("elsewhere/real.json")
    replace_file(link, NEW)
    assert link.is_symlink()
    assert real.read_bytes() == NEW
    assert names(tmp_path) == ["elsewhere", "state.json"]
    assert names(real.parent) == ["real.json"]


def test_concurrent_writers_do_not_conflict(path, monkeypatch):
    # The first is about to rename when another writes its complete file.
    real = Path.replace

    def replace(new, other):
        monkeypatch.setattr(Path, "replace", real)
        replace_file(path, b"another")
        assert path.read_bytes() == b"another"
        return real(new, other)

    monkeypatch.setattr(Path, "replace", replace)
    replace_file(path, NEW)
    assert path.read_bytes() == NEW
    assert names(path.parent) == ["state.json"]


def test_file_with_a_long_name_can_be_replaced(tmp_path):
    path = tmp_path / ("é" * 120)
    replace_file(path, NEW)
    assert path.read_bytes() == NEW

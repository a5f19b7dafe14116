"""Stores of DAGs: one contract for both, and failures of files."""

import asyncio
import os

import pytest

from onbeat import InvalidSchedule
from onbeat.systems.workflows import store as module
from onbeat.systems.workflows.store import DatabaseStore, DirectoryStore
from tests.systems.workflows.conftest import DAG, WorkflowsHarness


@pytest.fixture(params=["directory", "database"])
def kept(request, tmp_path):
    """A store of DAGs, and how to run a story with it."""

    def play(story):
        async def whole(its):
            folder = DirectoryStore(tmp_path / "workflows")
            return await story(
                folder if request.param == "directory" else DatabaseStore(its.beat.service)
            )

        return WorkflowsHarness().play(whole)

    return play


@pytest.mark.req("W11")
def test_saved_dag_is_loaded_by_its_id_and_version(kept):
    async def story(store):
        await store.save_dag("report", 1, DAG)
        await store.save_dag("report", 2, {"nodes": []})
        return [await store.load_dag("report", n) for n in (1, 2, 3)]

    assert kept(story) == [DAG, {"nodes": []}, None]


@pytest.mark.req("W11")
def test_saved_dag_replaces_its_predecessor(kept):
    async def story(store):
        await store.save_dag("report", 1, {"nodes": []})
        await store.save_dag("report", 1, DAG)
        return await store.load_dag("report", 1)

    assert kept(story) == DAG


@pytest.mark.parametrize(
    "workflow_id", ["../../etc/passwd", "a/b", "..", ".", "a%2Fb", "ümläut", "a b", "x_v1", "~"]
)
def test_every_id_has_a_separate_dag(kept, workflow_id):
    async def story(store):
        await store.save_dag("other", 1, {})
        await store.save_dag(workflow_id, 1, DAG)
        return await store.load_dag(workflow_id, 1), await store.load_dag("other", 1)

    assert kept(story) == (DAG, {})


@pytest.mark.parametrize(
    ("workflow_id", "version", "dag", "problem"),
    [
        ("", 1, {}, "workflow_id: '' is not a string"),
        ("a\0b", 1, {}, "workflow_id: 'a\\x00b' is too long or not printable"),
        ("a" * 201, 1, {}, "workflow_id: "),
        ("a", -1, {}, "version: -1 is not a whole number (0 or more)"),
        ("a", "1", {}, "version: '1' is not a whole number (a whole number is needed)"),
        ("a", True, {}, "version: True is not a whole number"),
        ("a", 1, [], "dag: [] is not a DAG"),
        ("a", 1, {"x": float("nan")}, "dag: it contains values that JSON cannot represent"),
    ],
)
def test_invalid_dag_is_refused_with_a_reason(kept, workflow_id, version, dag, problem):
    async def story(store):
        with pytest.raises(InvalidSchedule) as refused:
            await store.save_dag(workflow_id, version, dag)
        return str(refused.value)

    assert kept(story).startswith(problem)


class TestFiles:
    """DAGs as files, which other programs may write."""

    def load(self, folder, workflow_id="report", version=1):
        return asyncio.run(DirectoryStore(folder).load_dag(workflow_id, version))

    def save(self, folder, dag, workflow_id="report"):
        asyncio.run(DirectoryStore(folder).save_dag(workflow_id, 1, dag))

    @pytest.mark.req("W11")
    def test_file_added_by_another_program_is_a_dag(self, tmp_path):
        (tmp_path / "report_v1.json").write_text('{"nodes": [1]}')
        assert self.load(tmp_path) == {"nodes": [1]}

    @pytest.mark.parametrize("workflow_id", ["../up", "/etc/passwd", "..", "a/../../b", "\\x"])
    def test_nothing_is_written_outside_the_folder(self, tmp_path, workflow_id):
        folder = tmp_path / "deep" / "workflows"
        self.save(folder, DAG, workflow_id)
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path.parent for path in written] == [folder]

    @pytest.mark.parametrize("name", ["daily report", "täglich", "日報", "a:b", "50%25"])
    def test_file_is_found_by_its_plain_name(self, tmp_path, name):
        (tmp_path / f"{name}_v1.json").write_text('{"nodes": [1]}')
        assert self.load(tmp_path, name.replace("%25", "%")) == {"nodes": [1]}

    @pytest.mark.parametrize("mode", [None, 0o640, 0o600])
    def test_a_file_keeps_its_mode_and_a_new_one_can_be_read_by_others(self, tmp_path, mode):
        path = tmp_path / "report_v1.json"
        if mode is not None:
            path.write_text("{}")
            path.chmod(mode)
        self.save(tmp_path, DAG)
        assert path.stat().st_mode & 0o777 == (mode or 0o644)

    def test_special_file_is_refused_without_waiting(self, tmp_path):
        os.mkfifo(tmp_path / "report_v1.json")
        with pytest.raises(InvalidSchedule, match=r"dag: report_v1.json is not a regular file"):
            self.load(tmp_path)

    def test_file_and_dag_have_a_size_limit(self, tmp_path):
        (tmp_path / "report_v1.json").write_text('{"a": "%s"}' % ("x" * 1024 * 1024))
        with pytest.raises(InvalidSchedule, match=r"dag: report_v1.json is too long"):
            self.load(tmp_path)
        with pytest.raises(InvalidSchedule, match="dag: the DAG is too long"):
            self.save(tmp_path, {"a": "x" * 1024 * 1024})

    @pytest.mark.parametrize("text", ["", "{", "[1]", "\xff", '"text"'])
    def test_file_that_is_not_a_dag_is_refused_by_its_name(self, tmp_path, text):
        (tmp_path / "report_v1.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(InvalidSchedule, match="dag: "):
            self.load(tmp_path)

    def test_interrupted_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        self.save(tmp_path, DAG)

        def broken(_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(InvalidSchedule, match="No space left"):
            self.save(tmp_path, {"nodes": []})
        monkeypatch.undo()
        assert self.load(tmp_path) == DAG
        assert [path.name for path in tmp_path.iterdir()] == ["report_v1.json"]

    def test_file_and_then_its_name_are_synced_to_disk(self, tmp_path, monkeypatch):
        steps, fsync, replace = [], os.fsync, module.Path.replace

        def seen(handle):
            is_folder = module.Path(f"/proc/self/fd/{handle}").is_dir()
            steps.append("fsync of the folder" if is_folder else "fsync of the file")
            fsync(handle)

        def renamed(path, target):
            steps.append("rename")
            return replace(path, target)

        monkeypatch.setattr(os, "fsync", seen)
        monkeypatch.setattr(module.Path, "replace", renamed)
        self.save(tmp_path, DAG)
        assert steps == ["fsync of the file", "rename", "fsync of the folder"]


def test_each_owner_has_a_separate_dag_or_else_the_shared_one():
    async def story(its):
        of = {
            who: its.workflows.of(its.beat.service.of(a_caller(who))).store
            for who in ("ann", "bob")
        }
        everybody = its.workflows.store
        await of["ann"].save_dag("report", 1, DAG)
        found = [await store.load_dag("report", 1) for store in (*of.values(), everybody)]
        await everybody.save_dag("report", 1, {})
        await of["bob"].save_dag("report", 1, {"of": "bob"})
        found += [await everybody.load_dag("report", 1)]
        return found + [
            await everybody.load_dag("report", 1, users=[who]) for who in ("ann", "bob", "eve")
        ]

    assert WorkflowsHarness().play(story) == [DAG, None, DAG, {}, DAG, {"of": "bob"}, {}]


def test_dag_of_several_users_is_ambiguous_without_a_user(monkeypatch):
    monkeypatch.setattr(module, "PAGE", 1)

    async def story(its):
        store = its.workflows.store
        for who in ("ann", "bob"):
            await store.save_dag("report", 1, DAG, user_id=who)
        await store.save_dag("other", 1, DAG, user_id="ann")
        with pytest.raises(InvalidSchedule, match="users: several users have a workflow 'report'"):
            await store.load_dag("report", 1)
        return await store.load_dag("other", 1)

    assert WorkflowsHarness().play(story) == DAG


def test_no_id_gives_access_to_the_dag_of_another_owner(kept):
    async def story(store):
        await store.save_dag("report_v1:ann", 1, {"of": "nobody"})
        await store.save_dag("report", 1, {}, user_id="ann_v1")
        return await store.load_dag("report_v1:ann", 1, users=[])

    assert kept(story) == {"of": "nobody"}


def test_owned_dag_with_the_shared_name_stays_private():
    async def story(its):
        await DatabaseStore(its.beat.service.of(a_caller("ann"))).save_dag("report", 1, DAG)
        store = its.workflows.store
        return [await store.load_dag("report", 1, users=[who]) for who in ("ann", "bob")]

    assert WorkflowsHarness().play(story) == [DAG, None]


def a_caller(owner):
    from onbeat.service.access import Caller  # noqa: PLC0415 - it is all that is needed of it

    return Caller(f"token:{owner}", "define", owner)

"""Where the DAGs of workflows are: one contract for both places, and what only files can suffer."""

import asyncio
import os

import pytest

from onbeat import InvalidSchedule
from onbeat.errors import NotAllowed
from onbeat.systems.workflows import DatabaseStore, DirectoryStore
from onbeat.systems.workflows import store as module
from tests.systems.workflows.conftest import DAG, World


@pytest.fixture(params=["directory", "database"])
def kept(request, tmp_path):
    """Where DAGs are kept, and how to tell a story of it."""

    def play(story):
        async def whole(its):
            folder = DirectoryStore(tmp_path / "workflows")
            return await story(
                folder if request.param == "directory" else DatabaseStore(its.beat.service)
            )

        return World().play(whole)

    return play


@pytest.mark.req("W11")
def test_what_was_saved_is_loaded_by_its_id_and_version(kept):
    async def story(store):
        await store.save_dag("report", 1, DAG)
        await store.save_dag("report", 2, {"nodes": []})
        return [await store.load_dag("report", n) for n in (1, 2, 3)]

    assert kept(story) == [DAG, {"nodes": []}, None]


@pytest.mark.req("W11")
def test_what_is_saved_again_takes_the_place_of_what_was_there(kept):
    async def story(store):
        await store.save_dag("report", 1, {"nodes": []})
        await store.save_dag("report", 1, DAG)
        return await store.load_dag("report", 1)

    assert kept(story) == DAG


@pytest.mark.parametrize(
    "workflow_id", ["../../etc/passwd", "a/b", "..", ".", "a%2Fb", "ümläut", "a b", "x_v1", "~"]
)
def test_any_id_is_one_of_its_own(kept, workflow_id):
    async def story(store):
        await store.save_dag("other", 1, {})
        await store.save_dag(workflow_id, 1, DAG)
        return await store.load_dag(workflow_id, 1), await store.load_dag("other", 1)

    assert kept(story) == (DAG, {})


@pytest.mark.parametrize(
    ("workflow_id", "version", "dag", "problem"),
    [
        ("", 1, {}, "workflow_id: '' is not a text"),
        ("a\0b", 1, {}, "workflow_id: 'a\\x00b' is no such text"),
        ("a" * 201, 1, {}, "workflow_id: "),
        ("a", -1, {}, "version: -1 is not a whole number (0 or more)"),
        ("a", "1", {}, "version: '1' is not a whole number (a whole number is needed)"),
        ("a", True, {}, "version: True is not a whole number"),
        ("a", 1, [], "dag: [] is no DAG"),
        ("a", 1, {"x": float("nan")}, "dag: it holds more than JSON can say"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_a_reason(kept, workflow_id, version, dag, problem):
    async def story(store):
        with pytest.raises(InvalidSchedule) as refused:
            await store.save_dag(workflow_id, version, dag)
        return str(refused.value)

    assert kept(story).startswith(problem)


class TestFiles:
    """DAGs as files, which others may write as well."""

    def load(self, folder, workflow_id="report", version=1):
        return asyncio.run(DirectoryStore(folder).load_dag(workflow_id, version))

    def save(self, folder, dag, workflow_id="report"):
        asyncio.run(DirectoryStore(folder).save_dag(workflow_id, 1, dag))

    @pytest.mark.req("W11")
    def test_a_file_that_somebody_put_there_is_a_dag(self, tmp_path):
        (tmp_path / "report_v1.json").write_text('{"nodes": [1]}')
        assert self.load(tmp_path) == {"nodes": [1]}

    @pytest.mark.parametrize("workflow_id", ["../up", "/etc/passwd", "..", "a/../../b", "\\x"])
    def test_nothing_is_written_outside_the_folder(self, tmp_path, workflow_id):
        folder = tmp_path / "deep" / "workflows"
        self.save(folder, DAG, workflow_id)
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path.parent for path in written] == [folder]

    @pytest.mark.parametrize("text", ["", "{", "[1]", "\xff", '"text"'])
    def test_a_file_that_is_no_dag_is_refused_by_its_name(self, tmp_path, text):
        (tmp_path / "report_v1.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(InvalidSchedule, match="dag: "):
            self.load(tmp_path)

    def test_a_write_that_is_broken_off_leaves_what_was_there(self, tmp_path, monkeypatch):
        self.save(tmp_path, DAG)

        def broken(_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(InvalidSchedule, match="No space left"):
            self.save(tmp_path, {"nodes": []})
        monkeypatch.undo()
        assert self.load(tmp_path) == DAG
        assert [path.name for path in tmp_path.iterdir()] == ["report_v1.json"]

    def test_a_file_is_on_the_disk_before_it_has_its_name_and_then_the_name_is(
        self, tmp_path, monkeypatch
    ):
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


def test_a_dag_in_the_database_is_its_first_owner_s():
    async def story(its):
        of = {who: its.beat.service.of(a_caller(who)) for who in ("ann", "bob")}
        await DatabaseStore(of["ann"]).save_dag("report", 1, DAG)
        with pytest.raises(NotAllowed):
            await DatabaseStore(of["bob"]).save_dag("report", 1, {})
        loaded = [await DatabaseStore(of[who]).load_dag("report", 1) for who in ("ann", "bob")]
        return [*loaded, await its.workflows.store.load_dag("report", 1)]

    assert World().play(story) == [DAG, None, DAG]


def a_caller(owner):
    from onbeat.access import Caller  # noqa: PLC0415 - it is all that is needed of it

    return Caller(f"token:{owner}", "define", owner)

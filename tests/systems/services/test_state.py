"""The state file: its content, when it is written, and its safety in crashes."""

import asyncio
import json
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat import Onbeat
from onbeat.core.runs.run import Failed
from onbeat.systems.services.state import StateFile, TimerHistory, read_state, write_state
from onbeat.systems.services.timer_list import _history
from tests.given_settings import given_settings
from tests.systems.services.conftest import HOURLY

NOON = 1_767_268_800_000
INSTANTS = st.none() | st.integers(0, 4_000_000_000_000)
KEPT = st.builds(
    TimerHistory, INSTANTS, INSTANTS, INSTANTS, st.none() | st.integers(-64, 255), INSTANTS,
    st.none() | st.sampled_from(["overlap", "disabled", "missed"]),
)  # fmt: skip
A_STATE = {"hourly": TimerHistory(last_run_at=NOON, last_success_at=NOON + 5, last_exit=0)}


class Crash(BaseException):
    """The process dies immediately: no code runs after it."""


class TestContent:
    @given(st.dictionaries(st.text("abcdef-./", min_size=1), KEPT))
    @pytest.mark.req("S90")
    def test_written_state_is_read_back(self, timers):
        assert read_state(write_state(timers)) == timers

    @pytest.mark.req("S80", "S65", "S66", "S68")
    def test_state_file_has_the_lasting_fields_only(self):
        everything = TimerHistory(NOON, NOON + 1, NOON + 2, 3, NOON + 4, "overlap")
        assert json.loads(write_state({"b": everything, "a": TimerHistory()})) == {
            "version": 1,
            "timers": {
                "a": {},
                "b": {
                    "last_run_at": "2026-01-01T12:00:00.000Z",
                    "last_success_at": "2026-01-01T12:00:00.001Z",
                    "last_failure_at": "2026-01-01T12:00:00.002Z",
                    "last_exit": 3,
                    "last_missed_at": "2026-01-01T12:00:00.004Z",
                    "last_miss_reason": "overlap",
                },
            },
        }

    def test_equal_histories_give_equal_files(self):
        one, other = TimerHistory(NOON), TimerHistory(NOON + 1)
        assert write_state({"a": one, "b": other}) == write_state({"b": other, "a": one})
        assert list(json.loads(write_state({"b": one, "a": other}))["timers"]) == ["a", "b"]

    def test_unknown_and_invalid_fields_of_a_timer_are_ignored(self):
        odd = {"last_run_at": "soon", "last_exit": "x", "last_miss_reason": 5, "retry_attempt": 3,
               "last_success_at": "2026-01-01T12:00:00Z"}  # fmt: skip
        content = json.dumps({"version": 1, "timers": {"a": odd}}).encode()
        assert read_state(content) == {"a": TimerHistory(last_success_at=NOON)}


class TestWriting:
    @pytest.mark.req("S79", "S90")
    def test_crash_during_a_write_leaves_the_old_content(self, tmp_path, monkeypatch):
        file = StateFile(tmp_path / "state.json")
        file.save(A_STATE)

        def crash(path, other):
            raise Crash

        monkeypatch.setattr(Path, "replace", crash)
        with pytest.raises(Crash):
            file.save({"hourly": TimerHistory(last_run_at=NOON + 3_600_000, last_exit=1)})
        assert StateFile(file.path).load() == A_STATE

    def test_unchanged_state_is_not_written_again(self, tmp_path):
        file = StateFile(tmp_path / "state.json")
        file.save(A_STATE)
        before = file.path.stat().st_ino, file.path.stat().st_mtime_ns
        file.save(dict(A_STATE))
        another = StateFile(file.path)
        another.save(another.load())
        assert (file.path.stat().st_ino, file.path.stat().st_mtime_ns) == before

    def test_folder_of_the_state_file_is_created(self, tmp_path):
        file = StateFile(tmp_path / "not" / "there" / "state.json")
        file.save(A_STATE)
        assert file.load() == A_STATE

    def test_unwritable_state_file_is_logged_once(self, tmp_path, caplog):
        (tmp_path / "file").write_text("")
        file = StateFile(tmp_path / "file" / "state.json")
        with caplog.at_level(logging.ERROR, "onbeat.systems"):
            file.save(A_STATE)
            file.save(A_STATE)
        (told,) = caplog.records
        assert "cannot be written" in told.getMessage()


class TestReading:
    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"[]", b"{}", b'"text"', b"\xff\xfe", b'{"version": 1}', b'{"version": 0, "timers": {}}',
         b'{"version": 1, "timers": []}', b'{"version": 1, "timers": {"hourly": 5}}', b"[" * 100_000],
        ids=lambda content: content[:24],
    )  # fmt: skip
    @pytest.mark.req("S90")
    def test_broken_state_file_is_logged_and_keeps_no_timer_from_running(
        self, world, content, caplog
    ):
        world.write()
        world.state_path.write_bytes(content)
        with caplog.at_level(logging.ERROR, "onbeat.systems"):
            world.play(lambda world: world.let_pass("1h"))
        assert world.started == ["hourly"]
        assert world.state["timers"]["hourly"]["last_exit"] == 0
        assert "timer-state.json" in caplog.records[0].getMessage()

    @pytest.mark.req("S90")
    def test_state_file_of_a_newer_version_is_logged_and_never_written(self, world, caplog):
        world.write()
        newer = '{"version": 2, "timers": {"hourly": {"last_result": "x"}}}'
        world.state_path.write_text(newer)
        with caplog.at_level(logging.ERROR, "onbeat.systems"):
            world.play(lambda world: world.let_pass("1h"))
        assert world.started == ["hourly"]
        assert world.state_path.read_text() == newer
        assert "2 is newer than this program" in caplog.records[0].getMessage()

    @pytest.mark.req("S90")
    def test_state_file_replaced_by_a_newer_version_is_not_written_until_it_is_gone(
        self, world, caplog
    ):
        newer = '{"version": 2, "timers": {"hourly": {"last_result": "x"}}}'

        async def story(world):
            await world.let_pass("1h")
            world.state_path.write_text(newer)
            await world.let_pass("1h", "1h")
            assert world.state_path.read_text() == newer
            world.state_path.unlink()
            await world.let_pass("1h")

        world.write()
        with caplog.at_level(logging.ERROR, "onbeat.systems"):
            world.play(story)
        assert world.state["timers"]["hourly"]["last_run_at"] == "2026-01-01T16:00:00.000Z"
        (told,) = [record.getMessage() for record in caplog.records]
        assert "2 is newer than this program" in told

    @pytest.mark.req("S90")
    def test_invalid_entry_affects_no_other(self, world, caplog):
        kept = {"hourly": {"last_run_at": "2026-01-01T09:00:00Z"}, "zzz": 5}
        world.write()
        world.state_path.write_text(json.dumps({"version": 1, "timers": kept}))
        with caplog.at_level(logging.ERROR, "onbeat.systems"):
            world.play(lambda world: world.let_pass("1s"))
        assert world.started == ["hourly"], "what was missed since nine is caught up"
        assert "timers.zzz: 5 is not a mapping" in caplog.records[0].getMessage()

    @pytest.mark.req("S77", "S90")
    def test_temporarily_unreadable_state_file_is_not_lost(self, world, monkeypatch, caplog):
        kept = {
            "hourly": {"last_run_at": "2026-01-01T09:00:00Z", "last_exit": 4,
                       "last_failure_at": "2026-01-01T09:00:01Z"},
            "wrong": {"last_run_at": "2026-01-01T08:00:00Z"},
        }  # fmt: skip
        old = json.dumps({"version": 1, "timers": kept})
        real = os.open

        def fail(path, *given, **named):
            if path == world.state_path:
                raise OSError(24, "Too many open files")
            return real(path, *given, **named)

        async def story(world):
            await world.look()
            assert world.state_path.read_text() == old
            monkeypatch.setattr(os, "open", real)
            await world.let_pass("1h")

        world.write(HOURLY, HOURLY | {"id": "wrong", "target": "nope"})
        world.state_path.write_text(old)
        monkeypatch.setattr(os, "open", fail)
        with caplog.at_level(logging.ERROR, "onbeat.systems"):
            world.play(story)
        assert world.state["timers"]["wrong"] == {"last_run_at": "2026-01-01T08:00:00.000Z"}
        assert world.state["timers"]["hourly"] == {
            "last_run_at": "2026-01-01T13:00:00.000Z",
            "last_success_at": "2026-01-01T13:00:00.000Z",
            "last_failure_at": "2026-01-01T09:00:01.000Z",
            "last_exit": 0,
        }
        (told,) = [record.getMessage() for record in caplog.records]
        assert "cannot be read, so it is not written: Too many open files" in told

    def test_symbolic_link_stays_a_link(self, world):
        (world.folder / "elsewhere").mkdir()
        real = world.folder / "elsewhere" / "real.json"
        real.write_text('{"version": 1, "timers": {}}')
        world.state_path.symlink_to(real)
        world.write()
        world.play(lambda world: world.let_pass("1h"))
        assert world.state_path.is_symlink()
        assert "hourly" in json.loads(real.read_text())["timers"]


class TestMergedHistories:
    """A known history is not lost if the store has less later."""

    def test_since_keeps_the_later_instants_and_the_exit_code_of_the_later_end(self):
        known = TimerHistory(NOON, NOON - 9, NOON + 1, 3, NOON - 5, "overlap")
        told = TimerHistory(NOON + 30, NOON - 9, None, 0)
        assert told.since(known, now=NOON + 60) == TimerHistory(
            NOON + 30, NOON - 9, NOON + 1, 3, NOON - 5, "overlap"
        )
        ended = TimerHistory(NOON + 30, NOON + 40, None, 0, NOON + 2, "missed")
        assert ended.since(known, now=NOON + 60) == TimerHistory(
            NOON + 30, NOON + 40, NOON + 1, 0, NOON + 2, "missed"
        )

    @given(KEPT, INSTANTS.filter(lambda at: at is not None))
    def test_since_ignores_instants_in_the_future(self, known, now):
        told = TimerHistory().since(known, now=now)
        for each in ("last_run_at", "last_success_at", "last_failure_at", "last_missed_at"):
            at = getattr(known, each)
            assert getattr(told, each) == (at if at is not None and at <= now else None)

    @given(KEPT, KEPT)
    def test_since_is_idempotent(self, one, other):
        once = one.since(other, now=NOON)
        assert once.since(other, now=NOON) == once
        assert one.since(one, now=NOON) == one


def test_claimed_retry_does_not_move_the_last_failure(world):
    async def story(world):
        world.commands.exit_code = 7
        await world.let_pass("1h")
        ((row,), (run,)) = (await world.rows()).values(), await world.beat.runs()
        return row, run

    world.write()
    row, run = world.play(story)
    known = TimerHistory(last_run_at=run.started_at, last_failure_at=run.updated_at, last_exit=7)
    taken = replace(run, updated_at=run.updated_at + 30_000)
    for each in (run, taken):
        assert _history(row, each, None, known)[0].last_failure_at == run.updated_at


class TestWritesOfTheNode:
    @pytest.mark.req("S65", "S66", "S78")
    def test_state_file_is_written_when_a_run_starts_and_ends(self, world):
        async def story(world):
            world.commands.exit_code = None
            await world.let_pass("1h")
            started = world.state["timers"]["hourly"]
            (run,) = await world.beat.runs()
            world.clock.advance("5m")
            await world.beat.service.report(run.run_id, Failed("it failed", "exit", False, 4))
            await world.look()
            return started, world.state["timers"]["hourly"]

        world.write(backup={"timeout": "1h"})
        started, ended = world.play(story)
        assert started == {"last_run_at": "2026-01-01T13:00:00.000Z"}
        assert ended == {
            "last_run_at": "2026-01-01T13:00:00.000Z",
            "last_failure_at": "2026-01-01T13:05:00.000Z",
            "last_exit": 4,
        }

    @pytest.mark.req("S65", "S78")
    def test_state_file_is_written_when_a_retry_starts(self, world):
        async def story(world):
            world.commands.exit_code = 1
            await world.let_pass("1h")
            world.commands.exit_code = None
            await world.let_pass("30s")
            return world.state["timers"]["hourly"]["last_run_at"]

        world.write(backup={"timeout": "1h"})
        assert world.play(story) == "2026-01-01T13:00:30.000Z"

    @pytest.mark.req("S68", "S78")
    def test_state_file_is_written_when_a_tick_was_missed_with_the_reason(self, world):
        world.write(HOURLY | {"enabled": False})
        world.play(lambda world: world.let_pass("1h"))
        assert world.state["timers"]["hourly"] == {
            "last_missed_at": "2026-01-01T13:00:00.000Z", "last_miss_reason": "disabled",
        }  # fmt: skip

    @pytest.mark.req("S80", "S81")
    def test_state_file_has_neither_waiting_retries_nor_next_runs(self, world):
        async def story(world):
            world.commands.exit_code = 1
            await world.let_pass("1h")
            return (await world.standing())["retry_at"], world.state["timers"]["hourly"]

        world.write()
        retry_at, kept = world.play(story)
        assert retry_at is not None
        assert kept.keys() == {"last_run_at", "last_failure_at", "last_exit"}

    @pytest.mark.req("S69", "S78")
    def test_state_file_has_the_last_success_and_the_last_failure(self, world):
        async def story(world):
            await world.let_pass("1h")
            world.commands.exit_code = -15
            await world.let_pass("1h")
            failed = world.state["timers"]["hourly"]
            world.commands.exit_code = 0
            await world.let_pass("1h")
            return failed, world.state["timers"]["hourly"]

        world.write()
        failed, over = world.play(story)
        assert failed == {
            "last_run_at": "2026-01-01T14:00:00.000Z",
            "last_success_at": "2026-01-01T13:00:00.000Z",
            "last_failure_at": "2026-01-01T14:00:00.000Z",
            "last_exit": -15,
        }
        assert over == {
            "last_run_at": "2026-01-01T15:00:00.000Z",
            "last_success_at": "2026-01-01T15:00:00.000Z",
            "last_failure_at": "2026-01-01T14:00:00.000Z",
            "last_exit": 0,
        }

    @pytest.mark.req("S78")
    def test_state_file_has_an_outcome_during_shutdown(self, tmp_path):
        path = tmp_path / "services.json"
        services = {"slow": {"argv": ["sh", "-c", "sleep 0.5"]}}
        timers = [{"id": "slow", "target": "slow", "on_startup_sec": 3600}]
        path.write_text(
            json.dumps({"timers_enabled": True, "services": services, "timers": timers})
        )
        settings = given_settings(
            database=f"sqlite:///{tmp_path}/onbeat.db", services_file=str(path)
        )

        async def story():
            async with Onbeat(settings=settings) as beat:
                run = await beat.start("slow")
                until = time.monotonic() + 10
                while (await beat.service.run(run.run_id)).status != "STARTED":
                    assert time.monotonic() < until
                    await asyncio.sleep(0.01)

        asyncio.run(story())
        kept = json.loads((tmp_path / "timer-state.json").read_text())["timers"]["slow"]
        assert kept["last_exit"] == 0
        assert kept["last_run_at"] < kept["last_success_at"]

    @pytest.mark.req("S78")
    def test_node_writes_the_state_file_by_itself(self, world):
        async def story(world):
            world.clock.advance("1h")
            await world.beat.settle()
            await world.system._reconciling.stop()  # after the step that is running

        world.write()
        world.play(story)
        assert world.state["timers"]["hourly"]["last_exit"] == 0

    def test_state_file_drops_removed_timers_and_keeps_invalid_ones(self, world):
        async def story(world):
            await world.let_pass("1h")
            await world.edit(HOURLY | {"target": "nope"}, {**HOURLY, "id": "third"})
            return world.state["timers"].keys()

        world.write(HOURLY, {**HOURLY, "id": "second"})
        assert world.play(story) == {"hourly", "third"}

    def test_state_file_may_be_disabled(self, world):
        world.write(state_file=None)
        world.play(lambda world: world.let_pass("1h"))
        assert world.started == ["hourly"]
        assert not world.state_path.exists()

    def test_state_file_is_beside_the_services_file_by_default(self, world):
        world.write(state_file="kept/state.json")
        world.play(lambda world: world.let_pass("1h"))
        assert "hourly" in json.loads((world.folder / "kept" / "state.json").read_text())["timers"]


class TestContinuingFromTheStateFile:
    """The database was lost or is new."""

    def lost(self, world, *timers, away="3h30m", **around):
        world.write(*timers, **around)
        world.play(lambda world: world.let_pass("1h"))
        world.lose_database()
        world.commands.attempts.clear()
        world.clock.advance(away)

        async def story(world):
            await world.let_pass("1s")
            return await world.beat.runs(), await world.standing()

        return world.play(story)

    @pytest.mark.req("S41", "S77", "S82")
    def test_persistent_timer_catches_up_since_the_state_file(self, world):
        (run,), standing = self.lost(world)
        assert (run.triggered_by, run.tick_count, run.status) == ("catchup", 3, "SUCCESS")
        assert standing["last_run_at"].startswith("2026-01-01T16:30:0")

    @pytest.mark.req("S47", "S77")
    def test_non_persistent_timer_does_not_catch_up_but_shows_its_last_run(self, world):
        runs, standing = self.lost(world, HOURLY | {"persistent": False})
        assert runs == []
        assert standing["last_run_at"] == standing["last_success_at"] == "2026-01-01T13:00:00.000Z"
        assert standing["last_exit"] == 0

    @pytest.mark.req("S42", "S82")
    def test_catch_up_from_the_state_file_respects_the_window(self, world):
        nightly = HOURLY | {"on_calendar": {"hour": 13, "minute": 0}}
        runs, _ = self.lost(world, nightly, away="30h", catchup_window="2h")
        assert [(run.status, run.reason) for run in runs] == [("SKIPPED", "missed")]

    @pytest.mark.req("S31", "S77")
    def test_timer_after_a_success_follows_the_last_success_of_the_state_file(self, world):
        follows = HOURLY | {
            "on_unit_active_sec": 4 * 3600,
            "on_calendar": {"hour": 13, "minute": 0},
        }
        _, standing = self.lost(world, follows, away="1h")
        assert standing["next_run_at"] == "2026-01-01T17:00:00.000Z"

    @pytest.mark.req("S77", "S90")
    def test_newer_history_of_the_store_is_not_undone_by_the_file(self, world):
        world.write()
        world.play(lambda world: world.let_pass("1h"))
        old = {
            "version": 1,
            "timers": {"hourly": {"last_run_at": "2025-12-31T12:00:00Z", "last_exit": 9}},
        }
        world.state_path.write_text(json.dumps(old))
        world.play(lambda world: world.let_pass("1s"))
        assert world.started == ["hourly"]
        assert world.state["timers"]["hourly"]["last_exit"] == 0

    @pytest.mark.req("S90")
    def test_histories_of_file_and_store_are_merged(self, world):
        world.write()
        kept = {"last_exit": 5, "last_run_at": "2026-01-01T11:59:00Z"}
        state = {"version": 1, "timers": {"new": kept, "gone": kept}}
        world.play(lambda world: world.let_pass("1h"))
        world.state_path.write_text(json.dumps(state))
        world.write(HOURLY, HOURLY | {"id": "new", "persistent": False})
        world.play(lambda world: world.let_pass("1s"))
        assert {name: each["last_exit"] for name, each in world.state["timers"].items()} == {
            "hourly": 0, "new": 5,
        }  # fmt: skip

    @pytest.mark.req("S81")
    def test_retries_and_next_runs_are_not_read_from_the_file(self, world):
        world.commands.exit_code = 1
        world.write()
        world.play(lambda world: world.let_pass("1h"))
        world.lose_database()
        standing = world.play(lambda world: world.standing())
        assert (standing["last_exit"], standing["retry_at"]) == (1, None)
        assert standing["next_run_at"] == "2026-01-01T14:00:00.000Z"

    def test_tick_that_ran_does_not_run_again(self, world):
        async def story(world):
            await world.let_pass("1h")
            await world.edit(timers_enabled=False)
            await world.edit()
            await world.let_pass("1s")

        world.write()
        world.play(story)
        assert world.started == ["hourly"]

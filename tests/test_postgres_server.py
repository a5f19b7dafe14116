"""The PostgreSQL server of the tests: it starts, stops, crashes and restarts on request."""

import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests import postgres
from tests.postgres import Server, find_binaries, new_folder, shared_server
from tests.waiting import await_condition

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(find_binaries() is None, reason="there is no PostgreSQL here")
only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to nobody")

STARTS_AND_WAITS = """
import sys
from pathlib import Path
from tests.postgres import Server
server = Server(Path(sys.argv[1]))
server.start()
print(server.postmaster_pid, flush=True)
input()
"""


@pytest.fixture(scope="module")
def own_server():
    with Server(new_folder()) as server:
        yield server


@pytest.fixture
def server(own_server):
    """The server of this file, which others do not mind being stopped; up when a test begins."""
    if own_server._postmaster is None:
        own_server.start()
    return own_server


def ask(url, question="SELECT 1"):
    with psycopg.connect(url) as connection:
        return connection.execute(question).fetchone()[0]


def tables(url):
    return ask(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")


def write(url):
    """Commit another note; return how many there are."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (note text)")
        connection.execute("INSERT INTO notes VALUES ('keep me')")
    return read(url)


def read(url):
    return ask(url, "SELECT count(*) FROM notes")


def gone(pid):
    return not any(each.state != "Z" for each in postgres._look(pid))


def test_server_answers_on_loopback(server):
    assert ask(server.url()) == 1
    assert ask(server.url(), "SHOW server_version").startswith(str(server.version))
    assert ask(server.url(), "SHOW listen_addresses") == "127.0.0.1"


def test_only_a_durable_server_uses_fsync(server, monkeypatch):
    assert ask(server.url(), "SHOW fsync") == "off"
    assert ask(server.url(), "SHOW synchronous_commit") == "on"
    monkeypatch.setattr(server, "durable", True)
    server.restart()
    assert ask(server.new_database(), "SHOW fsync") == "on"
    server.stop()


def test_new_databases_are_empty_and_separate(server):
    one, other = server.new_database(), server.new_database()
    with psycopg.connect(one) as connection:
        connection.execute("CREATE TABLE mine ()")
    assert (tables(one), tables(other), tables(server.new_database())) == (1, 0, 0)


def test_database_is_dropped_despite_open_connections(server):
    url = server.new_database()
    with closing(psycopg.connect(url)) as connection:
        server.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        ask(url)


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_server_restarts_on_the_same_port_after_a_stop(server, mode, paused):
    url, before = server.url(), write(server.url())
    if paused:
        server.pause()
    server.stop(mode)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        ask(url)
    server.start()
    assert read(url) == before


@pytest.mark.parametrize("paused", [False, True])
def test_server_restarts_on_the_same_port_after_a_kill(server, paused):
    url, before = server.url(), write(server.url())
    with closing(psycopg.connect(url)) as connection:
        if paused:
            server.pause()
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        ask(url)
    server.start()
    assert read(url) == before


def test_killing_the_server_kills_busy_backends(server, monkeypatch):
    monkeypatch.setattr(postgres, "NOTICE_LIMIT", 0.3)
    busy = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b"
    with ThreadPoolExecutor() as pool, closing(psycopg.connect(server.url())) as connection:
        asked = pool.submit(connection.execute, busy)
        running = (
            f"SELECT count(*) FROM pg_stat_activity WHERE query = '{busy}' AND state = 'active'"
        )
        await_condition(lambda: ask(server.url(), running))
        server.kill()
        assert isinstance(asked.exception(timeout=5), psycopg.OperationalError)
        assert gone(connection.info.backend_pid)
    server.start()


def test_paused_server_does_not_answer_until_resumed(server):
    with ThreadPoolExecutor() as pool, closing(psycopg.connect(server.url())) as connection:
        server.pause()
        old, new = pool.submit(connection.execute, "SELECT 1"), pool.submit(ask, server.url())
        time.sleep(0.09)
        answered = [old.done(), new.done()]
        server.resume()
        assert answered == [False, False]
        assert (old.result(timeout=5).fetchone(), new.result(timeout=5)) == ((1,), 1)


def test_server_takes_another_port_if_the_first_is_in_use(server, monkeypatch):
    server.stop()
    server._port = None  # as if it had never been started
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        choices = iter([taken.getsockname()[1], *postgres.PORTS])
        monkeypatch.setattr(postgres, "_any_port", lambda: next(choices))
        server.start()
        assert server._port in postgres.PORTS
        assert ask(server.url()) == 1


def test_failed_start_raises_the_error_of_the_server(server):
    settings = server._cluster / "postgresql.conf"
    before = settings.read_text()
    server.stop()
    settings.write_text(before + "shared_bluffers = 1\n")
    with pytest.raises(RuntimeError, match="shared_bluffers"):
        server.start()
    settings.write_text(before)
    server.start()


def test_server_ends_when_its_starter_is_killed(server):
    server.stop()
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_AND_WAITS, server.folder],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as starter:  # fmt: skip
        pid = int(starter.stdout.readline())
        assert not gone(pid)
        starter.kill()
    assert postgres._wait_for(lambda: gone(pid), 10)


def test_server_restarts_after_an_external_kill(server):
    before = write(server.url())
    os.kill(server.postmaster_pid, signal.SIGKILL)
    assert postgres._wait_for(lambda: gone(server.postmaster_pid), 10)
    server.start()
    assert read(server.url()) == before


def test_shared_server_is_one_instance():
    assert shared_server() is shared_server()
    assert ask(shared_server().new_database()) == 1


def test_missing_binaries_are_reported_with_the_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("PG_BINDIR", str(tmp_path))
    with pytest.raises(RuntimeError, match="PG_BINDIR"):
        find_binaries()


@only_as_root
def test_server_of_root_runs_as_user_nobody(server):
    nobody = pwd.getpwnam("nobody").pw_uid
    pids = [server.postmaster_pid, *(each.pid for each in server._others())]
    assert len(pids) > 3
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in pids} == {nobody}


@only_as_root
def test_binaries_unreadable_for_user_nobody_are_copied(monkeypatch, tmp_path):
    monkeypatch.delenv("PG_BINDIR", raising=False)
    binaries = find_binaries() or pytest.skip("there is no wheel here")
    package = binaries.parents[1]
    for each in (package, package.with_name(f"{package.name}.libs")):
        (tmp_path / each.name).symlink_to(each)
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PG_BINDIR", str(tmp_path / package.name / "pginstall" / "bin"))
    with Server(new_folder()) as server:
        assert ask(server.new_database()) == 1
        runs = Path(f"/proc/{server.postmaster_pid}/exe").readlink()
    assert package.resolve() not in runs.parents


@only_as_root
def test_folder_unreadable_for_user_nobody_is_refused_with_a_hint(tmp_path):
    tmp_path.chmod(0o700)
    with pytest.raises(RuntimeError, match="new_folder"), Server(tmp_path / "cluster"):
        pass


def test_leaving_a_killed_server_removes_its_folder(server):
    server.stop()
    with Server(server.folder) as same:
        same.kill()
    assert not server.folder.exists()

"""Checks of peers by `doctor` and at a start, with real servers that answer, refuse or hang."""

import asyncio
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiohttp import web

from onbeat.app import peers
from onbeat.app.peers import ask_peers
from onbeat.core.notify.channels import read_channels
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.systems.flows.panel import Panel
from onbeat.systems.ray import part as ray_part
from tests.given_settings import given_settings
from tests.notifiers.servers import a_hook, a_post
from tests.systems.flows.panel import FakePanel, Flow
from tests.waiting import forever

FLOW = "/-/127.0.0.1/8125/-/"


@asynccontextmanager
async def a_server(answer, **paths):
    """A web server with one answer, and the list of its requests."""
    asked = []

    async def handle(request):
        asked.append((request.method, request.path, dict(request.headers)))
        if callable(answer):
            return await answer(request)
        return web.Response(status=answer)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, **paths)
        await site.start()
        scheme = "https" if "ssl_context" in paths else "http"
        yield f"{scheme}://localhost:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


@pytest.fixture
def closed_port():
    """Return an address on which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def own_certificate(tmp_path):
    """A self-signed certificate."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key -out cert"
    subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    return context


async def asked(environment=None, *, is_start=False, **settings):
    """Return (level, found) of each peer by its name."""
    found = await ask_peers(
        given_settings(**settings), environment or {}, version="0", is_start=is_start
    )
    assert all(bool(each.hint) == (each.level != "ok") for each in found), found
    return {each.name: (each.level, each.found) for each in found}


def test_no_peer_is_checked_without_settings():
    assert asyncio.run(asked()) == {}


# -- the panel


def of_panel(url, **more):
    given = {"flows_panel": url, "flows_password": "${env:PW}", "pass_env": ("PW",)}
    return given | more


@pytest.mark.parametrize(
    ("password", "level", "found"),
    [
        ("sesame", "ok", "{url} accepts the login of 'timer'"),
        (
            "wrong",
            "fail",
            "{url} refuses the login of 'timer': HTTP 401: Unauthorized: Invalid name or password (flows_user and flows_password, or KODO_TIMER_USER)",
        ),
    ],
)
def test_panel_check_logs_in_and_launches_nothing(password, level, found):
    panel = FakePanel({FLOW: Flow("a report", [])}, password="sesame")

    async def story():
        url = await panel.start()
        try:
            return url, await asked({"PW": password}, **of_panel(url))
        finally:
            await panel.stop()

    url, checks = asyncio.run(story())
    assert checks == {"panel": (level, found.format(url=url))}
    assert panel.launched == []


def test_panel_may_be_on_a_private_network():
    fake = FakePanel({FLOW: Flow("a report", [])}, password="sesame")

    async def story():
        url = await fake.start()
        requests = HttpLauncher(version="1", environment={"PW": "sesame"}, public_only=True)
        try:
            panel = Panel(requests.ask, url, user="timer", password="${env:PW}")
            await panel.check()
        finally:
            await requests.close()
            await fake.stop()

    asyncio.run(story())


def test_unreachable_panel_and_missing_password_fail(closed_port):
    away = asyncio.run(asked({"PW": "x"}, **of_panel(f"http://{closed_port}")))
    assert away["panel"][0] == "fail"
    assert away["panel"][1].startswith(f"http://{closed_port} does not answer: ")
    unset = asyncio.run(asked({}, **of_panel(f"http://{closed_port}")))
    assert unset["panel"][0] == "fail"
    assert "PW" in unset["panel"][1]
    missing = asyncio.run(asked(**of_panel(f"http://{closed_port}", flows_password="")))
    assert missing["panel"][1].startswith("flows_password: it is missing: flows run as 'timer'")


# -- servers


@pytest.mark.parametrize(("name", "setting"), [("chat server", "sessions_url"), ("executor", "workflows_executor")])  # fmt: skip
def test_server_check_distinguishes_answers_errors_and_unreachable(name, setting, closed_port):
    async def story():
        found = {}
        for status in (200, 404, 405, 500):
            async with a_server(status) as (url, _):
                level, problem = (await asked(**{setting: url}))[name]
                found[status] = level, problem.removeprefix(url)
        level, problem = (await asked(**{setting: f"http://{closed_port}"}))[name]
        return found, level, problem

    found, level, problem = asyncio.run(story())
    assert found[200] == ("ok", " answers (HTTP 200)")
    assert (found[404][0], found[405][0]) == ("ok", "ok")  # it is there, and knows other methods
    assert found[500] == ("fail", " answers HTTP 500: Internal Server Error")
    assert level == "fail"
    assert problem.startswith(f"http://{closed_port} does not answer: ")
    assert "refused" in problem.lower()


def test_executor_that_refuses_the_token_fails_and_gets_no_dag():
    async def story():
        async with a_server(401) as (url, requests):
            given = {"workflows_executor": url, "workflows_token": "${env:T}", "pass_env": ("T",)}
            return await asked({"T": "secret"}, **given), requests

    found, ((method, path, headers),) = asyncio.run(story())
    assert found["executor"][0] == "fail"
    assert found["executor"][1].endswith(" refuses the token: HTTP 401: Unauthorized")
    assert (method, path, headers["Authorization"]) == ("OPTIONS", "/execute", "Bearer secret")


def test_self_signed_certificate_of_a_peer_fails(own_certificate):
    async def story():
        async with a_server(200, ssl_context=own_certificate) as (url, _):
            hook = read_channels({"ops": {"webhook": url}})
            return await asked(sessions_url=url, notify=hook)

    found = asyncio.run(story())
    assert found["chat server"][0] == "fail"
    assert "certificate" in found["chat server"][1]
    assert found["webhook ops"][0] == "warn"
    assert re.search(r"certificate: self.signed certificate", found["webhook ops"][1])


def test_hanging_peers_time_out_together(monkeypatch):
    monkeypatch.setattr(peers, "ANSWERS_WITHIN", 0.4)

    async def never(_):
        await forever()

    async def story():
        async with a_server(never) as (url, _):
            begun = time.monotonic()
            found = await asked(
                {"PW": "x"}, sessions_url=url, workflows_executor=url, **of_panel(url)
            )
            return found, time.monotonic() - begun

    found, took = asyncio.run(story())
    assert {level for level, _ in found.values()} == {"fail"}
    assert all("no answer after 0." in problem for _, problem in found.values()), found
    assert took < 1.1  # one after the other, it would be 1.2 s at least


# -- Ray


def test_missing_ray_package_fails(monkeypatch, closed_port):
    monkeypatch.setattr(ray_part, "find_spec", lambda name: None)
    found = asyncio.run(asked(ray_address=closed_port))
    assert found == {"ray": ("fail", "ray is not installed here")}


@pytest.mark.parametrize("is_start", [True, False])
def test_unreachable_ray_cluster_fails(monkeypatch, closed_port, is_start):
    monkeypatch.setattr(ray_part, "find_spec", lambda name: object())
    found = asyncio.run(asked(ray_address=closed_port, is_start=is_start))
    assert found["ray"][0] == "fail"
    assert found["ray"][1] == f"no cluster at {closed_port}: Connection refused"


def test_workflows_on_ray_without_a_cluster_address_fail():
    found = asyncio.run(asked(workflows_executor="ray"))
    assert found["ray"] == ("fail", "workflows_executor is ray, but ray_address is not set")


# -- channels


@pytest.mark.parametrize(("password", "level"), [("s3cret", "ok"), ("wrong", "warn")])
def test_mail_check_logs_in_and_sends_no_message(password, level):
    with a_post(logs_in=True) as server:
        address = f"smtp://ann@127.0.0.1:{server.port}"
        channel = {"smtp": address, "to": ["ops@example.com"], "password": "${env:PW}"}
        found = asyncio.run(asked({"PW": password}, notify=read_channels({"ops": channel})))
    assert found["mail ops"][0] == level
    assert set(server.post.passwords) == {(b"ann", password.encode())}
    assert server.post.got == []
    if level == "warn":
        assert "SMTP 535" in found["mail ops"][1]
        assert "wrong" not in found["mail ops"][1]


def test_unreachable_mail_server_warns(closed_port):
    channel = {"smtp": f"smtp://{closed_port}", "to": ["ops@example.com"]}
    found = asyncio.run(asked(notify=read_channels({"ops": channel})))
    assert found["mail ops"][0] == "warn"
    assert found["mail ops"][1].endswith("Connection refused")


def test_webhook_check_connects_and_posts_nothing(closed_port):
    async def story():
        async with a_hook() as hook:
            here = await asked(notify=read_channels({"ops": {"webhook": f"{hook.url}/s3cret"}}))
            gone = await asked(
                notify=read_channels({"ops": {"webhook": f"http://{closed_port}/x"}})
            )
            return here, gone, hook.got

    here, gone, got = asyncio.run(story())
    assert here["webhook ops"][0] == "ok"
    assert "s3cret" not in here["webhook ops"][1]  # a path may be a secret
    assert (gone["webhook ops"][0], got) == ("warn", [])


def test_apprise_channel_is_not_contacted():
    found = asyncio.run(asked(notify=read_channels({"ops": {"apprise": "json://127.0.0.1:1/x"}})))
    assert found["apprise ops"][0] == "ok"
    assert found["apprise ops"][1].startswith("json:// was not checked: Apprise can only send")


# -- on the command line


def onbeat(folder, *words, **environment):
    environment = {"PATH": os.defpath, "HOME": str(folder), **environment}
    command = [sys.executable, "-m", "onbeat", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def up(folder):
    """A node in the foreground, and its log."""
    with (folder / "log").open("wb") as log:
        node = subprocess.Popen(
            [sys.executable, "-m", "onbeat", "up"],
            cwd=folder,
            env={"PATH": os.defpath, "HOME": str(folder), "ONBEAT_ROLES": "plan,run"},
            stdout=log,
            stderr=log,
        )
    try:
        yield (folder / "log").read_text
    finally:
        node.terminate()
        assert node.wait(20) == 0


PEERS = ("chat server", "executor", "mail ops", "session files")
ONE = """
schedules:
  right: {every: 1h, run: {command: ["true"]}}
"""


def configure(folder, closed_port):
    (folder / "onbeat.toml").write_text(f"""
        sessions_url = "http://{closed_port}"
        sessions_folder = "prompts"
        workflows_executor = "http://{closed_port}"
        [notify.ops]
        smtp = "smtp://{closed_port}"
        to = ["ops@example.com"]
    """)
    (folder / "prompts" / "daily").mkdir(parents=True)
    (folder / "prompts" / "daily" / "definition.json").write_text("{")
    (folder / "onbeat.yaml").write_text(ONE)


def test_doctor_lists_each_peer_and_exits_with_1_if_runs_cannot_work(tmp_path, closed_port):
    configure(tmp_path, closed_port)
    done = onbeat(tmp_path, "doctor", "--json")
    found = {each["check"]: each for each in json.loads(done.stdout)}
    assert done.returncode == 1
    assert {name: found[name]["level"] for name in ("chat server", "executor", "mail ops")} == {
        "chat server": "fail",
        "executor": "fail",
        "mail ops": "warn",
    }
    assert found["chat server"]["hint"] == "start it, or correct sessions_url"
    assert found["session files"]["level"] == "warn"
    assert "daily: definition.json is corrupt" in found["session files"]["found"]
    quick = onbeat(tmp_path, "doctor", "--quick", "--json")  # as a health check asks
    assert quick.returncode == 0
    assert "chat server" not in {each["check"] for each in json.loads(quick.stdout)}
    lines = onbeat(tmp_path, "doctor").stdout
    assert f"fail  chat server     http://{closed_port} does not answer: " in lines


def test_start_logs_each_unreachable_peer_and_corrupt_file_once(tmp_path, closed_port):
    configure(tmp_path, closed_port)
    with up(tmp_path) as log:
        until = time.monotonic() + 20
        while not all(f'"{each}: ' in log() for each in PEERS) and time.monotonic() < until:
            time.sleep(0.05)
    text = log()
    for peer in PEERS:
        assert text.count(f'"{peer}: ') == 1, (peer, text)
    assert text.index(" is up on ") < text.index('"chat server: ')

"""Peers are asked by `doctor` and at a start: real servers on loopback, which answer, refuse or hang."""

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
from onbeat.app.settings import Settings
from onbeat.core.notify.channels import read_channels
from tests.notifiers.servers import a_hook, a_post
from tests.systems.flows.panel import FakePanel, Flow

FLOW = "/-/127.0.0.1/8125/-/"


@asynccontextmanager
async def a_server(answer, **paths):
    """A web server that answers everything so; what it was asked is in a list."""
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
def nobody():
    """Return an address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def own_certificate(tmp_path):
    """A certificate that no authority has signed."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key -out cert"
    subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    return context


async def asked(environment=None, *, is_start=False, **settings):
    """Return what came of asking, as (level, found) by the name of each peer."""
    found = await ask_peers(Settings(**settings), environment or {}, version="0", is_start=is_start)
    assert all(bool(each.hint) == (each.level != "ok") for each in found), found
    return {each.name: (each.level, each.found) for each in found}


def test_where_settings_name_no_peer_none_is_asked():
    assert asyncio.run(asked()) == {}


# -- the panel


def of_panel(url, **more):
    given = {"flows_panel": url, "flows_password": "${env:PW}", "pass_env": ("PW",)}
    return given | more


@pytest.mark.parametrize(
    ("password", "level", "told"),
    [
        ("sesame", "ok", "{url} accepts the login of 'timer'"),
        (
            "wrong",
            "fail",
            "{url} refuses the login of 'timer': HTTP 401: Unauthorized: Invalid name or password (flows_user and flows_password, or KODO_TIMER_USER)",
        ),
    ],
)
def test_a_panel_is_asked_with_its_password_and_nothing_is_launched(password, level, told):
    panel = FakePanel({FLOW: Flow("a report", [])}, password="sesame")

    async def story():
        url = await panel.start()
        try:
            return url, await asked({"PW": password}, **of_panel(url))
        finally:
            await panel.stop()

    url, found = asyncio.run(story())
    assert found == {"panel": (level, told.format(url=url))}
    assert panel.launched == []


def test_a_panel_that_is_away_or_whose_password_is_not_given_is_named(nobody):
    away = asyncio.run(asked({"PW": "x"}, **of_panel(f"http://{nobody}")))
    assert away["panel"][0] == "fail"
    assert away["panel"][1].startswith(f"http://{nobody} does not answer: ")
    unset = asyncio.run(asked({}, **of_panel(f"http://{nobody}")))
    assert unset["panel"][0] == "fail"
    assert "PW" in unset["panel"][1]
    missing = asyncio.run(asked(**of_panel(f"http://{nobody}", flows_password="")))
    assert missing["panel"][1].startswith("flows_password: it is missing: flows run as 'timer'")


# -- servers


@pytest.mark.parametrize(("name", "setting"), [("chat server", "sessions_url"), ("executor", "workflows_executor")])  # fmt: skip
def test_a_server_answers_fails_or_is_away(name, setting, nobody):
    async def story():
        found = {}
        for status in (200, 404, 405, 500):
            async with a_server(status) as (url, _):
                level, told = (await asked(**{setting: url}))[name]
                found[status] = level, told.removeprefix(url)
        level, told = (await asked(**{setting: f"http://{nobody}"}))[name]
        return found, level, told

    found, level, told = asyncio.run(story())
    assert found[200] == ("ok", " answers (HTTP 200)")
    assert (found[404][0], found[405][0]) == ("ok", "ok")  # it is there, and knows other methods
    assert found[500] == ("fail", " answers HTTP 500: Internal Server Error")
    assert level == "fail"
    assert told.startswith(f"http://{nobody} does not answer: ")
    assert "refused" in told.lower()


def test_an_executor_that_refuses_the_token_is_named_and_is_sent_no_dag():
    async def story():
        async with a_server(401) as (url, requests):
            given = {"workflows_executor": url, "workflows_token": "${env:T}", "pass_env": ("T",)}
            return await asked({"T": "secret"}, **given), requests

    found, ((method, path, headers),) = asyncio.run(story())
    assert found["executor"][0] == "fail"
    assert found["executor"][1].endswith(" refuses the token: HTTP 401: Unauthorized")
    assert (method, path, headers["Authorization"]) == ("OPTIONS", "/execute", "Bearer secret")


def test_a_certificate_that_no_authority_has_signed_is_named(own_certificate):
    async def story():
        async with a_server(200, ssl_context=own_certificate) as (url, _):
            hook = read_channels({"ops": {"webhook": url}})
            return await asked(sessions_url=url, notify=hook)

    found = asyncio.run(story())
    assert found["chat server"][0] == "fail"
    assert "certificate" in found["chat server"][1]
    assert found["webhook ops"][0] == "warn"
    assert re.search(r"certificate: self.signed certificate", found["webhook ops"][1])


def test_peers_that_never_answer_are_given_up_all_at_the_same_time(monkeypatch):
    monkeypatch.setattr(peers, "ANSWERS_WITHIN", 0.4)

    async def never(_):
        await asyncio.sleep(30)

    async def story():
        async with a_server(never) as (url, _):
            begun = time.monotonic()
            found = await asked(
                {"PW": "x"}, sessions_url=url, workflows_executor=url, **of_panel(url)
            )
            return found, time.monotonic() - begun

    found, took = asyncio.run(story())
    assert {level for level, _ in found.values()} == {"fail"}
    assert all("no answer after 0." in told for _, told in found.values()), found
    assert took < 1.1  # one after the other, it would be 1.2 s at least


# -- Ray


def test_ray_that_is_not_installed_is_named(monkeypatch, nobody):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    found = asyncio.run(asked(ray_address=nobody))
    assert found == {"ray": ("fail", "ray is not installed here")}


@pytest.mark.parametrize("is_start", [True, False])
def test_a_ray_cluster_that_is_not_there_is_named(monkeypatch, nobody, is_start):
    monkeypatch.setattr(peers, "find_spec", lambda name: object())
    found = asyncio.run(asked(ray_address=nobody, is_start=is_start))
    assert found["ray"][0] == "fail"
    assert found["ray"][1] == f"no cluster at {nobody}: Connection refused"


def test_workflows_on_ray_without_an_address_of_a_cluster_are_named():
    found = asyncio.run(asked(workflows_executor="ray"))
    assert found["ray"] == ("fail", "workflows_executor is ray, but ray_address is not set")


# -- channels


@pytest.mark.parametrize(("password", "level"), [("s3cret", "ok"), ("wrong", "warn")])
def test_a_mail_server_is_logged_in_to_and_given_no_message(password, level):
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


def test_a_mail_server_that_is_away_is_named(nobody):
    channel = {"smtp": f"smtp://{nobody}", "to": ["ops@example.com"]}
    found = asyncio.run(asked(notify=read_channels({"ops": channel})))
    assert found["mail ops"][0] == "warn"
    assert found["mail ops"][1].endswith("Connection refused")


def test_a_webhook_is_connected_to_and_not_posted_to(nobody):
    async def story():
        async with a_hook() as hook:
            here = await asked(notify=read_channels({"ops": {"webhook": f"{hook.url}/s3cret"}}))
            gone = await asked(notify=read_channels({"ops": {"webhook": f"http://{nobody}/x"}}))
            return here, gone, hook.got

    here, gone, got = asyncio.run(story())
    assert here["webhook ops"][0] == "ok"
    assert "s3cret" not in here["webhook ops"][1]  # a path may be a secret
    assert (gone["webhook ops"][0], got) == ("warn", [])


def test_apprise_is_not_asked_as_it_can_only_send():
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
    """A node in the foreground, until it has said what it has to say."""
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


def configure(folder, nobody):
    (folder / "onbeat.toml").write_text(f"""
        sessions_url = "http://{nobody}"
        sessions_folder = "prompts"
        workflows_executor = "http://{nobody}"
        [notify.ops]
        smtp = "smtp://{nobody}"
        to = ["ops@example.com"]
    """)
    (folder / "prompts" / "daily").mkdir(parents=True)
    (folder / "prompts" / "daily" / "definition.json").write_text("{")
    (folder / "onbeat.yaml").write_text(ONE)


def test_doctor_has_a_line_for_each_peer_and_ends_with_1_if_runs_cannot_work(tmp_path, nobody):
    configure(tmp_path, nobody)
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
    assert f"fail  chat server     http://{nobody} does not answer: " in lines


def test_a_start_warns_once_of_each_peer_and_of_corrupt_files_and_is_up_before_that(
    tmp_path, nobody
):
    configure(tmp_path, nobody)
    with up(tmp_path) as said:
        until = time.monotonic() + 20
        while not all(f'"{each}: ' in said() for each in PEERS) and time.monotonic() < until:
            time.sleep(0.05)
    told = said()
    for peer in PEERS:
        assert told.count(f'"{peer}: ') == 1, (peer, told)
    assert told.index(" is up on ") < told.index('"chat server: ')

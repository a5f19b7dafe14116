"""A real Kodosumi panel with a small flow, and Onbeat beside it: run in separate namespaces.

    python -m tests.peers.kodosumi FOLDER     with KODOSUMI_PYTHON in the environment

It is started by `test_kodosumi.py` with a network of its own, in which there is only loopback, and
with processes of its own, which all end with it. It prints what Onbeat has seen, as JSON.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from onbeat import Onbeat
from onbeat.testing import a_schedule
from tests.given_settings import given_settings
from tests.inside import launcher_of

PANEL, APP, RAY = "http://127.0.0.1:23370", "http://127.0.0.1:8125", "127.0.0.1:26379"
URL = "/-/127.0.0.1/8125/-/"
PATIENCE = 120.0  # seconds for a process to answer
FLOW = """
import asyncio

from kodosumi.core import InputsError, Launch, ServeAPI, forms, response

app = ServeAPI()
form = forms.Model(
    forms.InputText(label="Query", name="query"),
    forms.InputText(label="Seconds", name="seconds"),
    forms.Submit("Go"),
    forms.Cancel("Cancel"),
)


async def work(inputs, tracer):
    await asyncio.sleep(float(inputs.get("seconds") or 0))
    return response.Markdown(f"done: {inputs['query']}")


@app.enter(path="/", model=form, summary="A flow", description="It waits.", version="1", author="a@example.org")
async def enter(request, inputs):
    error = InputsError()
    if not inputs.get("query"):
        error.add(query="Please give me a query.")
    if error.has_errors():
        raise error
    return Launch(request, "flow_app:work", inputs=inputs)
"""


class Peer:
    """The processes of the panel."""

    def __init__(self, folder, python):
        self.folder, self.bin = folder, Path(python).parent
        self.python = python
        (folder / "flow_app.py").write_text(FLOW)
        (folder / "ray").mkdir()
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(folder),
            "PYTHONPATH": str(folder), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32,
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(folder / "ray"), "RAY_ADDRESS": RAY,
            "KODO_RAY_SERVER": RAY, "KODO_APP_SERVER": PANEL, "KODO_ADMIN_PASSWORD": "sesame-1",
            "KODO_RAY_DASHBOARD": "http://127.0.0.1:28265",
        }  # fmt: skip

    def start(self, name, *words, **more):
        log = (self.folder / f"{name}.log").open("wb")
        subprocess.Popen(
            words, cwd=self.folder, env=self.environment | more, stdout=log, stderr=log
        )

    def begin(self):
        ray = ("start", "--head", "--node-ip-address=127.0.0.1", "--port=26379", "--num-cpus=2")
        board = ("--dashboard-host=127.0.0.1", "--dashboard-port=28265", "--block")
        self.start("ray", str(self.bin / "ray"), *ray, *board)
        await_text(self.folder / "ray.log", "Ray runtime started")
        koco = str(self.bin / "koco")
        self.start("app", self.python, "-m", "uvicorn", "flow_app:app", "--port", "8125")
        self.start("spool", koco, "spool", "--block")
        await_answer(f"{APP}/openapi.json")
        self.start("panel", koco, "serve", "--address", PANEL, "--register", f"{APP}/openapi.json")
        await_answer(f"{PANEL}/health")

    def ask(self, method, path, body=None, key=""):
        headers = {"Content-Type": "application/json", "KODOSUMI_API_KEY": key}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{PANEL}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def make_timer(self):
        """Create a role for the timer, and wait until the panel knows the flow."""
        key = self.ask("POST", "/api/login", {"name": "admin", "password": "sesame-1"})[
            "KODOSUMI_API_KEY"
        ]
        role = {
            "name": "timer",
            "email": "timer@example.org",
            "password": "sesame-2",
            "active": True,
            "operator": False,
        }
        self.ask("POST", "/role", role, key)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = self.ask("GET", "/flow?pp=10", key=key)["items"]
            if any(each["url"] == URL for each in found):
                return
            time.sleep(0.05)
        raise AssertionError("the panel does not know the flow")


def await_text(path, text):
    until = time.monotonic() + PATIENCE
    while text not in (path.read_text() if path.exists() else ""):
        assert time.monotonic() < until, path.read_text()[-2000:]
        time.sleep(0.05)


def await_answer(url):
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            assert time.monotonic() < until, url
            time.sleep(0.05)


async def play(folder):
    """Launch the flow in three ways; return the outcome of each run."""
    (folder / "secrets").mkdir()
    (folder / "secrets" / "panel").write_text("sesame-2")
    settings = given_settings(
        database=f"sqlite:///{folder}/onbeat.db",
        flows_panel=PANEL,
        flows_password="secret://panel",
        secrets=str(folder / "secrets"),
    )
    told = {}
    async with Onbeat(settings=settings) as beat:
        for name, inputs in {
            "well": {"query": "hello", "colour": "red"},
            "refused": {"seconds": "1"},
            "canceled": {"query": "long", "seconds": "600"},
        }.items():
            run = {"flow": {"url": URL, "key": name}, "inputs": inputs}
            await beat.define(a_schedule(name, every="24h", run=run))
            row, is_asked = await beat.start(name), False
            while row.finished_at is None:
                await asyncio.sleep(0.05)
                row = await beat.service.run(row.run_id)
                if name == "canceled" and not is_asked and await status_of(beat, row) == "running":
                    is_asked = bool(await beat.cancel(row.run_id))
            told[name] = {
                "status": row.status, "reason": row.reason, "error": row.error,
                "result": row.result, "fid": row.external_id, "log": row.log_tail,
            }  # fmt: skip
    return told


async def status_of(beat, row):
    """Return the panel's record of a run, if it has one."""
    if row.external_id is None:
        return ""
    panel = launcher_of(beat, "flow")._panel
    answer = await panel.ask("GET", f"/outputs/status/{row.external_id}?extended=true")
    return answer.body["status"]


def main(folder):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    peer = Peer(Path(folder), os.environ["KODOSUMI_PYTHON"])
    peer.begin()
    peer.make_timer()
    print(json.dumps(asyncio.run(play(Path(folder)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

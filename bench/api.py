"""Requests per second of the API, and their effect on schedules in the same node.

    python -m bench.api [--seconds 10] [--schedules 10000]

A node has 100 ticks a second, spread over the second, and many more idle schedules. Its lateness
(start after `due_at`) is measured without load, and while `wrk` requests pages and previews over 16
connections as fast as it gets answers: far more than people and dashboards do.
"""

import argparse
import asyncio
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from onbeat import Onbeat
from onbeat.app.settings import Settings
from onbeat.core.schedule import read_schedule
from onbeat.ports.rows import RunFilter
from onbeat.web.api_server import ApiServer

CONNECTIONS = 16
TICKS = 100  # a second
PREVIEW = {"cron": "*/15 9-17 * * MON-FRI", "timezone": "Europe/Berlin", "run": {"command": ["x"]}}


async def nothing(run):
    """Do nothing."""


async def main(seconds: int, idle: int) -> None:
    wrk = shutil.which("wrk")
    if wrk is None:
        sys.exit("wrk is not installed (Debian: apt-get install wrk)")
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            database=f"sqlite:///{folder}/onbeat.db", listen="127.0.0.1:0", rate_limit=1_000_000
        )
        front = ApiServer(settings)
        beat = Onbeat(settings=front.settings, address=front.settings.api_url)
        beat.register("nothing", nothing)
        await beat.open()
        await beat.begin(client=False)
        await front.start(beat)
        _, secret = await beat.service.tokens.create("bench", "admin")
        await beat.define(*_busy(), *_idle(idle))
        await asyncio.sleep(2)
        url, load = front.settings.api_url, _Load(wrk, folder, secret, seconds)
        print(f"{TICKS} ticks a second beside {idle} idle schedules, {seconds} s each")
        await _measure(beat, seconds, "no load", None)
        page = f"{url}/api/v1/schedules?limit=50"
        await _measure(beat, seconds, "list, 50 on a page", load.start(page))
        await _measure(
            beat, seconds, "preview, 10 ticks", load.start(f"{url}/api/v1/preview", PREVIEW)
        )
        await _measure(
            beat, seconds, "one schedule", load.start(f"{url}/api/v1/schedules/busy%2F1")
        )
        await front.stop()
        await beat.close()


def _busy():
    return [
        read_schedule(f"busy/{n}", {"every": "1s", "jitter": "1s", "run": {"python": "nothing"}})
        for n in range(TICKS)
    ]


def _idle(n):
    fields = {"cron": "H 3 1 1 *", "run": {"command": ["true"]}}
    return [read_schedule(f"idle/{i:05}", fields) for i in range(n)]


class _Load:
    """Starts `wrk`."""

    def __init__(self, wrk: str, folder: str, secret: str, seconds: int) -> None:
        self._wrk, self._folder, self._secret, self._seconds = wrk, folder, secret, seconds

    def start(self, url: str, body: object = None) -> subprocess.Popen:
        script = Path(self._folder) / "request.lua"
        lines = [f'wrk.headers["Authorization"] = "Bearer {self._secret}"']
        if body is not None:
            lines += [
                'wrk.method = "POST"',
                'wrk.headers["Content-Type"] = "application/json"',
                f"wrk.body = [[{json.dumps(body)}]]",
            ]
        script.write_text("\n".join(lines))
        options = ["-t1", f"-c{CONNECTIONS}", f"-d{self._seconds}s", "--latency", "-s", str(script)]
        command = [self._wrk, *options, url]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - wrk


async def _measure(beat: Onbeat, seconds: int, title: str, load: subprocess.Popen | None) -> None:
    begin = time.time_ns() // 1_000_000
    await asyncio.sleep(seconds)
    answered = ""
    if load is not None:
        printed, _ = await asyncio.to_thread(load.communicate)
        rate = re.search(r"Requests/sec:\s+([\d.]+)", printed)
        slow = re.search(r"99%\s+(\S+)", printed)
        bad = re.search(r"Non-2xx or 3xx responses: (\d+)", printed)
        answered = f"{float(rate[1]):7.0f}/s, p99 {slow[1]:>8}" if rate and slow else printed
        answered += f", {bad[1]} REFUSED" if bad else ""
    end = begin + seconds * 1000
    rows = await beat.service.runs(RunFilter(status="SUCCESS"), limit=10_000)
    late = sorted(row.started_at - row.due_at for row in rows if begin <= row.due_at < end)
    p50, p99 = (late[int(len(late) * part)] for part in (0.5, 0.99))
    lateness = f"late by p50 {p50} ms, p99 {p99} ms, max {late[-1]} ms, {len(late)} runs"
    print(f"{title:20} {lateness:60} {answered}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--schedules", type=int, default=10_000)
    given = parser.parse_args()
    asyncio.run(main(given.seconds, given.schedules))

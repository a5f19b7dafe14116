"""Run the executor and Onbeat, and deploy the DAG, until Ctrl-C: `make example-workflows`."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

EXECUTOR = f"127.0.0.1:{os.environ.get('EXECUTOR_PORT', '9000')}"
ONBEAT = os.environ.get("ONBEAT_LISTEN", "127.0.0.1:8585")
API = f"http://{ONBEAT}"


def check_is_free(address, setting):
    host, _, port = address.rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError as error:
        sys.exit(f"{address}: {os.strerror(error.errno)} ({setting} sets another)")


def start(*program):
    """Start a program in its own session, so that Ctrl-C reaches only this one, which stops the others."""
    running.append(subprocess.Popen([sys.executable, *program], start_new_session=True))


def are_up():
    return all(program.poll() is None for program in running)


def is_ready():
    try:
        with urllib.request.urlopen(f"{API}/readyz", timeout=1):
            return True
    except OSError:
        return False


def deploy():
    token = Path("onbeat.db.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"dag": json.loads(Path("report.json").read_text())}).encode()
    request = urllib.request.Request(f"{API}/schedules/deploy", body, headers)
    with urllib.request.urlopen(request) as answer:
        print("deployed:", answer.read().decode(), flush=True)


check_is_free(EXECUTOR, "EXECUTOR_PORT=9001")
check_is_free(ONBEAT, "ONBEAT_LISTEN=127.0.0.1:8586")
if "EXECUTOR_PORT" in os.environ:
    os.environ["ONBEAT_WORKFLOWS_EXECUTOR"] = f"http://{EXECUTOR}"
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.default_int_handler)
running = []
failed = True  # unless Ctrl-C ends it: no program should end by itself
try:
    start("executor.py")
    start("-m", "onbeat", "up")
    while are_up() and not is_ready():
        time.sleep(0.1)
    if are_up():
        deploy()
    while are_up():
        time.sleep(0.5)
except KeyboardInterrupt:
    failed = False
finally:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for program in reversed(running):  # Onbeat first: its hand-over still reaches the executor
        program.terminate()
        program.wait()
sys.exit(failed)

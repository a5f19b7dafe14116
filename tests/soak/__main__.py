"""The long run: `python -m tests.soak --runs 100000`. It exits 1 if memory grows with the runs."""

import argparse
import asyncio
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.postgres import Server, new_folder
from tests.soak.judge import grown
from tests.soak.life import HEAD, SCHEDULES, live

KINDS = [kind for kind in SCHEDULES if kind != "leaks"]
COMMANDS = 10  # times as many functions as commands: a process takes longer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--on", default="both", choices=("sqlite", "postgres", "both"))
    parser.add_argument("--kinds", default=",".join(KINDS), help="of targets, with commas")
    parser.add_argument("--here", action="store_true", help="in this process, and nothing else")
    parser.add_argument("--api", action="store_true", help="with the API, and who asks it")
    given = parser.parse_args()
    logging.getLogger("onbeat").setLevel(logging.ERROR)
    if given.here:
        sys.exit(1 if soak(given.on, given.kinds, given.runs, api=given.api) else 0)
    codes = []
    for on in ("sqlite", "postgres"):
        if given.on in (on, "both"):
            for kind in given.kinds.split(","):
                runs = given.runs // COMMANDS if kind == "command" else given.runs
                codes.append(in_its_own_process(on, kind, runs, api=given.api))
    sys.exit(max(codes))


def in_its_own_process(on: str, kind: str, runs: int, *, api: bool) -> int:
    """Have one life in a process that has done nothing else; return its exit code."""
    words = ["--here", "--on", on, "--kinds", kind, "--runs", str(runs), *["--api"] * api]
    return subprocess.run([sys.executable, "-m", "tests.soak", *words], check=False).returncode


def soak(on: str, kind: str, runs: int, *, api: bool) -> list[str]:
    """Have a node live on one kind of database; print what its memory is, and what is wrong."""
    print(f"\n{runs} runs of a {kind} on {on}{', with the API' * api}\n{HEAD}")
    with tempfile.TemporaryDirectory(prefix="onbeat-soak-") as temporary:
        folder = Path(temporary)
        if on == "sqlite":
            url = f"sqlite:///{folder}/onbeat.db"
            measured = asyncio.run(live(url, folder, kind, runs, api=api))
        else:
            with Server(new_folder()) as server:
                measured = asyncio.run(live(server.new_database(), folder, kind, runs, api=api))
    wrong = grown(measured)
    for each in wrong:
        print(f"grows: {each}")
    sys.stdout.flush()
    return wrong


if __name__ == "__main__":
    main()

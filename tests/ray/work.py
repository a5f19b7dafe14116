"""Functions that the tests run on a cluster. Each leaves a line in the witness file."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def witness(path, run):
    line = f"{run.key} {run.schedule_id} {run.attempt} {os.getpid()}\n".encode()
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, line)
    os.close(handle)


def add(a, b):
    print(f"adding {a} and {b}")
    subprocess.run(["sh", "-c", "echo and a child; echo and an error >&2"], check=True)
    return {"sum": a + b}


def fail():
    print("about to fail")
    raise ValueError("no luck")


def odd():
    return {1, 2}


def leave():
    sys.exit(3)


def tell(run):
    return {name: getattr(run, name) for name in ("key", "attempt", "iteration", "triggered_by")}


class Markdown:
    """What a model of Kodosumi looks like from outside."""

    def __init__(self, body):
        self.body = body

    def model_dump(self):
        return {"body": self.body}


async def report(inputs, tracer):
    """An entry point as Kodosumi has them."""
    await tracer.debug("begins", "with a query")
    await tracer.action({"tool": "search", "query": inputs["query"]})
    await tracer.markdown("# A title", f"about {inputs['query']}")
    print("printed as well")
    return Markdown(f"{inputs['limit']} lines about {inputs['query']}")


def plain_report(inputs: dict, tracer):
    """A plain function that passes its tracer to a task of Ray."""
    import ray  # noqa: PLC0415 - it is there wherever this runs

    tracer.text_sync("begins")
    ray.get(ray.remote(num_cpus=0)(in_a_task).remote(tracer, inputs["query"]))
    tracer.warning_sync("ends")


def in_a_task(tracer, query):
    tracer.result_sync(f"a task looked for {query}")


async def asks_a_person(inputs, tracer):
    await tracer.lock("approve", timeout=1)


def flaky(run, path):
    witness(path, run)
    if run.attempt == 1:
        raise RuntimeError("the first time")
    return run.attempt


def work(run, path, seconds=0.0):
    witness(path, run)
    print("working", flush=True)
    time.sleep(seconds)
    Path(f"{path}.{run.run_id}.done").touch()
    return seconds


async def wait(run, path):
    witness(path, run)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        print("asked to end")
        Path(f"{path}.asked").touch()  # noqa: ASYNC240 - nothing else runs here
        raise


def die(run, path):
    witness(path, run)
    os.kill(os.getpid(), 9)


def fetch(words):
    return words.split()


def count(after):
    return len(after["fetch"])


def longest(after):
    return max(after["fetch"], key=len)


def sleep_until_both(path, name, other):
    """Return once the other node has begun as well: they run in parallel, or never end."""
    Path(f"{path}.{name}").touch()
    for _ in range(300):
        if Path(f"{path}.{other}").exists():
            return name
        time.sleep(0.1)
    raise RuntimeError(f"{other} has not begun")


def join(after, meta):
    return {"of": sorted(after), "key": meta["idempotency_key"]}


def half_a_character():
    return "\udcff"


def large():
    return "x" * 100_000


def raise_half_a_character():
    raise ValueError("\udcff")


class Mute(Exception):  # noqa: N818 - it is one of a kind
    def __str__(self):
        raise RuntimeError("it says nothing")


def raise_mute():
    raise Mute


def break_output():
    sys.stdout = None
    for path in Path(tempfile.gettempdir()).glob("onbeat-run-*.log"):
        if path.stat().st_ino == os.fstat(1).st_ino:
            path.unlink()
    return 7


def chatter(path):
    print("first", flush=True)
    time.sleep(2.5)
    print("second \N{SNOWMAN}", flush=True)
    raise ValueError("and last")


def fail_first(path):
    if not Path(path).exists():
        Path(path).touch()
        raise ValueError("the first time")
    return "done"

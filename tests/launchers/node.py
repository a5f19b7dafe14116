"""A node that is to be killed: it launches one attempt and stays until then.

python -m tests.launchers.node MODULE:BENCH FOLDER ADDRESS ATTEMPT
"""

import asyncio
import importlib
import json
import os
import subprocess
import sys
from contextlib import contextmanager

from onbeat.host.plugs import plugs
from tests.waiting import forever


@contextmanager
def started_node(bench, fields, **given):
    """Start a node that launches an attempt; end it afterwards."""
    kind = type(bench)
    name = f"{kind.__module__}:{kind.__qualname__}"
    words = [name, str(bench.folder), bench.address, json.dumps([fields, given])]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.launchers.node", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def main(name, folder, address, attempt):
    plugs()
    module, _, path = name.partition(":")
    bench = getattr(importlib.import_module(module), path)(folder, address)
    fields, given = json.loads(attempt)
    launcher = await bench.make()
    print(await launcher.launch(bench.attempt(fields, **given)), file=sys.stderr)
    await forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

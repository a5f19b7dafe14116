"""The long run: `python -m tests.chaos --kills 200 --seed 7`. It exits 1 if anything is wrong."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.checker import Verdict, judge
from tests.chaos.driver import Driver
from tests.chaos.node import WAYS

MOST_TOLD = 5  # of one kind
COUNTED = ("doubled", "silent", "stuck", "orphaned")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broken", default="", choices=("", *WAYS), help="break the product")
    parser.add_argument("--keep", type=Path, help="a folder, to be left as it is in the end")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="onbeat-chaos-") as folder:
        if given.keep is not None:
            given.keep.mkdir(parents=True)
        driver = Driver(given.keep or Path(folder), seed=given.seed, broken=given.broken)
        verdict = judge(driver.run(given.kills))
    tell(driver, verdict, time.monotonic() - began)
    sys.exit(1 if verdict.wrong else 0)


def tell(driver: Driver, verdict: Verdict, seconds: float) -> None:
    """Print what was done, and what came of it."""
    for title, counts in (("killed at", driver.kills), ("called", driver.calls)):
        print(f"{title:20} {counts.total():6}")
        for name, times in sorted(counts.items()):
            print(f"  {name:18} {times:6}")
    print(f"{'seconds':20} {seconds:6.0f}")
    for name in ("ticks", "runs", "ranges", "attempts", "handed_back", "lost"):
        print(f"{name.replace('_', ' '):20} {getattr(verdict, name):6}")
    print(f"{'  of them launched':20} {verdict.lost_launched:6}")
    for kind in dict.fromkeys((*COUNTED, *verdict.wrong)):
        print(f"{kind:20} {len(verdict.wrong.get(kind, ())):6}")
    for kind, texts in verdict.wrong.items():
        for text in texts[:MOST_TOLD]:
            print(f"{kind}: {text}")


if __name__ == "__main__":
    main()

"""`python -m tests.sim --seeds 200`: play seeds, check each, and count what was reached."""

import argparse
import logging
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.sim.checker import check
from tests.sim.world import World


def play(seed):
    """Play one seed; return what was seen, how many ticks it had, and what is wrong."""
    logging.disable(logging.CRITICAL)
    world = World(seed)
    try:
        world.play()
        wrong, seen, ticks = check(world)
    except AssertionError as broken:
        return Counter(), 0, [("assertion", str(broken))]
    finally:
        world.forget()
    return world.seen + seen, ticks, wrong


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="play only this one")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stop", action="store_true", help="stop at the first that fails")
    parser.add_argument("--quiet", action="store_true", help="count nothing, tell failures only")
    given = parser.parse_args(arguments)
    seeds = (
        [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    )
    began, seen, ticks, failed = time.monotonic(), Counter(), 0, 0
    with ProcessPoolExecutor(given.workers) as pool:
        for seed, (its_seen, its_ticks, wrong) in zip(seeds, pool.map(play, seeds), strict=True):
            seen += its_seen
            ticks += its_ticks
            for invariant, told in wrong[:3]:
                print(f"seed {seed}: {invariant}: {told}")
            failed += bool(wrong)
            if failed and given.stop:
                pool.shutdown(cancel_futures=True)
                return 1
    if not given.quiet:
        took = time.monotonic() - began
        print(f"{len(seeds)} seeds, {ticks} ticks in {took:.0f} s: {ticks / took:.0f} ticks/s")
        for name, count in sorted(seen.items()):
            print(f"  {count:8}  {name}")
    print(f"{failed} of {len(seeds)} seeds failed" if failed else f"{len(seeds)} seeds are clean")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

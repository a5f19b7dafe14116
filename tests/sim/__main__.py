"""`python -m tests.sim --seeds 200`: play seeds, check each, and count what was reached.

It fails if an invariant is broken, or if among 200 seeds something rare never happened.
"""

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from onbeat.core.runs.phase import Phase
from tests.sim.checker import check
from tests.sim.outside import outside_kind
from tests.sim.phases import EDGES, SELDOM
from tests.sim.world import Simulation

SOMETIMES = [
    "a due row of older zone data", "a backfill refused a tick", "a backfilled run queued", "a backfilled run released",
    "a backfilled run while paused", "a condition gave no answer", "a condition held",
    "a further attempt", "a group given other places", "a manual run while paused",
    "a pause ended by itself", "a range shortened", "a retry with jitter",
    "a row made for the rest of a range", "a run that stands for several",
    "a tick of a full queue gives its place at once", "a tick that follows an event",
    "a tick that follows several events", "a waiting run canceled",
    "a waiting run canceled by hand", "a waiting run skipped: busy",
    "a waiting run skipped: condition", "a waiting run skipped: deadline",
    "a limit lifted", "a limited run moved", "a waiting run skipped: edited",
    "limited by an edit without a node", "limited in a queue",
    "a waiting run skipped: disabled", "a waiting run skipped: disabled_target",
    "a waiting run skipped: gate_off", "a waiting run skipped: group_full",
    "a waiting run skipped: overlap", "a waiting run skipped: paused",
    "a waiting run skipped: queue_full", "a waiting run skipped: superseded", "accepted",
    "accepted, and canceled", "accepted, and failed", "accepted, and told of",
    "an event joined another", "asked to end, and succeeded first", "asked to end, though accepted",
    "asked to end: canceled", "asked to end: superseded", "backfilled: a row added",
    "backfilled: a row enqueued again", "backfilled: from a range", "began in the past", "canceled as it was asked to",
    "caught up: all", "caught up: asked for", "caught up: once", "caught up: spread",
    "a queued run moved", "a retry moved", "a waiting run moved", "claimed by an earlier revision",
    "edited while a run waits", "edited while catching up", "range of edited", "skipped: edited",
    "tried again by an earlier revision", "changed while the queue was full", "changed while ticks were put off", "clock set back",
    "clock set forth", "crash at answer of a probe", "crash at answer of announce",
    "crash at answer of claim", "crash at answer of expire", "crash at answer of finish",
    "crash at answer of plan_due", "crash at answer of to_end", "crash at call of announce",
    "crash at call of claim", "crash at call of expire", "crash at call of finish",
    "crash at call of plan_due", "crash at call of to_end", "crash at clock", "crash at commit",
    "crash at launched", "crash at outcome", "crash at probe", "crash at statement",
    "due before it was planned", "ended by its limits", "enqueued for later by an edit",
    "failed: condition", "failed: deadline", "failed: error", "failed: exit", "failed: gate_off",
    "failed: invalid_target", "failed: launch_failed", "failed: lost", "failed: paused",
    "failed: signal", "failed: superseded", "failed: timeout", "found busy", "handed back",
    "handed back after the announcement", "judged, and superseded",
    "left for one of a higher priority", "lost, launched 0 times", "lost, launched 1 times",
    "lost, tried again", "node: stall", "parked", "paused after failures", "paused until a time",
    "queued", "queued behind others", "queued when judged again", "range of canceled",
    "range of disabled", "range of disabled_target", "range of gate_off", "range of missed",
    "range of overlap", "range of paused", "recreated", "released from the queue",
    "reported after the deadline", "retrying",
    "single times past when defined", "skipped beyond max_active", "skipped: busy",
    "skipped: canceled", "skipped: disabled", "skipped: disabled_target", "skipped: gate_off",
    "skipped: missed", "skipped: overlap", "skipped: paused", "skipped: queue_full",
    "skipped: rate", "skipped: superseded", "spread", "started within max_active",
    "store failed at begin", "store failed at commit", "store failed at insert",
    "store failed at update", "told of a run that a node has", "too late to cancel",
    "too late to report", "waits for what it replaces", "went on catching up",
    "a reattached run handed back", "announced to reattach it", "announced to recall it",
    "crash at answer of a request", "crash at request", "crash at start outside",
    "detached", "detached, asked to end", "left running at the end", "not found: lost",
    "not found: started after all", "not found: started again", "outside: ended by itself",
    "outside: ended by vanished", "outside: in doubt, and given up", "outside: left",
    "outside: to be ended later", "outside: unanswered", "outside: unreachable",
    "reattached while paused", "reattached, ended", "reattached, running", "recalled",
    "recalled when CLAIMED", "recalled when ENQUEUED", "started again, at least once",
    *(f"phase {phase}" for phase in Phase),
    *(f"edge {before} to {after}" for before, after in sorted(EDGES - SELDOM)),
]  # fmt: skip
ENOUGH = 200  # seeds among which each of these has to happen


def play(seed):
    """Play one seed; return what was seen, how many ticks it had, and what is wrong."""
    world = Simulation(seed)
    try:
        with outside_kind():
            world.play()
            wrong, seen, ticks = check(world)
    except Exception as broken:  # noqa: BLE001 - whatever it is, no life may end so
        where = traceback.extract_tb(broken.__traceback__)[-1]
        told = f"{type(broken).__name__}: {broken} ({where.filename}, line {where.lineno})"
        return Counter(), 0, [("nothing fails unforeseen", told)]
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
    with ProcessPoolExecutor(given.workers, initializer=_hush) as pool:
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
    never = [name for name in SOMETIMES if not seen[name]] if len(seeds) >= ENOUGH else []
    if never:
        print(f"never reached: {', '.join(never)}")
        return 1
    print(f"{failed} of {len(seeds)} seeds failed" if failed else f"{len(seeds)} seeds are clean")
    return 1 if failed else 0


def _hush():
    logging.disable(logging.CRITICAL)


if __name__ == "__main__":
    sys.exit(main())

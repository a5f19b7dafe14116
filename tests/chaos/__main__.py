"""The long run: `python -m tests.chaos --kills 200 --seed 7`. It exits 1 if anything is wrong."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.broken import WAYS
from tests.chaos.checker import Verdict, judge
from tests.chaos.databases import Database, PostgresDatabase, SqliteFile
from tests.chaos.driver import Driver
from tests.chaos.harm import KINDS, OF_SERVER
from tests.postgres import Server, new_folder

MOST_TOLD = 5  # of one kind
COUNTED = ("doubled", "silent", "stuck", "orphaned", "late", "broken off")
ON = ("sqlite", "postgres")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--server-faults", type=int, metavar="N", help="instead of killing nodes, harm PostgreSQL"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on", default="both", choices=(*ON, "both"), help="which database")
    parser.add_argument("--broken", default="", choices=("", *WAYS), help="break the product")
    parser.add_argument("--keep", type=Path, help="a folder, to be left as it is in the end")
    given = parser.parse_args()
    if given.server_faults:
        verdict = attack(
            "postgres", kills=0, faults=given.server_faults, seed=given.seed, broken=given.broken,
            keep=given.keep,
        )  # fmt: skip
        sys.exit(1 if verdict.wrong else 0)
    kinds = [kind for kind in ON if given.on in (kind, "both")]
    if given.on == "both" and given.broken and WAYS[given.broken].needs_others:
        kinds.remove("sqlite")
    found = [
        attack(kind, kills=given.kills, seed=given.seed, broken=given.broken, keep=given.keep)
        for kind in kinds
    ]
    sys.exit(1 if any(verdict.wrong for verdict in found) else 0)


def attack(
    kind: str, *, kills: int, seed: int, broken: str, keep: Path | None, faults: int = 0
) -> Verdict:
    """Kill nodes on one kind of database, or harm its server; print what came of it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="onbeat-chaos-") as temporary:
        folder = Path(temporary) if keep is None else keep / kind
        folder.mkdir(parents=True, exist_ok=keep is None)
        with database_for(kind, folder) as database:
            harms = OF_SERVER if faults else tuple(KINDS)
            driver = Driver(folder, database, seed=seed, broken=broken, harms=harms)
            history = driver.endure(faults) if faults else driver.run(kills)
        if keep is not None:
            history.keep(folder)
        verdict = judge(history)
    print(f"on {kind}, with {database.nodes} at a time")
    tell(driver, verdict, time.monotonic() - began)
    return verdict


@contextmanager
def database_for(kind: str, folder: Path) -> Iterator[Database]:
    """Make an empty database; what is not in the folder is gone in the end."""
    if kind == "sqlite":
        yield SqliteFile(folder / "onbeat.db")
        return
    with Server(new_folder(), durable=True) as server:
        yield PostgresDatabase(server)


def tell(driver: Driver, verdict: Verdict, seconds: float) -> None:
    """Print what was done, and what came of it."""
    counted = (("killed at", driver.kills), ("harmed by", driver.harm), ("called", driver.calls))
    for title, counts in counted:
        print(f"{title:22} {counts.total():6}")
        for name, times in sorted(counts.items()):
            print(f"  {name:20} {times:6}")
    print(f"{'seconds':22} {seconds:6.0f}")
    for name in ("ticks", "runs", "ranges", "attempts", "nodes", "handed_back", "lost"):
        print(f"{name.replace('_', ' '):22} {getattr(verdict, name):6}")
    print(f"{'  of them launched':22} {verdict.lost_launched:6}")
    for kind in dict.fromkeys((*COUNTED, *verdict.wrong)):
        print(f"{kind:22} {len(verdict.wrong.get(kind, ())):6}")
    for kind, texts in verdict.wrong.items():
        for text in texts[:MOST_TOLD]:
            print(f"{kind}: {text}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

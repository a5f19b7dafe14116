"""Mutants of the product: each is one defect put in, and the checker has to find every one.

`python -m tests.sim.mutants` puts each into a copy of the source and plays seeds until one fails;
with `--contract` it runs the stores' contract suite instead, for those that are in a store or in
what a store decides by.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
STORE = "stores/sql"


@dataclass(frozen=True)
class Mutant:
    """A defect: in this file of the product, this text is replaced."""

    name: str
    file: str
    text: str
    by: str
    is_out_of_reach: bool = False  # of the simulator, whose nodes cannot do this: see the contract


MUTANTS = [
    Mutant(
        "launch before the announcement", "engine/dispatcher.py",
        "                announced = await self._store.announce(self._node, claimed)\n",
        "                self.launch(claimed, sent)\n"
        "                await self._store.announce(self._node, claimed)\n"
        "                announced = []\n                return len(claimed)\n",
    ),
    Mutant(
        "launch past the lease", "engine/dispatcher.py",
        "is_late = self._clock.monotonic() > latest", "is_late = False",
    ),
    Mutant(
        "a claimed run that was not announced stays claimed", "engine/dispatcher.py",
        "        self._hand_back([attempt for attempt in claimed if attempt.run_id not in known])\n",
        "",
    ),
    Mutant(
        "an outcome is dropped when the store fails", "engine/dispatcher.py",
        "                return await call()\n            except StoreFailed as broken:\n",
        "                return await call()\n            except StoreFailed as broken:\n"
        "                return []\n",
    ),
    Mutant(
        "the due row is moved, the runs are written in another transaction", f"{STORE}/planning.py",
        "    replace_due(tx, due)\n    unoffered =",
        "    replace_due(tx, due)\n    tx.connection.execute('RELEASE a_call')\n"
        "    tx.connection.execute('COMMIT')\n    tx.connection.execute('BEGIN IMMEDIATE')\n"
        "    tx.connection.execute('SAVEPOINT a_call')\n    unoffered =",
    ),
    Mutant(
        "the due row is moved before the run row, each by itself", f"{STORE}/planning.py",
        "    done = carry_out(tx, decided, starts_for, slots)\n",
        "    replace_due(tx, due)\n"
        "    tx.connection.execute('RELEASE a_call')\n    tx.connection.execute('COMMIT')\n"
        "    tx.connection.execute('BEGIN IMMEDIATE')\n    tx.connection.execute('SAVEPOINT a_call')\n"
        "    done = carry_out(tx, decided, starts_for, slots)\n",
    ),
    Mutant(
        "the due row is left out after an edit", f"{STORE}/defining.py",
        "(run_at,) = _go_on(tx, [(schedule, known.state, until)], held=known.paused)",
        "(run_at,) = _go_on(tx, [(schedule, known.state, until)], held=True)",
    ),
    Mutant(
        "an edit forgets what was due", f"{STORE}/defining.py",
        "        decisions = decide_all(schedule, run_at, unfinished, past, now=tx.now)\n",
        "        decisions = []\n",
    ),
    Mutant(
        "an edit fires the past again", f"{STORE}/defining.py",
        "        until = max(known.state.decided_run_at, tx.now // 1000)\n",
        "        until = tx.now // 1000 - 60\n",
    ),
    Mutant(
        "finish without the fence", f"{STORE}/running.py",
        " AND r.fence = given.fence AND r.status = 'STARTED'\n   AND NOT EXISTS (", "\n   AND NOT EXISTS (",
    ),
    Mutant(
        "a success forgets who waits for it", f"{STORE}/running.py",
        "WHERE q.schedule_id = r.schedule_id AND q.blocked_by", "WHERE q.schedule_id = '' AND q.blocked_by",
    ),
    Mutant(
        "announce without the fence", f"{STORE}/running.py",
        " WHERE r.run_id = held.id AND r.fence = held.token\n"
        "   AND r.status = 'ENQUEUED' AND r.leased_by || '' = ?2\n",
        " WHERE r.run_id = held.id AND r.status = 'ENQUEUED'\n",
        is_out_of_reach=True,  # whoever comes late is off the list of nodes, and announces nothing
    ),
    Mutant(
        "a claim keeps the old fence", f"{STORE}/running.py", "fence=row.fence + 1,", "fence=max(row.fence, 1),",
    ),
    Mutant(
        "announce during a pause", f"{STORE}/running.py",
        "   AND (r.request_id <> '' OR NOT EXISTS (\n"
        "        SELECT 1 FROM schedules s WHERE s.schedule_id = r.schedule_id AND s.paused = 1))\n",
        "",
    ),
    Mutant(
        "claim during a pause", "stores/sqlite/database.py",
        " AND (s.paused = 0 OR r.request_id <> '')", "",
    ),
    Mutant(
        "a retry under a new key", "core/runs.py",
        'else f"{schedule_id}:{run_at}"', 'else f"{schedule_id}:{run_at + 1}"',
    ),
    Mutant(
        "a retry that comes too soon", "core/plan.py",
        "return Retry(now + policy.retry[run.attempt - 1], outcome.reason)",
        "return Retry(now, outcome.reason)",
    ),
    Mutant(
        "a signal is retried", "core/plan.py",
        "if outcome.retryable and not superseded", "if not superseded",
    ),
    Mutant(
        "a lost run is tried again unasked", "core/plan.py",
        "if may_again and not superseded:", "if not superseded:",
    ),
    Mutant(
        "a skip without a blocker", "core/plan.py",
        "                self._retries.append(run)\n",
        "                self._blocker = run.run_at\n",
    ),
    Mutant(
        "a manual run stands in the way", "core/runs.py",
        "if self.request_id or self.blocked_by is not None or self.awaits_retry:",
        "if self.blocked_by is not None or self.awaits_retry:",
    ),
    Mutant(
        "a manual run takes a tick's row", f"{STORE}/defining.py",
        "(run_id,), run_at, iteration = tx.take_run_ids(1), tx.now // 1000, known.state.iteration + 1",
        "(run_id,), run_at, iteration = tx.take_run_ids(1), known.run_at or tx.now // 1000, 1\n"
        "    tx.run('UPDATE due SET run_at = run_at + 1, due_at = due_at + 1000 '\n"
        "           'WHERE schedule_id = ?1', (schedule_id,))",
    ),
    Mutant(
        "early jitter", "core/plan.py",
        'return at + _share(f"jitter:', 'return at - _share(f"jitter:',
    ),
    Mutant(
        "jitter that is not the tick's own", "core/plan.py",
        'f"jitter:{schedule.schedule_id}:{run_at}"', 'f"jitter:{schedule.schedule_id}"',
    ),
    Mutant(
        "missed ticks are counted one too few", "core/plan.py",
        "1 + schedule.trigger.count(first + 1, last + 1, past)",
        "schedule.trigger.count(first + 1, last + 1, past)",
    ),
    Mutant(
        "missed ticks vanish", "core/plan.py",
        '    deciding.skip(_ticks(schedule, run_at, missed, past), "missed")\n'
        "    return deciding.next_planned(missed)\n",
        "    return deciding.next_planned(missed)\n",
    ),
    Mutant(
        "grace is not kept", "core/plan.py",
        "    is_missed = due_at(schedule, run_at, past) < now - policy.grace\n",
        "    is_missed = False\n",
    ),
    Mutant(
        "queued runs are released last first", "core/plan.py",
        "first = min(waiting, key=lambda run: run.run_at, default=None)",
        "first = max(waiting, key=lambda run: run.run_at, default=None)",
    ),
    Mutant(
        "the queue is never released", "core/plan.py",
        "    waiting = [run for run in runs if run.blocked_by is not None]\n", "    waiting = []\n",
    ),
    Mutant(
        "a fresh tick leaves the retry in place", "core/plan.py",
        "        self.decisions += map(Supersede, self._retries)\n", "",
    ),
    Mutant(
        "max_runs is not counted", f"{STORE}/deciding.py",
        "runs_used = runs_used + ?2", "runs_used = runs_used",
    ),
    Mutant(
        "a pause leaves no range", f"{STORE}/defining.py",
        "        if aside is not None:\n            decisions = catch_up",
        "        if aside is not None and catchup:\n            decisions = catch_up",
    ),
    Mutant(
        "a closed gate is not read by the planner", f"{STORE}/planning.py",
        "        if not gate_is_open(tx):\n            return Planned(0)\n", "",
    ),
    Mutant(
        "the dead node's claims are not freed", f"{STORE}/running.py",
        "            free(tx, (run.run_id, fence))\n", "            pass\n",
    ),
    Mutant(
        "the dead node's started runs start again", f"{STORE}/running.py",
        "        if run.status is Status.STARTED:\n            _end(",
        "        if run.status is Status.STARTED and False:\n            _end(",
    ),
    Mutant(
        "a deletion leaves what waits", f"{STORE}/defining.py",
        '            tx.run(END_WAITING, (run.run_id, "CANCELED", "canceled", tx.now, None, told))\n'
        "            tx.tell(RunCanceled(",
        "            (RunCanceled(",
    ),
    Mutant(
        "a pause is answered and not done", f"{STORE}/defining.py",
        "    known = _held(tx, schedule_id)\n    if known.paused:\n        return False\n",
        "    return True\n",
    ),
    Mutant(
        "an edit calls what is on time missed", "core/plan.py",
        "    found = plan(schedule, run_at, unfinished, past, now=now)\n    decisions, due = list(found.decisions), found.due\n",
        "    decisions, due = [], Due(run_at, due_at(schedule, run_at, past))\n",
    ),
    Mutant(
        "a queue of one", "core/plan.py", "QUEUE_LIMIT = 100", "QUEUE_LIMIT = 1",
    ),
    Mutant(
        "a poison definition stops the batch", f"{STORE}/planning.py",
        "        except Exception as broken:", "        except KeyError as broken:",
    ),
    Mutant(
        "an upsert that changes nothing is written", f"{STORE}/defining.py",
        "    if known.text == text and known.source == source:\n", "    if False:\n",
    ),
    Mutant(
        "of all missed ticks only one runs", "core/plan.py",
        '    if is_missed and policy.catchup == "once":\n',
        '    if is_missed and policy.catchup in ("once", "all"):\n',
    ),
    Mutant(
        "what is spread goes on beyond the next tick", "core/plan.py",
        "            until = min(until, due_at(schedule, following, deciding.past))\n",
        "            until = now + LOOKAHEAD // 6\n",
    ),
    Mutant(
        "what is spread starts at once", "core/plan.py",
        "at_once = min(max(1, count * STEP // (until - now)), MOST_DECISIONS)", "at_once = count",
    ),
    Mutant(
        "what is spread starts too soon", "core/plan.py",
        "deciding.rest_at = now + at_once * (until - now) // count",
        "deciding.rest_at = now + at_once * (until - now) // count // 2",
    ),
    Mutant(
        "a node catches up whatever there is", "engine/planner.py",
        "            self._left -= count\n", "",
    ),
    Mutant(
        "an edit forgets what waited for room", "core/plan.py",
        "min(due.due_at, due_at(schedule, due.run_at, past)) <= now", "due.due_at <= now",
    ),
    Mutant(
        "a gate that opens forgets what waited for room", f"{STORE}/defining.py",
        '"SELECT schedule_id FROM due WHERE run_at <= ?1 UNION',
        '"SELECT schedule_id FROM due WHERE due_at <= ?1 * 1000 UNION',
    ),
]  # fmt: skip


SIMULATION = ["-m", "tests.sim", "--stop", "--quiet", "--workers", "1", "--seeds"]
CONTRACT = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no"]


def kill(mutant, command):
    """Return how a mutant was found, or None if it lives."""
    with tempfile.TemporaryDirectory(prefix="onbeat-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        plant(mutant, source)
        paths = os.pathsep.join([str(source), str(ROOT)])
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True, text=True, check=False, cwd=folder, env=environment,
        )  # fmt: skip
    if done.returncode == 0:
        return None
    found = re.search(
        r"seed \d+: [^:]+(?=:)|(?<=^FAILED )\S+(?: \S+\])?", done.stdout, re.MULTILINE
    )
    if found:
        return found[0]
    last = done.stderr.strip().splitlines()
    return f"it broke: {last[-1] if last else done.stdout[-200:]}"


def plant(mutant, source):
    """Put a defect into a copy of the source."""
    file = source / "onbeat" / mutant.file
    text = file.read_text()
    assert text.count(mutant.text) == 1, (
        f"{mutant.name}: its text is there {text.count(mutant.text)} times"
    )
    file.write_text(text.replace(mutant.text, mutant.by))


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--contract", action="store_true", help="by the contract suite")
    given = parser.parse_args(arguments)
    simulation = [*SIMULATION, str(given.seeds)]
    contract = [*CONTRACT, "-k", "Sqlite", str(ROOT / "tests" / "stores" / "test_contract.py")]
    chosen = [mutant for mutant in MUTANTS if given.only in mutant.name]
    if given.contract:
        chosen = [mutant for mutant in chosen if mutant.file.startswith((STORE, "core/plan"))]

    def find(mutant):
        return kill(mutant, contract if given.contract or mutant.is_out_of_reach else simulation)

    alive = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, how in zip(chosen, pool.map(find, chosen), strict=True):
            print(
                f"{'ALIVE ' if how is None else 'killed'}  {mutant.name}: {how or 'nothing found it'}"
            )
            alive += how is None
    print(f"{len(chosen) - alive} of {len(chosen)} mutants killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())

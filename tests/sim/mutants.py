"""Mutants of the product: each is one defect put in, and the checker has to find every one.

`python -m tests.sim.mutants` puts each into a copy of the source and plays seeds until one fails;
with `--contract` it runs the stores' contract suite instead, for those that are in a store or in
what a store decides by.
"""

import argparse
import os
import re
import shutil
import signal
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
        "a due row of older zone data is decided", f"{STORE}/planning.py",
        "    if known.cursor is not None:", "    if False:",
    ),
    Mutant(
        "a program with older zone data leaves no mark", f"{STORE}/rows.py",
        "    if zone_data(tx) > VERSION:", "    if False:", is_out_of_reach=True,
    ),
    Mutant(
        "launch before the announcement", "engine/dispatcher.py",
        "        announced = await self._announced(claimed)\n        self.launch(announced, sent)\n",
        "        self.launch(claimed, sent)\n        announced = await self._announced(claimed)\n",
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
        '        return await until_answered(call, "outcomes wait to be recorded")\n',
        "        try:\n            return await call()\n"
        "        except StoreFailed:\n            return []\n",
    ),
    Mutant(
        "the due row is moved, the runs are written in another transaction", f"{STORE}/planning.py",
        "    write_due(tx, due)\n    return Planned(",
        "    write_due(tx, due)\n    tx.connection.execute('RELEASE a_call')\n"
        "    tx.connection.execute('COMMIT')\n    tx.connection.execute('BEGIN IMMEDIATE')\n"
        "    tx.connection.execute('SAVEPOINT a_call')\n    return Planned(",
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
        "the due row is left out after an edit", f"{STORE}/edits.py",
        "(run_at,) = set_positions(tx, [(schedule, known.state, until)], are_due=not known.paused)",
        "(run_at,) = set_positions(tx, [(schedule, known.state, until)], are_due=False)",
    ),
    Mutant(
        "an edit forgets what was due", "core/decide/edits.py",
        "    decisions = decide_edit(old, run_at, found.unfinished, found.past, now=now)\n",
        "    decisions = ()\n",
    ),
    Mutant(
        "an edit without a node gives its runs no limit", "core/decide/edits.py",
        "    if not found.is_down:\n", "    if True:\n",
    ),
    Mutant(
        "an edit without a node limits only what is not queued", "core/decide/edits.py",
        "(isinstance(each, Queue) and each.behind not in started)", "False",
        is_out_of_reach=True,  # few queues are edited after a node has stopped in good order
    ),
    Mutant(
        "a limit of an edit is not lifted by a node in time", f"{STORE}/rows.py",
        "    if not run.was_tried and (start_by is None", "    if True or (start_by is None",
        is_out_of_reach=True,  # few nodes come within the grace, and run long enough
    ),
    Mutant(
        "a run that is moved loses the limit of an edit", f"{STORE}/edits.py",
        "        if start_by is not None and start_by == limit:\n", "        if False:\n",
    ),
    Mutant(
        "an edit fires the past again", f"{STORE}/edits.py",
        "        until = max(known.state.decided_run_at, tx.now // 1000)\n",
        "        until = tx.now // 1000 - 60\n",
    ),
    Mutant(
        "finish without the fence", f"{STORE}/ending.py",
        " AND r.fence = given.fence AND r.status = 'STARTED'\n   AND NOT EXISTS (", "\n   AND NOT EXISTS (",
    ),
    Mutant(
        "a success forgets who waits for it", f"{STORE}/ending.py",
        "WHERE q.schedule_id = r.schedule_id AND q.blocked_by", "WHERE q.schedule_id = '' AND q.blocked_by",
    ),
    Mutant(
        "announce without the fence", f"{STORE}/claiming.py",
        " WHERE r.run_id = held.id AND r.fence = held.token\n"
        "   AND r.status = 'ENQUEUED' AND r.leased_by || '' = ?2\n",
        " WHERE r.run_id = held.id AND r.status = 'ENQUEUED'\n",
        is_out_of_reach=True,  # whoever comes late is off the list of nodes, and announces nothing
    ),
    Mutant(
        "a claim keeps the old fence", f"{STORE}/claiming.py", "fence=row.fence + 1,", "fence=max(row.fence, 1),",
    ),
    Mutant(
        "announce during a pause", f"{STORE}/claiming.py",
        "   AND (r.request_id <> '' OR r.triggered_by = 'backfill' OR {GOES_ON} OR NOT EXISTS (\n"
        "        SELECT 1 FROM schedules s WHERE s.schedule_id = r.schedule_id AND s.paused = 1))\n",
        "",
    ),
    Mutant(
        "claim during a pause", "stores/sqlite/database.py",
        "s.paused = 0 OR r.request_id", "1 = 1 OR r.request_id",
    ),
    Mutant(
        "a retry under a new key", "core/runs/run.py",
        'else f"{schedule_id}:{run_at}"', 'else f"{schedule_id}:{run_at + 1}"',
    ),
    Mutant(
        "a retry that comes too soon", "core/decide/outcomes.py",
        "return Retry(now + delays[tries - 1] + vary, outcome.reason)",
        "return Retry(now, outcome.reason)",
    ),
    Mutant(
        "a signal is retried", "core/decide/outcomes.py",
        "if outcome.retryable and not is_last", "if not is_last",
    ),
    Mutant(
        "a lost run is tried again unasked", "core/decide/outcomes.py",
        'wanted = policy.on_lost == "retry" or run.is_found_again', "wanted = True",
    ),
    Mutant(
        "a skip without a blocker", "core/decide/overlap.py",
        "                self._retries.append(run)\n",
        "                self._flying.append(run)\n",
    ),
    Mutant(
        "a manual run stands in the way", "core/runs/run.py",
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
        "early jitter", "core/decide/plan.py",
        'return begin + share(f"jitter:', 'return begin - share(f"jitter:',
    ),
    Mutant(
        "jitter that is not the tick's own", "core/decide/plan.py",
        'f"jitter:{schedule.schedule_id}:{run_at}"', 'f"jitter:{schedule.schedule_id}"',
    ),
    Mutant(
        "missed ticks are counted one too few", "core/decide/plan.py",
        "1 + schedule.trigger.count(first + 1, last + 1, past)",
        "schedule.trigger.count(first + 1, last + 1, past)",
    ),
    Mutant(
        "missed ticks vanish", "core/decide/plan.py",
        '    deciding.skip(_ticks(schedule, run_at, missed, past), "missed", rule)\n'
        "    return _next_planned(deciding, missed)\n",
        "    return _next_planned(deciding, missed)\n",
    ),
    Mutant(
        "grace is not kept", "core/decide/plan.py",
        "    is_missed = due_at(schedule, run_at, past) < now - policy.lateness\n",
        "    is_missed = False\n",
    ),
    Mutant(
        "queued runs are released last first", "core/decide/outcomes.py",
        "first = min(waiting, key=lambda run: (run.is_backfill, run.run_at), default=None)",
        "first = max(waiting, key=lambda run: (not run.is_backfill, run.run_at), default=None)",
    ),
    Mutant(
        "the queue is never released", "core/decide/outcomes.py",
        "    waiting = [run for run in runs if run.blocked_by is not None]\n", "    waiting = []\n",
    ),
    Mutant(
        "a fresh tick leaves the retry in place", "core/decide/overlap.py",
        "        self.decisions += (Drop(run, newer=tick.run_at) for run in self._retries)\n", "",
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
        "the dead node's claims are not freed", f"{STORE}/ending.py",
        "            free(tx, (row[1], row[-1]))\n", "            pass\n",
    ),
    Mutant(
        "the dead node's started runs start again", f"{STORE}/ending.py",
        "        if row[3] == Status.STARTED:\n            end(",
        "        if row[3] == Status.STARTED and False:\n            end(",
    ),
    Mutant(
        "a deletion leaves what waits", f"{STORE}/defining.py",
        '            cancel_waiting(tx, schedule_id, run, "the schedule was deleted")\n',
        "            pass\n",
    ),
    Mutant(
        "a pause is answered and not done", f"{STORE}/defining.py",
        "    put_to_rest(tx, schedule_id, note=note or known.pause_note, until=until)\n", "",
    ),
    Mutant(
        "an edit calls what is on time missed", "core/decide/plan.py",
        "    trigger, limit = schedule.trigger, now - schedule.policy.lateness\n    late, end",
        "    trigger, limit = schedule.trigger, now + 1\n    late, end",
    ),
    Mutant(
        "an edit catches up", "core/decide/plan.py",
        '        deciding.skip(_ticks(schedule, first, late, past), "edited")\n',
        '        deciding.decide(_ticks(schedule, first, late, past), "catchup")\n',
    ),
    Mutant(
        "an edit leaves the catch-up to the new definition", "core/decide/edits.py",
        "    return old is None or not new.is_timed_like(old)\n", "    return old is None\n",
    ),
    Mutant(
        "an edit records the policy's reason", "core/decide/plan.py",
        'late, past), "edited")', 'late, past), "missed")',
    ),
    Mutant(
        "a claim starts what the schedule says now", f"{STORE}/claiming.py",
        "            schedule = read_definition(row.schedule_id, row.definition)\n",
        "            schedule = read_definition(row.schedule_id, row.current or row.definition)\n",
    ),
    Mutant(
        "an end is judged by what the schedule says now", f"{STORE}/ending.py",
        "    schedule, current = definitions_of(tx, schedule_id, run.revision)\n",
        "    _, schedule = definitions_of(tx, schedule_id, run.revision)\n    current = schedule\n",
    ),
    Mutant(
        "switches are those of the run's revision", f"{STORE}/claiming.py",
        "    now = schedule if row.current is None else read_definition(row.schedule_id, row.current)\n",
        "    now: Schedule | None = schedule\n",
    ),
    Mutant(
        "a run that is moved keeps its group", f"{STORE}/edits.py",
        "priority = ?4, grp = ?5, inputs", "priority = ?4, grp = coalesce(grp, ?5), inputs",
    ),
    Mutant(
        "a run that is moved keeps what was rendered", f"{STORE}/edits.py",
        "rendered = NULL, updated_at", "updated_at",
    ),
    Mutant(
        "a run that is moved keeps its deadline", f"{STORE}/edits.py",
        "deadline_at = ?7,", "deadline_at = coalesce(deadline_at, ?7),",
    ),
    Mutant(
        "a claimed run is moved", f"{STORE}/edits.py",
        "AND status = 'ENQUEUED' AND leased_by IS NULL\n", "AND status = 'ENQUEUED'\n",
    ),
    Mutant(
        "a queue of one", "core/decide/overlap.py",
        "self._waiting >= policy.queue_limit:\n", "self._waiting >= 1:\n",
    ),
    Mutant(
        "a poison definition stops the batch", f"{STORE}/planning.py",
        "        except Exception as broken:", "        except KeyError as broken:",
    ),
    Mutant(
        "a beginning goes back before what is decided", f"{STORE}/defining.py",
        "since = min(until, max(decided, last))", "since = min(until, beginning.ticked_at // 1000)",
    ),
    Mutant(
        "an upsert that changes nothing is written", f"{STORE}/defining.py",
        "    if known.text != text:\n", "    if True:\n",
    ),
    Mutant(
        "of all missed ticks only one runs", "core/decide/plan.py",
        '    if is_missed and policy.catchup == "once":\n',
        '    if is_missed and policy.catchup in ("once", "all"):\n',
    ),
    Mutant(
        "what is spread goes on beyond the next tick", "core/decide/plan.py",
        "            until = min(until, due_at(schedule, following, deciding.past))\n",
        "            until = now + deciding.lookahead // 6\n",
    ),
    Mutant(
        "what is spread starts at once", "core/decide/plan.py",
        "at_once = min(max(1, count * STEP // (until - now)), MOST_DECISIONS)", "at_once = count",
    ),
    Mutant(
        "what is spread starts too soon", "core/decide/plan.py",
        "deciding.rest_at = now + at_once * (until - now) // count",
        "deciding.rest_at = now + at_once * (until - now) // count // 2",
    ),
    Mutant(
        "a node catches up whatever there is", "engine/planner.py",
        "            self._left -= count\n", "",
    ),
    Mutant(
        "a gate that opens forgets what waited for room", f"{STORE}/defining.py",
        '"SELECT schedule_id FROM due WHERE run_at <= ?1 UNION',
        '"SELECT schedule_id FROM due WHERE due_at <= ?1 * 1000 UNION',
    ),
    # -- overlap: replace, queue_limit, max_active
    Mutant(
        "what is replaced is not asked to end", "core/decide/outcomes.py",
        "            decisions.append(AskToEnd(run))\n", "            pass\n",
    ),
    Mutant(
        "what is replaced is not waited for", "core/decide/outcomes.py",
        "        left = run\n", "        left = None\n",
    ),
    Mutant(
        "older ticks of a plan run beside the newest", "core/decide/overlap.py",
        '            self._unmake(place, "superseded", tick)\n', "            pass\n",
    ),
    Mutant(
        "what waits is not replaced", "core/decide/overlap.py",
        "make_way((*self._flying, *self._queue_only()), newer", "make_way(self._flying, newer",
    ),
    Mutant(
        "a run that was asked to end is tried again", "core/decide/outcomes.py",
        "is_last = superseded or run.ending is not None or schedule is None",
        "is_last = superseded or schedule is None",
    ),
    Mutant(
        "a node does not hear that a run is to end", "engine/node.py",
        "            self._asked = self._asked or changed or blind\n", "",
    ),
    Mutant(
        "a node forgets a run that it is to end", "engine/node.py",
        "self._asked = self._asked or not self.dispatcher.end(asked)", "self.dispatcher.end(asked)",
        is_out_of_reach=True,  # by the time it looks, a run has begun
    ),
    Mutant(
        "an attempt that is handed back is announced again under its number", f"{STORE}/ending.py",
        "SET deferrals = r.deferrals + CASE WHEN r.status = 'STARTED' THEN 1 ELSE 0 END,",
        "SET attempt = r.attempt - CASE WHEN r.status = 'STARTED' THEN 1 ELSE 0 END,",
    ),
    Mutant(
        "an attempt that is handed back costs a retry", f"{STORE}/ending.py",
        "SET deferrals = r.deferrals + CASE WHEN r.status = 'STARTED' THEN 1 ELSE 0 END,",
        "SET deferrals = r.deferrals,",
    ),
    Mutant(
        "a run that was handed back is no more in the way", "core/runs/run.py",
        "return self.attempt > 0 and not self.was_handed_back",
        "return self.attempt > 0",
    ),
    Mutant(
        "a run that is asked to end is handed back", f"{STORE}/ending.py",
        '        end(tx, row, Canceled("asked to end before it was launched"))\n', "        pass\n",
        is_out_of_reach=True,  # that it comes too late to be launched is rare enough
    ),
    Mutant(
        "a queue that keeps the latest keeps the first", "core/decide/overlap.py",
        '            if policy.queue_keep == "first":\n', "            if True:\n",
    ),
    Mutant(
        "a queue that keeps the latest drops the last", "core/decide/overlap.py",
        'self.decisions.append(Drop(waiting[0], "queue_full", tick.run_at))\n'
        "            self._queue.remove(waiting[0])\n",
        'self.decisions.append(Drop(waiting[-1], "queue_full", tick.run_at))\n'
        "            self._queue.remove(waiting[-1])\n",
    ),
    Mutant(
        "backfilled runs count for the limit of a queue", "core/decide/overlap.py",
        "sum(not run.is_backfill for run in self._queue)", "len(self._queue)",
    ),
    Mutant(
        "one more is active than allowed", "core/decide/overlap.py",
        "flying < policy.max_active:", "flying <= policy.max_active:",
    ),
    Mutant(
        "what is judged again may be one too many", "core/decide/outcomes.py",
        "len(others) < most:", "len(others) <= most:",
    ),
    # -- rate, disabled, pauses
    Mutant(
        "one more than the rate", "core/decide/overlap.py",
        "for at in past.rated) >= rate.most", "for at in past.rated) > rate.most",
    ),
    Mutant(
        "the rate forgets what was decided", f"{STORE}/deciding.py",
        "        if rate is not None and begun:\n", "        if rate is not None and begun > 1:\n",
    ),
    Mutant(
        "an edit does not look at the rate", "core/decide/plan.py",
        'return Skip(tick, "rate") if is_rated(schedule.policy, past, now) else Launch(tick)',
        "return Launch(tick)",
    ),
    Mutant(
        "what the rate leaves out supersedes a retry", "core/decide/overlap.py",
        '            self.decisions.append(Skip(tick, "rate"))\n',
        "            self.decisions += map(Drop, self._retries)\n"
        '            self._retries.clear()\n            self.decisions.append(Skip(tick, "rate"))\n',
    ),
    Mutant(
        "what is disabled starts", "core/decide/plan.py",
        "    if not schedule.policy.enabled:\n", "    if False:\n",
    ),
    Mutant(
        "a disabled target is started", "core/decide/plan.py",
        'return None if schedule.target.is_enabled else "disabled_target"', "return None",
    ),
    Mutant(
        "what is disabled is left out one by one", "core/decide/plan.py",
        "    last = _last_due_before(schedule, run_at, past, now + 1)\n"
        "    found = Skip(_ticks(",
        "    last = run_at\n    found = Skip(_ticks(",
    ),
    Mutant(
        "a pause does not end by itself", f"{STORE}/planning.py",
        "    go_on_after_rest(tx, resting)\n", "",
    ),
    Mutant(
        "a pause that ends by itself catches up", f"{STORE}/defining.py",
        "        _resume(tx, known, catchup=False)\n", "        _resume(tx, known, catchup=True)\n",
    ),
    Mutant(
        "a pause ends before its time", f"{STORE}/known.py",
        "Due(until // 1000, until)", "Due(until // 1000, until - 600)",
    ),
    Mutant(
        "a pause lasts for as long as nobody looks", f"{STORE}/defining.py",
        "end if over else None, catchup=catchup", "None, catchup=catchup",
    ),
    Mutant(
        "what waits starts, though it is disabled by now", f"{STORE}/claiming.py",
        "        off = _switched_off(row, schedule, run)\n", "        off = None\n",
    ),
    Mutant(
        "a target tells of a run that a node has", f"{STORE}/reporting.py",
        "        raise RunIsHeld(run_id)\n", "        pass\n",
    ),
    Mutant(
        "one failure more before a pause", f"{STORE}/ending.py",
        "failures < pause_after:", "failures <= pause_after:",
    ),
    Mutant(
        "failures are not forgotten when a schedule goes on", f"{STORE}/defining.py",
        "SET consecutive_failures = 0 WHERE", "SET consecutive_failures = consecutive_failures WHERE",
    ),
    Mutant(
        "a success does not end a row of failures", f"{STORE}/ending.py",
        "last_exit = 0, consecutive_failures = 0\n", "last_exit = 0\n",
    ),
    # -- groups, priorities, deadlines
    Mutant(
        "one more in a group than places", f"{STORE}/claiming.py",
        "left = places.get(name, 0) - used.get(name, 0)",
        "left = places.get(name, 0) - used.get(name, 0) + 1",
    ),
    Mutant(
        "a group forgets what it gave places to just now", f"{STORE}/claiming.py",
        "            self._places[group] -= 1\n", "",
    ),
    Mutant(
        "what was accepted leaves its place in the group", f"{STORE}/rows.py",
        "(leased_by IS NOT NULL OR status = 'STARTED' OR {GOES_ON})",
        "leased_by IS NOT NULL",
    ),
    Mutant(
        "a run of a group is announced directly", "core/policy.py",
        "waits = self.group or self.priority", "waits = self.priority",
    ),
    Mutant(
        "the lowest priority first", "stores/sqlite/database.py",
        "ORDER BY r.priority DESC,", "ORDER BY r.priority,",
    ),
    Mutant(
        "a run has twice its time to start", f"{STORE}/deciding.py",
        "else max(tick.due_at, now) + wait, start_by)", "else max(tick.due_at, now) + 2 * wait, start_by)",
    ),
    Mutant(
        "nothing that waits too long ends", f"{STORE}/ending.py",
        "    for *row, group, reason, detail in waiting:", "    for *row, group, reason, detail in waiting[:0]:",
    ),
    Mutant(
        "a deadline counts from when a tick was due", f"{STORE}/deciding.py",
        "max(tick.due_at, now) + wait", "tick.due_at + wait",
    ),
    Mutant(
        "a retry keeps its old deadline", f"{STORE}/ending.py",
        "CASE WHEN ?9 = 1 THEN deadline_at ELSE ?10 END", "CASE WHEN ?10 > 0 THEN deadline_at END",
    ),
    Mutant(
        "a target that is busy gives a new deadline", f"{STORE}/ending.py",
        "CASE WHEN ?9 = 1 THEN deadline_at ELSE ?10 END", "?10",
    ),
    Mutant(
        "nobody says that the group was full", f"{STORE}/ending.py",
        '        return "group_full"\n', '        return "deadline"\n',
    ),
    Mutant(
        "nobody says that the target was busy", f"{STORE}/ending.py",
        '    if reason == "busy":\n', "    if False:\n",
    ),
    # -- conditions
    Mutant(
        "a condition is not asked", f"{STORE}/claiming.py",
        "        when=None if row.goes_on else schedule.when,\n", "",
    ),
    Mutant(
        "a condition that says no is launched", "engine/dispatcher.py",
        "            if answer is False:\n", "            if answer is None:\n",
    ),
    Mutant(
        "a condition without an answer holds", "core/decide/outcomes.py",
        "        case _:\n            return None\n", "        case _:\n            return True\n",
    ),
    Mutant(
        "a run whose condition gave no answer stays claimed", "engine/dispatcher.py",
        "        if await self._announced([attempt]):\n",
        "        if await self._store.announce(self._node, [attempt]):\n",
        is_out_of_reach=True,  # it takes a pause in just that moment
    ),
    Mutant(
        "a run with a condition is announced directly", "core/schedule.py",
        "self.target.starts_directly and self.when is None", "self.target.starts_directly",
    ),
    # -- what targets say, and users of runs
    Mutant(
        "an accepted run has until the next tick", f"{STORE}/ending.py",
        "    if isinstance(found, Await):\n",
        "    if isinstance(found, Await):\n"
        "        due = tx.one('SELECT due_at FROM due WHERE schedule_id = ?1', (schedule_id,))\n"
        "        if due is not None and policy.timeout is None:\n"
        "            until = max(tx.now + 1000, min(found.deadline_at, due[0] - 1))\n"
        "            found = Await(until, found.external_id)\n",
    ),
    Mutant(
        "an accepted run has an hour, whatever its timeout is", "core/decide/outcomes.py",
        "    if policy.timeout is not None:\n        return policy.timeout\n", "",
    ),
    Mutant(
        "what was accepted has all the time", f"{STORE}/ending.py",
        '    end(tx, row, Failed(UNREPORTED, "timeout", retryable=False))\n', "    pass\n",
    ),
    Mutant(
        "what was accepted, and not told of, is tried again", f"{STORE}/ending.py",
        'Failed(UNREPORTED, "timeout", retryable=False)', 'Failed(UNREPORTED, "timeout")',
    ),
    Mutant(
        "a run that was asked to end is accepted", "core/decide/outcomes.py",
        "            if run.ending is not None:\n                return Ended(Status.CANCELED",
        "            if False:\n                return Ended(Status.CANCELED",
    ),
    Mutant(
        "a target that is busy uses up a retry", "core/decide/outcomes.py",
        "delays, tries = policy.retry.delays, run.attempt - run.deferrals",
        "delays, tries = policy.retry.delays, run.attempt",
    ),
    Mutant(
        "a target that is busy is asked at once", "core/decide/outcomes.py",
        'Retry(now + outcome.retry_in, "busy", is_deferral=True)', 'Retry(now, "busy", is_deferral=True)',
    ),
    Mutant(
        "what is gone is tried again", "core/decide/outcomes.py",
        '            return Ended(Status.FAILED, "invalid_target", release)\n',
        '            return Retry(now + 1000, "invalid_target")\n',
    ),
    Mutant(
        "a retry varies by more than its jitter", "core/decide/outcomes.py",
        "policy.retry.jitter + 1)", "2 * policy.retry.jitter + 1)",
    ),
    Mutant(
        "a waiting run cannot be canceled", f"{STORE}/ending.py",
        "        cancel_waiting(tx, schedule_id, run, told)\n", "        pass\n",
    ),
    Mutant(
        "a canceled run releases nobody", f"{STORE}/ending.py",
        "        cancel_waiting(tx, schedule_id, run, told)\n        release_next(tx, schedule_id)\n",
        "        cancel_waiting(tx, schedule_id, run, told)\n",
    ),
    Mutant(
        "what a target tells is not recorded", f"{STORE}/reporting.py",
        "    if status is Status.STARTED:\n        end(tx, row, outcome)\n",
        "    if status is Status.STARTED:\n        pass\n",
    ),
    # -- ticks that follow events
    Mutant(
        "an event has no tick", f"{STORE}/causing.py",
        "    if due is not None and (known.run_at is None or due.run_at < known.run_at):\n",
        "    if due is not None and known.run_at is None:\n",
    ),
    Mutant(
        "an event moves the tick of another", "core/decide/follow.py",
        "found[cause] = Happened(past.happened[cause].at, past.happened[cause].count + 1)",
        "found[cause] = Happened(max(now // 1000, until + 1), past.happened[cause].count + 1)",
    ),
    Mutant(
        "an event is not counted that joins another", "core/decide/follow.py",
        "past.happened[cause].count + 1)", "past.happened[cause].count)",
    ),
    Mutant(
        "an event undoes a tick that was decided", "core/decide/follow.py",
        "        if tick is not None and tick > until and trigger.has(tick, past):\n",
        "        if tick is not None:\n",
    ),
    Mutant(
        "a failure is followed as a success is", "core/decide/follow.py",
        '    Status.FAILED: ("failure", "completion"),\n',
        '    Status.FAILED: ("success", "failure", "completion"),\n',
    ),
    Mutant(
        "a schedule that names itself does not follow itself", f"{STORE}/causing.py",
        "        for name in (*own, schedule_id):\n", "        for name in own or [schedule_id]:\n",
    ),
    Mutant(
        "nothing follows a start", f"{STORE}/nodes.py",
        "    if is_start:\n        cause_startup(tx)\n", "",
    ),
    Mutant(
        "an event counts from what is decided, whatever its delay", "core/decide/follow.py",
        "until + 1 - delay", "until + 1",
    ),
    Mutant(
        "a paused schedule takes no events", f"{STORE}/causing.py",
        "        if schedule is None or known.deleted:\n",
        "        if schedule is None or known.deleted or known.paused:\n",
    ),
    Mutant(
        "an end that others follow is told alone", f"{STORE}/ending.py",
        "    in_order = followed | {", "    in_order = {",
    ),
    # -- jitter around, backfills
    Mutant(
        "jitter around a tick is after it", "core/decide/plan.py",
        "    begin = at - jitter if around else at\n", "    begin = at\n",
    ),
    Mutant(
        "a backfill runs what ran", "core/decide/backfill.py",
        "        case Status.SUCCESS | Status.FAILED:\n            return Refuse(",
        "        case Status.SUCCESS | Status.FAILED:\n            return None\n            return Refuse(",
    ),
    Mutant(
        "a backfill runs what a run stood for", "core/decide/backfill.py",
        "            refused = _refused(tick, shared)\n", "            refused = None\n",
    ),
    Mutant(
        "a backfill runs what is undecided", "core/decide/backfill.py",
        "        if tick > until:\n", "        if tick > until + 60:\n",
    ),
    Mutant(
        "a range still stands for what was backfilled", f"{STORE}/backfilling.py",
        "    work.make_room(wanted)\n", "",
    ),
    Mutant(
        "the rest of a range is forgotten", f"{STORE}/backfilling.py",
        "                self._keep_rest(row, own, left)\n", "                pass\n",
    ),
    Mutant(
        "a backfilled run stands in the way of ticks", "core/runs/run.py",
        "        if self.is_backfill and self.status is Status.ENQUEUED and not self.leased:\n",
        "        if False:\n",
    ),
    Mutant(
        "a fresh tick ends what was backfilled", "core/decide/overlap.py",
        "if run.awaits_retry and not run.is_asked_for:", "if run.awaits_retry and not run.request_id:",
    ),
    Mutant(
        "backfilled runs are released first", "core/decide/outcomes.py",
        "first = min(waiting, key=lambda run: (run.is_backfill, run.run_at), default=None)",
        "first = min(waiting, key=lambda run: run.run_at, default=None)",
    ),
    Mutant(
        "a backfilled run is not judged", "core/runs/run.py",
        "self.due_at > self.created_at or self.is_backfill", "self.due_at > self.created_at",
    ),
    Mutant(
        "a pause holds what was backfilled", "stores/sqlite/database.py",
        "s.paused = 0 OR r.request_id <> '' OR r.triggered_by = 'backfill'",
        "s.paused = 0 OR r.request_id <> ''",
    ),
]  # fmt: skip


LONGEST = 600  # seconds: three times what all seeds take
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
        with subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=folder, env=environment, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                printed, errors = process.communicate(timeout=LONGEST)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with the workers that it has
                return f"it was not through after {LONGEST} s"
    if process.returncode == 0:
        return None
    found = re.search(r"seed \d+: [^:]+(?=:)|(?<=^FAILED )\S+(?: \S+\])?", printed, re.MULTILINE)
    if found:
        return found[0]
    last = errors.strip().splitlines()
    return f"it broke: {last[-1] if last else printed[-200:]}"


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
    parser.add_argument("--every", type=int, default=1, help="only one of so many: a sample")
    parser.add_argument("--contract", action="store_true", help="by the contract suite")
    given = parser.parse_args(arguments)
    simulation = [*SIMULATION, str(given.seeds)]
    suites = [
        str(ROOT / "tests" / "stores" / f"test_{name}.py")
        for name in ("contract", "policies", "edits", "zones")
    ]
    suites.append(str(ROOT / "tests" / "engine" / "test_node.py"))
    contract = [*CONTRACT, "-k", "Sqlite or looked_for_again", *suites]
    chosen = [mutant for mutant in MUTANTS if given.only in mutant.name][:: given.every]
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

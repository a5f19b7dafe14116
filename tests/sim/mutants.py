"""Mutants of the product: each is one defect put in, and the checker has to find every one.

`python -m tests.sim.mutants` puts each into a copy of the source and plays seeds until one fails;
with `--contract` it runs the contract suite of the stores instead, for the mutants of a store and
of what a store decides by. A mutant names a function, a class or a constant: see `mutate.py`.
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
from pathlib import Path

from tests.sim.mutate import (
    Mutant,
    delete,
    insert_after,
    insert_before,
    plant,
    replace,
    replace_sql,
)

ROOT = Path(__file__).parent.parent.parent
IN_CONTRACT = ("onbeat.stores.", "onbeat.core.decide.plan:")  # what the contract suite is about

COMMIT = """
$TX.connection.execute("RELEASE a_call")
$TX.connection.execute("COMMIT")
$TX.connection.execute("BEGIN IMMEDIATE")
$TX.connection.execute("SAVEPOINT a_call")
"""

MUTANTS = [
    Mutant("a due row of older zone data is decided", "onbeat.stores.sql.plan_due:plan_due",
           replace("$KNOWN.cursor is not None", "False")),
    Mutant("a program with older zone data leaves no mark", "onbeat.stores.sql.rows:replace_due",
           replace("zone_data(...) > VERSION", "False"), is_out_of_reach=True),
    Mutant("launch before the announcement", "onbeat.engine.starter:Starter._announce",
           replace("$ANNOUNCED = await self._announced($CLAIMED)\nself._running.launch($ANNOUNCED, $SENT)",
                   "self._running.launch($CLAIMED, $SENT)\n$ANNOUNCED = await self._announced($CLAIMED)")),
    Mutant("launch past the lease", "onbeat.engine.attempts:RunningAttempts._run",
           replace("self._clock.monotonic() > ...", "False")),
    Mutant("a claimed run that was not announced stays claimed",
           "onbeat.engine.starter:Starter._announced",
           delete("self._recorder.hand_back([$RUN for $RUN in ... if ...])")),
    Mutant("an outcome is dropped when the store fails",
           "onbeat.engine.recorder:OutcomeRecorder.until_answered",
           replace("return await until_answered($CALL, ...)",
                   "try:\n    return await $CALL()\nexcept Exception:\n    return []")),
    Mutant("the due row and the runs are written in two transactions",
           "onbeat.stores.sql.plan_due:plan_due", insert_after("write_due($TX, ...)", COMMIT)),
    Mutant("the due row is committed before the runs", "onbeat.stores.sql.plan_due:plan_due",
           replace("$DONE = carry_out($TX, $DECIDED, $NODE, $SLOTS)\nwrite_due($TX, $DUE)",
                   f"write_due($TX, $DUE)\n{COMMIT}$DONE = carry_out($TX, $DECIDED, $NODE, $SLOTS)")),
    Mutant("an edit leaves no due row", "onbeat.stores.sql.edits:edit",
           replace("not $KNOWN.paused", "False")),
    Mutant("an edit drops the ticks that are due", "onbeat.core.decide.edits:decide",
           replace("decide_edit(...)", "()")),
    Mutant("an edit without a node sets no limit", "onbeat.core.decide.edits:decide",
           replace("not $FOUND.is_down", "True")),
    Mutant("an edit without a node sets no limit for queued runs",
           "onbeat.core.decide.edits:_within_grace", replace("isinstance($DECISION, Queue)", "False"),
           is_out_of_reach=True),  # few queues are edited after a node has stopped in good order
    Mutant("the limit of an edit stays when a node is up in time",
           "onbeat.stores.sql.rows:lift_limit", replace("not $RUN.was_tried and ...", "True"),
           is_out_of_reach=True),  # few nodes start within the grace and run long enough
    Mutant("a moved run loses the limit of an edit", "onbeat.stores.sql.edits:move_waiting",
           replace("$LIMIT is not None and $LIMIT == ...", "False")),
    Mutant("an edit fires the past again", "onbeat.stores.sql.edits:edit",
           replace("max($DECIDED, $TX.now // 1000)", "$TX.now // 1000 - 60")),
    Mutant("finish without the fence", "onbeat.stores.sql.finish:SUCCEED_TOGETHER",
           replace_sql("AND r.fence = given.fence AND r.", "OR r.run_id = 0 AND r.")),
    Mutant("a success does not release the queue", "onbeat.stores.sql.finish:SUCCEED_TOGETHER",
           replace_sql("q.schedule_id = r.schedule_id", "q.schedule_id = ''")),
    Mutant("announce without the fence", "onbeat.stores.sql.claim:ANNOUNCE",
           replace_sql("AND r.fence = held.token", ""),
           is_out_of_reach=True),  # a node that is late is off the list, and announces nothing
    Mutant("a claim keeps the old fence", "onbeat.stores.sql.claim:_attempt",
           replace("$ROW.fence + 1", "max($ROW.fence, 1)")),
    Mutant("announce during a pause", "onbeat.stores.sql.claim:ANNOUNCE",
           replace_sql("s.paused = 1", "s.paused = 2")),
    Mutant("claim during a pause", "onbeat.stores.sqlite.database:WAITING",
           replace_sql("s.paused = 0", "1 = 1")),
    Mutant("a retry under a new key", "onbeat.core.runs.run:run_key",
           replace('f"{$SCHEDULE}:{$TICK}"', 'f"{$SCHEDULE}:{$TICK + 1}"')),
    Mutant("a retry that is too early", "onbeat.core.decide.outcomes:next_step",
           replace("$NOW + $DELAYS[...] + ...", "$NOW")),
    Mutant("a signal is retried", "onbeat.core.decide.outcomes:next_step",
           replace("$OUTCOME.retryable", "True")),
    Mutant("every lost run is retried", "onbeat.core.decide.outcomes:next_step",
           replace('$POLICY.on_lost == "retry" or ...', "True")),
    Mutant("a skip without a blocker", "onbeat.core.decide.overlap:OverlapPlanner.__init__",
           replace("self._retries.append", "self._flying.append")),
    Mutant("a manual run blocks ticks", "onbeat.core.runs.run:Run.in_flight",
           replace("self.request_id", "False")),
    Mutant("a manual run takes the row of a tick", "onbeat.stores.sql.manual:enqueue",
           insert_before(
               "$TX.run(ENQUEUE, ($RUN, $ID, $TICK, ..., $STORED.state.revision, ...))",
               "$TICK = $STORED.run_at or $TICK\n"
               "$TX.run('UPDATE due SET run_at = run_at + 1, due_at = due_at + 1000 '\n"
               "        'WHERE schedule_id = ?1', ($ID,))")),
    Mutant("early jitter", "onbeat.core.decide.plan:due_at",
           replace("$BEGIN + stable_share($TEXT, $ROOM)", "$BEGIN - stable_share($TEXT, $ROOM)")),
    Mutant("all ticks of a schedule have the same jitter", "onbeat.core.decide.plan:due_at",
           replace('f"jitter:{$SCHEDULE}:{...}"', 'f"jitter:{$SCHEDULE}"')),
    Mutant("missed ticks are counted one too few", "onbeat.core.decide.plan:_ticks",
           replace("1 + $COUNT", "$COUNT")),
    Mutant("missed ticks vanish", "onbeat.core.decide.plan:_skip_missed",
           delete("$DECIDING.skip(...)")),
    Mutant("grace is ignored", "onbeat.core.decide.plan:plan",
           replace("due_at(...) < $NOW - $POLICY.lateness", "False")),
    Mutant("queued runs are released last first", "onbeat.core.decide.outcomes:to_release",
           replace("($RUN.is_backfill, $RUN.run_at)", "($RUN.is_backfill, -$RUN.run_at)")),
    Mutant("the queue is never released", "onbeat.core.decide.outcomes:to_release",
           replace("[$RUN for $RUN in ... if $RUN.blocked_by is not None]", "[]")),
    Mutant("a fresh tick leaves the retry in place", "onbeat.core.decide.overlap:OverlapPlanner.decide",
           delete("self.decisions += (Supersede(...) for $RUN in self._retries)")),
    Mutant("max_runs is not counted", "onbeat.stores.sql.write_decisions:MOVE_STATES",
           replace_sql("runs_used = runs_used + ?2", "runs_used = runs_used")),
    Mutant("a pause leaves no range", "onbeat.stores.sql.pause:reopen",
           replace("($SKIPPED,)", "()")),
    Mutant("the planner ignores a closed gate", "onbeat.stores.sql.plan_due:plan_due",
           replace("not gate_is_open(...)", "False")),
    Mutant("the claims of a dead node are not freed", "onbeat.stores.sql.lost:end_runs_of",
           delete("free(...)")),
    Mutant("the started runs of a dead node start again", "onbeat.stores.sql.lost:end_runs_of",
           replace("$RUN.phase in STARTED", "False")),
    Mutant("a deletion leaves waiting runs", "onbeat.stores.sql.define:delete",
           delete("cancel_waiting(...)")),
    Mutant("a pause is confirmed and not done", "onbeat.stores.sql.pause:pause",
           delete("pause_schedule(...)")),
    Mutant("an edit records ticks on time as missed", "onbeat.core.decide.plan:_last_too_late",
           replace("$NOW - $SCHEDULE.policy.lateness", "$NOW + 1")),
    Mutant("an edit catches up", "onbeat.core.decide.plan:_decide_owed",
           replace('$DECIDING.skip($TICKS, "edited")', '$DECIDING.decide($TICKS, "catchup")')),
    Mutant("an edit leaves the catch-up to the new definition", "onbeat.core.decide.edits:is_retimed",
           replace("not $NEW.is_timed_like(...)", "False")),
    Mutant("an edit records the wrong reason", "onbeat.core.decide.plan:_decide_owed",
           replace('"edited"', '"missed"')),
    Mutant("a claim starts a run by the current definition",
           "onbeat.stores.sql.claim:_Claiming.look",
           replace("$ROW.definition", "$ROW.current or $ROW.definition")),
    Mutant("an outcome is judged by the current definition", "onbeat.stores.sql.finish:end",
           insert_after("$SCHEDULE, $CURRENT = definitions_of(...)", "$SCHEDULE = $CURRENT")),
    Mutant("switches are those of the revision of the run",
           "onbeat.stores.sql.claim:_Claiming._may_start",
           replace("$SCHEDULE if $ROW.current is None else ...", "$SCHEDULE")),
    Mutant("a moved run keeps its group", "onbeat.stores.sql.edits:MOVE",
           replace_sql("grp = ?6", "grp = coalesce(grp, ?6)")),
    Mutant("a moved run keeps its rendered fields", "onbeat.stores.sql.edits:MOVE",
           replace_sql("rendered = NULL,", ""),
           is_out_of_reach=True),  # few lives move a run that was rendered for an earlier attempt
    Mutant("a moved run keeps its deadline", "onbeat.stores.sql.edits:MOVE",
           replace_sql("deadline_at = ?8", "deadline_at = coalesce(deadline_at, ?8)")),
    Mutant("a claimed run is moved", "onbeat.stores.sql.edits:WAITING",
           replace("listed(UNSTARTED)", "listed(UNSTARTED | {'CLAIMED'})")),
    Mutant("a queue of one", "onbeat.core.decide.overlap:OverlapPlanner._apply_overlap",
           replace("self._waiting >= $POLICY.queue_limit", "self._waiting >= 1")),
    Mutant("a poison definition stops the batch", "onbeat.stores.sql.plan_due:plan_due",
           replace("Exception", "KeyError")),
    Mutant("a beginning is before the decided ticks", "onbeat.stores.sql.define:_create",
           replace("min($UNTIL, max(...))", "min($UNTIL, position.ticked_at // 1000)")),
    Mutant("an upsert that changes nothing is written", "onbeat.stores.sql.define:_upsert",
           replace("$KNOWN.text != ...", "True")),
    Mutant("only one of all missed ticks runs", "onbeat.core.decide.plan:plan",
           replace('$POLICY.catchup == "once"', '$POLICY.catchup in ("once", "all")')),
    Mutant("spread ticks run beyond the next tick", "onbeat.core.decide.plan:_spread",
           replace("min($UNTIL, due_at($SCHEDULE, $TICK, $DECIDING.past))",
                   "$DECIDING.now + $DECIDING.lookahead // 6")),
    Mutant("all spread ticks start immediately", "onbeat.core.decide.plan:_spread",
           replace("min(max(1, $COUNT * STEP // ...), MOST_DECISIONS)", "$COUNT")),
    Mutant("spread ticks start too early", "onbeat.core.decide.plan:_spread",
           replace("$N * ($UNTIL - $NOW) // $COUNT", "$N * ($UNTIL - $NOW) // $COUNT // 2")),
    Mutant("a node ignores its allowance of catch-ups", "onbeat.engine.planner:Allowance.take",
           delete("self._left -= ...")),
    Mutant("an opened gate ignores the ticks that were put off",
           "onbeat.stores.sql.gate:set_gate",
           replace_sql("run_at <= ?1", "due_at <= ?1 * 1000")),
    # -- overlap: replace, queue_limit, max_active
    Mutant("a replaced run is not canceled", "onbeat.core.decide.outcomes:displace",
           delete("$DECISIONS.append(RequestCancel(...))")),
    Mutant("a replaced run is not awaited", "onbeat.core.decide.outcomes:displace",
           replace("return $DECISIONS, $LEFT", "return $DECISIONS, None")),
    Mutant("older ticks of a plan run beside the newest", "onbeat.core.decide.overlap:OverlapPlanner._displace_others",
           delete("self._unmake(...)")),
    Mutant("queued runs are not replaced", "onbeat.core.decide.overlap:OverlapPlanner._displace_others",
           replace("(*self._flying, *self._queue_only())", "self._flying")),
    Mutant("a run is retried after its cancellation was requested", "onbeat.core.decide.outcomes:next_step",
           replace("$SUPERSEDED or $RUN.ending is not None or $DELETED", "$SUPERSEDED or $DELETED")),
    Mutant("a node ignores a cancellation from another process", "onbeat.engine.node:Engine._watch",
           delete("$REQUESTED = $REQUESTED or ...")),
    Mutant("a node forgets a cancellation", "onbeat.engine.node:Engine._cancel_runs",
           delete("$REQUESTED = $REQUESTED or not $FOUND"),
           is_out_of_reach=True),  # by the time it looks, a run has begun
    Mutant("two attempts have one number after a hand-back", "onbeat.stores.sql.lost:HAND_BACK",
           replace_sql("deferrals = ?5", "attempt = attempt - ?5 + deferrals")),
    Mutant("a hand-back uses up a retry", "onbeat.core.runs.apply:_handed_back",
           replace("_idle(replace($RUN, deferrals=...))", "_idle($RUN)")),
    Mutant("a run that was handed back does not block ticks", "onbeat.core.runs.apply:_handed_back",
           replace("_idle(replace($RUN, deferrals=$COUNT))",
                   "replace($RUN, phase=Phase.RETRYING, deferrals=$COUNT)")),
    Mutant("a run is handed back after its cancellation was requested",
           "onbeat.stores.sql.lost:free", delete("end(...)"),
           is_out_of_reach=True),  # a run is rarely too late to be launched
    Mutant("a queue that keeps the latest keeps the first", "onbeat.core.decide.overlap:OverlapPlanner._apply_overlap",
           replace('$POLICY.queue_keep == "first"', "True")),
    Mutant("a queue that keeps the latest drops the last",
           "onbeat.core.decide.overlap:OverlapPlanner._drop_first",
           replace("$WAITING[0]", "$WAITING[-1]", everywhere=True)),
    Mutant("backfilled runs use up the limit of a queue", "onbeat.core.decide.overlap:OverlapPlanner._waiting",
           replace("not $RUN.is_backfill", "True")),
    Mutant("one more is active than allowed", "onbeat.core.decide.overlap:OverlapPlanner._apply_overlap",
           replace("$FLYING < $POLICY.max_active", "$FLYING <= $POLICY.max_active")),
    Mutant("one more is active than allowed after a second judgement", "onbeat.core.decide.outcomes:recheck_overlap",
           replace("len($OTHERS) < $MOST", "len($OTHERS) <= $MOST")),
    # -- rate, disabled, pauses
    Mutant("one more than the rate", "onbeat.core.decide.overlap:is_rated",
           replace("$COUNT >= $RATE.most", "$COUNT > $RATE.most")),
    Mutant("the rate ignores decided runs", "onbeat.stores.sql.write_decisions:DecisionWriter.add",
           replace("$RATE is not None and $BEGUN", "$RATE is not None and $BEGUN > 1")),
    Mutant("an edit ignores the rate", "onbeat.core.decide.plan:_decide_ahead",
           replace("is_rated(...)", "False")),
    Mutant("a tick skipped by the rate supersedes a retry", "onbeat.core.decide.overlap:OverlapPlanner.decide",
           insert_before('self.decisions.append(Skip(..., "rate"))',
                         "self.decisions += map(Supersede, self._retries)\nself._retries.clear()")),
    Mutant("a disabled schedule starts", "onbeat.core.decide.plan:switched_off",
           replace("not $SCHEDULE.policy.enabled", "False")),
    Mutant("a disabled target is started", "onbeat.core.decide.plan:switched_off",
           replace("$SCHEDULE.target.is_enabled", "True")),
    Mutant("a disabled schedule skips its ticks one by one", "onbeat.core.decide.plan:_skip_all_due",
           replace("_last_due_before($SCHEDULE, $FIRST, ...)", "$FIRST")),
    Mutant("a pause with an end does not end", "onbeat.stores.sql.plan_due:plan_due",
           delete("resume_after_pause(...)")),
    Mutant("a pause with an end catches up", "onbeat.stores.sql.pause:resume_after_pause",
           replace("_resume($TX, $KNOWN, catchup=False)", "_resume($TX, $KNOWN, catchup=True)")),
    Mutant("a pause ends too early", "onbeat.stores.sql.schedule_rows:due_row_while_paused",
           replace("Due($AT, $UNTIL)", "Due($AT, $UNTIL - 600)")),
    Mutant("a pause lasts until the planner looks", "onbeat.stores.sql.pause:_resume",
           replace("$END if ... else None", "None")),
    Mutant("a waiting run starts though it is disabled now",
           "onbeat.core.decide.start:check_start",
           replace("switched_off(...)", "None")),
    Mutant("a target reports a run that a node holds", "onbeat.stores.sql.report:report",
           delete("raise RunIsHeld(...)")),
    Mutant("one failure more before a pause", "onbeat.stores.sql.finish:_pause_after",
           replace("$FAILURES < $LIMIT", "$FAILURES <= $LIMIT")),
    Mutant("resuming a schedule keeps its failures", "onbeat.stores.sql.pause:_resume",
           replace_sql("consecutive_failures = 0", "consecutive_failures = consecutive_failures")),
    Mutant("a success keeps the failures before it", "onbeat.stores.sql.finish:NOTE_SUCCESS",
           replace_sql(", consecutive_failures = 0", "")),
    # -- groups, priorities, deadlines
    Mutant("one more in a group than places", "onbeat.stores.sql.claim:_Claiming._hold_groups",
           replace("$PLACES.get($GROUP, 0) - $USED", "$PLACES.get($GROUP, 0) - $USED + 1")),
    Mutant("a claim does not count the places it gave",
           "onbeat.stores.sql.claim:_Claiming._take_place", delete("self._places[...] -= 1")),
    Mutant("an accepted run leaves its place in the group", "onbeat.stores.sql.rows:HOLDS_PLACE",
           replace("facts.holds_place", "facts.holds_place and (facts.is_leased or facts.is_detached)")),
    Mutant("a run of a group is announced directly", "onbeat.core.policy:Policy.__post_init__",
           replace("self.group", "None")),
    Mutant("the lowest priority first", "onbeat.stores.sqlite.database:WAITING",
           replace_sql("r.priority DESC", "r.priority")),
    Mutant("a run has twice its time to start", "onbeat.stores.sql.write_decisions:waiting_columns",
           replace("max($DUE, $NOW) + $WAIT", "max($DUE, $NOW) + 2 * $WAIT")),
    Mutant("no run that waits too long ends", "onbeat.stores.sql.expire:expire",
           replace("[$ROW for $ROW in ... if $ROW.phase in UNSTARTED]", "[]")),
    Mutant("a deadline is counted from when a tick was due", "onbeat.stores.sql.write_decisions:waiting_columns",
           replace("max($DUE, $NOW)", "$DUE")),
    Mutant("a retry keeps its old deadline", "onbeat.core.decide.outcomes:next_step",
           replace("Retry($DUE, outcome.reason, deadline_at=...)",
                   "Retry($DUE, outcome.reason, deadline_at=run.deadline_at)")),
    Mutant("a busy target sets a new deadline", "onbeat.core.decide.outcomes:next_step",
           replace('Retry($DUE, "busy", is_deferral=True, deadline_at=...)',
                   'Retry($DUE, "busy", is_deferral=True, deadline_at=_start_by(policy, $DUE))')),
    Mutant("a full group is not recorded as the reason", "onbeat.stores.sql.expire:_why_it_waited",
           replace('"group_full"', '"deadline"')),
    Mutant("a busy target is not recorded as the reason", "onbeat.stores.sql.expire:_why_it_waited",
           replace("$RUN.was_busy", "False")),
    # -- conditions
    Mutant("a condition is ignored", "onbeat.stores.sql.claim:_attempt",
           replace("None if $DETACHED else $SCHEDULE.when", "None")),
    Mutant("a run is launched though its condition does not hold",
           "onbeat.engine.starter:Starter._launch_if",
           replace("$ANSWER is False", "$ANSWER is None")),
    Mutant("a condition without an answer holds", "onbeat.core.decide.outcomes:condition_holds",
           replace("return None", "return True")),
    Mutant("a run whose condition gave no answer stays claimed",
           "onbeat.engine.starter:Starter._fail_unchecked",
           replace("self._announced($ATTEMPTS)", "self._store.announce(self._node, $ATTEMPTS)"),
           is_out_of_reach=True),  # it takes a pause in just that moment
    Mutant("a run with a condition is announced directly",
           "onbeat.core.schedule:Schedule.starts_directly", replace("self.when is None", "True")),
    # -- reports of targets, and users of runs
    Mutant("an accepted run has until the next tick", "onbeat.stores.sql.finish:end",
           insert_before("$CHANGE = apply($RUN, $STEP, now=$TX.now)", """
               due = $TX.one("SELECT due_at FROM due WHERE schedule_id = ?1", (schedule_id,))
               if isinstance($STEP, AwaitReport) and due is not None:
                   if schedule is not None and schedule.policy.timeout is None:
                       $STEP = AwaitReport(
                           max($TX.now + 1000, min($STEP.deadline_at, due[0] - 1)),
                           $STEP.external_id)
           """)),
    Mutant("an accepted run has an hour, whatever its timeout is",
           "onbeat.core.decide.outcomes:_report_timeout", delete("if $POLICY.timeout is not None: ...")),
    Mutant("an accepted run never expires", "onbeat.stores.sql.expire:end_unreported",
           delete("end(..., Failed(...))")),
    Mutant("an accepted run without a report is retried",
           "onbeat.stores.sql.expire:end_unreported",
           replace("Failed($ERROR, $REASON, retryable=False)", "Failed($ERROR, $REASON)")),
    Mutant("a run is accepted after its cancellation was requested", "onbeat.core.decide.outcomes:next_step",
           delete("if $RUN.ending is not None: ...")),
    Mutant("a busy target uses up a retry", "onbeat.core.decide.outcomes:next_step",
           replace("$RUN.attempt - $RUN.deferrals", "$RUN.attempt")),
    Mutant("a busy target is called again immediately", "onbeat.core.decide.outcomes:next_step",
           replace("$NOW + $OUTCOME.retry_in", "$NOW")),
    Mutant("a deleted target is retried", "onbeat.core.decide.outcomes:next_step",
           replace('Finish(..., "invalid_target", ...)', 'Retry(now + 1000, "invalid_target")')),
    Mutant("a retry varies by more than its jitter", "onbeat.core.decide.outcomes:next_step",
           replace("$POLICY.retry.jitter + 1", "2 * $POLICY.retry.jitter + 1")),
    Mutant("a waiting run cannot be canceled", "onbeat.stores.sql.cancel:cancel",
           delete("cancel_waiting(...)")),
    Mutant("a canceled run does not release the queue", "onbeat.stores.sql.cancel:cancel",
           delete("release_next(...)"), is_out_of_reach=True),  # later ticks release the queue
    Mutant("the report of a target is not recorded", "onbeat.stores.sql.report:report",
           delete("end(...)")),
    # -- ticks that follow events
    Mutant("an event has no tick", "onbeat.stores.sql.followers:happen",
           replace("$DUE.run_at < $KNOWN.run_at", "False")),
    Mutant("an event moves the tick of another", "onbeat.core.decide.follow:_with",
           replace("$PAST.happened[$CAUSE].at", "max(now // 1000, until + 1)")),
    Mutant("an event that joins another is not counted", "onbeat.core.decide.follow:_with",
           replace("$EVENT.count + 1", "$EVENT.count")),
    Mutant("an event undoes a tick that was decided", "onbeat.core.decide.follow:_with",
           replace("$TICK is not None and ...", "$TICK is not None")),
    Mutant("a failure is followed like a success", "onbeat.core.decide.follow:ENDINGS",
           replace('("failure", "completion")', '("success", "failure", "completion")')),
    Mutant("a schedule that names itself does not follow itself", "onbeat.stores.sql.followers:cause",
           replace("(*$OWN, $ID)", "$OWN or [$ID]")),
    Mutant("no tick follows a start", "onbeat.stores.sql.nodes:register",
           delete("cause_startup(...)")),
    Mutant("an event is counted from the decided ticks, whatever its delay",
           "onbeat.core.decide.follow:_with", replace("$UNTIL + 1 - $DELAY", "$UNTIL + 1")),
    Mutant("a paused schedule ignores events", "onbeat.stores.sql.followers:cause",
           replace("$KNOWN.deleted", "$KNOWN.deleted or $KNOWN.paused")),
    Mutant("a success that others follow is recorded alone", "onbeat.stores.sql.finish:finish",
           replace("$FOLLOWED | $OTHERS", "$OTHERS")),
    # -- jitter around, backfills
    Mutant("jitter around a tick is after it", "onbeat.core.decide.plan:due_at",
           replace("$AT - $JITTER if ... else $AT", "$AT")),
    Mutant("a backfill runs a tick that ran", "onbeat.core.decide.backfill:_refused",
           replace('Refuse(..., "ran", ...)', "None")),
    Mutant("a backfill runs the ticks of a range that ran", "onbeat.core.decide.backfill:decide_backfill",
           replace("$REFUSED or Add($TICK, $RANGE)", "Add($TICK, $RANGE)")),
    Mutant("a backfill runs an undecided tick", "onbeat.core.decide.backfill:decide_backfill",
           replace("$TICK > until", "$TICK > until + 60")),
    Mutant("a range keeps the ticks that were backfilled", "onbeat.stores.sql.backfill:backfill",
           delete("$WORK.shrink_ranges(...)")),
    Mutant("the rest of a range is dropped", "onbeat.stores.sql.backfill:_Backfill.shrink_ranges",
           delete("self._keep_rest(...)")),
    Mutant("a backfilled run blocks ticks", "onbeat.core.runs.run:Run.in_flight",
           replace("self.phase.facts.blocks",
                   "Blocks.ONCE_DUE if self.phase is Phase.BACKFILL else self.phase.facts.blocks")),
    Mutant("a fresh tick ends a backfilled run", "onbeat.core.decide.overlap:OverlapPlanner.__init__",
           replace("$RUN.is_requested", "$RUN.request_id")),
    Mutant("backfilled runs are released first", "onbeat.core.decide.outcomes:to_release",
           replace("($RUN.is_backfill, $RUN.run_at)", "$RUN.run_at")),
    Mutant("a backfilled run is not judged", "onbeat.core.runs.run:Run.was_deferred",
           replace("self.is_backfill", "False")),
    Mutant("a pause holds backfilled runs", "onbeat.stores.sql.rows:IGNORES_PAUSE",
           replace_sql("OR r.triggered_by = 'backfill'", "")),
    # -- runs that continue without their node
    Mutant("a detached run does not block ticks", "onbeat.core.runs.run:Run.in_flight",
           replace("self.phase.facts.blocks",
                   "Blocks.NEVER if self.detached else self.phase.facts.blocks")),
    Mutant("a detached run leaves its place in the group", "onbeat.stores.sql.rows:HOLDS_PLACE",
           replace("facts.holds_place", "facts.holds_place and not facts.is_detached")),
    Mutant("a detached run that is handed back starts anew", "onbeat.core.runs.apply:_handed_back",
           replace("replace($RUN, phase=Phase.DETACHED)", "_idle($RUN)")),
    Mutant("a reattached run that is handed back starts anew", "onbeat.core.runs.apply:_handed_back",
           replace("replace($RUN, phase=Phase.DETACHED, deferrals=$COUNT)",
                   "_idle(replace($RUN, deferrals=$COUNT))")),
    Mutant("a hand-back of a reattached run uses up a retry", "onbeat.core.runs.apply:_handed_back",
           replace("replace($RUN, phase=Phase.DETACHED, deferrals=...)",
                   "replace($RUN, phase=Phase.DETACHED)")),
    Mutant("a detached run cannot be canceled", "onbeat.stores.sql.cancel:cancel",
           replace("$RUN.ending is None", "$RUN.ending is None and not $RUN.detached")),
    Mutant("a recalled run is followed", "onbeat.stores.sql.claim:_attempt",
           replace("$RUN.phase.facts.is_to_end", "False")),
    Mutant("a recalled run is launched anew", "onbeat.stores.sql.claim:_attempt",
           replace("$DETACHED or $ROW.reason in MAY_STILL_RUN", "$ROW.reason in MAY_STILL_RUN")),
    Mutant("a detached run is launched anew", "onbeat.stores.sql.claim:_attempt",
           replace("$DETACHED or $ROW.reason in MAY_STILL_RUN",
                   "run.phase.facts.is_to_end or $ROW.attempt < 1")),
    Mutant("a recalled run stays with the node that claimed it", "onbeat.stores.sql.cancel:RECALL",
           replace_sql(", leased_by = NULL, fence = fence + 1", "")),
    Mutant("an accepted run does not block ticks", "onbeat.core.runs.run:Run.in_flight",
           replace("not self.is_unreported(now)", "False")),
    Mutant("a reattached run is announced like a new one", "onbeat.core.runs.phase:WHEN_ANNOUNCED",
           replace("P.REATTACHED", "P.RUNNING")),
    Mutant("a run that was asked to end is detached to continue", "onbeat.core.runs.apply:_after",
           replace("Phase.DETACHED if $ENDING is None else Phase.RECALLED", "Phase.DETACHED")),
    Mutant("a recalled run forgets its reason", "onbeat.core.decide.outcomes:next_step",
           replace('Detach($ENDING or "lost")', 'Detach("lost")')),
    Mutant("a lost run that continues starts again", "onbeat.core.decide.outcomes:next_step",
           replace("may_retry and run.reattachable", "False")),
    Mutant("a detached run is given up when a newer tick waits",
           "onbeat.core.decide.outcomes:next_step",
           replace("may_retry and run.reattachable", "may_retry and run.reattachable and not is_last")),
    Mutant("a detached run keeps the deadline of its start", "onbeat.core.runs.apply:_after",
           replace("replace($RUN, phase=$PHASE, due_at=$NOW, deadline_at=None)",
                   "replace($RUN, phase=$PHASE, due_at=$NOW)")),
    Mutant("a detached run waits for a place in its group",
           "onbeat.stores.sqlite.database:WAITING",
           replace_sql("NOT (r.grp IN (?4[])) OR r.", "NOT (r.grp IN (?4[])) AND NOT r.")),
    Mutant("a pause holds detached runs", "onbeat.stores.sql.rows:IGNORES_PAUSE",
           replace_sql("'backfill' OR r.", "'backfill' OR r.request_id <> '' AND r.")),
    Mutant("a detached run is judged again", "onbeat.core.decide.start:check_start",
           delete("if $RUN.detached: ...")),
    Mutant("a detached run is moved", "onbeat.stores.sql.edits:WAITING",
           replace("listed(UNSTARTED)", "listed(UNSTARTED | {'DETACHED'})")),
    Mutant("a deletion cancels detached runs", "onbeat.stores.sql.define:delete",
           replace("$RUN.phase in UNANNOUNCED", "$RUN.phase in UNANNOUNCED or $RUN.detached")),
    Mutant("a node cancels every run that it holds", "onbeat.stores.sql.claim:TO_END",
           replace_sql(
               "INDEXED BY runs_to_end WHERE leased_by = ?1 AND end_asked_at IS NOT NULL "
               "AND finished_at IS NULL AND phase = 'CANCELING'",
               "WHERE leased_by = ?1 AND finished_at IS NULL")),
    Mutant("a run that is left by its node is recorded as canceled",
           "onbeat.engine.attempts:RunningAttempts.detach",
           replace("CancelReason.DETACHED", "CancelReason.REQUESTED")),
]  # fmt: skip


LONGEST = 600  # seconds: three times what all seeds take
SIMULATION = ["-m", "tests.sim", "--stop", "--quiet", "--workers", "1", "--seeds"]
STORE_FILES = [
    ROOT / "tests" / "stores" / f"test_{name}.py"
    for name in ("contract", "policies", "edits", "zones", "detached")
]
NODE_FILE = ROOT / "tests" / "engine" / "test_node.py"
NODE_TESTS = (  # these tests of a node find mutants that the simulator does not reach
    "test_run_canceled_before_its_launch_is_canceled_by_the_next_look",
    "test_run_paused_while_its_condition_is_checked_is_free_again",
)
CONTRACT = [
    *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no"),
    *("-k", " or ".join(["Sqlite", *NODE_TESTS])),
    *map(str, [*STORE_FILES, NODE_FILE]),
]


def kill(mutant, command):
    """Return how a mutant was found, or None if it survived."""
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
                os.killpg(process.pid, signal.SIGKILL)  # with its workers
                return f"not finished after {LONGEST} s"
    if process.returncode == 0:
        return None
    found = re.search(r"seed \d+: [^:]+(?=:)|(?<=^FAILED )\S+(?: \S+\])?", printed, re.MULTILINE)
    if found:
        return found[0]
    last = errors.strip().splitlines()
    return f"it failed: {last[-1] if last else printed[-200:]}"


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--only", default="", metavar="NAME", help="those with this in their name")
    parser.add_argument("--every", type=int, default=1, help="a sample: one of so many")
    parser.add_argument("--contract", action="store_true", help="use the contract suite")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run none")
    given = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if given.only in mutant.name][:: given.every]
    if given.contract:
        chosen = [mutant for mutant in chosen if mutant.place.startswith(IN_CONTRACT)]
    if not chosen:
        parser.error(f"no mutant has {given.only!r} in its name")
    if given.list:
        for mutant in chosen:
            print(f"{mutant.name}: {mutant.place}")
        return 0
    simulation = [*SIMULATION, str(given.seeds)]

    def find(mutant):
        return kill(mutant, CONTRACT if given.contract or mutant.is_out_of_reach else simulation)

    alive = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, how in zip(chosen, pool.map(find, chosen), strict=True):
            print(f"{'ALIVE ' if how is None else 'killed'}  {mutant.name}: {how or 'not found'}")
            alive += how is None
    print(f"{len(chosen) - alive} of {len(chosen)} mutants killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())

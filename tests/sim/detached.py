"""What is owed to runs that continue without their node: they are found again, and never doubled.

A detached run blocks its schedule and holds its place until it has ended (see `model`); here is what
detaches it, how it is reattached, and what the outside world has seen of it in the end.
"""

from collections import defaultdict

from onbeat.core.policy import Policy
from onbeat.core.runs.run import Accepted, Failed
from tests.sim.model import MOST_LOST

NOTHING = Policy()


class Detached:
    """Holds the events of runs that continue against each other, and against the outside."""

    def __init__(self, life):
        self._life = life
        self._ends = {}  # how series of attempts ended: by run and their last attempt

    # -- events

    def is_lost(self, run, event):
        """Whether an attempt is lost of which the target continues."""
        if not run.continues:
            return False
        return event.reason in ("lost", run.asked)

    def detach(self, run, event):
        """A run that continues is detached at once, whatever the policy; or it is to be recalled."""
        life = self._life
        told = f"{event}: {run}"
        life.require(run.state == "STARTED", "legal state changes", told)
        life.require(run.heard_by is None, "accepted runs are nobody's to lose", told)
        life.require(event.reason == (run.asked or "lost"), "a detached run keeps its reason", told)
        life.require(event.due_at == life.now, "a lost run is reattached at once", told)
        if not life.is_sick(run.schedule_id):
            life.require(self._may_continue(run), "a run is lost a limited number of times", told)
        life.seen["detached, asked to end" if run.asked else "detached"] += 1
        run.lost.add(run.attempt)
        run.start_by, run.detached, run.reason = None, True, event.reason
        life.waiting.set_deadline(run, None)
        life.wait(run, due_at=event.due_at)

    def announce(self, run):
        """An attempt is announced: of a detached run, only to reattach it."""
        run.reattached, run.detached = run.detached, False
        if not run.reattached:
            run.reason = None
            return
        run.reattaches_at.add(run.attempt)
        if run.asked is not None:
            run.recalls_at.add(run.attempt)
        self._life.seen["announced to recall it" if run.asked else "announced to reattach it"] += 1

    def stays_when_handed_back(self, run):
        """Whether a run that is handed back is detached still, or again."""
        if run.state == "CLAIMED":
            return run.detached
        again = run.reattached if run.asked is None else run.is_recallable
        self._life.seen["a reattached run handed back"] += again
        return again

    def recall(self, run):
        """A detached run is asked to end: it is claimed again, by whoever comes first."""
        self._life.seen[f"recalled when {run.state}"] += 1
        run.state = "ENQUEUED"
        run.free_since = max(self._life.now, run.due_at)

    def lose(self, run):
        """An attempt has ended as lost: its node is, or its target says that it may be."""
        said = self._life.afterwards.said_of(run) if run.continues else None
        if isinstance(said, Failed) and said.reason == "lost":
            run.ended[run.attempt] = "lost"
        else:
            run.lost.add(run.attempt)

    def was_the_last(self, run):
        """A run that continues ends as lost when it was lost too often, whoever asked for what."""
        lost = run.continues and run.attempt in run.lost
        told = f"{run}"
        self._life.require(not lost or not self._may_continue(run), "no run is given up", told)

    def _may_continue(self, run):
        policy = NOTHING if run.is_of_deleted else run.policy
        return run.tries <= len(policy.retry.delays) + MOST_LOST

    # -- what is left

    def check(self):
        """Compare with what the outside has seen."""
        phases = getattr(self._life.world, "phases", None)
        if phases is not None:
            self._life.seen.update(phases.seen)
            self._life.wrong += phases.wrong
        self._launches()
        outside = getattr(self._life.world, "outside", None)
        if outside is not None:
            self._starts(outside)

    def _launches(self):
        """A launch after a detachment knows that it may run, and whether it is to end."""
        life = self._life
        for each in life.world.launched:
            run = life.runs[each.run_id]
            to_reattach = each.attempt in run.reattaches_at
            life.require(each.may_run or not to_reattach, "a detached run is reattached", f"{each}")
            to_recall = each.attempt in run.recalls_at
            same = each.is_cancel_requested == to_recall
            life.require(same, "a recalled run is only ended", f"{each}: {run}")

    def _starts(self, outside):
        """Each true start is the only one of its series of attempts, and ended as recorded."""
        life, series = self._life, defaultdict(list)
        for each in outside.started:
            run = life.runs[each.run_id]
            life.require(not each.is_beside, "nothing starts twice", f"{each}: {run}")
            last = self._last_of_series(run, each.attempt)
            series[each.run_id, last].append(each)
        for (run_id, last), starts in series.items():
            self._check_series(life.runs[run_id], last, starts)

    def _last_of_series(self, run, attempt):
        """Return the attempt that ended what this attempt began, or the present one."""
        while attempt < run.attempt and attempt not in run.ended:
            attempt += 1
        return attempt

    def _check_series(self, run, last, starts):
        life, told = self._life, f"{run}: {starts}"
        gone = [each.how == "vanished" for each in starts[:-1]]
        again = all(gone) or run.policy.on_lost == "retry"
        life.require(len(starts) == 1 or again, "nothing starts twice", told)
        life.seen["started again, at least once"] += len(starts) > 1
        how = run.ended.get(last, "lost" if last in run.lost and run.is_over else None)
        left = [each for each in starts if not each.is_over]
        if how is None:
            life.require(not run.is_over, "what was started has an outcome", told)
            life.seen["left running at the end"] += bool(left)
            return
        life.require(not left or how == "lost", "nothing is left running", told)
        life.seen["left running, recorded as lost"] += bool(left)
        self._is_as_it_was(run, how, starts[-1])

    def _is_as_it_was(self, run, how, started):
        """What is recorded is what the target said, unless it was ended, or is not known."""
        if isinstance(started.outcome, Accepted):  # what it reports later is its outcome
            return
        true = getattr(started.outcome, "reason", type(started.outcome).__name__.lower())
        ended = {"itself": true, "vanished": "lost"}.get(started.how, started.how)
        same = how in (ended, "lost", "canceled", "timeout")
        self._life.require(same, "an outcome is the true one", f"{how}: {started} {run}")

"""What is owed to runs that wait: who is claimed first, and why one does not start at all."""

from tests.sim.model import OVER


class Waiting:
    """Holds claims, and the ends of runs that never started, against what they waited for."""

    def __init__(self, life):
        self._life = life

    # -- deadlines

    def set_deadline(self, run, own, *, is_new=False):
        """Give a run a deadline of its policy; the limit of an edit stays, if it is one."""
        limited = is_new or run.is_limited
        given = [at for at in (own, run.start_by if limited else None) if at is not None]
        run.own_deadline, run.deadline = own, min(given, default=None)

    def is_rightly_limited(self, run, is_up):
        """Only an edit that finds no node up limits a run, to the grace of its tick."""
        life = self._life
        edited = run.schedule_id in life.tx.edited and not run.is_requested
        blocker = life.runs.get(run.blocked_by)
        turn = blocker is not None and (
            blocker.detached or blocker.state not in ("ENQUEUED", *OVER)
        )
        told = f"{run}"
        if run.start_by is None:
            free = not edited or is_up is not False or turn
            life.require(free, "an edit starts nothing of the past", told)
            return
        life.require(
            edited and not is_up and not turn, "an edit loses nothing that is on time", told
        )
        model = life.models[run.schedule_id]
        right = run.start_by == run.due_at + model.lateness
        life.require(right, "an edit starts nothing of the past", told)
        life.seen["limited by an edit without a node"] += 1
        life.seen["limited in a queue"] += run.blocked_by is not None

    def lift(self, run):
        """End the limit of an edit if a node was up in time."""
        blocker = self._life.runs.get(run.blocked_by)
        started = None if blocker is None else blocker.started_at
        in_time = run.is_limited and (
            run.was_tried or (started is not None and started <= run.start_by)
        )
        if in_time and run.own_deadline != run.start_by:
            run.deadline = run.own_deadline
            self._life.seen["a limit lifted"] += 1

    # -- claims

    def claim(self, run):
        """A node takes a run: it is its turn, it is not too late, and there is a place for it."""
        life = self._life
        life.require(run.state == "ENQUEUED", "legal state changes", f"claimed {run}")
        life.require(run.blocked_by is None, "queue order", f"claimed {run}")
        life.require(run.due_at <= life.now, "never early", f"claimed {run}")
        in_time = run.deadline is None or life.now < run.deadline
        life.require(in_time, "nothing starts past its start_deadline", f"{run}")
        self.is_free(run, "claimed")
        life.tx.claimed.append(run)
        if run.detached:  # it has started: nothing is in its way
            life.seen["claimed to reattach it"] += 1
            return
        model = life.models[run.schedule_id]
        if not life.is_sick(run.schedule_id):
            wanted = model.policy.enabled or run.is_requested
            on = model.schedule.target.is_enabled and wanted
            life.require(on, "what is disabled starts nothing", f"claimed {run}")
        if not run.manual:
            earlier = [
                other
                for other in life.queued(run.schedule_id)
                if other.run_at < run.run_at and other.blocked_by != run.run_id
            ]
            queues = run.policy.overlap == "queue" and run.alone
            behind = queues and earlier and not run.backfill
            life.require(not behind, "queue order", f"{run} before {earlier}")
        if run.group is not None:
            full = life.is_full(run.group)
            told = f"{life.used(run.group)} of {life.places[run.group]} in {run.group}: {run}"
            life.require(not full, "never more in a group than places", told)
        if run.was_deferred:
            self._may_start(run)

    def is_free(self, run, what):
        """Nothing is claimed or started behind a closed gate, nor unasked during a pause."""
        life, model = self._life, self._life.models[run.schedule_id]
        life.require(life.gate_open, "acknowledged calls hold", f"{what} behind a closed gate")
        free = run.is_requested or run.detached or not model.paused
        life.require(free, "acknowledged calls hold", f"{what} while paused: {run}")
        life.seen["reattached while paused"] += run.detached and model.paused
        life.seen["a manual run while paused"] += run.manual and model.paused
        life.seen["a backfilled run while paused"] += run.backfill and model.paused

    def _may_start(self, run):
        """What was decided before it was due is judged again, by what is in flight then."""
        life, policy = self._life, run.policy
        life.tx.judged.add(run.schedule_id)
        if life.is_sick(run.schedule_id):
            return
        place = run.due_at, run.run_at
        others = [
            other
            for other in life.flying(run.schedule_id, but=run)
            if not (
                other.state == "ENQUEUED"
                and other.was_deferred
                and (other.due_at, other.run_at) > place
            )
        ]
        most = policy.max_active if policy.overlap == "allow" else 1
        room = most is None or len(others) < most
        life.require(room, "no more active than allowed", f"{run} beside {others}")

    def in_order(self):
        """Of what could be claimed, those with a higher priority were, and then the first due."""
        life, tx = self._life, self._life.tx
        if not tx.claimed or getattr(life.world, "is_shared", False):
            return  # where others write, one may come in after a claim has looked
        for runs in life.open.values():
            for left in runs.values():
                if left.run_id in tx.released or not self._could_be_claimed(left):
                    continue
                full = life.is_full(left.group)
                for run in tx.claimed:
                    of_others = run.detached or left.group != run.group  # it takes no place of it
                    kept_out = full and of_others and not left.detached
                    after = (-run.priority, run.due_at) > (-left.priority, left.due_at)
                    if after and not kept_out and left.group not in tx.freed:
                        life.breach("priority order", f"{run} before {left}")
                life.seen["left for one of a higher priority"] += any(
                    run.priority > left.priority for run in tx.claimed
                )

    def _could_be_claimed(self, run):
        life, model = self._life, self._life.models[run.schedule_id]
        waits = run.state == "ENQUEUED" and run.blocked_by is None and run.due_at <= life.now
        in_time = run.deadline is None or run.deadline > life.now
        free = run.is_requested or run.detached or not model.paused
        # One whose end only those may decide who hold what follows from it is waited for.
        others = life.unfinished(run.schedule_id)
        unheard = any(other.is_unreported(life.now) for other in others)
        sick = life.is_sick(run.schedule_id)
        return waits and in_time and free and not unheard and not sick

    # -- ends of runs that never started

    def end(self, run, event):
        """A run ends while it waits: after an attempt that is a failure, else it is skipped."""
        life = self._life
        self.lift(run)
        sick = life.is_sick(run.schedule_id)  # no definition: it cannot be reattached
        waits = run.waits or (sick and run.detached)
        life.require(waits, "legal state changes", f"{event}: {run}")
        is_failure = event.name == "run.failed"
        right = is_failure == (run.tries > 0) or sick
        life.require(right, "only what was tried fails", f"{event}: {run}")
        if life.is_sick(run.schedule_id):
            return
        check = getattr(self, f"_because_of_{event.reason}", None)
        life.require(check is not None, "every reason has its cause", f"{event}: {run}")
        if check is not None:
            check(run, event)

    def _because_of_superseded(self, run, event):
        """A fresh tick takes the place of a retry and, to replace, of all that waits."""
        life, tx = self._life, self._life.tx
        tx.decided[run.schedule_id] += 1
        replaces = life.may_replace(run.schedule_id)
        waits_again = run.was_tried and not run.backfill
        told = f"{event}: {run}"
        life.require(replaces or waits_again, "only a retry is superseded", told)
        stays = run.backfill and run.state == "ENQUEUED"
        life.require(not stays, "a backfilled run that waits gives way to none", told)
        judged = bool(life.flying(run.schedule_id, but=run))
        life.seen["judged, and superseded"] += judged and run.was_deferred

        def by_a_fresh_tick():
            came = run.schedule_id in tx.weighed or (replaces and run.schedule_id in tx.judged)
            life.require(came or judged, "every reason has its cause", told)

        tx.in_the_end.append(by_a_fresh_tick)

    def _because_of_overlap(self, run, event):
        life = self._life
        self._life.tx.judged.add(run.schedule_id)
        life.decisions.has_blocker(event)
        policy, blocker = run.policy, life.runs[event.blocked_by]
        first = (blocker.due_at, blocker.run_at) < (run.due_at, run.run_at)
        waits = blocker.state == "ENQUEUED" and blocker.due_at > blocker.enqueued_at
        life.require(first or not waits, "in the order they are due", f"{event}")
        right = policy.overlap == "skip" or policy.max_active is not None
        life.require(right and run.was_deferred, "every reason has its cause", f"{event}: {run}")

    def _because_of_queue_full(self, run, event):
        life = self._life
        right = run.blocked_by is not None and not run.backfill
        life.require(right, "every reason has its cause", f"{event}: {run}")
        life.tx.decided[run.schedule_id] += 1
        life.decisions.gave_its_place(event)

    def _because_of_paused(self, run, event):
        end = self._life.end_of_pause(run.schedule_id)
        self._waited_too_long(run, event, event.schedule_id in self._life.tx.resumed, end)

    def _because_of_gate_off(self, run, event):
        self._waited_too_long(run, event, self._life.tx.opened, self._life.now)

    def _waited_too_long(self, run, event, came, end):
        life, model = self._life, self._life.models[run.schedule_id]
        stale = run.due_at < end - model.policy.grace and not run.is_requested
        life.require(came and stale, "every reason has its cause", f"{event}: {run}")

    def _because_of_disabled(self, run, event):
        """It was to be claimed, or to be tried again, and its schedule is switched off by now."""
        life, model = self._life, self._life.models[run.schedule_id]
        off = not model.schedule.target.is_enabled
        if event.reason == "disabled":
            off = not (model.policy.enabled or run.is_requested)
        ready = run.blocked_by is None and run.due_at <= life.now
        again = run.was_tried and not run.is_requested
        told = f"{event}: {run}"

        def with_a_tick():
            came = run.schedule_id in life.tx.left_out and again
            life.require(off and (ready or came), "every reason has its cause", told)

        life.tx.in_the_end.append(with_a_tick)

    _because_of_disabled_target = _because_of_disabled

    def _because_of_deadline(self, run, event):
        """It was not claimed in time: its group was full, its target busy, or something else."""
        life = self._life
        over = run.deadline is not None and run.deadline <= life.now
        limited = run.is_limited and not run.was_tried
        life.require(not limited, "every reason has its cause", f"{event}: {run}")
        free = run.state == "ENQUEUED"  # a claimed one is in time
        life.require(over and free, "every reason has its cause", f"{event}: {run}")
        busy = run.attempt > 0 and run.ended.get(run.attempt) == "busy"
        full = run.blocked_by is None and life.is_full(run.group)
        want = "busy" if busy else "group_full" if full else "deadline"
        life.require(event.reason == want, "every reason has its cause", f"{want}: {event} {run}")

    def _because_of_edited(self, run, event):
        """An edit decided it as on time while no node was up, and none started it in its grace."""
        life = self._life
        over = run.is_limited and run.deadline <= life.now and run.state == "ENQUEUED"
        life.require(over and not run.was_tried, "every reason has its cause", f"{event}: {run}")

    _because_of_group_full = _because_of_busy = _because_of_deadline

    def _because_of_condition(self, run, event):
        life = self._life
        answer = life.probed.get((run.run_id, run.fence))
        said_no = run.state == "CLAIMED" and answer == "no"
        life.require(said_no, "every reason has its cause", f"{answer}: {event} {run}")

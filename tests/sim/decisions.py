"""What decisions about ticks have to keep to: that they start, and that they do not."""

from dataclasses import replace

MOST_DECISIONS = 100
LOOKAHEAD = 60_000


class Decisions:
    """Holds each decision about a tick against the policy of its schedule."""

    def __init__(self, life):
        self._life = life
        self._catchups = []  # when the node caught up: as often as it did

    def begin(self, event):
        """A tick is to start, now or later."""
        model = self._life.models[event.schedule_id]
        if model.definition != "poison" and not self._life.is_sick(event.schedule_id):
            self._is_in_time(model, event)
            self._keeps_its_rate(model, event)
            self._is_not_in_the_way(model, event)
        self.tick(event, starts=True)

    def skip(self, event):
        """A tick, or several, are not to start."""
        model = self._life.models[event.schedule_id]
        if model.definition != "poison" and not self._life.is_sick(event.schedule_id):
            check = getattr(self, f"_skipped_{event.reason}", None)
            self._life.require(check is not None, "every skip has its reason", f"{event}")
            if check is not None:
                check(model, event)
        self.tick(event)

    def new_node(self):
        self._catchups.clear()

    # -- ticks and their rows

    def tick(self, event, *, starts=False):
        """A row covers the next undecided ticks: all of them, each once, and counted."""
        life, tx = self._life, self._life.tx
        model, reason = life.models[event.schedule_id], getattr(event, "reason", "")
        first = event.first_run_at if event.first_run_at is not None else event.run_at
        weighed = starts or reason in ("overlap", "queue_full", "superseded", "rate")
        covered = [event.run_at]
        if model.definition != "poison" and not life.is_sick(event.schedule_id):
            due, past = life.covering.next_tick(model), model.past
            told = f"{event.schedule_id}: {first} decided, {due} was next"
            life.require(first == due, "one row per tick", told)
            n = model.schedule.trigger.count(first, event.run_at + 1, past)
            events = model.events_at(event.run_at)
            want = max(n, events) if weighed or event.first_run_at is None else n
            life.require(want == event.tick_count, "ranges are counted", f"{want}: {event}")
            if n > 1:
                covered = list(model.schedule.trigger.iterate(first, event.run_at + 1, past))
            life.seen["a tick that follows an event"] += events > 0 and starts
            life.seen["a tick that follows several events"] += events > 1 and starts
        life.covering.decide(event, covered)
        if event.tick_count > 1 and starts:
            life.seen["a run that stands for several"] += 1
        if event.schedule_id not in tx.spread:
            tx.spread[event.schedule_id] = replace(model), []
        if weighed:
            tx.spread[event.schedule_id][1].append(event.run_at)
        life.ticks += event.tick_count
        tx.decided[event.schedule_id] += 1
        tx.ticked.add(event.schedule_id)
        if weighed and reason != "rate":
            tx.weighed.add(event.schedule_id)
        if starts:
            tx.began[event.schedule_id].append(event.run_at)
            model.began.append(life.now)
        model.position = max(model.position, event.run_at)
        model.decided = max(model.decided, event.run_at)
        model.used += starts

    # -- those that start

    def _is_in_time(self, model, event):
        """A fresh tick starts on time, or to catch up, and only when it may."""
        life = self._life
        due, asked = model.due_at(event.run_at), life.tx.catches_up(event.schedule_id)
        late = life.now - due > model.lateness
        life.require(event.due_at == due, "jitter is the tick's own", f"{event}, not {due}")
        life.require(model.switched_off is None, "what is disabled starts nothing", f"{event}")
        life.seen["due before it was planned"] += due < event.run_at * 1000
        if event.triggered_by == "timer":
            life.require(not late, "every miss matches its policy", f"{event}")
            early = event.due_at > life.now
            edited = event.schedule_id in life.tx.edited
            life.require(not early or edited, "never early", f"{event}")
            life.seen["enqueued for later by an edit"] += early
        else:
            self._catches_up(model, event, late=late, asked=asked)
        held = (
            not life.gate_open or model.paused
        ) and not asked  # unless it is asked for right now
        life.require(not held, "acknowledged calls hold", f"decided while held: {event}")

    def _is_not_in_the_way(self, model, event):
        """A fresh tick waits for what is in flight, or takes its place, as its policy says."""
        life, policy = self._life, model.policy
        fresh = event.due_at <= life.now or event.triggered_by == "catchup"
        retries = life.retries(model.schedule_id)
        life.require(
            not fresh or not retries, "a fresh tick supersedes a retry", f"{event}: {retries}"
        )
        if event.due_at > life.now:
            return  # it will be judged when it is claimed
        flying, queued = life.flying(model.schedule_id), life.queued(model.schedule_id)
        if policy.overlap == "allow":
            life.require(event.blocked_by is None, "overlap", f"{event}")
            room = policy.max_active is None or len(flying) < policy.max_active
            life.require(room, "no more active than allowed", f"{event} beside {flying}")
            life.seen["started within max_active"] += policy.max_active is not None
        elif event.blocked_by is None:
            life.require(not flying and not queued, "overlap", f"{event} beside {flying} {queued}")
        else:
            ids = {run.run_id for run in (*flying, *queued)}
            life.require(event.blocked_by in ids, "a blocker in flight", f"{event}")
            life.require(policy.overlap in ("queue", "replace"), "overlap", f"{event}")
            life.seen["queued"] += 1
            life.seen["queued behind others"] += bool(queued)
        if policy.overlap == "queue" and event.blocked_by is not None:
            room = len(queued) < policy.queue_limit or policy.queue_keep == "latest"
            life.require(room, "queue limit", f"{event} behind {len(queued)}")
        if policy.overlap == "replace":
            self._takes_their_place(event, flying, queued)

    def _takes_their_place(self, event, flying, queued):
        """The newest tick alone waits, for what was asked to end."""
        life = self._life
        life.require(not queued, "only the newest waits to replace", f"{event} beside {queued}")
        unasked = [run for run in flying if not run.has_started or run.asked is None]
        life.require(not unasked, "what is replaced is asked to end", f"{event}: {unasked}")
        life.seen["waits for what it replaces"] += bool(flying)

    def _keeps_its_rate(self, model, event):
        """Of so many decisions in a row and this one, not all are within the rate's length."""
        rate, now = model.policy.rate, self._life.now
        if rate is None:
            return
        last = model.began[model.rated_from :][-rate.most :]
        near = [at for at in last if now - rate.length < at <= now + rate.length]
        self._life.require(len(near) < rate.most, "rate never exceeded", f"{event}: {near}")

    def _catches_up(self, model, event, *, late, asked):
        """A missed tick runs as its policy says, and no more of them in a second than allowed."""
        life = self._life
        each = late and event.first_run_at is None
        ways = {"once": True, "none": False, "all": each, "spread": each}
        right = asked or ways[model.policy.catchup]
        life.require(right, "every miss matches its policy", f"{event}")
        way = "asked for" if asked else model.policy.catchup
        life.seen[f"caught up: {way}"] += 1
        if not asked and 0 < life.now - model.caught_up_at < 5_000:
            life.seen["went on catching up"] += 1
        model.caught_up_at = life.now
        edited = event.schedule_id in life.tx.edited
        life.require(not edited, "an edit starts nothing of the past", f"{event}")
        if asked:
            return
        if self._catchups and life.now < self._catchups[-1]:  # the clock was set back
            self._catchups.clear()
        self._catchups = [at for at in self._catchups if at > life.now - 1000] + [life.now]
        # The allowance is renewed once a second: what is left of one may be followed by the next.
        most = 2 * life.world.catchup_per_second
        life.require(len(self._catchups) <= most, "no flood", f"{len(self._catchups)}: {event}")

    # -- those that do not

    def _skipped_overlap(self, model, event):
        life, policy = self._life, model.policy
        limited = policy.overlap == "allow" and policy.max_active is not None
        life.require(policy.overlap == "skip" or limited, "overlap", f"{event}")
        self.has_blocker(event)
        if limited:
            flying = life.flying(model.schedule_id)
            full = len(flying) >= policy.max_active
            life.require(full, "no more active than allowed", f"{event} beside {flying}")
            life.seen["skipped beyond max_active"] += 1

    def _skipped_queue_full(self, model, event):
        life, policy = self._life, model.policy
        if policy.queue_keep == "latest":
            self.gave_its_place(event)
            life.seen["a tick of a full queue gives its place at once"] += 1
            return
        waiting = life.queued(event.schedule_id)
        full = policy.overlap == "queue" and len(waiting) >= policy.queue_limit
        life.require(full, "queue limit", f"{len(waiting)}: {event}")
        late = life.now - model.due_at(event.run_at) > model.lateness
        waits = late and policy.catchup in ("all", "spread")
        life.require(not waits, "every miss matches its policy", f"{event}")

    def _skipped_superseded(self, model, event):
        life, tx = self._life, self._life.tx
        life.require(model.policy.overlap == "replace", "every skip has its reason", f"{event}")

        def replaced():
            later = [at for at in tx.began[event.schedule_id] if at > event.run_at]
            there = life.covering.has_later(event)  # one that has its row keeps it
            life.require(later or there, "the newest tick replaces", f"{event}")

        tx.in_the_end.append(replaced)

    def _skipped_rate(self, model, event):
        rate, now = model.policy.rate, self._life.now
        near = []
        if rate is not None:
            near = [at for at in model.began if now - rate.length < at <= now + rate.length]
        reached = rate is not None and len(near) >= rate.most
        self._life.require(reached, "every skip has its reason", f"{event}: {near}")

    def _skipped_disabled(self, model, event):
        """All that is due is left out as one."""
        life, tx = self._life, self._life.tx
        tx.left_out.add(event.schedule_id)
        right = model.switched_off == event.reason
        life.require(right, "every skip has its reason", f"{event}: {model.switched_off}")

        def all_of_it():
            due = model.is_overdue(life.now) and not (tx.resumed | tx.edited)
            life.require(not due, "what is disabled is left out as one", f"{event}")

        tx.in_the_end.append(all_of_it)

    _skipped_disabled_target = _skipped_disabled

    def _skipped_missed(self, model, event):
        life, policy, tx = self._life, model.policy, self._life.tx
        late = life.now - model.due_at(event.run_at)
        limit = model.lateness
        if policy.catchup != "none" and not tx.decided[event.schedule_id]:
            limit = max(policy.catchup_window, limit)
        planned = event.schedule_id not in tx.edited
        life.require(planned and late > limit, "every miss matches its policy", f"{event}")
        life.require(not model.switched_off, "every skip has its reason", f"{event}")

    def _skipped_edited(self, model, event):
        """All that an edit finds beyond its grace is one row, and nothing that is on time."""
        life, tx = self._life, self._life.tx
        first = event.schedule_id not in tx.ticked
        right = first and event.schedule_id in tx.edited and not model.switched_off
        life.require(right, "every skip has its reason", f"{event}")
        free = life.gate_open and not model.paused
        life.require(free, "acknowledged calls hold", f"decided while held: {event}")
        too_late = life.now - model.lateness
        late = model.due_at(event.run_at) < too_late
        life.require(late, "an edit loses nothing that is on time", f"{event}")
        following = model.schedule.trigger.next_after(event.run_at, model.past)
        all_of_it = following is None or model.due_at(following) >= too_late
        life.require(all_of_it, "an edit starts nothing of the past", f"{event}: {following}")
        life.seen["edited while catching up"] += life.now - model.caught_up_at < 5_000

    def _skipped_paused(self, model, event):
        self._life.require(model.paused, "every skip has its reason", f"{event}")

    def _skipped_gate_off(self, model, event):
        held = self._life.tx.opened or not self._life.gate_open
        self._life.require(held, "every skip has its reason", f"{event}")

    def _skipped_canceled(self, model, event):
        gone = event.schedule_id in self._life.tx.deleted
        self._life.require(gone, "every skip has its reason", f"{event}")

    def gave_its_place(self, event):
        """Of a full queue the latest stay: this one made room for a later one."""
        life, tx = self._life, self._life.tx
        policy = life.models[event.schedule_id].policy
        right = (policy.overlap, policy.queue_keep) == ("queue", "latest")
        life.require(right, "every skip has its reason", f"{event}")

        def the_latest_stay():
            waiting = life.queued(event.schedule_id)
            told = f"{event}: {[run.run_at for run in waiting]}"
            life.require(len(waiting) >= policy.queue_limit, "queue limit", told)
            earlier = [run for run in waiting if run.run_at < event.run_at]
            life.require(not earlier, "of a full queue the latest stay", told)

        tx.in_the_end.append(the_latest_stay)

    def has_blocker(self, event):
        blocker = self._life.runs.get(event.blocked_by)
        flying = blocker is not None and blocker.in_flight(self._life.now)
        same = blocker is not None and blocker.schedule_id == event.schedule_id
        self._life.require(flying and same, "a blocker in flight", f"{event} by {blocker}")

    # -- those that are spread

    def see_to_pace(self):
        """Hold what was decided in this transaction against how missed ticks are spread."""
        life, tx = self._life, self._life.tx
        for schedule_id, (before, run_ats) in tx.spread.items():
            model = life.models[schedule_id]
            held = tx.opened or schedule_id in tx.edited | tx.resumed | tx.deleted
            off = before.definition != "poison" and before.switched_off
            if held or off or (not run_ats and not self._is_spreading(model)):
                model.spread_until = 0
            elif run_ats and not life.is_sick(schedule_id):
                self._keeps_its_pace(before, run_ats)
                model.spread_until, model.turn_at = before.spread_until, before.turn_at

    def _is_spreading(self, model):
        return self._life.now < model.spread_until <= self._life.now + LOOKAHEAD

    def _keeps_its_pace(self, model, run_ats):
        """Missed ticks start evenly, until the look-ahead or the next tick, and none before its turn."""
        life, now = self._life, self._life.now
        spreading = self._is_spreading(model)
        late = now - model.due_at(run_ats[0]) > model.lateness
        if model.policy.catchup != "spread" or not (late or model.spread_until):
            model.spread_until = model.turn_at = 0
            return
        sooner = model.events_at(run_ats[0])  # an event has given it a tick before those
        if spreading and now > model.caught_up_at and not sooner:  # unless the clock was set back
            told = f"{run_ats} before {model.turn_at}"
            life.require(now >= model.turn_at, "spread evenly", told)
        count, tick = 0, run_ats[0]
        while tick is not None and model.due_at(tick) <= now:
            count, tick = count + 1, model.schedule.trigger.next_after(tick, model.past)
        until = model.spread_until
        if not spreading:
            until = now + LOOKAHEAD if tick is None else min(now + LOOKAHEAD, model.due_at(tick))
        most_runs = getattr(model.schedule.trigger, "max_runs", None)
        count = count if most_runs is None else min(count, most_runs - model.used)
        most = min(max(1, count * 100 // (until - now)), MOST_DECISIONS)
        life.require(len(run_ats) <= most, "spread evenly", f"{run_ats}, and not {most}")
        life.seen["spread"] += 1
        gap = most * (until - now) // count
        model.turn_at = now + (gap if len(run_ats) == most else min(gap, 1000))
        model.spread_until = until if len(run_ats) < count else 0

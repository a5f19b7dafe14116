"""Users: they define, edit, pause, start, cancel, tell of ends, backfill; and set the clock."""

import asyncio
from dataclasses import dataclass, field

import msgspec

from onbeat.core.policy import POLICIES, Policy
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.core.schedule import definition, read_schedule
from onbeat.errors import InvalidSchedule, OnbeatError
from onbeat.ports.store import InitialPosition
from tests.sim.drawing import GROUPS, JITTER, Drawing

OUTSIDE = 0.3  # how many targets continue without their node
REGRETTED_AFTER = [0, 0.01, 0.1, 0.1, 1, 5]  # seconds
QUEUE_LIMIT = Policy().queue_limit
NAMES = ["a", "b", "c", "d", "e", "once"]
PUT_OFF = """
SELECT d.schedule_id, count(r.run_id) AS queued
  FROM due d LEFT JOIN schedule_runs r ON r.schedule_id = d.schedule_id AND r.finished_at IS NULL
 WHERE d.run_at * 1000 <= ?1 AND d.due_at > ?1
 GROUP BY 1 ORDER BY queued DESC, 1 LIMIT 1
"""  # by jitter, or for want of room
UNFINISHED = "SELECT run_id, phase FROM schedule_runs WHERE finished_at IS NULL ORDER BY run_id"
SKIPPED = """
SELECT schedule_id, coalesce(first_run_at, run_at), run_at FROM schedule_runs
 WHERE phase = 'SKIPPED' ORDER BY first_run_at IS NULL, run_id DESC LIMIT 40
"""
WHAT = {
    "edit": 6, "retune": 3, "interfere": 2, "crowd": 0.4, "again": 2, "pause": 3, "resume": 5,
    "delete": 2, "enqueue": 4, "gate": 2, "step": 1.2, "poison": 0.3, "cancel": 4, "report": 1,
    "backfill": 3, "set_group": 1,
}  # fmt: skip


@dataclass
class Acknowledged:
    """A call of a user that was answered, or refused: then the answer is why."""

    call: str
    schedule_id: str  # or a group
    answer: object
    named: dict = field(default_factory=dict)
    run_id: int | None = None
    event_id: int = 0  # the last row of events when it was answered
    wrote: bool = False  # whether it made that row

    @property
    def subject(self):
        return self.schedule_id if self.run_id is None else self.run_id


class Users:
    """All of them."""

    def __init__(self, world, store):
        self._world, self._store, self._rng = world, store, world.rng
        self._drawing = Drawing(world.rng, NAMES, outside=OUTSIDE)
        self._at_work = set()  # what somebody is about to do, such as targets that will tell

    async def define_all(self):
        for name in NAMES:
            await self._edit(name)

    async def act(self, ends):
        """Do this and that until then."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / 4))
            if self._world.loop.time() >= ends:
                return
            what = self._rng.choices(list(WHAT), list(WHAT.values()))[0]
            await getattr(self, f"_{what}")(self._rng.choice(NAMES))

    async def be_restless(self):
        """Pause and resume, close and open, while nothing fails; and leave everything open."""
        for _ in range(60):
            await asyncio.sleep(self._rng.random() * 2)
            name = self._rng.choice(NAMES)
            what = self._rng.choice(["_pause", "_resume", "_resume", "_gate", "_cancel"])
            await getattr(self, what)(name)
        for name in NAMES:
            await self._resume(name)
            if self._rng.random() < 0.2:
                await self._call("pause", name, until=self._now() + 20_000)
        await self._call("set_gate", is_open=True)

    def will_tell(self, run_id):
        """Have a target tell of the end of a run that it has accepted; mostly."""
        if self._rng.random() < 0.75:
            self._later(self._tell(run_id))

    def may_regret(self, run_id, *, likely=0.02):
        """Have a user cancel a run that was just announced, or detached; rarely."""
        if self._rng.random() < likely:
            self._later(self._regret(run_id))

    def _later(self, work):
        task = self._world.loop.create_task(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)

    async def leave(self):
        for task in list(self._at_work):
            task.cancel()
        await asyncio.gather(*self._at_work, return_exceptions=True)

    # -- what they ask for

    async def _call(self, call, *given, **named):
        """Ask for something; keep what was answered, and which events came of it."""
        before = self._last_event()
        try:
            answer = await getattr(self._store, call)(*given, **named)
        except OnbeatError as refused:
            answer = refused
        after, first = self._last_event(), given[0] if given else ""
        is_run = isinstance(first, int)
        subject = "" if is_run else first[0].schedule_id if call == "upsert" else first
        run_id = first if is_run else None
        self._world.acknowledged.append(
            Acknowledged(call, subject, answer, named, run_id, after, after > before)
        )
        return None if isinstance(answer, OnbeatError) else answer

    def _last_event(self):
        rows = self._world.looking.execute("SELECT coalesce(max(event_id), 0) FROM events")
        return rows.fetchone()[0]

    def _now(self):
        return self._world.clock.now()

    async def _edit(self, name):
        try:
            schedule = self._drawing.schedule(name, now=self._now() // 1000)
        except InvalidSchedule:
            return
        named = self._may_update()
        if self._rng.random() < 0.2:
            past = self._now() - self._rng.choice([0, 5, 60, 4000]) * 1000
            named["initial_positions"] = {name: InitialPosition(ticked_at=past)}
        answer = await self._call("upsert", [schedule], **named)
        if answer and answer[0].change == "created" and answer[0].revision > 1:
            self._world.seen["recreated"] += 1

    async def _retune(self, name):
        """Change how a schedule is treated, and not when it ticks."""
        row = await self._store.schedule(name)
        if row is None or row.definition == "poison":
            return
        fields = msgspec.json.decode(row.definition)
        policies = (POLICIES.keys() | {"when"}) - set(JITTER)
        kept = {field: value for field, value in fields.items() if field not in policies}
        fresh = read_schedule(name, kept | self._drawing.policies())
        await self._call("upsert", [fresh], **self._may_update())

    def _may_update(self):
        """Have what waits moved to the new definition; mostly not."""
        return {"update_waiting": True} if self._rng.random() < 0.25 else {}

    async def _interfere(self, name):
        """Change the schedule with the longest queue of those that have ticks put off, if any."""
        found = self._world.looking.execute(PUT_OFF, (self._now(),)).fetchone()
        if found is not None:
            crowded, queued = found
            how = "the queue was full" if queued >= QUEUE_LIMIT else "ticks were put off"
            self._world.seen[f"changed while {how}"] += 1
            await self._rng.choice([self._edit, self._retune, self._pause])(crowded)

    async def _crowd(self, name):
        """Have more ticks missed at once than a queue takes; interfere with what is put off."""
        fields = {"every": "3s", "catchup": "all", "overlap": "queue", "run": {"command": ["true"]}}
        await self._call("upsert", [read_schedule(name, fields)])
        await asyncio.sleep(self._rng.choice([1, 5]))
        self._set_clock(400_000)
        await asyncio.sleep(self._rng.choice([2, 25]))
        await self._interfere(name)

    async def _again(self, name):
        """Define a schedule as it is: nothing may be written."""
        row = await self._store.schedule(name)
        if row is None or row.definition == "poison":
            return
        before = self._last_event()
        same = read_schedule(name, msgspec.json.decode(row.definition))
        assert definition(same) == row.definition
        (answer,) = await self._store.upsert([same], source="")
        assert answer.change == "unchanged"
        assert before == self._last_event()

    async def _pause(self, name):
        until = None
        if self._rng.random() < 0.4:
            until = self._now() + self._rng.choice([700, 5_000, 40_000])
        await self._call("pause", name, until=until)

    async def _resume(self, name):
        await self._call("resume", name, catchup=self._rng.random() < 0.3)

    async def _delete(self, name):
        await self._call("delete", name)

    async def _enqueue(self, name):
        await self._call("enqueue", name, request_id=f"r{self._rng.randrange(40)}")

    async def _gate(self, name):
        await self._call("set_gate", is_open=self._rng.random() < 0.7)

    async def _cancel(self, name):
        """Cancel a run: mostly one that is not over."""
        rows = self._world.looking.execute(UNFINISHED).fetchall()
        if self._rng.random() < 0.1:
            rows = [(each.run_id, None) for each in self._world.launched[-20:]]
        run_id = self._one_of(rows)
        if run_id is not None:
            await self._call("cancel", run_id)

    async def _regret(self, run_id):
        await asyncio.sleep(self._rng.choice(REGRETTED_AFTER))
        await self._call("cancel", run_id)

    async def _report(self, name):
        """Tell of a run that was started, accepted or not; it may be over by now."""
        recent = [(each.run_id, each.attempt) for each in self._world.launched[-20:]]
        run_id = self._one_of([each for each in recent if self._attempt(each[0]) == each[1]])
        if run_id is not None:
            await self._call("report", run_id, self._outcome())

    async def _tell(self, run_id):
        """Tell of a run that was accepted; unless it is attempted again by then."""
        attempt = self._attempt(run_id)
        await asyncio.sleep(self._rng.choice([0.1, 3, 20, 200]) * self._rng.random())
        if self._attempt(run_id) == attempt:
            await self._call("report", run_id, self._outcome())

    def _attempt(self, run_id):
        asked = "SELECT attempt FROM schedule_runs WHERE run_id = ?"
        return self._world.looking.execute(asked, (run_id,)).fetchone()[0]

    def _outcome(self):
        retryable = self._rng.random() < 0.5
        return Succeeded() if self._rng.random() < 0.6 else Failed("no", retryable=retryable)

    def _one_of(self, rows):
        return self._rng.choice(rows)[0] if rows else None

    async def _backfill(self, name):
        """Have ticks run after all: the last ones, those of an hour ago, or some that were skipped."""
        now, rng = self._now() // 1000, self._rng
        first = now - rng.choice([20, 100, 600, 3700])
        last = now + 30 if rng.random() < 0.5 else first + rng.choice([0, 10, 60])
        skipped = self._world.looking.execute(SKIPPED).fetchall()
        if skipped and rng.random() < 0.6:
            name, begins, ends = rng.choice(skipped)
            first = rng.choice([begins, rng.randint(begins, ends), ends])
            last = rng.choice([first, rng.randint(first, ends), ends, ends + 10])
        limit = rng.choice([1, 3, 10, 30])
        await self._call("backfill", name, first=first, last=last, limit=limit)

    async def _set_group(self, name):
        group, places = self._rng.choice(GROUPS), self._rng.choice([1, 1, 2, 3])
        await self._call("set_group", group, places=places)

    async def _step(self, name):
        self._set_clock(self._rng.choice([-3_600_000, 3_600_000, -30_000, -1_500, 20_000]))

    def _set_clock(self, step):
        self._world.seen["clock set back" if step < 0 else "clock set forth"] += 1
        self._world.set_clock(step)

    async def _poison(self, name):
        """Damage a definition, as a bug or a bad disk would; a later edit cures it."""
        if name == "e":
            self._world.looking.execute(
                "UPDATE schedules SET definition = 'poison' WHERE schedule_id = 'e'"
            )
            self._world.seen["poisoned"] += 1

"""A messy week in each of the five systems: seeded, with a manual clock, through their front ends.

There are outages in good order and crashes, pauses, edits, a closed gate, manual starts, backfills,
cancellations, targets that are slow, fail, are busy or never report, and a night on which the clocks change.
"""

import json
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import Random
from zoneinfo import ZoneInfo

import apsw
from msgspec.structs import replace
from pydantic import BaseModel

from onbeat import Onbeat
from onbeat.agents import Orchestrator
from onbeat.core.runs.run import Succeeded
from onbeat.errors import OnbeatError
from onbeat.systems.sessions.definitions import PromptRefused
from tests.given_settings import given_settings
from tests.week.play import Play, Targets
from tests.week.script import DAY, HOUR, MINUTE, Act, Does

BERLIN = ZoneInfo("Europe/Berlin")
LONG, LEASE = 30 * DAY * 1000, 5_000  # a node is heard of in real time, so its lease lasts
AUTUMN = datetime(2026, 10, 19, tzinfo=BERLIN)
SPRING = datetime(2027, 3, 22, tzinfo=BERLIN)
KINDS = ("command", "python", "session", "session:url", "flow", "workflow", "ray")
OUTCOMES = (
    *["ok"] * 11, *["slow"] * 4, "exit", "exit", "error", "busy", "launch_failed", "signal", "accepts",
)  # fmt: skip


@dataclass
class Story:
    """What is done in a week, and what targets do: all of it follows from the seed."""

    seed: str
    first: int
    last: int
    acts: list

    def all_acts(self):
        return sorted(self.acts, key=lambda act: act.at)

    def does(self, name, tick, attempt):
        digest = sha256(f"{self.seed} {name} {tick} {attempt}".encode()).digest()
        ends = OUTCOMES[digest[0] % len(OUTCOMES)]
        takes = (0, 7, 130, 20 * MINUTE + 3)[digest[1] % 4]
        match ends:
            case "slow":
                return Does((50 * MINUTE + 11, 2 * HOUR + 7, 5 * HOUR + 3)[digest[2] % 3], "ok")
            case "busy":
                return Does(0, "busy", again=(10 * MINUTE, HOUR)[digest[2] % 2])
            case "accepts":
                return Does(0, "accepts", tells=15 * MINUTE if digest[2] % 2 else None)
            case _:
                return Does(takes, ends)

    def holds(self, name, tick):
        return True


class AllTargets(Targets):
    """Targets of every kind that are offered, in the time of the clock."""

    def __init__(self, script, clock, offers):
        super().__init__(script, clock)
        self._offers = offers

    def offers(self):
        return self._offers

    async def launch(self, attempt):
        # What the targets of the week do follows from the schedule and the tick alone.
        work = type(attempt.target)("command", {"command": ["work"]})
        return await super().launch(replace(attempt, target=work, request_id=""))


class Week(Play):
    """A week of one system. `kinds` are the targets that it starts."""

    kinds = ("command",)
    names = ()

    def __init__(self, seed, folder, database=None):
        self.random = Random(f"{type(self).__name__} {seed}")
        monday = AUTUMN if self.random.random() < 0.5 else SPRING
        first = int(monday.timestamp())
        last = int((monday + timedelta(days=7, minutes=10)).timestamp())
        self.database = database
        super().__init__(Story(f"{type(self).__name__} {seed}", first, last, []), folder)
        self.crashes = []
        self.script.acts = self.planned()

    # -- what is done

    def at(self, day, hour):
        """Return an instant that is not that of a tick."""
        return self.script.first + day * DAY + int(hour * HOUR) + self.random.randrange(11, 50)

    def planned(self):
        """Return what is done in the week, but for the first definitions."""
        chance, names = self.random, list(self.names)
        acts = [Act(self.script.first, "begin", "", {})]
        acts += [Act(self.at(day, chance.uniform(1, 22)), "edit", "", {}) for day in (1, 3, 4)]
        for day in (0, 2, 5, 6):
            name, hour = chance.choice(names), chance.uniform(2, 15)
            note = chance.choice(["", "holiday", "maintenance (planned)"])
            acts.append(Act(self.at(day, hour), "pause", name, {"note": note}))
            end = hour + chance.uniform(0.5, 8)
            given = {"catchup": chance.random() < 0.4}
            acts.append(Act(self.at(day, end), "resume", name, given))
        gate = chance.uniform(3, 12)
        acts.append(Act(self.at(3, gate), "gate", "", {"is_open": False}))
        acts.append(Act(self.at(3, gate + 1.4), "gate", "", {"is_open": True}))
        for day, verb, length in ((1, "stop", 7.1), (4, "crash", 2.3), (6, "stop", 1.2)):
            begins = chance.uniform(1, 14) if day != 6 else 0.9  # over the night of the change
            acts.append(Act(self.at(day, begins), verb, "", {}))
            acts.append(Act(self.at(day, begins + length), "open", "", {}))
        for _ in range(6):
            at = self.at(chance.randrange(7), chance.uniform(0, 23))
            acts.append(Act(at, "start", chance.choice(names), {}))
        for _ in range(5):
            at = self.at(chance.randrange(1, 7), chance.uniform(0, 23))
            acts.append(Act(at, "cancel", chance.choice(names), {}))
        acts.append(Act(self.at(5, 20), "backfill", chance.choice(names), {}))
        acts.append(Act(self.at(5, 22.5), "delete", names[-1], {}))
        return acts

    # -- the life of it

    @property
    def url(self):
        return self.database or f"sqlite:///{self.path}"

    def settings(self):
        return {"database": self.url, "stop_grace": 1, "lease": LONG}

    def new_beat(self):
        return Onbeat(
            settings=given_settings(**self.settings()), clock=self.clock, launchers=self.own()
        )

    def own(self):
        return dict.fromkeys(self.kinds, self.targets)

    async def open(self):
        self.targets = AllTargets(self.script, self.clock, self.offers())
        self.beat = self.new_beat()
        await self.enter()

    def offers(self):
        return KINDS

    async def enter(self):
        await self.beat.__aenter__()

    async def look(self):
        """Have the system take up what has changed."""

    async def _calm(self):
        await self.look()
        await super()._calm()

    # -- actions of users; an impossible action is skipped

    async def _begin(self, act):
        await self.define()

    async def define(self):
        raise NotImplementedError

    async def _edit(self, act):
        if self.beat is not None:
            await self.edit(self.random.randrange(100))

    async def _delete(self, act):
        if self.beat is not None:
            with suppress(OnbeatError):
                await self.beat.delete(act.name)

    async def _pause(self, act):
        if self.beat is not None:
            with suppress(OnbeatError):
                await self.beat.pause(act.name, note=act.given["note"])

    async def _resume(self, act):
        if self.beat is not None:
            with suppress(OnbeatError):
                await self.beat.resume(act.name, **act.given)

    async def _gate(self, act):
        if self.beat is not None:
            await self.beat.service.set_gate(**act.given)

    async def _start(self, act):
        if self.beat is not None:
            with suppress(OnbeatError):
                await self.start(act.name)

    async def start(self, name):
        await self.beat.start(name, request_id=f"by-hand-{self.clock.now()}")

    async def _cancel(self, act):
        if self.beat is None:
            return
        with suppress(OnbeatError):
            rows = await self.beat.runs(act.name, limit=50)
            for row in [row for row in rows if row.finished_at is None][:1]:
                await self.beat.cancel(row.run_id, note="not now")

    async def _backfill(self, act):
        if self.beat is not None:
            with suppress(OnbeatError):
                stretch = {"first": act.at - 2 * DAY, "last": act.at - 2 * DAY + 3 * HOUR}
                await self.beat.service.backfill(act.name, **stretch)

    async def _stop(self, act):
        await self.close()

    async def _crash(self, act):
        """Continue with the file as it is now: its node was alive until then."""
        self.crashes.append(self.clock.now())
        if self.database is not None:
            await self.close()
            return
        before = self.path
        self.nodes += 1
        with closing(apsw.Connection(str(before))) as source:
            source.execute("VACUUM INTO ?", (str(self.path),))
        with closing(apsw.Connection(str(self.path))) as copy:
            copy.execute("UPDATE nodes SET alive_until = ?", (self.clock.now() + LEASE,))
        await self.close()

    async def _open(self, act):
        await self.open()

    async def _tell(self):
        """Report the ends of what was accepted, unless its deadline came first."""
        for report in [each for each in self.targets.reports if each[0] <= self.clock.now()]:
            self.targets.reports.remove(report)
            with suppress(OnbeatError):
                await self.beat.report(report[1], Succeeded())


class Services(Week):
    """Timers of oneshot services, in a file that is edited."""

    kinds, names = ("command",), ("hourly", "often", "nightly", "later")

    def write(self, minute=0, *, retry=True):
        timers = [
            {"id": "hourly", "target": "backup", "on_calendar": {"minute": minute}},
            {"id": "often", "target": "poll", "on_calendar": {"minute": [5, 25, 45]}, "persistent": True},
            {"id": "nightly", "target": "backup", "on_calendar": {"hour": 2, "minute": 30}},
            {"id": "later", "target": "poll", "on_unit_active_sec": 3000, "on_startup_sec": 60},
        ]  # fmt: skip
        services = {"backup": {"argv": ["./backup.sh"]}, "poll": {"argv": ["./poll.sh"]}}
        self.file = self.folder / "services.json"
        new = self.folder / "services.new"
        new.write_text(json.dumps({"timers_enabled": True, "services": services, "timers": timers}))
        new.replace(self.file)

    def settings(self):
        return super().settings() | {"services_file": str(self.folder / "services.json")}

    async def open(self):
        if not (self.folder / "services.json").exists():
            self.write()
        await super().open()

    async def look(self):
        for _ in range(2):
            await self.beat.systems["services"].step()

    async def define(self):
        await self.look()

    async def edit(self, n):
        self.write(minute=n % 60)
        for _ in range(3):
            await self.beat.systems["services"].step()


class Workflows(Week):
    """Cron schedules of DAGs, registered by calls."""

    kinds, names = ("workflow",), ("report", "sync", "queue", "berlin")

    def settings(self):
        return super().settings() | {"workflows_timeout": 1_800_000}

    async def define(self):
        put = self.put
        await put("report", "0 * * * *", retry_policy=None)
        await put("sync", "*/20 * * * *", overlap_policy="queue")
        await put("queue", "10 */2 * * *", overlap_policy="allow", catchup_policy="spread")
        await put("berlin", "30 2 * * *", timezone="Europe/Berlin")

    async def put(self, schedule_id, cron, **given):
        given = {name: value for name, value in given.items() if value is not None}
        fields = {
            "schedule_id": schedule_id, "workflow_id": schedule_id, "version": 1, "user_id": "ada",
            "cron_expr": cron, "timezone": "UTC",
        }  # fmt: skip
        await self.beat.systems["workflows"].registrar.upsert_schedule(fields | given)

    async def edit(self, n):
        await self.put("report", f"{n % 60} * * * *")
        await self.put("sync", "*/20 * * * *", overlap_policy=("skip", "queue", "allow")[n % 3])


class Flows(Week):
    """Flows of exposes in a database, launched on a panel or on Ray."""

    kinds = ("flow", "ray")
    names = ("one/-/a", "two/-/b", "three/-/c", "four/-/d")
    table = "CREATE TABLE IF NOT EXISTS expose (name TEXT PRIMARY KEY, enabled INTEGER, meta TEXT)"

    def offers(self):
        return ("flow",)  # no cluster is there: what runs on Ray waits

    def settings(self):
        return super().settings() | {
            "flows_exposes": str(self.folder / "expose.db"), "flows_panel": "http://127.0.0.1:9",
            "flows_log_file": "", "flows_password": "${env:PANEL}",
        }  # fmt: skip

    def expose(self, name, url, **block):
        meta = json.dumps([{"url": url, "data": json.dumps({"schedule": block})}])
        with closing(sqlite3.connect(self.folder / "expose.db")) as database, database:
            database.execute(self.table)
            row = "INSERT OR REPLACE INTO expose (name, enabled, meta) VALUES (?, 1, ?)"
            database.execute(row, (name, meta))

    async def open(self):
        if not (self.folder / "expose.db").exists():
            self.expose("one", "/-/a", cron="0 * * * *", retry_count=2, retry_delay="20m")
            self.expose("two", "/-/b", cron="*/15 * * * *", timezone="Europe/Berlin")
            self.expose("three", "/-/c", cron="30 2 * * *", timezone="Europe/Berlin")
            self.expose("four", "/-/d", cron="0 */3 * * *", entry_point="flows:main")
        await super().open()

    async def look(self):
        await self.beat.systems["flows"].reconcile()

    async def define(self):
        await self.look()

    async def edit(self, n):
        self.expose("one", "/-/a", cron=f"{n % 60} * * * *", retry_count=n % 3, retry_delay="10m")
        await self.look()


class Sessions(Week):
    """Prompts to chat sessions, with files that are edited."""

    kinds, names = ("session",), ("standup", "digest", "poll", "night")

    def settings(self):
        return super().settings() | {
            "sessions_url": "http://127.0.0.1:9", "sessions_folder": str(self.folder / "schedule"),
        }  # fmt: skip

    async def open(self):
        folder = self.folder / "schedule" / "adopted"
        if not folder.exists():  # another system had it before, and its prompt is overdue
            folder.mkdir(parents=True)
            schedule = {"type": "cron", "expression": "0 6 * * *"}
            given = {"slug": "adopted", "prompt": "now", "enabled": True, "schedule": schedule}
            (folder / "definition.json").write_text(json.dumps(given))
            due = datetime.fromtimestamp(self.script.first - 3 * HOUR, UTC)
            last = {"nextRun": f"{due:%Y-%m-%dT%H:%M:%SZ}", "lastRun": None, "lastResult": None}
            (folder / "last-run.json").write_text(json.dumps(last))
        await super().open()

    async def look(self):
        await self.beat.systems["sessions"].reconcile()

    async def put(self, slug, **schedule):
        given = {"prompt": f"{slug}!", "enabled": True, "schedule": schedule}
        with suppress(PromptRefused):
            await self.beat.systems["sessions"].put(self.beat.service, slug, given)

    async def define(self):
        await self.put("standup", type="cron", expression="0 9 * * 1-5")
        await self.put("digest", type="cron", expression="15 */2 * * *")
        await self.put("poll", type="interval", intervalMinutes=45)
        await self.put("night", type="cron", expression="30 2 * * *")

    async def edit(self, n):
        await self.put("digest", type="cron", expression=f"{n % 60} */2 * * *")
        path = self.folder / "schedule" / "standup" / "last-run.json"
        last = json.loads(path.read_text())
        soon = datetime.fromtimestamp(self.clock.now() // 1000 + 17 * MINUTE, UTC)
        path.write_text(json.dumps(last | {"nextRun": f"{soon:%Y-%m-%dT%H:%M:%SZ}"}))
        await self.look()

    def _coming(self):
        return [*super()._coming(), self.clock.now() + 30 * 60_000 - self.clock.now() % 60_000]

    async def start(self, name):
        await self.beat.systems["sessions"].run(self.beat.service, name)


class LogEntry(BaseModel):
    """What is published."""

    text: str = ""


class Report(BaseModel):
    """What agents would publish."""

    text: str = ""


class Agents(Week):
    """Agents with timers, and an agent triggered by artifacts; the program changes at a restart."""

    kinds = ("python",)
    names = ("agents/hourly", "agents/daily", "agents/cron", "agents/warner")
    lives = 0

    def offers(self):
        return ("python", *(f"python:{name}" for name in self.names))

    def new_beat(self):
        self.lives += 1
        its = Orchestrator(settings=given_settings(**self.settings()), clock=self.clock)
        its.beat._own_launchers["python"] = self.targets
        hour = timedelta(hours=1) if self.lives == 1 else timedelta(minutes=40)
        start = datetime.fromtimestamp(self.script.first, UTC)

        async def work(ctx):
            raise AssertionError("the targets of the week are called instead")

        def agent(name):
            return its.agent(name).publishes(Report).with_engines(work)

        agent("hourly").schedule(every=hour).policy(retry=["10m"], timeout="3h")
        agent("daily").schedule(at=start + timedelta(hours=9.5), max_repeats=2)
        agent("cron").schedule(cron="*/30 * * * *").policy(catchup="all")
        agent("warner").consumes(LogEntry).policy(retry=["5m", "1h"])
        if self.lives == 1:
            agent("late").schedule(at=start - timedelta(hours=3))
        self.its = its
        return its.beat

    async def enter(self):
        await self.its.start()

    async def close(self):
        if self.beat is not None:
            await self.its.close()
        self.beat = None

    async def define(self):
        await self.its.publish(LogEntry(text="first"))

    async def edit(self, n):
        await self.its.publish(LogEntry(text=f"entry {n}"), request_id=f"entry-{n}")


SYSTEMS = {
    "flows": Flows, "agents": Agents, "sessions": Sessions, "services": Services,
    "workflows": Workflows,
}  # fmt: skip

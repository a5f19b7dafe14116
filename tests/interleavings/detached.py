"""Runs that continue without their node, in every phase of theirs, for two clients.

All are of the schedule `report`, which queues. The run of one o'clock is detached, and that of two
o'clock waits behind it. Of manual runs, `taken` was claimed by node `two` to reattach it, `silent`
was reattached by node `two`, which has fallen silent, `again` was reattached by node `one`, `left`
runs on node `one` for the first time, and `recalled` is detached and was asked to end. Of `unknown`
node `one` does not know that it was announced to reattach it: that call was not answered.
"""

from onbeat.core.runs.run import Failed, Lost, Succeeded
from onbeat.ports.store import Finished
from onbeat.testing import a_schedule
from tests.interleavings.world import ONE, REPORT, TWO, TwoClients

REATTACHED_BY = {"taken": TWO, "silent": TWO, "again": ONE, "unknown": ONE}


class DetachedClients(TwoClients):
    """A database with two clients, and detached runs."""

    situation_names = ("detached",)

    async def _live(self, situation, *, beside_another):
        store, held = self.stores[0], situation.held
        await store.register(ONE)
        await store.register(TWO)
        target = {"outside": ["true"]}
        await self.call(store, "upsert", [a_schedule("report", **REPORT, run=target)])
        self.clock.advance("1h")
        await self.plan(store)
        held["tick"] = await self._start_one(store)
        self.clock.advance("1h")
        await self.plan(store)
        for name, node in REATTACHED_BY.items():
            await self.call(store, "enqueue", "report", request_id=name)
            await self._lose(store, await self._start_one(store))
            (held[name],) = await store.claim(node, limit=1)
            if name == "unknown":
                await store.announce(node, [held[name]])
            elif name != "taken":
                await self.announce(store, node, [held[name]])
        for name in ("left", "recalled"):
            await self.call(store, "enqueue", "report", request_id=name)
            held[name] = await self._start_one(store)
        await self._lose(store, held["recalled"])
        await self.call(store, "cancel", held["recalled"].run_id)
        await self._lose(store, held["tick"])
        situation.started = [held["again"], held["left"]]
        self.clock.advance("1h")

    async def _start_one(self, store):
        (attempt,) = await store.claim(ONE, limit=1)
        await self.announce(store, ONE, [attempt])
        return attempt

    async def _lose(self, store, attempt):
        await store.finish([Finished(attempt, Lost())])

    def calls(self, held):
        """Return everything that can be done, by name."""
        here = [held["again"], held["left"]]

        def cancel(name):
            return lambda store: self.call(store, "cancel", held[name].run_id)

        def finish(*outcomes):
            finished = [Finished(each, said) for each, said in zip(here, outcomes, strict=True)]
            return lambda store: store.finish(finished)

        return {
            "plan": self.plan,
            "reattach": self.claim,
            "announce": lambda store: self.announce(store, TWO, [held["taken"]]),
            "rescue": lambda store: store.rescue(ONE),
            "hand back": lambda store: store.hand_back([held["taken"]]),
            "hand back late": lambda store: store.hand_back([held["silent"]]),
            "leave": finish(Lost(), Lost()),
            "finish": finish(Succeeded(), Failed("it broke")),
            "release_unknown": self._release,
            "report": lambda store: store.report(held["left"].run_id, Succeeded()),
            "report again": lambda store: store.report(held["again"].run_id, Succeeded()),
            "cancel": cancel("left"),
            "cancel again": cancel("again"),
            "cancel taken": cancel("taken"),
            "cancel silent": cancel("silent"),
            "cancel unknown": cancel("unknown"),
            "cancel tick": cancel("tick"),
            "pause": lambda store: self.call(store, "pause", "report"),
            "delete": lambda store: self.call(store, "delete", "report"),
        }

    async def _release(self, store):
        known = {(each.run_id, each.fence) for each in (*self.started, *self.claimed)}
        await store.release_unknown(ONE, known, before=self.clock.now() - 2_000)

    async def _settle(self):
        await self._release(self.stores[0])
        await super()._settle()

    def situation_for(self, *names):
        return self.situations["detached"]

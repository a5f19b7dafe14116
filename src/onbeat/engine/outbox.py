"""The outbox's loop: what happened becomes messages, and each channel sends its own.

A slow or hanging target holds up nothing but its own channel. A message is `sending`, committed,
before it is sent; so a crash at any point costs one that is told as in doubt, and none is ever sent
twice.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onbeat.core.notify.channels import Channel
from onbeat.core.notify.notifications import (
    Delivery,
    DeliveryRefused,
    DeliveryResult,
    DeliveryUnknown,
    MessageContent,
    Notification,
    OutgoingMessage,
    compose_message,
    delivery_result,
    first_line,
)
from onbeat.errors import StoreFailed
from onbeat.events import RunFailed, RunSkipped, RunStarted, RunStuck, RunSucceeded, ScheduleParked
from onbeat.ports.notifier import Notifier
from onbeat.ports.rows import StoredEvent
from onbeat.ports.store import Store

LOOK_EVERY = 1.0  # seconds
ROWS = 200  # marked event rows in one transaction
LONGEST_SEND = 30.0  # seconds, well below what the store takes for silence
GIVE_UP = 2.0  # seconds in which an adapter that was cancelled says what it knows
TRIES = 10  # to keep what came of a message, before it is left in doubt

log = logging.getLogger("onbeat.notices")


@dataclass(frozen=True, slots=True)
class ChannelAdapter:
    """A channel, and the adapter that delivers its messages."""

    channel: Channel
    notifier: Notifier


class Outbox:
    """Collects what channels are to hear of, and delivers it."""

    def __init__(self, store: Store, wired: Sequence[ChannelAdapter]) -> None:
        self._store = store
        self._wired: Mapping[str, ChannelAdapter] = {each.channel.name: each for each in wired}
        self._sending: dict[str, asyncio.Task[None]] = {}  # by channel
        self._wake, self._give_up = asyncio.Event(), asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._stopping, self._is_failing = False, False

    def start(self) -> None:
        """Begin to look and to send."""
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def wake(self) -> None:
        """Look again at once."""
        self._wake.set()

    def hurry(self) -> None:
        """Give up what is being sent, once it is to stop."""
        self._give_up.set()

    async def stop(self, grace: float) -> None:
        """Begin nothing more; what is being sent has `grace` seconds, and is then given up."""
        self._stopping = True
        self.wake()
        if self._looking is not None:
            await asyncio.gather(self._looking, return_exceptions=True)
        # None of these is cancelled: a message that was just taken would be in doubt for nothing.
        if sending := [*self._sending.values()]:
            await asyncio.wait(sending, timeout=grace)
            self._give_up.set()
            await asyncio.wait(sending)

    async def look_once(self) -> None:
        """Make messages of what happened, and have channels send those that are due."""
        found = await self._store.to_send(self._wired.keys())
        if found.has_marks:
            await self._collect()
            found = await self._store.to_send(self._wired.keys())
        if found.has_silent:
            await self._store.doubt_letters()
        for name in found.channels:
            if name not in self._sending and not self._stopping:
                task = asyncio.get_running_loop().create_task(self._send_all(self._wired[name]))
                self._sending[name] = task
                task.add_done_callback(lambda _, name=name: self._sending.pop(name, None))  # type: ignore[misc]

    async def idle(self) -> None:
        """Wait until nothing is being sent."""
        while self._sending:
            await asyncio.wait([*self._sending.values()])

    async def _look(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                await self.look_once()
                self._is_failing = False
            except StoreFailed as broken:
                if not self._is_failing:
                    log.warning("notices wait: %s", broken)
                self._is_failing = True
            except Exception:  # a defect here must not end the node
                log.exception("notices could not be looked at")
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _collect(self) -> None:
        """Make messages of all that is marked, a few rows at a time: others write in between."""
        dropped = 0
        while not self._stopping:
            collected = await self._store.collect_notices(self._compose, limit=ROWS)
            dropped += collected.dropped
            if not collected.is_full:
                break
        if dropped:
            log.warning("what happened more than an hour ago is not told: %d rows", dropped)

    def _compose(self, happened: Sequence[StoredEvent]) -> list[tuple[str, MessageContent, int]]:
        """Return what each channel hears of what happened: called inside a transaction."""
        notices = [each for each in map(notice_of, happened) if each is not None]
        found = []
        for name, wired in self._wired.items():
            rule = wired.channel.rule
            if heard := [notice for notice in notices if rule.hears(notice)]:
                found.append((name, compose_message(heard), wired.channel.every))
        return found

    async def _send_all(self, wired: ChannelAdapter) -> None:
        """Send what is due for one channel, one message after the other."""
        try:
            while not self._stopping:
                letter = await self._store.take_letter(wired.channel.name)
                if letter is None:
                    return
                await self._send(wired, letter)
        except StoreFailed as broken:
            log.warning("%s: messages wait: %s", wired.channel.name, broken)
        except Exception:
            log.exception("%s: messages wait", wired.channel.name)

    async def _send(self, wired: ChannelAdapter, letter: OutgoingMessage) -> None:
        settled = delivery_result(letter, await self._deliver(wired.notifier, letter))
        if settled.state == "waiting":
            told = (letter.channel, settled.error, settled.wait / 1000)
            log.warning("%s: a message was not taken: %s (next try in %g s)", *told)
        await self._keep(letter, settled)

    async def _deliver(self, notifier: Notifier, letter: OutgoingMessage) -> Delivery:
        """Send a message, for as long as that may take."""
        if self._stopping:
            return DeliveryRefused("this node was being stopped")
        sending = asyncio.ensure_future(_sent(notifier, letter))
        stopped = asyncio.ensure_future(self._give_up.wait())
        either: list[asyncio.Future[Any]] = [sending, stopped]
        await asyncio.wait(either, timeout=LONGEST_SEND, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not sending.done():
            sending.cancel()
            await asyncio.wait([sending], timeout=GIVE_UP)
        if sending.done() and not sending.cancelled():
            return sending.result()
        return DeliveryUnknown("it was given up while it was being sent")

    async def _keep(self, letter: OutgoingMessage, settled: DeliveryResult) -> None:
        """Keep what came of a message; if that never works, it is in doubt by itself."""
        for n in range(TRIES):
            try:
                await self._store.settle_letter(letter, settled)
            except StoreFailed as broken:
                log.warning("%s: what came of a message waits: %s", letter.channel, broken)
                if self._stopping:
                    return
                await asyncio.sleep(min(0.2 * 2**n, 5.0))
            else:
                return


async def _sent(notifier: Notifier, letter: OutgoingMessage) -> Delivery:
    try:
        return await notifier.send(letter)
    except Exception as broken:  # an adapter that breaks its contract may have sent it
        log.exception("%s: the adapter failed", letter.channel)
        return DeliveryUnknown(f"{type(broken).__name__} while it was being sent")


def notice_of(happened: StoredEvent) -> Notification | None:
    """Return what may be told of an event, if anything."""
    event, at = happened.event, happened.at
    match event:
        case RunFailed():
            about = (event.schedule_id, at, event.run_id, event.run_at)
            error = first_line(event.error)
            return Notification("failure", *about, event.reason, error, event.failures)
        case RunSucceeded():
            about = (event.schedule_id, at, event.run_id, event.run_at)
            if not event.failures:
                return Notification("success", *about)
            return Notification("recovery", *about, failures=event.failures)
        case RunSkipped() if event.is_notable:
            about = (event.schedule_id, at, event.run_id, event.run_at)
            ticks = (event.first_run_at, event.tick_count)
            return Notification("missed", *about, event.reason, "", 0, 0, *ticks)
        case RunStarted() if event.late:
            about = (event.schedule_id, at, event.run_id, event.run_at)
            return Notification("late", *about, late=event.late)
        case RunStuck():
            about = (event.schedule_id, at, event.run_id, event.run_at)
            return Notification("stuck", *about, event.rule, lasts=event.lasts, limit=event.limit)
        case ScheduleParked():
            return Notification("parked", event.schedule_id, at, error=first_line(event.error))
        case _:
            return None

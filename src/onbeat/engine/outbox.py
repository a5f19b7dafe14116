"""`Outbox`: the loop that turns events into messages and sends them, channel by channel.

A slow or hanging notifier delays only its own channel. A message is committed as `sending` before
it is sent: a crash at any point leaves a message that is reported as in doubt, and none is sent
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
LONGEST_SEND = 30.0  # seconds, well below the time after which the store takes it as in doubt
GIVE_UP = 2.0  # seconds that a cancelled notifier has to return its result
TRIES = 10  # to record the result of a message, before it is left in doubt

log = logging.getLogger("onbeat.notices")


@dataclass(frozen=True, slots=True)
class ChannelAdapter:
    """A channel, and the notifier that delivers its messages."""

    channel: Channel
    notifier: Notifier


class Outbox:
    """Collects messages for channels, and delivers them."""

    def __init__(self, store: Store, adapters: Sequence[ChannelAdapter]) -> None:
        self._store = store
        self._adapters: Mapping[str, ChannelAdapter] = {
            each.channel.name: each for each in adapters
        }
        self._sending: dict[str, asyncio.Task[None]] = {}  # by channel
        self._wake, self._give_up = asyncio.Event(), asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._stopping, self._is_failing = False, False

    def start(self) -> None:
        """Start collecting and sending."""
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def wake(self) -> None:
        """Collect and send now."""
        self._wake.set()

    def hurry(self) -> None:
        """Give up messages that are being sent, without the grace period of `stop`."""
        self._give_up.set()

    async def stop(self, grace: float) -> None:
        """Start nothing more; give messages that are being sent `grace` seconds, then give up."""
        self._stopping = True
        self.wake()
        if self._looking is not None:
            await asyncio.gather(self._looking, return_exceptions=True)
        # No task is cancelled: a message that was just taken would be in doubt for no reason.
        if sending := [*self._sending.values()]:
            await asyncio.wait(sending, timeout=grace)
            self._give_up.set()
            await asyncio.wait(sending)

    async def look_once(self) -> None:
        """Write messages for events, and start sending those that are due."""
        work = await self._store.to_send(self._adapters.keys())
        if work.has_marks:
            await self._collect()
            work = await self._store.to_send(self._adapters.keys())
        if work.has_silent:
            await self._store.mark_in_doubt()
        for name in work.channels:
            if name not in self._sending and not self._stopping:
                task = asyncio.get_running_loop().create_task(self._send_all(self._adapters[name]))
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
                    log.warning("notifications are delayed: %s", broken)
                self._is_failing = True
            except Exception:  # a defect here must not end the node
                log.exception("processing notifications failed")
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _collect(self) -> None:
        """Write messages for all marked events, in batches, so that other writers proceed."""
        dropped = 0
        while not self._stopping:
            collected = await self._store.collect_notices(self._compose, limit=ROWS)
            dropped += collected.dropped
            if not collected.is_full:
                break
        if dropped:
            log.warning("no notifications for %d event rows: they are older than 1 h", dropped)

    def _compose(self, happened: Sequence[StoredEvent]) -> list[tuple[str, MessageContent, int]]:
        """Return the messages for each channel. It is called inside a transaction."""
        notices = [each for each in map(notification_for, happened) if each is not None]
        found = []
        for name, adapter in self._adapters.items():
            rule = adapter.channel.rule
            if matching := [notice for notice in notices if rule.hears(notice)]:
                found.append((name, compose_message(matching), adapter.channel.every))
        return found

    async def _send_all(self, adapter: ChannelAdapter) -> None:
        """Send the due messages of a channel, one after the other."""
        try:
            while not self._stopping:
                letter = await self._store.take_message(adapter.channel.name)
                if letter is None:
                    return
                await self._send(adapter, letter)
        except StoreFailed as broken:
            log.warning("channel %s: messages are delayed: %s", adapter.channel.name, broken)
        except Exception:
            log.exception("channel %s: messages are delayed", adapter.channel.name)

    async def _send(self, adapter: ChannelAdapter, letter: OutgoingMessage) -> None:
        settled = delivery_result(letter, await self._deliver(adapter.notifier, letter))
        if settled.state == "waiting":
            channel, wait = letter.channel, settled.wait / 1000
            log.warning(
                "channel %s: a message was refused: %s (retry in %g s)",
                channel,
                settled.error,
                wait,
            )
        await self._keep(letter, settled)

    async def _deliver(self, notifier: Notifier, letter: OutgoingMessage) -> Delivery:
        """Send a message, within LONGEST_SEND seconds."""
        if self._stopping:
            return DeliveryRefused("this node is stopping")
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
        return DeliveryUnknown("given up while it was being sent")

    async def _keep(self, letter: OutgoingMessage, settled: DeliveryResult) -> None:
        """Record the result of a message; without that it becomes in doubt by itself."""
        for n in range(TRIES):
            try:
                await self._store.record_delivery(letter, settled)
            except StoreFailed as broken:
                log.warning("channel %s: recording a delivery failed: %s", letter.channel, broken)
                if self._stopping:
                    return
                await asyncio.sleep(min(0.2 * 2**n, 5.0))
            else:
                return


async def _sent(notifier: Notifier, letter: OutgoingMessage) -> Delivery:
    try:
        return await notifier.send(letter)
    except Exception as broken:  # a notifier that breaks its contract may have sent it
        log.exception("channel %s: its notifier crashed", letter.channel)
        return DeliveryUnknown(f"{type(broken).__name__} while it was being sent")


def notification_for(happened: StoredEvent) -> Notification | None:
    """Return the notification for an event, if it has one."""
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

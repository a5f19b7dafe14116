"""A node that is killed while it notifies: `python -m tests.notifiers.node DATABASE URL WHEN`.

A run fails, and the node is killed with SIGKILL `before` or `after` it sends the message.
"""

import asyncio
import os
import signal
import sys

from onbeat import Onbeat
from onbeat.app.settings import Settings
from onbeat.notifiers.webhook import WebhookNotifier
from onbeat.testing import a_schedule
from tests.notifiers.servers import a_channel
from tests.waiting import forever

send = WebhookNotifier.send


async def send_and_die(self, message):
    if sys.argv[3] == "after":
        await send(self, message)
    os.kill(os.getpid(), signal.SIGKILL)


async def main(database, url):
    WebhookNotifier.send = send_and_die
    beat = Onbeat(settings=Settings(database=database, notify=(a_channel(webhook=url),)))
    async with beat:
        await beat.define(a_schedule("backup", cron="0 0 1 1 *", run={"command": ["false"]}))
        await beat.start("backup")
        await forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))

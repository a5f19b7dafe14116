"""Requests take turns, so that schedules beside them are not late.

The engine and the API share one event loop. Answers cost mostly time of that loop, so many at once
are answered no sooner than few, but the engine would have to wait until it is its turn again.
"""

import asyncio

from onbeat.web.security.asgi import App, Message, Receive, Scope, Send

AT_ONCE = 4  # one that is worked on, and some that wait for the database
# Told also while all others wait for the database.
ALIVE = {"/healthz", "/api/v1/healthz", "/readyz", "/api/v1/readyz"}


def limit_concurrency(app: App) -> App:
    """Return an application of which few answers are begun at the same time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALIVE:
            await app(scope, receive, send)
            return
        has_turn = True

        def pass_on() -> None:
            nonlocal has_turn
            if has_turn:
                has_turn = False
                turns.release()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":  # what streams goes on beside the others
                pass_on()
            await send(message)

        await turns.acquire()
        try:
            await asyncio.sleep(0)  # an answer that waits for nothing would leave nobody a turn
            await app(scope, receive, sending)
        finally:
            pass_on()

    return answer

"""A limit on concurrent requests, so that they do not delay the engine.

The engine and the API share one event loop. Requests mostly cost time of that loop: many
concurrent ones are not faster than a few, but would keep the engine waiting.
"""

import asyncio

from onbeat.web.security.asgi import App, Message, Receive, Scope, Send

MOST_CONCURRENT = 4  # one that uses the loop, and some that wait for the database
# Answered even while all other requests wait for the database.
UNLIMITED = {"/healthz", "/api/v1/healthz", "/readyz", "/api/v1/readyz"}


def limit_concurrency(app: App) -> App:
    """Return an application that begins few responses concurrently."""
    permits = asyncio.Semaphore(MOST_CONCURRENT)

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNLIMITED:
            await app(scope, receive, send)
            return
        holds_permit = True

        def release() -> None:
            nonlocal holds_permit
            if holds_permit:
                holds_permit = False
                permits.release()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":  # a stream must not hold its permit
                release()
            await send(message)

        await permits.acquire()
        try:
            await asyncio.sleep(0)  # a request that never waits would starve the engine
            await app(scope, receive, sending)
        finally:
            release()

    return limited

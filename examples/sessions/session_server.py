"""A simulated chat server: it stores sessions and prints the messages that it gets.

    python session_server.py --listen 127.0.0.1:53000 --folder ~/.caco/sessions

POST   /api/sessions                {"cwd", "model", ...}      -> {"sessionId"}
GET    /api/sessions                                           -> {"sessions": [...]}
GET    /api/sessions/ID/state                                  -> {"status", "isBusy", ...} or 404
POST   /api/sessions/ID/messages    {"prompt", "source", ...}  -> 200, 400, 404, 409 or 500
POST   /api/sessions/ID/cancel                                 -> 200
DELETE /api/sessions/ID                                        -> 200, 400 while it is busy, or 404

Each session is a folder with its messages. With --thinks it is busy for this many seconds per
message. The outcome of a message with an Onbeat-Callback is reported to that address. The server
listens on this machine only.
"""

import argparse
import asyncio
import json
import shutil
import sys
import uuid
from pathlib import Path

from aiohttp import ClientSession, web


class SessionServer:
    """A server of sessions in a folder.

    `busy` has the sessions at work, `fails` makes every request fail, and `thinks` is the number of
    seconds that a message keeps a session busy.
    """

    def __init__(self, folder, *, log=lambda line: None, thinks=0):
        self.folder, self._log, self.thinks = Path(folder), log, thinks
        self.busy, self.fails = set(), False
        self.asked = []  # the method, path, body and headers of every request
        self._reports = set()
        self.app = web.Application()
        self.app.add_routes([
            web.post("/api/sessions", self._create),
            web.get("/api/sessions", self._list),
            web.get("/api/sessions/{id}/state", self._state),
            web.post("/api/sessions/{id}/messages", self._message),
            web.post("/api/sessions/{id}/cancel", self._cancel),
            web.delete("/api/sessions/{id}", self._delete),
        ])  # fmt: skip

    @property
    def sessions(self):
        """The ids of all sessions."""
        return sorted(each.name for each in self.folder.glob("*") if each.is_dir())

    def messages_of(self, session_id):
        """Return the messages of a session, in order."""
        lines = (self.folder / session_id / "messages.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    async def start(self, port=0):
        """Listen, and return the URL."""
        self._runner = web.AppRunner(self.app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return "http://{}:{}".format(*self._runner.addresses[0])

    async def stop(self):
        """Stop listening, after pending reports."""
        await asyncio.gather(*self._reports)
        await self._runner.cleanup()

    async def _create(self, request):
        body = await self._record(request)
        if self.fails:
            return answer(500, error="Failed to create session")
        if not isinstance(body, dict) or not isinstance(body.get("cwd"), str):
            return answer(400, error="cwd is required")
        session_id = str(uuid.uuid4())
        there = self.folder / session_id
        there.mkdir(parents=True)
        (there / "session.json").write_text(json.dumps(body, indent=2), "utf-8")
        (there / "messages.jsonl").touch()
        return answer(200, sessionId=session_id, model=body.get("model"), cwd=body["cwd"])

    async def _list(self, request):
        await self._record(request)
        found = [{"sessionId": each, "isBusy": each in self.busy} for each in self.sessions]
        return answer(200, sessions=found)

    async def _state(self, request):
        await self._record(request)
        session_id = request.match_info["id"]
        if session_id not in self.sessions:
            return answer(404, error=f"Session not found: {session_id}")
        is_busy = session_id in self.busy
        status = "busy" if is_busy else "idle"
        return answer(200, sessionId=session_id, status=status, isBusy=is_busy, isActive=True)

    async def _cancel(self, request):
        await self._record(request)
        self.busy.discard(request.match_info["id"])
        return answer(200, ok=True)

    async def _message(self, request):
        body, session_id = await self._record(request), request.match_info["id"]
        if session_id not in self.sessions:
            return answer(404, error=f"Session not found: {session_id}")
        if session_id in self.busy:
            error = "Session is busy processing another message"
            return answer(409, error=error, code="SESSION_BUSY")
        if self.fails:
            return answer(500, error="Failed to resume session")
        if not isinstance(body, dict) or not body.get("prompt"):
            return answer(400, error="prompt is required")
        slug = body.get("scheduleSlug")
        text = f"[scheduler:{slug}] {body['prompt']}" if slug else body["prompt"]
        with (self.folder / session_id / "messages.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(text) + "\n")
        self._log(f"{session_id[:8]} {text}")
        if self.thinks:
            self.busy.add(session_id)
            asyncio.get_running_loop().call_later(self.thinks, self.busy.discard, session_id)
        if "Onbeat-Callback" in request.headers:
            report = asyncio.create_task(self._report(request.headers.copy(), session_id))
            self._reports.add(report)
            report.add_done_callback(self._reports.discard)
        return answer(200, ok=True, sessionId=session_id)

    async def _delete(self, request):
        await self._record(request)
        session_id = request.match_info["id"]
        if session_id not in self.sessions:
            return answer(404, error=f"Session not found: {session_id}")
        if session_id in self.busy:
            error = "Cannot delete session while it is processing"
            return answer(400, error=error, code="SESSION_BUSY")
        shutil.rmtree(self.folder / session_id)
        return answer(200, success=True)

    async def _report(self, headers, session_id):
        """Report success to the callback address."""
        token = {"Authorization": f"Bearer {headers['Onbeat-Callback-Token']}"}
        report = {"status": "SUCCESS", "result": {"sessionId": session_id}}
        async with ClientSession(headers=token) as client:
            await client.post(headers["Onbeat-Callback"], json=report)

    async def _record(self, request):
        try:
            body = await request.json() if request.can_read_body else None
        except ValueError:
            body = None
        self.asked.append((request.method, request.path, body, dict(request.headers)))
        return body


def answer(code, /, **fields):
    return web.json_response(fields, status=code)


async def serve(port, folder, thinks):
    """Serve until interrupted, and print every message."""
    server = SessionServer(folder, log=lambda line: print(line, flush=True), thinks=thinks)
    print(f"sessions at {await server.start(port)}, in {folder}", flush=True)
    await asyncio.Event().wait()


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--listen", default="127.0.0.1:53000", help="a port of this machine")
    parser.add_argument("--folder", type=Path, default=Path("~/.caco/sessions").expanduser())
    parser.add_argument("--thinks", type=float, default=0, help="seconds per message")
    given = parser.parse_args(words)
    try:
        port = int(given.listen.rpartition(":")[2])
        asyncio.run(serve(port, given.folder, given.thinks))
    except KeyboardInterrupt:
        pass
    except OSError as error:
        sys.exit(f"session_server: {given.listen} is not free: {error.strerror} (--listen)")


if __name__ == "__main__":
    main(sys.argv[1:])

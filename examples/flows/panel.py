"""A simulated Kodosumi panel: it answers like one, and runs no flows.

    python panel.py --listen 127.0.0.1:3370

POST   /api/login             {"name", "password"}  -> {"name", "id", "KODOSUMI_API_KEY"} or 401
GET    /flow                                        -> {"items": [{"url", "summary"}]}
GET    URL of a flow                                -> {"elements": [...]}: its form
POST   URL of a flow          the inputs            -> 200 {"result": fid} or 200 {"errors": {...}}
GET    /outputs/status/FID                          -> {"status", "final", ...} or 404
GET    /outputs/raw/FID                             -> {"fid", "raw", ...} or 404
DELETE /outputs/FID                                 -> 204 or 404

The only user is `timer`, with the password in PANEL_PASSWORD. The server listens on this machine only.
"""

import argparse
import asyncio
import json
import os
import secrets
import sys
import time

from aiohttp import web

STARTING, RUNNING, FINISHED, ERROR = "starting", "running", "finished", "error"


class Flow:
    """A flow: the fields of its form, the required ones, and its duration in seconds."""

    def __init__(self, summary, fields, *, needs=(), takes=0.0, fails=""):
        self.summary, self.fields, self.needs = summary, tuple(fields), tuple(needs)
        self.takes, self.fails = takes, fails

    @property
    def elements(self):
        return [{"type": "text", "name": name, "label": name.title()} for name in self.fields]


class FlowPanel:
    """A panel. `executions` has the launched flows by fid, and `asked` every request."""

    def __init__(self, flows, *, password="secret", log=lambda line: None):
        self.flows, self.users, self._log = dict(flows), {"timer": password}, log
        self.keys, self.executions, self.asked = {}, {}, []

    async def start(self, port=0):
        """Listen, and return the URL."""
        app = web.Application(middlewares=[self._record])
        app.add_routes([
            web.post("/api/login", self._login),
            web.get("/flow", self._list),
            web.get("/outputs/status/{fid}", self._status),
            web.get("/outputs/raw/{fid}", self._raw),
            web.delete("/outputs/{fid}", self._delete),
            web.get("/{url:.*}", self._form),
            web.post("/{url:.*}", self._launch),
        ])  # fmt: skip
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return "http://{}:{}".format(*self._runner.addresses[0])

    async def stop(self):
        """Stop listening."""
        await self._runner.cleanup()

    @web.middleware
    async def _record(self, request, handler):
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.method, request.path, body, dict(request.headers)))
        key = request.headers.get("KODOSUMI_API_KEY", "")
        if request.path != "/api/login" and key not in self.keys:
            return refusal(401, "NotAuthorizedException", "Missing or invalid token")
        return await handler(request)

    async def _login(self, request):
        given = await request.json()
        name = given.get("name")
        if name not in self.users or self.users[name] != given.get("password"):
            return refusal(401, "NotAuthorizedException", "Invalid name or password")
        key = secrets.token_urlsafe(24)
        self.keys[key] = name
        return web.json_response({"name": name, "id": f"id-of-{name}", "KODOSUMI_API_KEY": key})

    async def _list(self, request):
        items = [
            {"uid": url, "url": url, "summary": flow.summary} for url, flow in self.flows.items()
        ]
        return web.json_response({"items": items, "offset": None})

    async def _form(self, request):
        flow = self.flows.get(request.path)
        if flow is None:
            return refusal(404, "NotFoundException", f"path {request.path} not found")
        return web.json_response({"elements": flow.elements})

    async def _launch(self, request):
        flow = self.flows.get(request.path)
        if flow is None:
            return refusal(404, "NotFoundException", f"path {request.path} not found")
        given = await request.json()
        inputs = {name: given[name] for name in flow.fields if name in given}  # as a form does
        if missing := [name for name in flow.needs if not inputs.get(name)]:
            errors = {name: [f"Please give me a {name}."] for name in missing} | {"_global_": []}
            return web.json_response({"errors": errors, "elements": flow.elements})
        fid = secrets.token_hex(12)
        extra = json.loads(request.headers.get("x-kodosumi_extra", "{}"))
        self.executions[fid] = {
            "fid": fid, "url": request.path, "flow": flow, "inputs": inputs, "extra": extra,
            "username": self.keys[request.headers["KODOSUMI_API_KEY"]], "begun": time.monotonic(),
        }  # fmt: skip
        self._log(f"{fid[:8]} {request.path} {json.dumps(inputs)} {json.dumps(extra)}")
        return web.json_response({"result": fid, "elements": flow.elements})

    def state(self, fid):
        """Return the status of an execution and its final result."""
        found = self.executions[fid]
        flow, took = found["flow"], time.monotonic() - found["begun"]
        if took < flow.takes:
            return (STARTING if took < flow.takes / 4 else RUNNING), None
        if flow.fails:
            return ERROR, {"Text": {"body": flow.fails}}
        return FINISHED, {"Markdown": {"body": f"{flow.summary}: {json.dumps(found['inputs'])}"}}

    async def _status(self, request):
        fid = request.match_info["fid"]
        if fid not in self.executions:
            return refusal(404, "NotFoundException", f"Execution {fid} not found after 1s.")
        status, final = self.state(fid)
        text = None if final is None else json.dumps(final)
        answer = {"status": status, "final": text, "fid": fid, "locks": []}
        return web.json_response(answer | {"username": self.executions[fid]["username"]})

    async def _raw(self, request):
        fid = request.match_info["fid"]
        if fid not in self.executions:
            return refusal(404, "NotFoundException", f"Execution {fid} not found after 1s.")
        final = self.state(fid)[1]
        return web.json_response({"fid": fid, "kind": "final", "raw": json.dumps(final)})

    async def _delete(self, request):
        fid = request.match_info["fid"]
        if self.executions.pop(fid, None) is None:
            return refusal(404, "NotFoundException", f"Execution {fid} not found after 1s.")
        self._log(f"{fid[:8]} killed")
        return web.Response(status=204)


def refusal(status, error, detail):
    return web.json_response({"error": error, "detail": detail}, status=status)


FLOWS = {
    "/-/127.0.0.1/8125/-/": Flow("a daily report", ["query", "limit"], needs=["query"], takes=1.0),
    "/-/127.0.0.1/8125/-/clean": Flow("remove old files", ["days"], takes=0.5),
}


async def serve(port):
    """Serve until interrupted, and print every launch."""
    password = os.environ.get("PANEL_PASSWORD", "secret")
    panel = FlowPanel(FLOWS, password=password, log=lambda line: print(line, flush=True))
    print(f"panel at {await panel.start(port)}", flush=True)
    await asyncio.Event().wait()


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--listen", default="127.0.0.1:3370", help="a port of this machine")
    given = parser.parse_args(words)
    try:
        asyncio.run(serve(int(given.listen.rpartition(":")[2])))
    except KeyboardInterrupt:
        pass
    except OSError as error:
        sys.exit(f"panel: {given.listen} is not free: {error.strerror} (--listen)")


if __name__ == "__main__":
    main(sys.argv[1:])

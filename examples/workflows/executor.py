"""An executor: runs the nodes of a DAG in their order, and tells how that ended."""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

known = {}  # how each run ended that it has, by key: what comes twice is run once


def count(node, results):
    return len(node["of"].split())


def send(node, results):
    print(f"{node['after']} gave {results[node['after']]}", flush=True)


ACTIONS = {"count": count, "print": send}


def run(dag, key, tell):
    results = {}
    try:
        for node in dag["nodes"]:
            results[node["id"]] = ACTIONS[node["action"]](node, results)
    except Exception as broken:
        known[key] = {"status": "FAILED", "error": repr(broken)}
    else:
        known[key] = {"status": "SUCCESS", "result": results}
    tell(known[key])


def name_of(key):
    return f"run-{key[:8]}"


def teller(headers):
    """Return what tells Onbeat of a run: it was sent where to, and a token for this run."""
    url, token = headers["Onbeat-Callback"], headers["Onbeat-Callback-Token"]
    given = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def tell(told):
        if url is None:
            return None  # it was started by hand: nobody waits for its end
        told["run_id"] = name_of(headers["Idempotency-Key"])
        request = urllib.request.Request(url, json.dumps(told).encode(), given)
        for n in range(60):
            try:
                return urllib.request.urlopen(request, timeout=10).close()
            except urllib.error.HTTPError as refused:
                if refused.code < 500 and not (refused.code == 409 and n < 10):
                    return None  # it gave up waiting
            except OSError:
                pass  # it is away: another node may come
            time.sleep(1)  # 409: it has not seen the answer, and is about to ask again

    return tell


def begin(function, *given):
    threading.Thread(target=function, args=given, daemon=True).start()


class Executor(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = asked["meta"]["idempotency_key"]
        tell = teller(self.headers)
        if key not in known:
            known[key] = None  # it has not ended
            begin(run, asked["dag"], key, tell)
        elif known[key]:
            begin(tell, known[key])  # who asks has not heard it
        self.send_response(202)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"run_id": name_of(key)}).encode())

    def log_message(self, *told):
        pass


address = ("127.0.0.1", 9000)
if port := os.environ.get("EXECUTOR_PORT"):
    address = (address[0], int(port))
try:
    ThreadingHTTPServer(address, Executor).serve_forever()
except OSError as refused:
    sys.exit(f"the executor cannot listen on port {address[1]}: {refused.strerror}")
except KeyboardInterrupt:
    pass

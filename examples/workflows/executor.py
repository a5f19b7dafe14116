"""An executor: runs the nodes of a DAG in their order, and tells how that ended."""

import json
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

known = set()  # the keys of runs that it has: what comes twice is run once


def count(node, results):
    return len(node["of"].split())


def send(node, results):
    print(f"{node['after']} gave {results[node['after']]}", flush=True)


ACTIONS = {"count": count, "print": send}


def run(dag, meta, tell):
    results = {}
    try:
        for node in dag["nodes"]:
            results[node["id"]] = ACTIONS[node["action"]](node, results)
    except Exception as broken:
        tell({"status": "FAILED", "error": repr(broken)})
    else:
        tell({"status": "SUCCESS", "result": results})


def name_of(key):
    return f"run-{key[:8]}"


def teller(headers):
    """Return what tells Onbeat of a run: it was sent where to, and a token for this run."""
    url, token = headers["Onbeat-Callback"], headers["Onbeat-Callback-Token"]
    given = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def tell(told):
        told["run_id"] = name_of(headers["Idempotency-Key"])
        request = urllib.request.Request(url, json.dumps(told).encode(), given)
        for _ in range(60):
            try:
                return urllib.request.urlopen(request, timeout=10).close()
            except urllib.error.HTTPError:
                return None  # it knows already, or gave up waiting
            except OSError:
                time.sleep(1)  # it is away: another node may come

    return tell


class Executor(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = asked["meta"]["idempotency_key"]
        if key not in known:
            known.add(key)
            given = (asked["dag"], asked["meta"], teller(self.headers))
            threading.Thread(target=run, args=given).start()
        self.send_response(202)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"run_id": name_of(key)}).encode())

    def log_message(self, *told):
        pass


ThreadingHTTPServer(("127.0.0.1", 9000), Executor).serve_forever()

"""An executor: runs the nodes of a DAG in order, and reports the outcome."""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

outcomes = {}  # the outcome of each run by key, None while it runs: a repeated request runs once


def count(node, results):
    return len(node["of"].split())


def send(node, results):
    print(f"{node['after']} gave {results[node['after']]}", flush=True)


ACTIONS = {"count": count, "print": send}


def run(dag, key, report):
    results = {}
    try:
        for node in dag["nodes"]:
            results[node["id"]] = ACTIONS[node["action"]](node, results)
    except Exception as error:
        outcomes[key] = {"status": "FAILED", "error": repr(error)}
    else:
        outcomes[key] = {"status": "SUCCESS", "result": results}
    report(outcomes[key])


def name_of(key):
    return f"run-{key[:8]}"


def reporter(headers):
    """Return a function that reports an outcome to Onbeat, with the URL and token of this run."""
    url, token = headers["Onbeat-Callback"], headers["Onbeat-Callback-Token"]
    sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def report(outcome):
        if url is None:
            return None  # a manual start: no outcome is expected
        outcome["run_id"] = name_of(headers["Idempotency-Key"])
        request = urllib.request.Request(url, json.dumps(outcome).encode(), sent)
        for n in range(60):
            try:
                return urllib.request.urlopen(request, timeout=10).close()
            except urllib.error.HTTPError as refused:
                if refused.code < 500 and not (refused.code == 409 and n < 10):
                    return None  # Onbeat no longer waits for this run
            except OSError:
                pass  # Onbeat is down: another node may start
            time.sleep(1)  # 409: Onbeat did not get the 202, and will repeat the request

    return report


def begin(function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()


class Executor(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = body["meta"]["idempotency_key"]
        report = reporter(self.headers)
        if key not in outcomes:
            outcomes[key] = None  # it runs
            begin(run, body["dag"], key, report)
        elif outcomes[key]:
            begin(report, outcomes[key])  # Onbeat did not get the first report
        self.send_response(202)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"run_id": name_of(key)}).encode())

    def log_message(self, *arguments):
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

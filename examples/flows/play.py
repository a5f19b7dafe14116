"""Run the panel and Onbeat until Ctrl-C: `make example-flows`."""

import os
import secrets
import signal
import subprocess
import sys
import threading


def main():
    here = [sys.executable]
    os.environ.setdefault("PANEL_PASSWORD", secrets.token_urlsafe())  # for both processes
    panel = subprocess.Popen(
        [*here, "panel.py", *sys.argv[1:]],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C stops Onbeat first: it may be launching a flow
    )
    first_line = panel.stdout.readline()
    if not first_line:
        return panel.wait()  # it has printed the reason
    print(first_line.strip(), flush=True)
    onbeat = subprocess.Popen([*here, "-m", "onbeat", "timer", "--start", "--block"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Onbeat receives it
    signal.signal(signal.SIGTERM, lambda *_: onbeat.terminate())
    relay = threading.Thread(target=lambda: [print(line.rstrip(), flush=True) for line in panel.stdout])
    relay.start()
    try:
        return onbeat.wait()
    finally:
        panel.terminate()
        panel.wait()
        relay.join()


if __name__ == "__main__":
    sys.exit(main())

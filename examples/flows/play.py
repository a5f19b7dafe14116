"""Start the panel and Onbeat, here, until Ctrl-C: `make example-flows` does so."""

import os
import secrets
import signal
import subprocess
import sys
import threading


def main():
    here = [sys.executable]
    os.environ.setdefault("PANEL_PASSWORD", secrets.token_urlsafe())  # both of them know it
    panel = subprocess.Popen(
        [*here, "panel.py", *sys.argv[1:]],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for Onbeat, which may have a flow on its way
    )
    told = panel.stdout.readline()
    if not told:
        return panel.wait()  # it has said why
    print(told.strip(), flush=True)
    onbeat = subprocess.Popen([*here, "-m", "onbeat", "timer", "--start", "--block"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Onbeat hears it
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

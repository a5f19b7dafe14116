"""Start the chat server and Onbeat, here, until Ctrl-C: `make example-sessions` does so."""

import signal
import subprocess
import sys
import threading
from pathlib import Path


def main():
    here = [sys.executable]
    server = subprocess.Popen(
        [*here, "session_server.py", "--folder", "sessions", *sys.argv[1:]],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for Onbeat, which may have a prompt on its way
    )
    told = server.stdout.readline()
    if not told:
        return server.wait()  # it has said why
    print(told.strip(), flush=True)
    print(f"definitions and last runs in {Path('schedule').resolve()}: edit them", flush=True)
    onbeat = subprocess.Popen([*here, "-m", "onbeat", "up"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Onbeat hears it
    signal.signal(signal.SIGTERM, lambda *_: onbeat.terminate())
    relay = threading.Thread(
        target=lambda: [print(line.rstrip(), flush=True) for line in server.stdout]
    )
    relay.start()
    try:
        return onbeat.wait()
    finally:
        server.terminate()
        server.wait()
        relay.join()


if __name__ == "__main__":
    sys.exit(main())

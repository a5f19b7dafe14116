"""Run the chat server and Onbeat until Ctrl-C: `make example-sessions`."""

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
        start_new_session=True,  # Ctrl-C stops Onbeat first: it may be sending a prompt
    )
    first_line = server.stdout.readline()
    if not first_line:
        return server.wait()  # it has printed the reason
    print(first_line.strip(), flush=True)
    print(f"definitions and last runs in {Path('schedule').resolve()}: edit them", flush=True)
    onbeat = subprocess.Popen([*here, "-m", "onbeat", "up"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Onbeat receives it
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

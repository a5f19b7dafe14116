"""Start the chat server and Onbeat, here, until Ctrl-C: `make example-sessions` does so."""

import signal
import subprocess
import sys
from pathlib import Path


def main():
    here = [sys.executable]
    server = subprocess.Popen(
        [*here, "session_server.py", "--folder", "sessions", *sys.argv[1:]], stdout=subprocess.PIPE
    )
    told = server.stdout.readline()
    if not told:
        return server.wait()  # it has said why
    print(told.decode().strip(), flush=True)
    print(f"definitions and last runs in {Path('schedule').resolve()}: edit them", flush=True)
    onbeat = subprocess.Popen([*here, "-m", "onbeat", "up"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is heard by both of them
    signal.signal(signal.SIGTERM, lambda *_: onbeat.terminate())
    try:
        for line in server.stdout:  # until it ends
            print(line.decode().rstrip(), flush=True)
        return onbeat.wait()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())

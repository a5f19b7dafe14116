"""Start the chat server and Onbeat, here, until Ctrl-C: `make example-sessions` does so."""

import signal
import subprocess
import sys


def main():
    here = [sys.executable]
    server = subprocess.Popen([*here, "session_server.py", "--folder", "sessions", *sys.argv[1:]])
    onbeat = subprocess.Popen([*here, "-m", "onbeat", "up"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is heard by both of them
    signal.signal(signal.SIGTERM, lambda *_: onbeat.terminate())
    try:
        return onbeat.wait()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())

"""Waiting for a server process."""

from __future__ import annotations

import socket
import subprocess
import time

START_S = 120.0


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until something listens on the port of 127.0.0.1. SystemExit when the process ends, or after START_S."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("the server did not start")

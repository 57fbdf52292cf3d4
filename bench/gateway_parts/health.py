"""Asks /healthz again and again until told to stop (end of standard input); prints the times, in milliseconds, as JSON."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

PAUSE = 0.02


def main() -> None:
    """Probe a port."""
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    times = []
    while not stop.is_set():
        started = time.perf_counter()
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        got = b""
        while b'"ok"' not in got:
            piece = connection.recv(4096)
            if not piece:
                raise SystemExit("the gateway closed the health connection")
            got += piece
        times.append(1e3 * (time.perf_counter() - started))
        time.sleep(PAUSE)
    print(json.dumps(times))


if __name__ == "__main__":
    main()

"""Stands between a client and a PostgreSQL server, and cuts the connection around one commit."""

from __future__ import annotations

import contextlib
import queue
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

SOCKET = ".s.PGSQL.5432"
Cut = Literal["", "before", "after", "late"]


class Proxy:
    """Forwards everything until `cut` is set; then the next commit is cut off, once.

    "before": the server never sees it. "after": the server has answered, the client does not hear of it. "late": the client is
    cut off first, and the server sees it only once `deliver` is called.
    """

    def __init__(self, url: str) -> None:
        self._server = f"{parse_qs(urlsplit(url).query)['host'][0]}/{SOCKET}"
        self._directory = Path(tempfile.mkdtemp(prefix="wt-proxy-"))
        self.url = url.partition("?")[0] + f"?host={self._directory}"
        self.cut: Cut = ""
        self.answers: queue.Queue[bytes] = queue.Queue()  # of the server, to commits whose client was cut off
        self._answering: set[socket.socket] = set()
        self._held: tuple[socket.socket, bytes] | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self._directory}/{SOCKET}")
        self._listener.listen()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def deliver(self) -> bytes:
        """Let the server see the late commit; what it says to it."""
        assert self._held is not None
        server, data = self._held
        server.sendall(data)
        return self.answers.get(timeout=30)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        shutil.rmtree(self._directory)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._server)
                except OSError:  # it is away
                    client.close()
                    server.close()
                    continue
                self._open += [client, server]
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                how, self.cut = (self.cut, "") if b"COMMIT" in data else ("", self.cut)
                if how in ("after", "late"):
                    self._answering.add(server)
                if how == "late":
                    self._held = (server, data)
                if how in ("before", "late"):
                    client.shutdown(socket.SHUT_RDWR)
                    if how == "before":
                        server.shutdown(socket.SHUT_RDWR)
                    return
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if server in self._answering:
                    self.answers.put(data)
                    client.shutdown(socket.SHUT_RDWR)
                else:
                    client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)

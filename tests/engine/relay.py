"""Makes an engine on this host a remote one: passes connections on loopback to its socket."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Relay(socketserver.ThreadingTCPServer):
    """Passes connections on loopback to a Unix socket: makes an engine on this host a remote one."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(("127.0.0.1", 0), Passing)

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.server_address[1]}"


class Passing(socketserver.BaseRequestHandler):
    """One connection, both ways until either side ends."""

    def handle(self) -> None:
        with socket.socket(socket.AF_UNIX) as upstream:
            upstream.connect(str(self.server.path))  # type: ignore[attr-defined]
            other = {self.request: upstream, upstream: self.request}
            while True:
                for ready in select.select(list(other), [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    other[ready].sendall(data)


@contextmanager
def relayed(path: Path) -> Iterator[str]:
    """The URL under which the engine at this socket answers too."""
    with Relay(path) as relay:
        serving = threading.Thread(target=relay.serve_forever, daemon=True)
        serving.start()
        try:
            yield relay.url
        finally:
            relay.shutdown()
            serving.join()

"""A small web server on the loopback interface that misbehaves as told."""

from __future__ import annotations

import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Request:
    """One request as the server sees it; `count` is 1 for the first request of this path."""

    path: str
    headers: dict[str, str]
    count: int


@dataclass
class Answer:
    """What to send; `cut` closes the connection after so many bytes of the body, though more were announced."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


@dataclass
class Server:
    """A running server: routes by path, and the requests that came."""

    url: str
    routes: dict[str, bytes | Answer | Callable[[Request], Answer]]
    requests: list[Request] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


def ranged(body: bytes, request: Request, cut: int | None = None) -> Answer:
    """Answer as a server does that can send a part of a file."""
    asked = request.headers.get("range")
    if asked is None:
        return Answer(body, cut=cut)
    start = int(asked.removeprefix("bytes=").rstrip("-"))
    return Answer(body[start:], 206, {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}, cut=cut)


@contextmanager
def serving(routes: dict[str, bytes | Answer | Callable[[Request], Answer]], tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serve while the block runs, over TLS when a context is given."""
    counts: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            counts[self.path] += 1
            request = Request(self.path, {k.lower(): v for k, v in self.headers.items()}, counts[self.path])
            server.requests.append(request)
            route = routes.get(self.path.partition("?")[0], Answer(b"nothing here", 404))
            answer = route(request) if callable(route) else Answer(route) if isinstance(route, bytes) else route
            self.send(answer)

        def do_HEAD(self) -> None:
            # uv asks this first, to learn whether it may read a part of a wheel; without Accept-Ranges it does not.
            route = routes.get(self.path.partition("?")[0], Answer(status=404))
            self.send(Answer() if callable(route) or isinstance(route, bytes) else Answer(status=route.status))

        def send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body if answer.cut is None else answer.body[: answer.cut])
            if answer.cut is not None:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    if tls is not None:
        httpd.socket = tls.wrap_socket(httpd.socket, server_side=True)
        httpd.handle_error = lambda *refused: None  # type: ignore[method-assign]
    server = Server(f"{'http' if tls is None else 'https'}://127.0.0.1:{httpd.server_address[1]}", routes)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()

"""A page that is served while one looks at it: a few addresses, each with what answers it."""

import ipaddress
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from recycle.errors import UserError

Answer = Callable[[Mapping[str, str]], bytes]


class Route(NamedTuple):
    """What answers an address.

    Attributes:
        kind: the content type of the answer.
        answer: gives it for what the address asks; a UserError becomes an answer with its text as ``error``.
    """

    kind: str
    answer: Answer


class PageServer(ThreadingHTTPServer):
    """Serves a page and what it asks for, to who comes through an address of this machine that was meant.

    Args:
        address: where to listen.
        port: likewise; 0 for any that is free.
        routes: by path.

    Raises:
        UserError: it cannot listen there.
    """

    daemon_threads = True

    def __init__(self, address: str, port: int, routes: Mapping[str, Route]) -> None:
        self.routes = routes
        self.address = address
        try:
            super().__init__((address, port), _Handler)
        except OSError as error:
            raise UserError(
                f"{address}:{port}: cannot be listened at: {error.strerror}; give another --port or --address"
            ) from error

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        return f"http://{self.address}:{self.server_port}/"

    def is_meant(self, host: str) -> bool:
        """Whether a request names this server: a page of somebody else's, whose name leads here, must read nothing."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name not in ("localhost", self.address):
                ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        route = self.server.routes.get(parts.path)
        if route is None or not self.server.is_meant(self.headers.get("Host", "")):
            self.send_error(404 if route is None else 403)
            return
        asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        try:
            content = route.answer(asked)
        except UserError as error:
            content = msgspec.json.encode({"error": str(error)})
        self.send_response(200)
        self.send_header("Content-Type", route.kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are nobody's news."""

"""A page that is served while one looks at it: a few addresses, each with what answers it."""

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from recycle.errors import UserError

MOST = 32
"""So many connections may be open; of more, the oldest is dropped."""

MOMENT = 30.0
"""Seconds that a connection may take in all."""

REST = 0.1
"""Seconds until a connection is accepted that could not be."""

_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer: its address may be a secret, and no other page may have it, or show it as its own."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; script-src {}; "
_POLICY += "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

JSON = "application/json"

Answer = Callable[[Mapping[str, str]], bytes]


class Route(NamedTuple):
    """What answers an address.

    Attributes:
        kind: the content type of the answer.
        answer: gives it for what the address asks; a UserError, or one of the system, becomes a JSON answer with its
            text as ``error``, and an error of HTTP elsewhere.
    """

    kind: str
    answer: Answer


class PageServer(ThreadingHTTPServer):
    """Serves a page and what it asks for, to who comes through an address of this machine that was meant.

    Where others than this machine's users reach it, its path begins with a secret that only its address has.

    Args:
        address: where to listen.
        port: likewise; 0 for any that is free.
        routes: by path.
        secret: gives it.

    Raises:
        UserError: it cannot listen there.
    """

    daemon_threads = True

    def __init__(
        self,
        address: str,
        port: int,
        routes: Mapping[str, Route],
        secret: Callable[[], str] = lambda: secrets.token_urlsafe(16),
    ) -> None:
        self.routes = routes
        self.address = address
        self._names = {name.lower() for name in (socket.gethostname(), socket.getfqdn())}
        self._lock = threading.Lock()
        self._since: dict[socket.socket, float] = {}
        try:
            super().__init__((address, port), _Handler)
        except OSError as error:
            raise UserError(
                f"{address}:{port}: cannot be listened at: {error.strerror}; give another --port or --address"
            ) from error
        is_private = ipaddress.ip_address(str(self.server_address[0])).is_loopback
        self._secret = "" if is_private else f"/{secret()}"

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        return f"http://{self.address}:{self.server_port}{self._secret}/"

    def route(self, path: str) -> str:
        """What a path asks for; empty where it does not begin as this server's do."""
        begin, rest = path[: len(self._secret)], path[len(self._secret) :]
        return rest if hmac.compare_digest(begin.encode(), self._secret.encode()) else ""

    def get_request(self) -> tuple[socket.socket, object]:
        """See TCPServer; what cannot be accepted for want of descriptors takes another's place in a moment."""
        try:
            return super().get_request()
        except OSError:
            self._make_room(len(self._since) - 1)
            time.sleep(REST)
            raise

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """See TCPServer; strangers who open connections take the place of one another."""
        self._make_room(MOST - 1)
        with self._lock:
            self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        """See TCPServer."""
        with self._lock:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """See BaseServer; a browser that closes its connection before its answer is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def service_actions(self) -> None:
        """See BaseServer: it is called twice a second."""
        with self._lock:
            late = [each for each, since in self._since.items() if time.monotonic() > since + MOMENT]
        for each in late:
            self._drop(each)

    def _make_room(self, most: int) -> None:
        """Drop the oldest connection if there are more than so many."""
        with self._lock:
            oldest = next(iter(self._since)) if len(self._since) > max(most, 0) else None
        if oldest is not None:
            self._drop(oldest)

    def _drop(self, request: socket.socket) -> None:
        with self._lock:
            self._since.pop(request, None)
        with suppress(OSError):  # it may have ended by itself
            request.shutdown(socket.SHUT_RDWR)

    def is_meant(self, host: str) -> bool:
        """Whether a request names this server: a page of somebody else's, whose name leads here, must read nothing.

        Such a page does not know the secret, if there is one.
        """
        if self._secret:
            return True
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
            if name not in ("localhost", self.address, *self._names):
                ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "recycle", ""
    timeout = MOMENT
    _policy = _POLICY.format("'none'")

    def do_GET(self) -> None:
        try:
            parts = urlsplit(self.path)
        except ValueError:
            self.send_error(400)
            return
        path = self.server.route(parts.path)
        route = self.server.routes.get(path)
        if route is None:
            self.send_error(404)
            return
        if not self.server.is_meant(self.headers.get("Host", "")):
            self.send_error(403, explain=f"This name is not known here. Open {self.server.url}")
            return
        if self._is_foreign(path):
            self.send_error(403, explain="Another site asks for this. Open its address itself.")
            return
        asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        try:
            content = route.answer(asked)
        except (UserError, OSError) as error:
            told = str(error)
            if isinstance(error, OSError):
                told = f"{error.filename}: cannot be read: {error.strerror}"
            if route.kind != JSON:
                self.send_error(400 if asked else 503, explain=told)
                return
            content = msgspec.json.encode({"error": told})
        if route.kind.startswith("text/html"):
            digests = [base64.b64encode(hashlib.sha256(each).digest()).decode() for each in _SCRIPT.findall(content)]
            self._policy = _POLICY.format(" ".join(f"'sha256-{each}'" for each in digests) or "'none'")
        self.send_response(200)
        self.send_header("Content-Type", route.kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def end_headers(self) -> None:
        """See BaseHTTPRequestHandler."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", self._policy)
        super().end_headers()

    def _is_foreign(self, path: str) -> bool:
        """Whether a page of somebody else's asks for more than to be left for this one."""
        return path != "/" and self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")

    def log_message(self, format: str, *args: object) -> None:
        """Requests are nobody's news."""

import base64
import errno
import hashlib
import http.client
import json
import socket
import struct
import threading
import time
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest

from recycle.errors import UserError
from recycle.view.serving import MOST, PageServer, Route
from tests.view.pages import served


def refuse(_):
    raise UserError("there is none")


def fail(_):
    raise PermissionError(errno.EACCES, "Permission denied", "run/plan.json")


ROUTES = {
    "/": Route("text/plain", lambda asked: f"asked {asked.get('what', 'nothing')}".encode()),
    "/none": Route("application/json", refuse),
    "/text": Route("text/plain", refuse),
    "/refused": Route("application/json", fail),
    "/refused/text": Route("text/plain", fail),
}


@pytest.fixture
def server():
    with served(ROUTES) as one:
        yield one


def ask(server, path, **headers):
    """The answer, and its content."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)) as connection:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()


def get(server, path, **headers):
    answer, content = ask(server, path, **headers)
    return answer.status, content


def test_an_address_is_answered_with_what_it_asks(server):
    assert get(server, "/?what=more") == (200, b"asked more")
    assert get(server, "/", Host=f"localhost:{server.server_port}") == (200, b"asked nothing")
    for dot in ("", "."):
        assert get(server, "/", Host=f"{socket.gethostname()}{dot}:{server.server_port}")[0] == 200
    assert get(server, "/elsewhere")[0] == 404


def test_what_a_user_should_know_is_an_answer(server):
    status, content = get(server, "/none")
    assert status == 200
    assert json.loads(content) == {"error": "there is none"}
    # Where an answer is no JSON, what reads it is not given any.
    for path, expected in (("/text", 503), ("/text?what=more", 400)):
        status, content = get(server, path)
        assert status == expected
        assert b"there is none" in content


def test_what_the_system_refuses_is_an_answer(server, capfd):
    for status, content in (get(server, "/refused"), get(server, "/refused/text")):
        assert status in (200, 503)
        assert b"run/plan.json: cannot be read: Permission denied" in content
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "", "127.0.0.1.example.org", "[example"])
def test_a_page_of_somebody_else_reads_nothing(server, host):
    status, content = get(server, "/", Host=host)
    assert status == 403
    assert b"asked" not in content
    assert f"Open {server.url}".encode() in content


def test_a_port_that_is_taken_is_named(server):
    with pytest.raises(UserError, match="give another --port"):
        PageServer("127.0.0.1", server.server_port, ROUTES)


HTML = b"<script type='application/json'>{}</script><script>\nlet it = 1;\n</script>"


@pytest.fixture
def open_server(monkeypatch):
    """One that others reach."""
    routes = {**ROUTES, "/page": Route("text/html; charset=utf-8", lambda _: HTML)}
    with served(routes, "0.0.0.0") as one:
        yield one


def test_at_an_address_that_others_reach_only_who_has_all_of_it_can_look(open_server):
    prefix = urlsplit(open_server.url).path.rstrip("/")
    assert len(prefix) > 16
    assert get(open_server, f"{prefix}/?what=more") == (200, b"asked more")
    # A cluster has more names for a machine than it has itself.
    assert get(open_server, f"{prefix}/?what=more", Host="login.cluster.example:80") == (200, b"asked more")
    for path in ("/", "//", f"{prefix[:-1]}/", f"{prefix}x/", f"/{'x' * (len(prefix) - 1)}/", prefix, "/%2e%2e/"):
        assert get(open_server, path)[0] == 404


def test_every_answer_has_the_same_headers_and_a_page_its_own_scripts_alone(open_server):
    prefix = urlsplit(open_server.url).path.rstrip("/")
    for path in (f"{prefix}/", f"{prefix}/none", "/elsewhere", f"{prefix}/page"):
        answer, _ = ask(open_server, path)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "unsafe-inline" not in answer.headers["Content-Security-Policy"].partition("script-src")[2]
        assert "Python" not in answer.headers["Server"]
    digest = base64.b64encode(hashlib.sha256(b"\nlet it = 1;\n").digest()).decode()
    assert f"script-src 'sha256-{digest}';" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(("site", "status"), [("same-origin", 200), ("none", 200), ("cross-site", 403)])
def test_another_site_may_lead_to_the_page_and_ask_nothing(server, site, status):
    assert get(server, "/none", Sec_Fetch_Site=site)[0] == status
    assert get(server, "/", Sec_Fetch_Site=site)[0] == 200


def test_of_a_browser_that_goes_away_before_its_answer_nothing_is_said(capfd):
    asked, gone = threading.Event(), threading.Event()

    def answer(_):
        asked.set()
        gone.wait(60)
        return bytes(1 << 24)

    with served({"/": Route("text/plain", answer)}) as server:
        with closing(socket.create_connection(("127.0.0.1", server.server_port))) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            asked.wait(60)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.set()
    assert capfd.readouterr().err == ""


def test_who_connects_and_says_nothing_keeps_nobody_out_where_descriptors_are_few(server, monkeypatch):
    accept, room = server.socket.accept, 3

    class FewDescriptors:
        def accept(self):
            if len(server._since) >= room:
                raise OSError(errno.EMFILE, "too many open files")
            return accept()

        def __getattr__(self, name):
            return getattr(listening, name)

    listening, address = server.socket, ("127.0.0.1", server.server_port)
    monkeypatch.setattr(server, "socket", FewDescriptors())
    with ExitStack() as opened:
        idle = [opened.enter_context(socket.create_connection(address)) for _ in range(room + 2)]
        assert get(server, "/")[0] == 200
        idle[0].settimeout(120)
        assert idle[0].recv(1) == b""


def test_who_connects_and_says_nothing_keeps_nobody_out(server, monkeypatch):
    before = threading.active_count()
    address, deadline = ("127.0.0.1", server.server_port), time.monotonic() + 120
    with ExitStack() as opened:
        idle = [opened.enter_context(socket.create_connection(address)) for _ in range(MOST + 20)]
        assert get(server, "/")[0] == 200
        # The threads of those that were dropped end by themselves.
        while threading.active_count() > before + MOST:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        idle[0].settimeout(120)
        assert idle[0].recv(1) == b""
        # Nor for long.
        monkeypatch.setattr("recycle.view.serving.MOMENT", 0.0)
        idle[-1].settimeout(120)
        assert idle[-1].recv(1) == b""

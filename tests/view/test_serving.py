import http.client
import json
import threading

import pytest

from recycle.errors import UserError
from recycle.view.serving import PageServer, Route


def refuse(_):
    raise UserError("there is none")


ROUTES = {
    "/": Route("text/plain", lambda asked: f"asked {asked.get('what', 'nothing')}".encode()),
    "/none": Route("application/json", refuse),
}


@pytest.fixture
def server():
    served = PageServer("127.0.0.1", 0, ROUTES)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


def get(server, path, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_an_address_is_answered_with_what_it_asks(server):
    assert get(server, "/?what=more") == (200, b"asked more")
    assert get(server, "/", f"localhost:{server.server_port}") == (200, b"asked nothing")
    assert get(server, "/elsewhere")[0] == 404


def test_what_a_user_should_know_is_an_answer(server):
    status, content = get(server, "/none")
    assert status == 200
    assert json.loads(content) == {"error": "there is none"}


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "", "127.0.0.1.example.org", "[example"])
def test_a_page_of_somebody_else_reads_nothing(server, host):
    assert get(server, "/", host)[0] == 403


def test_a_port_that_is_taken_is_named(server):
    with pytest.raises(UserError, match="give another --port"):
        PageServer("127.0.0.1", server.server_port, ROUTES)

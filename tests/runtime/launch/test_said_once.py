"""What one process says for all is said once: in the run, or on each machine where the store is lost."""

import secrets

from harness.local import launch
from harness.ports import free_port
from recycle.control.store.tcp_store import listen, serve
from recycle.runtime.launch.process.said_once import is_first_to_say
from recycle.runtime.net.endpoint import Endpoint


def test_with_a_store_once_in_the_run():
    server = serve(listen())
    endpoint = Endpoint("127.0.0.1", server.port, secrets.token_hex(4))
    assert [is_first_to_say(endpoint, text) for text in ("one", "one", "another")] == [True, False, True]


def test_without_a_store_once_on_the_machine(monkeypatch):
    monkeypatch.setattr("recycle.runtime.launch.process.said_once.PATIENCE", 0.1)
    run = secrets.token_hex(4)
    endpoint = Endpoint("127.0.0.1", free_port(), run)

    def body(_):
        assert [is_first_to_say(endpoint, text) for text in ("a text", "a text", "another")] == [True, False, True]
        assert is_first_to_say(endpoint._replace(token=secrets.token_hex(4)), "a text")

    # What says it holds a socket until it ends.
    launch(1, body)

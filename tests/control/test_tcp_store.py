import os
import subprocess
import sys
import threading
import time

import pytest

from recycle.control.store.tcp_store import TorchStore, listen, serve

EXPIRE = """
from recycle.control.store.tcp_store import TorchStore, listen, serve

served = serve(listen())
assert not TorchStore("127.0.0.1", served.port).wait("nothing", 0.01)
print("expired")
"""


def test_a_wait_that_expires_logs_nothing_though_torch_was_imported_without_its_variable() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", EXPIRE], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "expired\n"
    # To log the names of both ends, torch would look them up.
    assert done.stderr == ""


def test_those_who_wait_for_a_key_do_not_wake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    served, asked = serve(listen()), list[str]()
    store = TorchStore("127.0.0.1", served.port)
    get = TorchStore.get

    def counted(self: TorchStore, key: str) -> bytes | None:
        asked.append(key)
        return get(self, key)

    monkeypatch.setattr(TorchStore, "get", counted)
    waiters = [threading.Thread(target=store.clone().wait, args=("a", 0.5)) for _ in range(3)]
    for each in waiters:
        each.start()
    while any(each.is_alive() for each in waiters):
        # With one request for all of them, and with one of its own, which ends the waits.
        store.get_many(["a", "b"])
        if not asked:
            store.get("a")
        time.sleep(0.05)
    assert asked == ["a"]

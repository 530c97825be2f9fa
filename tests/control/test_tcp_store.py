import os
import subprocess
import sys

EXPIRE = """
from recycle.control.tcp_store import TorchStore, listen, serve

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

import os

import pytest
import torch

from harness.local import launch
from harness.plain_lines import require_plain
from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.errors import ConnectionLost, InstructionFailed
from recycle.runtime.net.connect import connect
from recycle.runtime.net.transfer_key import STATE
from recycle.runtime.plain_words import lost, plain

GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:4242", "was closed"),
        (f"{GLOO}pair.cc:553] Connection closed by peer [::1]:4242. This means another rank", "was closed"),
        (f"{GLOO}pair.cc:519] Read error [127.0.0.1]:1: Connection reset by peer", "was closed"),
        (f"{GLOO}pair.cc:270] writev [127.0.0.1]:1: Broken pipe\nException raised from ...", "was closed"),
        (f"{GLOO}pair.cc:535] Application timeout caused pair closure", "gave no answer in time"),
        (f"{GLOO}unbound_buffer.cc:81] Timed out waiting 2000ms for recv to complete", "gave no answer in time"),
        (
            "NCCL: remote process exited: Last error:\nsocket.cc:1 ...",
            "failed: NCCL: remote process exited: Last error:",
        ),
        (
            "[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: not enough memory",
            "failed: err == 0. DefaultCPUAllocator: not enough memory",
        ),
    ],
)
def test_what_libraries_say_of_a_connection_names_the_partner_and_what_became_of_it(said, meant):
    assert str(lost(RuntimeError(said), ["W1_0"])) == f"the connection to W1_0 {meant}"
    assert str(lost(RuntimeError(said))) == f"the connection to another server {meant}"
    require_plain(plain(said))


def failed_by(cause):
    try:
        raise InstructionFailed("W0_0, iteration 3, row 0: it failed") from cause
    except InstructionFailed as error:
        return error


def test_who_was_lost_is_named_and_the_words_of_torch_are_kept():
    servers = Server(0, 0), Server(0, 1)
    said = []

    def body(member):
        server = servers[member.rank]
        network = connect(member.store(), View.among(servers), server)
        network.barrier()
        if member.rank == 1:
            os._exit(0)
        for wait in (
            lambda: network.link(servers[1]).receive(torch.zeros(1), STATE).wait(),
            lambda: network.all.sum(torch.zeros(1)),
        ):
            with pytest.raises(ConnectionLost) as raised:
                wait()
            member.report(str(raised.value).encode())
            assert "gloo" in str(raised.value.__cause__)

    launch(2, body, lambda _, content: said.append(content.decode()))
    assert said == ["the connection to W0_1 was closed"] * 2

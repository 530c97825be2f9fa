"""What a broken view still receives when its parameters are restored."""

import os
import socket
import threading
import time

import torch
from torch.distributed import HashStore

from recycle.control.membership.view import View
from recycle.job import Server
from recycle.runtime.errors import ViewBroken
from recycle.runtime.net.connect import connect
from recycle.runtime.net.gloo.sockets import open_connections
from recycle.runtime.net.network import Share
from recycle.runtime.net.transfer_key import STATE
from recycle.runtime.recover.survivor import forget_frames
from recycle.runtime.step.shared_sums import spread

SIZE = 1000
PEERS = tuple(Server(pipeline, 0) for pipeline in range(6))
ME, DEAD, LATE = PEERS[0], PEERS[2], PEERS[3]
"""Two that are not beside this one in the ring, so that each has a connection of its own."""


def together(*acts):
    threads = [threading.Thread(target=each) for each in acts]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def test_a_share_that_comes_after_its_view_has_ended_is_not_written_to_what_was_restored():
    store, networks = HashStore(), {}

    def join(server):
        networks[server] = connect(store, View.among(PEERS), server, partners=())

    together(*(lambda each=each: join(each) for each in PEERS))
    together(lambda: networks[ME].link(LATE), lambda: networks[LATE].link(ME))
    before = {each.inode for each in open_connections()}
    together(lambda: networks[ME].link(DEAD), lambda: networks[DEAD].link(ME))
    own = next(each for each in open_connections() if each.inode not in before)

    parameter = torch.zeros(2 * SIZE)
    shares = [Share(slice(place * SIZE, (place + 1) * SIZE), (each,)) for place, each in enumerate((DEAD, LATE))]
    broken = threading.Event()

    def step():
        try:
            spread(networks[ME], [(parameter, shares)])
        except ViewBroken as error:
            forget_frames(error)
            parameter.zero_()
            broken.set()

    thread = threading.Thread(target=step)
    thread.start()
    time.sleep(0.2)  # it waits then, or will at once find the connection closed
    with socket.socket(fileno=os.dup(own.number)) as end:
        end.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert broken.is_set()
    sent = networks[LATE].link(ME).send(torch.ones(SIZE), STATE)
    time.sleep(0.5)
    assert not parameter.any()
    networks[LATE].unblock()
    del sent

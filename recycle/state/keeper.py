"""The keeper: a process of each host that holds parts of versions, and is no trainer's child, so that it outlives them.

Its memory is its own. Nothing is left of it when it ends, in whatever way, and no file or segment has a name that
somebody would have to clean up.
"""

import hashlib
import socket
import threading
from contextlib import suppress
from typing import assert_never

from recycle.state.channel import Answer, Ask, Channel, Commit, Drop, Fetch, Offer, Request
from recycle.state.errors import KeeperLost, Refused
from recycle.state.shelf import Content, Shelf

BACKLOG = 512


def keeper_address(token: str) -> str:
    """Where every process of a run finds its host's keeper: an abstract socket, which only this host has.

    Args:
        token: the run's.
    """
    return f"\0recycle-keeper-{hashlib.sha256(token.encode()).hexdigest()[:32]}"


def listen(token: str) -> socket.socket:
    """A socket for a run's keeper.

    Raises:
        OSError: the run has a keeper here.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(keeper_address(token))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def serve(listener: socket.socket, token: str, limit: int) -> None:
    """Keep what is put, for as long as somebody may connect.

    Args:
        listener: where trainers connect.
        token: the run's; who has not got it is not heard.
        limit: the most bytes that may be kept.
    """
    shelf = Shelf(limit)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_attend, args=(connection, token, shelf), name="a trainer", daemon=True).start()


def _attend(connection: socket.socket, token: str, shelf: Shelf) -> None:
    """Answer a trainer until it is gone."""
    with connection, suppress(KeeperLost, OSError):
        channel = Channel.accept(connection, token)
        while True:
            request: Request = channel.receive(Request)  # type: ignore[arg-type]
            try:
                _fulfil(request, channel, shelf)
            except Refused as refused:
                channel.send(Answer(str(refused)))


def _fulfil(request: Request, channel: Channel, shelf: Shelf) -> None:
    match request:
        case Offer():
            _take(request, channel, shelf)
        case Ask():
            channel.send(Answer(sizes=tuple(shelf.sizes.items())))
        case Fetch(part):
            content = shelf.find(part)
            if content is None:
                raise Refused(f"{part} is not there any more")
            channel.send(Answer(head=content.head, checksum=content.checksum))
            channel.send_bytes([memoryview(content.memory)])
        case Drop(part):
            shelf.drop(part)
            channel.send(Answer())
        case _:
            assert_never(request)


def _take(offer: Offer, channel: Channel, shelf: Shelf) -> None:
    """A part comes, unless its trainer is gone before it has said that it is right."""
    memory = shelf.make_room(offer.part, offer.size)
    try:
        channel.send(Answer())
        channel.receive_into([memoryview(memory)])
        checksum = channel.receive(Commit).checksum
    except KeeperLost:
        shelf.forget(memory)
        raise
    shelf.place(offer.part, Content(offer.head, memory, checksum))
    channel.send(Answer())

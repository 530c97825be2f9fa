"""A host's relay: what its members ask of the store at the same time is asked once, or in one request.

It decides nothing and keeps nothing: each request is answered with what the store says after it was made. So all that
holds of the store holds of it through the relay.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import msgspec

from recycle.control.errors import ControlError, StoreLost
from recycle.control.relay_requests import (
    HEAD,
    LARGEST,
    Answer,
    Append,
    Get,
    Open,
    ReadLog,
    Request,
    Result,
    Set,
    Single,
    WaitEntry,
    Waiting,
    WaitKey,
)
from recycle.control.store import Store

LOOK = 0.2
"""Seconds until a name that another relay had is tried again."""

TURN = 2.0
"""Seconds after which it is looked whether anybody still waits for something."""

MOST = 256
"""How many different things a host's members can wait for at the same time."""

_CREDENTIALS = struct.Struct("3i")


class GatheringStore(Store, Protocol):
    """A store that takes many values at once."""

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """The same as set for some keys, in few requests."""

    def entry_key(self, log: str) -> str:
        """A key for a new entry of a log; it is appended when a value is set there for the first time."""

    def clone(self) -> "GatheringStore":
        """See Store."""


class _Asked(NamedTuple):
    """A request, and who is told what comes of it."""

    request: Set | Append | Get | Single
    answer: "asyncio.Future[Answer]"


class Relay:
    """The relay of a host.

    Args:
        connect: makes a connection to the store, or raises StoreLost.
    """

    def __init__(self, connect: Callable[[], GatheringStore]) -> None:
        self._connect = connect
        self._asker = ThreadPoolExecutor(1)
        self._waiters = ThreadPoolExecutor(MOST)
        self._store: GatheringStore | None = None
        self._idle: list[GatheringStore] = []
        self._asked: list[_Asked] = []
        self._asking: asyncio.Task[None] | None = None
        self._waits: dict[Hashable, asyncio.Task[Answer]] = {}
        self._awaiting: dict[Hashable, int] = {}

    async def serve(self, listener: socket.socket) -> None:
        """Answer whoever runs as the same user as this process.

        Args:
            listener: where they come to.
        """
        server = await asyncio.start_unix_server(self._attend, sock=listener)
        await server.serve_forever()

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One member's connection; its requests are answered one after the other."""
        decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
        encoder = msgspec.msgpack.Encoder()
        is_own = _is_own(writer.get_extra_info("socket"))
        try:
            while is_own and (size := int.from_bytes(await reader.readexactly(HEAD))) <= LARGEST:
                request = decoder.decode(await reader.readexactly(size))
                message = encoder.encode(await self._answer(request))
                writer.write(len(message).to_bytes(HEAD) + message)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError, msgspec.DecodeError, asyncio.CancelledError):
            pass  # it has left, or is none of ours, or this process ends
        finally:
            writer.close()

    async def _answer(self, request: Request) -> Answer:
        if isinstance(request, WaitKey | WaitEntry):
            return await self._await(request)
        asked = _Asked(request, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await asked.answer

    async def _ask(self) -> None:
        """Ask what there is to be asked; what comes meanwhile is asked together after it."""
        loop = asyncio.get_running_loop()
        while self._asked:
            asked, self._asked = self._asked, []
            answers = await loop.run_in_executor(self._asker, self._carry_out, [each.request for each in asked])
            for each, answer in zip(asked, answers, strict=True):
                if not each.answer.done():
                    each.answer.set_result(answer)
        self._asking = None

    def _carry_out(self, requests: Sequence[Set | Append | Get | Single]) -> list[Answer]:
        """Some requests that nobody has an order for; what is the same is asked once."""
        try:
            if self._store is None:
                self._store = self._connect()
            return _carry_out(self._store, requests)
        except StoreLost as error:
            # The next request finds out whether there is a store again, and whether this run may still use it.
            self._store = None
            return [Answer(lost=str(error))] * len(requests)
        except ControlError as error:
            if len(requests) == 1:
                return [Answer(refusal=str(error))]
            # One of them cannot be carried out.
            return [answer for each in requests for answer in self._carry_out([each])]

    async def _await(self, request: Waiting) -> Answer:
        subject = request.subject
        self._awaiting[subject] = self._awaiting.get(subject, 0) + 1
        if subject not in self._waits:
            self._waits[subject] = asyncio.create_task(self._keep_waiting(request))
        try:
            return await asyncio.wait_for(asyncio.shield(self._waits[subject]), request.timeout)
        except TimeoutError:
            return Answer()
        finally:
            self._awaiting[subject] -= 1
            if not self._awaiting[subject] and subject not in self._waits:
                del self._awaiting[subject]

    async def _keep_waiting(self, request: Waiting) -> Answer:
        """Wait for as long as somebody does."""
        loop, subject = asyncio.get_running_loop(), request.subject
        answer: Answer | None = None
        try:
            while answer is None and self._awaiting[subject]:
                answer = await loop.run_in_executor(self._waiters, self._wait, request)
        finally:
            # Who waits from here on has to ask anew.
            del self._waits[subject]
            if not self._awaiting[subject]:
                del self._awaiting[subject]
        return answer or Answer()

    def _wait(self, request: Waiting) -> Answer | None:
        try:
            store = self._idle.pop() if self._idle else self._connect()
            is_there, found = request.wait(store, TURN)
            self._idle.append(store)
            return Answer(found) if is_there else None
        except StoreLost as error:
            return Answer(lost=str(error))
        except ControlError as error:
            return Answer(refusal=str(error))


def _carry_out(store: GatheringStore, requests: Sequence[Set | Append | Get | Single]) -> list[Answer]:
    values = {}
    for each in requests:
        if isinstance(each, Set):
            values[each.key] = each.value
        elif isinstance(each, Append):
            values[store.entry_key(each.log)] = each.entry
    if values:
        store.set_many(values)
    wanted = list(dict.fromkeys(key for each in requests if isinstance(each, Get) for key in each.keys))
    found = dict(zip(wanted, store.get_many(wanted), strict=True)) if wanted else {}
    told: dict[ReadLog | Open, Result] = {}
    answers = []
    for each in requests:
        match each:
            case Set() | Append():
                answers.append(Answer())
            case Get():
                answers.append(Answer([found[key] for key in each.keys]))
            case ReadLog() | Open():
                if each not in told:
                    told[each] = each.ask(store)
                answers.append(Answer(told[each]))
            case _:
                answers.append(Answer(each.ask(store)))
    return answers


def _is_own(connection: socket.socket) -> bool:
    """Whether who is at the other end runs as the same user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1]) == os.getuid()


async def run_relay(name: bytes, connect: Callable[[], GatheringStore]) -> None:
    """Be the relay of this host, as soon as no other process is.

    Args:
        name: where it listens, in the kernel's abstract names.
        connect: makes a connection to the store, or raises StoreLost.
    """
    while True:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(name)
            break
        except OSError:
            listener.close()
            await asyncio.sleep(LOOK)
    listener.listen(1024)
    await Relay(connect).serve(listener)

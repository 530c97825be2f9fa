"""A host's relay: what its members ask of the store at the same time is asked once, or in one request.

It decides nothing and keeps nothing: each request is answered with what the store says after it was made, or has told
whoever listens to a bell. So all that holds of the store holds of it through the relay.
"""

import asyncio
import socket
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, cast

import msgspec

from recycle.control.membership.doors import HostDoor, is_own
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.store.relay_requests import HEAD, LARGEST, Answer, Request, Result
from recycle.control.store.store import Store

LOOK = 0.2
"""Seconds until a name that another relay had is tried again."""

GATHER = 0.005
"""Seconds for which what is appended to a log waits for more: whoever reads it waits for the other members as well."""

TURN = 2.0
"""Seconds after which it is looked whether anybody still waits for something."""

MOST = 256
"""How many different things a host's members can wait for at the same time."""

_REFUSED = (ControlError, TypeError, ValueError, IndexError)
"""The store refuses a request, or it is none that a store knows."""


class _Asked(NamedTuple):
    """A request, and who is told what comes of it."""

    request: Request
    caller: "_Caller"


class Relay:
    """The relay of a host.

    Args:
        connect: makes a connection to the store, or raises StoreLost.
    """

    def __init__(self, connect: Callable[[], Store]) -> None:
        self._connect = connect
        self._asker = ThreadPoolExecutor(1)
        self._waiters = ThreadPoolExecutor(MOST)
        self._store: Store | None = None
        self._idle: list[Store] = []
        self._asked: list[_Asked] = []
        self._asking: asyncio.Task[None] | None = None
        # Who waits for what, and until when.
        self._waits: dict[Hashable, dict[_Caller, asyncio.TimerHandle]] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        self._callers: set[_Caller] = set()
        self._is_over = False

    async def serve(self, listener: socket.socket) -> None:
        """Answer whoever runs as the same user as this process.

        Args:
            listener: where they come to.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: _Caller(self), sock=listener)
        try:
            await loop.create_future()
        finally:
            # asyncio drops what it has accepted, unclosed, if that has not begun when its server is closed.
            loop.remove_reader(listener)
            await asyncio.sleep(0)
            server.close()
            self._is_over = True
            for each in self._callers:
                each.leave()

    def meet(self, caller: "_Caller") -> None:
        """A member has connected, perhaps just before the end and noticed after it."""
        self._callers.add(caller)
        if self._is_over:
            caller.leave()

    def take(self, request: Request, caller: "_Caller") -> None:
        """Answer a request, sooner or later.

        Args:
            request: which.
            caller: who is answered.
        """
        if request.timeout is not None:
            self._await(request, caller, request.timeout)
            return
        self._asked.append(_Asked(request, caller))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())

    def lose(self, caller: "_Caller") -> None:
        """Somebody has left, and waits for nothing any more."""
        self._callers.discard(caller)
        for callers in self._waits.values():
            if (timer := callers.pop(caller, None)) is not None:
                timer.cancel()

    async def _ask(self) -> None:
        """Ask what there is to be asked; what comes meanwhile is asked together after it."""
        loop = asyncio.get_running_loop()
        while self._asked:
            if all(each.request.method == "append" for each in self._asked):
                await asyncio.sleep(GATHER)
            asked, self._asked = self._asked, []
            try:
                answers = await loop.run_in_executor(self._asker, self._carry_out, [each.request for each in asked])
            except Exception as error:
                # Whatever it is, those that ask go on without the relay, and it is there for their next request.
                self._store, answers = None, [_lost(error)] * len(asked)
            for each, answer in zip(asked, answers, strict=True):
                each.caller.answer(_message(answer))
        self._asking = None

    def _carry_out(self, requests: Sequence[Request]) -> list[Answer]:
        """Some requests that nobody has an order for; what is the same is asked once."""
        try:
            if self._store is None:
                self._store = self._connect()
            return _carry_out(self._store, requests)
        except StoreLost as error:
            # The next request finds out whether there is a store again, and whether this run may still use it.
            self._store = None
            return [_lost(error)] * len(requests)
        except _REFUSED as error:
            if len(requests) == 1:
                return [Answer(refusal=str(error))]
            # One of them cannot be carried out.
            return [answer for each in requests for answer in self._carry_out([each])]

    def _await(self, request: Request, caller: "_Caller", timeout: float) -> None:
        subject = request.subject
        if subject not in self._waits:
            self._waits[subject] = {}
            task = asyncio.create_task(self._keep_waiting(request))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        callers = self._waits[subject]
        callers[caller] = asyncio.get_running_loop().call_later(timeout, _give_up, callers, caller)

    async def _keep_waiting(self, request: Request) -> None:
        """Wait for as long as somebody does."""
        loop, callers = asyncio.get_running_loop(), self._waits[request.subject]
        answer: Answer | None = None
        try:
            while answer is None and callers:
                answer = await loop.run_in_executor(self._waiters, self._wait, request)
        finally:
            # Who waits from here on has to ask anew.
            del self._waits[request.subject]
        message = _message(answer or Answer())
        for caller, timer in callers.items():
            timer.cancel()
            caller.answer(message)

    def _wait(self, request: Request) -> Answer | None:
        try:
            store = self._idle.pop() if self._idle else self._connect()
            found = request.ask(store, TURN)
            self._idle.append(store)
            return None if found is None or found is False else Answer(found)
        except StoreLost as error:
            return _lost(error)
        except _REFUSED as error:
            return Answer(refusal=str(error))


class _Caller(asyncio.Protocol):
    """One member's connection; its requests are answered one after the other.

    Args:
        relay: that is asked.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._transport: asyncio.Transport | None = None
        self._decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
        self._heard = bytearray()
        self._is_asking = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        self._relay.meet(self)
        if not is_own(transport.get_extra_info("socket")):
            self.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        """See Protocol."""
        self._transport = None
        self._relay.lose(self)

    def data_received(self, data: bytes) -> None:
        """See Protocol."""
        self._heard += data
        self._read()

    def answer(self, message: bytes) -> None:
        """Answer what was asked, if anybody is there.

        Args:
            message: the answer.
        """
        self._is_asking = False
        if self._transport is not None:
            self._transport.write(message)
            self._read()

    def leave(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _read(self) -> None:
        end = HEAD + int.from_bytes(self._heard[:HEAD])
        if self._is_asking or self._transport is None or self._transport.is_closing() or len(self._heard) < HEAD:
            return
        if end > HEAD + LARGEST:
            self.leave()
        elif len(self._heard) >= end:
            message = bytes(self._heard[HEAD:end])
            del self._heard[:end]
            try:
                request = self._decoder.decode(message)
            except msgspec.DecodeError:
                self.leave()  # it is none of ours
                return
            self._is_asking = True
            self._relay.take(request, self)


def _lost(error: Exception) -> Answer:
    return Answer(lost=str(error) or repr(error))


def _message(answer: Answer) -> bytes:
    message = msgspec.msgpack.encode(answer)
    return len(message).to_bytes(HEAD) + message


def _give_up(callers: "dict[_Caller, asyncio.TimerHandle]", caller: _Caller) -> None:
    """Somebody's time is over."""
    with suppress(KeyError):
        del callers[caller]
        caller.answer(_message(Answer()))


def _carry_out(store: Store, requests: Sequence[Request]) -> list[Answer]:
    values: dict[str, bytes] = {}
    logs: dict[str, list[bytes]] = {}
    wanted: dict[str, None] = {}
    for each in requests:
        match each.method:
            case "set_many":
                values.update(zip(each.keys, each.values, strict=True))
            case "append":
                logs.setdefault(each.keys[0], []).extend(each.values)
            case "get_many":
                wanted |= dict.fromkeys(each.keys)
    if values:
        store.set_many(values)
    for log, entries in logs.items():
        store.append(log, *entries)
    found = dict(zip(wanted, store.get_many(list(wanted)), strict=True)) if wanted else {}
    told: dict[Request, Result] = {}
    answers = []
    for each in requests:
        match each.method:
            case "set_many" | "append":
                answers.append(Answer())
            case "get_many":
                answers.append(Answer([found[key] for key in each.keys]))
            case _:
                # What is only looked at is looked at once.
                if each.method not in ("entries", "clone") or each not in told:
                    told[each] = each.ask(store, None)
                answers.append(Answer(told[each]))
    return answers


async def run_relay(door: HostDoor, connect: Callable[[], Store]) -> None:
    """Be the relay of this host, as soon as no other process is.

    Args:
        door: where it listens.
        connect: makes a connection to the store, or raises StoreLost.
    """
    listener = None
    while listener is None:
        # Where no name or no descriptor is left, one may be later.
        with suppress(OSError):
            listener = door.claim()
        if listener is None:
            await asyncio.sleep(LOOK)
    await Relay(connect).serve(listener)

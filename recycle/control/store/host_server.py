"""A server for the processes of one host and one user, each over a connection of its own."""

import asyncio
import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import cast

import msgspec

from recycle.control.membership.doors import accept
from recycle.control.store.host_requests import HEAD, LARGEST, Answer, Request, framed


class HostServer(ABC):
    """Takes requests, and has some wait for what others ask."""

    def __init__(self) -> None:
        # By what is waited for: the connections that wait, and the timers that end their waits.
        self._waits: dict[Request, dict[Caller, asyncio.TimerHandle]] = {}
        self._callers: set[Caller] = set()

    @abstractmethod
    def take(self, request: Request, caller: "Caller") -> None:
        """Answer a request, sooner or later.

        Args:
            request: which.
            caller: the connection that it came over.
        """

    async def serve(self, listener: socket.socket) -> None:
        """Answer the processes that run as the same user as this one.

        Args:
            listener: where they come to.
        """
        loop, somebody_waits = asyncio.get_running_loop(), asyncio.Event()
        listener.setblocking(False)
        beginning: set[asyncio.Task[object]] = set()
        loop.add_reader(listener, somebody_waits.set)
        try:
            while True:
                await somebody_waits.wait()
                somebody_waits.clear()
                found, rest = accept(listener)
                for each in found:
                    task = loop.create_task(loop.connect_accepted_socket(partial(Caller, self), each))
                    beginning.add(task)
                    task.add_done_callback(beginning.discard)
                if rest:
                    loop.remove_reader(listener)
                    await asyncio.sleep(rest)
                    loop.add_reader(listener, somebody_waits.set)
        finally:
            loop.remove_reader(listener)
            listener.close()
            await asyncio.gather(*beginning, return_exceptions=True)
            for caller in self._callers:
                caller.leave()

    def meet(self, caller: "Caller") -> None:
        """A member has connected."""
        self._callers.add(caller)

    def lose(self, caller: "Caller") -> None:
        """A connection is closed, and waits for nothing any more."""
        self._callers.discard(caller)
        for callers in self._waits.values():
            if (timer := callers.pop(caller, None)) is not None:
                timer.cancel()

    def _begin_wait(self, request: Request, caller: "Caller", timeout: float) -> bool:
        """Answer a connection when its wait ends or its time is over; says whether no other one waits for the same."""
        subject = request.subject
        is_new = subject not in self._waits
        callers = self._waits.setdefault(subject, {})
        callers[caller] = asyncio.get_running_loop().call_later(timeout, _give_up, callers, caller)
        return is_new

    def _end_wait(self, subject: Request, answer: Answer) -> None:
        """Answer all connections that wait for something. One that waits for it from here on has to ask anew."""
        message = framed(answer)
        for caller, timer in self._waits.pop(subject, {}).items():
            timer.cancel()
            caller.answer(message)


class Caller(asyncio.Protocol):
    """One member's connection; its requests are answered one after the other.

    Args:
        server: that is asked.
    """

    def __init__(self, server: HostServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
        self._heard = bytearray()
        self._is_asking = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        self._server.meet(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See Protocol."""
        self._transport = None
        self._server.lose(self)

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
            self._server.take(request, self)


def _give_up(callers: dict[Caller, asyncio.TimerHandle], caller: Caller) -> None:
    """The time of a wait is over."""
    with suppress(KeyError):
        del callers[caller]
        caller.answer(framed(Answer()))

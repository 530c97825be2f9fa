"""A host's relay: what its members ask of the store at the same time is asked once, or in one request.

It decides nothing and keeps nothing: each request is answered with what the store says after it was made, or has told
whoever listens to a bell. So all that holds of the store holds of it through the relay.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from recycle.control.membership.doors import HostDoor
from recycle.control.membership.errors import ControlError, StoreLost
from recycle.control.store.host_requests import Answer, Request, Result, framed
from recycle.control.store.host_server import Caller, HostServer
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
    caller: Caller


class Relay(HostServer):
    """The relay of a host.

    Args:
        connect: makes a connection to the store, or raises StoreLost.
    """

    def __init__(self, connect: Callable[[], Store]) -> None:
        super().__init__()
        self._connect = connect
        self._asker = ThreadPoolExecutor(1)
        self._waiters = ThreadPoolExecutor(MOST)
        self._store: Store | None = None
        self._idle: list[Store] = []
        self._asked: list[_Asked] = []
        self._asking: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Task[None]] = set()

    def take(self, request: Request, caller: Caller) -> None:
        """See HostServer."""
        if request.timeout is not None:
            if self._begin_wait(request, caller, request.timeout):
                task = asyncio.create_task(self._keep_waiting(request.subject))
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)
            return
        self._asked.append(_Asked(request, caller))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())

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
                each.caller.answer(framed(answer))
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

    async def _keep_waiting(self, subject: Request) -> None:
        """Wait for as long as somebody does."""
        loop, answer = asyncio.get_running_loop(), None
        try:
            while answer is None and self._waits[subject]:
                answer = await loop.run_in_executor(self._waiters, self._wait, subject)
        finally:
            self._end_wait(subject, answer or Answer())

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


def _lost(error: Exception) -> Answer:
    return Answer(lost=str(error) or repr(error))


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


def door_of(token: str, prefix: str) -> HostDoor:
    """Where the relay of a host listens.

    Args:
        token: the run's.
        prefix: of the keys that it serves.
    """
    return HostDoor(token, f"relay/{prefix}")

"""What rules are written with: what they are numbered by, a network of two, and what is sent there."""

from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import torch

from recycle.job import Server
from recycle.runtime.net.network import Link, Network, Transfer
from recycle.runtime.net.transfer_key import STATE, Carried, TransferKey
from tests.runtime.net.contract.ranks import SERVERS, Rank

LARGE = 1 << 18
SOON = timedelta(milliseconds=200)


class NumberedRule(NamedTuple):
    """A rule.

    Attributes:
        number: in the document.
        run: what each rank does.
        count: how many ranks there are.
    """

    number: int
    run: Callable[[Rank], None]
    count: int


Steps = Callable[[Rank], None]


def numbering(rules: dict[str, NumberedRule]) -> Callable[..., Callable[[Steps], Steps]]:
    """A decorator with a rule's number, and how many ranks there are if not two, that puts it there by its name."""

    def rule(number: int, count: int = 2) -> Callable[[Steps], Steps]:
        def add(run: Steps) -> Steps:
            rules[run.__name__] = NumberedRule(number, run, count)
            return run

        return add

    return rule


def other(rank: Rank) -> Server:
    return SERVERS[1 - rank.number]


def pair(rank: Rank, epoch: int = 0, **more: object) -> Network:
    """The network of a view of the first two ranks, which are peers.

    Who lets go of it ends it, also for an end that is still about to connect.
    """
    return rank.connect(SERVERS[:2], epoch, **more)


def exchange(rank: Rank, link: Link, sent: torch.Tensor, received: torch.Tensor) -> list[Transfer]:
    """Start to send and to receive, in the order in which the other end receives and sends."""
    starts = [lambda: link.send(sent, STATE), lambda: link.receive(received, STATE)]
    return [start() for start in (starts if rank.number == 0 else reversed(starts))]


def numbered(number: int) -> TransferKey:
    return TransferKey(Carried.OUTPUT, 0, number)


def filled(value: float, size: int = 4) -> torch.Tensor:
    return torch.full((size,), float(value))

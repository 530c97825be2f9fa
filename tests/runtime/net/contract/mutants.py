"""Transports that break one rule each, over gloo: what the contract's tests have to find."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from recycle.control.membership.view import SOLE, ServerRank
from recycle.runtime.errors import ViewBroken
from recycle.runtime.net.connect import connect, connect_pair
from recycle.runtime.net.gloo.sockets import Connections, open_connections
from recycle.runtime.net.network import Network
from tests.runtime.net.contract.ranks import Ends


class Altered:
    """Something whose methods are replaced by others; all else is as it was.

    Args:
        inner: the thing.
        methods: the others, which get the thing first.
    """

    def __init__(self, inner: Any, **methods: Callable[..., Any]) -> None:
        self._inner = inner
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        if name in self._methods:
            method = self._methods[name]
            return lambda *arguments, **keywords: method(self._inner, *arguments, **keywords)
        return getattr(self._inner, name)


class AlteredNetwork(Altered):
    """A network whose links and groups are altered too."""

    def __init__(self, inner: Network, link: dict[str, Any], group: dict[str, Any], **methods: Any) -> None:
        super().__init__(inner, **methods)
        self._link, self._group = link, group

    @property
    def all(self) -> Any:
        return Altered(self._inner.all, **self._group)

    @property
    def peers(self) -> Any:
        return Altered(self._inner.peers, **self._group)

    def link(self, peer: Any) -> Any:
        return Altered(self._inner.link(peer), **self._link)


def altered(link: dict[str, Any] | None = None, group: dict[str, Any] | None = None, **methods: Any) -> Ends:
    """A transport with some methods of its links, groups and networks replaced."""

    def make(*arguments: Any, **keywords: Any) -> Any:
        return AlteredNetwork(connect(*arguments, **keywords), link or {}, group or {}, **methods)

    return Ends(make, connect_pair)


def _waited(start: str) -> Callable[..., Any]:
    """Starts only when it is waited for."""

    class Late:
        def __init__(self, inner: Any, *arguments: Any) -> None:
            self._begin = lambda: getattr(inner, start)(*arguments)

        def wait(self) -> None:
            self._begin().wait()

    return Late


def _at_once(start: str) -> Callable[..., Any]:
    """Waits where it should only start."""

    def run(inner: Any, *arguments: Any) -> Any:
        getattr(inner, start)(*arguments).wait()
        return Altered(None, wait=lambda _: None)

    return run


def _send_double(link: Any, tensor: torch.Tensor, key: Any) -> Any:
    return link.send(tensor * 2, key)


def _same_key_first() -> dict[str, Any]:
    """Receives that were started are served from the last to the first."""
    started: list[torch.Tensor] = []

    def receive(link: Any, tensor: torch.Tensor, key: Any) -> Any:
        started.append(tensor)
        buffer = torch.zeros_like(tensor)
        under_way = link.receive(buffer, key)

        def wait(_: Any) -> None:
            under_way.wait()
            started.pop().copy_(buffer)

        return Altered(None, wait=wait)

    return {"receive": receive}


def _one_link_after_another() -> Ends:
    """A receive begins when every send that was started before it has ended."""
    sent: list[Any] = []

    def send(link: Any, tensor: torch.Tensor, key: Any) -> Any:
        for each in sent:
            each.wait()
        sent.append(link.send(tensor, key))
        return sent[-1]

    return altered({"send": send})


def _no_more_links(network: Any, peer: Any) -> Any:
    return network._links[peer]


def _uneven_sum(group: Any, tensor: torch.Tensor) -> None:
    group.sum(tensor)
    tensor += os.getpid() % 997 * 1e-6


def _everybody(network: Any, name: str, _: Any) -> Any:
    return network.group(name, network.view.servers)


def _silent_when_given_up() -> Ends:
    """After it was given up, a receive's wait ends as if all were well."""
    given_up = threading.Event()

    def unblock(network: Any) -> None:
        given_up.set()
        network.unblock()

    def receive(link: Any, tensor: torch.Tensor, key: Any) -> Any:
        under_way = link.receive(tensor, key)
        return Altered(under_way, wait=lambda inner: None if given_up.is_set() else inner.wait())

    return altered({"receive": receive}, unblock=unblock)


def _once() -> Callable[[Any], None]:
    calls = iter([True])

    def unblock(network: Any) -> None:
        next(calls)
        network.unblock()

    return unblock


def _with_all_others(network: Any) -> None:
    network.barrier()
    network.unblock()


def _unchecked(*arguments: Any, check: Any, **keywords: Any) -> Any:
    return connect(*arguments, check=None, **keywords)


def _stubborn(*arguments: Any, **keywords: Any) -> Any:
    return Altered(_unchecked(*arguments, **keywords), unblock=_nothing)


def _without_end(*arguments: Any, **keywords: Any) -> Any:
    store, view, server, options = arguments
    return connect(store, view, server, type(options)(address=options.address), **keywords)


def _impatient(*arguments: Any, **keywords: Any) -> Any:
    store, view, server, options = arguments
    return connect(store, view, server, options._replace(transfer_timeout=options.rebuild_timeout), **keywords)


def _split() -> Ends:
    """A new view is made out of the first one, by all who were in it."""
    first: list[Network] = []

    def make(*arguments: Any, **keywords: Any) -> Any:
        for each in first:
            each.barrier()
        first.append(connect(*arguments, **keywords))
        return first[-1]

    return Ends(make, connect_pair)


def _shared() -> Ends:
    """To give up one network gives up all."""
    made: list[Network] = []

    def unblock(_: Any) -> None:
        for each in made:
            each.unblock()

    def make(*arguments: Any, **keywords: Any) -> Any:
        made.append(connect(*arguments, **keywords))
        return AlteredNetwork(made[-1], {}, {}, unblock=unblock)

    return Ends(make, connect_pair)


def _one_for_all_epochs() -> Ends:
    """Whatever the epoch, the same network."""
    made: list[Network] = []

    def make(*arguments: Any, **keywords: Any) -> Any:
        if not made:
            made.append(connect(*arguments, **keywords))
        return made[0]

    return Ends(make, connect_pair)


def _one_plane(*arguments: Any, rank: ServerRank = SOLE, **keywords: Any) -> Any:
    return connect(*arguments, **keywords)


def _ranks_of_all_servers(*arguments: Any, **keywords: Any) -> Any:
    network = connect(*arguments, **keywords)
    network.ranks = network.all
    return network


def _hoarding() -> Ends:
    """Keeps every network."""
    made: list[Network] = []

    def make(*arguments: Any, **keywords: Any) -> Any:
        made.append(connect(*arguments, **keywords))
        return made[-1]

    return Ends(make, connect_pair)


def _ends_as_if_all_were_well(link: Any, tensor: torch.Tensor, key: Any) -> Any:
    """What it brings never comes to where it belongs, and a failure is none."""
    elsewhere, started = torch.empty_like(tensor), []
    with suppress(ViewBroken):
        started.append(link.receive(elsewhere, key))

    def wait(_: Any) -> None:
        with suppress(ViewBroken):
            for each in started:
                each.wait()

    return Altered(elsewhere, wait=wait)


def _precedes_nothing(link: Any, tensor: torch.Tensor, key: Any) -> Any:
    return Altered(link.receive(tensor, key), precede=lambda _: False)


def _uneven_shared_sum(network: Any, tensor: torch.Tensor, shares: Any) -> Any:
    """Each holder has bits of its own."""
    under_way = network.start_shared_sum(tensor, shares)

    def wait(_: Any) -> None:
        under_way.wait()
        tensor.mul_(1 + network.server.pipeline * 1e-6)

    return Altered(None, wait=wait)


def _spread_to_holders_too(network: Any, tensor: torch.Tensor, shares: Any) -> Any:
    """Nobody keeps what it has."""
    tensor += 1
    return network.start_spread(tensor, shares)


def _shared_sum_as_if_all_were_there(network: Any, tensor: torch.Tensor, shares: Any) -> Any:
    """Who has lost a peer is told nothing."""
    with suppress(ViewBroken):
        network.start_shared_sum(tensor, shares).wait()
    return Altered(None, wait=lambda _: None)


def _keeping_tensors() -> dict[str, Any]:
    kept: list[torch.Tensor] = []

    def send(link: Any, tensor: torch.Tensor, key: Any) -> Any:
        kept.append(tensor)
        return link.send(tensor, key)

    return {"send": send}


def _greedy_pair(*arguments: Any, **keywords: Any) -> Any:
    """Takes what others connect meanwhile for its own."""
    before = open_connections()
    private = connect_pair(*arguments, **keywords)
    opened = Connections(each for each in open_connections() if each not in before)
    return Altered(private, unblock=lambda _: opened.cut())


def _stubborn_pair(*arguments: Any, **keywords: Any) -> Any:
    return Altered(connect_pair(*arguments, **keywords), unblock=lambda _: None)


def _at_least_two(*arguments: Any, **keywords: Any) -> Any:
    assert len(arguments[1].servers) > 1
    return connect(*arguments, **keywords)


def _nothing(_: Any) -> None:
    """Does not do what it should."""


MUTANTS: dict[str, Ends] = {
    "both_directions_carry_at_once": altered({"send": _send_double}),
    "order_is_kept": altered(_same_key_first()),
    "a_start_waits_for_nobody": altered({"send": _at_once("send")}),
    "links_do_not_wait_for_each_other": _one_link_after_another(),
    "a_link_is_made_when_both_ask_for_it": Ends(
        lambda *arguments, **keywords: Altered(connect(*arguments, **keywords), link=_no_more_links), connect_pair
    ),
    "all_get_the_same_bits": altered(group={"sum": _uneven_sum}),
    "reductions_of_a_group_keep_their_order": altered(group={"start_sum": _waited("start_sum")}),
    "a_group_is_of_its_servers_alone": Ends(
        lambda *arguments, **keywords: Altered(connect(*arguments, **keywords), group=_everybody), connect_pair
    ),
    "nobody_leaves_a_barrier_before_all_have_come": altered(barrier=_nothing),
    "a_receive_is_given_up": altered(unblock=_nothing),
    "a_send_is_given_up": altered(unblock=_nothing),
    "a_reduction_is_given_up": Ends(_stubborn, connect_pair),
    "a_barrier_is_given_up": Ends(_stubborn, connect_pair),
    "what_was_given_up_stays_so": _silent_when_given_up(),
    "giving_up_can_be_repeated": altered(unblock=_once()),
    "the_dead_hold_nobody": altered(unblock=_with_all_others),
    "connecting_is_given_up": Ends(_unchecked, connect_pair),
    "connecting_has_an_end": Ends(_without_end, connect_pair),
    "a_wait_has_an_end": Ends(_without_end, connect_pair),
    "a_view_is_rebuilt_without_the_dead": _split(),
    "views_share_nothing": _shared(),
    "nothing_crosses_from_view_to_view": _one_for_all_epochs(),
    "planes_never_meet": Ends(_one_plane, connect_pair),
    "a_view_that_is_left_leaves_nothing": _hoarding(),
    "a_tensor_is_free_after_its_wait": altered(_keeping_tensors()),
    "what_is_not_its_own_is_left_alone": Ends(connect, _greedy_pair),
    "a_private_link_is_given_up": Ends(connect, _stubborn_pair),
    "a_view_of_one_needs_nobody": Ends(_at_least_two, connect_pair),
    "the_ranks_of_a_server_meet": Ends(_ranks_of_all_servers, connect_pair),
    "the_ranks_of_a_server_are_given_up": Ends(_stubborn, connect_pair),
    "what_has_ended_is_right": altered({"receive": _ends_as_if_all_were_well}),
    "what_precedes_has_come": altered({"receive": _precedes_nothing}),
    "what_precedes_is_given_up": altered(unblock=_nothing),
    "holders_get_the_same_bits_of_a_sum": altered(start_shared_sum=_uneven_shared_sum),
    "a_spread_reaches_those_without_a_share": altered(start_spread=_spread_to_holders_too),
    "a_start_of_shares_waits_for_nobody": altered(start_shared_sum=_at_once("start_shared_sum")),
    "a_shared_sum_is_given_up": altered(unblock=_nothing),
    "a_spread_is_given_up": altered(unblock=_nothing),
    "without_a_peer_no_share_is_summed": altered(start_shared_sum=_shared_sum_as_if_all_were_there),
    "others_may_come_later_than_to_connect": Ends(_impatient, connect_pair),
}
"""By the rule that each breaks."""

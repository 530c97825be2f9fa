"""Collectives that outlive their members: Megatron's, carried out by whichever servers live.

Outside its schedules Megatron's training code takes norms, sums losses and waits for everybody, in groups of all ranks.
Here a dead rank's part is played by its first live peer, which has the same state: what one has to say, so has
the other.

Where servers have several ranks, a peer's rank with the same number plays it: groups of ranks with one number meet in
their plane. A group with several ranks of its servers meets in each plane first, and then among the ranks of each
server; groups that have other ranks of the same servers do so at the same time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec
import torch
from torch.distributed import ReduceOp, Work

from recycle.job import Job, Server
from recycle.megatron.flag.command.server_ranks import ONE_RANK, ServerRanks
from recycle.megatron.flag.world.call_results import Key, Result, Value
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.torch_calls import Calls, Carrier, never, reduction_of
from recycle.runtime.errors import RunError, ViewBroken
from recycle.runtime.net.network import Alone, Group, Network
from recycle.runtime.net.process_groups import ReplaceableGroup
from recycle.saying import say

Numbers: TypeAlias = tuple[int, ...]

ROUNDED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""What gloo adds up, and whose sums depend on the order."""

REPORT = "have the loss function report [sum, count] and call no collective, or train with --pipeline-schedule stock"
"""What a user can do about a collective in a schedule."""


class Seats(NamedTuple):
    """Who carries out the calls of a group in a view.

    Attributes:
        group: among whom.
        players: for each rank of the group, the server that plays it; None if nobody in the group can.
        counted: the ranks that count in a reduction.
        whole: whether the group is as it was made.
    """

    group: Group
    players: tuple[Server | None, ...]
    counted: tuple[int, ...]
    whole: bool


class Collectives:
    """The calls of one server.

    A call ends with the same result on all servers, whatever fails meanwhile. What was completed by anybody is kept
    until all have gone on to the next version, and those who missed it when the view broke get it from there.

    Args:
        server: whose.
        job: for its shape; ranks are numbered by stage, then by pipeline.
        ranks: of the server; they are connected to each view first.
        settle: called before a call that stages make together.
        recover: gets to the next view, or does not return.
        complete: called when a call is complete.
        layout: how the ranks of a server divide its work.

    Attributes:
        totals: sums over the servers of a stage that are known already, by what this server puts in; each is taken
            once, in the order in which they are here.
        inside: whether this server is at what a failure ends, and what is redone whole; see ``redoable``.
    """

    def __init__(
        self,
        server: Server,
        job: Job,
        ranks: RankCollectives,
        settle: Callable[[], None],
        recover: Callable[[ViewBroken], None],
        complete: Callable[[], None],
        layout: ServerRanks = ONE_RANK,
    ) -> None:
        self.totals: dict[Value, list[torch.Tensor]] = {}
        self.inside = False
        self._has_warned = False
        self._server = server
        self._job = job
        self._ranks = ranks
        self._settle = settle
        self._recover = recover
        self._complete = complete
        peers = tuple(each for each in job.servers() if each.stage == server.stage)
        self._data_group = peers, several(layout.same_layers(ranks.rank.number))
        self._version = 0
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._known: dict[Key, list[torch.Tensor]] = {}
        self._seats: dict[tuple[Server, ...], Seats] = {}

    def advance(self, version: int) -> None:
        """All servers have made all calls of the versions before.

        Those of the last one are not forgotten yet: who takes a stage up from keepers makes them again.
        """
        self._version = version
        self._counts.clear()
        self._known = {key: values for key, values in self._known.items() if key.version + 1 >= version}

    def forget(self, kind: str, version: int) -> None:
        """Calls of a kind after a version are made again: this server has gone back to that."""
        self._known = {key: each for key, each in self._known.items() if key.kind != kind or key.version <= version}

    def keep(self, kind: str, version: int, result: torch.Tensor) -> None:
        """Keep what all ranks have learned on their way to a version, for servers that miss it if the view breaks."""
        self._known[Key(version, kind, 0, across=True)] = [result]

    def kept(self, kind: str, version: int) -> torch.Tensor | None:
        """What was kept here or elsewhere; None where nothing was."""
        found = self._known.get(Key(version, kind, 0, across=True))
        return None if found is None else found[0]

    def mark(self) -> Counter[tuple[str, bool]]:
        """How far this server is in the calls of the present version."""
        return self._counts.copy()

    @contextmanager
    def again(self, mark: Counter[tuple[str, bool]]) -> Iterator[None]:
        """Within the block, calls from there on are made again, whose results are known."""
        present, self._counts = self._counts, mark.copy()
        try:
            yield
        finally:
            self._counts = present

    def connect(self, network: Network, groups: Iterable[tuple[Server, ...]]) -> None:
        """Work in a view from now on; all live servers come here.

        Args:
            network: of the view.
            groups: that this server is in, of at least two ranks.

        Raises:
            ViewBroken: somebody is gone.
        """
        # All make their groups in one order.
        self._seats = {servers: self._seat(network, servers) for servers in sorted(set(groups), key=self.kind)}
        self._share(network)

    def call(self, kind: str, act: Callable[[], list[torch.Tensor]], across: bool = False) -> list[torch.Tensor]:
        """Do something with all others of a kind until it succeeds.

        Args:
            kind: of the group, or another name for those who come here.
            act: does it; gives what counts of it. It may be called again.
            across: whether all ranks of their servers come here.
        """
        key = Key(self._version, kind, self._counts[kind, across], across)
        self._counts[kind, across] += 1
        while key not in self._known:
            try:
                self._known[key] = act()
            except ViewBroken as error:
                self._recover(error)
        self._complete()
        return self._known[key]

    def reduce(self, servers: tuple[Server, ...], numbers: Numbers, tensor: torch.Tensor, how: Any) -> torch.Tensor:
        """The sum, product, minimum or maximum over a group.

        Args:
            servers: of the group.
            numbers: of the ranks of each that are in it, where it is several.
            tensor: what this rank puts in.
            how: a reduction of torch's.
        """
        is_of_data = (servers, numbers) == self._data_group
        if how == ReduceOp.SUM and is_of_data and (known := self.totals.get(Value.of(tensor))):
            return known.pop(0)
        rows = self._meet(servers, numbers, lambda: self._reduce(servers, numbers, tensor, how))
        return _reduction_over(numbers, rows, tensor, how)

    def gather(self, servers: tuple[Server, ...], numbers: Numbers, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What every rank of a group puts in; arguments as above."""
        places = range(len(servers))
        rows = self._meet(servers, numbers, lambda: self._gather(servers, numbers, tensor, places))
        return _rank_by_rank(numbers, rows, tensor, len(servers))

    def carrier(self, servers: tuple[Server, ...], numbers: Numbers) -> Carrier:
        """The calls of a group; arguments as above."""
        return Carrier(partial(self.gather, servers, numbers), partial(self.reduce, servers, numbers))

    def carrier_alive(self, servers: tuple[Server, ...], numbers: Numbers) -> Carrier:
        """The same among the live ranks of a group, in this view and no longer; in a pipeline, peers play the dead."""
        counted = self._seats[servers].counted

        def gather(tensor: torch.Tensor) -> list[torch.Tensor]:
            return _rank_by_rank(numbers, self._gather(servers, numbers, tensor, counted), tensor, len(counted))

        def reduce(tensor: torch.Tensor, how: Any) -> torch.Tensor:
            return _reduction_over(numbers, self._reduce(servers, numbers, tensor, how), tensor, how)

        return Carrier(gather, reduce)

    @contextmanager
    def redoable(self) -> Iterator[None]:
        """Within the block, a schedule computes or a checkpoint is saved: a failure ends that, and all is redone."""
        self.inside = True
        try:
            yield
        finally:
            self.inside = False

    def own_carrier(self, numbers: Numbers) -> Carrier:
        """The calls of a group of some ranks of this server.

        Around what is redone whole there is nothing that would be redone, so there they are carried through failures
        like those of any other group.
        """
        inside, around = self._ranks.carrier(numbers), self.carrier((self._server,), several(numbers))
        return Carrier(
            lambda tensor: (inside if self.inside else around).gather(tensor),
            lambda tensor, how: (inside if self.inside else around).reduce(tensor, how),
        )

    def kind(self, servers: tuple[Server, ...]) -> str:
        """Groups that are each other's peers are of one kind: pipelines say the same."""
        if len(servers) == self._job.pipelines * self._job.depth:
            return "world"
        if self._is_in_one_pipeline(servers):
            return f"stages {' '.join(str(each.stage) for each in servers)}"
        return " ".join(map(str, servers))

    def _meet(
        self, servers: tuple[Server, ...], numbers: Numbers, act: Callable[[], list[torch.Tensor]]
    ) -> list[torch.Tensor]:
        if self.inside:
            self._require_all(servers)
            return act()
        if any(each.stage != self._server.stage for each in servers):
            self._settle()
        # Groups that differ in the first of their ranks only meet at the same time, in one call.
        spread = "" if self._is_whole(numbers) else f" by {' '.join(str(each - numbers[0]) for each in numbers)}"
        return self.call(f"{self.kind(servers)}{spread}", act, across=bool(numbers))

    def _require_all(self, servers: tuple[Server, ...]) -> None:
        """In a schedule, servers call as often as they compute micro-batches: equally often only if none is dead.

        Raises:
            RunError: one is.
        """
        where = "a collective over several servers is called while micro-batches are computed, as by a loss function"
        if self._seats[servers].players != servers:
            raise RunError(f"{where}, and since a death they compute different numbers of them: {REPORT}")
        if not self._has_warned and self._server == servers[0] and self._ranks.rank.is_first:
            say(f"{where}: the death of one of them ends this run; {REPORT}")
        self._has_warned = True

    def _is_whole(self, numbers: Numbers) -> bool:
        """Whether a group has one rank of its servers, or all."""
        return len(numbers) in (0, self._ranks.rank.size)

    def _is_in_one_pipeline(self, servers: tuple[Server, ...]) -> bool:
        return len({each.pipeline for each in servers}) == 1

    def _seat(self, network: Network, servers: tuple[Server, ...]) -> Seats:
        view = network.view
        alive = [each for each in servers if each in view.servers]
        if len(alive) == len(servers) and len(view.servers) == self._job.pipelines * self._job.depth:
            return Seats(self._group(network, servers, servers), servers, tuple(range(len(servers))), whole=True)
        if not self._is_in_one_pipeline(servers):
            first = {each.stage: each for each in reversed(alive)}
            players = tuple(each if each in alive else first.get(each.stage) for each in servers)
            counted = tuple(place for place, each in enumerate(servers) if each in alive)
            return Seats(self._group(network, servers, alive), players, counted, whole=False)
        stages = {each.stage for each in servers}
        players = tuple(view.peers(each.stage)[0] for each in servers)
        members = [each for each in view.servers if each.stage in stages]
        return Seats(self._group(network, servers, members), players, tuple(range(len(servers))), whole=False)

    def _group(self, network: Network, servers: tuple[Server, ...], members: Sequence[Server]) -> Group:
        if len(members) == 1:
            return Alone()
        if tuple(members) == network.view.servers:
            return network.all
        if tuple(members) == network.view.peers(self._server.stage):
            return network.peers
        # Groups of one kind share no members, and groups of two kinds may share all that are alive.
        return network.group(f"{self.kind(servers)}/{'-'.join(map(str, members))}", members, on_host=True)

    def _reduce(
        self, servers: tuple[Server, ...], numbers: Numbers, tensor: torch.Tensor, how: Any
    ) -> list[torch.Tensor]:
        """What each plane has; only this one's for a group in a plane."""
        result = self._reduce_in_plane(servers, tensor, how)
        return self._from_planes(numbers, result) if numbers else [result]

    def _reduce_in_plane(self, servers: tuple[Server, ...], tensor: torch.Tensor, how: Any) -> torch.Tensor:
        seats = self._seats[servers]
        if seats.whole and how == ReduceOp.SUM and tensor.dtype in ROUNDED:
            # As Megatron's own group adds up, to the bit.
            result = tensor.detach().cpu().clone()
            seats.group.sum(result)
            return result
        reduction = reduction_of(how)
        rows = self._gather_in_plane(seats, tensor)
        return reduction(torch.stack([rows[place] for place in seats.counted]))

    def _gather(
        self, servers: tuple[Server, ...], numbers: Numbers, tensor: torch.Tensor, places: Sequence[int]
    ) -> list[torch.Tensor]:
        """What some places of a group put in: of each plane one after the other; see ``_reduce``."""
        found = self._gather_in_plane(self._seats[servers], tensor)
        rows = torch.stack([found[place] for place in places])
        return self._from_planes(numbers, rows) if numbers else [rows]

    def _from_planes(self, numbers: Numbers, mine: torch.Tensor) -> list[torch.Tensor]:
        return self._ranks.gather(mine) if self._is_whole(numbers) else self._ranks.gather_unequal(mine)

    def _gather_in_plane(self, seats: Seats, tensor: torch.Tensor) -> list[torch.Tensor]:
        if None in seats.players:
            raise RunError(
                f"torch.distributed: rank {seats.players.index(None)} of a group is dead, and so are its peers in it; "
                "use the group of all ranks, or train with --pipeline-schedule stock"
            )
        mine = tensor.detach().cpu().contiguous()
        content = mine.reshape(-1).view(torch.uint8)
        table = torch.zeros(len(seats.players), max(1, len(content)), dtype=torch.uint8)
        for place, player in enumerate(seats.players):
            if player == self._server:
                table[place, : len(content)] = content
        seats.group.sum(table)
        return [row[: len(content)].clone().view(mine.dtype).reshape(mine.shape) for row in table]

    def _share(self, network: Network) -> None:
        """Tell each other all results that anybody may lack: in each plane, and then from plane to plane."""
        self._tell(network.all, (network.view.rank(self._server), len(network.view.servers)), self._known)
        if network.rank.size > 1:
            across = {key: values for key, values in self._known.items() if key.across}
            self._tell(network.ranks, network.rank, across)

    def _tell(self, group: Group, place: tuple[int, int], known: Mapping[Key, list[torch.Tensor]]) -> None:
        """Tell a group some results, and hear theirs.

        Args:
            group: that comes here.
            place: of this rank in it, and how many it has.
            known: the results.
        """
        results = [Result(key, [Value.of(each) for each in values]) for key, values in known.items()]
        content = torch.frombuffer(bytearray(msgspec.msgpack.encode(results)), dtype=torch.uint8)
        mine, count = place
        sizes = torch.zeros(count, dtype=torch.int64)
        sizes[mine] = len(content)
        group.sum(sizes)
        table = torch.zeros(count, int(sizes.max()), dtype=torch.uint8)
        table[mine, : len(content)] = content
        group.sum(table)
        for row, size in zip(table, sizes.tolist(), strict=True):
            for result in msgspec.msgpack.decode(row[:size].numpy().tobytes(), type=list[Result]):
                self._known.setdefault(result.key, [each.tensor for each in result.values])


def hand_over(group: ReplaceableGroup, carrier: Carrier, start: Callable[..., Work | None] = never) -> None:
    """From now on, the calls of a process group survive the death of members.

    Args:
        group: it; it is known whose ranks are in it.
        carrier: carries them out.
        start: starts a call in a group that no view ends, where there is one; see Calls.
    """
    group.hand_over(group.servers, Calls(carrier, group.rank(), group.size(), start).carry_out)


def several(numbers: Numbers) -> Numbers:
    """The numbers of some ranks of a server, if it is several; a group of one meets in its plane."""
    return numbers if len(numbers) > 1 else ()


def _reduction_over(numbers: Numbers, rows: list[torch.Tensor], tensor: torch.Tensor, how: Any) -> torch.Tensor:
    if not numbers:
        return rows[0]
    return reduction_of(how)(torch.stack([rows[number].reshape(tensor.shape) for number in numbers]))


def _rank_by_rank(numbers: Numbers, rows: list[torch.Tensor], tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    planes = [rows[number].reshape(count, *tensor.shape) for number in numbers or [0]]
    # Each has bytes of its own, which may be taken for another type.
    return [row.clone() for ranks in zip(*planes, strict=True) for row in ranks]

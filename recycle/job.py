"""The job: its shape, what each chunk costs and holds, and its servers. Pure data, validated once."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, pairwise
from typing import NamedTuple, Self

import msgspec

from recycle.errors import JobError, NoPlanError
from recycle.placement import Layout, Placement, crews, require_layout, require_placement, standard
from recycle.wording import BASELINE, BYTES, MICROSECONDS, known_unit, memory_text, time_text

LARGEST, LARGEST_MEMORY = 10**12, 10**18
"""The greatest number of a job, and amount of memory: a new cut of the layers multiplies it by their number."""

LARGEST_JOB = 10_000_000
"""Tasks of an iteration beyond which no plan is tried: ten million take minutes and some ten gigabytes."""

LARGEST_COUNT = 10**6
"""Servers and instructions have numbers of six digits at most."""

_PHASES = 3
_SLACK = 4
"""So many times what a file holds its job may say, which the checker then tells in detail."""


class Server(NamedTuple):
    """All ranks that hold one stage of one pipeline: the unit that fails and that is scheduled.

    Attributes:
        pipeline: which.
        stage: its place in the pipeline. It holds the chunk of this number, or those that the job's placement says.
    """

    pipeline: int
    stage: int

    def __str__(self) -> str:
        return f"W{self.pipeline}_{self.stage}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a server's name, ``W<pipeline>_<stage>``.

        Raises:
            JobError: the text is not a server's name.
        """
        match = re.fullmatch(r"W([0-9]{1,6})_([0-9]{1,6})", text)
        if match is None:
            raise JobError(f"server {text!r}: a server is written W<pipeline>_<stage>, for example W1_2")
        return cls(int(match[1]), int(match[2]))


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one chunk costs and holds: the stage, where each server holds one. Costs are sums over the chunk's layers.

    Attributes:
        forward: time of F for one micro-batch.
        input_gradient: time of I for one micro-batch.
        weight_gradient: time of W for one micro-batch.
        optimizer: time of the optimizer step.
        reduction: time of the gradients' reduction over the peers, before the optimizer step.
        held: memory that one micro-batch holds from the start of its F on.
        released_at_input_gradient: the part of ``held`` that is free when I ends; W releases the rest.
        taken_at_input_gradient: memory that I takes on top when it starts, and that W releases: layers that gather or
            compute anew for the backward pass hold more behind I than behind F.
        limit: memory for activations on each server of the stage; what else it holds is not in it. The chunks of one
            server share it.
        state: memory for all else, if that is in the account.
    """

    forward: int
    input_gradient: int
    weight_gradient: int
    optimizer: int
    reduction: int
    held: int
    released_at_input_gradient: int
    limit: int
    state: int = 0
    taken_at_input_gradient: int = 0

    @property
    def work(self) -> int:
        """Time of all compute for one micro-batch."""
        return self.forward + self.input_gradient + self.weight_gradient

    @property
    def update(self) -> int:
        """Time from the stage's last gradient to the end of its optimizer step."""
        return self.reduction + self.optimizer

    @property
    def capacity(self) -> int:
        """How many micro-batches a server can hold before it must release the first."""
        return (self.limit - self.taken_at_input_gradient) // self.held

    def needs(self, micro_batches: int) -> int:
        """The least limit with which a server can hold so many micro-batches, and go on."""
        return micro_batches * self.held + self.taken_at_input_gradient


def memory_needed(micro_batches: int, held: Sequence[int], taken: Sequence[int]) -> int:
    """What a server needs to hold so many micro-batches, and go on.

    Args:
        micro_batches: how many.
        held: per chunk of the server, what one of them holds from its F on.
        taken: per chunk, what its I takes on top; a server runs one I at a time, and W at once if it has to.
    """
    return micro_batches * sum(held) + max(taken, default=0)


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training job: D pipelines of P stages, and M micro-batches per pipeline and iteration.

    Times are whole numbers of ``time_unit`` and memory of ``memory_unit``, so that periods and bounds are exact.

    Attributes:
        pipelines: D, the data-parallel degree.
        micro_batches: M, per pipeline and iteration; where pipelines are not alike, the most that one brings.
        stages: one entry per chunk, in the order of the model: P in all where each server holds one.
        latency: time from the end of an instruction to the start of one that needs its result on the neighbouring
            chunk, if another server executes that; the first entry is between chunks 0 and 1. It keeps no server busy.
        name: what the job is called in reports.
        time_unit: what one unit of time is.
        memory_unit: what one unit of memory is.
        placement: which chunks each server of a pipeline holds; unset where server s holds chunk s.
        layout: the servers and the micro-batches of each pipeline, where pipelines are not alike. The limits of its
            servers then take the place of those of the chunks.
    """

    pipelines: int
    micro_batches: int
    stages: tuple[Stage, ...]
    latency: tuple[int, ...]
    name: str = "job"
    time_unit: str = "slot"
    memory_unit: str = "activation"
    placement: Placement | msgspec.UnsetType = msgspec.UNSET
    layout: Layout | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        _at_least(self.pipelines, 1, "pipelines", "a job has at least one pipeline")
        _at_least(self.micro_batches, 1, "micro_batches", "every pipeline needs at least one micro-batch per iteration")
        if not self.stages:
            raise JobError("stages: a job needs at least one stage, and this one has none")
        if len(self.latency) != len(self.stages) - 1:
            raise JobError(
                f"latency: {len(self.latency)} values for {len(self.stages)} stages; "
                f"give one per boundary between stages, {len(self.stages) - 1} in all"
            )
        for boundary, time in enumerate(self.latency):
            _at_least(time, 0, f"latency behind stage {boundary}", "a latency cannot be negative")
        self._settle_unit("time_unit", MICROSECONDS)
        self._settle_unit("memory_unit", BYTES)
        self._settle_placement()
        if not isinstance(self.layout, msgspec.UnsetType):
            if self.placement is not msgspec.UNSET:
                raise JobError("placement: pipelines of their own have placements of their own; leave it out")
            require_layout(self.layout, self.pipelines, self.micro_batches, len(self.stages))
        for number, stage in enumerate(self.stages):
            for field in ("forward", "input_gradient", "weight_gradient", "optimizer", "reduction"):
                _at_least(getattr(stage, field), 0, f"{field} of stage {number}", "a cost cannot be negative")
            reason = "a micro-batch holds at least one unit of memory"
            _at_least(stage.held, 1, f"held of stage {number}", reason, LARGEST_MEMORY)
            released = stage.released_at_input_gradient
            if not 0 <= released <= stage.held:
                raise JobError(
                    f"released_at_input_gradient of stage {number} is {released}: "
                    f"it is a part of what the stage holds, between 0 and {stage.held}"
                )
            taken = f"taken_at_input_gradient of stage {number}"
            reason = "an instruction cannot take less than nothing"
            _at_least(stage.taken_at_input_gradient, 0, taken, reason, LARGEST_MEMORY)
            reason = "a state cannot take less than nothing"
            _at_least(stage.state, 0, f"state of stage {number}", reason, LARGEST_MEMORY)
        self._require_room()

    def _settle_unit(self, field: str, known: Mapping[str, float]) -> None:
        """Call a unit by its one name; what is no unit of time or memory, such as a slot, is taken as it is."""
        given = getattr(self, field)
        try:
            name = known_unit(given, known)
        except ValueError as error:
            raise JobError(f"{field} is {given!r}: did you mean {error}?") from error
        if name != given:
            msgspec.structs.force_setattr(self, field, name)

    def _settle_placement(self) -> None:
        """Check the placement; one chunk per server in order is what an unset one means."""
        if isinstance(self.placement, msgspec.UnsetType):
            return
        require_placement(self.placement, len(self.stages))
        if self.placement == standard(len(self.stages)):
            msgspec.structs.force_setattr(self, "placement", msgspec.UNSET)
            return
        for place, chunks in enumerate(self.placement):
            limits = {self.stages[chunk].limit for chunk in chunks}
            if len(limits) > 1:
                raise JobError(
                    f"limit of server {place} of a pipeline is {' and '.join(map(str, sorted(limits)))}: its chunks "
                    f"{list(chunks)} share one memory, so give all of them the same limit"
                )

    def _require_room(self) -> None:
        """Refuse a server that has no memory for one micro-batch; a user's limit has what the state takes in it."""
        if isinstance(self.layout, msgspec.UnsetType):
            name = "stage {}" if self.standard else "server {} of a pipeline"
            servers = [(name.format(at), chunks, self.limit(at)) for at, chunks in enumerate(self.chunks)]
        else:
            servers = [
                (f"server {place} of pipeline {number}", server.chunks, server.limit)
                for number, pipeline in enumerate(self.layout)
                for place, server in enumerate(pipeline.servers)
            ]
        for where, chunks, limit in servers:
            least, state = self.needs(chunks), sum(self.stages[chunk].state for chunk in chunks)
            if limit < least:
                taken, more = (f"its state takes {state} of it, and ", " more") if state else ("", "")
                what = "" if self.standard else f" of its chunks {list(chunks)}"
                raise JobError(
                    f"limit of {where} is {limit + state}: {taken}one micro-batch{what} needs {least}{more}, so no "
                    f"plan exists; the least limit that works is {least + state}"
                )

    def needs(self, chunks: Sequence[int], micro_batches: int = 1) -> int:
        """The least limit with which a server of some chunks can hold so many micro-batches, and go on."""
        stages = [self.stages[chunk] for chunk in chunks]
        taken = [each.taken_at_input_gradient for each in stages]
        return memory_needed(micro_batches, [each.held for each in stages], taken)

    @property
    def even(self) -> bool:
        """True if all pipelines are alike: in their servers, and in how many micro-batches they bring."""
        return isinstance(self.layout, msgspec.UnsetType)

    @property
    def depth(self) -> int:
        """P, the number of servers of a pipeline: its stages, where each server holds one chunk.

        Where pipelines are not alike, that of the longest.
        """
        if not isinstance(self.layout, msgspec.UnsetType):
            return max(len(pipeline.servers) for pipeline in self.layout)
        return len(self.stages) if isinstance(self.placement, msgspec.UnsetType) else len(self.placement)

    @property
    def standard(self) -> bool:
        """True if server s of a pipeline holds chunk s and no other."""
        return isinstance(self.placement, msgspec.UnsetType) and self.even

    @property
    def chunks(self) -> Placement:
        """The chunks of each server of a pipeline, rising; all pipelines are alike."""
        assert self.even, "pipelines differ: ask placements"
        return standard(len(self.stages)) if isinstance(self.placement, msgspec.UnsetType) else self.placement

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The chunks of each server of each pipeline, rising."""
        if isinstance(self.layout, msgspec.UnsetType):
            return (self.chunks,) * self.pipelines
        return tuple(pipeline.placement for pipeline in self.layout)

    @property
    def loads(self) -> tuple[int, ...]:
        """How many micro-batches each pipeline brings."""
        if isinstance(self.layout, msgspec.UnsetType):
            return (self.micro_batches,) * self.pipelines
        return tuple(pipeline.micro_batches for pipeline in self.layout)

    @property
    def places(self) -> tuple[int, ...]:
        """Per chunk, the place of its server in a pipeline: the ``stage`` of the servers that hold it."""
        places = [0] * len(self.stages)
        for place, chunks in enumerate(self.chunks):
            for chunk in chunks:
                places[chunk] = place
        return tuple(places)

    def chunk_text(self, chunk: int) -> str:
        """What a chunk is called: a stage, where each server holds one."""
        return f"{'stage' if self.standard else 'chunk'} {chunk}"

    def limit(self, place: int) -> int:
        """Memory for activations on each server at a place of its pipeline."""
        return self.stages[self.chunks[place][0]].limit

    def capacity(self, place: int) -> int:
        """How many micro-batches a server at a place of its pipeline can hold before it must release the first."""
        return self._capacity(self.chunks[place], self.limit(place))

    def _capacity(self, chunks: Sequence[int], limit: int) -> int:
        none = self.needs(chunks, 0)
        return (limit - none) // (self.needs(chunks) - none)

    @property
    def baseline_name(self) -> str:
        """What plans are compared with: 1F1B, which tight memory keeps from running as far ahead as it wants.

        There, a server holds as many chunks as here, but neighbouring ones, and has room for a micro-batch of them.
        """
        if not self.even:
            return BASELINE
        cuts = accumulate(map(len, self.chunks), initial=0)
        runs = [range(*ends) for ends in pairwise(cuts)]
        room = [self._capacity(run, max(self.limit(at), self.needs(run))) for at, run in enumerate(runs)]
        tight = any(each < min(self.depth - at, self.micro_batches) for at, each in enumerate(room))
        return f"{BASELINE} within this memory" if tight else BASELINE

    def require_standard(self, what: str) -> None:
        """Refuse that a server holds several chunks, or that pipelines are not alike.

        Args:
            what: needs one chunk per server.

        Raises:
            JobError: one does.
        """
        self.require_even(what)
        if not self.standard:
            raise JobError(f"placement: {what} takes one chunk per server; leave the placement out")

    def require_even(self, what: str) -> None:
        """Refuse pipelines that are not alike.

        Args:
            what: needs pipelines that are alike.

        Raises:
            JobError: they are not.
        """
        if not self.even:
            raise JobError(
                f"layout: {what} takes pipelines that are alike; give pipelines, stages and micro_batches instead"
            )

    def require_size(self) -> None:
        """Refuse a job that is too large to be planned, before anything is made that grows with it.

        Raises:
            JobError: it has more than ``LARGEST_JOB`` tasks.
        """
        require_few_tasks(self.pipelines, len(self.stages), self.micro_batches)

    def require_held(self, servers: int, instructions: int | None) -> None:
        """Refuse what says that it is for a far larger job than it can be, before anything grows with that.

        Args:
            servers: that it names.
            instructions: that it has for all of them; None where they were not counted.

        Raises:
            JobError: it is.
        """
        self.require_size()
        count = self.depth * self.pipelines if self.even else sum(map(len, self.placements))
        if count > _SLACK * (servers + _PHASES):
            raise JobError(f"the job has {count} servers, and the file names {servers}")
        least = sum(self.loads) * len(self.stages)
        if instructions is not None and least > _SLACK * (instructions + _PHASES):
            raise JobError(
                f"the job has {self.micro_batches} micro-batches, of which each passes {len(self.stages)} stages, and "
                f"the file has {instructions} instructions in all"
            )

    def lag(self, stage: int, other: int) -> int:
        """Latency between two chunks on different servers: that of their boundary for neighbours, 0 within one."""
        return 0 if stage == other else self.latency[min(stage, other)]

    def time_text(self, time: float) -> str:
        """A time of this job's in words, with its unit."""
        return time_text(time, self.time_unit)

    def memory_text(self, amount: float) -> str:
        """An amount of memory of this job's in words, with its unit."""
        return memory_text(amount, self.memory_unit)

    def servers(self) -> list[Server]:
        """Every server, by pipeline and then place."""
        placements = enumerate(self.placements)
        return [Server(pipeline, place) for pipeline, placement in placements for place in range(len(placement))]

    def pipeline_of(self, server: Server) -> int:
        """The pipeline that a server computes in: mostly that of its name."""
        if isinstance(self.layout, msgspec.UnsetType):
            return server.pipeline
        lent = self.layout[server.pipeline].servers[server.stage].pipeline
        return server.pipeline if lent is None else lent

    @property
    def crews(self) -> tuple[tuple[Server, ...], ...]:
        """Per pipeline, the servers that compute in it, by their first chunk."""
        if isinstance(self.layout, msgspec.UnsetType):
            return tuple(tuple(Server(each, place) for place in range(self.depth)) for each in range(self.pipelines))
        return tuple(tuple(Server(*each) for each in crew) for crew in crews(self.layout))

    def dead_servers(self, dead: Iterable[Server]) -> "DeadServers":
        """Some servers of this job as its dead ones.

        Raises:
            JobError: one of them is no server of this job.
        """
        servers = tuple(sorted(set(dead)))
        self.require_servers(servers)
        gone = set(servers)
        if self.even:
            kind = "stage"
            holders = [[Server(pipeline, place) for pipeline in range(self.pipelines)] for place in range(self.depth)]
        else:
            kind = "chunk"
            placements = self.placements
            holders = [[] for _ in self.stages]
            for crew in self.crews:
                for server in crew:
                    for chunk in placements[server.pipeline][server.stage]:
                        holders[chunk].append(server)
        live = tuple(tuple(self.pipeline_of(each) for each in held if each not in gone) for held in holders)
        lost = tuple(
            f"{kind} {number} has no live server ({', '.join(map(str, held))} dead): no peer holds its parameters, "
            "so it must be restored from a snapshot before training can go on"
            for number, held in enumerate(holders)
            if not live[number]
        )
        return DeadServers(servers, live, lost)

    def require_servers(self, servers: Iterable[Server]) -> None:
        """Refuse what is no server of this job.

        Raises:
            JobError: one of them is not.
        """
        lengths = tuple(map(len, self.placements))
        for server in servers:
            known = 0 <= server.pipeline < self.pipelines
            if not (known and 0 <= server.stage < lengths[server.pipeline]):
                last = lengths[-1] - 1
                stages = f"stages 0 to {last}" if self.even else "as many servers in each as its layout says"
                raise JobError(
                    f"server {server}: this job has pipelines 0 to {self.pipelines - 1} "
                    f"and {stages}, so its last server is W{self.pipelines - 1}_{last}"
                )


class DeadServers(Set[Server]):
    """The dead servers of a job: an immutable set, in the order of pipelines and then stages.

    ``Job.dead_servers`` makes it, so that all of them are the job's.

    Args:
        servers: the dead ones, in order, once each.
        live: per stage, the pipelines whose server of it is alive, rising; per chunk, where pipelines are not alike.
        lost: what is to be said of each without a live server.
    """

    __slots__ = ("_members", "_servers", "live", "lost")

    def __init__(self, servers: tuple[Server, ...], live: tuple[tuple[int, ...], ...], lost: tuple[str, ...]) -> None:
        self._servers = servers
        self._members = frozenset(servers)
        self.live = live
        self.lost = lost

    def __contains__(self, server: object) -> bool:
        return server in self._members

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    def __hash__(self) -> int:
        return hash(self._members)

    def __repr__(self) -> str:
        return f"<dead: {', '.join(map(str, self._servers)) or 'none'}>"

    @classmethod
    def _from_iterable(cls, servers: Iterable[Server]) -> frozenset[Server]:  # type: ignore[override]
        """What the operators of sets give: a set of servers that need not be dead."""
        return frozenset(servers)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many servers of each stage are dead."""
        stages = [server.stage for server in self._servers]
        return tuple(stages.count(stage) for stage in range(len(self.live)))

    def require_peers(self) -> None:
        """Refuse that a stage has no live server.

        Raises:
            NoPlanError: one has none.
        """
        for lost in self.lost:
            raise NoPlanError(lost)


def require_few_tasks(pipelines: int, stages: int, micro_batches: int) -> None:
    """Refuse a job that is too large to be planned.

    Args:
        pipelines: that it has.
        stages: of each; the chunks, where servers hold several.
        micro_batches: of each.

    Raises:
        JobError: it has more than ``LARGEST_JOB`` tasks, or a number that no file can have.
    """
    tasks = pipelines * stages * micro_batches * _PHASES
    shape = f"{pipelines} pipelines x {stages} stages x {micro_batches} micro-batches"
    if tasks > LARGEST_JOB:
        raise JobError(
            f"{shape} are {tasks} tasks (F, I and W of each), and a plan has {LARGEST_JOB} at most: more take too much "
            "time and memory; plan fewer pipelines, or fewer micro-batches of a larger size"
        )
    if max(pipelines, stages, micro_batches) > LARGEST_COUNT:
        raise JobError(f"{shape}: a plan has {LARGEST_COUNT} of each at most")


def _at_least(value: int, least: int, field: str, reason: str, most: int = LARGEST) -> None:
    if value < least:
        raise JobError(f"{field} is {_shown(value)}: {reason}; the least is {least}")
    if value > most:
        raise JobError(f"{field} is {_shown(value)}: the largest is {most}; give less, in a coarser unit if it has one")


def _shown(value: int) -> str:
    """A number, of whose many digits only the count is of use."""
    return str(value) if abs(value) < 10**18 else f"{'-' if value < 0 else ''}1e{math.floor(math.log10(abs(value)))}"

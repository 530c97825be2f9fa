"""The fault menu: what can go wrong, where and when, and who makes it happen."""

import enum
import math
from collections.abc import Collection

import msgspec

from recycle.faults.duration import format_duration
from recycle.faults.errors import FaultError
from recycle.faults.pattern import InstructionPattern
from recycle.holding import sole_units, units_text
from recycle.job import Job, Server


class Kind(enum.Enum):
    """What happens.

    ``EXCEPTION``, ``EXIT``, ``KILL`` and ``AGENT_KILL`` end a worker; ``STOP`` hangs it, ``SLOW`` slows it down,
    ``DISCONNECT`` cuts it off from the other workers, ``DISK_FULL`` makes its writes fail, and ``NAN`` spoils its
    gradients. ``STORE_LOSS`` ends the store's process. ``JOIN`` starts a replacement.
    """

    EXCEPTION = "exception"
    EXIT = "exit"
    KILL = "kill"
    STOP = "stop"
    SLOW = "slow"
    DISCONNECT = "disconnect"
    STORE_LOSS = "store-loss"
    DISK_FULL = "disk-full"
    NAN = "nan"
    AGENT_KILL = "agent-kill"
    JOIN = "join"

    @property
    def ends_server(self) -> bool:
        """Whether the server is lost to the run, so that a replacement can join."""
        return self in _ENDS

    @property
    def is_outside_worker(self) -> bool:
        """Whether the worker cannot do it, however it is addressed."""
        return self in _OUTSIDE

    @property
    def can_have_time(self) -> bool:
        """Whether it can be addressed by time: it is a signal or a process, and not something inside an instruction."""
        return self in _BY_TIME


_ENDS = frozenset((Kind.EXCEPTION, Kind.EXIT, Kind.KILL, Kind.STOP, Kind.DISCONNECT, Kind.AGENT_KILL))
_OUTSIDE = frozenset((Kind.AGENT_KILL, Kind.STORE_LOSS, Kind.JOIN))
_BY_TIME = _OUTSIDE | {Kind.KILL, Kind.STOP}
_SEVERAL = frozenset((Kind.KILL, Kind.AGENT_KILL))
_LASTS = frozenset((Kind.STOP, Kind.SLOW, Kind.DISK_FULL))


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong, once.

    Attributes:
        kind: what happens.
        servers: to whom; empty for the store's loss, one for most kinds.
        step: in which iteration, from 0; files and lines count from 1. None if it is addressed by time.
        at: seconds since the first iteration began; None if it is addressed by step.
        instruction: before which instruction of the step, the first that matches; None for the step's first.
        duration: for how many seconds; None for as long as the process lives.
        factor: by how much compute instructions get slower.
        incarnation: which life of the server is meant: 0 is the process that the run started with, 1 its first
            replacement. Only for what the worker does itself.

    Raises:
        FaultError: the fields do not go together.
    """

    kind: Kind
    servers: tuple[Server, ...] = ()
    step: int | None = None
    at: float | None = None
    instruction: InstructionPattern | None = None
    duration: float | None = None
    factor: float | None = None
    incarnation: int = 0

    def __post_init__(self) -> None:
        self._require_servers()
        self._require_address()
        self._require_fields()

    def __str__(self) -> str:
        text = self.kind.value
        if self.servers:
            text += f" of {', '.join(map(str, self.servers))}"
        if self.incarnation:
            text += f" (incarnation {self.incarnation})"
        if self.step is not None:
            text += f" in {self.when}"
        if self.at is not None:
            text += f" at {self.when}"
        if self.instruction is not None:
            text += f" before {self.instruction}"
        if self.factor is not None:
            text += f", {self.factor:g} times"
        if self.duration is not None:
            text += f", for {format_duration(self.duration)}"
        return text

    @property
    def when(self) -> str:
        """Its iteration, counted from 1 as in all lines about a run, or its time."""
        return f"iteration {self.step + 1}" if self.step is not None else format_duration(self.at or 0.0)

    @property
    def is_of_worker(self) -> bool:
        """Whether the worker does it to itself; otherwise the launcher does."""
        return self.at is None and not self.kind.is_outside_worker

    def _require_servers(self) -> None:
        kind = self.kind.value
        if self.kind is Kind.STORE_LOSS:
            if self.servers:
                raise FaultError(f"server is {self.servers[0]}: there is one store, for all; leave the server out")
        elif not self.servers:
            raise FaultError(f"server is missing: say whom kind '{kind}' is for, for example server = \"W1_2\"")
        elif len(self.servers) > 1 and self.kind not in _SEVERAL:
            raise FaultError(
                f"servers has {len(self.servers)} entries: kind '{kind}' is for one; write a fault for each"
            )
        for place, server in enumerate(self.servers):
            if server in self.servers[:place]:
                raise FaultError(f"servers names {server} twice: leave one out")

    def _require_address(self) -> None:
        if self.step is None and self.at is None:
            raise FaultError('iteration is missing: say when, for example iteration = 8, or at = "12s" for a time')
        if self.step is not None and self.at is not None:
            raise FaultError(
                f"iteration is {self.step + 1} and at is {format_duration(self.at)}: leave one of them out"
            )
        if self.at is not None and not self.kind.can_have_time:
            raise FaultError(
                f"at is {format_duration(self.at)}: kind '{self.kind.value}' happens inside an instruction; "
                "give iteration instead"
            )
        if self.step is not None and self.step < 0:
            raise FaultError(f"iteration is {self.step + 1}: iterations count from 1")

    def _require_fields(self) -> None:
        kind = self.kind.value
        if self.instruction is not None and (not self.is_of_worker or self.kind is Kind.NAN):
            why = (
                "it comes before the iteration's REDUCE" if self.kind is Kind.NAN else "only a worker sees instructions"
            )
            raise FaultError(f"instruction is '{self.instruction}', and {why}; leave it out")
        if self.incarnation and not self.is_of_worker:
            raise FaultError(
                f"incarnation is {self.incarnation}: the launcher does this to whoever is alive then; leave it out"
            )
        if self.incarnation < 0:
            raise FaultError(f"incarnation is {self.incarnation}: incarnations count from 0")
        if self.duration is not None and self.kind not in _LASTS:
            raise FaultError(f"duration is {format_duration(self.duration)}: kind '{kind}' has none; leave it out")
        if self.duration is not None and not self.duration > 0:
            raise FaultError(
                f"duration is {format_duration(self.duration)}: give more than 0, or leave it out for ever"
            )
        if self.factor is not None and self.kind is not Kind.SLOW:
            raise FaultError(f"factor is {self.factor:g}: only kind 'slow' has one, and this is '{kind}'; leave it out")
        if self.kind is Kind.SLOW:
            if self.factor is None:
                raise FaultError("factor is missing: say how many times slower, for example factor = 4")
            if not (math.isfinite(self.factor) and self.factor > 1):
                raise FaultError(f"factor is {self.factor:g}: give a number above 1")


class Faults(msgspec.Struct, frozen=True):
    """All faults of a run.

    Attributes:
        entries: in the order of the file they are from.
        at_random: whether they are nobody's wish, so that one which would end the run is left out.
    """

    entries: tuple[Fault, ...] = ()
    at_random: bool = False

    def why_left_out(self, fault: Fault, job: Job, live: Collection[Server]) -> str:
        """Why a fault that is due does not happen; empty where it does.

        What was planned to be back by now may not be: to start a server takes its time.

        Args:
            fault: one of them, of the launcher's.
            job: what is trained.
            live: the servers that train now.
        """
        if not self.at_random:
            return ""
        if fault.kind is Kind.JOIN:
            return "it is alive" if set(fault.servers) <= set(live) else ""
        others = [each for each in live if each not in fault.servers]
        sole = sorted({unit for server in fault.servers for unit in sole_units(job, server, others)})
        return f"no other live server of {units_text(job, sole)} is left" if sole else ""

    def since(self, step: int) -> "Faults":
        """Those that can still happen where a run goes on from a step: an iteration before it is over."""
        left = tuple(fault for fault in self.entries if fault.step is None or fault.step >= step)
        return msgspec.structs.replace(self, entries=left)

    def of_worker(self, server: Server, incarnation: int = 0) -> tuple[Fault, ...]:
        """What a process does to itself, for its ``Injector``: a replacement does not repeat what ended the first."""
        return tuple(
            fault
            for fault in self.entries
            if fault.is_of_worker and server in fault.servers and fault.incarnation == incarnation
        )

    def of_launcher(self) -> tuple[Fault, ...]:
        """What the launcher does: those with a time, the earliest first, and then those with a step, likewise."""
        mine = [fault for fault in self.entries if not fault.is_of_worker]
        return tuple(sorted(mine, key=lambda fault: (fault.at is None, fault.at or fault.step or 0)))

"""How long the members wait for each other."""

import msgspec

from recycle.control.membership.errors import ControlError


class Durations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time-outs of a run, in seconds. No decision is right or wrong because of them: they only say when it is made.

    Attributes:
        beat: between two signs of life of a host, and the least between two of an agent or a worker to it.
        silence: without a sign of life, after which a host that has given one is declared dead with all its servers.
        hang: the same of a worker on a host that lives; where others use the machine, a busy worker is late at times.
        start: until all with whom a run begins must have announced themselves, from the first that does.
        rebuild: that the construction of one process group may take.
        answer: from an alarm until every member that is alive must have halted and reported.
        transfer: after which a silent partner of a transfer is an error.
        replacement: that a stage without a live server is waited for, from a failure on; None for as long as it takes.

    Raises:
        ControlError: one is not above 0, or two of them are in the wrong order.
    """

    beat: float = 0.5
    silence: float = 3.0
    hang: float = 15.0
    start: float = 600.0
    rebuild: float = 2.0
    answer: float = 30.0
    transfer: float = 120.0
    replacement: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ControlError(f"duration {name} is {value:g} s: give a time above 0")
        for name in ("silence", "hang"):
            self._in_order(name, 4 * self.beat, f"four beats of {self.beat:g} s", "one late beat would look like death")
        self._in_order("answer", self.silence, "silence", "a dead host would be overdue before it is noticed")
        self._in_order("answer", self.hang, "hang", "a hung worker would be overdue before it is noticed")
        self._in_order("answer", self.rebuild, "rebuild", "who waits for a process group could not answer in time")
        self._in_order("transfer", self.answer, "answer", "a transfer would fail while its partner may still answer")

    @property
    def agents_beat(self) -> float:
        """Between two signs of life of an agent that does not speak for its host: each wakes a process."""
        return max(self.beat, self.silence / 4)

    @property
    def workers_beat(self) -> float:
        """Between two of a worker, which takes its thread from the one that trains."""
        return max(self.beat, self.hang / 8)

    @property
    def doubt(self) -> float:
        """For how long a silence is borne that may be the network's."""
        return min(self.answer, 10 * self.silence)

    @property
    def missed(self) -> float:
        """Until the others miss a server for certain that is gone."""
        return self.doubt + 4 * self.silence

    @property
    def rare_beat(self) -> float:
        """Between two signs of life of a host in the store, at most, where those who watch it hear it directly."""
        return 8 * self.silence

    @property
    def rare_look(self) -> float:
        """Between two looks of a host at the store, at most, where hosts hear each other directly."""
        return 3 * self.silence

    def _in_order(self, name: str, least: float, other: str, reason: str) -> None:
        value = getattr(self, name)
        if value < least:
            raise ControlError(
                f"duration {name} is {value:g} s and must not be under {other}, {least:g} s: {reason}; "
                f"raise {name} to at least {least:g} s"
            )

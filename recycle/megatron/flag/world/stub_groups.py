"""How one who comes back gets through Megatron's collective initialisation, which all others have long behind them.

Every call is answered at once, as if all members of the group had said what this one says. That is enough to build
model, optimizer and data sets: what the answers are wrong about, such as parameters, comes from a peer afterwards.
"""

from typing import NamedTuple

import torch

from recycle.job import Server
from recycle.megatron.flag.world.reductions import reduction_of
from recycle.megatron.flag.world.server_answers import ServerAnswers
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.torch_calls import Calls, Carrier
from recycle.runtime.net.process_groups import ReplaceableGroup, make_replaceable_groups


class StubAnswers(NamedTuple):
    """Answers the calls of a group whose other members do not take part; a Carrier.

    Attributes:
        size: how many members it has.
    """

    size: int

    def reduce(self, tensor: torch.Tensor, how: object) -> torch.Tensor:
        """See Carrier."""
        return reduction_of(how)(torch.stack(self.gather(tensor)))

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """See Carrier."""
        return [tensor.detach().clone() for _ in range(self.size)]


def make_stub_groups(server: Server, ranks: RankCollectives | None = None) -> list[ReplaceableGroup]:
    """Have torch make groups from now on that connect to nobody; those of at least two ranks appear in this list.

    Args:
        server: which server this is.
        ranks: its own, where it has several; they do take part.

    Raises:
        RunError: this torch makes its groups in another way.
    """

    def answer(group: ReplaceableGroup) -> None:
        size = group.size()
        # It is not said yet who the others are, and the answers do not depend on it.
        answers: Carrier = StubAnswers(size) if ranks is None else ServerAnswers(group, ranks)
        group.hand_over((server,) * size, Calls(answers, group.rank(), size).carry_out)

    return make_replaceable_groups(answer)

"""How one who comes back gets through Megatron's collective initialisation, which all others have long behind them.

Every call is answered at once, as if all members of the group had said what this one says. That is enough to build
model, optimizer and data sets: what the answers are wrong about, such as parameters, comes from a peer afterwards.
"""

import torch

from recycle.job import Server
from recycle.megatron.flag.collectives import reduction_of
from recycle.megatron.flag.torch_calls import hand_over
from recycle.runtime.net.process_groups import ReplaceableGroup, make_replaceable_groups


class Alone:
    """Answers the calls of groups whose other members do not take part; it is Answers."""

    def reduce(self, servers: tuple[Server, ...], tensor: torch.Tensor, how: object) -> torch.Tensor:
        """See Answers."""
        return reduction_of(how)(torch.stack(self.gather(servers, tensor)))

    def gather(self, servers: tuple[Server, ...], tensor: torch.Tensor) -> list[torch.Tensor]:
        """See Answers."""
        return [tensor.detach().clone() for _ in servers]


def make_lonely_groups(server: Server) -> list[ReplaceableGroup]:
    """Have torch make groups from now on that connect to nobody; those of at least two ranks appear in this list.

    Args:
        server: which server this is.

    Raises:
        RunError: this torch makes its groups in another way.
    """
    alone = Alone()
    # It is not said yet who the others are, and the answers do not depend on it.
    return make_replaceable_groups(lambda group: hand_over(group, alone, (server,) * group.size()))

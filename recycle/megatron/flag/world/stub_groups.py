"""How a rank that comes back gets through Megatron's collective initialisation, which all others have long behind them.

Every call is answered at once, as if all members of the group had said what this one says. That is enough to build
model, optimizer and data sets: what the answers are wrong about, such as parameters, comes from a peer afterwards.
"""

from recycle.job import Server
from recycle.megatron.flag.world.server_answers import server_answers
from recycle.megatron.shared.rank_collectives import RankCollectives
from recycle.megatron.shared.torch_calls import Calls, Carrier
from recycle.runtime.net.process_groups import ReplaceableGroup, make_replaceable_groups


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
        same = Carrier.by_gathering(lambda tensor: [tensor.detach().clone() for _ in range(size)])
        answers = same if ranks is None else server_answers(group, ranks)
        group.hand_over((server,) * size, Calls(answers, group.rank(), size).carry_out)

    return make_replaceable_groups(answer)

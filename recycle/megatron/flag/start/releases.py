"""What is replaced in another place in each release of Megatron, or in some releases only; the table says which."""

from functools import wraps
from typing import Any

from recycle.megatron.flag.command.flags import add_flags
from recycle.megatron.shared.patching import replace
from recycle.megatron.shared.release import module_with

PARSER, LENGTHS, NORMS = "parse_args", "consume_seqlen_stats_in_iteration", "MegatronOptimizer.has_grad_norm_group"


def parse_flags() -> None:
    """Have Megatron parse recycle's flags, whether its training code does that or the script before."""
    parser = module_with(PARSER)
    parse = parser.parse_args

    @wraps(parse)
    def parse_args(extra_args_provider: Any = None, *positional: Any, **keywords: Any) -> Any:
        def add(given: Any) -> Any:
            return add_flags(given if extra_args_provider is None else extra_args_provider(given))

        return parse(add, *positional, **keywords)

    replace(parser, PARSER, parse_args)


def leave_out_of_step_calls() -> None:
    """Leave out calls of all ranks to which some would not come, in the releases that make them."""
    training = module_with(LENGTHS)
    if training is not None:
        # Lengths of packed sequences are counted where they are computed: on other servers than Megatron believes, or
        # on none. Without them, the throughput that is printed counts what sequences are filled up with.
        replace(training, LENGTHS, lambda: (None, None))
    optimizers = module_with(NORMS)
    if optimizers is not None:
        # Asked once by each rank: one that comes back would ask alone. Only multi-token prediction has such a group.
        replace(optimizers.MegatronOptimizer, "has_grad_norm_group", lambda *_: False)

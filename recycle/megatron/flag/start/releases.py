"""What is replaced in another place in each release of Megatron, or in some releases only; the table says which."""

from recycle.megatron.shared.patching import replace
from recycle.megatron.shared.release import module_with

LENGTHS, NORMS = "consume_seqlen_stats_in_iteration", "MegatronOptimizer.has_grad_norm_group"


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

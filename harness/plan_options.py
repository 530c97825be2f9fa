"""Options of Megatron that a plan depends on: those that a rule is about, and those that decide what is computed."""

from itertools import chain

from recycle.megatron.flag.command import refusals
from recycle.megatron.flag.command.megatron_options import options_of

WITHOUT_A_RULE = {
    *("--tensor-model-parallel-size", "--expert-model-parallel-size", "--expert-tensor-parallel-size", "--num-layers"),
    *("--num-virtual-stages-per-pipeline-rank", "--pipeline-model-parallel-layout", "--micro-batch-size", "--save"),
    *("--global-batch-size", "--clip-grad", "--hidden-dropout", "--attention-dropout", "--overlap-grad-reduce"),
    *("--sequence-parallel", "--bf16", "--calculate-per-token-loss", "--untie-embeddings-and-output-weights"),
    *("--qk-layernorm", "--recompute-granularity", "--iterations-to-skip", "--high-priority-stream-groups"),
    *("--nccl-communicator-config-path", "--use-mp-args-from-checkpoint-args"),
}


def plan_options() -> set[str]:
    """Their names on the command line."""
    return WITHOUT_A_RULE | {option for name in ruled_settings() for option in options_of(name)[:1]}


def ruled_settings() -> set[str]:
    """The settings that any rule is about, by their names in Megatron."""
    of_any = chain(*(rules for _, rules in refusals.HELD), refusals.UNSPLIT, refusals.READ_ONLY)
    of_some = chain((refusals.UNSPLIT_ENGINE, refusals.UNSPLIT_EXPERTS), refusals.NOT_KEPT, refusals.NOT_OWN)
    rules = chain(of_any, of_some, refusals.EXACT_CHECKPOINTS)
    return {*(name for rule in rules for name in rule.names), *(name for name, _, _ in refusals.AS_ANOTHER)}

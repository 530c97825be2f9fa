"""Options of Megatron that a plan depends on: those that a rule is about, and those that decide what is computed."""

from recycle.megatron.flag.command.option_table import options_of
from recycle.megatron.flag.command.refusals import AS_ANOTHER, ruled_settings

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
    ruled = {*ruled_settings(), *(name for name, _, _ in AS_ANOTHER)}
    return WITHOUT_A_RULE | {option for name in ruled for option in options_of(name)[:1]}

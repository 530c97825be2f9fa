"""The documents' table of runs in which servers were killed has every setting that is accepted and a CPU can have."""

import re
from argparse import ArgumentParser
from pathlib import Path

from harness.flag_runs import SIZE
from harness.paths import ROOT
from harness.plan_options import plan_options
from recycle.control.store.etcd_cluster import VARIABLE
from recycle.megatron.flag.command.command_line import RAMP_UP
from recycle.megatron.flag.command.flags import add_flags
from recycle.megatron.flag.command.megatron_options import LEFT_OUT, megatron_parser
from recycle.megatron.flag.command.on_cpu import settings_for_cpu
from recycle.megatron.flag.command.refusals import refusals

OF_CUDA = {
    "--fp8-format": "its layers are those of Transformer Engine",
    "--fp8-recipe": "the same",
    "--moe-grouped-gemm": "the same",
    "--use-transformer-engine-op-fuser": "the same",
    "--high-priority-stream-groups": "it is about groups of NCCL",
    "--nccl-communicator-config-path": "the same",
    "--pipeline-model-parallel-comm-backend": "the same",
    "--use-nccl-ub": "the same",
    "--use-sharp": "the same",
}
"""Options of which some value is accepted, and that a CPU cannot have."""

REFUSED_ELSEWHERE = {
    "--use-mp-args-from-checkpoint-args": "the doctor cannot read such a job, and any death ends it",
    "--optimizer-cpu-offload": "it takes --use-precision-aware-optimizer",
    "--use-precision-aware-optimizer": "it takes --use-distributed-optimizer, and is refused there",
    "--fp8-param-gather": "it takes --fp8-format, and is refused there",
}
"""Those that no rule refuses where they stand alone."""

OF_HOSTS = {"--recycle-trust-network": "one host has a secret without it"}
"""Those that change nothing on a single host."""

OF_ALL = {
    *("--num-layers", "--micro-batch-size", "--global-batch-size", "--pipeline-model-parallel-size", "--clip-grad"),
    *("--pipeline-schedule", "--recycle-budget"),
}
"""Those that every run has."""

VALUES = {
    "--transformer-impl": ("local",),
    "--dataloader-type": ("cyclic",),
    "--distributed-backend": ("gloo",),
    "--moe-token-dispatcher-type": ("alltoall",),
    "--moe-router-load-balancing-type": ("sinkhorn",),
    "--non-persistent-ckpt-type": ("global",),
    "--ckpt-format": ("torch",),
    "--fp8-recipe": ("tensorwise",),
    "--optimizer": ("sgd",),
    RAMP_UP: ("2", "2", "9"),
}
"""What is accepted where that is not any number."""

DOCUMENT = (ROOT / "docs" / "internals" / "megatron.md").read_text()
ROWS = re.findall(
    r"^\| (.*) \| `(test_\w+)` \| .* \|$",
    DOCUMENT.partition("Settings with which servers were killed")[2].partition("\n## ")[0],
    re.MULTILINE,
)
"""Settings and tests."""


def accepted():
    """The options that a plan depends on and that are not refused with every value but Megatron's default."""
    parser = megatron_parser()
    for action in parser._actions:
        option = action.option_strings[0]
        if option not in plan_options():
            continue
        values = () if action.nargs == 0 else VALUES.get(option, ("2",))
        settings = vars(parser.parse_args([option, *values]))
        if not any(found.name == action.dest for found in refusals(settings.get)):
            yield option


def named(text):
    """The options in a text."""
    return set(re.findall(r"--[a-z0-9][\w-]*", text))


def test_every_setting_that_is_accepted_and_that_a_cpu_can_have_is_in_a_run_with_a_kill():
    ours = {word for action in add_flags(ArgumentParser(add_help=False))._actions for word in action.option_strings}
    wanted = {*accepted(), *LEFT_OUT, *ours} - {*OF_CUDA, *REFUSED_ELSEWHERE, *OF_HOSTS, *OF_ALL, *settings_for_cpu([])}
    assert sorted(wanted - {option for settings, _ in ROWS for option in named(settings)}) == []


def test_the_runs_have_the_settings_that_the_table_says():
    texts = [each.read_text() for each in Path(__file__).parent.glob("test_*.py")]
    assert len(ROWS) > 15
    for settings, test in ROWS:
        (text,) = (each for each in texts if f"def {test}(" in each)
        # What says the same in the environment.
        typed = named(text.replace(VARIABLE, "--recycle-store") + SIZE)
        assert sorted(named(settings) - typed) == [], test

"""The options that the doctor reads are Megatron's own, with Megatron's defaults."""

import argparse

import pytest

from harness.flag_runs import needs_training
from recycle.megatron.flag.command_line import megatron_parser
from recycle.megatron.flag.option_table import known_options
from recycle.megatron.flag.refusals import OVER_NCCL, RULES, UNSPLIT

# Settings of megatron.core that Megatron's command line cannot set.
OF_CORE_ALONE = {
    "num_microbatches_with_partial_activation_checkpoints",
    "variable_seq_lengths",
}
# Not every release has such an option.
NEWER = {"optimizer_cuda_graph", "step_batch_size_schedule"}


@pytest.fixture
def theirs():
    from recycle.megatron.flag.cpu_training import stand_in_for_triton

    stand_in_for_triton()
    from megatron.training.arguments import add_megatron_arguments

    return {action.dest: action for action in add_megatron_arguments(argparse.ArgumentParser())._actions}


def ours():
    return {action.dest: action for action in megatron_parser()._actions}


@needs_training
def test_every_option_is_megatrons_with_its_default(theirs):
    for name, action in ours().items():
        if name in NEWER and name not in theirs:
            continue
        assert action.option_strings[0] in theirs[name].option_strings
        assert action.default == theirs[name].default
        assert type(action) is type(theirs[name])
        assert action.nargs == theirs[name].nargs


@needs_training
def test_the_table_has_every_option_of_this_release(theirs):
    import megatron.core

    release = megatron.core.__version__.partition("+")[0]
    known = {name for name, option in known_options().items() if release in option.releases}
    names = {name for action in theirs.values() for name in action.option_strings if name.startswith("--")}
    assert known == names - {"--help"}


@needs_training
def test_every_rule_is_about_a_setting_that_megatron_has_and_the_doctor_reads(theirs):
    names = {name for rule in (*RULES, *OVER_NCCL, *UNSPLIT) for name in rule.names}
    assert names - OF_CORE_ALONE - NEWER <= set(theirs)
    assert names - OF_CORE_ALONE <= set(ours())

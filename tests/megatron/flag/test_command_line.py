"""The options that the doctor reads are Megatron's own, with Megatron's defaults."""

import argparse
from enum import Enum

import pytest

from harness.flag_runs import needs_training
from recycle.megatron.flag.command.command_line import RAMP_UP
from recycle.megatron.flag.command.megatron_options import known_options, megatron_parser
from recycle.megatron.flag.command.refusals import OVER_NCCL, RULES, UNSPLIT

# Settings of megatron.core that Megatron's command line cannot set.
OF_CORE_ALONE = {
    "num_microbatches_with_partial_activation_checkpoints",
    "variable_seq_lengths",
    "use_layer_wise_distributed_optimizer",
}


DEFAULTS_OF_ANOTHER_RELEASE = {
    *("moe_deepep_num_sms", "inference_grouped_gemm_backend", "data_parallel_sharding_strategy"),
    *("inference_dynamic_batching_prefix_caching_coordinator_policy", "enable_msc", "cuda_graph_scope"),
    *("tokenizer_metadata", "tokenizer_special_tokens"),
}
"""The table has those, and names, of the newest."""


def of_other_releases():
    """Settings that the doctor reads and that this release does not know."""
    import megatron.core

    release = megatron.core.__version__.partition("+")[0]
    return {each.setting for each in known_options().values() if release not in each.releases}


@pytest.fixture
def actions():
    from megatron.training.arguments import add_megatron_arguments

    return add_megatron_arguments(argparse.ArgumentParser())._actions


@pytest.fixture
def theirs(actions):
    return {action.dest: action for action in actions}


def ours():
    return {action.dest: action for action in megatron_parser()._actions}


@needs_training
def test_every_option_is_megatrons_with_its_default(actions):
    theirs = {name: action for action in actions for name in action.option_strings}
    compared = 0
    for action in megatron_parser()._actions:
        (name,) = action.option_strings
        if name not in theirs or theirs[name].dest in DEFAULTS_OF_ANOTHER_RELEASE or action.dest in of_other_releases():
            continue
        compared += 1
        default = theirs[name].default
        assert action.default == (default.name if isinstance(default, Enum) else default), name
        assert (action.dest, action.nargs) == (theirs[name].dest, theirs[name].nargs), name
        if theirs[name].type in (int, float):
            assert action.type is theirs[name].type, name
    assert compared > 700


@needs_training
def test_the_table_has_every_option_of_this_release(actions):
    import megatron.core

    release = megatron.core.__version__.partition("+")[0]
    known = {name for name, option in known_options().items() if release in option.releases}
    names = {name for action in actions for name in action.option_strings if name.startswith("--")}
    # Newer releases parse it and do not heed it.
    assert known == names - {"--help"} - ({RAMP_UP} - known)


@needs_training
def test_every_rule_is_about_a_setting_that_megatron_has_and_the_doctor_reads(theirs):
    names = {name for rule in (*RULES, *OVER_NCCL, *UNSPLIT) for name in rule.names}
    assert names - OF_CORE_ALONE - of_other_releases() <= set(theirs)
    assert names - OF_CORE_ALONE <= set(ours())

"""The options that the doctor reads are Megatron's own, with Megatron's defaults."""

import argparse

import pytest

from harness.flag_runs import needs_training
from recycle.megatron.flag.command.command_line import RAMP_UP, megatron_parser
from recycle.megatron.flag.command.option_table import known_options
from recycle.megatron.flag.command.refusals import OVER_NCCL, RULES, UNSPLIT
from recycle.megatron.flag.command.sizes import add_sizes

# Settings of megatron.core that Megatron's command line cannot set.
OF_CORE_ALONE = {
    "num_microbatches_with_partial_activation_checkpoints",
    "variable_seq_lengths",
    "use_layer_wise_distributed_optimizer",
}


def of_other_releases():
    """Settings that the doctor reads and that this release does not know."""
    import megatron.core

    release = megatron.core.__version__.partition("+")[0]
    options = {name: known_options()[action.option_strings[0]] for name, action in ours().items()}
    return {name for name, option in options.items() if release not in option.releases}


@pytest.fixture
def actions():
    from megatron.training.arguments import add_megatron_arguments

    return add_megatron_arguments(argparse.ArgumentParser())._actions


@pytest.fixture
def theirs(actions):
    return {action.dest: action for action in actions}


def ours():
    return {action.dest: action for action in add_sizes(megatron_parser())._actions}


@needs_training
def test_every_option_is_megatrons_with_its_default(theirs):
    for name, action in ours().items():
        if name in of_other_releases():
            continue
        assert action.option_strings[0] in theirs[name].option_strings
        assert action.default == theirs[name].default
        assert type(action) is type(theirs[name])
        assert action.nargs == theirs[name].nargs


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

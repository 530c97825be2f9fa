"""What is left out of a command line, and what Megatron needs it for."""

import ast
import inspect
import textwrap

import pytest

from harness.flag_runs import needs_training
from recycle.errors import UserError
from recycle.megatron.flag.command.megatron_options import LEFT_OUT, WITH_VALUE, leave_out

NAMES = {option[2:].replace("-", "_") for option in LEFT_OUT}


def named(test):
    """The settings that have to be on for a condition."""
    if isinstance(test, ast.UnaryOp):
        return set()
    if isinstance(test, ast.Attribute):
        return {test.attr}
    return {name for each in ast.iter_child_nodes(test) for name in named(each)}


def required(source):
    """Pairs of settings: where the first ones are on, Megatron requires one of the others."""

    def search(node, where):
        if isinstance(node, ast.Assert):
            yield where, named(node.test)
        for each in ast.iter_child_nodes(node):
            inside = isinstance(node, ast.If) and each in node.body
            yield from search(each, where | named(node.test) if inside else where)

    yield from search(ast.parse(textwrap.dedent(source)), frozenset())


@needs_training
def test_what_needs_an_option_that_is_left_out_is_left_out_with_it():
    from megatron.core.transformer import TransformerConfig
    from megatron.training.arguments import validate_args

    found = [
        each
        for function in (validate_args, TransformerConfig.__post_init__)
        for each in required(inspect.getsource(function))
        if each[0] and each[1] & NAMES
    ]
    assert ({"delay_wgrad_compute"}, {"overlap_moe_expert_parallel_comm"}) in found
    assert [(where, needed) for where, needed in found if not where & NAMES] == []


def test_nothing_else_is_left_out():
    words = [word for option in LEFT_OUT for word in (option, *(["2"] if option in WITH_VALUE else []))]
    assert leave_out(["a.py", *words, "--lr", "2"]) == (["a.py", "--lr", "2"], list(LEFT_OUT))


@pytest.mark.parametrize("option", WITH_VALUE)
@pytest.mark.parametrize("line", ["--bf16 {}", "--lr 2 {} --bf16", "--lr 2 {} --async-save"])
def test_an_option_that_lacks_its_value_takes_no_other_along(option, line):
    with pytest.raises(UserError, match=f"^{option}: expected one argument$"):
        leave_out(line.format(option).split())


@pytest.mark.parametrize("option", WITH_VALUE)
@pytest.mark.parametrize("given", ["{} 2", "{}=2", "{} -2"])
def test_the_value_of_an_option_is_left_out_with_it(option, given):
    words = f"--lr -1e-2 {given.format(option)} --data-path 1 text --bf16"
    assert leave_out(words.split()) == (["--lr", "-1e-2", "--data-path", "1", "text", "--bf16"], [option])

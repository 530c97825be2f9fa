"""A server that comes back makes the groups of parameters that the others have, some of which are other stages'."""

from types import SimpleNamespace

import pytest
from megatron.core import optimizer

from recycle.megatron.flag.run.notes import Notes
from recycle.megatron.flag.run.restarted_rank import RestartedRank

GROUPS = "_get_param_groups"
PLAIN = {"wd_mult": 1.0, "max_lr": 3e-3, "is_expert_parallel": False}
KINDS = {"matrices": PLAIN, "biases": PLAIN | {"wd_mult": 0.0}, "experts": PLAIN | {"is_expert_parallel": True}}
ROWS = PLAIN | {"max_lr": 1e-3, "betas": (0.9, 0.95), "min_lr": None}


class Board:
    """The notes of a run."""

    def __init__(self):
        self.notes = {}

    def tell(self, name, content):
        self.notes[name] = content

    def read(self, name, timeout):
        return self.notes[name]


@pytest.fixture
def make(monkeypatch):
    """Gives what the groups of some calls are on a rank."""
    board = Board()

    def make(rank, alone, *calls):
        answers = iter(calls)
        monkeypatch.setattr(optimizer, GROUPS, lambda *_: next(answers))
        monkeypatch.delattr(optimizer, "muon", raising=False)
        training = SimpleNamespace(setup_model_and_optimizer=None, training_log=None, train=None)
        code = SimpleNamespace(log=lambda log: log)
        notes = Notes(board, print, returns=alone)
        arguments = SimpleNamespace(rank=rank)
        RestartedRank(arguments, code, notes, alone=alone, arrives=alone).install(training, None)
        return [getattr(optimizer, GROUPS)("model", "config", "overrides") for _ in calls]

    return make


@pytest.mark.parametrize("rank", [0, 3])
def test_a_server_that_comes_back_has_the_groups_of_all_in_their_order(make, rank):
    first = [{"params": ["a", "b"], **ROWS}, {"params": [], **PLAIN}, {"params": ["c"], **KINDS["experts"]}]
    second = [{"params": ["d"], **KINDS["biases"]}]
    assert make(0, False, first, second) == [first, second]
    own = [{"params": ["e"], **KINDS["experts"]}, {"params": ["f"], **PLAIN}]
    (groups, others) = make(rank, True, own, [])
    assert groups == [{"params": [], **ROWS}, {"params": ["f"], **PLAIN}, {"params": ["e"], **KINDS["experts"]}]
    assert others == [{"params": [], **KINDS["biases"]}]
    # The training code changes them.
    assert groups[1] is own[1]


def test_groups_with_the_same_settings_stay_apart(make):
    made = [{"params": ["a"], **PLAIN}, {"params": ["b"], **PLAIN}]
    make(0, False, made)
    (groups,) = make(1, True, [{"params": ["c"], **PLAIN}, {"params": ["d"], **PLAIN}])
    assert [group["params"] for group in groups] == [["c"], ["d"]]

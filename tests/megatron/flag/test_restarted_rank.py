"""A server that comes back sets up without the checkpoint that the run began with."""

from types import SimpleNamespace

import pytest
from megatron.core import optimizer

from recycle.megatron.flag.run.restarted_rank import RestartedRank

FROM_A_CHECKPOINT = {"load": "saves", "pretrained_checkpoint": "dense", "moe_use_upcycling": True}


@pytest.mark.parametrize("arrives", [True, False])
def test_only_who_begins_with_the_run_begins_with_its_checkpoint(arrives, monkeypatch):
    """It would load what is older than what the others have, or make and save a model of experts by itself."""
    # They are replaced as well, and put back after the test.
    monkeypatch.setattr(optimizer, "_get_param_groups", lambda *_: [])
    monkeypatch.delattr(optimizer, "muon", raising=False)
    given = {"rank": 3, **FROM_A_CHECKPOINT}
    arguments, notes = SimpleNamespace(**given), SimpleNamespace(note=None)

    def set_up():
        at_set_up.update(vars(arguments))
        return "model", "optimizer", "scheduler"

    at_set_up = {}
    code = SimpleNamespace(log=lambda training_log: training_log)
    training = SimpleNamespace(setup_model_and_optimizer=set_up, training_log=None, train=lambda: None)
    RestartedRank(arguments, code, notes, alone=arrives, arrives=arrives).install(training, None)
    assert training.setup_model_and_optimizer() == ("model", "optimizer", "scheduler")
    assert (code.optimizer, code.scheduler) == ("optimizer", "scheduler")
    assert at_set_up == given | (dict.fromkeys(FROM_A_CHECKPOINT) if arrives else {})
    assert vars(arguments) == given

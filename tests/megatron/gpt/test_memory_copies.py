import msgspec
import pytest

from harness.examples import QUICK, paper_job
from recycle.control.membership.participant import participants_of
from recycle.control.membership.view import View
from recycle.megatron.gpt.memory_copies import SLACK, keeper_setting, version_bytes
from recycle.megatron.gpt.model import ModelOptions
from recycle.megatron.gpt.run_settings import Run
from recycle.plan.mode import Mode
from recycle.planner.make import make_plan
from recycle.runtime.errors import RunError
from recycle.runtime.launch.meet.greetings import Hello, KeeperOffer
from recycle.runtime.launch.meet.keepers import KeeperSlot
from recycle.state.errors import StateError
from recycle.state.redundancy import Redundancy

GPT_2 = ModelOptions(12, 768, 12, 1024, vocabulary=50257, tied=True)
PLENTY = 1 << 40


def test_a_version_has_parameters_and_two_moments():
    # The 124 million of GPT-2, whose number is known; cut into stages, the last has a copy of the embedding.
    parameters = 124_439_808
    whole = version_bytes(GPT_2, 4, range(4))
    assert version_bytes(GPT_2, 1, [0]) == pytest.approx(12 * parameters + SLACK, abs=12 * 200)
    assert whole - version_bytes(GPT_2, 1, [0]) == 12 * 50257 * 768 + 3 * SLACK
    assert sum(version_bytes(GPT_2, 4, [stage]) for stage in range(4)) == pytest.approx(whole, abs=4 * 12 * 200)


def test_ranks_split_what_is_large_and_each_has_the_rest():
    alone, split = (version_bytes(GPT_2, 4, range(4), ranks) for ranks in (1, 4))
    # Norms and the biases behind them, and positions, are with each rank; so is room for what is small.
    more = 3 * 12 * (12 * 6 * 768 + 1024 * 768 + 2 * 768)
    assert split - alone == pytest.approx(more + 3 * 4 * SLACK, abs=3 * 13 * 200)


def described(folder, copies, hosts, memory=PLENTY, every=0):
    """A run of 3 x 4 servers, of which each host has as many, one behind the other; its setting, and who is where."""
    run = Run(make_plan(paper_job(), (), Mode(), QUICK), ModelOptions(), 2, folder, redundancy=Redundancy(1, copies))
    run = msgspec.structs.replace(run, checkpoint_every=every)
    everybody = participants_of(View.of(run.plan).members, 1)
    hellos = [
        Hello(f"host{host}", "", f"10.0.0.{host}", {}, KeeperOffer(2000 + place, memory))
        for place, host in ((place, place * hosts // len(everybody)) for place in range(len(everybody)))
    ]
    return keeper_setting(run, KeeperSlot("", None, resumes=False)), everybody, hellos


def test_each_hosts_first_process_has_its_keeper_and_copies_are_on_other_hosts(tmp_path):
    setting, everybody, hellos = described(tmp_path, 2, 3)
    directory = setting.direct(everybody, hellos)
    assert [(each.host, each.port) for each in directory.homes] == [("host0", 2000), ("host1", 2004), ("host2", 2008)]
    assert {name: directory.homes[place].host for name, place in directory.on.items()} == {
        str(each.member.server): hello.host for each, hello in zip(everybody, hellos, strict=True)
    }
    for each in everybody:
        own, other = directory.keepers_of(each.member.server)
        assert own == directory.homes[directory.on[str(each.member.server)]]
        assert own != other
    # A pipeline on each host: every stage is everywhere.
    assert directory.survived == 2
    assert "13." in (said := setting.describe(directory)) or "MiB" in said


def test_memory_is_asked_for_on_every_host_before_a_run_starts(tmp_path):
    setting, everybody, hellos = described(tmp_path, 1, 2)
    needed = setting.limit(setting.direct(everybody, hellos), "10.0.0.0")
    assert needed == 4 * version_bytes(ModelOptions(), 4, range(4))
    setting.direct(*described(tmp_path, 1, 2, memory=needed)[1:])
    with pytest.raises(RunError, match=r"what host0 keeps takes .* MiB, and it has .* MiB left"):
        setting.direct(*described(tmp_path, 1, 2, memory=needed - 1)[1:])
    # A version waits until it is on disk, and who writes puts a stage together.
    setting, everybody, hellos = described(tmp_path, 1, 2, every=3)
    more = setting.limit(setting.direct(everybody, hellos), "10.0.0.0")
    assert more == 5 * version_bytes(ModelOptions(), 4, range(4))
    more += max(version_bytes(ModelOptions(), 4, [stage]) for stage in range(4))
    setting.direct(*described(tmp_path, 1, 2, memory=more)[1:])
    with pytest.raises(RunError, match="what host0 keeps takes"):
        setting.direct(*described(tmp_path, 1, 2, memory=more - 1)[1:])
    with pytest.raises(StateError, match="copies=2: it takes 2 hosts, and this run has 1"):
        described(tmp_path, 2, 1)[0].direct(*described(tmp_path, 2, 1)[1:])


@pytest.mark.parametrize("every", [0, 3])
def test_a_keeper_that_a_later_start_finds_can_write_whatever_the_first_one_asked_for(tmp_path, every):
    assert described(tmp_path, 1, 2, every=every)[0].within == tmp_path / "checkpoints"

"""How a process was started with others, as its environment tells it."""

import pytest

from recycle.errors import UserError
from recycle.runtime.launch.meet.start import (
    Start,
    choose_address,
    find_start,
    first_of,
    refuse_elastic,
    variables_of_task,
)

BY_HAND = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "first", "MASTER_PORT": "29500"}
TORCHRUN = {
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "none",
}
TASK = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NODEID": "1", "SLURM_JOB_ID": "24007"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        (BY_HAND, Start(1, 4, "", "first", 29500)),
        (BY_HAND | TORCHRUN, Start(1, 4, "1", "first", 29500, True, "0", "none", 2)),
        (TASK | {"SLURM_STEP_NODELIST": "a[07-09],b"}, Start(2, 4, "1", "a07", 20007, by_slurm=True)),
        (TASK | {"SLURM_JOB_NODELIST": "b,c"}, Start(2, 4, "1", "b", 20007, by_slurm=True)),
        (TASK | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}, Start(2, 4, "1", "10.0.0.1", 4000, by_slurm=True)),
        # Torchrun, started by srun: a task is not a rank.
        (TASK | BY_HAND | TORCHRUN, Start(1, 4, "1", "first", 29500, True, "0", "none", 2)),
        # A batch script, and a run of one command within it.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "a"}, None),
        (TASK | {"SLURM_STEP_NUM_TASKS": "1"}, None),
    ],
)
def test_each_way_to_start_processes_is_known(environment, expected):
    assert find_start(environment) == expected


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (BY_HAND | {"RANK": "first"}, "RANK is 'first', and must be a number"),
        (BY_HAND | {"RANK": "-1"}, "RANK is '-1', and must be a number"),
        (BY_HAND | {"RANK": "4"}, "RANK is 4, and must be less than WORLD_SIZE, 4: set both"),
        (BY_HAND | {"RANK": "0", "WORLD_SIZE": "0"}, "RANK is 0, and must be less than WORLD_SIZE, 0: set both"),
        (TASK | {"SLURM_PROCID": "4"}, "SLURM_PROCID is 4, and must be less than SLURM_STEP_NUM_TASKS, 4: set both"),
        (BY_HAND | {"MASTER_PORT": "-1"}, "MASTER_PORT is '-1', and must be a number"),
        (BY_HAND | TORCHRUN | {"TORCHELASTIC_MAX_RESTARTS": "3"}, "torchrun --max-restarts 3: it would kill all"),
        (TASK, "SLURM_JOB_NODELIST and MASTER_ADDR are not set"),
    ],
)
def test_what_cannot_be_a_start_is_one_line(environment, reason):
    with pytest.raises(UserError) as caught:
        find_start(environment)
    assert str(caught.value).startswith(reason)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("environment", [{}, BY_HAND, TASK | BY_HAND | TORCHRUN, TASK | {"SLURM_STEP_NUM_TASKS": "1"}])
def test_what_torch_was_told_stays_as_it_is(environment):
    assert variables_of_task(environment) == {}


def test_torch_is_told_which_of_slurms_tasks_it_is_in():
    task = TASK | {"SLURM_STEP_NODELIST": "a[07-09],b", "SLURM_LOCALID": "1"}
    place = {"RANK": "2", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    found = variables_of_task(task)
    assert {name: found[name] for name in place} == place
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("a07", "20007")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node7", "node7"), ("a,b", "a"), ("n[1-3,9],x", "n1"), ("n[010,12]-ib,x", "n010-ib"), ("", "")],
)
def test_the_first_node_of_a_list(nodes, first):
    assert first_of(nodes) == first


@pytest.mark.parametrize("nodes", ["--nnodes 2:3", "--nnodes=1:8", "--nnodes=2 --rdzv_backend=c10d"])
def test_a_torchrun_that_takes_others_in_is_refused(nodes):
    words = ["python", "-m", "torch.distributed.run", *nodes.split(), "--rdzv-backend", "c10d", "x.py"]
    with pytest.raises(UserError, match="it would kill all servers whenever a host joins"):
        refuse_elastic(words)
    with pytest.raises(UserError, match="give one number"):
        refuse_elastic(["/usr/bin/python", "/usr/bin/torchrun", *nodes.split(), "x.py"])


@pytest.mark.parametrize(
    "words",
    [
        *("torchrun --nnodes 3 x.py", "torchrun --nnodes 3:3 x.py", "torchrun --nnodes 3 --rdzv-backend static x.py"),
        *("torchrun --standalone x.py", "torchrun --rdzv-backend c10d x.py", "bash --nnodes 2:3", ""),
    ],
)
def test_any_other_parent_is_accepted(words):
    refuse_elastic(words.split())


def test_an_address_is_that_of_an_interface_or_the_one_towards_the_first_host():
    assert choose_address(None, None) == "127.0.0.1"
    assert choose_address("lo", None) == "127.0.0.1"
    assert choose_address("127.0.0.5", None) == "127.0.0.5"
    assert choose_address("localhost", None) == "127.0.0.1"
    assert choose_address(None, Start(1, 2, "", "127.0.0.1", 29500)) == "127.0.0.1"


@pytest.mark.parametrize("given", ["203.0.113.7", "eth99", "0.0.0.0", ""])
def test_an_address_that_this_machine_does_not_have_is_refused(given):
    with pytest.raises(UserError, match=f"address {given} cannot be used: .*one of its interfaces: .*lo"):
        choose_address(given, None)


def test_a_first_host_that_nobody_knows_is_refused():
    with pytest.raises(UserError, match=r"MASTER_ADDR nowhere\.invalid: "):
        choose_address(None, Start(1, 2, "", "nowhere.invalid", 29500))

import pytest

from harness.examples import paper_job
from recycle.errors import JobError, NoPlanError
from recycle.job import Job, Server, Stage, require_few_tasks
from recycle.plan.instruction import Instruction

GOOD = {
    "forward": 1,
    "input_gradient": 1,
    "weight_gradient": 1,
    "optimizer": 3,
    "reduction": 0,
    "held": 2,
    "released_at_input_gradient": 1,
    "limit": 4,
}


def job(latency=(0,), pipelines=2, micro_batches=2, **changes):
    return Job(pipelines, micro_batches, (Stage(**GOOD), Stage(**{**GOOD, **changes})), latency)


def test_server_names_are_the_papers():
    assert str(Server(1, 2)) == "W1_2"
    assert Server.parse("W1_2") == Server(1, 2)


@pytest.mark.parametrize("text", ["", "W1", "w1_2", "W-1_2", "W1_2 ", "W1_2x", "1_2"])
def test_other_names_are_refused(text):
    with pytest.raises(JobError, match="written W<pipeline>_<stage>"):
        Server.parse(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"forward": -1}, "forward of stage 1 is -1.*negative"),
        ({"weight_gradient": -7}, "weight_gradient of stage 1 is -7"),
        ({"optimizer": 10**13}, "optimizer of stage 1 is 10000000000000.*coarser unit"),
        ({"held": 0}, "held of stage 1 is 0"),
        ({"held": 10**18 + 1, "limit": 10**19}, "held of stage 1 is 1e18: the largest is 1000000000000000000"),
        ({"state": 10**19}, "state of stage 1 is 1e19.*coarser unit"),
        ({"released_at_input_gradient": 3}, "released_at_input_gradient of stage 1 is 3.*between 0 and 2"),
        ({"limit": 1}, "limit of stage 1 is 1.*least limit that works is 2"),
        ({"taken_at_input_gradient": -1}, "taken_at_input_gradient of stage 1 is -1.*less than nothing"),
        ({"taken_at_input_gradient": 7}, "limit of stage 1 is .*least limit that works is 9"),
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"pipelines": 0}, "pipelines is 0"),
        ({"latency": ()}, "latency: 0 values for 2 stages.*1 in all"),
        ({"latency": (-1,)}, "latency behind stage 0 is -1"),
    ],
)
def test_impossible_jobs_are_refused_with_field_value_and_remedy(changes, message):
    with pytest.raises(JobError, match=message):
        job(**changes)


@pytest.mark.parametrize("shape", [(1, 1, 1_000_001), (1_000_001, 1, 1), (1, 1_000_001, 1)])
def test_a_plan_has_no_number_that_its_file_cannot_have(shape):
    assert str(Instruction.parse("999999F999999.999999")) == "999999F999999.999999"
    require_few_tasks(*(min(each, 1_000_000) for each in shape))
    with pytest.raises(JobError, match=r"1000001 .*: a plan has 1000000 of each at most"):
        require_few_tasks(*shape)


def test_a_stage_knows_its_work_update_and_capacity():
    stage = Stage(**{**GOOD, "reduction": 2, "limit": 5})
    assert (stage.work, stage.update, stage.capacity) == (3, 5, 2)
    assert Stage(**{**GOOD, "limit": 7, "taken_at_input_gradient": 2}).capacity == 2


def test_latency_is_that_of_the_boundary_both_ways():
    line = job(latency=(7,))
    assert line.lag(0, 1) == line.lag(1, 0) == 7
    assert line.lag(1, 1) == 0


def test_dead_servers_come_in_order_and_once():
    dead = paper_job().dead_servers([Server(1, 2), Server(0, 3), Server(1, 2)])
    assert tuple(dead) == (Server(0, 3), Server(1, 2))
    assert len(dead) == 2
    assert Server(1, 2) in dead
    assert Server(1, 1) not in dead
    assert dead == paper_job().dead_servers(dead) == {Server(1, 2), Server(0, 3)}


@pytest.mark.parametrize("server", [Server(9, 9), Server(3, 0), Server(0, 4)])
def test_unknown_servers_are_refused(server):
    with pytest.raises(JobError, match=f"server {server}: .*last server is W2_3"):
        paper_job().dead_servers([server])


def test_live_pipelines_are_those_without_a_dead_server_at_the_stage():
    dead = paper_job().dead_servers([Server(1, 2), Server(0, 1)])
    assert dead.live == ((0, 1, 2), (1, 2), (0, 2), (0, 1, 2))
    assert dead.counts == (0, 1, 1, 0)


def test_a_stage_without_live_server_is_refused():
    paper_job().dead_servers([Server(0, 2), Server(1, 2), Server(2, 1)]).require_peers()
    dead = paper_job().dead_servers(Server(pipeline, 2) for pipeline in range(3))
    with pytest.raises(NoPlanError, match=r"stage 2 has no live server \(W0_2, W1_2, W2_2 dead\).*snapshot"):
        dead.require_peers()

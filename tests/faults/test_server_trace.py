import pytest

from harness.examples import paper_job
from recycle.faults.errors import FaultError
from recycle.faults.file import load_faults
from recycle.faults.outages import PEERS, STAGES, load_outages, servers_of_nodes
from recycle.job import Server
from recycle.megatron.flag.command.planning import Shape
from recycle.megatron.flag.command.server_ranks import hosts_of, servers_of

JOB = paper_job()
SMALL = paper_job(pipelines=2, stages=2)


@pytest.fixture
def load(tmp_path):
    def call(text, job=JOB, name="trace.csv", **options):
        path = tmp_path / name
        path.write_text(text)
        return [str(fault) for fault in load_faults(path, job, 50, **options).entries]

    return call


def test_a_trace_of_servers(load):
    text = "time,change,server\n0.5,remove,W1_2\n12s , remove , W0_0,W0_1\n\n1m,add,W1_2\n1m,add,W0_0,W0_1\n"
    assert load(text) == [
        "kill of W1_2 at 0.5s",
        "kill of W0_0, W0_1 at 12s",
        "join of W1_2 at 60s",
        "join of W0_0 at 60s",
        "join of W0_1 at 60s",
    ]


def test_servers_that_are_dead_from_the_start(load):
    assert load("1,add,W1_2\n2,remove,W1_2\n", dead=[Server(1, 2)]) == ["join of W1_2 at 1s", "kill of W1_2 at 2s"]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 12])
def test_nodes_hold_what_the_doctor_says_of_hosts(size, mapped):
    servers = servers_of(Shape(JOB.pipelines, JOB.depth, JOB.micro_batches), mapped)
    held = servers_of_nodes(JOB, {STAGES if mapped else PEERS: size})
    assert list(map(frozenset, held)) == hosts_of(servers, 4, 4 * size)


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("# servers-per-node 2", "# servers-per-node: write one line # stages-per-node N or # peers-per-node N"),
        ("# stages-per-node 2\n# peers-per-node 2", "# stages-per-node and # peers-per-node: write one line"),
        ("# peers-per-node 0", "# peers-per-node 0: give a whole number from 1 to 4, the job's servers"),
        ("# peers-per-node 1.5", "# peers-per-node 1.5: give a whole number"),
        ("# stages-per-node 5", "# stages-per-node 5: give a whole number"),
    ],
)
def test_what_is_said_of_nodes_in_vain_is_refused(tmp_path, comment, message):
    (tmp_path / "trace.csv").write_text(f"{comment}\nnode,start_days,end_days\na,1,2\n")
    with pytest.raises(FaultError, match=message):
        load_outages(str(tmp_path / "trace.csv"), SMALL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty: give a trace with at least one failure"),
        ("time,change,server\n", "it is empty"),
        ("1,remove\n", "line 1: 1, remove: write time,remove,W1_2 or time,add,W1_2"),
        ("1,remove,W1_2\n2,delete,W1_2\n", "line 2: 2, delete, W1_2: write time,remove,W1_2 or"),
        ("time,change,colour\n1,remove,W1_2\n", "line 1: time, change, colour: write time,remove,W1_2 or"),
        ("1,remove,W1_2\n2,remove,W1-3\n", "line 2: server 'W1-3': a server is written"),
        ("1,remove,W9_2\n", "line 1: server W9_2: this job has pipelines 0 to 2"),
        ("1,remove,W1_2\n2,remove,W1_2\n", "line 2: remove of W1_2, which is dead already; add it back first"),
        ("1,add,W1_2\n", "line 1: add of W1_2, which is alive; remove it first"),
        ("1,remove,W1_2,W1_2\n", "line 1: remove of W1_2, which is dead already"),
        ("2,remove,W1_2\n1,add,W1_2\n", "line 2: its time is before that of the line above; sort the lines"),
        ("soon,remove,W1_2\n", "line 1: time: 'soon' is no duration: write 500ms"),
        ("-1,remove,W1_2\n", "line 1: time: '-1' is no duration: write 500ms"),
        ("1000,remove,node1\n", "line 1: server 'node1': .* for nodes, write node,start_days,end_days"),
        ('1,remove,"W1_2\n', "this is no CSV file"),
    ],
)
def test_a_bad_line_is_named(load, tmp_path, text, message):
    with pytest.raises(FaultError, match=message) as caught:
        load(text)
    assert "trace.csv: " in str(caught.value)
    with pytest.raises(FaultError, match=message):
        load_outages(str(tmp_path / "trace.csv"), JOB)


@pytest.mark.parametrize("text", ["hours,live\n0,12\n1,11\n", "node,start_days,end_days\nn1,1,2\n"])
def test_a_run_refuses_traces_of_nodes_with_the_remedy(load, text):
    with pytest.raises(FaultError, match=r"line 1: .*: write time,remove,W1_2 or time,add,W1_2; a study also reads"):
        load(text)


def test_a_run_refuses_traces_in_json(load):
    with pytest.raises(FaultError, match=r"end in \.toml for a fault file, or \.csv or \.txt for a trace"):
        load("[]", name="trace.json")

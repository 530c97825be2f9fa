import pytest

from harness.examples import paper_job
from recycle.faults.errors import FaultError
from recycle.faults.file import load_faults
from recycle.faults.outages import load_outages
from recycle.faults.trace import PEERS, STAGES, servers_of_nodes
from recycle.job import Server
from recycle.megatron.flag.command.planning import Shape
from recycle.megatron.flag.command.server_ranks import hosts_of, servers_of

JOB = paper_job()
SMALL = paper_job(pipelines=2, stages=2)


@pytest.fixture
def load(tmp_path):
    def call(text, job=JOB, **options):
        path = tmp_path / "trace.csv"
        path.write_text(text)
        return [str(fault) for fault in load_faults(path, job, 50, **options).entries]

    return call


def test_a_trace_of_servers(load):
    text = "time,change,server\n0.5,remove,W1_2\n12s , remove , W0_0,W0_1\n\n1m,add,W1_2\n1m,add,W0_0,W0_1\n"
    assert load(text, speed=1000.0) == [
        "kill of W1_2 at 0.5s",
        "kill of W0_0, W0_1 at 12s",
        "join of W1_2 at 60s",
        "join of W0_0 at 60s",
        "join of W0_1 at 60s",
    ]


def test_servers_that_are_dead_from_the_start(load):
    assert load("1,add,W1_2\n2,remove,W1_2\n", dead=[Server(1, 2)]) == ["join of W1_2 at 1s", "kill of W1_2 at 2s"]


def test_nodes_are_servers_in_order_of_appearance_and_time_is_compressed(load):
    text = "0,add,node1\n0,add,node2\n0,add,node3\n0,add,node4\n60000,remove,node3\n120000,remove,node1,node2\n"
    assert load(text, SMALL) == ["kill of W1_0 at 1s", "kill of W0_0, W0_1 at 2s"]
    assert load(text, SMALL, speed=1.0) == ["kill of W1_0 at 60s", "kill of W0_0, W0_1 at 120s"]


def test_nodes_that_are_lost_at_the_same_time_are_lost_before_spares_replace_them(load):
    text = "0,add,a,b,c,d\n0,add,spare\n1000,remove,a\n1000,remove,d\n1000,add,new\n"
    assert load(text, SMALL, speed=1.0) == ["kill of W0_0, W1_1 at 1s", "join of W0_0 at 1s", "join of W1_1 at 1s"]


def test_new_nodes_replace_the_lost_in_turn(load):
    text = """0,add,a,b,c,d
1000,remove,b
2000,remove,a
3000,add,e
4000,add,f
5000,remove,e
6000,add,g,h
7000,remove,c
"""
    assert load(text, SMALL, speed=1.0) == [
        "kill of W0_1 at 1s",
        "kill of W0_0 at 2s",
        "join of W0_1 at 3s",
        "join of W0_0 at 4s",
        "kill of W0_1 at 5s",
        "join of W0_1 at 6s",
        "kill of W1_0 at 7s",
        "join of W1_0 at 7s",
    ]


def test_nodes_are_numbered_by_their_names_whatever_the_order_in_which_they_appear(load):
    text = "0,add,node10,node2,node1,node3\n1000,remove,node10\n2000,remove,node2\n"
    assert load(text, SMALL, speed=1.0) == ["kill of W1_1 at 1s", "kill of W0_1 at 2s"]


@pytest.mark.parametrize(
    ("comment", "killed"),
    [("stages-per-node 2", "W1_0, W1_1"), ("peers-per-node 2", "W0_1, W1_1"), ("stages-per-node 4", None)],
)
def test_a_node_of_several_servers_takes_them_down_together(load, comment, killed):
    text = f"# {comment}\n0,add,n1,n2\n1000,remove,n2\n2000,add,n9\n"
    joins = [] if killed is None else [f"join of {server} at 2s" for server in killed.split(", ")]
    assert load(text, SMALL, speed=1.0) == ([f"kill of {killed} at 1s"] if killed else []) + joins


def test_a_node_holds_what_is_alive_from_the_start(load):
    dead = SMALL.servers()[:1]
    text = "# stages-per-node 2\n0,add,a,b\n1000,remove,a\n2000,add,c,d\n"
    assert load(text, SMALL, speed=1.0, dead=dead) == ["kill of W0_1 at 1s", "join of W0_0 at 2s", "join of W0_1 at 2s"]


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
def test_what_is_said_of_nodes_in_vain_is_refused_by_runs_and_studies(load, tmp_path, comment, message):
    with pytest.raises(FaultError, match=message):
        load(f"{comment}\n0,add,a,b\n1000,remove,a\n", SMALL)
    with pytest.raises(FaultError, match=message):
        load_outages(str(tmp_path / "trace.csv"), SMALL)


def test_nodes_without_a_server_change_nothing(load):
    text = "0,add,a,b,c,d\n1000,add,spare\n2000,remove,spare\n3000,remove,stranger\n4000,remove,a\n5000,remove,a\n"
    assert load(text, SMALL, speed=1.0) == ["kill of W0_0 at 4s"]


def test_nodes_fill_places_that_are_dead_from_the_start(load):
    dead = SMALL.servers()[:1]
    assert load("0,add,a,b,c\n1000,add,d\n2000,remove,a\n", SMALL, speed=1.0, dead=dead) == [
        "join of W0_0 at 1s",
        "kill of W0_1 at 2s",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,remove\n", "line 1: expected time,remove,name or time,add,name"),
        ("1,remove,W1_2\n2,delete,W1_2\n", "line 2: 'delete' is no change; write remove or add"),
        ("1,remove,W1_2\n2,remove,W1-3\n", "line 2: server 'W1-3': a server is written"),
        ("1,remove,W9_2\n", "line 1: server W9_2: this job has pipelines 0 to 2"),
        ("1,remove,W1_2\n2,remove,W1_2\n", "line 2: remove of W1_2, which is dead already; add it back first"),
        ("1,add,W1_2\n", "line 1: add of W1_2, which is alive; remove it first"),
        ("1,remove,W1_2,W1_2\n", "line 1: remove of W1_2, which is dead already"),
        ("2,remove,W1_2\n1,add,W1_2\n", "line 2: its time is before that of the line above; sort the lines"),
        ("soon,remove,W1_2\n", "line 1: time: 'soon' is no duration: write 500ms"),
        ("-1,remove,W1_2\n", "line 1: time is -1: give seconds, from 0"),
        ("1s,remove,node1\n", "line 1: time is '1s': write a number of milliseconds; for servers, write W0_0"),
        ("nan,remove,node1\n", "line 1: time is 'nan': write a number"),
        ("2,remove,node1\n1,add,node1\n", "line 2: its time 1 is before 2"),
        ('1,remove,"W1_2\n', "this is no CSV file"),
    ],
)
def test_a_bad_line_is_named(load, text, message):
    with pytest.raises(FaultError, match=message) as caught:
        load(text)
    assert "trace.csv: " in str(caught.value)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_a_speed_without_sense_is_refused(load, speed):
    with pytest.raises(FaultError, match=r"speed is .*: give a number above 0"):
        load("0,add,node1\n", speed=speed)

import pytest

from harness.examples import paper_job
from recycle.faults.errors import FaultError
from recycle.faults.outages import NodeOutage, load_outages

DAY = 86_400.0
SMALL = paper_job(pipelines=2, stages=2)


@pytest.fixture
def load(tmp_path):
    def call(text, name="trace.csv", **options):
        path = tmp_path / name
        path.write_text(text)
        return load_outages(str(path), **options)

    return call


def test_a_node_that_comes_later_was_missing_before(load):
    outages = load("hours,live\n0,1\n2,2\n4,1\n8,2\n")
    assert sorted(each[1:] for each in outages.entries) == [(0.0, 7200.0), (14_400.0, 28_800.0)]
    assert outages.nodes == 2


@pytest.mark.parametrize("facts", ["# nodes 5\n# days 10", "# nodes: 5\n#days=10", "\ufeff# servers = 5\n#\tdays :10"])
def test_a_fault_a_line_with_faults_that_overlap(load, facts):
    outages = load(f"{facts}\nnode,start_days,end_days\nx,1,3\nx,2,4\ny,5,\n")
    assert (outages.nodes, outages.seconds) == (5, 10 * DAY)
    assert outages.entries == (NodeOutage(0, 1 * DAY, 4 * DAY), NodeOutage(1, 5 * DAY, 10 * DAY))


def test_events_in_json(load):
    event = '{"node_id": "%s", "event_time": %s, "event_type": "fault_%s", "fault_type": {"Class": "GPU"}}'
    text = f"[{event % ('x', 1, 'start')}, {event % ('x', 2, 'end')}, {event % ('y', 4, 'start')}]"
    assert load(text, "trace.json").entries == (NodeOutage(0, DAY, 2 * DAY),)


def test_counts_of_live_nodes(load):
    outages = load("seconds,live\n0,3\n10,1\n20,2\n86400,3\n", "trace.txt")
    assert (outages.nodes, outages.seconds) == (3, DAY)
    assert sorted((entry.start, entry.end) for entry in outages.entries) == [(10.0, 20.0), (10.0, DAY)]
    assert len({entry.node for entry in outages.entries}) == 2


def test_servers_and_fault_files(load):
    trace = load("time,change,server\n1,remove,W1_1\n3s,add,W1_1\n9,remove,W0_0\n", job=SMALL)
    assert (trace.nodes, trace.entries) == (4, (NodeOutage(3, 1.0, 3.0),))
    fault = '[[fault]]\nkind = "{}"\nserver = "W1_1"\nat = "{}"\n'
    faults = load(fault.format("kill", "1s") + fault.format("join", "3s"), "faults.toml", job=SMALL)
    assert faults.entries == trace.entries


@pytest.mark.parametrize(("comment", "lost"), [("stages-per-node", (2, 3)), ("peers-per-node", (1, 3))])
def test_a_node_takes_all_its_servers_down(load, comment, lost):
    """Node b comes after node a, in whatever order they fail; a sample draws which node is which, as a whole."""
    text = f"# {comment} 2\n# days 9\nnode,start_days,end_days\nb,1,3\na,4,5\n"
    outages = load(text, job=SMALL)
    assert outages.nodes == 4
    samples = [outages.resampled(6, seed) for seed in range(20)]
    assert {tuple(each.node for each in sample.entries if each.start == DAY) for sample in samples} == set(outages.held)
    assert all(sorted(each.node for each in sample.entries) == [0, 1, 2, 3] for sample in samples)
    assert [each for each in outages.entries if each.start == DAY] == [NodeOutage(each, DAY, 3 * DAY) for each in lost]


def test_nodes_are_ordered_by_the_numbers_in_their_names(load):
    outages = load("node,start_days,end_days\nn10,1,2\nn9,3,4\n")
    assert [(each.node, each.start) for each in outages.entries] == [(1, DAY), (0, 3 * DAY)]
    outages = load(f"node,start_days,end_days\nn{'9' * 5000},1,2\nn{'0' * 5000}10,3,4\n")
    assert [(each.node, each.start) for each in outages.entries] == [(1, DAY), (0, 3 * DAY)]


def test_a_node_that_the_job_has_no_servers_for_is_refused(load):
    text = "# stages-per-node 2\nnode,start_days,end_days\na,1,3\nb,4,5\nc,4,5\n"
    with pytest.raises(FaultError, match="it is of 3 nodes with 2 servers each, and the job has 4 servers"):
        load(text, job=SMALL)


def test_how_many_servers_a_trace_is_of_follows_from_those_of_a_node(load):
    text = "# stages-per-node 2\nnode,start_days,end_days\na,1,3\n"
    with pytest.raises(
        FaultError, match="4 servers: a trace that says how many a node has is of this job's; leave them out"
    ):
        load(text, job=SMALL, servers=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty: give a trace"),
        ("hours,live\n0,4\n1,4\n", "nothing is lost in it: give a trace with at least one failure"),
        ("node,begin,end\nx,1,2\n", "line 1: columns node,begin,end: write node,start_days,end_days"),
        ("node,start_weeks,end_weeks\nx,1,2\n", "line 1: unknown column 'weeks'; name its unit"),
        ("node,start_days,end_days\nx,2,3\ny,1,3\n", "line 3: its time 1 is before 2; sort"),
        ("node,start_days,end_days\nx,soon,3\n", "line 2: time is 'soon': write a number"),
        ("node,start_days,end_days\nx,2\n", "line 2: 2 values for 3 columns"),
        ("# nodes 1\nnode,start_days,end_days\nx,1,2\ny,1,2\n", "it names 2 nodes, and says .* 1; correct it"),
        ("# days 1\nnode,start_days,end_days\nx,1,2\n", "its last event is at 172800 s; correct # days"),
        ("node,start_days,end_days\nx,0,\n", "all that happens in it is at its begin; say how long it lasts in a line"),
        ("hours,live\n0,4\n1,-3\n", "line 3: 1, -3: write a time and the count"),
        ("centuries,live\n0,4\n1,3\n", "line 1: unknown column 'centuries'"),
        ("1,remove,W0_7\n", "line 1: server W0_7: this job has"),
        ('[{"node_id": "x", "event_time": 1, "event_type": "fault_end"}]', "entry 1: a repair of x, which has no"),
        ('[{"node_id": "x", "event_time": 1}]', "a JSON trace is a list of"),
    ],
)
def test_bad_traces(load, text, message):
    with pytest.raises(FaultError, match=message):
        load(text, job=SMALL)


@pytest.mark.parametrize(
    ("servers", "message"),
    [(1, "1 servers: it names 2; give as many at least"), (10**9, "1000000000 servers: give 1000000 at most")],
)
def test_a_number_of_servers_that_is_given_is_not_said_of_the_trace(load, servers, message):
    with pytest.raises(FaultError, match=message):
        load("node,start_days,end_days\na,1,3\nb,2,\n", job=SMALL, servers=servers)


def test_an_unknown_file(tmp_path):
    (tmp_path / "trace.yaml").write_text("x")
    with pytest.raises(FaultError, match=r"end in \.toml, \.csv, \.txt, \.json, or be one of language-model-cluster"):
        load_outages(str(tmp_path / "trace.yaml"))


@pytest.mark.parametrize("kind", ["kill", "exit", "stop", "agent-kill"])
def test_a_fault_with_a_step_is_refused_beside_others_with_times(load, kind):
    timed = (
        '[[fault]]\nkind = "kill"\nserver = "W0_1"\nat = "5s"\n[[fault]]\nkind = "join"\nserver = "W0_1"\nat = "9s"\n'
    )
    load(f'{timed}[[fault]]\nkind = "nan"\nserver = "W0_0"\niteration = 4\n', "faults.toml", job=SMALL)
    with pytest.raises(FaultError, match=r"fault 3.*a study has no steps; write at ="):
        load(f'{timed}[[fault]]\nkind = "{kind}"\nserver = "W0_0"\niteration = 4\n', "faults.toml", job=SMALL)


def test_a_fault_with_a_step_has_no_time(load):
    with pytest.raises(FaultError, match=r"fault 1.*a study has no steps; write at ="):
        load('[[fault]]\nkind = "join"\nserver = "W0_0"\niteration = 4\n', "faults.toml", job=SMALL)


def test_a_trace_of_servers_is_not_dealt_anew(load):
    trace = load("1,remove,W1_1\n3s,add,W1_1\n9,remove,W0_0\n", job=SMALL)
    assert trace.is_of_servers
    assert trace.resampled(6, 3).entries == trace.entries


def test_a_trace_of_servers_needs_their_job(load):
    for text in ("1,remove,W1_1\n", "node,start_days,end_days\nW1_1,1,2\n"):
        with pytest.raises(FaultError, match="it is of servers: give the job"):
            load(text)

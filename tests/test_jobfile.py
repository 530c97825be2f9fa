import msgspec
import pytest

from harness.job_files import encode_job
from recycle.errors import JobError, UserError
from recycle.jobfile import load_job

SHAPE = {"pipelines": 3, "stages": 4, "micro_batches": 6}


def write(tmp_path, text):
    path = tmp_path / "job.toml"
    path.write_text(text)
    return path


def written(tmp_path, job):
    """A job as its own file says it."""
    path = tmp_path / "again.toml"
    path.write_bytes(encode_job(job))
    return load_job(path, {})


@pytest.mark.parametrize(
    ("given", "known"), [("microseconds", "microsecond"), ("usec", "us"), ("Seconds", "second"), ("slots", "slots")]
)
def test_a_unit_has_one_name(given, known):
    flags = {"pipelines": 2, "stages": 2, "micro_batches": 2}
    assert load_job(None, flags | {"time_unit": given}).time_unit == known
    with pytest.raises(JobError, match="memory_unit is 'megabyets': did you mean MB"):
        load_job(None, flags | {"memory_unit": "megabyets"})


def test_a_file_gives_every_key(tmp_path):
    path = write(
        tmp_path,
        """
        pipelines = 2
        stages = 2
        micro_batches = 3
        name = "two"
        time_unit = "us"
        memory_unit = "MiB"
        [costs]
        forward = 10
        input_gradient = [12, 13]
        weight_gradient = 7.0
        optimizer = 30
        reduction = 5
        latency = 1
        [memory]
        held = [4, 5]
        released_at_input_gradient = 3
        limit = 20
        """,
    )
    job = load_job(path, {})
    assert (job.pipelines, job.depth, job.micro_batches) == (2, 2, 3)
    assert (job.name, job.time_unit, job.memory_unit) == ("two", "us", "MiB")
    first, second = job.stages
    assert (first.forward, first.input_gradient, first.weight_gradient) == (10, 12, 7)
    assert (first.optimizer, first.reduction, job.latency) == (30, 5, (1,))
    assert (first.held, second.held, second.released_at_input_gradient, second.limit) == (4, 5, 3, 20)
    assert second.input_gradient == 13


def test_flags_alone_are_enough_and_the_limit_defaults_to_the_depth():
    job = load_job(None, {**SHAPE, "held": 2})
    assert [stage.limit for stage in job.stages] == [8, 8, 8, 8]


def test_what_the_state_takes_is_left_for_no_activations(tmp_path):
    path = write(
        tmp_path,
        "pipelines = 2\nstages = 2\nmicro_batches = 3\n[memory]\nheld = 4\nlimit = [100, 90]\nstate = [86, 70]\n",
    )
    job = load_job(path, {})
    assert [(stage.limit, stage.state, stage.capacity) for stage in job.stages] == [(14, 86, 3), (20, 70, 5)]
    assert written(tmp_path, job) == job
    assert [stage.limit for stage in load_job(None, {**SHAPE, "held": 2, "state": 30}).stages] == [8] * 4
    message = r"limit of stage 1 is 73: its state takes 70 of it, and one micro-batch needs 4 more.* works is 74"
    with pytest.raises(JobError, match=message):
        load_job(path, {"limit": [100, 73]})
    with pytest.raises(JobError, match="state of stage 0 is -1"):
        load_job(path, {"state": -1})


@pytest.mark.parametrize(
    ("keys", "server"),
    [
        ({**SHAPE, "stages": 2, "placement": "consecutive:2", "limit": [5, 9]}, "server 0 of a pipeline"),
        ({"layout": [[([0, 1], 5), ([2, 3], 9)]]}, "server 0 of pipeline 0"),
    ],
)
def test_the_limit_that_is_refused_has_the_state_of_all_chunks_in_it(keys, server):
    if "layout" in keys:
        rows = [[{"chunks": chunks, "limit": limit} for chunks, limit in servers] for servers in keys["layout"]]
        keys = {"layout": [{"micro_batches": 2, "servers": row} for row in rows]}
    message = (
        rf"limit of {server} is 5: its state takes 3 of it, and one micro-batch of its chunks \[0, 1\] needs 4 more"
    )
    with pytest.raises(JobError, match=f"{message}, so no plan exists; the least limit that works is 7"):
        load_job(None, {**keys, "held": [3, 1, 2, 2], "state": [1, 2, 1, 1]})


def test_a_job_is_written_as_it_is_read(tmp_path):
    small = {"pipelines": 1, "stages": 1, "micro_batches": 1}
    uneven = {**SHAPE, "latency": [1, 2, 3], "limit": 9, "state": [1, 2, 3, 4]}
    for flags in (small, SHAPE, {**SHAPE, "forward": [1, 2, 3, 4]}, uneven):
        job = msgspec.structs.replace(load_job(None, flags), name='a "job"\n\x01 é', time_unit="µs")
        assert written(tmp_path, job) == job
        assert (b"forward = 1\n" in encode_job(job)) == ("forward" not in flags)


def test_flags_change_a_file(tmp_path):
    path = write(tmp_path, "pipelines = 2\nstages = 2\nmicro_batches = 3\n[costs]\nforward = 2\n")
    job = load_job(path, {"forward": [5, 6], "micro_batches": 4})
    assert [stage.forward for stage in job.stages] == [5, 6]
    assert job.micro_batches == 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"forward": float("nan")}, "^forward is nan: give a finite number"),
        ({"forward": float("inf")}, "^forward is inf: give a finite number"),
        ({"latency": [0, 0, 0.5]}, r"^latency\[2\] is 0.5: give whole numbers"),
        ({"latency": [0, 0]}, "^latency has 2 values.*3 in all"),
        ({"limit": [1, 2]}, "^limit has 2 values.*4 in all"),
        ({"stages": 0}, "^stages is 0"),
        ({"stages": "many"}, "^stages: Expected `int`, got `str`; docs/"),
        ({"forward": "long"}, "^forward: Expected .*, got `str`; docs/"),
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"forward": -2}, "forward of stage 0 is -2"),
    ],
)
def test_bad_values_name_the_key(flags, message):
    with pytest.raises(JobError, match=message):
        load_job(None, {**SHAPE, **flags})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pipelines = 3\nstages = 4\n", "micro_batches is missing"),
        (
            "pipelines = 3\nstages = 4\nmicro_batches = 6\ncolour = 1\n",
            "unknown key `colour`; the keys here are pipelines, stages",
        ),
        (
            "pipelines = 3\nstages = 4\nmicro_batches = 6\n[costs]\nforwards = 1\n",
            r"unknown key `forwards` \(did you mean `forward`\?\) - at `\$.costs`",
        ),
        ("pipelines = 3\nstages = 4\nmicro_batches = 6\n[costs]\nforward = 'x'\n", r"Expected .*got `str`.*forward"),
        ("pipelines = 3\nstages = 4\nmicro_batches = 6\ncosts = 3\n", r"Expected `object`.*costs"),
        ("pipelines = 'three'\nstages = 4\nmicro_batches = 6\n", r"Expected `int`.*pipelines"),
        ("pipelines = ", "no TOML file"),
        ("\x00\x01", "no TOML file"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    with pytest.raises(JobError, match=message) as caught:
        load_job(write(tmp_path, text), {})
    assert "job.toml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none.toml: cannot be read"):
        load_job(tmp_path / "none.toml", {})


def test_a_placement_has_costs_per_chunk_and_memory_per_server(tmp_path):
    path = write(
        tmp_path,
        """
        pipelines = 2
        stages = 2
        micro_batches = 3
        placement = "v-shaped"
        [costs]
        forward = [1, 2, 3, 4]
        latency = [5, 6, 7]
        [memory]
        held = [1, 1, 2, 2]
        limit = [9, 8]
        state = [1, 2, 3, 4]
        """,
    )
    job = load_job(path, {})
    assert (job.depth, job.chunks, job.places) == (2, ((0, 3), (1, 2)), (0, 1, 1, 0))
    assert [stage.forward for stage in job.stages] == [1, 2, 3, 4]
    assert [job.limit(place) for place in (0, 1)] == [9 - 5, 8 - 5]
    assert written(tmp_path, job) == job


@pytest.mark.parametrize(
    ("placement", "chunks"),
    [
        ("v-shaped", ((0, 3), (1, 2))),
        ("interleaved:2", ((0, 2), (1, 3))),
        ("interleaved:3", ((0, 2, 4), (1, 3, 5))),
        ([[1, 2], [0, 3, 4]], ((1, 2), (0, 3, 4))),
    ],
)
def test_placements_have_short_forms_and_lists(placement, chunks):
    job = load_job(None, {**SHAPE, "stages": 2, "placement": placement})
    assert job.chunks == chunks
    # Memory is enough for as many micro-batches as there are servers by default.
    assert [job.limit(place) for place in (0, 1)] == [2 * len(held) for held in chunks]


def test_one_chunk_per_server_in_order_is_the_standard_placement():
    job = load_job(None, {**SHAPE, "placement": "interleaved:1"})
    assert job == load_job(None, SHAPE)
    assert b"placement" not in encode_job(job)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"placement": "w-shaped"}, "placement 'w-shaped': expected standard, v-shaped, interleaved:N"),
        ({"placement": "interleaved:0"}, "placement 'interleaved:0': expected"),
        ({"placement": [[0, 1], [2]]}, "placement lists 2 servers, and stages is 4"),
        ({"placement": [[0], [1], [1], [2]]}, "chunk 1: 2 servers hold it"),
        ({"placement": [[0], [1], [2], [4]]}, "chunk 3: no server holds it"),
        ({"placement": [[0], [1], [3, 2], [4]]}, r"server 2 holds \[3, 2\]; list its chunks rising"),
        ({"placement": [[0], [], [1], [2]]}, "server 1 of a pipeline holds no chunk"),
        ({"placement": "v-shaped", "limit": 1}, r"of its chunks \[0, 7\] needs 2, .*least limit that works is 2"),
        ({"placement": "v-shaped", "forward": [1, 2, 3, 4]}, "^forward has 4 values: .* 8 in all"),
        ({"placement": "v-shaped", "limit": [4] * 8}, "one per server of a pipeline, 4 in all"),
    ],
)
def test_what_is_no_placement_is_refused(changes, message):
    with pytest.raises(JobError, match=message):
        load_job(None, {**SHAPE, **changes})


LAYOUT = """
[memory]
held = [1, 2]
state = [3, 4]

[[layout]]
micro_batches = 3
servers = [{chunks = [0, 1], limit = 30, speed = 80}]

[[layout]]
micro_batches = 2
servers = [{chunks = [0]}, {chunks = [1]}]
"""


def test_pipelines_of_their_own_servers(tmp_path):
    job = load_job(write(tmp_path, LAYOUT), {})
    assert (job.pipelines, job.micro_batches, job.loads, job.depth) == (2, 3, (3, 2), 2)
    # What is left of the limit beside the state; by default each of two servers has room for two micro-batches.
    assert [[each.limit for each in pipeline.servers] for pipeline in job.layout] == [[23], [2, 4]]
    assert job.layout[0].servers[0].speed == 80
    assert written(tmp_path, job).layout == job.layout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("stages = 2\n", "stages follows from layout; leave it out"),
        ('placement = "v-shaped"\n', "the servers of a layout name their chunks themselves"),
    ],
)
def test_a_layout_stands_for_itself(tmp_path, more, message):
    with pytest.raises(JobError, match=message):
        load_job(write(tmp_path, more + LAYOUT), {})

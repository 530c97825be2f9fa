import pytest

from harness.examples import paper_job, paper_plan, plan_around
from recycle.job import Job, Server, Stage
from recycle.placement import PlacedPipeline, PlacedServer
from recycle.plan.clock import run_clock
from recycle.plan.instruction import Op
from recycle.plan.memory import peak_memory
from recycle.plan.normalise import canonical_dead, relabel_plan
from recycle.view.chart import Window, fate, make_chart, measured_period
from recycle.view.subject import Subject
from tests.view.samples import chart_of, measured, small


def rows(chart):
    return {row.server: row for row in chart.rows()}


def test_figures_are_those_of_the_clock(worked):
    _, plan = worked
    clock = run_clock(plan.job, plan.mode, plan.programs)
    for iterations in (1, 3):
        chart = chart_of(plan, iterations)
        assert chart.period == clock.period
        for server, row in rows(chart).items():
            if not row.dead:
                assert row.bubble == pytest.approx(clock.bubble(server))
                assert row.peak == peak_memory(plan.job, server, plan.programs[server])


def test_the_time_per_iteration_does_not_depend_on_how_a_recording_numbers_iterations():
    for numbers in ((0, 1, 2), (0, 10**20, 2)):
        ends = dict(zip(numbers, (10.0, 20.0, 30.0), strict=True))
        windows = tuple(Window(0, number, 0.0, ends[number], ends[number]) for number in sorted(numbers))
        assert measured_period(windows) == 10


def test_every_window_of_a_plan_fits_into_its_period(worked):
    _, plan = worked
    chart = chart_of(plan, 2)
    assert len(chart.windows) == 2 * plan.job.depth
    assert all(window.end - window.start <= chart.period for window in chart.windows)


def test_a_window_names_its_iteration_where_there_are_several(staggered):
    once, thrice = chart_of(staggered), chart_of(staggered, 3)
    assert [once.caption(each) for each in once.windows if each.stage == 2] == ["30 slots"]
    captions = [thrice.caption(each) for each in thrice.windows if each.stage == 2]
    assert captions == ["iteration 1: 30 slots", "iteration 2: 30 slots", "iteration 3: 30 slots"]


def test_a_run_has_the_period_of_its_steps_and_the_dead_of_its_failures(staggered):
    run = measured(staggered, iterations=4)
    chart = make_chart(Subject("run", None, run))
    assert chart.period == pytest.approx(30 * 12.5)
    assert [row.server for row in chart.rows() if row.dead] == [Server(1, 2)]


def test_what_became_of_a_dead_servers_work(staggered):
    assert fate(rows(chart_of(staggered))[Server(1, 2)]) == "dead: 1 3 5 on W0_2; 0 2 4 on W2_2"
    many = chart_of(small(pipelines=12, stages=2, micro_batches=11, failed=(Server(3, 1),)))
    assert fate(rows(many)[Server(3, 1)]) == "dead: 11 micro-batches on 11 peers"


def test_where_pipelines_differ_the_work_of_a_chunk_is_that_of_its_own_server():
    stage = Stage(1, 1, 1, 1, 0, 1, 0, 40)
    servers = (((0,), (1,), (2,)), ((0, 1), (2,)))
    layout = tuple(PlacedPipeline(2, tuple(PlacedServer(each, 40) for each in placement)) for placement in servers)
    plan = plan_around(Job(2, 2, (stage,) * 3, (1, 1), layout=layout), "W0_1", "W0_2")
    shown = rows(chart_of(plan))
    assert [fate(shown[Server(0, place)]) for place in (1, 2)] == ["dead: 0 1 on W1_0", "dead: 0 1 on W1_1"]


@pytest.mark.parametrize(
    "failed", [(Server(0, 2),), (Server(0, 1), Server(1, 2)), (Server(0, 0), Server(1, 1), Server(2, 2))]
)
def test_where_a_peer_has_the_role_of_the_dead_the_work_is_that_of_the_peers_own_role(failed):
    job = paper_job()
    dead = job.dead_servers(failed)
    plan = relabel_plan(paper_plan(failed=canonical_dead(job, dead.counts)), dead)
    shown = rows(chart_of(plan))
    assert bool(plan.roles) == (len(failed) > 1)
    for server, role in plan.roles.items():
        assert shown[server].label == f"{server} as {role}"
        assert f"{server} acts as it" in fate(shown[role])
    for server in failed:
        moved = [unit for units in shown[server].moved.values() for unit in units]
        assert len(moved) == job.micro_batches
    forwards = [(row, span) for row in shown.values() for span in row.spans if span.instruction.op is Op.F]
    assert sum(row.rerouted(span.instruction) for row, span in forwards) == len(failed) * job.micro_batches

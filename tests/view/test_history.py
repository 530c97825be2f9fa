import msgspec
import pytest

from recycle.cli.losses import marks_of
from recycle.record.costs import Cost
from recycle.record.history import History
from recycle.record.recording import AbandonedLine, DeathLine, InstantLine, IterationLine, RunLine, ViewLine
from recycle.view.history import length, summarise, tell, total_text
from tests.record.test_history import FOUR, KILLED, death, recovery, view


def lines_of(lines):
    history = History()
    return history, [tell(news, 4, "us") for news in map(history.add, lines) if news is not None]


REJOINED = [
    *KILLED,
    view(2, FOUR, 6, joined=["W1_1"]),
    *(recovery(server, 2, (2e3, 4e3, 9e3, 9e3, 12e3, 80e3), 6) for server in FOUR[:3]),
]


def test_tight_memory_is_named_wherever_a_throughput_is():
    tight = "fault-free 1F1B within this memory"
    lines = [msgspec.structs.replace(each, baseline=tight) if isinstance(each, ViewLine) else each for each in REJOINED]
    history, said = lines_of(lines)
    named = [each for each in (*said, *summarise(history, 4)) if "planned throughput" in each]
    assert len(named) == 3
    assert all(f"% of {tight})" in each for each in named)


def test_a_line_per_event_and_a_summary(golden):
    history, lines = lines_of(REJOINED)
    golden("view/history.txt", "\n".join([*lines, "", *summarise(history, 4), ""]))


def test_a_checkpoint_a_fault_and_a_warning(golden):
    lines = [
        *KILLED[:7],
        view(2, FOUR[:2], 1, restore="checkpoint"),
        InstantLine("fault", 1.0, "W0_0", "SIGSTOP at step 4"),
        InstantLine("warning", 1.0, None, "the store is lost"),
        InstantLine("end", 1.0, "W0_0", "no checkpoint\x1b[2J"),
    ]
    golden("view/history-checkpoint.txt", "\n".join([*lines_of(lines)[1], ""]))


def made(epoch, step, seconds, servers=FOUR):
    return [IterationLine(server, step, seconds, [], 1, epoch) for server in servers]


def test_the_figure_of_a_failure_is_the_same_in_the_log_and_the_summary_and_the_sum_is_all_that_was_lost():
    """From 0 to 7.0 s on the clock: five iterations and two changes of views, for five undisturbed seconds."""
    seconds = 1e6
    left = FOUR[:3]
    lines = [
        view(0, FOUR, 0),
        *made(0, 0, 1.0),
        *made(0, 1, 1.0),
        AbandonedLine("W0_1", 0, 2, 2.1 * seconds),
        AbandonedLine("W0_0", 0, 2, 2.0 * seconds),
        death("W1_1", 1, 2.5 * seconds),
        view(1, left, 2, time=2.6 * seconds, throughput=0.75),
        *(
            recovery(server, 1, [time * seconds for time in (2.6, 2.65, 2.7, 2.7, 2.75, 4.0)], step=2)
            for server in left
        ),
        *made(1, 2, 1.25, left),
        *made(1, 3, 1.3, left),
        view(2, FOUR, 4, joined=["W1_1"], time=5.4 * seconds),
        *(recovery(server, 2, [time * seconds for time in (5.3, 5.5, 5.8, 5.8, 6.0, 7.0)], step=4) for server in left),
        *made(2, 4, 1.0),
    ]
    history, told = lines_of(lines)
    figure = "cost 750 ms (500 ms of work lost, 250 ms of recovery)"
    assert told[2].endswith(figure)
    assert "; each hour costs 10 min as planned until servers return" in told[1]
    summary = summarise(history, 4)
    assert [line for line in summary if "cost" in line] == [
        "all failures and returns cost 2000 ms: 500 ms of work lost, 950 ms of recovery, 550 ms of slower iterations",
        f"view 1 {figure}, and 550 ms of slower iterations since; each hour costs 14 min as measured",
        "view 2 cost 700 ms (700 ms of recovery)",
    ]
    assert history.costs.whole == pytest.approx(2.0 * seconds)
    assert history.measured(1) == pytest.approx(1 / 1.3)
    assert history.measured(2) is None


def test_of_a_recording_that_lacks_iterations_or_lies_those_that_are_there_count():
    steps = [(0, 9.0), (1, 1.0), (2, 1.0), (10**12, 4.0), (7, 2.0)]
    history, _ = lines_of([view(0, FOUR, 0), *(line for step, seconds in steps for line in made(0, step, seconds))])
    assert history.usual_seconds == 1.5


def test_what_quicker_iterations_gain_is_no_negative_cost():
    text = "1000 ms: 750 ms of work lost, 250 ms of recovery, 3500 ms gained by quicker iterations"
    assert total_text(Cost(750, 250, -3500), "ms") == text


def test_a_checkpoint_has_finished_iterations_made_again_and_they_are_lost_once():
    lines = [
        view(0, FOUR, 0),
        *(line for step in range(4) for line in made(0, step, 1.0)),
        AbandonedLine("W0_0", 0, 4, 4e6),
        death("W1_1", 1, 4.5e6),
        view(1, FOUR[:3], 2, restore="checkpoint", time=5e6),
        *(recovery(server, 1, (4.6e6, 5e6, 5e6, 5e6, 6e6, 7e6), step=2) for server in FOUR[:3]),
        *made(1, 2, 1.0, FOUR[:3]),
        AbandonedLine("W0_0", 1, 3, 7e6),
        death("W1_0", 2, 7.2e6),
        view(2, FOUR[:2], 2, restore="checkpoint", time=7.3e6),
        *(recovery(server, 2, (7.25e6, 7.3e6, 7.3e6, 7.3e6, 7.5e6, 8.5e6), step=2) for server in FOUR[:2]),
    ]
    history, _ = lines_of(lines)
    # Iterations 2 and 3 were finished and half of 4 was done; then 2 again, and a fifth of 3.
    assert [history.cost(epoch).lost for epoch in (1, 2)] == pytest.approx([2.5e6, 1.2e6])
    assert [history.cost(epoch).recovery for epoch in (1, 2)] == pytest.approx([1.5e6, 0.3e6])


def test_what_was_done_in_a_view_that_ended_before_its_first_iteration_is_lost_too():
    lines = [
        view(0, FOUR, 0),
        *made(0, 0, 1.0),
        AbandonedLine("W0_0", 0, 1, 1.0e6),
        death("W1_1", 1, 1.5e6),
        view(1, FOUR[:3], 1, time=1.6e6),
        AbandonedLine("W0_0", 1, 1, 1.7e6),
        death("W1_0", 2, 2.5e6),
        view(2, FOUR[:2], 1, time=2.6e6),
        *(recovery(server, 2, (2.6e6, 2.6e6, 2.6e6, 2.6e6, 2.7e6, 3.7e6), step=1) for server in FOUR[:2]),
    ]
    history, _ = lines_of(lines)
    assert (history.cost(2).lost, history.cost(2).recovery) == pytest.approx((1.5e6, 0.2e6))


def test_a_run_that_nothing_befell_has_no_summary():
    assert summarise(lines_of(KILLED[:1])[0], 4) == []
    assert summarise(History(), 4) == []


def test_a_failure_without_a_view_after_it_is_in_the_summary():
    assert (
        summarise(lines_of([KILLED[0], death("W0_0", 1)])[0], 4)[0] == "1 failure, no rejoins, no iterations made again"
    )


@pytest.mark.parametrize(
    ("time", "unit", "text"),
    [(92_400, "us", "92 ms"), (9_999_000, "us", "9999 ms"), (12_340_000, "us", "12.3 s"), (92.4, "ms", "92 ms")],
)
def test_lengths(time, unit, text):
    assert length(time, unit) == text


def test_times_are_in_the_unit_that_a_recording_says():
    head = RunLine("recycle run", 1, "t", "ms", "measured")
    assert summarise(lines_of([head, *REJOINED])[0], 4)[1].startswith(
        "recovered in 40 ms median, 40 ms worst: detect 12"
    )


def test_who_left_is_no_failure():
    history = History()
    for line in (
        ViewLine(0, 0.0, ["W0_0", "W1_0"], [], 0, "the run begins", "memory", 30, 1.0, "the first plan"),
        IterationLine("W0_0", 2, 1.0, [], 1),
        DeathLine("W1_0", 0, 10.0, "leaves: SIGTERM", "itself", 1),
        ViewLine(1, 11.0, ["W0_0"], [], 3, "W1_0 leaves: SIGTERM", "memory", 30, 0.5, "the catalogue"),
    ):
        history.add(line)
    assert summarise(history, 2)[0] == "no failures, 1 left, no rejoins, no iterations made again"
    ((mark, words),) = ((each.step, each.text) for each in marks_of(history))
    assert (mark, words) == (4, "W1_0 left")

import pytest

from recycle.record.history import History
from recycle.record.recording import DeathLine, InstantLine, IterationLine, RunLine, ViewLine
from recycle.view.history import length, summarise, tell
from tests.record.test_history import FOUR, KILLED, death, recovery, view


def lines_of(lines):
    history = History()
    return history, [tell(news, 4, "us") for news in map(history.add, lines) if news is not None]


REJOINED = [
    *KILLED,
    view(2, FOUR, 6, joined=["W1_1"]),
    *(recovery(server, 2, (2e3, 4e3, 9e3, 9e3, 12e3, 80e3), 6) for server in FOUR[:3]),
]


def test_a_line_per_event():
    assert lines_of(REJOINED)[1] == [
        "W1_1 died: was killed by signal 9 (SIGKILL), noticed by its agent",
        "view 1: 3 of 4 servers, throughput 100% of before (90% of fault-free 1F1B), "
        "from the catalogue; iteration 4 is made again",
        "recovered in 0 ms: detect 0, agree 0, rebuild 0, restore 0, start 0, redo 0 ms",
        "W1_1 (incarnation 1) is back: 4 of 4 servers, throughput 100% of before (90% of fault-free 1F1B)",
        "changed views in 10 ms: detect 0, agree 2, rebuild 5, restore 0, start 3, redo 68 ms",
    ]


def test_a_checkpoint_a_fault_and_a_warning():
    lines = [
        *KILLED[:7],
        view(2, FOUR[:2], 1, restore="checkpoint"),
        InstantLine("fault", 1.0, "W0_0", "SIGSTOP at step 4"),
        InstantLine("warning", 1.0, None, "the store is lost"),
        InstantLine("end", 1.0, "W0_0", "no checkpoint\x1b[2J"),
    ]
    assert lines_of(lines)[1][-4:] == [
        "view 2: 2 of 4 servers, throughput 100% of before (90% of fault-free 1F1B), "
        "from the catalogue, because because; "
        "iterations 2 to 3 are made again, from the last checkpoint",
        "fault: SIGSTOP at step 4",
        "warning: the store is lost",
        "no checkpoint\ufffd[2J",
    ]


def test_the_summary_has_failures_rejoins_times_and_the_final_view():
    assert summarise(lines_of(REJOINED)[0], 4) == [
        "1 failure, 1 rejoin, 1 iteration made again",
        "recovered in 0 ms median, 0 ms worst: detect 0, agree 0, rebuild 0, restore 0, start 0",
        "10 ms without work",
        "at the end view 2: 4 of 4 servers, throughput 100% of the start (90% of fault-free 1F1B)",
    ]


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

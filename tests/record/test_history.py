from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.recordings import write_events
from recycle.record.costs import IterationTimes
from recycle.record.history import Change, History, ViewRecovery, history_of
from recycle.record.reading import load_lines, next_epoch
from recycle.record.recording import (
    AbandonedLine,
    DeathLine,
    InstantLine,
    IterationLine,
    RecoveryLine,
    RunLine,
    ViewLine,
)
from recycle.record.reporting import EventFile

FOUR = ["W0_0", "W0_1", "W1_0", "W1_1"]
HEAD = RunLine("recycle run", 1, "t", "us", "measured")


def view(epoch, servers, step, joined=(), restore="memory", time=0.0, throughput=0.9):
    return ViewLine(epoch, time, list(servers), list(joined), step, "because", restore, 30, throughput, "the catalogue")


def death(server, epoch, time=1000.0, incarnation=0):
    return DeathLine(server, incarnation, time, "was killed by signal 9 (SIGKILL)", "agent", epoch)


def recovery(server, epoch, times, step=3):
    return RecoveryLine(server, epoch, step, *times)


KILLED = [
    view(0, FOUR, 0),
    *(IterationLine(server, 2, 1.0, [], 1) for server in FOUR),
    death("W1_1", 1),
    view(1, FOUR[:3], 3),
    recovery("W0_0", 1, (1010.0, 1020.0, 1030.0, 1031.0, 1040.0, 1090.0)),
    recovery("W0_1", 1, (1012.0, 1021.0, 1032.0, 1033.0, 1045.0, 1095.0)),
    recovery("W1_0", 1, (1005.0, 1022.0, 1031.0, 1035.0, 1050.0, 1100.0)),
]


def told(lines):
    history = History()
    return history, [each for each in map(history.add, lines) if each is not None]


def test_a_recovery_is_known_when_all_survivors_have_told():
    _, news = told(KILLED[:-1])
    assert not any(isinstance(each, ViewRecovery) for each in news)
    _, news = told(KILLED)
    expected = ViewRecovery(1, 3, 1, 1000.0, detect=12, agree=10, rebuild=10, restore=3, start=5, redo=60)
    assert news[-1] == expected
    assert expected.pause == 40


def test_phases_end_when_the_first_server_resumes_and_none_is_negative():
    lines = [
        view(0, FOUR[:3], 0),
        death("W1_0", 1, time=1000.0),
        view(1, FOUR[:2], 0),
        recovery("W0_0", 1, (990.0, 1020.0, 1030.0, 1031.0, 1032.0, 1090.0)),
        recovery("W0_1", 1, (995.0, 1021.0, 1040.0, 1050.0, 1060.0, 1095.0)),
    ]
    found = told(lines)[1][-1]
    assert found == ViewRecovery(1, 0, 1, 1000.0, detect=0, agree=21, rebuild=11, restore=0, start=0, redo=63)
    assert found.pause == 32


def test_what_is_told_twice_is_news_once():
    history, news = told([line for line in KILLED for _ in range(2) if not isinstance(line, RecoveryLine)])
    assert [type(each) for each in news] == [type(KILLED[5]), Change]
    assert len(history.deaths) == 1


def test_a_recovery_counts_from_the_last_of_two_deaths_and_the_iteration_in_flight_is_made_again():
    history, _ = told([*KILLED, death("W1_0", 1, time=1004.0)])
    (change,) = history.changes
    assert [each.server for each in change.deaths] == ["W1_1", "W1_0"]
    assert change.recovery.began == 1004
    assert change.again == 1


def test_who_leaves_does_so_between_iterations_and_nothing_is_made_again():
    left = DeathLine("W1_1", 0, 1000.0, "leaves: SIGTERM", "itself", 1)
    history, _ = told([view(0, FOUR, 0), IterationLine("W0_0", 2, 1.0, [], 1), left, view(1, FOUR[:3], 3)])
    (change,) = history.changes
    assert change.again == 0
    # Where somebody dies meanwhile, an iteration was in flight.
    history, _ = told(
        [view(0, FOUR, 0), IterationLine("W0_0", 2, 1.0, [], 1), left, death("W1_0", 1), view(1, FOUR[:2], 3)]
    )
    (change,) = history.changes
    assert change.again == 1


def test_who_joins_is_let_in_between_iterations_in_its_next_life_and_nobody_died():
    lines = [
        *KILLED,
        *(IterationLine(server, 5, 1.0, [], 1, epoch=1) for server in FOUR[:3]),
        view(2, FOUR, 6, joined=["W1_1"]),
        *(recovery(server, 2, (2000.0, 2010.0, 2020.0, 2020.0, 2030.0, 2080.0), 6) for server in FOUR[:3]),
    ]
    history, news = told(lines)
    change = history.changes[-1]
    assert change.joined == (("W1_1", 1),)
    assert (change.again, change.deaths) == (0, ())
    assert (change.recovery.began, change.recovery.pause) == (2000, 30)
    assert news[-1] == change.recovery
    assert history.servers == 4


def test_a_checkpoint_makes_all_iterations_behind_it_again():
    history, _ = told([*KILLED, view(2, FOUR[:2], 1, restore="checkpoint")])
    assert [change.again for change in history.changes] == [1, 2]


def test_a_warning_in_the_words_of_all_servers_is_news_once_until_it_is_said_again():
    lines = [InstantLine("warning", 1.0, server, "the store is lost") for server in FOUR]
    assert [each.server for each in told(lines)[1]] == ["W0_0"]
    assert [each.server for each in told(lines + lines)[1]] == ["W0_0", "W0_0"]


def test_servers_that_are_dead_from_the_start_count():
    lines = [InstantLine("failure", 1.0, "W1_1", "W1_1 is dead"), view(0, FOUR[:3], 0)]
    assert told(lines)[0].servers == 4


def test_the_history_of_a_run_is_read_from_its_files(tmp_path):
    parts = {"launcher": [line for line in KILLED if isinstance(line, ViewLine | DeathLine)]}
    for line in KILLED:
        if not isinstance(line, ViewLine):
            parts.setdefault(line.server, []).append(line)
    write_events(tmp_path, {name: [HEAD, *lines] for name, lines in parts.items()})
    assert history_of(load_lines(tmp_path)).changes == told(KILLED)[0].changes


@pytest.mark.parametrize("turn", range(len(KILLED)))
def test_the_order_of_lines_changes_nothing_in_the_end(turn):
    assert told(KILLED[turn:] + KILLED[:turn])[0].changes == told(KILLED)[0].changes


def test_views_are_numbered_on_behind_whatever_is_half_written(tmp_path):
    assert next_epoch(tmp_path) == 0
    for name in ("W0_0", "W1_0", "launcher"):
        with closing(EventFile(tmp_path / "events", name, "a run", pytest.fail)) as file:
            for epoch in range(3):
                file.write(view(epoch, FOUR, 3))
    (tmp_path / "events" / "launcher.jsonl").write_bytes(b"")
    with (tmp_path / "events" / "W1_0.jsonl").open("ab") as broken:
        broken.write(b'{"type":"vie{"type":"view"\n')
    assert next_epoch(tmp_path) == 3
    (tmp_path / "events" / "W1_0.jsonl").write_bytes(b'{"type":"run"')
    assert len(history_of(load_lines(tmp_path)).changes) == 2


TIMES = st.integers(1, 60)
LENGTHS = st.integers(100, 200)
VIEWS = st.lists(
    st.fixed_dictionaries(
        {
            "joins": st.booleans(),
            # From the end of the last iteration on the slowest server to the death; before it, if negative.
            "after": st.integers(-60, 90),
            "known": TIMES,
            "gap": TIMES,
            "lengths": st.lists(LENGTHS, min_size=1, max_size=3),
        }
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(TIMES, min_size=3, max_size=3), LENGTHS, VIEWS)
def test_the_costs_of_all_changes_are_the_time_that_the_run_took_longer(sooner, usual, views):
    """Servers end an iteration one after another, and the first may know of a change while the last still computes."""
    skews = dict(zip(FOUR, [0, *sooner], strict=True))

    def iteration(epoch, step, length, end):
        return [IterationLine(server, step, length / 1e6, [], 1, epoch, end - skew) for server, skew in skews.items()]

    steps = 3
    clock = float(steps * usual)
    lines = [view(0, FOUR, 0)]
    lines += [line for step in range(steps) for line in iteration(0, step, usual, usual * (step + 1))]
    for epoch, each in enumerate(views, 1):
        if each["joins"]:
            noticed = {server: clock - skew for server, skew in skews.items()}
        else:
            died = clock + each["after"]
            lines.append(death("W9_9", epoch, time=died, incarnation=epoch))
            lines += [AbandonedLine(server, epoch - 1, steps, clock - skew) for server, skew in skews.items()]
            noticed = dict.fromkeys(skews, max(clock, died + each["known"]))
        resumed = max(noticed.values()) + each["gap"]
        ready = (resumed - 1.0,) * 3
        lines.append(view(epoch, FOUR, steps, joined=["W9_9"] if each["joins"] else (), time=resumed))
        clock = resumed
        for number, length in enumerate(each["lengths"]):
            clock += length
            if not number:
                lines += [
                    recovery(server, epoch, (noticed[server], *ready, resumed, clock - skew), steps)
                    for server, skew in skews.items()
                ]
            lines += iteration(epoch, steps, length, clock)
            steps += 1
    costs = history_of(lines).costs
    assert costs.whole == pytest.approx(clock - steps * usual, abs=1e-3)


def test_iterations_are_compared_with_those_of_as_many_micro_batches():
    def run(*sizes):
        lines, end = [view(0, FOUR, 0), view(1, FOUR[:3], 5)], 0.0
        for step, size in enumerate(sizes):
            seconds = size * (2.0 if step > 4 else 1.0)
            end += seconds * 1e6
            lines += [IterationLine("W0_0", step, seconds, [], 1, int(step > 4), end, size)]
        return history_of(lines)

    same = run(2, 2, 4, 4, 4, 4, 4, 4)
    assert (same.measured(1), same.cost(1).slower) == (0.5, 3 * 4e6)
    grown = run(1, 1, 1, 1, 1, 4, 4, 4)
    assert (grown.measured(1), grown.cost(1).slower) == (None, None)


def test_of_earlier_views_only_those_are_gone_through_of_which_iterations_are_made_again(monkeypatch):
    lines = [view(0, FOUR, 0)]
    for epoch in range(1, 20):
        lines += [IterationLine("W0_0", step, 1.0, [], 1, epoch - 1) for step in (2 * epoch - 2, 2 * epoch - 1)]
        # Before the last view two iterations are lost, and before each other one none.
        lines.append(view(epoch, FOUR, 2 * epoch - 2 if epoch == 19 else 2 * epoch, joined=["W1_1"]))
        lines += [recovery(server, epoch, (1.0,) * 6, 2 * epoch) for server in FOUR[:3]]
    history, gone_through, kept = history_of(lines), [], IterationTimes.kept

    def noting(times, each, *rest):
        gone_through.append(each.epoch)
        return kept(times, each, *rest)

    monkeypatch.setattr(IterationTimes, "kept", noting)
    assert [change.recovery.lost for change in history.changes] == [0.0] * 18 + [2e6]
    assert gone_through == [18]

"""The ranks of a server stop at one line, with threads for ranks."""

import random
import threading
import time
from functools import partial

import pytest

from recycle.runtime.errors import ConnectionLost, ViewBroken
from recycle.runtime.net.stop_line import NO_LINE, OwnGroup, StopLine


class Calls:
    """What ranks that are threads call among themselves: nothing ends it but that all have come."""

    def __init__(self, ranks):
        self._ranks = ranks
        self._changed = threading.Condition()
        self._come = {}
        self._cut = False

    def meet(self, name, *, ends=False):
        """Wait until all have come to something; if it ends, that breaks when it is cut off."""
        with self._changed:
            self._come[name] = self._come.get(name, 0) + 1
            self._changed.notify_all()
            came = self._changed.wait_for(lambda: self._come[name] == self._ranks or (ends and self._cut), 30)
            assert came, f"left alone in {name}"
            if self._come[name] < self._ranks:
                raise ConnectionLost("cut off")

    def cut(self):
        """End what ends, for those who wait and who come."""
        with self._changed:
            self._cut = True
            self._changed.notify_all()


def run_ranks(seed, ranks=3, lists=4, rows=5):
    """Ranks execute lists until somebody raises an alarm; gives what each has begun."""
    chance = random.Random(seed)
    alarmed, calls, lines, begun = threading.Event(), Calls(ranks), [], [[] for _ in range(ranks)]
    told, closed = threading.Condition(), {}
    delays = [[chance.random() * 2e-3 for _ in range(lists * (rows + 1) + 1)] for _ in range(ranks)]
    fails = {(chance.randrange(ranks), chance.randrange(lists), chance.randrange(rows)) for _ in range(2)}

    def gate(turns):
        calls.meet(f"gate {next(turns)}", ends=True)

    for _ in range(ranks):
        lines.append(StopLine(partial(gate, iter(range(lists))), None, lambda _: alarmed.set(), 30.0))

    def watch(number):
        alarmed.wait()
        time.sleep(delays[number][-1])
        calls.cut()
        with told:
            closed[number] = lines[number].close()
            told.notify_all()
            assert told.wait_for(lambda: len(closed) == ranks, 30)
            lines[number].stop_at(max(closed.values()))

    def train(number):
        pauses, line = iter(delays[number]), lines[number]
        for turn in range(lists):
            with line.list():
                for row in range(rows):
                    time.sleep(next(pauses))
                    line.enter(row)
                    if (number, turn, row) in fails:
                        line.bear(ConnectionLost("a transfer"))
                    begun[number].append((turn, row))
                    calls.meet(f"own {turn} {row}")
            time.sleep(next(pauses))

    ends = [[] for _ in range(ranks)]

    def end(number):
        try:
            train(number)
        except ViewBroken as error:
            ends[number].append(str(error))
            alarmed.set()
        except BaseException as error:
            ends[number].append(error)

    watches = [threading.Thread(target=watch, args=[number], daemon=True) for number in range(ranks)]
    threads = [threading.Thread(target=end, args=[number]) for number in range(ranks)]
    for each in (*watches, *threads):
        each.start()
    for each in threads:
        each.join()
    assert all(len(each) == 1 and isinstance(each[0], str) for each in ends), ends
    return begun


@pytest.mark.parametrize("seed", range(12))
def test_ranks_begin_the_same_and_leave_nobody_alone(seed):
    first, *others = run_ranks(seed)
    assert all(each == first for each in others)


def test_a_rank_that_is_never_told_the_line_gives_up():
    line = StopLine(lambda: None, None, lambda _: None, 0.01)

    def execute():
        with line.list():
            line.enter(0)
            line.bear(ConnectionLost("a transfer"))
            line.enter(1)

    with pytest.raises(ConnectionLost, match="a transfer"):
        execute()


def test_outside_a_list_and_of_a_single_rank_nothing_is_borne():
    for line in (NO_LINE, StopLine(lambda: None, None, lambda _: None, 1.0)):
        with pytest.raises(ConnectionLost):
            line.bear(ConnectionLost("a transfer"))
        assert line.start(OwnGroup((0, 1)), "barrier") is None

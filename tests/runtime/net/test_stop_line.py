"""The ranks of a server stop at one line: as a model in all orders, and as it is with threads for ranks."""

import random
import threading
import time
from functools import partial

import pytest

from recycle.runtime.errors import ConnectionLost, ViewBroken
from recycle.runtime.net.stop_line import NO_LINE, OwnGroup, StopLine

LISTS, ROWS = 2, 3


class Model:
    """All states that ranks get into: a call of all servers, the gate, and a list, twice; an alarm at any moment.

    A rank is (where in its script, what it does there, its furthest instruction, whether it has closed).

    Args:
        ranks: how many.
        gated: whether all come to a list before any begins it.
        asks: whether a rank for which the gate has failed asks how far the others are.
        watches: whether another thread hears the alarm while the one that trains waits.
    """

    def __init__(self, ranks, *, gated=True, asks=True, watches=True):
        self._all = 2**ranks - 1
        self._asks, self._watches = asks, watches
        self._script = []
        for turn in range(LISTS):
            gate = [("gate", turn)] if gated else []
            self._script += [("carried", 0), *gate, *(("own", turn * ROWS + row) for row in range(1, ROWS + 1))]
        self._script.append(("end", 0))
        self.begin = False, ((0, "run", 0, False),) * ranks, (), (None,) * ranks, ()

    def stuck(self):
        """The states from which nothing leads on, though a rank is still under way or others began what it did not."""
        seen, todo, stuck = {self.begin}, [self.begin], []
        while todo:
            state = todo.pop()
            following = set(self._following(state)) - {state}
            if not following:
                _, ranks, begun, _, _ = state
                done = all(each[1] in ("halted", "done") for each in ranks)
                if not done or any(each != self._all for _, each in begun):
                    stuck.append(state)
            todo += following - seen
            seen |= following
        assert len(seen) > 100
        return stuck

    def _following(self, state):
        alarm, ranks, begun, closed, gates = state
        line = None if None in closed else max(closed)
        cut = any(each[3] for each in ranks)
        if not alarm:
            yield True, ranks, begun, closed, gates
        for number, (place, doing, reached, is_closed) in enumerate(ranks):

            def moved(*rank, begun=begun, closed=closed, gates=gates, number=number):
                return alarm, (*ranks[:number], rank, *ranks[number + 1 :]), begun, closed, gates

            def marked(sets, name, number=number):
                known = dict(sets)
                known[name] = known.get(name, 0) | 1 << number
                return tuple(sorted(known.items()))

            if alarm and not is_closed and (self._watches or doing == "run"):
                known = (*closed[:number], reached, *closed[number + 1 :])
                yield moved(place, doing, reached, True, closed=known)
            if doing in ("halted", "done"):
                continue
            kind, what = self._script[place]
            if kind == "end":
                yield moved(place, "done", reached, is_closed)
            elif kind == "carried":
                yield moved(place + 1, "run", reached, is_closed)
                if alarm and cut:
                    yield moved(place, "halted", reached, is_closed)
            elif kind == "gate" and doing == "run":
                yield moved(place, "waits", reached, is_closed, gates=marked(gates, what))
            elif kind == "gate" and doing == "waits":
                if dict(gates)[what] == self._all:
                    yield moved(place + 1, "run", reached, is_closed)
                if cut:
                    yield moved(place, "asks" if self._asks else "halted", reached, is_closed)
            elif kind == "gate":
                if line is not None:
                    went = line > what * ROWS
                    yield moved(place + went, "run" if went else "halted", reached, is_closed)
            elif doing == "run":
                if not is_closed:
                    yield moved(place, "in", what, is_closed, begun=marked(begun, what))
                elif line is not None and what > line:
                    yield moved(place, "halted", reached, is_closed)
                elif line is not None:
                    yield moved(place, "in", reached, is_closed, begun=marked(begun, what))
            elif dict(begun)[what] == self._all:
                yield moved(place + 1, "run", reached, is_closed)


def test_no_order_of_events_leaves_a_rank_behind():
    assert Model(2).stuck() == []


@pytest.mark.long
def test_nor_with_three_ranks():
    assert Model(3).stuck() == []


@pytest.mark.parametrize("without", ["gated", "asks", "watches"])
def test_each_part_of_it_is_needed(without):
    assert Model(2, **{without: False}).stuck()


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

"""Forward steps get the micro-batches that they ask for, in any order; the script's iterator ends as under stock."""

import pytest

from recycle.megatron.flag.data.script_data import ScriptData
from recycle.runtime.errors import RunError
from recycle.runtime.execute.stage import MicroBatch

HOME, MICRO_BATCHES = 1, 3


class Training(ScriptData):
    """All of whose batches are alike, and of ten samples."""

    def __init__(self, home):
        self.trained = 0
        super().__init__(home, lambda: self.trained)

    def iteration(self, iterator, step, micro_batches=MICRO_BATCHES):
        return super().iteration(iterator, step, micro_batches)

    def evaluation(self, iterator, micro_batches=MICRO_BATCHES):
        return super().evaluation(iterator, micro_batches)


@pytest.fixture
def data():
    return Training(HOME)


def training(data, step, number, home=HOME):
    (item,) = data.training(MicroBatch(step, home, number))
    return item


def held_out(data, number, home=HOME):
    # Evaluations have no number of their own where the plan is executed.
    (item,) = data.held_out(MicroBatch(0, home, number))
    return item


def test_own_micro_batches_come_in_any_order_and_again_until_three_iterations_later(data):
    iterator = iter(range(100))
    with data.iteration(iterator, 7):
        assert [training(data, 7, number) for number in (2, 0, 2)] == [2, 0, 2]
    with data.iteration(iterator, 8):
        assert training(data, 8, 1) == 4
        assert training(data, 7, 1) == 1
    with data.iteration(iterator, 9):
        assert training(data, 8, 2) == 5
        assert training(data, 7, 0) == 0
    with data.iteration(iterator, 10), pytest.raises(KeyError):
        training(data, 7, 0)


def test_what_a_script_changes_in_place_is_there_again_when_an_iteration_is_made_again(data):
    """As Megatron's own functions do from 0.18 on: parts of sequences take the place of these, and None of the rest."""
    with data.iteration(iter([{"tokens": [each]} for each in range(3)]), 7):
        training(data, 7, 1)["tokens"] = None
        assert training(data, 7, 1) == {"tokens": [1]}
    with data.evaluation(iter([{"tokens": [each]} for each in range(3)])):
        held_out(data, 0)["tokens"] = None
        assert held_out(data, 0) == {"tokens": [0]}


def test_an_iterator_is_left_where_a_stock_schedule_leaves_it(data):
    """Whoever leaves its work to its peers reads it all the same."""
    iterator = iter(range(100))
    with data.iteration(iterator, 0):
        pass
    with data.evaluation(iterator):
        assert held_out(data, 0) == 3
    assert next(iterator) == 6


def test_batches_may_grow():
    data, iterator, other = Training(HOME), iter(range(100)), Set()
    data.add(iterator, other, first=4)
    for step, micro_batches in ((4, 2), (5, 3)):
        with data.iteration(iterator, step, micro_batches):
            pass
        data.trained += micro_batches
    assert next(iterator) == 5
    assert other.begun == [(4, 2, 40), (5, 3, 42)]


def test_iterations_that_are_left_out_have_taken_what_the_training_code_says():
    data, iterator, other = Training(HOME), iter(range(100)), Set()
    data.trained = 7
    data.add(iterator, other, first=4)
    for step, taken in ((4, 0), (7, 25), (8, 35), (8, 35)):
        data.trained = 7 + taken
        with data.iteration(iterator, step):
            pass
    assert other.begun == [(4, 3, 40), (7, 3, 65), (8, 3, 75), (8, 3, 75)]
    # Those of the last three are kept, whatever their numbers are.
    with data.iteration(iterator, 11):
        assert training(data, 7, 0) == 3
        with pytest.raises(KeyError):
            training(data, 4, 0)


def test_an_iteration_that_is_made_again_meanwhile_reads_its_own_data(data):
    trained, evaluated = iter(range(100)), iter(range(100, 200))
    with data.iteration(trained, 0):
        pass
    with data.evaluation(evaluated):
        assert held_out(data, 0) == 100
        assert training(data, 0, 1) == 1
        assert held_out(data, 1) == 101
    with data.iteration(trained, 1):
        assert training(data, 1, 0) == 3


def test_data_of_other_pipelines_is_that_of_the_iterators_own_set(data):
    iterators = {name: iter(range(100)) for name in ("trained", "evaluated", "tested")}
    for name, iterator in iterators.items():
        data.add(iterator, Set(f"{name} "), 4 if name == "trained" else None)
    with data.iteration(iterators["trained"], 4):
        assert training(data, 4, 2, home=0) == "trained other 4 0.2"
    for time in range(2):
        with data.evaluation(iterators["evaluated"]):
            assert held_out(data, 1, home=0) == f"evaluated other {time} 0.1"
    with data.evaluation(iterators["tested"]):
        assert held_out(data, 0, home=2) == "tested other 0 2.0"


class Set:
    """Data of which an iteration takes ten samples."""

    def __init__(self, name=""):
        self.name, self.place, self.begun = name, None, []

    def begin(self, step, micro_batches, consumed):
        self.begun.append((step, micro_batches, consumed))

    def __call__(self, micro_batch):
        return f"{self.name}other {micro_batch.step} {micro_batch.home}.{micro_batch.number}"

    def consumed(self, step):
        return 10 * step

    def start_at(self, step, consumed):
        self.place = step, consumed


def test_who_comes_back_begins_where_a_peer_is(data):
    iterators = {name: iter(range(100)) for name in ("trained", "evaluated", "tested")}
    # A virtual stage has an iterator that nobody reads from.
    iterators["other stage"] = iter(range(100))
    for name, iterator in iterators.items():
        data.add(iterator, Set(), 4 if name in ("trained", "other stage") else None)
    with data.iteration(iterators["trained"], 4), data.evaluation(iterators["evaluated"]):
        pass
    data.trained = 12
    with data.iteration(iterators["trained"], 5):
        bookmarks = data.bookmarks(5)
    assert bookmarks == [(5, 52), (1, 10), (0, 0), (5, 52)]
    back, sets = Training(HOME), [Set() for _ in iterators]
    evaluated = [iter(range(100)) for _ in sets]
    for iterator, each, first in zip(evaluated, sets, (0, None, None, 0), strict=True):
        back.add(iterator, each, first)
    back.trained = 12
    back.open_at(bookmarks)
    assert [each.place for each in sets] == bookmarks
    with back.iteration(evaluated[0], 5):
        pass
    assert sets[0].begun == [(5, 3, 52)]
    with back.evaluation(evaluated[1]):
        assert held_out(back, 1, home=0) == "other 1 0.1"


def test_an_evaluation_that_fails_is_not_counted(data):
    iterator = iter(range(100))
    data.add(iterator, Set())
    with pytest.raises(OSError, match="lost"), data.evaluation(iterator):
        raise OSError("lost")
    with data.evaluation(iterator):
        assert held_out(data, 0, home=0) == "other 0 0.0"


def test_without_an_iterator_nothing_is_read(data):
    data.add(None, Set())
    with data.iteration(None, 0):
        assert data.training(MicroBatch(0, HOME, 0)) is None
        assert data.training(MicroBatch(0, 0, 0)) is None


def test_other_data_that_cannot_be_found_is_an_error(data):
    with (
        data.iteration(iter(range(100)), 0),
        pytest.raises(RunError, match="data: the plan routes micro-batches of other pipelines here"),
    ):
        data.training(MicroBatch(0, 0, 0))

"""A run in which nothing happens says so, with a clock that is put forward by hand."""

from recycle.record.recording import InstantLine, IterationLine
from recycle.runtime.launch.supervise.watches import FIRST, LONGER, QuietWatch


class Clock:
    """A clock that somebody puts forward."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def iteration(step: int, seconds: float = 0.1) -> IterationLine:
    return IterationLine("W0_0", step, seconds, [], 1)


def test_it_is_said_soon_and_then_ever_more_rarely() -> None:
    clock = Clock()
    watch = QuietWatch(15.0, clock)
    watch.hear(iteration(23))
    said = {}
    for second in range(1, 40):
        clock.time = 1000.0 + second
        if text := watch.news():
            said[second] = text
    assert list(said) == [8, 16, 32]
    means = "a frozen process counts as dead after 15 s, and a stuck one is named later"
    assert said[8] == f"nothing has happened for 8 s, since iteration 24: {means}"
    watch.hear(InstantLine("warning", 0.0, None, "something"))
    assert not watch.news()
    clock.time += FIRST
    assert watch.news()


def test_nothing_is_said_before_training_nor_while_iterations_take_as_long_as_before() -> None:
    clock = Clock()
    watch = QuietWatch(15.0, clock)
    watch.hear(InstantLine("warning", 0.0, None, "something"))
    clock.time += 100
    assert not watch.news()
    watch.hear(iteration(0, 30.0))
    clock.time += 30.0 * LONGER - 1
    assert not watch.news()
    clock.time += 1
    assert watch.news()
    for step in range(1, 200):
        watch.hear(iteration(step))
    clock.time += FIRST
    assert watch.news()

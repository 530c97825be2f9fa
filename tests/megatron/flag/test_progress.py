"""Versions and iterations are joined as the training code has asked for them, whatever it leaves out or makes again."""

from hypothesis import given
from hypothesis import strategies as st

from recycle.megatron.flag.world.progress import VERSIONS, IterationProgress

ASKED = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=20)
"""By how much the number of each iteration is larger than that of the one before, and how many micro-batches it has."""


@given(first=st.integers(0, 100), asked=ASKED, back=st.integers(0, 19))
def test_each_version_leads_on_by_the_iteration_that_was_asked_for_there(first, asked, back):
    progress, iteration, history = IterationProgress(first, first), first, {}
    for number, (ahead, micro_batches) in enumerate(asked):
        version, repeats = progress.reached, number > 0 and ahead == 0
        iteration += ahead
        if number == back % len(asked) and not repeats:
            # A server comes to this iteration, with what a peer of its tells it.
            progress = IterationProgress(0, 0)
            progress.arrive(version, iteration)
            history.clear()
        assert progress.is_asked == bool(history)
        progress.ask(iteration, micro_batches)
        assert progress.repeats == repeats
        history[version] = iteration, micro_batches
        for known in sorted(history)[-VERSIONS:]:
            assert progress.after(known) == history[known]
            assert progress.iteration(known) == history[known][0]
        # What comes next nobody has asked for yet.
        assert progress.iteration(version + 1) == iteration + 1
        progress.answer()
        assert progress.reached == version + 1
        assert progress.iteration(version) == iteration

"""Models for the tests of placing, and what is found for them by trying everything."""

from itertools import combinations, combinations_with_replacement, pairwise

from hypothesis import strategies as st

from recycle.placing.layers import Layer, Model


def even_model(layers, memory=10**6, **changes):
    return Model((Layer(**changes),) * layers, memory)


@st.composite
def models(draw, most=7):
    layers = draw(
        st.lists(
            st.builds(
                Layer,
                forward=st.integers(0, 4),
                weight_gradient=st.integers(1, 5),
                optimizer=st.integers(0, 6),
                held=st.integers(1, 4),
                state=st.integers(0, 5),
            ),
            min_size=1,
            max_size=most,
        )
    )
    return Model(tuple(layers), draw(st.integers(4, 60)))


def cuts(model, servers):
    """Every way to cut the layers into so many runs."""
    count = len(model.layers)
    for inner in combinations(range(1, count), servers - 1):
        edges = (0, *inner, count)
        yield tuple(pairwise(edges))


def longest(model, runs, micro_batches):
    """The time of the busiest stage; None where one has too little memory for what 1F1B keeps there."""
    times = []
    for left, run in zip(range(len(runs), 0, -1), runs, strict=True):
        layers = model.layers[slice(*run)]
        held = min(left, micro_batches) * sum(each.held for each in layers)
        if held + sum(each.state for each in layers) > model.memory:
            return None
        work = sum(each.forward + each.input_gradient + each.weight_gradient for each in layers)
        times.append(micro_batches * work + sum(each.optimizer for each in layers))
    return max(times)


def fleets(sizes, live, least):
    """Every choice of pipelines on some live servers."""
    for count in range(least, live // min(sizes) + 1):
        for choice in combinations_with_replacement(sizes, count):
            if sum(choice) <= live:
                yield choice

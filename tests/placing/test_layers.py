from hypothesis import given
from hypothesis import strategies as st

from recycle.placing.layers import Layer, layers_of
from tests.strategies import jobs


@given(jobs(), st.integers(0, 8))
def test_the_layers_of_a_stage_cost_together_what_the_stage_does(job, more):
    layers = job.depth + more
    found = layers_of(job, layers).layers
    assert len(found) == layers
    for number, stage in enumerate(job.stages):
        mine = found[number * layers // job.depth : (number + 1) * layers // job.depth]
        for name in Layer.__struct_fields__:
            # Each layer's share is rounded down.
            whole = layers * getattr(stage, name)
            assert whole - len(mine) < sum(getattr(layer, name) for layer in mine) <= whole

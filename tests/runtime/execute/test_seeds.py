from recycle.runtime.execute.seeds import seed_of
from recycle.runtime.execute.stage import MicroBatch


def test_seeds_tell_every_micro_batch_and_stage_apart():
    seeds = {
        seed_of(seed, MicroBatch(step, home, number), place)
        for seed in range(2)
        for step in range(4)
        for home in range(4)
        for number in range(4)
        for place in range(4)
    }
    assert len(seeds) == 2 * 4**4
    assert all(0 <= seed < 2**63 for seed in seeds)

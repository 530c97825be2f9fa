"""The data of other pipelines is what their own ranks read."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from harness.flag_runs import needs_training
from recycle.megatron.flag.data.script_data import LateLoader, OtherData
from recycle.runtime.errors import RunError
from recycle.runtime.execute.stage import MicroBatch

PIPELINES, MICRO_BATCHES, SIZE, SAMPLES = 3, 4, 2, 100


class Numbers(Dataset):
    """Samples that say which they are."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        torch.manual_seed(index)
        return {"tokens": torch.tensor([index, index + 1000])}


def loader(kind, pipeline, consumed=0):
    from megatron.training.datasets.data_samplers import MegatronPretrainingRandomSampler, MegatronPretrainingSampler

    numbers = Numbers()
    if kind == "single":
        sampler = MegatronPretrainingSampler(SAMPLES, consumed, SIZE, pipeline, PIPELINES)
    else:
        sharded = kind == "sharded"
        sampler = MegatronPretrainingRandomSampler(numbers, SAMPLES, consumed, SIZE, pipeline, PIPELINES, sharded)
    return DataLoader(numbers, batch_sampler=sampler)


@needs_training
@pytest.mark.parametrize("kind", ["single", "cyclic", "sharded"])
@pytest.mark.parametrize("first", [0, 1])
def test_any_micro_batch_is_that_of_its_own_pipeline(kind, first):
    consumed = first * PIPELINES * MICRO_BATCHES * SIZE
    mine = loader(kind, 1, consumed)
    other = OtherData(mine, PIPELINES, first, repeats=kind != "single")
    expected = [[batch["tokens"].tolist() for batch in loader(kind, home, consumed)] for home in range(PIPELINES)]
    # The second batch is larger. Some are asked for, in some order, and others never; the first pipeline's only later.
    begun = 0
    for step, length, asked in [(0, 2, [1, 0]), (1, 3, [2, 1, 2]), (2, 3, [0]), (3, 3, [2])]:
        other.begin(first + step, length, consumed + begun * PIPELINES * SIZE)
        for home in range(step == 0 or 2 * (step == 2), PIPELINES):
            found = [other(MicroBatch(first + step, home, number))["tokens"].tolist() for number in asked]
            assert found == [expected[home][begun + number] for number in asked]
        begun += length
        assert other.consumed(first + step + 1) == consumed + begun * PIPELINES * SIZE
    # A step that is made again.
    assert other(MicroBatch(first + 2, 0, 1))["tokens"].tolist() == expected[0][6]


@needs_training
def test_data_starts_over_where_the_loader_does():
    other = OtherData(loader("cyclic", 0), PIPELINES, 0, repeats=True)
    # 100 samples are 16 micro-batches of each pipeline, and so 4 steps.
    seen = set()
    for step in range(9):
        other.begin(step, MICRO_BATCHES, other.consumed(step))
        seen.add(other(MicroBatch(step, 2, 0))["tokens"][0, 0].item())
    assert len(seen) > 4


@needs_training
def test_reading_other_data_leaves_random_numbers_alone():
    other = OtherData(loader("single", 0), PIPELINES, 0, repeats=False)
    other.begin(0, MICRO_BATCHES, 0)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    other(MicroBatch(0, 1, 0))
    assert torch.rand(1) == expected


def test_a_sampler_that_does_not_know_its_pipeline_is_refused():
    with pytest.raises(RunError, match=r"BatchSampler does not say which pipeline .* --dataloader-type single"):
        OtherData(DataLoader(Numbers(), batch_size=2), PIPELINES, 0, repeats=False)


@needs_training
@pytest.mark.parametrize("kind", ["single", "cyclic", "sharded"])
def test_who_comes_back_reads_on_where_its_place_is_known(kind):
    whole, back = loader(kind, 1), loader(kind, 1)
    late = iter(LateLoader(back))
    other = OtherData(back, PIPELINES, 0, repeats=kind != "single")
    first = OtherData(loader(kind, 1), PIPELINES, 0, repeats=kind != "single")
    for step in range(3):
        first.begin(step, MICRO_BATCHES, first.consumed(step))
    other.start_at(2, first.consumed(2))
    other.begin(2, MICRO_BATCHES, first.consumed(2))
    expected = [each["tokens"].tolist() for each in whole][2 * MICRO_BATCHES : 3 * MICRO_BATCHES]
    assert [next(late)["tokens"].tolist() for _ in expected] == expected
    for number in range(MICRO_BATCHES):
        known = first(MicroBatch(2, 0, number))["tokens"].tolist()
        assert other(MicroBatch(2, 0, number))["tokens"].tolist() == known

"""Megatron's indexed datasets, as Megatron's own builder writes them."""

import msgspec
import numpy
import pytest
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from recycle.megatron.gpt.forward import load_indexed, load_text
from recycle.megatron.gpt.model import ModelOptions
from recycle.runtime.errors import RunError
from recycle.runtime.execute.stage import MicroBatch

MODEL = ModelOptions(sequence=8, micro_batch_size=2, vocabulary=1000)


@pytest.fixture
def dataset(tmp_path):
    """A dataset of three documents that count on from each other."""
    prefix = tmp_path / "corpus.v1"
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
    for first in (0, 300, 600):
        tokens = torch.arange(first, first + 300)
        builder.add_document(tokens, [100, 200])
    builder.finalize(f"{prefix}.idx")
    return prefix


def test_the_tokens_of_all_documents_in_their_order(dataset):
    tokens, fingerprint = load_indexed(dataset.with_name("corpus.v1.idx"))
    assert tokens.tolist() == list(range(900))
    assert tokens.dtype == numpy.uint16
    assert load_indexed(dataset.with_name("corpus.v1.bin"))[1] == fingerprint


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_it_is_trained_on_by_any_of_its_names(dataset, ending):
    text = load_text(dataset.with_name(dataset.name + ending), MODEL)
    tokens, labels = text.samples(MicroBatch(3, 1, 2))
    assert torch.equal(tokens + 1, labels)
    assert tokens.dtype == torch.int64
    assert tokens.max() > 255 or text.samples(MicroBatch(4, 1, 2))[0].max() > 255


def test_what_is_wrong_with_it_is_one_line(dataset):
    small = load_text(dataset, msgspec.structs.replace(MODEL, vocabulary=10))
    with pytest.raises(RunError, match=r"vocabulary is 10, and .*corpus\.v1 has token \d+: set it above that"):
        small.samples(MicroBatch(0, 0, 0))
    index, tokens = (dataset.with_name(dataset.name + ending) for ending in (".idx", ".bin"))
    content = index.read_bytes()
    for damaged in (b"", content[:5], content[:30], content[:60], b"X" * len(content)):
        index.write_bytes(damaged)
        with pytest.raises(RunError, match=r"corpus\.v1\.idx is damaged: .*; make the dataset again") as caught:
            load_indexed(dataset)
        assert "\n" not in str(caught.value)
    index.write_bytes(content)
    tokens.write_bytes(tokens.read_bytes()[:-4])
    with pytest.raises(RunError, match=r"corpus\.v1\.bin has 1796 bytes, and corpus\.v1\.idx says 1800"):
        load_indexed(dataset)
    tokens.unlink()
    with pytest.raises(RunError, match=r"corpus\.v1\.bin is missing"):
        load_indexed(dataset)

import pytest
import torch

from recycle.megatron.gpt.text import TRAINING, VALIDATION, ByteText, standard_library
from recycle.runtime.errors import RunError
from recycle.runtime.execute.stage import MicroBatch

CONTENT = bytes(range(200)) * 10


def test_the_standard_library_is_real_text_and_the_same_each_time():
    text = standard_library()
    assert len(text) > 1_000_000
    assert b"import" in text
    assert (
        ByteText(text, "library", 8, 2, 0).fingerprint == ByteText(standard_library(), "library", 8, 2, 0).fingerprint
    )


def test_labels_are_the_tokens_that_follow():
    tokens, labels = ByteText(CONTENT, "numbers", 16, 3, seed=1).samples(MicroBatch(5, 1, 2))
    assert tokens.shape == labels.shape == (3, 16)
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    assert torch.equal((tokens + 1) % 200, labels)


def test_a_micro_batch_is_the_same_anywhere_and_no_two_are_alike():
    one, other = (ByteText(CONTENT, "numbers", 16, 3, seed=1) for _ in range(2))
    batches = [MicroBatch(step, home, number) for step in range(3) for home in range(2) for number in range(3)]
    assert all(torch.equal(one.samples(batch)[0], other.samples(batch)[0]) for batch in reversed(batches))
    assert len({tuple(one.samples(batch)[0].flatten().tolist()) for batch in batches}) == len(batches)


def test_validation_samples_are_from_the_end_that_training_never_sees():
    content = b"t" * 1900 + b"v" * 100
    text = ByteText(content, "two letters", 16, 4, seed=0)
    for step in range(50):
        assert set(text.samples(MicroBatch(step, 0, 0), TRAINING)[1].flatten().tolist()) == {ord("t")}
        assert set(text.samples(MicroBatch(step, 0, 0), VALIDATION)[1].flatten().tolist()) == {ord("v")}


def test_a_text_that_is_too_short_says_so():
    with pytest.raises(RunError, match=r"data: note\.txt has 40 tokens, .* give a longer text or a shorter sequence"):
        ByteText(b"x" * 40, "note.txt", 16, 1, 0)

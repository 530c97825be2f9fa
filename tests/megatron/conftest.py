"""What lets any release of Megatron be imported on a machine without CUDA; its functions stay Megatron's own."""

import gc
from collections.abc import Iterator

import pytest

from recycle.megatron.shared.missing import make_importable

make_importable()


@pytest.fixture(scope="module")
def let_go() -> Iterator[None]:
    """Free the process groups of a module's tests: each has three threads, one of which wakes 100 times a second."""
    yield
    gc.collect()

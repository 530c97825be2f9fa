"""What the files of a checkpoint hold, for comparisons to the bit."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from recycle.runtime.checkpoint_folders import DIGESTS


def data_digests(folder: Path) -> Mapping[str, str]:
    """The digests of the files of a stage that hold its tensors.

    Args:
        folder: of the stage. In what torch says of them, each writing has a number of its own.
    """
    digests = msgspec.json.decode((folder / DIGESTS).read_bytes(), type=dict[str, str])
    assert len(digests) > 1, f"{folder} holds nothing"
    return {name: each for name, each in digests.items() if not name.startswith(".")}

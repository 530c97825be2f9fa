"""What a checkpoint says of its tensors, read without running anything that a file may have been made to hold.

Torch keeps it as a pickle, which can name any function of any module; here it can name what torch writes, and no more.
"""

import pathlib
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.serialization import _get_layout

METADATA = ".metadata"


class StageReader(FileSystemReader):
    """Reads a stage's part of a checkpoint.

    Args:
        folder: where it is.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Which tensors there are.

        Raises:
            pickle.UnpicklingError: it names something else than torch writes, files outside the folder, or tensors
                that are larger than all files together.
        """
        with (self._folder / METADATA).open("rb") as file:
            found = _MetadataUnpickler(file).load()
        if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
            raise pickle.UnpicklingError(f"{METADATA} is of {type(found).__name__}")
        for each in found.storage_data.values():
            if Path(each.relative_path).name != each.relative_path or not (self._folder / each.relative_path).is_file():
                raise pickle.UnpicklingError(f"{METADATA} names the file {each.relative_path!r}")
        held = sum(each.stat().st_size for each in self._folder.iterdir() if each.is_file())
        tensors = [each for each in found.state_dict_metadata.values() if isinstance(each, TensorStorageMetadata)]
        needed = sum(each.size.numel() * each.properties.dtype.itemsize for each in tensors)
        if needed > held:
            raise pickle.UnpicklingError(f"{METADATA} says that its tensors have {needed} bytes, and there are {held}")
        return found


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """See Unpickler."""
        found: Any = None
        if module == "torch":
            found = getattr(torch, name, None)
            found = found if found is torch.Size or isinstance(found, torch.dtype) else None
        elif module == metadata.__name__:
            found = getattr(metadata, name, None)
            found = found if isinstance(found, type) and found.__module__ == module else None
        elif (module, name) == (_StorageInfo.__module__, _StorageInfo.__name__):
            found = _StorageInfo
        elif (module, name) == ("torch.serialization", "_get_layout"):
            found = _get_layout
        elif module.partition(".")[0] == "pathlib" and name == "PosixPath":
            found = pathlib.PosixPath
        if found is None:
            raise pickle.UnpicklingError(f"{METADATA} names {module}.{name}, which torch does not write there")
        return found

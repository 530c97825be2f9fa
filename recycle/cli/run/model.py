"""The model that a verb works on, from a TOML file."""

import logging
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from recycle.errors import UserError
from recycle.files import read_bytes
from recycle.kinds import MODEL, read_toml

if TYPE_CHECKING:
    from recycle.megatron.gpt.model import ModelOptions


def quiet() -> None:
    """Hide warnings of Megatron and torch: kernels that are not installed, names that will change.

    Torch's store logs every wait that times out and every lost connection; the run reports these itself.
    """
    logging.getLogger("megatron").setLevel(logging.ERROR)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    warnings.filterwarnings("ignore", module=r"(megatron|torch)\b")


def read_model(path: Path | None) -> dict[str, Any]:
    """What a TOML file says of a model, whose keys are not judged yet: that takes torch. Nothing without a file.

    Raises:
        UserError: the file cannot be read, or is none of a model.
    """
    if path is None:
        return {}
    content = read_bytes(path)
    try:
        return read_toml(content, MODEL)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def load_model(path: Path | None, said: Mapping[str, Any]) -> "ModelOptions":
    """The model that a file describes; a small one if it says nothing.

    Args:
        path: of the file.
        said: what ``read_model`` has read there.

    Raises:
        UserError: the file has a missing, unknown or wrong key.
    """
    from recycle.megatron.gpt.model import ModelOptions

    try:
        return msgspec.convert(said, ModelOptions)
    except msgspec.ValidationError as error:
        known = ", ".join(ModelOptions.__struct_fields__)
        raise UserError(f"{path}: {error}; the keys are {known}") from error

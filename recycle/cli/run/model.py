"""The model that a verb works on, from a TOML file."""

import logging
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

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


def load_model(path: Path | None) -> "ModelOptions":
    """The model that a TOML file describes; a small one without a file.

    Raises:
        UserError: the file cannot be read, or has a missing, unknown or wrong key.
    """
    from recycle.megatron.gpt.model import ModelOptions

    if path is None:
        return ModelOptions()
    content = read_bytes(path)
    try:
        return msgspec.convert(read_toml(content, MODEL), ModelOptions)
    except msgspec.ValidationError as error:
        known = ", ".join(ModelOptions.__struct_fields__)
        raise UserError(f"{path}: {error}; the keys are {known}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error

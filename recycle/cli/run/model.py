"""The model that a verb works on, from a TOML file."""

import logging
import os
import warnings
from pathlib import Path

import msgspec

from recycle.errors import UserError
from recycle.files import read_bytes
from recycle.keys import convert
from recycle.kinds import MODEL, read_toml
from recycle.runtime.model_keys import ModelKeys


def quiet() -> None:
    """Hide warnings of Megatron and torch: kernels that are not installed, names that will change.

    Torch's store logs every wait that times out and every lost connection; the run reports these itself.
    """
    logging.getLogger("megatron").setLevel(logging.ERROR)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    warnings.filterwarnings("ignore", module=r"(megatron|torch)\b")


def read_model(path: Path | None) -> ModelKeys:
    """What a TOML file says of a model; a small one without a file.

    Raises:
        UserError: the file cannot be read, is none of a model, or has an unknown or wrong key.
    """
    if path is None:
        return ModelKeys()
    content = read_bytes(path)
    try:
        return convert(read_toml(content, MODEL), ModelKeys)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}; docs/reference/train.md lists every key") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error

"""The model that a verb works on, from a TOML file."""

import logging
import os
import tomllib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from recycle.errors import UserError
from recycle.files import read_bytes
from recycle.kinds import MODEL, mistaken

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
    mistake = mistaken(content, MODEL)
    if mistake is not None:
        raise UserError(f"{path}: {mistake}")
    try:
        return msgspec.convert(tomllib.loads(content.decode()), ModelOptions)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: this is no TOML file: {error}") from error
    except msgspec.ValidationError as error:
        known = ", ".join(ModelOptions.__struct_fields__)
        raise UserError(f"{path}: {error}; the keys are {known}") from error

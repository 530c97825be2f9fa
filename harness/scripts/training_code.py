"""Imports for all what training scripts import, and what the flag imports for them, where there is no CUDA too."""

import argparse
import warnings
from functools import cache

from recycle.megatron.shared.cpu import run_on_cpu
from recycle.megatron.shared.missing import make_importable
from recycle.runtime.device import count_gpus

warnings.simplefilter("ignore")
# Ranks that are forked from here could not use a GPU for which this process itself had asked.
if not count_gpus():
    make_importable()
    run_on_cpu()

from megatron.training.argument_utils import ArgumentGroupFactory  # noqa: E402
from megatron.training.arguments import add_megatron_arguments  # noqa: E402

import recycle.megatron.flag.device.cpu_training  # noqa: E402
import recycle.megatron.flag.start.dropin  # noqa: E402
import recycle.megatron.flag.start.protection  # noqa: E402
import recycle.planner.source  # noqa: F401, E402

# Each parser is made with the help that stands in Megatron's sources. To parse these takes a rank longer than all the
# rest of a short run, and once is enough for all ranks that are forked.
read_help = ArgumentGroupFactory._get_field_docstrings
known_help = cache(lambda settings: read_help(object.__new__(ArgumentGroupFactory), settings))
ArgumentGroupFactory._get_field_docstrings = lambda _, settings: known_help(settings)
add_megatron_arguments(argparse.ArgumentParser())

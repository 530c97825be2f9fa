"""A script's data, by micro-batch and pipeline."""

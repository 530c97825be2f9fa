"""Megatron's collectives, carried out by the ranks that live."""

"""Megatron's command line: what a plan takes from it, and what is refused."""

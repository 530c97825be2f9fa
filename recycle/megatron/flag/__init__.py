"""The flag on Megatron's own training code."""

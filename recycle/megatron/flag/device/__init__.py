"""What Megatron and torch need of a GPU, and of a machine without one."""
